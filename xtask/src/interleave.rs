//! `cargo xtask interleave`: thread interleavings of the code as it ships, explored by shuttle.

use std::process::{Command, ExitCode, Stdio};

use crate::workspace::cargo;

/// Arguments of `cargo xtask interleave`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Schedules explored in total, shared evenly by the tests
    #[arg(long, value_name = "N", default_value_t = CI_ITERATIONS, conflicts_with = "each")]
    iterations: u64,
    /// Schedules explored by each test, instead of a total
    #[arg(long, value_name = "N")]
    each: Option<u64>,
    /// What the schedules are derived from: the same seed, the same schedules
    #[arg(long, value_name = "SEED", default_value_t = 0)]
    seed: u64,
    /// Only tests whose name contains this
    #[arg(long, value_name = "NAME")]
    test: Option<String>,
    /// Replay one schedule, as a failure printed it; with `--test`
    #[arg(long, value_name = "SCHEDULE", requires = "test")]
    schedule: Option<String>,
}

/// What every test run explores.
pub const CI_ITERATIONS: u64 = 60_000;

/// A test binary that has such tests; nothing else is built.
struct Place {
    target: &'static [&'static str],
    /// What their names begin with: the other tests of the binary need ordinary threads.
    prefix: &'static str,
}

const PLACES: [Place; 3] = [
    Place { target: &["--package", "cowhand-map-cache", "--test", "interleavings"], prefix: "" },
    Place { target: &["--package", "cowhand-qcow2", "--lib"], prefix: "interleavings::" },
    Place { target: &["--package", "cowhand-job", "--test", "interleavings"], prefix: "" },
];

/// Runs it.
pub fn run(args: &Args) -> ExitCode {
    match explore(args) {
        Ok(_) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}

/// Explores [`CI_ITERATIONS`] schedules; gives their exact number.
///
/// # Errors
/// If a law does not hold under one of them; how to replay it is printed.
pub fn stage() -> Result<u64, String> {
    let everything = Args { iterations: CI_ITERATIONS, each: None, seed: 0, test: None, schedule: None };
    explore(&everything)
}

fn explore(args: &Args) -> Result<u64, String> {
    let tests = PLACES.iter().map(|place| list(place, args)).collect::<Result<Vec<_>, _>>()?;
    let count: u64 = tests.iter().map(|names| names.len() as u64).sum();
    if count == 0 {
        return Err(format!("no test has {} in its name", args.test.as_deref().unwrap_or_default()));
    }
    let each = args.each.unwrap_or_else(|| args.iterations.div_ceil(count));
    for (place, names) in PLACES.iter().zip(&tests).filter(|(_, names)| !names.is_empty()) {
        let mut command = cargo_test(place);
        command.args(["--nocapture", "--exact"]).args(names);
        command.env("COWHAND_INTERLEAVE_ITERATIONS", each.to_string());
        command.env("COWHAND_INTERLEAVE_SEED", args.seed.to_string());
        if let Some(schedule) = &args.schedule {
            command.env("COWHAND_INTERLEAVE_SCHEDULE", schedule);
        }
        let status = command.status().map_err(|error| format!("{command:?}: {error}"))?;
        if !status.success() {
            return Err(format!("a law does not hold under every schedule (seed {})", args.seed));
        }
    }
    match &args.schedule {
        Some(_) => println!("the schedule was replayed; nothing failed"),
        None => {
            println!(
                "{} interleavings explored: {count} tests, {each} each, seed {}",
                each * count,
                args.seed
            );
        }
    }
    Ok(each * count)
}

/// Builds the tests; gives the names of those that are to run.
fn list(place: &Place, args: &Args) -> Result<Vec<String>, String> {
    let mut command = cargo_test(place);
    command.arg("--list").stderr(Stdio::inherit());
    let output = command.output().map_err(|error| format!("{command:?}: {error}"))?;
    if !output.status.success() {
        return Err(format!("{command:?}: {}", output.status));
    }
    let wanted = args.test.as_deref().unwrap_or_default();
    let lines = String::from_utf8_lossy(&output.stdout);
    let names = lines.lines().filter_map(|line| line.strip_suffix(": test"));
    let names = names.filter(|name| name.starts_with(place.prefix) && name.contains(wanted));
    Ok(names.map(str::to_owned).collect())
}

fn cargo_test(place: &Place) -> Command {
    let mut command = cargo();
    command.arg("test").args(place.target).args(["--features", "shuttle", "--"]);
    command
}
