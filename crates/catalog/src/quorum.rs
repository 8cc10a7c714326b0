//! `quorum`: several disks with the same content, read by vote.

use std::sync::Arc;

use block::{Blame, Block, Error};
use filter::{Quorum, Reading, Rules};

use graph::drivers::{Alone, Below, Children, FilterDriver, MakeFilter, Role, difference};
use graph::options::entry::{at, choice_at, first_fixed_of, in_group, read_all};
use graph::options::{Entry, Group, Kind};

pub(super) const QUORUM: FilterDriver = FilterDriver {
    name: "quorum",
    is_snapshot: false,
    grows: true,
    children: Children::List { option: "children", roles: &ROLES },
    specs: || OPTIONS.iter().map(Entry::spec).collect(),
    read: |reader| {
        let mut options = Options::default();
        read_all(OPTIONS, reader, &mut options)?;
        Ok(Arc::new(options))
    },
};

// What is written to one of them alone makes them differ. A read takes memory for each of them, so their number is bounded.
const ROLES: [Role; 16] = {
    const fn child(name: &'static str) -> Role {
        Role { name, is_target: false, alone: Alone::Always, changes: false }
    }
    [
        child("children.0"),
        child("children.1"),
        child("children.2"),
        child("children.3"),
        child("children.4"),
        child("children.5"),
        child("children.6"),
        child("children.7"),
        child("children.8"),
        child("children.9"),
        child("children.10"),
        child("children.11"),
        child("children.12"),
        child("children.13"),
        child("children.14"),
        child("children.15"),
    ]
};

/// How it is read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Pattern {
    #[default]
    Quorum,
    Fifo,
}

const PATTERNS: [(&str, Pattern); 2] = [("quorum", Pattern::Quorum), ("fifo", Pattern::Fifo)];

/// What options say.
#[derive(Clone, Debug, Default)]
struct Options {
    threshold: u32,
    verify: bool,
    rewrite: bool,
    pattern: Pattern,
}

const OPTIONS: &[Entry<Options>] = &in_group(
    Group::Filter("quorum"),
    [
        Entry::part("children", Kind::List, "the disks, 1 to 16, as children.0.file=PATH").needed(),
        Entry::whole("vote-threshold", at!(Options, threshold), "disks that must agree").needed(),
        Entry::switch(
            "blkverify",
            at!(Options, verify),
            "two disks, and each difference is an error: vote-threshold must be 2",
        ),
        Entry::switch(
            "rewrite-corrupted",
            at!(Options, rewrite),
            "a disk that reads otherwise than the most is written with what they read",
        ),
        Entry::choice(
            "read-pattern",
            choice_at!(Options, PATTERNS, pattern),
            "all disks are read and vote, or the first one that can be read",
        )
        .default("quorum"),
    ],
);

impl MakeFilter for Options {
    fn first_difference(&self, other: &dyn MakeFilter) -> Option<String> {
        difference(self, other, |own, other| first_fixed_of(OPTIONS, own, other))
    }

    fn make(&self, below: &dyn Below) -> Result<Arc<dyn Block>, Error> {
        let (disks, threshold) = (below.all(), self.threshold as usize);
        let votes = self.pattern == Pattern::Quorum;
        if votes && self.verify && (disks.len(), threshold) != (2, 2) {
            let found = disks.len();
            let what = format!(
                "option blkverify is for 2 disks and vote-threshold 2; found: {found} and {threshold}"
            );
            return Err(Blame::new(QUORUM.name).invalid(what));
        }
        let reading = match self.pattern {
            Pattern::Quorum => Reading::Vote { rewrite: self.rewrite },
            Pattern::Fifo => Reading::Fifo,
        };
        Ok(Arc::new(Quorum::new(disks, Rules { threshold, reading })?))
    }
}
