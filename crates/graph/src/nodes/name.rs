//! What a node is called, and what it may be called.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;

use super::error::NodeError;

/// What a node is called now. All copies are one name: it follows the disk, which has the name of its uppermost image.
#[derive(Clone, Debug)]
pub struct NodeName(Arc<Mutex<String>>);

impl NodeName {
    pub(super) fn new(name: String) -> Self {
        Self(Arc::new(Mutex::new(name)))
    }

    /// The name of this moment.
    pub fn get(&self) -> String {
        self.0.lock().clone()
    }

    pub(super) fn is(&self, name: &str) -> bool {
        *self.0.lock() == name
    }

    pub(super) fn set(&self, name: String) {
        let mut now = self.0.lock();
        Renames::one_more();
        *now = name;
    }
}

/// Changes of names of nodes that there are, and of their parts, up to a moment: while none comes, what is known of names holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Renames(u64);

static RENAMES: AtomicU64 = AtomicU64::new(0);

impl Renames {
    /// Up to now.
    pub(super) fn now() -> Self {
        Self(RENAMES.load(Ordering::Acquire))
    }

    /// Counts a change of a name. The caller has the lock under which the name is read.
    pub(super) fn one_more() {
        RENAMES.fetch_add(1, Ordering::AcqRel);
    }
}

/// Makes the names of nodes without one; copies go on where the others are. A user's names cannot begin with `#`.
#[derive(Clone, Debug, Default)]
pub struct MadeNames(Arc<AtomicU64>);

impl MadeNames {
    /// One that was not made before.
    pub(crate) fn next(&self) -> String {
        format!("#block{:03}", self.0.fetch_add(1, Ordering::Relaxed))
    }

    /// Whether it is one of these.
    pub(crate) fn is_made(name: &str) -> bool {
        name.starts_with('#')
    }
}

/// Bytes of a node's name at most, as in QEMU.
pub(super) const NAME_BYTES_MAX: usize = 31;

/// A name that a user may give to a node: QEMU's rule.
pub(super) fn check_node_name(name: &str) -> Result<(), NodeError> {
    let plain = |c: char| c.is_ascii_alphanumeric() || "-._".contains(c);
    let begins = name.starts_with(|c: char| c.is_ascii_alphabetic());
    if begins && name.len() <= NAME_BYTES_MAX && name.chars().all(plain) {
        return Ok(());
    }
    Err(NodeError::BadName { name: name.to_owned() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_node_name_begins_with_a_letter_and_is_short() {
        for name in ["a", "disk-0.x_y", &"a".repeat(31)] {
            assert!(check_node_name(name).is_ok(), "{name}");
        }
        for name in ["", "0a", "#block000", "a b", "ä", &"a".repeat(32)] {
            assert!(check_node_name(name).is_err(), "{name}");
        }
    }
}
