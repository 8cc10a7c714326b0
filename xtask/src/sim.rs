//! `cargo xtask sim`: the simulation with seeds, for times and up to totals of one's choice.

use std::process::{Command, ExitCode};
use std::time::{SystemTime, UNIX_EPOCH};

use crate::figures::{Figures, follow};
use crate::test_programs::tests_of;
use crate::workspace;

/// Arguments of `cargo xtask sim`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// The first seed; without --minutes the only one [default: with --minutes the time, otherwise what
    /// the full tier of the tests runs]
    #[arg(long, value_name = "N")]
    seed: Option<u64>,
    /// Try the seeds that follow for so many minutes, shared by all tests
    #[arg(long, value_name = "M")]
    minutes: Option<f64>,
    /// So many times as many seeds and states as the full tier looks at
    #[arg(long, value_name = "N")]
    scale: Option<u64>,
    /// Go on until about so many crash states were looked at, over all configurations
    #[arg(long, value_name = "N", conflicts_with_all = ["seed", "minutes", "scale"])]
    crash_states: Option<u64>,
    /// Go on until about so many random operations were compared with the model
    #[arg(long, value_name = "N", conflicts_with_all = ["seed", "minutes", "scale"])]
    operations: Option<u64>,
    /// Fail every I/O of about so many workloads
    #[arg(long, value_name = "N", conflicts_with_all = ["seed", "minutes", "scale"])]
    workloads: Option<u64>,
    /// Print the sums as a table
    #[arg(long)]
    table: bool,
    /// Only tests with these names, as failures print them [default: all]
    #[arg(value_name = "TEST")]
    tests: Vec<String>,
}

/// The package with simulations.
pub const PACKAGE: &str = "cowhand-qcow2";

/// The programs of its tests.
pub const PROGRAMS: [&str; 2] = ["all", "unlike"];

/// The modules of its tests.
pub const TESTS: [&str; 7] =
    ["sim_crash::", "sim_faults::", "sim_space::", "sim_model::", "write_order::", "sim_jobs::", "unlike::"];

/// What the full tier looks at in each, as `cargo xtask sim` prints it.
const CRASH_STATES: u64 = 257_500;
const WORKLOADS: u64 = 462;
const OPERATIONS: u64 = 1_000_000;

/// Runs it.
pub fn run(args: &Args) -> ExitCode {
    let totals = totals(args);
    if totals.is_empty() {
        return run_tests(args, &TESTS, args.scale);
    }
    let codes: Vec<_> = totals.iter().map(|&(test, scale)| run_tests(args, &[test], Some(scale))).collect();
    let failed = codes.iter().any(|code| *code != ExitCode::SUCCESS);
    if failed { ExitCode::FAILURE } else { ExitCode::SUCCESS }
}

/// The tests whose totals are asked for, and how many times as much as usual that is.
fn totals(args: &Args) -> Vec<(&'static str, u64)> {
    let asked = [
        ("sim_crash::", args.crash_states, CRASH_STATES),
        ("sim_faults::", args.workloads, WORKLOADS),
        ("sim_model::", args.operations, OPERATIONS),
    ];
    let asked = asked.into_iter();
    asked.filter_map(|(test, total, usual)| Some((test, total?.div_ceil(usual)))).collect()
}

fn run_tests(args: &Args, tests: &[&str], scale: Option<u64>) -> ExitCode {
    let mut command = cargo_test(args, tests);
    if let Some(seed) = args.seed.or_else(|| args.minutes.map(|_| seed_of_now())) {
        println!("first seed: {seed}");
        command.env("COWHAND_SIM_SEED", seed.to_string());
    }
    if let Some(minutes) = args.minutes {
        let share = minutes * parallel() as f64 / count(args, tests).max(1) as f64;
        command.env("COWHAND_SIM_MINUTES", share.to_string());
    }
    if let Some(scale) = scale {
        command.env("COWHAND_SIM_SCALE", scale.to_string());
    }
    let mut figures = Figures::default();
    command.arg("--nocapture");
    let outcome = follow(command, &mut figures);
    println!("in all: {}", figures.line());
    if args.table {
        print!("{}", figures.table());
    }
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("cargo test: {error}");
            ExitCode::FAILURE
        }
    }
}

/// `cargo test` of the tests that were asked for, open for arguments of the test harness.
fn cargo_test(args: &Args, tests: &[&str]) -> Command {
    let asked: Vec<&str> = args.tests.iter().map(String::as_str).collect();
    let mut command =
        workspace::cargo_test(PACKAGE, &PROGRAMS, if asked.is_empty() { tests } else { &asked });
    // A whole name, as failures print it, is not the beginning of others: it has a module and what is in it.
    let whole =
        |test: &&str| TESTS.iter().any(|module| test.starts_with(module) && test.len() > module.len());
    if !asked.is_empty() && asked.iter().all(whole) {
        command.arg("--exact");
    }
    command
}

/// How many tests share the time.
fn count(args: &Args, tests: &[&str]) -> usize {
    tests_of(cargo_test(args, tests)).map_or(0, |names| names.len())
}

fn parallel() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}

fn seed_of_now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs())
}
