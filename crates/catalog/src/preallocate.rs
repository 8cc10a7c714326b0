//! `preallocate`: a file that gets room ahead of what is written, in large steps, and gives back what is left when it is closed.

mod storage;
#[cfg(test)]
mod tests;

use std::any::Any;
use std::io;
use std::sync::Arc;

use ::storage::Storage;
use block::SECTOR_BYTES;

use self::storage::Preallocate;
use graph::drive::OptionTree;
use graph::drivers::{Over, StorageDriver, StorageKind, Wrap};
use graph::options::entry::{at, first_fixed_of, in_group, read_all};
use graph::options::{Entry, Group, Kind, OptionError, Reader, Spec};

pub(super) const PREALLOCATE: StorageDriver = StorageDriver {
    name: "preallocate",
    prefixes: &[],
    kind: StorageKind::Over(Over { child: "file", specs, options_of, read }),
};

/// What options say.
#[derive(Clone, Copy, Debug)]
struct Options {
    /// `prealloc-align`: what lengths of the file are multiples of, in bytes.
    align: u64,
    /// `prealloc-size`: how much is reserved behind a write, in bytes.
    size: u64,
}

/// QEMU's.
const DEFAULTS: Options = Options { align: 1 << 20, size: 128 << 20 };

const OPTIONS: &[Entry<Options>] = &in_group(
    Group::Storage("preallocate"),
    [
        Entry::part("file", Kind::File, "the file below").needed(),
        Entry::size("prealloc-align", at!(Options, align), "lengths of the file are multiples of this")
            .multiple_of(SECTOR_BYTES)
            .default("1M"),
        Entry::size("prealloc-size", at!(Options, size), "bytes reserved behind a write that needs room")
            .default("128M"),
    ],
);

fn specs() -> Vec<&'static Spec> {
    OPTIONS.iter().map(Entry::spec).collect()
}

/// No file name means it.
fn options_of(_name: &str) -> Result<OptionTree, String> {
    Err("none; the file below is given as file.file.filename".to_owned())
}

fn read(reader: &mut Reader) -> Result<Arc<dyn Wrap>, OptionError> {
    let mut options = DEFAULTS;
    read_all(OPTIONS, reader, &mut options)?;
    options.align = options.align.max(SECTOR_BYTES);
    Ok(Arc::new(options))
}

impl Wrap for Options {
    fn first_difference(&self, other: &dyn Wrap) -> Option<String> {
        match (other as &dyn Any).downcast_ref::<Self>() {
            Some(other) => first_fixed_of(OPTIONS, self, other),
            None => Some("file.driver".to_owned()),
        }
    }

    fn wrap(&self, below: Arc<dyn Storage>) -> io::Result<Arc<dyn Storage>> {
        Ok(Arc::new(Preallocate::new(below, self.align, self.size)))
    }
}
