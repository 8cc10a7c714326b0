//! A request that was checked against the export it is for.

use crate::nbd::export::{ExportFlags, ExportInfo};
use crate::nbd::limits::REQUEST_BYTES_MAX;
use crate::nbd::request::{CommandFlags, RequestHeader, command_number};
use crate::nbd::{Dialect, ErrorCode};

/// What a request is checked against.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Served {
    /// Agreed in the handshake.
    pub dialect: Dialect,
    /// Length of the export in bytes.
    pub size: u64,
    /// What was advertised.
    pub flags: ExportFlags,
    /// Whether a metadata context is selected.
    pub has_contexts: bool,
}

impl Served {
    /// For a client that chose `export` in `dialect`.
    pub fn new(export: &ExportInfo, dialect: Dialect, has_contexts: bool) -> Self {
        Self { dialect, size: export.size, flags: export.flags, has_contexts }
    }
}

/// What is to be done; the range, where there is one, lies inside the export.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Command {
    /// Send `len` bytes, at most [`REQUEST_BYTES_MAX`].
    Read {
        /// First byte.
        offset: u64,
        /// Bytes.
        len: u32,
        /// In one chunk.
        whole: bool,
    },
    /// Take the payload of `len` bytes, at most [`REQUEST_BYTES_MAX`].
    Write {
        /// First byte.
        offset: u64,
        /// Bytes.
        len: u32,
        /// Durable before the reply.
        fua: bool,
    },
    /// Make durable what has completed.
    Flush,
    /// Forget the range.
    Trim {
        /// First byte.
        offset: u64,
        /// Bytes.
        len: u64,
        /// Durable before the reply.
        fua: bool,
    },
    /// Make the range read as zeroes.
    WriteZeroes {
        /// First byte.
        offset: u64,
        /// Bytes.
        len: u64,
        /// Durable before the reply.
        fua: bool,
        /// Keep the space.
        no_hole: bool,
        /// Fail rather than be slow.
        fast: bool,
    },
    /// Read ahead.
    Cache {
        /// First byte.
        offset: u64,
        /// Bytes.
        len: u64,
    },
    /// Describe extents.
    BlockStatus {
        /// First byte.
        offset: u64,
        /// Which bytes, and of which contexts.
        target: Targeted,
        /// One extent of each context.
        one: bool,
    },
    /// The client goes away; no reply.
    Disconnect,
}

/// What a BLOCK_STATUS is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Targeted {
    /// `len` bytes, all selected contexts.
    Range {
        /// Bytes, at least 1.
        len: u64,
    },
    /// The payload says: a [`crate::nbd::BlockStatusFilter`], whose length is still to be checked with
    /// [`Command::block_status_range`].
    Filter {
        /// Length of the payload, within [`crate::nbd::limits::FILTER_BYTES_MAX`].
        payload_bytes: u32,
    },
}

impl Command {
    /// What `header` asks for, or the error that answers it. The payload is not looked at.
    pub fn check(header: &RequestHeader, served: &Served) -> Result<Command, ErrorCode> {
        check_flags(header, served)?;
        let RequestHeader { offset, len, flags, .. } = *header;
        let fua = flags.has(CommandFlags::FUA);
        let inside = offset.checked_add(len).is_some_and(|end| end <= served.size);
        match header.number {
            command_number::READ => {
                ensure(inside, ErrorCode::Inval)?;
                Ok(Command::Read { offset, len: carried(len)?, whole: flags.has(CommandFlags::DF) })
            }
            command_number::WRITE => {
                writable(served)?;
                let len_carried = carried(len)?;
                ensure(inside, ErrorCode::NoSpc)?;
                Ok(Command::Write { offset, len: len_carried, fua })
            }
            command_number::DISCONNECT => Ok(Command::Disconnect),
            command_number::FLUSH if served.flags.has(ExportFlags::FLUSH) => Ok(Command::Flush),
            command_number::TRIM if served.flags.has(ExportFlags::TRIM) => {
                writable(served)?;
                ensure(inside, ErrorCode::Inval)?;
                Ok(Command::Trim { offset, len, fua })
            }
            command_number::WRITE_ZEROES if served.flags.has(ExportFlags::WRITE_ZEROES) => {
                writable(served)?;
                ensure(inside, ErrorCode::NoSpc)?;
                let (no_hole, fast) = (flags.has(CommandFlags::NO_HOLE), flags.has(CommandFlags::FAST_ZERO));
                Ok(Command::WriteZeroes { offset, len, fua, no_hole, fast })
            }
            command_number::CACHE if served.flags.has(ExportFlags::CACHE) => {
                ensure(inside, ErrorCode::Inval)?;
                Ok(Command::Cache { offset, len })
            }
            command_number::BLOCK_STATUS => block_status(header, served),
            // Unknown, or not advertised.
            _ => Err(ErrorCode::Inval),
        }
    }

