//! `cowhand fork`: new disks over a checkpoint.

use std::ffi::OsString;
use std::io::Write;
use std::path::PathBuf;
use std::process::ExitCode;

use lineage::{Action, Change, DiskPlace, FORKS_MAX, PATIENCE, fork_paths};
use monitor::qmp::exports::SERVE;
use serde_json::{Value, json};
use tool::failure::Failure;
use tool::output::{printable, write_json};

use crate::compat::{keyval, storage_daemon};
use crate::lineages::args::{CheckpointArg, with_disk};
use crate::lineages::offline;
use crate::output::{OutputFormat, with_json};

const EXAMPLES: &str = "\
Examples:
  cowhand fork disk.qcow2@installed run.qcow2 --count 10
  cowhand fork disk.qmp@installed run.qcow2 --serve";

/// Arguments of `cowhand fork`.
#[derive(Debug, clap::Args)]
#[command(
    long_about = "Make a disk that begins as a checkpoint is: an overlay of the checkpoint's layer, which it shares with all other forks. \
        NEW must be in the directory of the lineage, and not be there yet. With --count N the disks are NEW with a number before the \
        extension: vm-1.qcow2 to vm-N.qcow2. All are whole before the first has its name.\n\n\
        With --serve the server of the disk opens the new ones and exports each at once, writable unless EXPORT has writable=off. EXPORT is \
        nbd (at the server's NBD sockets; what --serve means by itself), ublk, or vhost-user-blk,addr.type=unix,addr.path=SOCKET for one fork, \
        with options of the QMP command block-export-add. Node, export and NBD name are the file's name without its extension; where a node \
        cannot be called so, its name is made. If one cannot be served, none is made.",
    after_help = with_disk(EXAMPLES),
    after_long_help = with_json(&with_disk(EXAMPLES), &[JSON])
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

    /// Have the server of the disk export each at once: EXPORT is TYPE[,KEY=VALUE...] [default: nbd]
    #[arg(
        long,
        value_name = "EXPORT",
        num_args = 0..=1,
        require_equals = true,
        default_missing_value = "nbd",
        hide_default_value = true
    )]
    serve: Option<String>,

    /// Say nothing
    #[arg(short = 'q')]
    quiet: bool,

    /// Form of the result
    #[arg(long, value_enum, default_value_t, value_name = "FORMAT")]
    output: OutputFormat,
}

/// What [`run`] prints.
const JSON: &str = "  disks                   list of text: paths of the new disks";

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
            if let Some(serve) = &args.serve {
                let export = storage_daemon::export(keyval::parse("--serve", serve, "type")?)?;
                arguments["serve"] = keyval::typed(&SERVE, Value::Object(export));
            }
            served.remote.ask("cowhand-fork", arguments)?
        }
        None if args.serve.is_some() => {
            let what = format!(
                "{}: no server has the disk, so there is none to serve its forks",
                arg.disk.display()
            );
            return Err(Failure::new(what)
                .with_hint("CHECKPOINT of a served disk is SOCKET@NAME, with the socket that cowhand serve got with --qmp"));
        }
        None => {
            let of = arg.disk().place()?;
            let paths = fork_paths(&args.new, args.count);
            let disks = paths.iter().map(|path| DiskPlace::of(path)).collect::<Result<Vec<_>, _>>()?;
            let change = Change::begin(&of.place, PATIENCE)?;
            let plan = change.plan(&[Action::Fork { of, to: arg.checkpoint, disks }])?;
            offline::run(change, plan)?;
            json!({ "disks": paths })
        }
    };
    match args.output {
        _ if args.quiet => {}
        OutputFormat::Json => write_json(out, &made)?,
        OutputFormat::Human => {
            let is_served = if args.serve.is_some() { ", served" } else { "" };
            for disk in made["disks"].as_array().into_iter().flatten().filter_map(Value::as_str) {
                writeln!(
                    out,
                    "{}: a fork of {}{is_served}",
                    printable(disk),
                    printable(&args.checkpoint.to_string_lossy())
                )?;
            }
        }
    }
    Ok(ExitCode::SUCCESS)
}
