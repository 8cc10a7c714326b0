//! Request headers ("Request message", "Extended request message").

use crate::nbd::Dialect;
use crate::nbd::cursor::{Cursor, Truncated};
use crate::nbd::flag_set::flag_set;
use crate::nbd::put::{Put, Short};

const REQUEST_MAGIC: u32 = 0x2560_9513;
const EXTENDED_REQUEST_MAGIC: u32 = 0x21e4_1c71;
const REQUEST_BYTES: usize = 28;
const EXTENDED_REQUEST_BYTES: usize = 32;

/// Longest request header in bytes, over all dialects.
pub const REQUEST_HEADER_BYTES_MAX: usize = EXTENDED_REQUEST_BYTES;

/// An encoded request header.
pub type HeaderBytes = Short<REQUEST_HEADER_BYTES_MAX>;

/// Command numbers on the wire ("Request types").
pub mod command_number {
    /// NBD_CMD_READ
    pub const READ: u16 = 0;
    /// NBD_CMD_WRITE
    pub const WRITE: u16 = 1;
    /// NBD_CMD_DISC
    pub const DISCONNECT: u16 = 2;
    /// NBD_CMD_FLUSH
    pub const FLUSH: u16 = 3;
    /// NBD_CMD_TRIM
    pub const TRIM: u16 = 4;
    /// NBD_CMD_CACHE
    pub const CACHE: u16 = 5;
    /// NBD_CMD_WRITE_ZEROES
    pub const WRITE_ZEROES: u16 = 6;
    /// NBD_CMD_BLOCK_STATUS
    pub const BLOCK_STATUS: u16 = 7;
}

flag_set! {
    /// Flags of one request ("Command flags"), as a set.
    CommandFlags {
        /// On stable storage before the reply.
        FUA = 0,
        /// Zeroes, but no hole.
        NO_HOLE = 1,
        /// The reply to a read in one chunk.
        DF = 2,
        /// One extent of each context is enough.
        REQ_ONE = 3,
        /// Zeroes only if that is fast.
        FAST_ZERO = 4,
        /// The length field counts the payload.
        PAYLOAD_LEN = 5,
    }
}

/// The fields of a request as they are on the wire; [`crate::nbd::Command`] is what they mean.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RequestHeader {
    /// As sent.
    pub flags: CommandFlags,
    /// A [`command_number`], or anything else.
    pub number: u16,
    /// Given back in the reply.
    pub cookie: u64,
    /// First byte of the export.
    pub offset: u64,
    /// Bytes of the export or, in the extended dialect with PAYLOAD_LEN, of the payload.
    pub len: u64,
}

/// The stream is not at the start of a request: nothing that follows can be understood.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("request starts with {found:#010x} instead of {expected:#010x}")]
pub struct UnknownMagic {
    /// The first four bytes.
    pub found: u32,
    /// What the dialect wants there.
    pub expected: u32,
}

/// What the start of a slice holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Decoded<T> {
    /// The message is incomplete: this many more bytes, at least one.
    Need(usize),
    /// A whole message head of `bytes` bytes.
    Head {
        /// Bytes it took.
        bytes: usize,
        /// What it says.
        head: T,
    },
}

impl RequestHeader {
    /// Reads a header off the start of `bytes`.
    pub fn decode(dialect: Dialect, bytes: &[u8]) -> Result<Decoded<Self>, UnknownMagic> {
        let extended = dialect == Dialect::Extended;
        let (expected, size) = if extended {
            (EXTENDED_REQUEST_MAGIC, EXTENDED_REQUEST_BYTES)
        } else {
            (REQUEST_MAGIC, REQUEST_BYTES)
        };
        if let Some(magic) = bytes.first_chunk::<4>().map(|magic| u32::from_be_bytes(*magic))
            && magic != expected
        {
            return Err(UnknownMagic { found: magic, expected });
        }
        Ok(match Self::fields(extended, bytes) {
            Ok(head) => Decoded::Head { bytes: size, head },
            Err(Truncated) => Decoded::Need(size.saturating_sub(bytes.len()).max(1)),
        })
    }

    fn fields(extended: bool, bytes: &[u8]) -> Result<Self, Truncated> {
        let mut cursor = Cursor::new(bytes);
        cursor.u32()?;
        Ok(Self {
            flags: CommandFlags::from_wire(cursor.u16()?),
            number: cursor.u16()?,
            cookie: cursor.u64()?,
            offset: cursor.u64()?,
            len: if extended { cursor.u64()? } else { u64::from(cursor.u32()?) },
        })
    }

    /// How many bytes follow the header before the next request. Not yet checked against any limit.
    pub fn payload_bytes(&self, dialect: Dialect) -> u64 {
        // A WRITE without PAYLOAD_LEN breaks the rules of the extended dialect, yet what follows it
        // can only be its data.
        let counts_payload = dialect == Dialect::Extended && self.flags.has(CommandFlags::PAYLOAD_LEN);
        if self.number == command_number::WRITE || counts_payload { self.len } else { 0 }
    }

    /// The header's bytes. In the compact dialects `len` is at most `u32::MAX`.
    pub fn encode(&self, dialect: Dialect) -> HeaderBytes {
        let mut out = HeaderBytes::new();
        let extended = dialect == Dialect::Extended;
        out.put_u32(if extended { EXTENDED_REQUEST_MAGIC } else { REQUEST_MAGIC });
        out.put_u16(self.flags.to_wire());
        out.put_u16(self.number);
        out.put_u64(self.cookie);
        out.put_u64(self.offset);
        if extended {
            out.put_u64(self.len);
        } else {
            debug_assert!(u32::try_from(self.len).is_ok());
            out.put_u32(u32::try_from(self.len).unwrap_or(u32::MAX));
        }
        out
    }
}
