//! Replies as a server sends them ("Simple reply message", "Structured reply chunk message",
//! "Extended reply chunk message").

use crate::nbd::chunk::{
    CHUNK_BLOCK_STATUS, CHUNK_BLOCK_STATUS_EXT, CHUNK_ERROR, CHUNK_ERROR_OFFSET, CHUNK_NONE,
    CHUNK_OFFSET_DATA, CHUNK_OFFSET_HOLE, EXTENDED_REPLY_MAGIC, FLAG_DONE, SIMPLE_REPLY_MAGIC,
    STRUCTURED_REPLY_MAGIC,
};
use crate::nbd::limits::{EXTENTS_MAX, STRING_BYTES_MAX};
use crate::nbd::put::{Put, Short, cut, len_u32};
use crate::nbd::{ContextId, Dialect, ErrorCode};

/// Longest fixed part of a reply in bytes, over all dialects: an extended header and the offset or
/// numbers that open its payload.
pub const REPLY_HEAD_BYTES_MAX: usize = 48;

/// The encoded fixed part of a reply; whole unless data, descriptors or a message follow.
pub type ReplyBytes = Short<REPLY_HEAD_BYTES_MAX>;

/// An extent as BLOCK_STATUS reports it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Descriptor {
    /// Bytes, at least 1.
    pub len: u64,
    /// What they are; the context says what the bits mean.
    pub flags: u64,
}

/// What opens a chunk.
struct ChunkHeader {
    cookie: u64,
    /// Where the request began: the extended dialect repeats it.
    offset: u64,
    kind: u16,
    /// The last chunk of its reply.
    done: bool,
    payload_bytes: u64,
}

impl ChunkHeader {
    fn put(&self, dialect: Dialect, out: &mut impl Put) {
        let flags = if self.done { FLAG_DONE } else { 0 };
        if dialect == Dialect::Extended {
            out.put_u32(EXTENDED_REPLY_MAGIC);
            out.put_u16(flags);
            out.put_u16(self.kind);
            out.put_u64(self.cookie);
            out.put_u64(self.offset);
            out.put_u64(self.payload_bytes);
        } else {
            out.put_u32(STRUCTURED_REPLY_MAGIC);
            out.put_u16(flags);
            out.put_u16(self.kind);
            out.put_u64(self.cookie);
            debug_assert!(u32::try_from(self.payload_bytes).is_ok());
            out.put_u32(u32::try_from(self.payload_bytes).unwrap_or(u32::MAX));
        }
    }

    /// The header and the place in the disk that opens its payload.
    fn with_place(&self, dialect: Dialect, at: u64) -> ReplyBytes {
        let mut out = ReplyBytes::new();
        self.put(dialect, &mut out);
        out.put_u64(at);
        out
    }
}

fn put_simple(out: &mut impl Put, cookie: u64, error: u32) {
    out.put_u32(SIMPLE_REPLY_MAGIC);
    out.put_u32(error);
    out.put_u64(cookie);
}

/// Success of a request other than a read or a block status.
pub fn done_reply(dialect: Dialect, cookie: u64, offset: u64) -> ReplyBytes {
    let mut out = ReplyBytes::new();
    if dialect == Dialect::Extended {
        ChunkHeader { cookie, offset, kind: CHUNK_NONE, done: true, payload_bytes: 0 }.put(dialect, &mut out);
    } else {
        // Shorter than a chunk and as legal ("Simple reply message": any reply without payload).
        put_simple(&mut out, cookie, 0);
    }
    out
}

/// What goes before the `len` data bytes of a successful read at `offset`: the reply's only chunk.
pub fn read_head(dialect: Dialect, cookie: u64, offset: u64, len: u32) -> ReplyBytes {
    let mut out = ReplyBytes::new();
    if dialect == Dialect::Simple {
        put_simple(&mut out, cookie, 0);
    } else if len == 0 {
        // A data chunk has at least one byte ("Structured reply types").
        ChunkHeader { cookie, offset, kind: CHUNK_NONE, done: true, payload_bytes: 0 }.put(dialect, &mut out);
    } else {
        return part_head(dialect, (cookie, offset), offset, len, true);
    }
    out
}

