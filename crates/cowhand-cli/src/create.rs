//! `cowhand create`: a new image.

mod costs;
pub mod foreign;
pub mod suggest;

use std::io::Write;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use block::SECTOR_BYTES;
use cowhand::Existing;
use graph::drivers::format_of_backing;
use graph::names::{Located, Policy, Reason, Refused, Role, beside};
use graph::options::DiskOptions;
use graph::probe::Format;
use graph::size::{human_size, parse_size};
use qcow2::{CreateOptions, Preallocation};
use rustix::fs::{FallocateFlags, fallocate};
use tool::create::encryption::Encryption;
use tool::create::options::{self, NewImage};
use tool::failure::{Failure, warn};
use tool::output::{printable, write_json};
use tool::voice;

use self::suggest::{Question, Use};
use crate::compat::img::create::formatting;
use crate::copying::new_elsewhere::NewElsewhere;
use crate::drive::{
    BackingFormat, backing_formats, check_backing_name, disk_options, made_formats, new_path,
};
use crate::output::{OutputFormat, with_json};
use crate::policy;

const EXAMPLES: &str = "\
Examples:
  cowhand create disk.qcow2 20G
  cowhand create -o cluster_size=128k,extended_l2=on disk.qcow2 1.5T
  cowhand create -b base.qcow2 -F qcow2 overlay.qcow2
  cowhand create -f raw -o preallocation=falloc disk.raw 4G
  cowhand create --object secret,id=key,file=password.txt \\
    -o encrypt.format=luks,encrypt.key-secret=key disk.qcow2 20G
  cowhand create --object secret,id=key,file=password.txt \\
    -f luks -o key-secret=key disk.luks 20G
  cowhand create --suggest 1T --use database
  cowhand create --suggest 40G -b base.qcow2 -F qcow2 overlay.qcow2";

/// Arguments of `cowhand create`.
#[derive(Debug, clap::Args)]
#[command(
    long_about = "Create an image. What was in FILE is lost; a file in use is refused.\n\n\
        With a backing file (-b) the new image holds only what will differ from it, and SIZE may be left out: \
        it is then the backing file's.\n\n\
        With --suggest nothing is created: it prints which clusters to choose for a disk of that size, what they cost \
        beside the default, why, and the command to paste.",
    after_help = EXAMPLES,
    after_long_help = with_json(EXAMPLES, &[suggest::JSON])
)]
pub struct Args {
    /// The image to create
    #[arg(value_name = "FILE", required_unless_present_any = ["options", "suggest"])]
    file: Option<PathBuf>,

    /// Size of the disk in bytes, or with k, M, G, T, P, E (powers of 1024)
    #[arg(value_name = "SIZE")]
    size: Option<String>,

    /// Format of the image: qcow2, raw, luks, vpc or vmdk
    #[arg(short = 'f', value_name = "FORMAT", value_parser = made_formats(), hide_possible_values = true, default_value = "qcow2")]
    format: Format,

    /// Creation options: name=value,... (-o help lists them; may be repeated)
    #[arg(short = 'o', value_name = "OPTIONS")]
    options: Vec<String>,

    /// The backing file: the new image holds what differs from it
    #[arg(short = 'b', value_name = "PATH")]
    backing: Option<String>,

    /// Format of the backing file: qcow2 or raw (needed with -b)
    #[arg(short = 'F', value_name = "FORMAT", value_parser = backing_formats(), hide_possible_values = true)]
    backing_format: Option<BackingFormat>,

    /// Do not look at the backing file: it need not exist, but then SIZE is needed
    #[arg(short = 'u')]
    unsafe_backing: bool,

    /// Say nothing
    #[arg(short = 'q')]
    quiet: bool,

    /// Create nothing; say which options suit a disk of this size, and why
    #[arg(long, value_name = "SIZE", conflicts_with_all = ["size", "options", "unsafe_backing", "quiet"])]
    suggest: Option<String>,

    /// What the disk is for (with --suggest; default: general, or overlay with -b)
    #[arg(long = "use", value_enum, value_name = "USE", requires = "suggest")]
    purpose: Option<Use>,

    /// Form of the suggestion
    #[arg(long, value_enum, value_name = "FORMAT", requires = "suggest")]
    output: Option<OutputFormat>,
}