    /// Checks the range of a BLOCK_STATUS, in particular the one that a filter's payload names.
    pub fn block_status_range(offset: u64, len: u64, served: &Served) -> Result<(), ErrorCode> {
        let inside = offset.checked_add(len).is_some_and(|end| end <= served.size);
        ensure(inside && len > 0, ErrorCode::Inval)
    }
}

fn block_status(header: &RequestHeader, served: &Served) -> Result<Command, ErrorCode> {
    ensure(served.has_contexts, ErrorCode::Inval)?;
    let (offset, one) = (header.offset, header.flags.has(CommandFlags::REQ_ONE));
    if header.flags.has(CommandFlags::PAYLOAD_LEN) {
        let fits = header.len <= crate::nbd::limits::FILTER_BYTES_MAX;
        let payload_bytes = u32::try_from(header.len).ok().filter(|_| fits).ok_or(ErrorCode::Inval)?;
        return Ok(Command::BlockStatus { offset, target: Targeted::Filter { payload_bytes }, one });
    }
    Command::block_status_range(offset, header.len, served)?;
    Ok(Command::BlockStatus { offset, target: Targeted::Range { len: header.len }, one })
}

/// Refuses flags that the command does not have here. FUA is legal on all, and ignored where it
/// means nothing ("Command flags").
fn check_flags(header: &RequestHeader, served: &Served) -> Result<(), ErrorCode> {
    let extended = served.dialect == Dialect::Extended;
    let legal = match header.number {
        command_number::READ if served.flags.has(ExportFlags::DF) => CommandFlags::DF,
        command_number::WRITE if extended => CommandFlags::PAYLOAD_LEN,
        command_number::WRITE_ZEROES if served.flags.has(ExportFlags::FAST_ZERO) => {
            CommandFlags::NO_HOLE | CommandFlags::FAST_ZERO
        }
        command_number::WRITE_ZEROES => CommandFlags::NO_HOLE,
        command_number::BLOCK_STATUS if served.flags.has(ExportFlags::BLOCK_STATUS_PAYLOAD) => {
            CommandFlags::REQ_ONE | CommandFlags::PAYLOAD_LEN
        }
        command_number::BLOCK_STATUS => CommandFlags::REQ_ONE,
        _ => CommandFlags::NONE,
    };
    let illegal = header.flags.without(legal | CommandFlags::FUA);
    // DISCONNECT has no reply that could carry an error: it disconnects, whatever its flags.
    ensure(illegal.is_empty() || header.number == command_number::DISCONNECT, ErrorCode::Inval)
}

fn ensure(condition: bool, otherwise: ErrorCode) -> Result<(), ErrorCode> {
    if condition { Ok(()) } else { Err(otherwise) }
}

fn writable(served: &Served) -> Result<(), ErrorCode> {
    ensure(!served.flags.has(ExportFlags::READ_ONLY), ErrorCode::Perm)
}

fn carried(len: u64) -> Result<u32, ErrorCode> {
    u32::try_from(len).ok().filter(|len| *len <= REQUEST_BYTES_MAX).ok_or(ErrorCode::Inval)
}
