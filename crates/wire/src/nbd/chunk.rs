//! Replies as a client receives them.

use crate::nbd::cursor::{Cursor, Truncated};
use crate::nbd::limits::{CHUNK_BYTES_MAX, EXTENTS_MAX};
use crate::nbd::reply::Descriptor;
use crate::nbd::request::Decoded;
use crate::nbd::{ContextId, Dialect, ErrorCode};

pub(crate) const SIMPLE_REPLY_MAGIC: u32 = 0x6744_6698;
pub(crate) const STRUCTURED_REPLY_MAGIC: u32 = 0x668e_33ef;
pub(crate) const EXTENDED_REPLY_MAGIC: u32 = 0x6e8a_278c;

pub(crate) const FLAG_DONE: u16 = 1 << 0;

pub(crate) const CHUNK_NONE: u16 = 0;
pub(crate) const CHUNK_OFFSET_DATA: u16 = 1;
pub(crate) const CHUNK_OFFSET_HOLE: u16 = 2;
pub(crate) const CHUNK_BLOCK_STATUS: u16 = 5;
pub(crate) const CHUNK_BLOCK_STATUS_EXT: u16 = 6;
/// Set in the numbers of all errors, known and unknown.
const CHUNK_IS_ERROR: u16 = 1 << 15;
pub(crate) const CHUNK_ERROR: u16 = CHUNK_IS_ERROR | 1;
pub(crate) const CHUNK_ERROR_OFFSET: u16 = CHUNK_IS_ERROR | 2;

/// What a chunk carries ("Structured reply types").
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ChunkKind {
    /// Nothing; success.
    None,
    /// Where, and data.
    OffsetData,
    /// Where zeroes are, and how many.
    OffsetHole,
    /// 32-bit extents.
    BlockStatus,
    /// 64-bit extents.
    BlockStatusExt,
    /// An error.
    Error,
    /// An error, and where.
    ErrorOffset,
    /// An error of a kind not known here; to be taken like `Error`.
    UnknownError(u16),
}

/// The fixed start of a reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReplyHead {
    /// A simple reply: the data of a successful read follows.
    Simple {
        /// Of the request.
        cookie: u64,
        /// Why it failed.
        result: Result<(), ErrorCode>,
    },
    /// One chunk: `payload_bytes` follow, for [`decode_chunk`].
    Chunk {
        /// Of the request.
        cookie: u64,
        /// What it carries.
        kind: ChunkKind,
        /// The last one of its reply.
        done: bool,
        /// Where the request began; only the extended dialect says so.
        offset: Option<u64>,
        /// At most [`CHUNK_BYTES_MAX`].
        payload_bytes: u32,
    },
}

/// A reply that breaks the protocol; the connection is of no use any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ReplyDecodeError {
    /// Not the start of a reply in this dialect.
    #[error("reply starts with {found:#010x}, which {dialect:?} replies do not")]
    UnknownMagic {
        /// The first four bytes.
        found: u32,
        /// What was agreed on.
        dialect: Dialect,
    },
    /// A chunk type that is neither known nor an error.
    #[error("reply chunk has type {0}, which is not known")]
    UnknownChunk(u16),
    /// More than the largest request can cause.
    #[error("reply chunk has {found} payload bytes; allowed are {CHUNK_BYTES_MAX}")]
    TooLong {
        /// As sent.
        found: u64,
    },
    /// The payload does not have the fields of its type.
    #[error("payload of a {0:?} chunk is malformed")]
    Malformed(ChunkKind),
}

impl ChunkKind {
    fn from_wire(number: u16) -> Result<Self, ReplyDecodeError> {
        match number {
            CHUNK_NONE => Ok(Self::None),
            CHUNK_OFFSET_DATA => Ok(Self::OffsetData),
            CHUNK_OFFSET_HOLE => Ok(Self::OffsetHole),
            CHUNK_BLOCK_STATUS => Ok(Self::BlockStatus),
            CHUNK_BLOCK_STATUS_EXT => Ok(Self::BlockStatusExt),
            CHUNK_ERROR => Ok(Self::Error),
            CHUNK_ERROR_OFFSET => Ok(Self::ErrorOffset),
            other if other & CHUNK_IS_ERROR != 0 => Ok(Self::UnknownError(other)),
            other => Err(ReplyDecodeError::UnknownChunk(other)),
        }
    }
}

