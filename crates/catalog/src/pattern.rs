//! `pattern`, for tests: storage in memory that holds one byte everywhere. It is here, and on one line of the list of drivers.

use std::any::Any;
use std::io;
use std::sync::Arc;

use storage::{IoFuture, MemoryStorage, Storage};

use graph::drive::{Entry as Given, OptionTree};
use graph::drivers::{Access, Elsewhere, StorageDriver, StorageKind, Target};
use graph::options::entry::{at, first_fixed_of, in_group, read_all};
use graph::options::{Entry, Group, OptionError, Reader, Spec};

pub(super) const PATTERN: StorageDriver = StorageDriver {
    name: "pattern",
    prefixes: &["pattern:"],
    kind: StorageKind::Elsewhere(Elsewhere {
        specs,
        options_of,
        shown: str::to_owned,
        read,
        is_within_process: false,
    }),
};

#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Pattern {
    /// `length`, in bytes.
    length: u64,
    /// `every`: the byte.
    every: u64,
}

const OPTIONS: &[Entry<Pattern>] = &in_group(
    Group::Storage("pattern"),
    [
        Entry::size("length", at!(Pattern, length), "its bytes").default("0"),
        Entry::size("every", at!(Pattern, every), "what each of them is").default("0"),
    ],
);

fn specs() -> Vec<&'static Spec> {
    OPTIONS.iter().map(Entry::spec).collect()
}

/// `pattern:LENGTH/BYTE`
fn options_of(name: &str) -> Result<OptionTree, String> {
    let allowed = || "pattern:LENGTH/BYTE".to_owned();
    let (length, every) =
        name.strip_prefix("pattern:").and_then(|rest| rest.split_once('/')).ok_or_else(allowed)?;
    let mut tree = OptionTree::default();
    for (name, value) in [("length", length), ("every", every)] {
        tree.insert(name, Given::Value(value.into())).map_err(|_| allowed())?;
    }
    Ok(tree)
}

fn read(reader: &mut Reader) -> Result<Arc<dyn Target>, OptionError> {
    let mut pattern = Pattern::default();
    read_all(OPTIONS, reader, &mut pattern)?;
    Ok(Arc::new(pattern))
}

impl Target for Pattern {
    fn name(&self) -> String {
        format!("pattern:{}/{}", self.length, self.every)
    }

    fn first_difference(&self, other: &dyn Target) -> Option<String> {
        match (other as &dyn Any).downcast_ref() {
            Some(other) => first_fixed_of(OPTIONS, self, other),
            None => Some("file.driver".to_owned()),
        }
    }

    fn open(&self, access: Access) -> IoFuture<'_, io::Result<Arc<dyn Storage>>> {
        Box::pin(async move {
            if access.writable {
                return Err(io::Error::new(io::ErrorKind::ReadOnlyFilesystem, "a pattern is only read"));
            }
            let bytes = vec![self.every as u8; self.length as usize];
            Ok(Arc::new(MemoryStorage::from_bytes(&bytes)) as Arc<dyn Storage>)
        })
    }
}
