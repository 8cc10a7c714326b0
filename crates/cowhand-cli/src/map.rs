//! `cowhand map`: where each part of a disk is stored.

pub mod extent;
pub mod pieces;
pub mod show;

use std::io::Write;
use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;

use block::Block;
use formats::Kind;
use formats::vmdk::Vmdk;
use graph::{Disk, OpenRules};
use reactor::Reactor;
use tool::failure::Failure;
use tool::info::name::is_same_file;
use tool::info::read::named_in_header;
use tool::voice;

use self::extent::{Extent, Joined};
use self::show::Printer;
use crate::drive::DRIVE_HELP;
use crate::drive::{DriveArgs, parse_bytes};
use crate::output::{OutputFormat, with_json};

/// Arguments of `cowhand map`.
#[derive(Debug, clap::Args)]
#[command(
    long_about = "Show where each part of a disk is stored: in which file of the chain, and where in it.\n\n\
        The JSON has every byte of the disk, with qemu-img's fields; the table has the parts that hold data.",
    after_help = DRIVE_HELP,
    after_long_help = with_json(DRIVE_HELP, &[show::JSON])
)]
pub struct Args {
    #[command(flatten)]
    drive: DriveArgs,

    /// Form of the result
    #[arg(long, value_enum, default_value_t, value_name = "FORMAT")]
    output: OutputFormat,

    /// Begin at this byte of the disk
    #[arg(short = 's', long, value_name = "OFFSET", value_parser = parse_bytes, default_value = "0")]
    start_offset: u64,

    /// End after so many bytes [default: the rest of the disk]
    #[arg(short = 'l', long, value_name = "LENGTH", value_parser = parse_bytes)]
    max_length: Option<u64>,
}

/// Shows the map.
pub fn run(args: &Args, out: &mut dyn Write) -> Result<ExitCode, Failure> {
    let mut options = args.drive.options()?;
    options.layer.read_only = true;
    let failed = |error: &dyn std::error::Error| {
        Failure::because(format!("cannot map {}", options.filename.display()), error)
    };
    let rules = OpenRules { policy: args.drive.policy()?, ..OpenRules::default() };
    let reactor = Reactor::new(reactor::Backend::Ring).map_err(|error| failed(&error))?;
    let disk = reactor
        .run(graph::open(&options, &rules))
        .map_err(|error| failed(&error).with_hint_about_lock(&error))?;
    let mut printer = Printer::begin(out, args.output)?;
    let files = reactor.run(file_names(disk.root(), &options.filename));
    for extent in Joined::new(Walk::new(&reactor, &disk, files, args.start_offset, args.max_length)) {
        let extent = extent.map_err(|error| failed(&error))?;
        if voice::is_qemu() && args.output == OutputFormat::Human && extent.is_without_place() {
            let what = format!("{} holds data that lies nowhere byte for byte", options.filename.display());
            return Err(Failure::new(what).with_hint("--output=json shows all of the map"));
        }
        printer.row(&extent)?;
    }
    printer.end()?;
    Ok(ExitCode::SUCCESS)
}

/// The disk from one offset to another, as the engine describes it.
pub struct Walk<'a> {
    reactor: &'a Reactor,
    disk: &'a Disk,
    /// Names of the chain's files, the active one first.
    files: Vec<String>,
    /// Some image of the chain is a vmdk, which may have several files.
    has_vmdk: bool,
    at: u64,
    end: u64,
    is_unmapped: bool,
}

impl<'a> Walk<'a> {
    /// From `start` on for `length` bytes, or to the end of the disk.
    pub fn new(
        reactor: &'a Reactor,
        disk: &'a Disk,
        files: Vec<String>,
        start: u64,
        length: Option<u64>,
    ) -> Self {
        let end = start.saturating_add(length.unwrap_or(u64::MAX)).min(disk.size());
        let is_vmdk = |layer: Arc<dyn Block>| layer.downcast_ref::<Vmdk>().is_some();
        let has_vmdk = block::layers(disk.root()).any(is_vmdk);
        Self { reactor, disk, files, has_vmdk, at: start, end, is_unmapped: is_unmapped(disk) }
    }

    /// The file of the layer at `depth` that has what is at `start`. A vmdk image has several.
    fn file_of(&self, start: u64, depth: u32) -> Option<String> {
        let layer = self.has_vmdk.then(|| images(self.disk.root()).into_iter().nth(depth as usize)).flatten();
        if let Some(image) = layer.as_ref().and_then(|layer| layer.downcast_ref::<Vmdk>())
            && image.file_at(start) != image.name()
        {
            return Some(image.file_at(start).to_owned());
        }
        self.files.get(depth as usize).cloned()
    }
}

impl Iterator for Walk<'_> {
    type Item = Result<Extent, qcow2::Error>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.at >= self.end {
            return None;
        }
        let start = self.at;
        if self.is_unmapped {
            self.at = self.end;
            return Some(Ok(Extent::without_map(start, self.end - start)));
        }
        let status = match self.reactor.run(self.disk.block_status(start, self.end - start)) {
            Ok(status) => status,
            Err(error) => {
                self.at = self.end;
                return Some(Err(error));
            }
        };
        self.at += status.len;
        // What a bitmap marks (`x-dirty-bitmap`) is shown as qemu-img does: neither data nor zeroes, and nowhere.
        let is_marked = !status.data && !status.zero && !status.compressed;
        let offset = status.offset.filter(|_| !is_marked);
        let held = offset.is_some() || status.compressed;
        Some(Ok(Extent {
            start,
            length: status.len,
            depth: status.depth,
            present: status.present && !is_marked,
            zero: status.zero,
            data: status.data,
            compressed: status.compressed,
            offset,
            file: self.file_of(start, status.depth).filter(|_| held),
        }))
    }
}

/// Whether all of the disk counts as data. QEMU's driver of vhdx knows no holes, and programs that call it by its name compare its maps and sizes.
pub fn is_unmapped(disk: &Disk) -> bool {
    voice::is_qemu() && disk.root().driver() == Kind::Vhdx.name()
}

/// Names of the files of a chain whose top is called `named`: below the top as the headers give them, seen from there. Where options lead elsewhere, names in
/// the top's directory are shortened as `named` is.
pub async fn file_names(top: Arc<dyn Block>, named: &Path) -> Vec<String> {
    let directory = named.parent().unwrap_or(Path::new(""));
    let place = if directory.as_os_str().is_empty() { Path::new(".") } else { directory }.canonicalize().ok();
    let from_there = |name: &str| {
        let rest = place.as_ref().and_then(|place| Path::new(name).strip_prefix(place).ok());
        rest.map_or_else(|| name.to_owned(), |rest| directory.join(rest).to_string_lossy().into_owned())
    };
    let (mut names, mut named_below): (Vec<String>, _) = (Vec::new(), None);
    for layer in images(top) {
        let leads_here = |name: &String| is_same_file(Path::new(name), Path::new(layer.name()));
        let name = named_below.filter(leads_here).unwrap_or_else(|| from_there(layer.name()));
        named_below = named_in_header(&layer, Path::new(&name)).await;
        names.push(name);
    }
    names
}

/// The layers of a chain, as depths count them: a filter is none, and has the name of what it is put over.
fn images(top: Arc<dyn Block>) -> Vec<Arc<dyn Block>> {
    let mut images: Vec<Arc<dyn Block>> = Vec::new();
    for layer in block::layers(top) {
        match images.last_mut() {
            Some(above) if above.name() == layer.name() => *above = layer,
            _ => images.push(layer),
        }
    }
    images
}
