//! `cowhand forget`: checkpoints that a policy does not keep, and the merge of layers that nothing needs by themselves.

use std::ffi::OsString;
use std::io::Write;
use std::path::Path;
use std::process::ExitCode;

use block::Block;
use graph::OpenRules;
use graph::size::human_size;
use job::{CopyOptions, Counters, LoopClock, RateLimit};
use lineage::{Change, DiskPlace, Keep, Merge, PATIENCE, Place, Policy};
use reactor::Reactor;
use serde_json::{Value, json};
use tool::failure::{Failure, warn};
use tool::lineages::removal::{FORGOTTEN_JSON, OUTCOME_JSON, forgetting, json_of};
use tool::output::{printable, write_json};

use crate::checkpoint::{show, texts};
use crate::copying::report::ReportArgs;
use crate::copying::{self, Memory, WAITING_BYTES_MAX};
use crate::drive::{NamesArgs, parse_bytes};
use crate::lineages::args::{DiskArg, Served};
use crate::output::{OutputFormat, with_json};

const EXAMPLES: &str = "\
Examples:
  cowhand forget -n --keep hourly:24,daily:7 disk.qcow2
  cowhand forget --save --keep hourly:24,daily:7 --max-depth 64 /images
  cowhand forget --keep last:10 -r 50M disk.qmp
DISK is the path of a qcow2 image, the directory of a lineage, or the control socket of a disk's server: SOCKET, or SOCKET:NODE where it \
has several disks. docs/guide/checkpoints.md is a walk through all of it.";

/// Arguments of `cowhand forget`.
#[derive(Debug, clap::Args)]
#[command(
    long_about = "Forget checkpoints that a policy does not keep, remove their layers where nothing needs them, and merge those that one other \
        layer alone is backed by into that one, the oldest first. Every disk, fork and checkpoint that stays reads as before, under the \
        name that it has. A checkpoint with a name stays, and counts as one of its time; so does what a fork is backed by. Without --keep \
        and --max-depth it merges what has been deleted before (cowhand checkpoint --delete).\n\n\
        --save makes the policy that of the lineage: a later forget without a policy follows it, and so does a server, by itself, after \
        each checkpoint and rollback of a disk of it. cowhand log shows it. It is lost with the manifest.\n\n\
        --keep hourly:24,daily:7 keeps the newest checkpoint of each of the last 24 hours and of the last 7 days that have one, in UTC; \
        also last, weekly, monthly, yearly. --max-depth forgets the oldest checkpoints without a name, whatever --keep says, until no disk \
        is backed by more layers. --max-waste leaves layers unmerged of which nearly all is needed: a merge copies all of that. -n lists all of it first.\n\n\
        Other commands on the lineage run while layers are copied. A merge takes as much space as the merged layer, until the old ones \
        are gone; compressed clusters are not compressed afterwards. A process that has layers open keeps their old files, which are removed \
        when it has closed them; the server of DISK, if that is a control socket, does all of it as a job and uses the merged layers at \
        once. After a crash at any point everything reads the same, and the next forget does the rest.",
    after_help = EXAMPLES,
    after_long_help = with_json(EXAMPLES, &[OUTCOME_JSON, FORGOTTEN_JSON])
)]
pub struct Args {
    /// A disk of the lineage, or its directory: all disks in it
    #[arg(value_name = "DISK")]
    disk: OsString,

    /// Which checkpoints without a name stay: SPAN:NUMBER,... with last, hourly, daily, weekly, monthly, yearly [default: all]
    #[arg(long, value_name = "POLICY")]
    keep: Option<Keep>,

    /// Layers below a disk at most
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    max_depth: Option<u32>,

    /// Merge only where more than this part of what the layers take is not needed [default: always]
    #[arg(long, value_name = "PERCENT", value_parser = clap::value_parser!(u8).range(0..=99))]
    max_waste: Option<u8>,

    /// Make --keep, --max-depth and --max-waste the policy of the lineage; without any of them it has none any more
    #[arg(long, conflicts_with = "dry_run")]
    save: bool,

    /// List what would go and be merged, and change nothing
    #[arg(short = 'n', long)]
    dry_run: bool,

    #[command(flatten)]
    names: NamesArgs,

    /// Bytes a second at most
    #[arg(short = 'r', value_name = "RATE", value_parser = parse_bytes)]
    rate: Option<u64>,

    #[command(flatten)]
    report: ReportArgs,
}

/// Forgets and merges.
pub fn run(args: &Args, out: &mut dyn Write) -> Result<ExitCode, Failure> {
    let forgotten = match DiskArg::of(&args.disk).served()? {
        Some(served) => forget_served(args, served)?,
        None => forget_here(args)?,
    };
    match args.report.output {
        _ if args.report.quiet => {}
        OutputFormat::Json => write_json(out, &forgotten)?,
        OutputFormat::Human => list(&forgotten, args.dry_run, out)?,
    }
    for too_deep in forgotten["too-deep"].as_array().into_iter().flatten().filter(|_| !args.report.quiet) {
        let (disk, depth) = (too_deep["disk"].as_str().unwrap_or_default(), &too_deep["layers"]);
        let max = &forgotten["policy"]["max-depth"];
        warn(&format!(
            "{disk} is backed by {depth} layers, and --max-depth is {max}: the rest have names, or others need them"
        ));
    }
    Ok(ExitCode::SUCCESS)
}

