//! What of the full tier a change reaches, by what depends on what, and how much of that there is time for.

use std::cmp::Reverse;
use std::collections::BTreeSet;
use std::fmt;

use super::suites::{SUITES, Suite};
use super::tier::FIRST_OF;
use crate::packages::{Built, Packages, is_within};

/// A part of the full tier that runs by itself.
#[derive(Clone, Copy, Debug)]
pub enum Part {
    /// One of so many parts of the engine's simulation: the first tier's, and what follows.
    Simulation {
        /// 1: all of it.
        of: u64,
    },
    /// All schedules of threads.
    Interleavings,
    /// All the time that made-up cases have.
    Fuzz,
    /// All of a black-box suite.
    Suite(&'static Suite),
}

/// Packages whose tests the parts are that are no black-box suites.
const ENGINE: [&str; 1] = ["crates/qcow2"];
const EXPLORED: [&str; 3] = ["crates/map-cache", "crates/qcow2", "crates/job"];
const FUZZED: [&str; 1] = ["fuzz"];

/// The package of the program that the black-box suites run, and their own.
const PROGRAM: &str = "crates/cowhand-cli";
const BLACK_BOX: &str = "tests";

/// What is built of everything: which versions, which flags.
const OF_ALL: [&str; 2] = ["Cargo.toml", "Cargo.lock"];

/// How far a change is from a part: the nearest parts run first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Distance {
    /// Its tests themselves, or what it is about.
    None,
    /// So many arrows from a package that it is about.
    Arrows(usize),
    /// So many arrows from the program, which every suite runs.
    Program(usize),
    /// Something that everything is built of.
    Everything,
}

/// A part that a change reaches.
#[derive(Clone, Copy, Debug)]
pub struct Reached {
    pub part: Part,
    distance: Distance,
}

/// What is run and what is left out, each in order.
#[derive(Debug, Default)]
pub struct Plan {
    pub run: Vec<Reached>,
    pub left_out: Vec<Reached>,
}

/// Seconds that all of the simulation takes beside black-box suites.
const SIMULATION_SECONDS: u64 = 1_250;

impl Part {
    /// Seconds that it takes on two processors, roughly.
    fn takes(self) -> u64 {
        match self {
            Self::Simulation { of } => SIMULATION_SECONDS.div_ceil(of),
            Self::Interleavings => 240,
            Self::Fuzz => 60,
            Self::Suite(suite) => suite.takes,
        }
    }

    /// As much of it as takes `seconds`, if that is more than the first tier has.
    fn within(self, seconds: u64) -> Option<Self> {
        let fitting = match self {
            Self::Simulation { of } => {
                Self::Simulation { of: of.max(SIMULATION_SECONDS.div_ceil(seconds.max(1))) }
            }
            other => other,
        };
        let is_more = !matches!(fitting, Self::Simulation { of } if of >= FIRST_OF);
        (is_more && fitting.takes() <= seconds).then_some(fitting)
    }

    /// Whether it only computes, and so runs beside the others.
    pub fn is_beside(self) -> bool {
        matches!(self, Self::Simulation { .. } | Self::Interleavings)
    }

    /// How far `files` are from it; none: they do not reach it.
    fn distance(self, files: &[&str], packages: &Packages) -> Option<Distance> {
        let by = |starts: &[&str]| arrows(starts, Built::Tests, files, packages).map(Distance::arrows);
        let distance = match self {
            Self::Simulation { .. } => by(&ENGINE),
            Self::Interleavings => by(&EXPLORED),
            Self::Fuzz => by(&FUZZED),
            Self::Suite(suite) => of_suite(suite, files, packages),
        };
        let everything = files.iter().any(|file| OF_ALL.contains(file)).then_some(Distance::Everything);
        distance.or(everything)
    }
}

impl Distance {
    fn arrows(count: usize) -> Self {
        if count == 0 { Self::None } else { Self::Arrows(count) }
    }
}

