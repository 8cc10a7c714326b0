//! The smallest things that a crash keeps or drops.

use std::fmt;
use std::sync::Arc;

use crate::content::Content;
use crate::request::{IoKind, Part, Record, Request};

/// What of a request is meant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Aspect {
    /// The bytes (also of a punch).
    Bytes,
    /// The growth that came with them.
    Growth,
    /// A length that was set.
    Length,
}

/// One aspect of one open request: kept or dropped apart from everything else that is open.
#[derive(Clone, Debug)]
pub(crate) struct Atom {
    pub record: Arc<Record>,
    pub aspect: Aspect,
    pub part: Part,
}

impl Atom {
    /// The atoms of a request that is in flight or completed but covered by no flush.
    pub fn of(record: &Arc<Record>, part: &Part) -> Vec<Atom> {
        let atom = |aspect| Atom { record: Arc::clone(record), aspect, part: part.clone() };
        if *part == Part::None {
            return Vec::new();
        }
        let grows = record.request.grows_to().is_some_and(|end| end > record.length_before);
        let growth = grows.then(|| atom(Aspect::Growth));
        match record.request.kind() {
            IoKind::Write | IoKind::Zero | IoKind::Discard => {
                [atom(Aspect::Bytes)].into_iter().chain(growth).collect()
            }
            IoKind::Allocate => growth.into_iter().collect(),
            IoKind::Lengthen | IoKind::Shorten => vec![atom(Aspect::Length)],
            IoKind::Read | IoKind::Extent | IoKind::Flush => Vec::new(),
        }
    }

    /// Whether the device may write a part of it: sectors are whole, longer things are not.
    pub fn sectors_tearable(&self) -> u64 {
        match self.aspect {
            Aspect::Bytes if self.record.request.kind() != IoKind::Discard => self.record.request.sectors(),
            Aspect::Bytes | Aspect::Growth | Aspect::Length => 1,
        }
    }

    pub fn is_punch(&self) -> bool {
        matches!(self.record.request, Request::Discard { .. })
    }

    /// Lets it happen, or with `torn` that part of it.
    pub fn apply(&self, content: &mut Content, torn: Option<&Part>) {
        let part = torn.unwrap_or(&self.part);
        match self.aspect {
            Aspect::Bytes => self.record.request.apply_bytes(content, part),
            Aspect::Growth => content.grow(self.record.request.grows_to().unwrap_or(0)),
            Aspect::Length => self.record.request.apply_length(content),
        }
    }
}

impl fmt::Display for Atom {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.aspect {
            Aspect::Bytes | Aspect::Length => write!(f, "{}", self.record),
            Aspect::Growth => write!(f, "the growth by {}", self.record),
        }
    }
}
