//! `cowhand resize`: a disk of a running server gets another size.

use std::io::Write;
use std::process::ExitCode;

use image::size::human_size;
use serde_json::json;

use crate::drive::parse_bytes;
use crate::failure::Failure;
use crate::remote::RemoteArgs;

/// Arguments of `cowhand resize`.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Clients that are connected keep to the size that they were told; they see the new one when they connect again.

Examples:
  cowhand resize /run/vm1.qmp 40G
  cowhand resize /run/vm1.qmp 10G --disk data --shrink")]
pub struct Args {
    #[command(flatten)]
    remote: RemoteArgs,

    /// The new size: bytes, or with a suffix (40G)
    #[arg(value_name = "SIZE", value_parser = parse_bytes)]
    size: u64,

    /// The disk, by its node's name [default: the only one]
    #[arg(long, value_name = "NAME")]
    disk: Option<String>,

    /// A smaller size is meant: what lies beyond it is lost
    #[arg(long)]
    shrink: bool,
}

/// Does it.
pub fn run(args: &Args, out: &mut dyn Write) -> Result<ExitCode, Failure> {
    let mut remote = args.remote.connect()?;
    let disk = remote.disk(args.disk.as_deref())?;
    let mut arguments = json!({ "node-name": disk, "size": args.size });
    if args.shrink {
        arguments["x-shrink"] = json!(true);
    }
    remote.ask("block_resize", arguments)?;
    writeln!(out, "{disk}: {} ({} bytes)", human_size(args.size), args.size)?;
    Ok(ExitCode::SUCCESS)
}
