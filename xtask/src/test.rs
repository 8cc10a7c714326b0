//! `cargo xtask test`: what says whether the project is well, in two tiers.

mod change;
mod reach;
mod suites;
mod tier;

use std::process::{Command, ExitCode};
use std::time::{Duration, Instant};

pub use self::suites::{SUITES, Suite};
pub use self::tier::Tier;

use self::change::Change;
use self::reach::{Part, Plan};
use self::suites::{MEDIA, suite};
use self::tier::{FIRST_OF, set_simulation};
use crate::beside::Beside;
use crate::book;
use crate::interleave;
use crate::library;
use crate::packages::Packages;
use crate::peers;
use crate::peers::qemu_releases;
use crate::schema_diff;
use crate::stage::Stages;
use crate::test_programs::TestPrograms;
use crate::tidy;
use crate::workspace::{binary, cargo};

/// Arguments of `cargo xtask test`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Everything: all cases and all tests of every suite [default: the first tier, docs/internals/testing.md]
    #[arg(long)]
    full: bool,

    /// Only these suites, whole: unit, interleavings, schema-diff, fuzz, or the name of a black-box suite (may be repeated)
    #[arg(long, value_name = "SUITE")]
    only: Vec<String>,

    /// After the first tier so much of the full one as the last change reaches; which change, COWHAND_CI_BASE or the history says
    #[arg(long, conflicts_with_all = ["full", "only"])]
    reached: bool,

    /// With --reached: the change begins after this commit
    #[arg(long, value_name = "COMMIT", requires = "reached")]
    since: Option<String>,

    /// With --reached: for so many minutes
    #[arg(long, value_name = "M", requires = "reached", default_value_t = 10)]
    minutes: u64,

    /// With --reached: run nothing, print what of the full tier would run
    #[arg(long, requires = "reached")]
    list: bool,

    /// Which cases the fuzz targets and the property tests make up
    #[arg(long, value_name = "N", default_value_t = 0)]
    seed: u64,
}

impl Args {
    /// What is asked for: a suite that is named runs whole.
    fn tier(&self) -> Tier {
        if self.full || !self.only.is_empty() { Tier::Full } else { Tier::First }
    }

    /// For how long parts of the full tier begin.
    fn time(&self) -> Duration {
        Duration::from_secs(self.minutes * 60)
    }

    fn wants(&self, name: &str) -> bool {
        self.only.is_empty() || self.only.iter().any(|only| only == name)
    }

    /// The same programs; they look at as much as `tier` does, and their property tests make up the cases that were asked for.
    fn set(&self, tier: Tier, mut programs: Vec<Command>) -> Vec<Command> {
        for program in &mut programs {
            self.set_one(tier, program);
        }
        programs
    }

    /// As [`Args::set`], for one of them.
    fn set_one<'a>(&self, tier: Tier, program: &'a mut Command) -> &'a mut Command {
        tier.set(program);
        program.env("PROPTEST_RNG_SEED", self.seed.to_string())
    }
}

/// Every crate's own tests.
const UNIT: &str = "unit";

/// Schedules of the map cache and the engine, explored.
const INTERLEAVINGS: &str = "interleavings";

/// QEMU's interfaces beside ours.
const SCHEMA_DIFF: &str = "schema-diff";

/// Cases for everything that reads foreign bytes.
const FUZZ: &str = "fuzz";

/// Where they are.
const CORPUS: (&str, &str) = ("fuzz", "corpus");

/// The package of the black-box suites, and their program.
const BLACK_BOX: &str = "tests";
const BLACK_BOX_TESTS: &str = "all";

/// The tests of the engine, most of which simulate: they take longer than those of all other crates.
const SIMULATIONS: (&str, &str) = ("crates/qcow2", "all");

/// Jobs and tools on chains of images that are not alike, simulated.
const UNLIKE_CHAINS: (&str, &str) = ("crates/qcow2", "unlike");

