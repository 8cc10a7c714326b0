//! `cowhand convert`: disks copied into an image of another format or shape.

mod bitmaps;
mod plan;
pub mod snapshot;
mod target;
mod to_pipe;
mod upload;
mod whole;

use std::cell::Cell;
use std::ffi::OsString;
use std::io::Write;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Instant;

use block::{Block, SECTOR_BYTES};
use graph::Disk;
use graph::cache_mode::CacheMode;
use graph::front::Kind;
use graph::options::DiskOptions;
use graph::probe::Format;
use job::{Content, Counters, Joined, Scope};
use qcow2::bitmap::Bitmap;
use qcow2::snapshot::SnapshotName;
use reactor::Reactor;

use self::plan::Plan;
use self::target::Target;
use crate::compare::{Difference, first_difference};
use crate::copying::passing::Passing;
use crate::copying::pipe::{self, PipeTarget};
use crate::copying::watch::Watch;
use crate::copying::{self, MEMORY_BYTES_MIN, Memory, compressing};
use crate::create::options;
use crate::drive::{
    BackingFormat, OpenArgs, backing_formats, cache_modes, formats, made_formats, parse_bytes,
};
use crate::failure::{Failure, warn};
use crate::io::report::size;
use crate::numbers::between;
use crate::progress::Progress;
use crate::voice;

/// Arguments of `cowhand convert`.
#[derive(Debug, clap::Args)]
#[command(
    long_about = "Copy disks into an image: of another format, compressed, with other clusters, over a backing file. Several \
        disks become one, the first one first.\n\n\
        A new image has the name TARGET when it is whole and on disk: whatever happens before, there is what was there \
        before. On a block device what was there is lost, and is no image before the new one is whole. With -n the disk that is \
        there is written.\n\n\
        TARGET may be a new object of a store, s3://BUCKET/KEY (or gs, or az), raw or qcow2: it is uploaded in parts and visible when it is whole. An \
        object that is there stays, unless --force is given.\n\n\
        A vpc image (for Azure: -o subformat=fixed,force_size) or a vmdk (for an OVA: -o subformat=streamOptimized) is written in order, \
        such a vmdk and a fixed vpc also to a pipe.\n\n\
        A DRIVE that is - is read from a pipe to its end first, into a file without a name in TMPDIR (or /var/tmp). As TARGET, - takes a \
        raw disk from the first byte to the last.",
    after_help = "\
Examples:
  cowhand convert -O qcow2 disk.raw disk.qcow2
  cowhand convert -p disk.qcow2 disk.raw
  cowhand convert -O qcow2 -c -o compression_type=zstd disk.qcow2 archive.qcow2
  cowhand convert -C -O raw disk.raw copy.raw
  cowhand convert -O qcow2 -B base.qcow2 -F qcow2 overlay.qcow2 copy.qcow2
  cowhand convert -l before-upgrade disk.qcow2 then.raw
  cowhand convert -n -O raw --target-is-zero --verify disk.qcow2 /dev/vg/disk
  cowhand convert -n -O raw disk.qcow2 nbd://server/disk
  cowhand convert -O qcow2 --bitmaps disk.qcow2 copy.qcow2
  cowhand convert -O raw disk.qcow2 /dev/vg/disk
  cowhand convert -p -c -O qcow2 disk.raw s3://images/debian.qcow2
  cowhand convert -O vpc -o subformat=fixed,force_size disk.qcow2 disk.vhd
  cowhand convert -O vmdk -o subformat=streamOptimized,adapter_type=lsilogic disk.qcow2 disk.vmdk
  cowhand convert disk.qcow2 - | gzip > disk.raw.gz
cowhand info --help says what a DRIVE is."
)]
pub struct Args {
    /// What is copied, and the image that becomes of it as the last
    #[arg(value_name = "DRIVE... TARGET", required_unless_present = "options")]
    names: Vec<OsString>,

    /// Format of each DRIVE: qcow2 or raw [default: what its first bytes say]
    #[arg(short = 'f', value_name = "FORMAT", value_parser = formats(), hide_possible_values = true)]
    format: Option<Format>,

    #[command(flatten)]
    opening: OpenArgs,

    /// Format of TARGET: qcow2, raw, luks, vpc or vmdk
    #[arg(short = 'O', value_name = "FORMAT", value_parser = made_formats(), hide_possible_values = true, default_value = "raw")]
    target_format: Format,

