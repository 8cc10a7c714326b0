//! The kernel's word for a failure.

use export::{ErrorKind, RequestKind};
use rustix::io::Errno;

/// What a program receives whose request, of this kind, has failed.
pub(crate) fn errno(failed: ErrorKind, request: RequestKind) -> Errno {
    match failed {
        ErrorKind::NoSpace => Errno::NOSPC,
        ErrorKind::ReadOnly => Errno::ROFS,
        // As of a block device: there is no place behind its end. The disk can be made smaller while programs use it.
        ErrorKind::PastEnd => match request {
            RequestKind::Write | RequestKind::Zero => Errno::NOSPC,
            RequestKind::Read
            | RequestKind::Flush
            | RequestKind::Discard
            | RequestKind::Prefetch
            | RequestKind::BlockStatus => Errno::IO,
        },
        ErrorKind::NotSupported => Errno::OPNOTSUPP,
        ErrorKind::Invalid => Errno::INVAL,
        ErrorKind::Io | ErrorKind::Corrupt => Errno::IO,
        ErrorKind::NoMemory => Errno::NOMEM,
        ErrorKind::ShuttingDown => Errno::SHUTDOWN,
    }
}
