//! `cargo xtask bench`: the server side by side with its rivals, on the same bytes, in one run.
//!
//! Every figure is the median of several rounds; in each round every server is measured once, in
//! turn, so that a machine that is slow for a minute is slow for all of them.

mod door;
mod fio;
mod server;
mod table;
mod throttle;

use std::path::PathBuf;
use std::process::ExitCode;

use clap::Args as ClapArgs;

/// Options of `cargo xtask bench`.
#[derive(Debug, ClapArgs)]
pub struct Args {
    /// Few and short rounds: shapes, not figures
    #[arg(long)]
    quick: bool,

    /// Only cases whose name contains this; `throttle` is a table of its own
    #[arg(long, value_name = "TEXT")]
    only: Option<String>,

    /// Directory on a disk for the images (2 GiB each)
    #[arg(long, value_name = "DIR", default_value = "target/bench")]
    directory: PathBuf,

    /// Write the tables to this file as well
    #[arg(long, value_name = "FILE")]
    report: Option<PathBuf>,

    /// Rounds of each case
    #[arg(long, value_name = "N")]
    rounds: Option<u32>,

    /// Seconds of each measurement
    #[arg(long, value_name = "N")]
    seconds: Option<u32>,
}

/// How much is measured.
#[derive(Clone, Copy, Debug)]
struct Effort {
    rounds: u32,
    seconds: u32,
}

/// Runs `cargo xtask bench`.
pub fn run(args: &Args) -> ExitCode {
    let usual = if args.quick { Effort { rounds: 2, seconds: 1 } } else { Effort { rounds: 5, seconds: 3 } };
    let effort = Effort {
        rounds: args.rounds.unwrap_or(usual.rounds),
        seconds: args.seconds.unwrap_or(usual.seconds),
    };
    let measured = match args.only.as_deref() {
        Some("throttle") => throttle_table(args),
        _ => door::run(args, effort),
    };
    match measured {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("xtask bench: {error}");
            ExitCode::FAILURE
        }
    }
}

/// Limits in real time: `--only throttle`.
fn throttle_table(args: &Args) -> Result<(), String> {
    door::build()?;
    let unusable = |error: std::io::Error| format!("{}: {error}", args.directory.display());
    std::fs::create_dir_all(&args.directory).map_err(unusable)?;
    let directory = args.directory.canonicalize().map_err(unusable)?;
    let seconds = args.seconds.unwrap_or(if args.quick { 3 } else { 30 });
    let extent = throttle::Extent { seconds, quick: args.quick };
    let report = throttle::run(&door::cowhand(), &directory, extent)?;
    let mut text = format!("| {} |\n|{}\n", throttle::ACCURACY_HEADS.join(" | "), "---|".repeat(9));
    report.accuracy.iter().for_each(|row| text += &format!("| {} |\n", row.join(" | ")));
    text += "\n| what | target | found |\n|---|---|---|\n";
    report.others.iter().for_each(|row| text += &format!("| {} |\n", row.join(" | ")));
    match &args.report {
        Some(path) => std::fs::write(path, text).map_err(|error| format!("{}: {error}", path.display())),
        None => Ok(()),
    }
}
