//! `cowhand stream`: a disk of a running server gets what its backing files hold.

use std::io::Write;
use std::process::ExitCode;

use serde_json::json;
use tool::failure::Failure;

use crate::drive::parse_bytes;
use crate::remote::RemoteArgs;
use crate::remote::jobs::LiveArgs;

/// Arguments of `cowhand stream`.
#[derive(Debug, clap::Args)]
#[command(
    long_about = "Have a disk of a running server copy what its backing files hold, all of it or down to --base, while guests write. \
        Afterwards it is backed by the base, or by nothing. For an image that is not in use: cowhand flatten.\n\n\
        Ctrl-C cancels the job; what was copied stays in the image, and the chain is as before.",
    after_help = "\
Examples:
  cowhand stream /run/vm1.qmp
  cowhand stream /run/vm1.qmp --disk data --base /images/golden.qcow2"
)]
pub struct Args {
    #[command(flatten)]
    remote: RemoteArgs,

    #[command(flatten)]
    live: LiveArgs,

    /// The image of the chain that is the backing file afterwards [default: none]
    #[arg(long, value_name = "PATH")]
    base: Option<String>,

    /// Bytes a second at most
    #[arg(short = 'r', value_name = "RATE", value_parser = parse_bytes)]
    rate: Option<u64>,
}

/// Streams.
pub fn run(args: &Args, out: &mut dyn Write) -> Result<ExitCode, Failure> {
    let watch = args.live.watch()?;
    let mut remote = args.remote.connect()?;
    let disk = remote.disk_of_job(args.live.disk.as_deref())?;
    let mut arguments = json!({ "device": disk, "speed": args.rate.unwrap_or(0) });
    if let Some(base) = &args.base {
        arguments["base"] = json!(base);
    }
    remote.run_job("stream", &disk, ("block-stream", arguments), &watch)?;
    if !args.live.quiet {
        writeln!(out, "{disk} is backed by {} now", args.base.as_deref().unwrap_or("nothing"))?;
    }
    Ok(ExitCode::SUCCESS)
}