    /// Creation options of TARGET: name=value,... (-o help lists them; may be repeated)
    #[arg(short = 'o', value_name = "OPTIONS")]
    options: Vec<String>,

    /// The backing file of TARGET: only what DRIVE has above its own backing file is copied
    #[arg(short = 'B', visible_short_alias = 'b', value_name = "PATH")]
    backing: Option<String>,

    /// Format of the backing file: qcow2 or raw (needed with -B)
    #[arg(short = 'F', value_name = "FORMAT", value_parser = backing_formats(), hide_possible_values = true)]
    backing_format: Option<BackingFormat>,

    /// Write compressed clusters
    #[arg(short = 'c')]
    compress: bool,

    /// TARGET is there: write to it, create nothing
    #[arg(short = 'n')]
    no_create: bool,

    /// A snapshot of DRIVE, in place of its disk: an id or a name, or snapshot.id=ID,snapshot.name=NAME
    #[arg(short = 'l', value_name = "SNAPSHOT", value_parser = snapshot::parse)]
    snapshot: Option<SnapshotName>,

    /// Zeroes of at least so many bytes stay holes; 0 writes all of them [default: 4k]
    #[arg(short = 'S', value_name = "BYTES", value_parser = parse_bytes, conflicts_with = "offload")]
    sparse: Option<u64>,

    /// Have the kernel copy data from file to file, where it can share it too; zeroes in it are not looked for
    #[arg(short = 'C', conflicts_with = "compress")]
    offload: bool,

    /// Pieces under way at a time: 1 to 16
    #[arg(short = 'm', value_name = "NUMBER", value_parser = between::<u8>(1, 16), default_value = "8")]
    in_flight: u8,

    /// Write in any order (the default for what is created; with -n it is the order of the disk)
    #[arg(short = 'W')]
    any_order: bool,

    /// Bytes a second at most
    #[arg(short = 'r', value_name = "RATE", value_parser = parse_bytes)]
    rate: Option<u64>,

    /// Cache mode of TARGET: writeback, writethrough, none, directsync, unsafe
    #[arg(short = 't', value_name = "MODE", value_parser = cache_modes(), hide_possible_values = true)]
    target_cache: Option<CacheMode>,

    /// Cache mode of each DRIVE
    #[arg(short = 'T', value_name = "MODE", value_parser = cache_modes(), hide_possible_values = true)]
    source_cache: Option<CacheMode>,

    /// TARGET reads as zeroes everywhere (with -n)
    #[arg(long, requires = "no_create")]
    target_is_zero: bool,

    /// Replace the object that is there, where TARGET is s3://BUCKET/KEY (a file is replaced anyway)
    #[arg(long, conflicts_with = "no_create")]
    force: bool,

    /// Read TARGET as key=value options (with -n)
    #[arg(long, requires = "no_create")]
    target_image_opts: bool,

    /// What cannot be read becomes zeroes
    #[arg(long, conflicts_with = "verify")]
    salvage: bool,

    /// Compare afterwards
    #[arg(long)]
    verify: bool,

    /// Memory for the copy and the maps, 4M at least
    #[arg(long, value_name = "BYTES", value_parser = parse_bytes, default_value = "64M")]
    memory_limit: u64,

    /// Show how far it is, on a terminal (SIGUSR1 shows it anywhere), and how much is durable at the end
    #[arg(short = 'p')]
    progress: bool,

    /// Say nothing but errors
    #[arg(short = 'q')]
    quiet: bool,

    /// Copy the persistent bitmaps of DRIVE too
    #[arg(long, conflicts_with = "snapshot")]
    bitmaps: bool,

    /// Leave out bitmaps that are inconsistent
    #[arg(long, requires = "bitmaps")]
    skip_broken_bitmaps: bool,
}

