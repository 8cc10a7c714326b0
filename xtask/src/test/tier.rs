//! How much of everything a run looks at.

use std::process::Command;

/// What a run of the tests proves (docs/internals/testing.md, "Tiers").
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tier {
    /// For every commit: every law once, a tenth of what is searched by chance.
    First,
    /// Before an issue is resolved and before a release: everything.
    Full,
}

/// The first tier has one of so many parts of the simulation's seeds and states.
pub const FIRST_OF: u64 = 10;

/// Kills of each kind in the first tier: each cache mode once.
const KILLS: &str = "8";

impl Tier {
    /// What it is called.
    pub fn name(self) -> &'static str {
        match self {
            Self::First => "first tier",
            Self::Full => "full tier",
        }
    }

    /// Schedules of threads that are explored.
    pub fn interleavings(self) -> u64 {
        match self {
            Self::First => 6_000,
            Self::Full => 60_000,
        }
    }

    /// How long all fuzz targets together make up cases, beside the corpus.
    pub fn fuzz_seconds(self) -> u64 {
        match self {
            Self::First => 6,
            Self::Full => 60,
        }
    }

    /// Has `program`, tests, look at as much as this tier does. The full tier sets nothing: what is set by hand goes further than it.
    pub fn set(self, program: &mut Command) {
        if self == Self::First {
            set_simulation(program, FIRST_OF).env("COWHAND_KILL_ROUNDS", KILLS);
        }
    }
}

/// Has `program` simulate one of `of` parts of all seeds and states.
pub fn set_simulation(program: &mut Command, of: u64) -> &mut Command {
    if of == 1 { program } else { program.env("COWHAND_SIM_SCALE", format!("1/{of}")) }
}
