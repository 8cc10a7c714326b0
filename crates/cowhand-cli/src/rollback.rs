//! `cowhand rollback`: a disk continues from one of its checkpoints.

use std::ffi::OsString;
use std::io::Write;
use std::process::ExitCode;

use lineage::{Action, Change, CheckpointRef, NewCheckpoint, PATIENCE};
use serde_json::json;
use tool::failure::Failure;
use tool::output::{printable, write_json};

use crate::lineages::args::{CheckpointArg, DiskArg, with_disk};
use crate::lineages::offline::{self, LockedDisk};
use crate::output::{OutputFormat, with_json};

const EXAMPLES: &str = "\
Examples:
  cowhand rollback disk.qcow2 @installed
  cowhand rollback disk.qmp @installed";

/// Arguments of `cowhand rollback`.
#[derive(Debug, clap::Args)]
#[command(
    long_about = "Have a disk continue from a checkpoint, in a fresh overlay at the path that it has. Nothing is lost: the layer that was \
        active stays as a checkpoint without a name, which the command prints and cowhand gc --unnamed removes.\n\n\
        Of a disk that is being served clients stay connected: requests in flight finish on the old layer, later ones go to the new one. \
        What a client has in its caches is then of another disk: while one is connected that may write, --live must be given. Stop the \
        guest, or unmount its file systems, first.",
    after_help = with_disk(EXAMPLES),
    after_long_help = with_json(&with_disk(EXAMPLES), &[JSON])
)]
pub struct Args {
    /// The disk
    #[arg(value_name = "DISK")]
    disk: OsString,

    /// The checkpoint: DISK@NAME, or @NAME for one of this disk
    #[arg(value_name = "CHECKPOINT")]
    checkpoint: OsString,

    /// Also while a client is connected that may write
    #[arg(long)]
    live: bool,

    /// Say nothing
    #[arg(short = 'q')]
    quiet: bool,

    /// Form of the result
    #[arg(long, value_enum, default_value_t, value_name = "FORMAT")]
    output: OutputFormat,
}

/// What [`run`] prints.
const JSON: &str = "  disk                    text: path of the disk's image
  checkpoint              text: the checkpoint, as it was named
  left                    text: id of the layer that was active";

/// Rolls back.
pub fn run(args: &Args, out: &mut dyn Write) -> Result<ExitCode, Failure> {
    let to = CheckpointArg::of_disk(&args.checkpoint, &args.disk)?;
    let arg = DiskArg::of(&args.disk);
    let done = match arg.served()? {
        Some(mut served) => {
            let is_id = matches!(to.checkpoint, CheckpointRef::Id(_));
            if !is_id && !arg.is_same(&served, &to.disk())? {
                let what = format!("{} is a checkpoint of another disk", args.checkpoint.to_string_lossy());
                return Err(Failure::new(what).with_hint("name it by its id, which cowhand log shows"));
            }
            let checkpoint = to.checkpoint.to_string();
            let arguments = json!({ "node-name": served.node, "checkpoint": checkpoint, "live": args.live });
            served.remote.ask("cowhand-rollback", arguments)?
        }
        None => {
            let place = arg.place()?;
            let of = to.disk().place()?;
            let change = Change::begin(&place.place, PATIENCE)?;
            let _locked = LockedDisk::of(&place)?;
            let new = NewCheckpoint::now(None, &[])?;
            let done = json!({ "disk": place.path(), "checkpoint": to.checkpoint.to_string(), "left": new.id.to_string() });
            let to = to.checkpoint.clone();
            let plan = change.plan(&[Action::Rollback { disk: place, of, to, new }])?;
            offline::run(change, plan)?;
            done
        }
    };
    match args.output {
        _ if args.quiet => {}
        OutputFormat::Json => write_json(out, &done)?,
        OutputFormat::Human => {
            let disk = args.disk.to_string_lossy();
            let disk = printable(&disk);
            let left = done["left"].as_str().unwrap_or_default();
            writeln!(out, "{disk} continues from {}; what it was is {disk}@{left}", to.checkpoint)?;
        }
    }
    Ok(ExitCode::SUCCESS)
}
