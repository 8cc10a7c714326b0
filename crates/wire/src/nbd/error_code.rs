//! What can be said to a client about a failed request ("Error values").

use std::fmt;

/// An error number of the protocol; the same on every operating system.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ErrorCode {
    /// EPERM: the export is read-only.
    Perm,
    /// EIO: the device failed.
    Io,
    /// ENOMEM: the server has no memory for this.
    NoMem,
    /// EINVAL: the request makes no sense.
    Inval,
    /// ENOSPC: no space, or a write past the end.
    NoSpc,
    /// EOVERFLOW: a read with DF that cannot be answered in one chunk.
    Overflow,
    /// ENOTSUP: not supported; for FAST_ZERO, not fast.
    NotSup,
    /// ESHUTDOWN: the server is going away.
    Shutdown,
}

impl ErrorCode {
    /// All of them.
    pub const ALL: [ErrorCode; 8] = [
        ErrorCode::Perm,
        ErrorCode::Io,
        ErrorCode::NoMem,
        ErrorCode::Inval,
        ErrorCode::NoSpc,
        ErrorCode::Overflow,
        ErrorCode::NotSup,
        ErrorCode::Shutdown,
    ];

    /// The number on the wire.
    pub fn to_wire(self) -> u32 {
        match self {
            ErrorCode::Perm => 1,
            ErrorCode::Io => 5,
            ErrorCode::NoMem => 12,
            ErrorCode::Inval => 22,
            ErrorCode::NoSpc => 28,
            ErrorCode::Overflow => 75,
            ErrorCode::NotSup => 95,
            ErrorCode::Shutdown => 108,
        }
    }

    /// The meaning of a number other than 0; unknown ones are to be taken as EINVAL.
    pub fn from_wire(number: u32) -> ErrorCode {
        ErrorCode::ALL.into_iter().find(|code| code.to_wire() == number).unwrap_or(ErrorCode::Inval)
    }
}

impl fmt::Display for ErrorCode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            ErrorCode::Perm => "not permitted (EPERM)",
            ErrorCode::Io => "input/output error (EIO)",
            ErrorCode::NoMem => "out of memory (ENOMEM)",
            ErrorCode::Inval => "invalid request (EINVAL)",
            ErrorCode::NoSpc => "no space (ENOSPC)",
            ErrorCode::Overflow => "value too large (EOVERFLOW)",
            ErrorCode::NotSup => "not supported (ENOTSUP)",
            ErrorCode::Shutdown => "server is shutting down (ESHUTDOWN)",
        })
    }
}

impl std::error::Error for ErrorCode {}