/// Converts.
pub fn run(args: &Args, out: &mut dyn Write) -> Result<ExitCode, Failure> {
    if options::asks_for_help(&args.options) {
        out.write_all(options::help(args.target_format, !args.names.is_empty()).as_bytes())?;
        return Ok(ExitCode::SUCCESS);
    }
    args.check()?;
    let Some((target, sources)) = args.names.split_last().filter(|(_, sources)| !sources.is_empty()) else {
        return Err(Failure::new("convert takes what is copied and the image that becomes of it"));
    };
    let memory = Memory::of(args.memory_limit);
    let rules = memory.rules(args.opening.policy()?);
    let source = |drive: &OsString| args.source_options(&pipe::source(drive, &rules.fd_sets)?);
    let sources = sources.iter().map(source).collect::<Result<Vec<_>, _>>()?;
    let names_unreadable = args.salvage && voice::is_qemu() && !args.quiet;
    let watch = Watch::begin(args.progress && !args.quiet)?.naming_unreadable(names_unreadable);
    let reactor = copying::reactor()?;
    let opened = reactor.run(async {
        let mut opened = Vec::new();
        for options in &sources {
            opened.push(copying::open(options, &rules, "convert").await?);
        }
        Ok::<_, Failure>(opened)
    })?;
    let has_backing = opened.iter().any(|disk| disk.root().below().is_some());
    let source = match &args.snapshot {
        Some(name) => reactor.run(snapshot::view(&opened, name))?,
        None => joined(&opened),
    };
    let plan = Plan::of(args, source.size(), sources.len(), has_backing, memory)?;
    let bitmaps = bitmaps::of(args, &opened, &plan)?;
    if let Some(pipe) = PipeTarget::open(target, plan.size) {
        reactor.run(to_pipe::copy(args, &watch, &*source, pipe?, &plan))?;
        return Ok(ExitCode::SUCCESS);
    }
    if let Some(name) = upload::object_name(args, target) {
        upload::run(args, &reactor, &rules, &watch, &*source, name, &plan)?;
        return Ok(ExitCode::SUCCESS);
    }
    let target = Target::prepare(args, target, &plan)?;
    // What is written as qemu-img does it leaves the page cache as qemu-img does.
    let passing = if target.is_left_to_kernel() { Passing::none() } else { Passing::of(&opened) };
    let from = Source { disk: &*source, bitmaps, passing };
    let copied = match &plan.image.foreign {
        Some(image) => whole::to_file(args, &reactor, &rules, &watch, &from, &target, (&plan, image))?,
        None => convert(args, &reactor, &rules, &watch, &from, &target, &plan)?,
    };
    watch.check()?;
    keep(args, target, &copied, out)?;
    Ok(ExitCode::SUCCESS)
}

impl Args {
    fn check(&self) -> Result<(), Failure> {
        if self.memory_limit < MEMORY_BYTES_MIN {
            let what = format!("--memory-limit is {}; allowed: 4M and more", self.memory_limit);
            return Err(Failure::new(what));
        }
        let sparse = self.sparse.unwrap_or(plan::SPARSE_BYTES_DEFAULT);
        if !sparse.is_multiple_of(SECTOR_BYTES) || sparse > plan::SPARSE_BYTES_MAX {
            let what = format!("-S is {sparse}; allowed: multiples of 512 up to 16M, and 0");
            return Err(Failure::new(what));
        }
        if self.compress && ![Format::Qcow2, Format::Vmdk].contains(&self.target_format) {
            let format = self.target_format;
            return Err(Failure::new(format!(
                "-c: a {format} image has no compressed clusters; convert to qcow2 (-O qcow2)",
            )));
        }
        if self.compress && self.sparse == Some(0) && !voice::is_qemu() {
            return Err(Failure::new(
                "-S 0 writes all of the disk and -c as little as possible; give one of them",
            ));
        }
        if self.offload && self.salvage && voice::is_qemu() {
            return Err(Failure::new(
                "-C has the kernel copy, and --salvage reads each piece; give one of them",
            ));
        }
        Ok(())
    }

    fn source_options(&self, drive: &OsString) -> Result<DiskOptions, Failure> {
        let mut options = self.opening.options(drive, "-f", self.format)?;
        options.layer.read_only = true;
        if let Some(mode) = self.source_cache {
            options.set_cache(mode);
        }
        Ok(options)
    }
}

fn joined(disks: &[Arc<Disk>]) -> Arc<dyn Block> {
    match disks {
        [only] => Arc::clone(only) as Arc<dyn Block>,
        disks => {
            let all = disks.iter().map(|disk| Arc::clone(disk) as Arc<dyn Block>);
            Arc::new(Joined::new(all.collect()))
        }
    }
}

/// What is copied.
struct Source<'a> {
    disk: &'a dyn Block,
    bitmaps: Vec<Arc<Bitmap>>,
    passing: Passing,
}

