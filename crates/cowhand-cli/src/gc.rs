//! `cowhand gc`: layers of a lineage that no checkpoint and no disk needs.

use std::ffi::OsString;
use std::io::Write;
use std::path::Path;
use std::process::ExitCode;

use lineage::{Change, PATIENCE, Place};
use tool::failure::Failure;
use tool::lineages::removal::{OUTCOME_JSON, outcome_json};

use crate::checkpoint::show;
use crate::lineages::args::{DiskArg, with_disk};
use crate::output::{OutputFormat, with_json};

const EXAMPLES: &str = "\
Examples:
  cowhand gc disk.qcow2
  cowhand gc --unnamed --remove disk.qcow2";

/// Arguments of `cowhand gc`.
#[derive(Debug, clap::Args)]
#[command(
    long_about = "List the layers of a lineage that no checkpoint and no disk needs any more: those of deleted checkpoints whose last fork \
        is gone; --remove removes them. With --unnamed also checkpoints that have no name, as a rollback leaves them, where nothing \
        is backed by them.\n\n\
        What is needed is read from the headers of all images in the directory and in its layers, never from the manifest; an image \
        that cannot be read ends the command. A layer that a process has open is not removed. Images in other directories are not looked at. \
        What a killed command left is removed by every command that changes the lineage.",
    after_help = with_disk(EXAMPLES),
    after_long_help = with_json(&with_disk(EXAMPLES), &[OUTCOME_JSON])
)]
pub struct Args {
    /// A disk of the lineage, or its directory
    #[arg(value_name = "DISK")]
    disk: OsString,

    /// Remove them
    #[arg(long)]
    remove: bool,

    /// Checkpoints without a name, too
    #[arg(long)]
    unnamed: bool,

    /// Say nothing
    #[arg(short = 'q')]
    quiet: bool,

    /// Form of the result
    #[arg(long, value_enum, default_value_t, value_name = "FORMAT")]
    output: OutputFormat,
}

/// Lists or removes.
pub fn run(args: &Args, out: &mut dyn Write) -> Result<ExitCode, Failure> {
    let path = Path::new(&args.disk);
    let place = if path.is_dir() { Place::of(path)? } else { DiskArg::of(&args.disk).place()?.place };
    let change = Change::begin(&place, PATIENCE)?;
    let (plan, outcome) = change.collect(args.unnamed, usize::MAX)?;
    if args.remove {
        change.apply(&plan)?;
    }
    if !args.quiet {
        let is_dry = !args.remove;
        show(&outcome_json(&outcome, is_dry), is_dry, args.output, out)?;
    }
    Ok(ExitCode::SUCCESS)
}
