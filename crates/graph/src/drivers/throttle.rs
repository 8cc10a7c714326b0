//! `throttle`: the disk below is in a throttle group. Over a plain disk it is no layer of its own: limits are charged at the disk's front. Over anything
//! else it is a disk that does nothing but that.

use std::sync::Arc;

use block::{Block, Error};

use super::filter::{
    Below, Children, FilterDriver, MakeFilter, Role, THROTTLE_GROUP, THROTTLE_NAME, difference,
};
use crate::options::entry::{at, first_fixed_of, in_group, read_all};
use crate::options::{Entry, Group, Kind};

/// The filter by itself.
pub(crate) const THROTTLE: FilterDriver = FilterDriver {
    name: THROTTLE_NAME,
    is_snapshot: false,
    grows: true,
    children: Children::Named(&[Role::FILE]),
    specs: || OPTIONS.iter().map(Entry::spec).collect(),
    read: |reader| {
        let mut options = Options { group: None };
        read_all(OPTIONS, reader, &mut options)?;
        Ok(Arc::new(options))
    },
};

/// What options say.
#[derive(Clone, Debug)]
struct Options {
    group: Option<String>,
}

const OPTIONS: &[Entry<Options>] = &in_group(
    Group::Filter(THROTTLE_NAME),
    [
        Entry::part("file", Kind::File, "the disk").needed(),
        Entry::text(THROTTLE_GROUP, at!(Options, group), "the id of the throttle group")
            .default_follows("none"),
    ],
);

impl MakeFilter for Options {
    fn first_difference(&self, other: &dyn MakeFilter) -> Option<String> {
        difference(self, other, |own, other| first_fixed_of(OPTIONS, own, other))
    }

    fn group(&self) -> Option<&str> {
        self.group.as_deref()
    }

    fn make(&self, below: &dyn Below) -> Result<Arc<dyn Block>, Error> {
        below.get("file")
    }
}