/// Runs it.
pub fn run(args: &Args) -> ExitCode {
    let known =
        |name: &str| [UNIT, INTERLEAVINGS, SCHEMA_DIFF, FUZZ].contains(&name) || suite(name).is_some();
    if let Some(unknown) = args.only.iter().find(|name| !known(name)) {
        let suites: Vec<&str> = SUITES.iter().map(|suite| suite.name).collect();
        eprintln!(
            "unknown suite {unknown}; known: {UNIT}, {INTERLEAVINGS}, {SCHEMA_DIFF}, {FUZZ}, {}",
            suites.join(", ")
        );
        return ExitCode::FAILURE;
    }
    if args.list {
        return list(args);
    }
    println!("==== {}: docs/internals/testing.md says what it proves", args.tier().name());
    let mut stages = Stages::default();
    stages.stage("tidy: what the tree says of itself", tidy::stage);
    let build = || build_beside_peers(args.tier());
    let programs = stages.making("build of the tests and the program, and what they compare with", build);
    let mut left_out = Vec::new();
    if let Some(programs) = programs {
        run_built(args, &programs, &mut stages);
        if args.reached {
            left_out = run_reached(args, &programs, &mut stages);
        }
    }
    left_out.iter().for_each(|left_out| println!("left out of the full tier: {left_out}"));
    let ok = stages.sum_up();
    if ok { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// Prints what `--reached` would run.
fn list(args: &Args) -> ExitCode {
    match plan(args) {
        Ok(_) => ExitCode::SUCCESS,
        Err(unknown) => {
            eprintln!("{unknown}");
            ExitCode::FAILURE
        }
    }
}

/// Runs the tests that are wanted. Those that only compute run beside those that wait for programs, disks and time.
fn run_built(args: &Args, programs: &TestPrograms, stages: &mut Stages) {
    let tier = args.tier();
    let beside = begin_computing(args, programs, stages);
    if args.wants(UNIT) {
        run_units(args, programs, stages);
    }
    if args.wants(FUZZ) {
        run_fuzz(args, tier, programs, stages);
    }
    if args.only.is_empty() {
        stages.tests("black box: what the suites share", programs.library(BLACK_BOX), |tests| tests);
    }
    match tier {
        Tier::First => {
            run_first_tests(args, programs, stages);
            library::first_stage(stages);
        }
        Tier::Full => {
            if args.wants(SCHEMA_DIFF) {
                stages.stage("schema-diff: QEMU's interfaces beside ours", schema_diff::stage);
            }
            for suite in SUITES.iter().filter(|suite| args.wants(suite.name)) {
                let tests = programs.suite(BLACK_BOX, BLACK_BOX_TESTS, suite.name);
                run_black_box(args, tier, &format!("black box: {}", suite.name), suite.name, tests, stages);
            }
            if args.only.is_empty() {
                library::stage(stages);
                stages.stage("book: the pages of docs/", book::build);
            }
        }
    }
    stages.beside(beside);
}

/// Tests of every crate but the engine's simulations.
fn run_units(args: &Args, programs: &TestPrograms, stages: &mut Stages) {
    let examples = ["test", "--workspace", "--doc"];
    stages.command("unit: examples of the documentation", cargo().args(examples));
    let every = programs.all_but(&[BLACK_BOX], &[SIMULATIONS, UNLIKE_CHAINS, CORPUS]);
    stages.programs("unit: tests of every crate", args.set(args.tier(), every));
    if has_loop_devices("unit: block devices") {
        stages.tests("unit: block devices", programs.command("crates/storage", "all"), |tests| {
            tests.args(["device::", "--ignored"])
        });
    }
}

fn run_fuzz(args: &Args, tier: Tier, programs: &TestPrograms, stages: &mut Stages) {
    stages.tests("fuzz: the corpus and made-up cases", programs.command(CORPUS.0, CORPUS.1), |tests| {
        tests
            .env("COWHAND_FUZZ_SECONDS", tier.fuzz_seconds().to_string())
            .env("COWHAND_FUZZ_SEED", args.seed.to_string())
    });
}

/// The tests of the black-box suites that are in the first tier: of all suites at once, but of those that measure or mount.
fn run_first_tests(args: &Args, programs: &TestPrograms, stages: &mut Stages) {
    let (alone, together): (Vec<&Suite>, Vec<&Suite>) = SUITES.iter().partition(|suite| suite.is_alone());
    let mut run = |name: &str, suite: &str, tests: Vec<String>| {
        let tests = programs.exactly(BLACK_BOX, BLACK_BOX_TESTS, &tests);
        run_black_box(args, Tier::First, name, suite, tests, stages);
    };
    let tests: Vec<String> = together.iter().flat_map(|suite| suite.first_tests()).collect();
    run(&format!("black box: the first tests of {} suites", together.len()), "", tests);
    for suite in alone {
        run(
            &format!("black box: {}, the first tests", suite.name),
            suite.name,
            suite.first_tests().collect(),
        );
    }
}

/// One stage: tests of the black-box suite `suite`, or of several that do not disturb each other.
fn run_black_box(
    args: &Args,
    tier: Tier,
    stage: &str,
    suite: &str,
    tests: Result<Command, String>,
    stages: &mut Stages,
) {
    if suite == MEDIA && !has_loop_devices(stage) {
        return;
    }
    stages.tests(stage, tests, |tests| {
        let alone = (suite == MEDIA).then_some("--test-threads=1");
        args.set_one(tier, tests).args(alone).env("COWHAND_BIN", binary())
    });
}

/// Begins with the tests that only compute. Those of the engine run while the interleavings are built, which takes one processor most of the
/// time: the engine is one large crate.
fn begin_computing(args: &Args, programs: &TestPrograms, stages: &mut Stages) -> Vec<Beside> {
    let mut beside = Vec::new();
    if args.wants(UNIT) {
        let of = if args.tier() == Tier::First { FIRST_OF } else { 1 };
        beside.extend(begin_simulation("unit: tests of the engine", args, of, programs, stages));
    }
    if args.wants(INTERLEAVINGS) {
        let name = "interleavings: schedules of map cache and engine";
        beside.extend(begin_interleavings(name, args, args.tier(), stages));
    }
    beside
}

fn begin_simulation(
    name: &str,
    args: &Args,
    of: u64,
    programs: &TestPrograms,
    stages: &mut Stages,
) -> Option<Beside> {
    let simulations = [SIMULATIONS, UNLIKE_CHAINS].map(|(directory, test)| programs.command(directory, test));
    match simulations.into_iter().collect::<Result<Vec<_>, String>>() {
        Ok(mut engine) => {
            engine.iter_mut().for_each(|program| {
                set_simulation(program, of);
            });
            Some(Beside::begin(name.to_owned(), args.set(Tier::Full, engine)))
        }
        Err(error) => {
            stages.stage(name, || Err(error));
            None
        }
    }
}

fn begin_interleavings(name: &str, args: &Args, tier: Tier, stages: &mut Stages) -> Option<Beside> {
    let build = || interleave::programs(tier.interleavings());
    let programs = stages.making("interleavings: build", build)?;
    Some(Beside::begin(name.to_owned(), args.set(tier, programs)))
}

/// Runs what of the full tier the change reaches while there is time; gives what was left out.
fn run_reached(args: &Args, programs: &TestPrograms, stages: &mut Stages) -> Vec<String> {
    let plan = match plan(args) {
        Ok(plan) => plan,
        Err(unknown) => {
            println!("\n==== of the full tier: nothing, for what has changed is not known: {unknown}");
            return Vec::new();
        }
    };
    let mut left_out: Vec<String> = plan.left_out.iter().map(ToString::to_string).collect();
    let (start, mut beside) = (Instant::now(), Vec::new());
    for reached in plan.run {
        if start.elapsed() > args.time() {
            left_out.push(reached.to_string());
            continue;
        }
        let name = reached.part.to_string();
        match reached.part {
            Part::Simulation { of } => beside.extend(begin_simulation(&name, args, of, programs, stages)),
            Part::Interleavings => beside.extend(begin_interleavings(&name, args, Tier::Full, stages)),
            Part::Fuzz => run_fuzz(args, Tier::Full, programs, stages),
            Part::Suite(suite) => {
                let tests = programs.suite(BLACK_BOX, BLACK_BOX_TESTS, suite.name);
                run_black_box(args, Tier::Full, &name, suite.name, tests, stages);
            }
        }
    }
    stages.beside(beside);
    left_out
}

/// Finds out what the change reaches, and prints it.
fn plan(args: &Args) -> Result<Plan, String> {
    let change = Change::since(args.since.as_deref())?;
    let plan = reach::plan(&change.files, &Packages::read()?, args.time().as_secs());
    println!(
        "\n==== of the full tier: what {} files reach that changed since {}",
        change.files.len(),
        change.since
    );
    plan.run.iter().for_each(|reached| println!("runs: {reached}"));
    plan.left_out
        .iter()
        .for_each(|reached| println!("left out, {} min are used up: {reached}", args.minutes));
    if plan.run.is_empty() {
        println!("nothing");
    }
    Ok(plan)
}

/// Builds the tests, and meanwhile makes sure that what they compare with is there: that waits for the network and for disks.
fn build_beside_peers(tier: Tier) -> Result<TestPrograms, String> {
    std::thread::scope(|scope| {
        let peers = scope.spawn(move || {
            peers::ensure().inspect_err(|missing| eprintln!("{missing}"))?;
            if matches!(tier, Tier::Full)
                && let Err(missing) = qemu_releases::ensure()
            {
                println!("nothing is compared with QEMU's newest release: {missing}");
            }
            Ok::<(), String>(())
        });
        let programs = TestPrograms::build(&["--workspace"]);
        peers.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))?;
        programs
    })
}

/// Whether this is root on a machine that lets it make block devices; where it is not, it is said aloud that `stage` is left out.
fn has_loop_devices(stage: &str) -> bool {
    let found = Command::new("losetup").arg("--find").output();
    let has = found.is_ok_and(|output| output.status.success() && !output.stdout.is_empty());
    if !has {
        println!("\n==== {stage}: left out, `losetup --find` finds no loop device (needs root)");
    }
    has
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_black_box_suite_is_run() {
        let program = include_str!("../../tests/main.rs");
        let modules = program.lines().filter_map(|line| line.strip_prefix("mod ")?.strip_suffix(';'));
        let mut found: Vec<&str> = modules.collect();
        let mut run = SUITES.map(|suite| suite.name).to_vec();
        found.sort_unstable();
        run.sort_unstable();
        assert_eq!(run, found);
    }
}
