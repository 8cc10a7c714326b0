//! Numbers and frames of option haggling ("Option types", "Option reply types").

use crate::nbd::cursor::{Cursor, Truncated};
use crate::nbd::limits::{OPTION_REPLY_BYTES_MAX, STRING_BYTES_MAX};
use crate::nbd::put::{Put, cut, len_u32};

/// The first eight bytes of every server: "NBDMAGIC".
pub(crate) const GREETING_MAGIC: u64 = u64::from_be_bytes(*b"NBDMAGIC");
/// Opens the newstyle greeting and every option: "IHAVEOPT".
pub(crate) const OPTION_MAGIC: u64 = u64::from_be_bytes(*b"IHAVEOPT");
/// Opens every option reply.
pub(crate) const OPTION_REPLY_MAGIC: u64 = 0x0003_e889_0455_65a9;

/// Server handshake flag and client flag: options are haggled about in the fixed way.
pub(crate) const FIXED_NEWSTYLE: u16 = 1 << 0;
/// Server handshake flag and client flag: EXPORT_NAME is answered without 124 zeroes.
pub(crate) const NO_ZEROES: u16 = 1 << 1;

/// What a client can ask for before transmission.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OptionKind {
    /// NBD_OPT_EXPORT_NAME
    ExportName,
    /// NBD_OPT_ABORT
    Abort,
    /// NBD_OPT_LIST
    List,
    /// NBD_OPT_STARTTLS
    StartTls,
    /// NBD_OPT_INFO
    Info,
    /// NBD_OPT_GO
    Go,
    /// NBD_OPT_STRUCTURED_REPLY
    StructuredReply,
    /// NBD_OPT_LIST_META_CONTEXT
    ListMetaContext,
    /// NBD_OPT_SET_META_CONTEXT
    SetMetaContext,
    /// NBD_OPT_EXTENDED_HEADERS
    ExtendedHeaders,
    /// Any other number.
    Unknown(u32),
}

impl OptionKind {
    /// The meaning of a number.
    pub fn from_wire(number: u32) -> Self {
        match number {
            1 => Self::ExportName,
            2 => Self::Abort,
            3 => Self::List,
            5 => Self::StartTls,
            6 => Self::Info,
            7 => Self::Go,
            8 => Self::StructuredReply,
            9 => Self::ListMetaContext,
            10 => Self::SetMetaContext,
            11 => Self::ExtendedHeaders,
            other => Self::Unknown(other),
        }
    }

    /// The number on the wire.
    pub fn to_wire(self) -> u32 {
        match self {
            Self::ExportName => 1,
            Self::Abort => 2,
            Self::List => 3,
            Self::StartTls => 5,
            Self::Info => 6,
            Self::Go => 7,
            Self::StructuredReply => 8,
            Self::ListMetaContext => 9,
            Self::SetMetaContext => 10,
            Self::ExtendedHeaders => 11,
            Self::Unknown(number) => number,
        }
    }
}

/// What a server can answer to an option.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OptionReplyKind {
    /// NBD_REP_ACK: done.
    Ack,
    /// NBD_REP_SERVER: one export's name.
    Server,
    /// NBD_REP_INFO: a fact about an export.
    Info,
    /// NBD_REP_META_CONTEXT: one context.
    MetaContext,
    /// NBD_REP_ERR_UNSUP: unknown option.
    Unsupported,
    /// NBD_REP_ERR_POLICY: forbidden here.
    Policy,
    /// NBD_REP_ERR_INVALID: makes no sense.
    Invalid,
    /// NBD_REP_ERR_PLATFORM: not on this machine.
    Platform,
    /// NBD_REP_ERR_TLS_REQD: only after STARTTLS.
    TlsRequired,
    /// NBD_REP_ERR_UNKNOWN: no such export.
    UnknownExport,
    /// NBD_REP_ERR_SHUTDOWN: the server is going away.
    Shutdown,
    /// NBD_REP_ERR_BLOCK_SIZE_REQD: only for clients that ask for block sizes.
    BlockSizeRequired,
    /// NBD_REP_ERR_TOO_BIG: more than the server handles.
    TooBig,
    /// NBD_REP_ERR_EXT_HEADER_REQD: extended headers are in use.
    ExtendedHeadersRequired,
    /// Any other number.
    Other(u32),
}

/// Set in the numbers of all errors.
const REPLY_ERROR: u32 = 1 << 31;

