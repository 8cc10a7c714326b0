//! What is asked of a server.

use net::dial::line::{self, Kind};
use wire::nbd::{CommandFlags, RequestHeader, command_number};

/// A request. Its range is inside the export and fits into one message.
pub(crate) type Ask = line::Ask<What>;

/// The kind of a request.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum What {
    Read,
    Write,
    Zero(CommandFlags),
    Trim,
    Flush,
    Status,
}

impl Kind for What {
    const FLUSH: Self = Self::Flush;

    fn writes(&self) -> bool {
        matches!(self, Self::Write | Self::Zero(_))
    }
}

pub(crate) fn header(ask: &Ask, cookie: u64, is_extended: bool) -> RequestHeader {
    let (number, flags) = match &ask.kind {
        What::Read => (command_number::READ, CommandFlags::NONE),
        What::Write => {
            (command_number::WRITE, CommandFlags::NONE.and_if(is_extended, CommandFlags::PAYLOAD_LEN))
        }
        What::Zero(flags) => (command_number::WRITE_ZEROES, *flags),
        What::Trim => (command_number::TRIM, CommandFlags::NONE),
        What::Flush => (command_number::FLUSH, CommandFlags::NONE),
        What::Status => (command_number::BLOCK_STATUS, CommandFlags::NONE),
    };
    RequestHeader { flags, number, cookie, offset: ask.offset, len: ask.len }
}
