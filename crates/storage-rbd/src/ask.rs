//! What is asked of a worker, so that another one can be asked again.

use buffer::IoVec;
use storage::Repeatable;

use crate::message::Kind;

/// A request. Reads and writes fit into a slot.
#[derive(Clone, Debug)]
pub(crate) struct Ask {
    pub(crate) kind: Kind,
    pub(crate) offset: u64,
    /// Bytes of the image; of a change of size, its new length.
    pub(crate) len: u64,
    /// What is written.
    pub(crate) data: IoVec,
    /// A change that was acknowledged before, by another worker; or a flush of some of those.
    pub(crate) is_repeat: bool,
}

impl Ask {
    pub(crate) fn new(kind: Kind, offset: u64, len: u64) -> Self {
        Self { kind, offset, len, data: IoVec::new(), is_repeat: false }
    }

    pub(crate) fn write(offset: u64, data: IoVec) -> Self {
        Self { data: data.clone(), ..Self::new(Kind::Write, offset, data.len() as u64) }
    }

    /// Whether it is a change of the user's, which a flush makes durable. What a lost discard leaves is as good.
    pub(crate) fn is_to_be_flushed(&self) -> bool {
        matches!(self.kind, Kind::Write | Kind::Zero | Kind::ZeroKept) && !self.is_repeat
    }
}

impl Repeatable for Ask {
    fn offset(&self) -> u64 {
        self.offset
    }

    fn end(&self) -> u64 {
        self.offset.saturating_add(self.len)
    }

    fn payload_bytes(&self) -> u64 {
        self.data.len() as u64
    }

    fn replaces(&self) -> bool {
        matches!(self.kind, Kind::Write | Kind::Zero | Kind::ZeroKept)
    }

    fn repeated(self) -> Self {
        Self { is_repeat: true, ..self }
    }
}
