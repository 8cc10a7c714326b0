//! `cowhand commit`: writes an overlay's data to its backing file.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;

use graph::cache_mode::CacheMode;
use graph::options::{Backing, Discard, DiskOptions};
use graph::{ChainWalk, DataFiles, Disk, FoundImage, OpenRules};
use job::{CopyOptions, Counters, LoopClock, RateLimit};
use qcow2::ResizeOptions;
use serde_json::json;
use tool::failure::Failure;

use crate::copying::watch::Watch;
use crate::copying::{self, Memory, WAITING_BYTES_MAX};
use crate::drive::{DriveArgs, cache_modes, parse_bytes};
use crate::remote::Remote;

/// Arguments of `cowhand commit`.
#[derive(Debug, clap::Args)]
#[command(
    long_about = "Write what an overlay holds to its backing file, or with -b to one further down, which becomes larger if \
        the overlay is. The overlay is empty afterwards, unless -d or -b keeps it.\n\n\
        Until all of it is on disk the overlay stays as it is: an interrupted commit can be repeated.\n\n\
        With --live the disk is one that a running server has open, and DRIVE is the server's control socket: guests continue to write, and the \
        server uses the backing file afterwards. Ctrl-C cancels the job, and the chain is as before.",
    after_help = "\
Examples:
  cowhand commit overlay.qcow2
  cowhand commit -p -d -b base.qcow2 top.qcow2
  cowhand commit --live /run/vm1.qmp"
)]
pub struct Args {
    #[command(flatten)]
    drive: DriveArgs,

    /// The image of the chain that is written to, as its overlay names it [default: the overlay's backing file]
    #[arg(short = 'b', value_name = "PATH")]
    base: Option<PathBuf>,

    /// DRIVE is the control socket of a running server (cowhand serve --qmp)
    #[arg(long, conflicts_with_all = ["keep", "cache", "format", "image_opts", "force_share"])]
    live: bool,

    /// The disk of the server, by its node's name [default: the only one]
    #[arg(long, value_name = "NAME", requires = "live")]
    disk: Option<String>,

    /// Leave the overlay as it is
    #[arg(short = 'd')]
    keep: bool,

    /// Cache mode: writeback, writethrough, none, directsync, unsafe
    #[arg(short = 't', value_name = "MODE", value_parser = cache_modes(), hide_possible_values = true)]
    cache: Option<CacheMode>,

    /// Bytes a second at most
    #[arg(short = 'r', value_name = "RATE", value_parser = parse_bytes)]
    rate: Option<u64>,

    /// Show how far it is, on a terminal (SIGUSR1 shows it anywhere)
    #[arg(short = 'p')]
    progress: bool,

    /// Say nothing but errors
    #[arg(short = 'q')]
    quiet: bool,
}

/// What is read and what is written.
#[derive(Debug)]
struct Plan {
    /// The overlay, without the base and what lies below it.
    above: DiskOptions,
    /// How many images are above the base.
    layers: u32,
    base: DiskOptions,
    /// The overlay becomes empty.
    empties: bool,
}

/// Commits.
pub fn run(args: &Args, out: &mut dyn Write) -> Result<ExitCode, Failure> {
    if args.live {
        return run_live(args, out);
    }
    let options = args.drive.options()?;
    let memory = Memory::default();
    let rules = memory.rules(args.drive.policy()?);
    let watch = Watch::begin(args.progress && !args.quiet)?;
    let reactor = copying::reactor()?;
    reactor.run(async {
        let plan = plan(args, options, &rules).await?;
        let above = copying::open(&plan.above, &rules, "commit").await?;
        let committed = commit(args, &plan, &above, &rules, &watch, memory).await;
        copying::finish(&above, committed, |error| copying::because("commit", &plan.above, error)).await
    })?;
    if !args.quiet {
        writeln!(out, "Image committed.")?;
    }
    Ok(ExitCode::SUCCESS)
}

/// Makes a server commit one of its disks.
fn run_live(args: &Args, out: &mut dyn Write) -> Result<ExitCode, Failure> {
    let watch = Watch::begin(args.progress && !args.quiet)?;
    let mut remote = Remote::connect(Path::new(&args.drive.drive))?;
    let disk = remote.disk_of_job(args.disk.as_deref())?;
    let mut arguments = json!({ "device": disk, "speed": args.rate.unwrap_or(0) });
    // Without one the server would take the lowest image of the chain.
    let below = match &args.base {
        Some(base) => Some(base.display().to_string()),
        None => remote.backing_file(&disk)?,
    };
    if let Some(base) = below {
        arguments["base"] = json!(base);
    }
    remote.run_job("commit", &disk, ("block-commit", arguments), &watch)?;
    if !args.quiet {
        writeln!(out, "Image committed.")?;
    }
    Ok(ExitCode::SUCCESS)
}

