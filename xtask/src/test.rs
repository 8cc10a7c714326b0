//! `cargo xtask test`: everything that says whether the project is well.

use std::process::{Command, ExitCode};

use crate::beside::Beside;
use crate::interleave;
use crate::peers;
use crate::stage::Stages;
use crate::test_programs::TestPrograms;
use crate::tidy;
use crate::workspace::{binary, cargo};

/// Arguments of `cargo xtask test`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Only these suites: unit, interleavings, fuzz, or the name of a black-box suite (may be repeated) [default: all]
    #[arg(long, value_name = "SUITE")]
    only: Vec<String>,

    /// Which cases the fuzz targets and the property tests make up
    #[arg(long, value_name = "N", default_value_t = 0)]
    seed: u64,
}

impl Args {
    /// The same programs; their property tests make up the cases that were asked for.
    fn seeded(&self, mut programs: Vec<Command>) -> Vec<Command> {
        for program in &mut programs {
            program.env("PROPTEST_RNG_SEED", self.seed.to_string());
        }
        programs
    }
}

/// Every crate's own tests.
const UNIT: &str = "unit";

/// Schedules of the map cache and the engine, explored.
const INTERLEAVINGS: &str = "interleavings";

/// The black-box suites, quick ones first.
const SUITES: [&str; 35] = [
    "differential",
    "drop_in",
    "serve",
    "qmp",
    "throttle",
    "sandbox",
    "locks",
    "awaited_locks",
    "flushes",
    "faults",
    "space",
    "full_file_system",
    "trace",
    "bitmaps_file",
    "tools",
    "hostile",
    "matrix",
    MEDIA,
    "neighbours",
    "remote",
    "rbd",
    "radosgw",
    "cached",
    "uploads",
    "chunked",
    "pruned",
    "confined",
    "credentials",
    "far_tools",
    "under_faults",
    "kill",
    "vhost_user",
    "upgrade",
    "fuse",
    "guest",
];

/// The suite that is nothing without devices and mounts. Its tests run one at a time: mounting a file system looks at every device,
/// and while one with sectors larger than a page is looked at, the kernel may fail writes to it.
const MEDIA: &str = "media";

/// How long all fuzz targets together make up cases in every run, beside the corpus.
pub const FUZZ_SECONDS: u64 = 60;

/// Cases for everything that reads foreign bytes.
const FUZZ: &str = "fuzz";

/// Where they are.
const CORPUS: (&str, &str) = ("fuzz", "corpus");

/// The package of the black-box suites.
const BLACK_BOX: &str = "tests";

/// Runs it.
pub fn run(args: &Args) -> ExitCode {
    let known = |name: &str| [UNIT, INTERLEAVINGS, FUZZ].contains(&name) || SUITES.contains(&name);
    if let Some(unknown) = args.only.iter().find(|name| !known(name)) {
        eprintln!("unknown suite {unknown}; known: {UNIT}, {INTERLEAVINGS}, {FUZZ}, {}", SUITES.join(", "));
        return ExitCode::FAILURE;
    }
    let mut stages = Stages::default();
    stages.stage("tidy: what the tree says of itself", tidy::stage);
    let wanted = |name: &str| args.only.is_empty() || args.only.iter().any(|only| only == name);
    let programs =
        stages.making("build of the tests and the program, and what they compare with", build_beside_peers);
    if let Some(programs) = programs {
        run_built(args, &programs, &mut stages, wanted);
    }
    if stages.sum_up() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// Runs the tests that are `wanted`. Those that only compute run beside those that wait for programs, disks and time.
fn run_built(args: &Args, programs: &TestPrograms, stages: &mut Stages, wanted: impl Fn(&str) -> bool) {
    let beside = begin_computing(args, programs, stages, &wanted);
    if wanted(UNIT) {
        let examples = ["test", "--workspace", "--doc"];
        stages.command("unit: examples of the documentation", cargo().args(examples));
        let every = programs.all_but(&[BLACK_BOX], &[SIMULATIONS, CORPUS]);
        stages.programs("unit: tests of every crate", args.seeded(every));
    }
    if wanted(UNIT) && has_loop_devices("unit: block devices") {
        stages.tests("unit: block devices", programs.command("crates/storage", "all"), |tests| {
            tests.args(["device::", "--ignored"])
        });
    }
    if wanted(FUZZ) {
        stages.tests("fuzz: the corpus and made-up cases", programs.command(CORPUS.0, CORPUS.1), |tests| {
            tests
                .env("COWHAND_FUZZ_SECONDS", FUZZ_SECONDS.to_string())
                .env("COWHAND_FUZZ_SEED", args.seed.to_string())
        });
    }
    if args.only.is_empty() {
        stages.tests("black box: what the suites share", programs.library(BLACK_BOX), |tests| tests);
    }
    for suite in SUITES.into_iter().filter(|suite| wanted(suite)) {
        if suite == MEDIA && !has_loop_devices("black box: media") {
            continue;
        }
        stages.tests(&format!("black box: {suite}"), programs.suite(BLACK_BOX, "all", suite), |tests| {
            let alone = (suite == MEDIA).then_some("--test-threads=1");
            tests.args(alone).env("COWHAND_BIN", binary())
        });
    }
    stages.beside(beside);
}

/// Begins with the tests that only compute. Those of the engine run while the others are built, which takes one processor most of the time:
/// the engine is one large crate.
fn begin_computing(
    args: &Args,
    programs: &TestPrograms,
    stages: &mut Stages,
    wanted: impl Fn(&str) -> bool,
) -> Vec<Beside> {
    let mut beside = Vec::new();
    let mut begin = |name: &str, programs: Vec<Command>| {
        beside.push(Beside::begin(name.to_owned(), args.seeded(programs)));
    };
    if wanted(UNIT) {
        match programs.command(SIMULATIONS.0, SIMULATIONS.1) {
            Ok(engine) => begin("unit: tests of the engine", vec![engine]),
            Err(error) => {
                stages.stage("unit: tests of the engine", || Err(error));
            }
        }
    }
    if wanted(INTERLEAVINGS)
        && let Some(programs) = stages.making("interleavings: build", interleave::programs)
    {
        begin("interleavings: schedules of map cache and engine", programs);
    }
    beside
}

/// Builds the tests, and meanwhile makes sure that what they compare with is there: that waits for the network and for disks.
fn build_beside_peers() -> Result<TestPrograms, String> {
    std::thread::scope(|scope| {
        let peers = scope.spawn(|| peers::ensure().inspect_err(|missing| eprintln!("{missing}")));
        let programs = TestPrograms::build(&["--workspace"]);
        peers.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))?;
        programs
    })
}

/// The tests of the engine, most of which simulate: they take longer than those of all other crates.
const SIMULATIONS: (&str, &str) = ("crates/qcow2", "all");

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
        let mut run = SUITES.to_vec();
        found.sort_unstable();
        run.sort_unstable();
        assert_eq!(run, found);
    }
}