/// The server forgets, and merges as a job.
fn forget_served(args: &Args, Served { mut remote, node }: Served) -> Result<Value, Failure> {
    let watch = args.report.watch()?;
    let mut asked = json!({ "node-name": node, "dry-run": args.dry_run, "speed": args.rate.unwrap_or(0), "save": args.save });
    if let Some(keep) = &args.keep {
        asked["keep"] = json!(keep.to_string());
    }
    if let Some(max) = args.max_depth {
        asked["max-depth"] = json!(max);
    }
    if let Some(max) = args.max_waste {
        asked["max-waste"] = json!(max);
    }
    match args.dry_run {
        true => remote.ask("cowhand-forget", asked),
        false => remote.run_job("forget", &node, ("cowhand-forget", asked), &watch),
    }
}

fn forget_here(args: &Args) -> Result<Value, Failure> {
    let path = Path::new(&args.disk);
    let (place, disk) = match path.is_dir() {
        true => (Place::of(path)?, None),
        false => {
            let disk = DiskPlace::of(path)?;
            (disk.place.clone(), Some(disk))
        }
    };
    let policy = Policy {
        keep: args.keep.clone(),
        depth_max: args.max_depth.map(|max| max as usize),
        waste_max: args.max_waste,
    };
    let mut forgotten = lineage::forget(&place, disk.as_ref(), policy, forgetting(args.dry_run, args.save))?;
    let memory = Memory::default();
    let (rules, reactor) = (memory.rules(args.names.policy()?), copying::reactor()?);
    forgotten.merges = match args.dry_run {
        true => {
            let waste_max = forgotten.policy.waste_max;
            reactor.run(checkpoints::worth(forgotten.merges, (&place, &rules), waste_max))?
        }
        false => {
            merge_all(args, forgotten.policy.waste_max, (&place, &rules), (&reactor, memory.copy_bytes))?
        }
    };
    Ok(json_of(&forgotten, args.dry_run))
}

/// One merge after the other; others use the lineage meanwhile.
fn merge_all(
    args: &Args,
    waste_max: Option<u8>,
    (place, rules): (&Place, &OpenRules),
    (reactor, memory_bytes): (&Reactor, u64),
) -> Result<Vec<Merge>, Failure> {
    let watch = args.report.watch()?;
    let mut done = Vec::new();
    loop {
        let merges = Change::begin(place, PATIENCE)?.merges()?;
        let next = reactor.run(checkpoints::first_worth(merges, (place, rules), waste_max))?;
        let Some(next) = next else { return Ok(done) };
        let Some(merging) = Change::begin(place, PATIENCE)?.begin_merge(&next)? else { continue };
        let copy = async |top: &dyn Block, layers, base: &dyn Block| {
            let options = CopyOptions {
                memory_bytes,
                flush_bytes: Some(WAITING_BYTES_MAX),
                rate: args.rate.map(|rate| RateLimit::new(rate, LoopClock)),
                ..CopyOptions::default()
            };
            let copy = job::copies::commit(top, layers, base, options);
            watch.run(&copy, &Counters::default()).await.map(drop)
        };
        let made = reactor.run(checkpoints::make_merged(&merging.at(), merging.merged(), rules, copy));
        let placed = made.and_then(|()| Ok(merging.put_in_place(PATIENCE)?));
        done.extend(placed.as_ref().is_ok_and(|placed| *placed).then(|| merging.merge().clone()));
        merging.abandon();
        placed?;
    }
}

fn list(forgotten: &Value, is_dry: bool, out: &mut dyn Write) -> Result<(), Failure> {
    show(forgotten, is_dry, OutputFormat::Human, out)?;
    let merges = forgotten["merged"].as_array().map_or(&[][..], Vec::as_slice);
    for merge in merges {
        let going = texts(&merge["layers"]);
        let (layers, is) = match (going.len(), is_dry) {
            (1, true) => ("layer", "would be"),
            (1, false) => ("layer", "is"),
            (_, true) => ("layers", "would be"),
            (_, false) => ("layers", "are"),
        };
        let into = printable(merge["into"].as_str().unwrap_or_default());
        let bytes = human_size(merge["bytes"].as_u64().unwrap_or(0));
        writeln!(out, "{layers} {} {is} merged into {into}, {bytes} in all", going.join(", "))?;
    }
    if merges.is_empty() {
        writeln!(out, "no layers {} merged", if is_dry { "would be" } else { "are" })?;
    }
    Ok(())
}