fn convert(
    args: &Args,
    reactor: &Reactor,
    rules: &graph::OpenRules,
    watch: &Watch,
    Source { disk: source, bitmaps, passing }: &Source<'_>,
    target: &Target,
    plan: &Plan,
) -> Result<job::Progress, Failure> {
    let doing = format!("convert {}", source.name());
    let was_written = Cell::new(false);
    let copied = reactor.run(async {
        let disk = copying::open(&target.options, rules, "write").await?;
        let counters = Counters::default();
        let filling = async {
            let watched = (watch, &counters);
            let copied = copy(args, watched, *source, &disk, target.content(plan.content), plan);
            let copied = passing.while_read(copied).await?;
            bitmaps::copy(bitmaps, &disk).await.map(|()| copied)
        };
        let copied = target.while_filled(&counters, filling).await;
        was_written.set(is_written(&disk, &counters));
        let failed = |error: &dyn std::error::Error| Failure::because(format!("cannot {doing}"), error);
        let copied = copying::finish(&disk, copied, failed).await?;
        target.filled().await.map(|()| copied)
    });
    let copied = copied.map_err(|failure| target.explain(failure, was_written.get()))?;
    warn_of_unreadable(*source, &copied);
    if args.verify {
        let verified = reactor.run(same_as(args, rules, *source, target.options.clone()));
        verified.map_err(|failure| target.explain(failure, was_written.get()))?;
    }
    Ok(copied)
}

/// Gives the target its name. Says with -p what of it is durable, and how long the end of that took.
fn keep(args: &Args, target: Target, copied: &job::Progress, out: &mut dyn Write) -> Result<(), Failure> {
    let begun = Instant::now();
    target.keep()?;
    if args.progress && !args.quiet && !args.no_create && !voice::is_qemu() {
        let (written, took) = (size(copied.written), begun.elapsed().as_secs_f64());
        writeln!(out, "{written} written, all of it durable: the last of it {took:.2} s after the copy")?;
    }
    Ok(())
}

/// Whether a request was made that may have changed the disk. One that failed may have written a part.
fn is_written(disk: &Disk, counters: &Counters) -> bool {
    let (requests, done) = (disk.statistics(), counters.progress());
    let made = [Kind::Write, Kind::Zero, Kind::Discard].map(|kind| requests.of(kind));
    done.written + done.zeroed > 0 || made.into_iter().any(|made| made.requests + made.failed > 0)
}

fn warn_of_unreadable(source: &dyn Block, copied: &job::Progress) {
    // Under QEMU's names each place has been named.
    if copied.unreadable > 0 && !voice::is_qemu() {
        warn(&format!("{} bytes of {} cannot be read and are zeroes now", copied.unreadable, source.name()));
    }
}

async fn copy(
    args: &Args,
    (watch, counters): (&Watch, &Counters),
    source: &dyn Block,
    disk: &Arc<Disk>,
    content: Content<'_>,
    plan: &Plan,
) -> Result<job::Progress, Failure> {
    let failed =
        |error: &dyn std::error::Error| Failure::because(format!("cannot convert {}", source.name()), error);
    let compressing = match args.compress {
        true => Some(compressing(disk).map_err(|error| failed(&error))?),
        false => None,
    };
    let (target, align_bytes) = match &compressing {
        Some(compressing) => (compressing as &dyn Block, compressing.cluster_bytes()),
        None => (&**disk as &dyn Block, 1),
    };
    let options = plan.copy_options(args, align_bytes);
    let copy = match plan.scope {
        Scope::Overlay => job::copies::overlay(source, target, content, options),
        _ => job::copies::whole(source, target, content, options),
    };
    watch.run(&copy, counters).await.map_err(|error| failed(&error))
}

/// Reads both again: what the new image has on disk, not what was meant to be written.
async fn same_as(
    args: &Args,
    rules: &graph::OpenRules,
    source: &dyn Block,
    mut options: DiskOptions,
) -> Result<(), Failure> {
    options.layer.read_only = true;
    let disk = copying::open(&options, rules, "verify").await?;
    let total = source.size().max(disk.size());
    let mut progress = Progress::begin(args.progress && !args.quiet, total, std::time::Instant::now());
    let difference = first_difference([source, &*disk], false, &mut progress).await;
    progress.end();
    match difference.map_err(|(_, failure)| failure)? {
        // Beyond the source's end a longer target may have any content.
        Some(Difference::Content(offset)) if offset < source.size() => {
            Err(Failure::new(format!("the copy differs from {} at offset {offset}", source.name())))
        }
        _ => Ok(()),
    }
}
