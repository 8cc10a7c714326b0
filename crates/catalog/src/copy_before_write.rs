//! `copy-before-write` and `snapshot-access`: a running disk that can be read as it was at one moment.

use std::sync::Arc;
use std::time::Duration;

use block::{Blame, Block, Error};
use filter::{CopyBeforeWrite, OnError, Policy, SnapshotAccess};

use graph::drivers::{Alone, Below, BitmapName, Children, FilterDriver, MakeFilter, Role, difference};
use graph::options::entry::{at, choice_at, first_fixed_of, in_group, read_all};
use graph::options::{Entry, Group, Kind, OptionError};

const TARGET: Role = Role { name: "target", is_target: true, alone: Alone::Always, changes: false };

pub(super) const COPY_BEFORE_WRITE: FilterDriver = FilterDriver {
    name: "copy-before-write",
    is_snapshot: false,
    grows: false,
    // What is written beside it is lost to the snapshot.
    children: Children::Named(&[Role { alone: Alone::InUse, changes: false, ..Role::FILE }, TARGET]),
    specs: || OPTIONS.iter().map(Entry::spec).collect(),
    read: |reader| {
        let mut options = Options {
            on_error: OnError::BreakGuestWrite,
            timeout_s: 0,
            unit_bytes_min: 64 << 10,
            bitmap_node: None,
            bitmap_name: None,
        };
        read_all(OPTIONS, reader, &mut options)?;
        if options.bitmap_node.is_some() != options.bitmap_name.is_some() {
            let (option, other) = ("bitmap.node".to_owned(), "bitmap.name".to_owned());
            return Err(OptionError::Conflict { option, other, rule: "one needs the other" });
        }
        Ok(Arc::new(options))
    },
};

pub(super) const SNAPSHOT_ACCESS: FilterDriver = FilterDriver {
    name: "snapshot-access",
    is_snapshot: true,
    grows: false,
    children: Children::Named(&[Role { changes: false, ..Role::FILE }]),
    specs: || ACCESS_OPTIONS.iter().map(Entry::spec).collect(),
    read: |_| Ok(Arc::new(Access)),
};

const ON_ERROR: [(&str, OnError); 2] =
    [("break-guest-write", OnError::BreakGuestWrite), ("break-snapshot", OnError::BreakSnapshot)];

/// What options say.
#[derive(Clone, Debug)]
struct Options {
    on_error: OnError,
    timeout_s: u32,
    unit_bytes_min: u64,
    bitmap_node: Option<String>,
    bitmap_name: Option<String>,
}

const OPTIONS: &[Entry<Options>] = &in_group(
    Group::Filter("copy-before-write"),
    [
        Entry::part("file", Kind::File, "the disk").needed(),
        Entry::part("target", Kind::File, "where what is about to be overwritten is copied").needed(),
        Entry::choice(
            "on-cbw-error",
            choice_at!(Options, ON_ERROR, on_error),
            "what breaks when it cannot be copied",
        )
        .default("break-guest-write"),
        Entry::whole(
            "cbw-timeout",
            at!(Options, timeout_s),
            "seconds after which a copy has failed; 0: none",
        )
        .default("0"),
        Entry::size(
            "min-cluster-size",
            at!(Options, unit_bytes_min),
            "bytes that are copied together at least: a power of two",
        )
        .default("64k"),
        Entry::text("bitmap.node", at!(Options, bitmap_node), "the node that has `bitmap.name`")
            .default_follows("none"),
        Entry::text(
            "bitmap.name",
            at!(Options, bitmap_name),
            "the dirty bitmap that says what is copied; of the rest there is no snapshot",
        )
        .default_follows("none: everything is copied"),
    ],
);

const ACCESS_OPTIONS: &[Entry<Access>] = &in_group(
    Group::Filter("snapshot-access"),
    [Entry::part("file", Kind::File, "the copy-before-write filter").needed()],
);

/// Bytes of a unit at most: what a guest's write may have to wait for.
const UNIT_BYTES_MAX: u64 = 64 << 20;

impl MakeFilter for Options {
    fn first_difference(&self, other: &dyn MakeFilter) -> Option<String> {
        difference(self, other, |own, other| first_fixed_of(OPTIONS, own, other))
    }

    fn bitmap(&self) -> Option<BitmapName<'_>> {
        Some(BitmapName { node: self.bitmap_node.as_deref()?, name: self.bitmap_name.as_deref()? })
    }

    fn make(&self, below: &dyn Below) -> Result<Arc<dyn Block>, Error> {
        if let (Some(bitmap), None) = (self.bitmap(), below.marked()) {
            let what = format!("option bitmap.node names {:?}, and there are no nodes here", bitmap.node);
            return Err(Blame::new(self::COPY_BEFORE_WRITE.name).invalid(what));
        }
        let unit_bytes_min = self.unit_bytes_min.max(1);
        if !unit_bytes_min.is_power_of_two() || unit_bytes_min > UNIT_BYTES_MAX {
            let what =
                format!("option min-cluster-size is {unit_bytes_min}; allowed: a power of two, at most 64M");
            return Err(Blame::new(self::COPY_BEFORE_WRITE.name).invalid(what));
        }
        let timeout = (self.timeout_s > 0).then(|| Duration::from_secs(self.timeout_s.into()));
        let policy = Policy { on_error: self.on_error, timeout, unit_bytes_min };
        Ok(Arc::new(CopyBeforeWrite::new(below.get("file")?, below.get("target")?, policy, below.marked())?))
    }
}

/// Nothing is said of it.
#[derive(Debug)]
struct Access;

impl MakeFilter for Access {
    fn first_difference(&self, other: &dyn MakeFilter) -> Option<String> {
        difference(self, other, |_, _| None)
    }

    fn make(&self, below: &dyn Below) -> Result<Arc<dyn Block>, Error> {
        Ok(Arc::new(SnapshotAccess::new(&below.get("file")?)?))
    }
}
