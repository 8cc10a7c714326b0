//! `cowhand convert`: disks copied into an image of another format or shape.

mod args;
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

use block::Block;
use graph::Disk;
use graph::front::Kind;
use graph::options::DiskOptions;
use job::{Content, Counters, Joined, Scope};
use qcow2::bitmap::Bitmap;
use reactor::Reactor;
use tool::create::options;
use tool::failure::{Failure, warn};
use tool::voice;

pub use self::args::Args;
use self::plan::Plan;
use self::target::Target;
use crate::compare::{Difference, first_difference};
use crate::copying::passing::Passing;
use crate::copying::pipe::{self, PipeTarget};
use crate::copying::watch::Watch;
use crate::copying::{self, Memory};
use crate::io::report::size;
use crate::progress::Progress;

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
    let passing = Passing::of(&opened);
    let plan = Plan::of(args, source.size(), sources.len(), has_backing, memory)?;
    let plan = plan.reading_cold(!passing.is_empty());
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
    let passing = if target.is_left_to_kernel() { Passing::none() } else { passing };
    let from = Source { disk: &*source, bitmaps, passing };
    let copied = match &plan.image.foreign {
        Some(image) => whole::to_file(args, &reactor, &rules, &watch, &from, &target, (&plan, image))?,
        None => convert(args, &reactor, &rules, &watch, &from, &target, &plan)?,
    };
    watch.check()?;
    keep(args, target, &copied, out)?;
    Ok(ExitCode::SUCCESS)
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
        true => Some(disk.compressing().map_err(|error| failed(&error))?),
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