/// Creates the image.
pub fn run(args: &Args, out: &mut dyn Write) -> Result<ExitCode, Failure> {
    if options::asks_for_help(&args.options) {
        out.write_all(options::help(args.format, args.file.is_some()).as_bytes())?;
        return Ok(ExitCode::SUCCESS);
    }
    if let Some(size) = &args.suggest {
        return suggested(args, size, out);
    }
    // With SIZE the parser does not enforce what these options require.
    if args.purpose.is_some() || args.output.is_some() {
        return Err(Failure::new("--use and --output go with --suggest; creating an image takes neither"));
    }
    let Some(given) = &args.file else { return Err(Failure::new("no FILE is given")) };
    let file = &new_path(given)?;
    let refused =
        |error: &dyn std::error::Error| Failure::because(format!("cannot create {}", file.display()), error);
    let parsed = NewImage::parse_whole(&args.options, args.format).map_err(|error| refused(&error));
    let mut image = match &parsed {
        Err(_) if voice::is_qemu() => {
            NewImage::parse_to_show(&args.options, args.format).map_err(|error| refused(&error))?
        }
        _ => parsed.clone()?,
    };
    set_backing(args, &mut image)?;
    if let Some(size) = &args.size {
        if image.size.is_some() && voice::is_qemu() {
            return Err(Failure::new(format!("cannot create {}: the size is given twice", file.display())));
        }
        image.size = Some(parse_size(size).map_err(|error| refused(&error))?);
    }
    let size = size_of(args, file, &image)?;
    let is_elsewhere = NewElsewhere::is_meant(given);
    if !is_elsewhere {
        check_creatable(file)?;
    }
    if voice::is_qemu() && !args.quiet {
        writeln!(out, "{}", formatting(given, &image, size, &options::assignments(&args.options)))?;
        out.flush()?;
    }
    parsed?;
    match is_elsewhere {
        true => drop(NewElsewhere::make(given, &image, size)?),
        false => make(file, &image, size, Existing::Replace)?,
    }
    if voice::is_qemu() && image.format == Format::Raw && !is_elsewhere {
        allocate_first_block(file, size)?;
        if image.options.preallocation == Preallocation::Off {
            give_last_block_back(file, size);
        }
    }
    warn_of_names(file, &image.options);
    if !voice::is_qemu() && !args.quiet {
        writeln!(out, "{}", created(file, &image, size))?;
    }
    Ok(ExitCode::SUCCESS)
}

/// Writes the first block of a new raw image, which is zeroes: as in an image that qemu-img makes, which opens of it without the page cache
/// find out by what alignment the file system wants.
fn allocate_first_block(file: &Path, size: u64) -> Result<(), Failure> {
    const BLOCK: [u8; 4096] = [0; 4096];
    let len = usize::try_from(size).map_or(BLOCK.len(), |size| size.min(BLOCK.len()));
    let written = std::fs::OpenOptions::new().write(true).open(file);
    let written = written.and_then(|file| file.write_all_at(&BLOCK[..len], 0));
    written.map_err(|error| Failure::because(format!("cannot create {}", file.display()), &error))
}

/// A file is made as long as it is by its last byte, which takes a block (`storage/src/file/length.rs`). A new one that qemu-img makes has none there; no
/// harm is done where the file system keeps it.
fn give_last_block_back(file: &Path, size: u64) {
    const FIRST_BYTES: u64 = 4096;
    let Some(offset) = size.checked_sub(1).filter(|last| *last >= FIRST_BYTES) else { return };
    if let Ok(file) = std::fs::OpenOptions::new().write(true).open(file) {
        let start = offset - offset % FIRST_BYTES;
        let _ = fallocate(&file, FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE, start, size - start);
    }
}

/// Whether a file of that name can be made.
///
/// # Errors
/// When the name is of something that a driver other than that of files leads to.
pub fn check_creatable(name: &Path) -> Result<(), Failure> {
    match graph::drivers::elsewhere(name) {
        Some(driver) if name.symlink_metadata().is_err() => {
            let what = format!("cannot create {}: driver {driver} creates nothing", name.display());
            Err(Failure::new(what).with_hint("convert -n writes to what is there"))
        }
        _ => Ok(()),
    }
}

