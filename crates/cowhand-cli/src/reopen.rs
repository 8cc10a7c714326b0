//! `cowhand reopen`: options of a disk change while it is served.

use std::io::Write;
use std::process::ExitCode;

use serde_json::json;
use tool::failure::Failure;

use crate::remote::RemoteArgs;

/// Arguments of `cowhand reopen`.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
What is not named stays. cowhand serve --drive-options says what can change while the disk is open (blockdev-reopen, \
x-blockdev-set); the server refuses the rest by name.

Examples:
  cowhand reopen /run/vm1.qmp l2-cache-size=16M,cache-clean-interval=60
  cowhand reopen /run/vm1.qmp discard=unmap,detect-zeroes=unmap --disk data")]
pub struct Args {
    #[command(flatten)]
    remote: RemoteArgs,

    /// What changes: name=value,... as on a drive line
    #[arg(value_name = "OPTIONS")]
    options: String,

    /// The disk, by its node's name [default: the only one]
    #[arg(long, value_name = "NAME")]
    disk: Option<String>,
}

/// Does it.
pub fn run(args: &Args, out: &mut dyn Write) -> Result<ExitCode, Failure> {
    let mut remote = args.remote.connect()?;
    let disk = remote.disk(args.disk.as_deref())?;
    remote.ask("x-blockdev-set", json!({ "node-name": disk, "options": args.options }))?;
    writeln!(out, "{disk}: {}", args.options)?;
    Ok(ExitCode::SUCCESS)
}