/// As [`Part::distance`].
fn of_suite(suite: &Suite, files: &[&str], packages: &Packages) -> Option<Distance> {
    let own = format!("{BLACK_BOX}/{}", suite.name);
    let is_own = |file: &str| is_within(file, &own) || file.strip_suffix(".rs") == Some(&own);
    let is_about = |file: &str| suite.about.iter().any(|about| is_within(file, about));
    if files.iter().any(|file| is_own(file) || is_about(file)) {
        return Some(Distance::None);
    }
    // A part of a crate counts as its crate; one of the program does not: every suite runs that.
    let package = |about: &&'static str| {
        packages.directory_of(about).filter(|package| *package != PROGRAM || package == about)
    };
    let about: Vec<&str> = suite.about.iter().filter_map(package).collect();
    let shared = |file: &&str| is_within(file, "tests/src") || *file == "tests/main.rs";
    let of_tests = files.iter().any(shared).then_some(Distance::Program(0));
    let by_arrows = arrows(&about, Built::Itself, files, packages).map(Distance::Arrows);
    let by_program = || arrows(&[PROGRAM], Built::Itself, files, packages).map(Distance::Program);
    by_arrows.or(of_tests).or_else(by_program)
}

/// The least number of arrows from what is built of one of the packages `starts` to one that has one of `files`.
fn arrows(starts: &[&str], built: Built, files: &[&str], packages: &Packages) -> Option<usize> {
    let changed: BTreeSet<&str> = files.iter().filter_map(|file| packages.directory_of(file)).collect();
    let of = |start: &&str| {
        let distances = packages.distances(start, built);
        changed.iter().filter_map(|package| distances.get(package).copied()).min()
    };
    starts.iter().filter_map(of).min()
}

/// What `files` reach, nearest first, as much as takes `seconds`; what runs beside the others has the same time once more.
pub fn plan(files: &[String], packages: &Packages, seconds: u64) -> Plan {
    let named = |file: &&str| SUITES.iter().any(|suite| suite.about.contains(file));
    let says_something = |file: &&str| !file.ends_with(".md") || named(file);
    let files: Vec<&str> = files.iter().map(String::as_str).filter(says_something).collect();
    let parts = [Part::Interleavings, Part::Simulation { of: 1 }, Part::Fuzz];
    let parts = SUITES.iter().map(Part::Suite).chain(parts);
    let reached = |part: Part| Some(Reached { part, distance: part.distance(&files, packages)? });
    let mut reached: Vec<Reached> = parts.filter_map(reached).collect();
    // What runs beside the others begins first.
    reached.sort_by_key(|reached| (Reverse(reached.part.is_beside()), reached.distance));
    let (mut plan, mut left, mut left_beside) = (Plan::default(), seconds, seconds);
    for reached in reached {
        let left = if reached.part.is_beside() { &mut left_beside } else { &mut left };
        match reached.part.within(*left) {
            Some(part) => {
                *left -= part.takes();
                plan.run.push(Reached { part, ..reached });
            }
            None => plan.left_out.push(reached),
        }
    }
    plan
}

impl fmt::Display for Part {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Simulation { of: 1 } => f.write_str("unit: tests of the engine, all of the simulation"),
            Self::Simulation { of } => write!(f, "unit: tests of the engine, 1/{of} of the simulation"),
            Self::Interleavings => f.write_str("interleavings: all schedules"),
            Self::Fuzz => f.write_str("fuzz: all the time for made-up cases"),
            Self::Suite(suite) => write!(f, "black box: {}", suite.name),
        }
    }
}

impl fmt::Display for Reached {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({})", self.part, self.distance)
    }
}

