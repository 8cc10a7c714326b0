//! `blkverify`: a disk under test is compared with another one at each read.

use std::sync::Arc;

use block::{Block, Error};
use filter::Blkverify;

use graph::drivers::{Alone, Below, Children, FilterDriver, MakeFilter, Role, difference};
use graph::options::entry::in_group;
use graph::options::{Entry, Group, Kind};

// What is written to one of them alone makes them differ.
const TEST: Role = Role { name: "test", is_target: false, alone: Alone::Always, changes: false };
const RAW: Role = Role { name: "raw", ..TEST };

pub(super) const BLKVERIFY: FilterDriver = FilterDriver {
    name: "blkverify",
    is_snapshot: false,
    grows: false,
    children: Children::Named(&[TEST, RAW]),
    specs: || OPTIONS.iter().map(Entry::spec).collect(),
    read: |_| Ok(Arc::new(Options)),
};

/// Nothing is said of it.
#[derive(Debug)]
struct Options;

const OPTIONS: &[Entry<Options>] = &in_group(
    Group::Filter("blkverify"),
    [
        Entry::part("test", Kind::File, "the disk under test").needed(),
        Entry::part("raw", Kind::File, "what it must read as, and gets the same writes").needed(),
    ],
);

impl MakeFilter for Options {
    fn first_difference(&self, other: &dyn MakeFilter) -> Option<String> {
        difference(self, other, |_, _| None)
    }

    fn make(&self, below: &dyn Below) -> Result<Arc<dyn Block>, Error> {
        Ok(Arc::new(Blkverify::new(below.get("test")?, below.get("raw")?)?))
    }
}
