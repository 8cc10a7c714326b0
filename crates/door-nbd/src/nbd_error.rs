//! The protocol's word for a failure.

use export::{ErrorKind, RequestKind};
use wire::nbd::ErrorCode;

/// What a client receives whose request, of this kind, has failed.
pub(crate) fn nbd_error(failed: ErrorKind, request: RequestKind) -> ErrorCode {
    match failed {
        ErrorKind::NoSpace => ErrorCode::NoSpc,
        ErrorKind::ReadOnly => match request {
            // Bytes that are not in a snapshot: QEMU says the same.
            RequestKind::Read | RequestKind::BlockStatus => ErrorCode::Inval,
            _ => ErrorCode::Perm,
        },
        // Data past the end finds no place (ENOSPC, as the protocol has it): a disk can be made smaller while a client goes
        // by the size that it received.
        ErrorKind::PastEnd => match request {
            RequestKind::Write | RequestKind::Zero => ErrorCode::NoSpc,
            RequestKind::Read
            | RequestKind::Flush
            | RequestKind::Discard
            | RequestKind::Prefetch
            | RequestKind::BlockStatus => ErrorCode::Inval,
        },
        ErrorKind::NotSupported => ErrorCode::NotSup,
        ErrorKind::Invalid => ErrorCode::Inval,
        ErrorKind::Io | ErrorKind::Corrupt => ErrorCode::Io,
        ErrorKind::NoMemory => ErrorCode::NoMem,
        ErrorKind::ShuttingDown => ErrorCode::Shutdown,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A disk was made smaller, and clients go on by the old size.
    #[test]
    fn what_finds_no_place_is_reported_as_no_space_and_what_reads_there_is_invalid() {
        for kind in [RequestKind::Write, RequestKind::Zero] {
            assert_eq!(nbd_error(ErrorKind::PastEnd, kind), ErrorCode::NoSpc);
        }
        for kind in [RequestKind::Read, RequestKind::Discard, RequestKind::Prefetch, RequestKind::BlockStatus]
        {
            assert_eq!(nbd_error(ErrorKind::PastEnd, kind), ErrorCode::Inval);
        }
    }

    #[test]
    fn what_may_not_be_read_is_invalid_and_what_may_not_be_written_not_permitted() {
        assert_eq!(nbd_error(ErrorKind::ReadOnly, RequestKind::Read), ErrorCode::Inval);
        assert_eq!(nbd_error(ErrorKind::ReadOnly, RequestKind::Write), ErrorCode::Perm);
    }

    #[test]
    fn an_end_of_the_program_and_a_slow_zero_have_words_of_their_own() {
        assert_eq!(nbd_error(ErrorKind::ShuttingDown, RequestKind::Write), ErrorCode::Shutdown);
        assert_eq!(nbd_error(ErrorKind::NotSupported, RequestKind::Zero), ErrorCode::NotSup);
    }
}
