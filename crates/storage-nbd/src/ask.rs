//! What is asked of a server, so that it can be asked again.

use buffer::IoVec;
use nbd_wire::{CommandFlags, RequestHeader, command_number};
use storage::Repeatable;

/// A request. Its range is inside the export and fits into one message.
#[derive(Clone, Debug)]
pub(crate) struct Ask {
    pub(crate) what: What,
    pub(crate) offset: u64,
    /// Bytes of the export.
    pub(crate) len: u64,
    /// A write that was acknowledged before, over another connection; or a flush of some of those.
    pub(crate) is_repeat: bool,
}

/// The kind of a request.
#[derive(Clone, Debug)]
pub(crate) enum What {
    Read,
    Write(IoVec),
    Zero(CommandFlags),
    Trim,
    Flush,
    Status,
}

impl Ask {
    pub(crate) fn new(what: What, offset: u64, len: u64) -> Self {
        Self { what, offset, len, is_repeat: false }
    }

    pub(crate) fn flush() -> Self {
        Self::new(What::Flush, 0, 0)
    }

    pub(crate) fn header(&self, cookie: u64, is_extended: bool) -> RequestHeader {
        let (number, flags) = match &self.what {
            What::Read => (command_number::READ, CommandFlags::NONE),
            What::Write(_) => {
                (command_number::WRITE, CommandFlags::NONE.and_if(is_extended, CommandFlags::PAYLOAD_LEN))
            }
            What::Zero(flags) => (command_number::WRITE_ZEROES, *flags),
            What::Trim => (command_number::TRIM, CommandFlags::NONE),
            What::Flush => (command_number::FLUSH, CommandFlags::NONE),
            What::Status => (command_number::BLOCK_STATUS, CommandFlags::NONE),
        };
        RequestHeader { flags, number, cookie, offset: self.offset, len: self.len }
    }

    /// What follows the header.
    pub(crate) fn payload(&self) -> IoVec {
        match &self.what {
            What::Write(data) => data.clone(),
            _ => IoVec::new(),
        }
    }

    /// Whether it is a write of the user's, which a flush makes durable.
    pub(crate) fn is_to_be_flushed(&self) -> bool {
        matches!(self.what, What::Write(_) | What::Zero(_)) && !self.is_repeat
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
        match &self.what {
            What::Write(data) => data.len() as u64,
            _ => 0,
        }
    }

    fn replaces(&self) -> bool {
        matches!(self.what, What::Write(_) | What::Zero(_))
    }

    fn repeated(self) -> Self {
        Self { is_repeat: true, ..self }
    }
}
