//! Metadata contexts: what BLOCK_STATUS can be asked about ("Metadata querying").

use crate::nbd::cursor::Cursor;
use crate::nbd::export::ExportInfo;
use crate::nbd::limits::CONTEXTS_SELECTED_MAX;
use crate::nbd::{ErrorCode, limits};

/// `base:allocation`: no space is reserved for the extent.
pub const ALLOCATION_HOLE: u64 = 1;
/// `base:allocation`: the extent reads as zeroes.
pub const ALLOCATION_ZERO: u64 = 2;
/// `qemu:dirty-bitmap:NAME`: the extent is dirty.
pub const BITMAP_DIRTY: u64 = 1;

/// Names a selected context in requests and replies of one connection.
pub type ContextId = u32;

/// A kind of knowledge about extents.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Context {
    /// `base:allocation`: hole, zero.
    Allocation,
    /// `qemu:allocation-depth`: which layer of a chain holds the bytes; 0 none, 1 the top.
    AllocationDepth,
    /// `qemu:dirty-bitmap:NAME`.
    Bitmap(String),
}

impl Context {
    /// The name on the wire.
    pub fn name(&self) -> String {
        match self {
            Context::Allocation => "base:allocation".into(),
            Context::AllocationDepth => "qemu:allocation-depth".into(),
            Context::Bitmap(bitmap) => format!("qemu:dirty-bitmap:{bitmap}"),
        }
    }

    /// The context that `export` offers under exactly this name.
    pub fn find(name: &[u8], export: &ExportInfo) -> Option<Context> {
        match name {
            b"base:allocation" => Some(Context::Allocation),
            b"qemu:allocation-depth" => export.allocation_depth.then_some(Context::AllocationDepth),
            other => {
                let wanted = other.strip_prefix(b"qemu:dirty-bitmap:")?;
                let bitmap = export.bitmaps.iter().find(|bitmap| bitmap.as_bytes() == wanted)?;
                Some(Context::Bitmap(bitmap.clone()))
            }
        }
    }

    /// Whether the query of a LIST_META_CONTEXT means this context: its name, its namespace
    /// (`base:`, `qemu:`), or a namespace's leaf group (`qemu:dirty-bitmap:`).
    pub fn listed_by(&self, query: &[u8]) -> bool {
        let group: &[u8] = match self {
            Context::Allocation => b"base:",
            Context::AllocationDepth => b"qemu:",
            Context::Bitmap(_) if query == b"qemu:dirty-bitmap:" => return true,
            Context::Bitmap(_) => b"qemu:",
        };
        query == group || query == self.name().as_bytes()
    }

    /// Everything that `export` offers.
    pub fn offered(export: &ExportInfo) -> impl Iterator<Item = Context> + '_ {
        let depth = export.allocation_depth.then_some(Context::AllocationDepth);
        let bitmaps = export.bitmaps.iter().cloned().map(Context::Bitmap);
        std::iter::once(Context::Allocation).chain(depth).chain(bitmaps)
    }
}

/// A context that a client has selected, and the id both sides call it by.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Selected {
    /// In requests and replies.
    pub id: ContextId,
    /// What is asked.
    pub context: Context,
}

/// The payload of an extended BLOCK_STATUS: which of the selected contexts are asked about.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BlockStatusFilter {
    /// How many bytes from the request's offset on are asked about.
    pub len: u64,
    /// The contexts, each once.
    pub ids: Vec<ContextId>,
}

impl BlockStatusFilter {
    /// Reads the payload; every id must be among `selected`, none twice, and there must be one.
    pub fn decode(payload: &[u8], selected: &[Selected]) -> Result<Self, ErrorCode> {
        let mut cursor = Cursor::new(payload);
        let len = cursor.u64().map_err(|_| ErrorCode::Inval)?;
        let (ids, rest) = cursor.rest().as_chunks::<4>();
        if !rest.is_empty() || ids.is_empty() || ids.len() > CONTEXTS_SELECTED_MAX {
            return Err(ErrorCode::Inval);
        }
        let mut filter = BlockStatusFilter { len, ids: Vec::with_capacity(ids.len()) };
        for id in ids.iter().copied().map(ContextId::from_be_bytes) {
            if filter.ids.contains(&id) || !selected.iter().any(|context| context.id == id) {
                return Err(ErrorCode::Inval);
            }
            filter.ids.push(id);
        }
        Ok(filter)
    }

    /// The payload's bytes.
    pub fn encode(&self) -> Vec<u8> {
        debug_assert!(self.ids.len() <= limits::CONTEXTS_SELECTED_MAX);
        let ids = self.ids.iter().flat_map(|id| id.to_be_bytes());
        self.len.to_be_bytes().into_iter().chain(ids).collect()
    }
}