/// Reads the fixed start of a reply off the start of `bytes`.
pub fn decode_reply(dialect: Dialect, bytes: &[u8]) -> Result<Decoded<ReplyHead>, ReplyDecodeError> {
    let Some(magic) = bytes.first_chunk::<4>().map(|magic| u32::from_be_bytes(*magic)) else {
        return Ok(Decoded::Need(4_usize.saturating_sub(bytes.len()).max(1)));
    };
    let size = match (magic, dialect) {
        (SIMPLE_REPLY_MAGIC, Dialect::Simple | Dialect::Structured) => 16,
        (STRUCTURED_REPLY_MAGIC, Dialect::Structured) => 20,
        (EXTENDED_REPLY_MAGIC, Dialect::Extended) => 32,
        _ => return Err(ReplyDecodeError::UnknownMagic { found: magic, dialect }),
    };
    let Some(message) = bytes.get(4..size) else {
        return Ok(Decoded::Need(size.saturating_sub(bytes.len()).max(1)));
    };
    let mut cursor = Cursor::new(message);
    let head = match magic {
        SIMPLE_REPLY_MAGIC => simple(&mut cursor).map_err(|Truncated| malformed()),
        _ => chunk_head(&mut cursor, dialect),
    }?;
    Ok(Decoded::Head { bytes: size, head })
}

/// The slice was measured before: this cannot happen, and is an error rather than a panic if it does.
fn malformed() -> ReplyDecodeError {
    ReplyDecodeError::Malformed(ChunkKind::None)
}

fn simple(cursor: &mut Cursor<'_>) -> Result<ReplyHead, Truncated> {
    let error = cursor.u32()?;
    let result = if error == 0 { Ok(()) } else { Err(ErrorCode::from_wire(error)) };
    Ok(ReplyHead::Simple { cookie: cursor.u64()?, result })
}

fn chunk_head(cursor: &mut Cursor<'_>, dialect: Dialect) -> Result<ReplyHead, ReplyDecodeError> {
    let extended = dialect == Dialect::Extended;
    let mut fields = || -> Result<_, Truncated> {
        let (flags, kind, cookie) = (cursor.u16()?, cursor.u16()?, cursor.u64()?);
        let offset = if extended { Some(cursor.u64()?) } else { None };
        let len = if extended { cursor.u64()? } else { u64::from(cursor.u32()?) };
        Ok((flags, kind, cookie, offset, len))
    };
    let (flags, kind, cookie, offset, len) = fields().map_err(|Truncated| malformed())?;
    let kind = ChunkKind::from_wire(kind)?;
    let within = u32::try_from(len).ok().filter(|len| u64::from(*len) <= CHUNK_BYTES_MAX);
    let payload_bytes = within.ok_or(ReplyDecodeError::TooLong { found: len })?;
    Ok(ReplyHead::Chunk { cookie, kind, done: flags & FLAG_DONE != 0, offset, payload_bytes })
}

/// A chunk's payload.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Chunk<'a> {
    /// Success without payload.
    None,
    /// Bytes of a read.
    Data {
        /// Where they belong in the export.
        offset: u64,
        /// At least one.
        bytes: &'a [u8],
    },
    /// Zeroes of a read.
    Hole {
        /// Where they belong in the export.
        offset: u64,
        /// Bytes, at least 1.
        len: u32,
    },
    /// What a context says, from the request's offset on.
    BlockStatus {
        /// As the handshake numbered it.
        context: ContextId,
        /// At least one.
        descriptors: Descriptors<'a>,
    },
    /// The request failed.
    Error {
        /// Why.
        code: ErrorCode,
        /// Text for humans, unchecked.
        message: &'a [u8],
        /// Where, if the server says.
        at: Option<u64>,
    },
}

