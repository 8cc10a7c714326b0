//! `cowhand checkpoint`: seals the active layer of a disk; deletes checkpoints.

use std::ffi::OsString;
use std::io::Write;
use std::process::ExitCode;

use graph::size::human_size;
use lineage::{Action, Change, NewCheckpoint, PATIENCE};
use serde_json::{Value, json};
use tool::failure::Failure;
use tool::lineages::removal::{OUTCOME_JSON, outcome_json};
use tool::output::{printable, write_json};

use crate::lineages::args::{CheckpointArg, DiskArg, with_disk};
use crate::lineages::offline::{self, LockedDisk};
use crate::output::{OutputFormat, with_json};

const EXAMPLES: &str = "\
Examples:
  cowhand checkpoint disk.qcow2 installed
  cowhand checkpoint disk.qmp installed --label os=debian
  cowhand checkpoint --delete --dry-run disk.qcow2@installed";

/// Arguments of `cowhand checkpoint`.
#[derive(Debug, clap::Args)]
#[command(
    long_about = "Take a checkpoint: the active layer of the disk is sealed as layers/ID.qcow2 beside it, read-only, and the disk continues \
        in a new overlay at the path that it has. Guests wait for the switch alone. Layer, overlay and directory are durable when the \
        command returns; after a crash at any point the disk reads the same.\n\n\
        All layers are plain qcow2: qemu-img info --backing-chain shows the same chain. Checkpoints of a disk without a name are shown by \
        the id of their layer.\n\n\
        With --delete the arguments are checkpoints, which are deleted. A layer that a disk or another layer is backed by stays, without a \
        name, until that is gone (cowhand gc); --dry-run lists what would go.",
    after_help = with_disk(EXAMPLES),
    after_long_help = with_json(&with_disk(EXAMPLES), &[TAKEN, OUTCOME_JSON])
)]
pub struct Args {
    /// DISK [NAME]; with --delete DISK@NAME...
    #[arg(value_name = "NAME", required = true)]
    names: Vec<OsString>,

    /// A label of the checkpoint: KEY=VALUE (may be repeated)
    #[arg(long = "label", value_name = "LABEL", conflicts_with = "delete")]
    labels: Vec<String>,

    /// Delete these checkpoints
    #[arg(long)]
    delete: bool,

    /// List what would be deleted, and delete nothing
    #[arg(short = 'n', long, requires = "delete")]
    dry_run: bool,

    /// Say nothing
    #[arg(short = 'q')]
    quiet: bool,

    /// Form of the result
    #[arg(long, value_enum, default_value_t, value_name = "FORMAT")]
    output: OutputFormat,
}

/// What [`take`] prints.
const TAKEN: &str = "  disk                    text: path of the disk's image
  checkpoint              text: name of the checkpoint, or the id of its layer
  id                      text: id of its layer
With --delete:";

/// Takes or deletes.
pub fn run(args: &Args, out: &mut dyn Write) -> Result<ExitCode, Failure> {
    match (args.delete, &args.names[..]) {
        (true, names) => delete(args, names, out),
        (false, [disk]) => take(args, disk, None, out),
        (false, [disk, name]) => take(args, disk, Some(name), out),
        (false, _) => {
            Err(Failure::new("checkpoint takes DISK and NAME, and no more")
                .with_hint("--delete takes several"))
        }
    }
}

fn take(
    args: &Args,
    disk: &OsString,
    name: Option<&OsString>,
    out: &mut dyn Write,
) -> Result<ExitCode, Failure> {
    let name = name.map(|name| name.to_string_lossy());
    let new = NewCheckpoint::now(name.as_deref(), &args.labels)?;
    let arg = DiskArg::of(disk);
    let taken = match arg.served()? {
        Some(mut served) => {
            let mut arguments = json!({ "node-name": served.node, "labels": args.labels });
            if let Some(name) = &name {
                arguments["name"] = json!(name);
            }
            served.remote.ask("cowhand-checkpoint", arguments)?
        }
        None => {
            let place = arg.place()?;
            lineage::check_sealable(&place)?;
            let change = Change::begin_first(&place.place, PATIENCE)?;
            let _locked = LockedDisk::of(&place)?;
            let taken = json!({ "disk": place.path(), "checkpoint": new.called(), "id": new.id.to_string() });
            change.check_layers(&place)?;
            let plan = change.plan(&[Action::Checkpoint { disk: place, new }])?;
            offline::run(change, plan)?;
            taken
        }
    };
    match args.output {
        _ if args.quiet => {}
        OutputFormat::Json => write_json(out, &taken)?,
        OutputFormat::Human => {
            let checkpoint = taken["checkpoint"].as_str().unwrap_or_default();
            writeln!(out, "{}@{checkpoint} is taken", printable(&disk.to_string_lossy()))?;
        }
    }
    Ok(ExitCode::SUCCESS)
}

fn delete(args: &Args, names: &[OsString], out: &mut dyn Write) -> Result<ExitCode, Failure> {
    let mut checkpoints = Vec::new();
    for name in names {
        let arg = CheckpointArg::of(name)?;
        checkpoints.push((arg.disk().place()?, arg.checkpoint));
    }
    let Some((first, _)) = checkpoints.first() else { return Err(Failure::new("no checkpoint is named")) };
    if let Some((other, _)) = checkpoints.iter().find(|(disk, _)| disk.place != first.place) {
        let (one, other) = (first.place.directory().display(), other.place.directory().display());
        return Err(Failure::new(format!("checkpoints of two lineages are named: of {one} and of {other}")));
    }
    let change = Change::begin(&first.place, PATIENCE)?;
    let (plan, outcome) = change.delete(&checkpoints)?;
    if !args.dry_run {
        change.apply(&plan)?;
    }
    if !args.quiet {
        show(&outcome_json(&outcome, args.dry_run), args.dry_run, args.output, out)?;
    }
    Ok(ExitCode::SUCCESS)
}

/// Says which layers go, and which stay for others: `outcome` is what [`outcome_json`] gives.
pub fn show(outcome: &Value, is_dry: bool, output: OutputFormat, out: &mut dyn Write) -> Result<(), Failure> {
    if output == OutputFormat::Json {
        return Ok(write_json(out, outcome)?);
    }
    let (goes, stays) = match is_dry {
        true => ("would be removed", "would lose its name and stay"),
        false => ("is removed", "has lost its name and stays"),
    };
    let going = texts(&outcome["layers"]);
    for id in &going {
        writeln!(out, "layer {id} {goes}")?;
    }
    for needed in outcome["needed"].as_array().into_iter().flatten() {
        let (id, users) = (printable(needed["id"].as_str().unwrap_or_default()), texts(&needed["users"]));
        match users.is_empty() {
            true => writeln!(out, "layer {id} {stays}: a process has it open")?,
            false => writeln!(out, "layer {id} {stays}: {} needs it", users.join(", "))?,
        }
    }
    match going.is_empty() {
        true => writeln!(out, "no file {goes}")?,
        false => {
            let bytes = human_size(outcome["bytes"].as_u64().unwrap_or(0));
            writeln!(out, "{bytes} in {} layers", going.len())?;
        }
    }
    Ok(())
}

/// A list of names, fit for a terminal.
pub fn texts(list: &Value) -> Vec<String> {
    let texts = list.as_array().into_iter().flatten().filter_map(Value::as_str);
    texts.map(|text| printable(text).to_string()).collect()
}
