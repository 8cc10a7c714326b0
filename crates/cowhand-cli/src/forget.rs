//! `cowhand forget`: checkpoints that a policy does not keep, and the merge of layers that nothing needs by themselves.

use std::ffi::OsString;
use std::io::Write;
use std::path::Path;
use std::process::ExitCode;

use graph::size::human_size;
use lineage::{Change, DiskPlace, Forgotten, Keep, Merge, Place, Policy};
use serde_json::{Value, json};

use crate::checkpoint::{outcome_json, show};
use crate::copying::Memory;
use crate::copying::watch::Watch;
use crate::drive::{NamesArgs, parse_bytes};
use crate::failure::{Failure, warn};
use crate::lineages::args::DiskArg;
use crate::lineages::merged::Merging;
use crate::lineages::{PATIENCE, offline};
use crate::output::{OutputFormat, printable, write_json};

/// Arguments of `cowhand forget`.
#[derive(Debug, clap::Args)]
#[command(
    long_about = "Forget checkpoints that a policy does not keep, remove their layers where nothing needs them, and merge those that one other \
        layer alone is backed by into that one, the oldest first. Every disk, fork and checkpoint that stays reads as before, under the \
        name that it has. A checkpoint with a name stays, and counts as one of its time; so does what a fork is backed by. Without --keep \
        and --max-depth it merges what has been deleted before (cowhand checkpoint --delete).\n\n\
        --keep hourly:24,daily:7 keeps the newest checkpoint of each of the last 24 hours and of the last 7 days that have one, in UTC; \
        also last, weekly, monthly, yearly. --max-depth forgets the oldest checkpoints without a name, whatever --keep says, until no disk \
        is backed by more layers. -n lists all of it first.\n\n\
        The layers must not be open in any process. A merge takes as much space as the merged layer, until the old ones are gone; compressed \
        clusters are not compressed afterwards. After a crash at any point everything reads the same, and the next forget does the rest. \
        Other commands on the lineage wait while layers are copied.",
    after_help = "\
Examples:
  cowhand forget -n --keep hourly:24,daily:7 disk.qcow2
  cowhand forget --max-depth 64 /images
DISK is the path of a qcow2 image, or the directory of a lineage. docs/guide/checkpoints.md is a walk through all of it."
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

    /// List what would go and be merged, and change nothing
    #[arg(short = 'n', long)]
    dry_run: bool,

    #[command(flatten)]
    names: NamesArgs,

    /// Bytes a second at most
    #[arg(short = 'r', value_name = "RATE", value_parser = parse_bytes)]
    rate: Option<u64>,

    /// Show how far it is, on a terminal (SIGUSR1 shows it anywhere)
    #[arg(short = 'p')]
    progress: bool,

    /// Say nothing but errors
    #[arg(short = 'q')]
    quiet: bool,

    /// Form of the result
    #[arg(long, value_enum, default_value_t, value_name = "FORMAT")]
    output: OutputFormat,
}

/// Forgets and merges.
pub fn run(args: &Args, out: &mut dyn Write) -> Result<ExitCode, Failure> {
    let (place, disk) = place_of(args)?;
    let policy = Policy { keep: args.keep.clone(), depth_max: args.max_depth.map(|max| max as usize) };
    let change = Change::begin(&place, PATIENCE)?;
    let (plan, mut forgotten) = change.forget(disk.as_ref(), &policy)?;
    if !args.dry_run {
        let memory = Memory::default();
        let (rules, watch) =
            (memory.rules(args.names.policy()?), Watch::begin(args.progress && !args.quiet)?);
        let merging = Merging { rules, memory, rate: args.rate, watch };
        offline::run(change, plan)?;
        forgotten.merges = merge_all(&place, &merging)?;
    }
    match args.output {
        _ if args.quiet => {}
        OutputFormat::Json => write_json(out, &json_of(&forgotten, args.dry_run))?,
        OutputFormat::Human => list(&forgotten, args.dry_run, out)?,
    }
    for (disk, depth) in forgotten.too_deep.iter().filter(|_| !args.quiet) {
        let max = args.max_depth.unwrap_or_default();
        warn(&format!(
            "{disk} is backed by {depth} layers, and --max-depth is {max}: the rest have names, or others need them"
        ));
    }
    Ok(ExitCode::SUCCESS)
}

fn place_of(args: &Args) -> Result<(Place, Option<DiskPlace>), Failure> {
    let path = Path::new(&args.disk);
    if path.is_dir() {
        return Ok((Place::of(path)?, None));
    }
    let arg = DiskArg::of(&args.disk);
    if matches!(arg, DiskArg::Served { .. }) && !args.dry_run {
        let what = format!("{}: layers of a disk that is being served are not merged", path.display());
        return Err(Failure::new(what).with_hint("-n lists what would be; stop the server first"));
    }
    let disk = arg.place()?;
    Ok((disk.place.clone(), Some(disk)))
}

/// One merge after the other: others may use the lineage in between.
fn merge_all(place: &Place, merging: &Merging) -> Result<Vec<Merge>, Failure> {
    let mut done = Vec::new();
    loop {
        let change = Change::begin(place, PATIENCE)?;
        let Some((plan, merge)) = change.merge()? else { return Ok(done) };
        offline::run_merging(change, plan, merging)?;
        done.push(merge);
    }
}

fn json_of(forgotten: &Forgotten, is_dry: bool) -> Value {
    let ids = |ids: &[lineage::LayerId]| ids.iter().map(ToString::to_string).collect::<Vec<_>>();
    let mut value = outcome_json(&forgotten.removal, is_dry);
    let merge = |merge: &Merge| json!({ "into": merge.into.to_string(), "layers": ids(&merge.going), "bytes": merge.bytes });
    let too_deep = |(disk, layers): &(String, usize)| json!({ "disk": disk, "layers": layers });
    value["forgotten"] = json!(ids(&forgotten.checkpoints));
    value["merged"] = forgotten.merges.iter().map(merge).collect();
    value["too-deep"] = forgotten.too_deep.iter().map(too_deep).collect();
    value
}

fn list(forgotten: &Forgotten, is_dry: bool, out: &mut dyn Write) -> Result<(), Failure> {
    show(&forgotten.removal, is_dry, OutputFormat::Human, out)?;
    let is = if is_dry { "would be" } else { "is" };
    for Merge { into, going, bytes } in &forgotten.merges {
        let going: Vec<String> = going.iter().map(ToString::to_string).collect();
        let layers = if going.len() == 1 { "layer" } else { "layers" };
        writeln!(
            out,
            "{layers} {} {is} merged into {into}, {} in all",
            printable(&going.join(", ")),
            human_size(*bytes)
        )?;
    }
    if forgotten.merges.is_empty() {
        writeln!(out, "no layers {} merged", if is_dry { "would be" } else { "are" })?;
    }
    Ok(())
}