/// Encoded extents.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Descriptors<'a> {
    /// Of a BLOCK_STATUS chunk.
    Compact(&'a [[u8; 8]]),
    /// Of a BLOCK_STATUS_EXT chunk.
    Extended(&'a [[u8; 16]]),
}

impl Descriptors<'_> {
    /// The extents in order. Their lengths are as the server sent them.
    pub fn iter(&self) -> impl Iterator<Item = Descriptor> + '_ {
        let (compact, extended): (&[[u8; 8]], &[[u8; 16]]) = match self {
            Descriptors::Compact(compact) => (compact, &[]),
            Descriptors::Extended(extended) => (&[], extended),
        };
        let compact = compact.iter().map(|raw| {
            let raw = u64::from_be_bytes(*raw);
            Descriptor { len: raw >> 32, flags: raw & u64::from(u32::MAX) }
        });
        let extended = extended.iter().map(|raw| {
            let raw = u128::from_be_bytes(*raw);
            let low = raw & u128::from(u64::MAX);
            Descriptor {
                len: u64::try_from(raw >> 64).unwrap_or(u64::MAX),
                flags: u64::try_from(low).unwrap_or(u64::MAX),
            }
        });
        compact.chain(extended)
    }
}

/// Reads the payload of a chunk. For a data chunk only the first eight bytes need to be there; the
/// rest is given back as it is.
pub fn decode_chunk(kind: ChunkKind, payload: &[u8]) -> Result<Chunk<'_>, ReplyDecodeError> {
    let mut cursor = Cursor::new(payload);
    let chunk = match kind {
        ChunkKind::None => Ok(Chunk::None),
        ChunkKind::OffsetData => {
            cursor.u64().map(|offset| Chunk::Data { offset, bytes: std::mem::take(&mut cursor).rest() })
        }
        ChunkKind::OffsetHole => hole(&mut cursor),
        ChunkKind::BlockStatus => compact_status(&mut cursor),
        ChunkKind::BlockStatusExt => extended_status(&mut cursor),
        ChunkKind::Error | ChunkKind::ErrorOffset => error(&mut cursor, kind == ChunkKind::ErrorOffset),
        ChunkKind::UnknownError(_) => {
            error(&mut cursor, false).inspect(|_| cursor = Cursor::default()) // more fields may follow
        }
    };
    match chunk {
        Ok(chunk) if cursor.rest().is_empty() => Ok(chunk),
        _ => Err(ReplyDecodeError::Malformed(kind)),
    }
}

fn hole<'a>(cursor: &mut Cursor<'a>) -> Result<Chunk<'a>, Truncated> {
    let (offset, len) = (cursor.u64()?, cursor.u32()?);
    if len == 0 { Err(Truncated) } else { Ok(Chunk::Hole { offset, len }) }
}

fn compact_status<'a>(cursor: &mut Cursor<'a>) -> Result<Chunk<'a>, Truncated> {
    let context = cursor.u32()?;
    let (extents, rest) = std::mem::take(cursor).rest().as_chunks::<8>();
    let right = rest.is_empty() && !extents.is_empty() && extents.len() <= EXTENTS_MAX;
    let descriptors = Descriptors::Compact(extents);
    if right { Ok(Chunk::BlockStatus { context, descriptors }) } else { Err(Truncated) }
}

fn extended_status<'a>(cursor: &mut Cursor<'a>) -> Result<Chunk<'a>, Truncated> {
    let (context, count) = (cursor.u32()?, cursor.u32()?);
    let (extents, rest) = std::mem::take(cursor).rest().as_chunks::<16>();
    let counted = usize::try_from(count).is_ok_and(|count| count == extents.len());
    let right = rest.is_empty() && !extents.is_empty() && extents.len() <= EXTENTS_MAX && counted;
    let descriptors = Descriptors::Extended(extents);
    if right { Ok(Chunk::BlockStatus { context, descriptors }) } else { Err(Truncated) }
}

fn error<'a>(cursor: &mut Cursor<'a>, has_offset: bool) -> Result<Chunk<'a>, Truncated> {
    let (number, message_bytes) = (cursor.u32()?, cursor.u16()?);
    let message = cursor.bytes(usize::from(message_bytes))?;
    let at = if has_offset { Some(cursor.u64()?) } else { None };
    let code = if number == 0 { ErrorCode::Inval } else { ErrorCode::from_wire(number) };
    Ok(Chunk::Error { code, message, at })
}
