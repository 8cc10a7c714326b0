//! `cowhand flatten`: what the backing files hold, copied into an image.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;

use block::Block;
use graph::cache_mode::CacheMode;
use graph::names::beside;
use graph::options::{Discard, DiskOptions};
use graph::probe::Format;
use graph::{ChainWalk, DataFiles, Disk, FoundImage, OpenRules, part_name};
use job::{CopyOptions, Counters, LoopClock, RateLimit};
use serde::Serialize;
use tool::failure::Failure;
use tool::output::write_json;

use crate::copying::report::ReportArgs;
use crate::copying::watch::Watch;
use crate::copying::{self, Memory, WAITING_BYTES_MAX, parse_memory};
use crate::drive::{DriveArgs, cache_modes, parse_bytes};
use crate::output::{OutputFormat, with_json};

const EXAMPLES: &str = "\
Examples:
  cowhand flatten -p disk.qcow2
  cowhand flatten --base golden.qcow2 disk.qcow2      keep golden.qcow2 and its backing files
  cowhand flatten -c -r 50M disk.qcow2                compressed, 50 MiB a second at most
cowhand info --help says what a DRIVE is.";

/// Arguments of `cowhand flatten`.
#[derive(Debug, clap::Args)]
#[command(
    long_about = "Copy what the backing files hold into an image, so that it needs none; with --base, so that it is backed by that \
        image of its chain directly. Its disk stays the same, zeroes stay zeroes and take no space, and no other image is written.\n\n\
        Until all of it is on disk the image keeps its backing file: an interrupted flatten can be \
        repeated, and copies only the rest.",
    after_help = EXAMPLES,
    after_long_help = with_json(EXAMPLES, &[JSON])
)]
pub struct Args {
    #[command(flatten)]
    drive: DriveArgs,

    /// The image of the chain that stays below, as its overlay names it [default: none]
    #[arg(long, value_name = "PATH")]
    base: Option<PathBuf>,

    /// Write compressed clusters
    #[arg(short = 'c')]
    compress: bool,

    /// Cache mode: writeback, writethrough, none, directsync, unsafe
    #[arg(short = 't', value_name = "MODE", value_parser = cache_modes(), hide_possible_values = true)]
    cache: Option<CacheMode>,

    /// Bytes a second at most
    #[arg(short = 'r', value_name = "RATE", value_parser = parse_bytes)]
    rate: Option<u64>,

    /// Memory for the copy and the maps, 4M at least
    #[arg(long, value_name = "BYTES", value_parser = parse_memory, default_value = "64M")]
    memory_limit: u64,

    #[command(flatten)]
    report: ReportArgs,
}

/// The image that stays below.
#[derive(Debug)]
struct Base {
    /// How it is opened by itself.
    options: DiskOptions,
    /// Images above it.
    depth: u32,
    /// What the image is to call it, and its format.
    name: String,
    format: Format,
}

/// What [`Flattened`] prints.
const JSON: &str = "  filename                text: the image
  copied                  bytes written as data
  zeroed                  bytes written as zeroes because the backing file has data there
  backing-filename        text: the backing file that is left, or null";

/// What was done.
#[derive(Debug, Serialize)]
#[serde(rename_all = "kebab-case")]
struct Flattened {
    filename: String,
    /// Bytes written as data.
    copied: u64,
    /// Bytes written as zeroes because the backing file has data there.
    zeroed: u64,
    /// The backing file that is left, if any.
    backing_filename: Option<String>,
}

/// Flattens.
pub fn run(args: &Args, out: &mut dyn Write) -> Result<ExitCode, Failure> {
    let mut options = args.drive.options()?;
    options.layer.discard = Discard::Unmap;
    if let Some(mode) = args.cache {
        options.set_cache(mode);
    }
    let memory = Memory::of(args.memory_limit);
    let rules = memory.rules(args.drive.policy()?);
    let watch = args.report.watch()?;
    let flattened = copying::reactor()?.run(async {
        let base = match &args.base {
            Some(path) => Some(find_base(path, &options, &rules).await?),
            None => None,
        };
        let image = copying::open(&options, &rules, "flatten").await?;
        let flattened = flatten(args, &options, &image, base.as_ref(), &rules, &watch, memory).await;
        copying::finish(&image, flattened, |error| copying::because("flatten", &options, error)).await
    })?;
    match args.report.output {
        _ if args.report.quiet => {}
        OutputFormat::Json => write_json(out, &flattened)?,
        OutputFormat::Human => match &flattened.backing_filename {
            Some(base) => writeln!(out, "Image flattened; it is backed by {base}.")?,
            None => writeln!(out, "Image flattened; it has no backing file.")?,
        },
    }
    Ok(ExitCode::SUCCESS)
}

