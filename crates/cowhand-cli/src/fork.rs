//! `cowhand fork`: new disks over a checkpoint.

use std::ffi::OsString;
use std::io::Write;
use std::path::PathBuf;
use std::process::ExitCode;

use lineage::{Change, DiskPlace, FORKS_MAX};
use serde_json::{Value, json};

use crate::failure::Failure;
use crate::lineages::args::{CheckpointArg, DISK_HELP};
use crate::lineages::{PATIENCE, fork_paths, offline};
use crate::output::{OutputFormat, printable, write_json};

/// Arguments of `cowhand fork`.
#[derive(Debug, clap::Args)]
#[command(
    long_about = "Make a disk that begins as a checkpoint is: an overlay of the checkpoint's layer, which it shares with all other forks. \
        NEW must be in the directory of the lineage, and not be there yet. With --count N the disks are NEW with a number before the \
        extension: vm-1.qcow2 to vm-N.qcow2. All are whole before the first has its name.",
    after_help = DISK_HELP
)]
pub struct Args {
    /// The checkpoint: DISK@NAME
    #[arg(value_name = "CHECKPOINT")]
    checkpoint: OsString,

    /// The path of the new disk
    #[arg(value_name = "NEW")]
    new: PathBuf,

    /// Make so many
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=i64::from(FORKS_MAX)))]
    count: Option<u32>,

    /// Say nothing
    #[arg(short = 'q')]
    quiet: bool,

    /// Form of the result
    #[arg(long, value_enum, default_value_t, value_name = "FORMAT")]
    output: OutputFormat,
}

/// Forks.
pub fn run(args: &Args, out: &mut dyn Write) -> Result<ExitCode, Failure> {
    let arg = CheckpointArg::of(&args.checkpoint)?;
    let made = match arg.disk().served()? {
        Some(mut served) => {
            // The server may be in another directory.
            let new = std::path::absolute(&args.new);
            let new =
                new.map_err(|error| Failure::because(format!("cannot find {}", args.new.display()), &error))?;
            let mut arguments =
                json!({ "node-name": served.node, "checkpoint": arg.checkpoint.to_string(), "new": new });
            if let Some(count) = args.count {
                arguments["count"] = json!(count);
            }
            served.remote.ask("cowhand-fork", arguments)?
        }
        None => {
            let of = arg.disk().place()?;
            let paths = fork_paths(&args.new, args.count);
            let disks = paths.iter().map(|path| DiskPlace::of(path)).collect::<Result<Vec<_>, _>>()?;
            let change = Change::begin(&of.place, PATIENCE)?;
            let plan = change.fork(&of, &arg.checkpoint, &disks)?;
            offline::run(change, &plan)?;
            json!({ "disks": paths })
        }
    };
    match args.output {
        _ if args.quiet => {}
        OutputFormat::Json => write_json(out, &made)?,
        OutputFormat::Human => {
            for disk in made["disks"].as_array().into_iter().flatten().filter_map(Value::as_str) {
                writeln!(
                    out,
                    "{}: a fork of {}",
                    printable(disk),
                    printable(&args.checkpoint.to_string_lossy())
                )?;
            }
        }
    }
    Ok(ExitCode::SUCCESS)
}