/// What goes before `len` data bytes at `at` of a read at `offset` that is answered in several chunks, of which the last is `done`. Not for
/// [`Dialect::Simple`].
pub fn part_head(
    dialect: Dialect,
    (cookie, offset): (u64, u64),
    at: u64,
    len: u32,
    done: bool,
) -> ReplyBytes {
    let payload_bytes = 8 + u64::from(len);
    let header = ChunkHeader { cookie, offset, kind: CHUNK_OFFSET_DATA, done, payload_bytes };
    header.with_place(dialect, at)
}

/// The chunk for `len` zeroes at `at` of such a read.
pub fn part_hole(
    dialect: Dialect,
    (cookie, offset): (u64, u64),
    at: u64,
    len: u32,
    done: bool,
) -> ReplyBytes {
    let header = ChunkHeader { cookie, offset, kind: CHUNK_OFFSET_HOLE, done, payload_bytes: 12 };
    let mut out = header.with_place(dialect, at);
    out.put_u32(len);
    out
}

/// The whole reply to a read of `len` bytes at `offset` that are all zero. Not for
/// [`Dialect::Simple`], which has no holes: `None` there, and for an empty read.
pub fn hole_reply(dialect: Dialect, cookie: u64, offset: u64, len: u32) -> Option<ReplyBytes> {
    let has_holes = dialect != Dialect::Simple && len > 0;
    has_holes.then(|| part_hole(dialect, (cookie, offset), offset, len, true))
}

/// Appends the whole reply to a request at `offset` that failed; `at` is where, if it is known;
/// `message` is for humans and left out where the dialect has no place for it.
pub fn error_reply(
    out: &mut Vec<u8>,
    dialect: Dialect,
    (cookie, offset): (u64, u64),
    code: ErrorCode,
    message: &str,
    at: Option<u64>,
) {
    if dialect == Dialect::Simple {
        return put_simple(out, cookie, code.to_wire());
    }
    let message = cut(message, STRING_BYTES_MAX).as_bytes();
    let kind = if at.is_some() { CHUNK_ERROR_OFFSET } else { CHUNK_ERROR };
    let payload_bytes = u64::from(6 + len_u32(message) + if at.is_some() { 8 } else { 0 });
    ChunkHeader { cookie, offset, kind, done: true, payload_bytes }.put(dialect, out);
    out.put_u32(code.to_wire());
    out.put_u16(u16::try_from(message.len()).unwrap_or(0));
    out.put(message);
    if let Some(at) = at {
        out.put_u64(at);
    }
}

/// Appends one context's part of the reply to a BLOCK_STATUS at `offset`; `done` on the last
/// context. There is at least one descriptor and at most [`EXTENTS_MAX`]. The structured dialect
/// has 32 bits for a length, which a request of that dialect cannot exceed, and for the flags.
pub fn block_status(
    out: &mut Vec<u8>,
    dialect: Dialect,
    (cookie, offset): (u64, u64),
    (context, done): (ContextId, bool),
    descriptors: &[Descriptor],
) {
    debug_assert!(!descriptors.is_empty() && descriptors.len() <= EXTENTS_MAX);
    let count = u32::try_from(descriptors.len()).unwrap_or(u32::MAX);
    if dialect == Dialect::Extended {
        let payload_bytes = 8 + 16 * u64::from(count);
        ChunkHeader { cookie, offset, kind: CHUNK_BLOCK_STATUS_EXT, done, payload_bytes }.put(dialect, out);
        out.put_u32(context);
        out.put_u32(count);
        for descriptor in descriptors {
            out.put_u64(descriptor.len);
            out.put_u64(descriptor.flags);
        }
    } else {
        let payload_bytes = 4 + 8 * u64::from(count);
        ChunkHeader { cookie, offset, kind: CHUNK_BLOCK_STATUS, done, payload_bytes }.put(dialect, out);
        out.put_u32(context);
        for descriptor in descriptors {
            debug_assert!(u32::try_from(descriptor.len).is_ok());
            out.put_u32(u32::try_from(descriptor.len).unwrap_or(u32::MAX));
            out.put_u32(u32::try_from(descriptor.flags).unwrap_or(u32::MAX));
        }
    }
}
