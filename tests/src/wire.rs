//! Numbers of the NBD protocol that the client needs, written down a second time on purpose: a
//! mistake in the program's own protocol crate must not cancel itself out here.

/// Opens the server's greeting.
pub const GREETING: &[u8; 16] = b"NBDMAGICIHAVEOPT";
/// Opens each option.
pub const OPTION: &[u8; 8] = b"IHAVEOPT";
/// Opens each reply to an option.
pub const OPTION_REPLY: u64 = 0x0003_e889_0455_65a9;
/// Opens each request.
pub const REQUEST: u32 = 0x2560_9513;
/// Opens each simple reply.
pub const SIMPLE_REPLY: u32 = 0x6744_6698;

/// Fixed newstyle and no zeroes: what we say to the greeting.
pub const CLIENT_FLAGS: u32 = 3;
/// NBD_OPT_GO
pub const GO: u32 = 7;
/// NBD_REP_ACK
pub const ACK: u32 = 1;
/// NBD_REP_INFO
pub const INFO: u32 = 3;

/// What a request does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Command {
    /// Bytes from the disk.
    Read,
    /// Bytes to the disk.
    Write,
    /// The end.
    Disconnect,
    /// Everything to stable storage.
    Flush,
    /// The range is not needed any more.
    Trim,
    /// Zeroes.
    WriteZeroes,
}

impl Command {
    /// The number on the wire.
    pub fn number(self) -> u16 {
        match self {
            Self::Read => 0,
            Self::Write => 1,
            Self::Disconnect => 2,
            Self::Flush => 3,
            Self::Trim => 4,
            Self::WriteZeroes => 6,
        }
    }
}

/// On stable storage before the reply.
pub const FUA: u16 = 1 << 0;
/// Zeroes, but allocated.
pub const NO_HOLE: u16 = 1 << 1;

/// EPERM
pub const EPERM: u32 = 1;
/// EIO
pub const EIO: u32 = 5;
/// EINVAL
pub const EINVAL: u32 = 22;
/// ENOSPC
pub const ENOSPC: u32 = 28;

/// Export flags: the disk cannot be written.
pub const FLAG_READ_ONLY: u16 = 1 << 1;
/// Export flags: a flush of one connection covers the others.
pub const FLAG_MULTI_CONN: u16 = 1 << 8;
