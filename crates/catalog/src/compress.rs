//! `compress`: whole clusters that are written to a qcow2 image become compressed ones.

use std::sync::Arc;

use block::{Blame, Block, Error};
use filter::Compress;

use graph::drivers::{Below, Children, FilterDriver, MakeFilter, Role, difference};
use graph::options::entry::in_group;
use graph::options::{Entry, Group, Kind};

pub(super) const COMPRESS: FilterDriver = FilterDriver {
    name: "compress",
    is_snapshot: false,
    grows: true,
    children: Children::Named(&[Role::FILE]),
    specs: || OPTIONS.iter().map(Entry::spec).collect(),
    read: |_| Ok(Arc::new(Options)),
};

/// Nothing is said of it.
#[derive(Debug)]
struct Options;

const OPTIONS: &[Entry<Options>] = &in_group(
    Group::Filter("compress"),
    [Entry::part("file", Kind::File, "the disk: a qcow2 image").needed()],
);

impl MakeFilter for Options {
    fn first_difference(&self, other: &dyn MakeFilter) -> Option<String> {
        difference(self, other, |_, _| None)
    }

    fn make(&self, below: &dyn Below) -> Result<Arc<dyn Block>, Error> {
        let file = below.get("file")?;
        match below.compresses() {
            true => Ok(Arc::new(Compress::new(file))),
            false => {
                let what = format!("{} takes no compressed clusters; a qcow2 image does", file.driver());
                Err(Blame::new(file.name()).unsupported(what))
            }
        }
    }
}
