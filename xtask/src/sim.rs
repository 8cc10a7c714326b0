//! `cargo xtask sim`: the simulation with seeds and for times of one's choice.

use std::ffi::OsString;
use std::path::Path;
use std::process::{Command, ExitCode, Stdio};
use std::time::{SystemTime, UNIX_EPOCH};

/// Arguments of `cargo xtask sim`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// The first seed; without --minutes the only one [default: with --minutes the time, otherwise what
    /// continuous integration runs]
    #[arg(long, value_name = "N")]
    seed: Option<u64>,
    /// Go on with the seeds that follow for so many minutes, shared by all tests
    #[arg(long, value_name = "M")]
    minutes: Option<f64>,
    /// So many times as many seeds and states as continuous integration looks at
    #[arg(long, value_name = "N")]
    scale: Option<u64>,
    /// Only tests with these names, as failures print them [default: all]
    #[arg(value_name = "TEST")]
    tests: Vec<String>,
}

/// The packages with simulations, and their tests.
const TESTS: [&str; 10] = [
    "--package",
    "qcow2",
    "--test",
    "sim_crash",
    "--test",
    "sim_faults",
    "--test",
    "sim_model",
    "--test",
    "write_order",
];

/// Runs it.
pub fn run(args: &Args) -> ExitCode {
    let mut command = cargo_test(args);
    if let Some(seed) = args.seed.or_else(|| args.minutes.map(|_| seed_of_now())) {
        println!("first seed: {seed}");
        command.env("COWHAND_SIM_SEED", seed.to_string());
    }
    if let Some(minutes) = args.minutes {
        let share = minutes * parallel() as f64 / count(args).max(1) as f64;
        command.env("COWHAND_SIM_MINUTES", share.to_string());
    }
    if let Some(scale) = args.scale {
        command.env("COWHAND_SIM_SCALE", scale.to_string());
    }
    match command.arg("--nocapture").status() {
        Ok(status) if status.success() => ExitCode::SUCCESS,
        Ok(_) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("cargo does not run: {error}");
            ExitCode::FAILURE
        }
    }
}

/// `cargo test` of the tests that were asked for, open for arguments of the test harness.
fn cargo_test(args: &Args) -> Command {
    let mut command = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| OsString::from("cargo")));
    let own = Path::new(env!("CARGO_MANIFEST_DIR"));
    command.current_dir(own.parent().unwrap_or(own)).stdin(Stdio::null());
    command.arg("test").args(TESTS).arg("--no-fail-fast").arg("--").args(&args.tests);
    // A whole name, as failures print it, is not the beginning of others.
    if !args.tests.is_empty() && args.tests.iter().all(|test| test.contains("::")) {
        command.arg("--exact");
    }
    command
}

/// How many tests share the time.
fn count(args: &Args) -> usize {
    let listed = cargo_test(args).arg("--list").stderr(Stdio::null()).output();
    let text = listed.map(|output| String::from_utf8_lossy(&output.stdout).into_owned()).unwrap_or_default();
    text.lines().filter(|line| line.ends_with(": test")).count()
}

fn parallel() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}

fn seed_of_now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs())
}