impl OptionReplyKind {
    const NUMBERED: [(OptionReplyKind, u32); 14] = [
        (Self::Ack, 1),
        (Self::Server, 2),
        (Self::Info, 3),
        (Self::MetaContext, 4),
        (Self::Unsupported, REPLY_ERROR | 1),
        (Self::Policy, REPLY_ERROR | 2),
        (Self::Invalid, REPLY_ERROR | 3),
        (Self::Platform, REPLY_ERROR | 4),
        (Self::TlsRequired, REPLY_ERROR | 5),
        (Self::UnknownExport, REPLY_ERROR | 6),
        (Self::Shutdown, REPLY_ERROR | 7),
        (Self::BlockSizeRequired, REPLY_ERROR | 8),
        (Self::TooBig, REPLY_ERROR | 9),
        (Self::ExtendedHeadersRequired, REPLY_ERROR | 10),
    ];

    /// The meaning of a number.
    pub fn from_wire(number: u32) -> Self {
        let known = Self::NUMBERED.into_iter().find(|(_, wire)| *wire == number);
        known.map_or(Self::Other(number), |(kind, _)| kind)
    }

    /// The number on the wire.
    pub fn to_wire(self) -> u32 {
        match self {
            Self::Other(number) => number,
            kind => {
                let known = Self::NUMBERED.into_iter().find(|(numbered, _)| *numbered == kind);
                known.map_or(REPLY_ERROR, |(_, wire)| wire)
            }
        }
    }

    /// Whether the option failed.
    pub fn is_error(self) -> bool {
        self.to_wire() & REPLY_ERROR != 0
    }
}

/// Which fact an NBD_REP_INFO tells.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum InfoKind {
    /// Size and transmission flags.
    Export,
    /// The export's own name.
    Name,
    /// Text for humans.
    Description,
    /// Block size constraints.
    BlockSize,
    /// Any other number: to be ignored.
    Unknown(u16),
}

impl InfoKind {
    /// The meaning of a number.
    pub fn from_wire(number: u16) -> Self {
        match number {
            0 => Self::Export,
            1 => Self::Name,
            2 => Self::Description,
            3 => Self::BlockSize,
            other => Self::Unknown(other),
        }
    }

    /// The number on the wire.
    pub fn to_wire(self) -> u16 {
        match self {
            Self::Export => 0,
            Self::Name => 1,
            Self::Description => 2,
            Self::BlockSize => 3,
            Self::Unknown(number) => number,
        }
    }
}

/// The 20 bytes before the data of an option reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OptionReplyHeader {
    /// The option that is answered.
    pub option: OptionKind,
    /// The answer.
    pub kind: OptionReplyKind,
    /// Bytes that follow; at most [`OPTION_REPLY_BYTES_MAX`] as decoded.
    pub len: u32,
}

impl OptionReplyHeader {
    /// Bytes on the wire.
    pub const BYTES: usize = 20;

    /// Reads one; `None` if the magic is wrong or the length beyond the limit.
    pub fn decode(bytes: &[u8; Self::BYTES]) -> Option<Self> {
        let mut cursor = Cursor::new(bytes);
        let fields = |cursor: &mut Cursor<'_>| -> Result<(u64, u32, u32, u32), Truncated> {
            Ok((cursor.u64()?, cursor.u32()?, cursor.u32()?, cursor.u32()?))
        };
        let (magic, option, kind, len) = fields(&mut cursor).ok()?;
        (magic == OPTION_REPLY_MAGIC && len <= OPTION_REPLY_BYTES_MAX).then(|| Self {
            option: OptionKind::from_wire(option),
            kind: OptionReplyKind::from_wire(kind),
            len,
        })
    }
}

/// Appends an option with its data, as a client sends it.
pub(crate) fn put_option(out: &mut Vec<u8>, option: OptionKind, data: &[u8]) {
    out.put_u64(OPTION_MAGIC);
    out.put_u32(option.to_wire());
    out.put_u32(len_u32(data));
    out.put(data);
}

/// Appends an option reply with its data.
pub(crate) fn put_reply(out: &mut Vec<u8>, option: OptionKind, kind: OptionReplyKind, data: &[u8]) {
    out.put_u64(OPTION_REPLY_MAGIC);
    out.put_u32(option.to_wire());
    out.put_u32(kind.to_wire());
    out.put_u32(len_u32(data));
    out.put(data);
}

/// Appends an error reply with a message for humans.
pub(crate) fn put_error(out: &mut Vec<u8>, option: OptionKind, kind: OptionReplyKind, message: &str) {
    put_reply(out, option, kind, cut(message, STRING_BYTES_MAX).as_bytes());
}