/// Says what to create, and creates nothing.
fn suggested(args: &Args, size: &str, out: &mut dyn Write) -> Result<ExitCode, Failure> {
    if args.format != Format::Qcow2 {
        let what = format!("a {} image has no clusters, so there is nothing to suggest", args.format);
        return Err(Failure::new(what));
    }
    let disk_bytes = parse_size(size).map_err(|error| Failure::because("cannot suggest anything", &error))?;
    let mut image = NewImage::parse(&[], args.format).map_err(|error| Failure::new(error.to_string()))?;
    set_backing(args, &mut image)?;
    let backing = image.options.backing_file.is_some();
    let purpose = args.purpose.unwrap_or(if backing { Use::Overlay } else { Use::General });
    let mut words = Vec::new();
    if backing || purpose == Use::Overlay {
        let name = image.options.backing_file.unwrap_or("base.qcow2".into());
        let format = image.options.backing_format.unwrap_or("qcow2".into());
        words.extend(["-b".into(), name, "-F".into(), format]);
    }
    let file = args.file.as_deref().unwrap_or(Path::new("disk.qcow2"));
    words.extend([file.display().to_string(), size.to_owned()]);
    let answer = Question { disk_bytes, purpose, backing }.answer(&["cowhand", "create"], &words);
    let answer = answer.ok_or_else(|| {
        Failure::new(format!(
            "a disk of {} is larger than qcow2 can map with any clusters",
            human_size(disk_bytes)
        ))
    })?;
    match args.output.unwrap_or_default() {
        OutputFormat::Json => write_json(out, &answer)?,
        OutputFormat::Human => write!(out, "{answer}")?,
    }
    Ok(ExitCode::SUCCESS)
}

fn set_backing(args: &Args, image: &mut NewImage) -> Result<(), Failure> {
    let options = &mut image.options;
    if (args.backing.is_some() || args.backing_format.is_some()) && image.format != Format::Qcow2 {
        let format = image.format;
        return Err(Failure::new(format!(
            "a {format} image has no backing file; leave -b and -F out, or create a qcow2 image",
        )));
    }
    options.backing_file = args.backing.clone().or(options.backing_file.take());
    let format = args.backing_format.as_ref().map(|format| format.name().to_owned());
    options.backing_format = format.or(options.backing_format.take());
    match (&options.backing_file, &options.backing_format) {
        (Some(name), None) => Err(Failure::new(format!(
            "backing file {name} needs its format (-F qcow2 or -F raw): if it were guessed, the content of a raw \
             disk could decide what is opened"
        ))),
        _ => Ok(()),
    }
}

/// The size that was asked for, or the backing file's. Without `-u` the backing file is looked at
/// in any case: a name that leads nowhere is found now, not at the first start.
fn size_of(args: &Args, file: &Path, image: &NewImage) -> Result<u64, Failure> {
    let looked_at = match &image.options.backing_file {
        Some(name) if !args.unsafe_backing => Some(backing_size(file, name, image)?),
        _ => None,
    };
    // The size is that of the file with the data.
    let of_header = image.encryption.as_ref().filter(|encryption| encryption.is_detached).map(|_| 0);
    image.size.or(looked_at).or(of_header).ok_or_else(|| {
        let reason = if args.unsafe_backing { "; with -u the backing file is not asked for it" } else { "" };
        Failure::new(format!(
            "the size of {} is not given: write it behind the name (20G){reason}",
            file.display()
        ))
    })
}

fn backing_size(file: &Path, name: &str, image: &NewImage) -> Result<u64, Failure> {
    if name.starts_with("json:") || graph::drivers::elsewhere(Path::new(name)).is_some() {
        // It leads away from the image's directory: the user says where to, as on a command line.
        let mut options = disk_options(&name.into(), |_| false)?;
        let format = image.options.backing_format.as_deref().and_then(format_of_backing);
        options.layer.format = options.layer.format.or(format);
        return Ok(crate::info::read_image(&options)?.virtual_size);
    }
    check_backing_name(file, name)?;
    let path = beside(file, name);
    let failed = |error: &dyn std::error::Error| {
        let looked_for = std::path::absolute(&path).unwrap_or_else(|_| path.clone());
        let what = format!(
            "cannot open backing file {name} of {}, which is {}",
            file.display(),
            looked_for.display()
        );
        Failure::because(what, error).with_hint(
            "a relative name starts at the directory of the new image; -u creates it without looking",
        )
    };
    let backing = Located::by_user(&path).map_err(|error| failed(&error))?;
    if Located::by_user(file).is_ok_and(|there| there.identity() == backing.identity()) {
        return Err(Failure::new(format!("{} would be its own backing file", file.display())));
    }
    let mut options = DiskOptions::of_path(&path);
    options.layer.format = image.options.backing_format.as_deref().and_then(format_of_backing);
    Ok(crate::info::read_image(&options)?.virtual_size)
}