impl fmt::Display for Distance {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::None => f.write_str("changed itself"),
            Self::Arrows(0) => f.write_str("another part of its crate changed"),
            Self::Arrows(count) => write!(f, "built of what changed, {count} arrows away"),
            Self::Program(count) => write!(f, "runs the program, which is {count} arrows away"),
            Self::Everything => f.write_str("everything is built of what changed"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn packages() -> Packages {
        Packages::drawn(&[
            ("crates/memory", &[], &[]),
            ("crates/storage", &["crates/memory"], &[]),
            ("crates/sim", &["crates/storage"], &[]),
            ("crates/map-cache", &[], &[]),
            ("crates/job", &["crates/storage"], &[]),
            ("crates/qcow2", &["crates/storage", "crates/map-cache"], &["crates/sim"]),
            ("crates/door-fuse", &["crates/memory"], &[]),
            ("crates/cowhand-cli", &["crates/qcow2", "crates/door-fuse", "crates/job"], &[]),
            ("tests", &[], &[]),
            ("fuzz", &["crates/qcow2"], &[]),
            ("xtask", &["tests"], &[]),
        ])
    }

    /// What is planned for a change of these files, in order.
    fn of(files: &[&str], seconds: u64) -> (Vec<String>, Vec<String>) {
        let files: Vec<String> = files.iter().map(|&file| file.to_owned()).collect();
        let plan = plan(&files, &packages(), seconds);
        let names = |parts: &[Reached]| parts.iter().map(|reached| name(reached.part)).collect();
        (names(&plan.run), names(&plan.left_out))
    }

    fn name(part: Part) -> String {
        match part {
            Part::Suite(suite) => suite.name.to_owned(),
            other => format!("{other:?}"),
        }
    }

    const ENOUGH: u64 = 100_000;

    #[test]
    fn a_change_reaches_what_is_built_of_it_and_nothing_else() {
        let (run, left_out) = of(&["crates/sim/src/lib.rs"], ENOUGH);
        assert_eq!(
            (&run[..], left_out.len()),
            (&["Interleavings".to_owned(), "Simulation { of: 1 }".to_owned()][..], 0)
        );
        let (run, _) = of(&["crates/door-fuse/src/lib.rs"], ENOUGH);
        assert_eq!((&run[0][..], run.len()), ("fuse", SUITES.len()));
        let (run, _) = of(&["tests/fuse/data.rs"], ENOUGH);
        assert_eq!(run, ["fuse"]);
    }

    #[test]
    fn words_and_what_builds_reach_nothing_beyond_the_first_tier() {
        for file in ["docs/internals/testing.md", "crates/qcow2/README.md", "xtask/src/main.rs", ".ci/run"] {
            assert_eq!(of(&[file], ENOUGH), (vec![], vec![]), "{file}");
        }
        assert_eq!(of(&["README.md"], ENOUGH).0, ["serve"]);
    }

    #[test]
    fn what_everything_is_built_of_reaches_everything() {
        for file in OF_ALL {
            assert_eq!(of(&[file], ENOUGH).0.len(), SUITES.len() + 3, "{file}");
            // What else changed is still the nearest.
            let suites = of(&[file, "crates/door-fuse/src/lib.rs"], ENOUGH).0.split_off(2);
            assert_eq!(suites[0], "fuse", "{file}");
        }
    }

    #[test]
    fn the_nearest_run_while_there_is_time_and_the_others_are_named() {
        let (run, left_out) = of(&["crates/door-fuse/src/lib.rs"], 60);
        assert_eq!(run[0], "fuse");
        assert!(
            run.len() < SUITES.len() && run.len() + left_out.len() == SUITES.len(),
            "{run:?} {left_out:?}"
        );
        let takes: u64 =
            run.iter().filter_map(|name| super::super::suites::suite(name)).map(|s| s.takes).sum();
        assert!(takes <= 60, "{run:?}");
        // What only computes does not take the time of the suites.
        let (run, _) = of(&["crates/map-cache/src/lib.rs"], 600);
        assert_eq!(run[..2], ["Interleavings", "Simulation { of: 4 }"]);
        // Of the simulation no less than the first tier has.
        let (run, left_out) = of(&["crates/qcow2/src/lib.rs"], 360);
        assert_eq!(run[0], "Interleavings");
        assert!(left_out.contains(&"Simulation { of: 1 }".to_owned()), "{left_out:?}");
    }
}
