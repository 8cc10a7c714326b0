//! NBD messages <-> bytes, for server and client.

//!
//! Pure: no sockets, no clock, no allocation in proportion to a field that was not checked. The
//! handshakes ([`server::Handshake`], [`client::Handshake`]) are state machines that take bytes and
//! give bytes; transmission is decoders over slices and encoders into small fixed arrays, so that
//! a server can put a header directly before a payload it never copies.
//!
//! The specification is "The NBD protocol" (doc/proto.md of the NetworkBlockDevice project);
//! comments cite its section titles.

mod chunk;
pub mod client;
mod command;
mod context;
mod cursor;
mod error_code;
mod export;
mod flag_set;
pub mod limits;
mod option;
mod put;
mod reply;
mod request;
pub mod server;

pub use chunk::{Chunk, ChunkKind, Descriptors, ReplyDecodeError, ReplyHead, decode_chunk, decode_reply};
pub use command::{Command, Served, Targeted};
pub use context::{
    ALLOCATION_HOLE, ALLOCATION_ZERO, BITMAP_DIRTY, BlockStatusFilter, Context, ContextId, Selected,
};
pub use cursor::{Cursor, Truncated};
pub use error_code::ErrorCode;
pub use export::{BlockSizes, ExportFlags, ExportInfo};
pub use option::{InfoKind, OptionKind, OptionReplyHeader, OptionReplyKind};
pub use reply::{
    Descriptor, REPLY_HEAD_BYTES_MAX, ReplyBytes, block_status, done_reply, error_reply, hole_reply,
    part_head, part_hole, read_head,
};
pub use request::{
    CommandFlags, Decoded, HeaderBytes, REQUEST_HEADER_BYTES_MAX, RequestHeader, UnknownMagic, command_number,
};

/// Which message layout both sides agreed on. Later ones include what earlier ones can do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Dialect {
    /// 28-byte requests, 16-byte replies, no error after a read has begun.
    Simple,
    /// 28-byte requests, replies in chunks (NBD_OPT_STRUCTURED_REPLY).
    Structured,
    /// 32-byte requests with 64-bit lengths, replies in chunks (NBD_OPT_EXTENDED_HEADERS).
    Extended,
}