/// Names that the new image holds and that opening it will not follow, said now: the user who creates it is often not
/// the one that serves it.
fn warn_of_names(file: &Path, options: &CreateOptions) {
    // Callers of QEMU's tools serve with QEMU.
    if policy::is_as_qemu() {
        return;
    }
    let Ok(located) = Located::by_user(file) else { return };
    let names = [(&options.backing_file, Role::Backing), (&options.data_file, Role::Data)];
    for (name, role) in names {
        let Some(name) = name else { continue };
        let followed = Policy::default().resolve(located.place(), name.as_bytes(), role);
        match followed {
            // With -u it need not be there yet.
            Ok(_) | Err(Refused { reason: Reason::NotFound { .. }, .. }) => {}
            Err(refused) => warn(&format!("cowhand serve will refuse this image as it is: {refused}")),
        }
    }
}

fn created(file: &Path, image: &NewImage, asked: u64) -> String {
    let options = &image.options;
    let size = asked.next_multiple_of(SECTOR_BYTES);
    let rounded = if size == asked { String::new() } else { format!(", rounded up from {asked}") };
    let name = file.to_string_lossy();
    let name = printable(&name);
    let mut text = format!("Created {name}: {}, {} ({size} bytes{rounded})", image.format, human_size(size));
    let mut add = |part: String| {
        text.push_str(", ");
        text.push_str(&part);
    };
    if image.format == Format::Qcow2 {
        add(format!("clusters of {}", human_size(options.cluster_size)));
        add(format!("{}-bit refcounts", options.refcount_bits));
        let named = [("extended L2", options.extended_l2), ("lazy refcounts", options.lazy_refcounts)];
        named.iter().filter(|(_, on)| *on).for_each(|(name, _)| add((*name).to_owned()));
        add(options.compression.name().to_owned());
    }
    if let Some(cipher) = &options.encrypt {
        add(format!("encrypted (LUKS, {cipher})"));
    }
    if options.preallocation != qcow2::Preallocation::Off {
        add(format!("preallocation {}", options.preallocation.name()));
    }
    if let (Some(name), Some(format)) = (&options.backing_file, &options.backing_format) {
        add(format!("over {} ({format})", printable(name)));
    }
    if let Some(name) = &options.data_file {
        add(format!("data in {}", printable(name)));
    }
    text
}

/// Makes the image, which is durable afterwards. A file that did not exist before is removed again if that fails.
///
/// # Errors
/// When options contradict each other, the file is in use, or the file system refuses.
pub fn make(path: &Path, image: &NewImage, size: u64, existing: Existing) -> Result<(), Failure> {
    if let Some(foreign) = &image.foreign {
        return foreign::make(path, foreign, size, existing);
    }
    let options = CreateOptions { size, ..image.options.clone() };
    let failed =
        |error: &dyn std::error::Error| Failure::because(format!("cannot create {}", path.display()), error);
    let encryption = image.encryption.as_ref().map(Encryption::volume).transpose();
    let encryption = encryption.map_err(|error| failed(&error))?;
    let new = cowhand::NewImage { format: image.format, options, existing, encryption };
    let made = cowhand::create(path, new).wait();
    made.map_err(|error| failed(&error))
}

/// Makes the image for the server: one that exists is left as it is. Says whether one was made.
pub fn make_if_missing(path: &Path, image: &NewImage) -> Result<bool, Failure> {
    if path.symlink_metadata().is_ok() {
        return Ok(false);
    }
    let size = image.size.ok_or_else(|| Failure::new("the size of the disk is not given"))?;
    make(path, image, size, Existing::Refuse)?;
    Ok(true)
}
