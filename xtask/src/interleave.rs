//! `cargo xtask interleave`: thread interleavings of the code as it ships, explored by shuttle.

use std::process::{Command, ExitCode};

use crate::test::Tier;
use crate::test_programs::{TestPrograms, tests_of};

/// Arguments of `cargo xtask interleave`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Schedules explored in total, shared evenly by the tests
    #[arg(long, value_name = "N", default_value_t = Tier::Full.interleavings(), conflicts_with = "each")]
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

/// A test program that has such tests.
struct Place {
    directory: &'static str,
    /// The name of its file of tests; none: the library's own.
    name: Option<&'static str>,
    /// What their names begin with: the other tests of the program need ordinary threads.
    prefix: &'static str,
}

const PLACES: [Place; 3] = [
    Place { directory: "crates/map-cache", name: Some("interleavings"), prefix: "" },
    Place { directory: "crates/qcow2", name: None, prefix: "interleavings::" },
    Place { directory: "crates/job", name: Some("interleavings"), prefix: "" },
];

/// All of them at once: one by one they would need what they are built of with different features, each built again. The engine is built once
/// more for this alone, and what explores it takes most of the time: so it is built quickly.
const BUILT: [&str; 15] = [
    "--config",
    "profile.test.package.cowhand-qcow2.opt-level=1",
    "--config",
    "profile.test.package.cowhand-qcow2.codegen-units=16",
    "--package",
    "cowhand-map-cache",
    "--package",
    "cowhand-qcow2",
    "--package",
    "cowhand-job",
    "--features",
    "cowhand-map-cache/shuttle,cowhand-qcow2/shuttle,cowhand-job/shuttle",
    "--lib",
    "--test",
    "interleavings",
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

/// Explores as many schedules as the full tier does; gives their exact number.
///
/// # Errors
/// If a law does not hold under one of them; how to replay it is printed.
pub fn stage() -> Result<u64, String> {
    explore(&Args::of_run(Tier::Full.interleavings()))
}

/// What explores so many schedules, built: one program after the other, each for some of them.
///
/// # Errors
/// If it cannot be built.
pub fn programs(iterations: u64) -> Result<Vec<Command>, String> {
    Exploration::new(&Args::of_run(iterations)).map(|exploration| exploration.programs)
}

fn explore(args: &Args) -> Result<u64, String> {
    let Exploration { programs, tests, each } = Exploration::new(args)?;
    for mut command in programs {
        let status = command.status().map_err(|error| format!("{command:?}: {error}"))?;
        if !status.success() {
            return Err(format!("a law does not hold under every schedule (seed {})", args.seed));
        }
    }
    match &args.schedule {
        Some(_) => println!("the schedule was replayed; nothing failed"),
        None => {
            println!(
                "{} interleavings explored: {tests} tests, {each} each, seed {}",
                each * tests,
                args.seed
            );
        }
    }
    Ok(each * tests)
}

/// What there is to do.
struct Exploration {
    programs: Vec<Command>,
    tests: u64,
    /// Schedules of each test.
    each: u64,
}

impl Exploration {
    fn new(args: &Args) -> Result<Self, String> {
        let built = TestPrograms::build(&BUILT)?;
        let list = |place: &Place| place.tests(&built, args.test.as_deref().unwrap_or_default());
        let found = PLACES.iter().map(list).collect::<Result<Vec<_>, _>>()?;
        let tests: u64 = found.iter().map(|names| names.len() as u64).sum();
        if tests == 0 {
            return Err(format!("no test has {} in its name", args.test.as_deref().unwrap_or_default()));
        }
        let each = args.each.unwrap_or_else(|| args.iterations.div_ceil(tests));
        let mut programs = Vec::new();
        for (place, names) in PLACES.iter().zip(&found).filter(|(_, names)| !names.is_empty()) {
            let mut command = place.program(&built)?;
            command.args(["--nocapture", "--exact"]).args(names);
            command.env("COWHAND_INTERLEAVE_ITERATIONS", each.to_string());
            command.env("COWHAND_INTERLEAVE_SEED", args.seed.to_string());
            if let Some(schedule) = &args.schedule {
                command.env("COWHAND_INTERLEAVE_SCHEDULE", schedule);
            }
            programs.push(command);
        }
        Ok(Self { programs, tests, each })
    }
}

impl Args {
    /// What a run of the tests explores.
    fn of_run(iterations: u64) -> Self {
        Self { iterations, each: None, seed: 0, test: None, schedule: None }
    }
}

impl Place {
    fn program(&self, programs: &TestPrograms) -> Result<Command, String> {
        match self.name {
            Some(name) => programs.command(self.directory, name),
            None => programs.library(self.directory),
        }
    }

    /// The names of its tests that have `wanted` in them.
    fn tests(&self, programs: &TestPrograms, wanted: &str) -> Result<Vec<String>, String> {
        let mut tests = tests_of(self.program(programs)?)?;
        tests.retain(|name| name.starts_with(self.prefix) && name.contains(wanted));
        Ok(tests)
    }
}