/// Reads the chain, and decides which part of it goes where.
async fn plan(args: &Args, options: DiskOptions, rules: &OpenRules) -> Result<Plan, Failure> {
    let failed = |error: &dyn std::error::Error| copying::because("commit", &options, error);
    let mut walk = ChainWalk::new(&options, rules, DataFiles::Leave).map_err(|error| failed(&error))?;
    let mut chain: Vec<FoundImage> = Vec::new();
    while let Some(found) = walk.next(chain.last()).await.map_err(|error| failed(&error))? {
        let is_base = match &args.base {
            _ if chain.is_empty() => false,
            None => true,
            Some(base) => copying::is_named(base, chain.last(), &found),
        };
        chain.push(found);
        if is_base {
            return Ok(divided(args, options, chain));
        }
    }
    let name = options.filename.display();
    Err(Failure::new(match &args.base {
        None => format!("{name} has no backing file to commit to"),
        Some(base) => format!("{} is not in the backing chain of {name}", base.display()),
    }))
}

fn divided(args: &Args, options: DiskOptions, mut chain: Vec<FoundImage>) -> Plan {
    let count = chain.len() - 1;
    let empties = !args.keep && args.base.is_none() && count == 1;
    let layers = u32::try_from(count).unwrap_or(u32::MAX);
    let base = chain.pop().map(|base| base.by_itself());
    let mut above = options.clone();
    // From the bottom up: each layer names the one below, and the lowest none.
    let mut backing = Backing::None;
    for image in chain.drain(1..).rev() {
        let mut layer = image.options.clone();
        layer.backing = backing;
        backing = Backing::With(Box::new(layer));
    }
    above.layer.backing = backing;
    above.layer.read_only = !empties;
    let mut base_options = base.unwrap_or(options);
    base_options.layer.read_only = false;
    base_options.layer.discard = Discard::Unmap;
    if let Some(mode) = args.cache {
        above.set_cache(mode);
        base_options.set_cache(mode);
    }
    Plan { above, layers, base: base_options, empties }
}

async fn commit(
    args: &Args,
    plan: &Plan,
    above: &Arc<Disk>,
    rules: &OpenRules,
    watch: &Watch,
    memory: Memory,
) -> Result<(), Failure> {
    let failed = |error: &dyn std::error::Error| copying::because("commit", &plan.above, error);
    let image = above.image().filter(|_| plan.empties);
    if image.as_ref().is_some_and(|image| image.geometry().external_data) {
        let what =
            format!("{} keeps its data in another file and is not emptied", plan.above.filename.display());
        return Err(Failure::new(what).with_hint("-d leaves it as it is"));
    }
    let base = open_base(&plan.base, rules, above.size()).await?;
    let options = CopyOptions {
        memory_bytes: memory.copy_bytes,
        flush_bytes: Some(WAITING_BYTES_MAX),
        rate: args.rate.map(|rate| RateLimit::new(rate, LoopClock)),
        ..CopyOptions::default()
    };
    let copy = job::copies::commit(&**above, plan.layers, &*base, options);
    let copied = watch.run(&copy, &Counters::default()).await.map_err(|error| failed(&error));
    copying::finish(&base, copied, |error| copying::because("write", &plan.base, error)).await?;
    // After the base's last flush: the base has everything that is removed from the overlay.
    match image {
        Some(image) => image.make_empty().await.map_err(|error| failed(&error)),
        None => Ok(()),
    }
}

/// Opens the base, made as long as the overlay.
async fn open_base(options: &DiskOptions, rules: &OpenRules, size: u64) -> Result<Arc<Disk>, Failure> {
    let base = copying::open(options, rules, "write").await?;
    if base.size() >= size {
        return Ok(base);
    }
    let failed = |error: &dyn std::error::Error| copying::because("resize", options, error);
    match base.resize(size, ResizeOptions { bitmaps: true, ..ResizeOptions::default() }).await {
        Ok(()) => Ok(base),
        Err(error) => copying::finish(&base, Err(failed(&error)), failed).await,
    }
}