/// Looks for the base in the chain. Nothing of the chain is open or locked afterwards.
async fn find_base(path: &Path, options: &DiskOptions, rules: &OpenRules) -> Result<Base, Failure> {
    let failed = |error: &dyn std::error::Error| copying::because("flatten", options, error);
    let mut top = options.clone();
    top.layer.read_only = true;
    let mut walk = ChainWalk::new(&top, rules, DataFiles::Leave).map_err(|error| failed(&error))?;
    let mut above: Option<FoundImage> = None;
    let mut depth = 0;
    while let Some(found) = walk.next(above.as_ref()).await.map_err(|error| failed(&error))? {
        if let Some(above) = &above
            && copying::is_named(path, Some(above), &found)
        {
            return Ok(base(options, above, &found, depth));
        }
        above = Some(found);
        depth += 1;
    }
    let what = format!("{} is not in the backing chain of {}", path.display(), options.filename.display());
    Err(Failure::new(what))
}

fn base(image: &DiskOptions, above: &FoundImage, found: &FoundImage, depth: u32) -> Base {
    let named = above.header.as_ref().and_then(|header| header.backing.clone()).unwrap_or_default();
    let by_itself = found.by_itself();
    let name = match copying::is_what_image_names(above, found) {
        // The same file, of which the disk is a part: the bare name would lead to other bytes.
        _ if by_itself.layer.raw.is_part() => part_name(found.storage().name(), &by_itself.layer.raw),
        true => name_from(&image.filename, Path::new(above.storage().name()), named),
        false => found.full_name(),
    };
    Base { options: by_itself, depth, name, format: found.format() }
}

/// What `image` must call the file that `above` calls `named`: the same from the same directory, otherwise the whole path.
fn name_from(image: &Path, above: &Path, named: String) -> String {
    let directory = |path: &Path| {
        let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty());
        parent.unwrap_or(Path::new(".")).canonicalize().ok()
    };
    let file = beside(above, &named);
    match file.canonicalize() {
        Ok(whole) if Path::new(&named).is_relative() && directory(image) != directory(above) => {
            whole.display().to_string()
        }
        _ => named,
    }
}

async fn flatten(
    args: &Args,
    options: &DiskOptions,
    disk: &Arc<Disk>,
    base: Option<&Base>,
    rules: &OpenRules,
    watch: &Watch,
    memory: Memory,
) -> Result<Flattened, Failure> {
    let failed = |error: &dyn std::error::Error| copying::because("flatten", options, error);
    let Some(image) = disk.image() else {
        return Err(Failure::new(format!("{} is raw: it has no image below", options.filename.display())));
    };
    let mut flattened = Flattened {
        filename: options.filename.display().to_string(),
        copied: 0,
        zeroed: 0,
        backing_filename: base.map(|base| base.name.clone()),
    };
    if image.header().await.backing.is_some() {
        let below = match base {
            Some(base) => Some(copying::open(&base.options, rules, "open backing file").await?),
            None => None,
        };
        let depth = base.map_or(0, |base| base.depth);
        let copied = copy(args, disk, below.as_deref().map(|below| (below, depth)), watch, memory);
        let copied = copied.await.map_err(|error| failed(&*error))?;
        (flattened.copied, flattened.zeroed) = (copied.written, copied.zeroed);
        watch.check()?;
        let format = base.map(|base| base.format.name().to_owned());
        let named = image.set_backing_name(flattened.backing_filename.clone(), format).await;
        named.map_err(|error| failed(&error))?;
    }
    Ok(flattened)
}

/// Copies into the image what it shows of the layers that are removed. Durable when this returns.
async fn copy(
    args: &Args,
    disk: &Disk,
    base: Option<(&Disk, u32)>,
    watch: &Watch,
    memory: Memory,
) -> Result<job::Progress, Box<dyn std::error::Error>> {
    let compressing = match args.compress {
        true => Some(disk.compressing()?),
        false => None,
    };
    let target = compressing.as_ref().map_or(disk as &dyn Block, |compressing| compressing);
    let base = base.map(|(base, depth)| (base as &dyn Block, depth));
    let options = CopyOptions {
        memory_bytes: memory.copy_bytes,
        flush_bytes: Some(WAITING_BYTES_MAX),
        rate: args.rate.map(|rate| RateLimit::new(rate, LoopClock)),
        ..CopyOptions::default()
    };
    let copy = job::copies::flatten(disk, target, base, options);
    Ok(watch.run(&copy, &Counters::default()).await?)
}
