//! `copy-on-read`: what is read from below the uppermost image is kept in it.

use std::sync::Arc;

use block::{Blame, Block, Error};
use filter::CopyOnRead;

use graph::drivers::{Below, Children, FilterDriver, MakeFilter, Role, difference};
use graph::options::entry::{at, first_fixed_of, in_group, read_all};
use graph::options::{Entry, Group, Kind};

pub(super) const COPY_ON_READ: FilterDriver = FilterDriver {
    name: "copy-on-read",
    is_snapshot: false,
    grows: true,
    children: Children::Named(&[Role::FILE]),
    specs: || OPTIONS.iter().map(Entry::spec).collect(),
    read: |reader| {
        let mut options = Options { bottom: None };
        read_all(OPTIONS, reader, &mut options)?;
        Ok(Arc::new(options))
    },
};

/// What options say.
#[derive(Clone, Debug)]
struct Options {
    /// The lowest image whose data is copied.
    bottom: Option<String>,
}

const OPTIONS: &[Entry<Options>] = &in_group(
    Group::Filter("copy-on-read"),
    [
        Entry::part("file", Kind::File, "the disk").needed(),
        Entry::text(
            "bottom",
            at!(Options, bottom),
            "the node name of the lowest backing node whose data is copied",
        )
        .default_follows("none: of all images"),
    ],
);

impl MakeFilter for Options {
    fn first_difference(&self, other: &dyn MakeFilter) -> Option<String> {
        difference(self, other, |own, other| first_fixed_of(OPTIONS, own, other))
    }

    fn make(&self, below: &dyn Below) -> Result<Arc<dyn Block>, Error> {
        let file = below.get("file")?;
        let layers = match &self.bottom {
            None => None,
            Some(name) => Some(below.images_down_to(name).ok_or_else(|| {
                let what =
                    format!("option bottom is {name:?}; it must be the node name of an image of the disk");
                Blame::new(file.name()).invalid(what)
            })?),
        };
        Ok(Arc::new(CopyOnRead::new(file, layers)))
    }
}
