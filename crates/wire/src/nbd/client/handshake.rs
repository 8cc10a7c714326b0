//! From a fresh connection to transmission, as a state machine: bytes in, bytes and events out.

use super::option::{self, Fact};
use crate::nbd::cursor::{Cursor, Truncated};
use crate::nbd::limits::CONTEXTS_SELECTED_MAX;
use crate::nbd::option::{FIXED_NEWSTYLE, GREETING_MAGIC, NO_ZEROES, OPTION_MAGIC};
use crate::nbd::put::Put;
use crate::nbd::{
    BlockSizes, ContextId, Dialect, ExportFlags, InfoKind, OptionKind, OptionReplyHeader, OptionReplyKind,
};

/// What a client would like.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ExportRequest {
    /// The export; empty for the server's default.
    pub export: String,
    /// STARTTLS first; without it the connection fails.
    pub tls: bool,
    /// The best dialect that the client speaks; the server may only have an earlier one.
    pub dialect: Dialect,
    /// Names of metadata contexts; those that the server does not have are left out.
    pub contexts: Vec<String>,
}

/// What was agreed on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Negotiated {
    /// Length of the export in bytes.
    pub size: u64,
    /// What the server understands.
    pub flags: ExportFlags,
    /// What requests should look like, if the server said so.
    pub blocks: Option<BlockSizes>,
    /// How messages look from now on.
    pub dialect: Dialect,
    /// Name and id of every context that BLOCK_STATUS will report.
    pub contexts: Vec<(String, ContextId)>,
}

/// What came of the bytes; what is to be sent was appended to the caller's buffer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step {
    /// This many bytes more, at least, before anything can be said.
    Need(usize),
    /// A message was taken; there may be another.
    Again,
    /// Speak TLS from now on, then call [`Handshake::tls_started`].
    StartTls,
    /// Transmission begins.
    Ready(Negotiated),
}

/// Why there will be no transmission.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum HandshakeError {
    /// Not an NBD server; or an oldstyle one, which answers no questions.
    #[error("server does not greet as a newstyle NBD server")]
    NotNewstyle,
    /// An oldstyle server: it has one export, which has no name.
    #[error("server negotiates in the old style: its export has no name, and {0:?} is wanted")]
    Nameless(String),
    /// The server cannot do what was wanted (TLS without fixed newstyle).
    #[error("server is too old for {0:?}")]
    TooOld(OptionKind),
    /// An answer that does not belong to the question, or has the wrong fields.
    #[error("server's answer to {0:?} is malformed")]
    Malformed(OptionKind),
    /// The server says no.
    #[error("server refuses {option:?} ({kind:?}): {message}")]
    Refused {
        /// What was asked.
        option: OptionKind,
        /// The answer.
        kind: OptionReplyKind,
        /// The server's words, cut and cleaned of control characters.
        message: String,
    },
    /// More information than an export has.
    #[error("server sends answer after answer to {0:?} without an end")]
    Endless(OptionKind),
}

/// Most replies to one option: a server that sends facts for ever is not waited for.
const REPLIES_MAX: u32 = 4096;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Greeting,
    /// Waiting for the answer to this option.
    Asked(OptionKind),
    /// TLS is to be started.
    Tls,
    Done,
}

/// One connection's negotiation.
#[derive(Debug)]
pub struct Handshake {
    wanted: ExportRequest,
    state: State,
    fixed: bool,
    no_zeroes: bool,
    replies_seen: u32,
    agreed: Negotiated,
    has_export_info: bool,
}

impl Handshake {
    /// For a connection on which nothing was sent or received yet.
    pub fn new(wanted: ExportRequest) -> Self {
        let agreed = Negotiated {
            size: 0,
            flags: ExportFlags::default(),
            blocks: None,
            dialect: Dialect::Simple,
            contexts: Vec::new(),
        };
        let (fixed, no_zeroes, has_export_info) = (false, false, false);
        Self { wanted, state: State::Greeting, fixed, no_zeroes, replies_seen: 0, agreed, has_export_info }
    }

    /// The connection is encrypted now; appends what is to be sent.
    pub fn tls_started(&mut self, out: &mut Vec<u8>) {
        debug_assert_eq!(self.state, State::Tls);
        self.ask_dialect(out);
    }

    /// Takes at most one message off the start of `input`, appends what is to be sent to `out`, and
    /// says how many bytes it took.
    pub fn step(&mut self, input: &[u8], out: &mut Vec<u8>) -> Result<(usize, Step), HandshakeError> {
        match self.state {
            State::Greeting => self.greeting(input, out),
            State::Asked(OptionKind::ExportName) => self.export_name(input),
            State::Asked(option) => self.reply(option, input, out),
            State::Tls | State::Done => Ok((0, Step::Need(1))),
        }
    }

    fn greeting(&mut self, input: &[u8], out: &mut Vec<u8>) -> Result<(usize, Step), HandshakeError> {
        let Some(greeting) = input.first_chunk::<GREETING_BYTES>() else {
            return Ok((0, Step::Need(GREETING_BYTES.saturating_sub(input.len()))));
        };
        if is_oldstyle(greeting) {
            return self.oldstyle(input);
        }
        let flags = answered(greeting, out)?;
        self.fixed = flags & FIXED_NEWSTYLE != 0;
        self.no_zeroes = flags & NO_ZEROES != 0;
        if self.wanted.tls {
            if !self.fixed {
                return Err(HandshakeError::TooOld(OptionKind::StartTls));
            }
            self.ask(OptionKind::StartTls, out);
        } else if self.fixed {
            self.ask_dialect(out);
        } else {
            self.ask(OptionKind::ExportName, out);
        }
        Ok((GREETING_BYTES, Step::Again))
    }

    /// An oldstyle server says what it has at once, and asks nothing: size, flags of the handshake, flags of the export, 124 zeroes.
    fn oldstyle(&mut self, input: &[u8]) -> Result<(usize, Step), HandshakeError> {
        if self.wanted.tls {
            return Err(HandshakeError::TooOld(OptionKind::StartTls));
        }
        if !self.wanted.export.is_empty() {
            return Err(HandshakeError::Nameless(self.wanted.export.clone()));
        }
        let Some(greeting) = input.get(..OLDSTYLE_BYTES) else {
            return Ok((0, Step::Need(OLDSTYLE_BYTES.saturating_sub(input.len()))));
        };
        let mut cursor = Cursor::new(greeting.get(16..).unwrap_or_default());
        let fields = (cursor.u64(), cursor.u16(), cursor.u16());
        let (Ok(size), Ok(_), Ok(flags)) = fields else { return Err(HandshakeError::NotNewstyle) };
        (self.agreed.size, self.agreed.flags) = (size, ExportFlags::from_wire(flags));
        Ok((OLDSTYLE_BYTES, self.ready()))
    }

    fn ask(&mut self, option: OptionKind, out: &mut Vec<u8>) {
        let name = &self.wanted.export;
        match option {
            OptionKind::ExportName => option::export_name(out, name),
            OptionKind::Go => option::info(out, option, name, &[InfoKind::BlockSize]),
            OptionKind::SetMetaContext => option::meta_contexts(out, option, name, &self.wanted.contexts),
            other => option::plain_option(out, other),
        }
        self.state = State::Asked(option);
        self.replies_seen = 0;
    }

    fn ask_dialect(&mut self, out: &mut Vec<u8>) {
        match self.wanted.dialect {
            Dialect::Extended => self.ask(OptionKind::ExtendedHeaders, out),
            Dialect::Structured => self.ask(OptionKind::StructuredReply, out),
            Dialect::Simple => self.ask(OptionKind::Go, out),
        }
    }

    fn ask_contexts(&mut self, out: &mut Vec<u8>) {
        if self.wanted.contexts.is_empty() || self.agreed.dialect == Dialect::Simple {
            self.ask(OptionKind::Go, out);
        } else {
            self.ask(OptionKind::SetMetaContext, out);
        }
    }

    /// The answer to EXPORT_NAME is bare.
    fn export_name(&mut self, input: &[u8]) -> Result<(usize, Step), HandshakeError> {
        let bytes = if self.no_zeroes { 10 } else { 134 };
        let Some(answer) = input.get(..bytes) else {
            return Ok((0, Step::Need(bytes.saturating_sub(input.len()).max(1))));
        };
        self.export_fact(answer).map_err(|Truncated| HandshakeError::Malformed(OptionKind::ExportName))?;
        Ok((bytes, self.ready()))
    }

    fn ready(&mut self) -> Step {
        self.state = State::Done;
        Step::Ready(self.agreed.clone())
    }

    fn reply(
        &mut self,
        option: OptionKind,
        input: &[u8],
        out: &mut Vec<u8>,
    ) -> Result<(usize, Step), HandshakeError> {
        let Some(header) = input.first_chunk::<{ OptionReplyHeader::BYTES }>() else {
            return Ok((0, Step::Need(OptionReplyHeader::BYTES.saturating_sub(input.len()).max(1))));
        };
        let header = OptionReplyHeader::decode(header).filter(|header| header.option == option);
        let OptionReplyHeader { kind, len, .. } = header.ok_or(HandshakeError::Malformed(option))?;
        let end = OptionReplyHeader::BYTES + usize::try_from(len).unwrap_or(usize::MAX);
        let Some(data) = input.get(OptionReplyHeader::BYTES..end) else {
            return Ok((0, Step::Need(end.saturating_sub(input.len()).max(1))));
        };
        self.replies_seen += 1;
        if self.replies_seen > REPLIES_MAX {
            return Err(HandshakeError::Endless(option));
        }
        let step = if kind.is_error() {
            self.refused(option, kind, data, out)?
        } else {
            self.granted(option, kind, data, out)?
        };
        Ok((end, step))
    }

    fn granted(
        &mut self,
        option: OptionKind,
        kind: OptionReplyKind,
        data: &[u8],
        out: &mut Vec<u8>,
    ) -> Result<Step, HandshakeError> {
        let malformed = |Truncated| HandshakeError::Malformed(option);
        match (option, kind) {
            (OptionKind::StartTls, OptionReplyKind::Ack) => {
                self.state = State::Tls;
                return Ok(Step::StartTls);
            }
            (OptionKind::ExtendedHeaders, OptionReplyKind::Ack) => {
                self.agreed.dialect = Dialect::Extended;
                self.ask_contexts(out);
            }
            (OptionKind::StructuredReply, OptionReplyKind::Ack) => {
                self.agreed.dialect = Dialect::Structured;
                self.ask_contexts(out);
            }
            (OptionKind::SetMetaContext, OptionReplyKind::MetaContext) => {
                self.context_fact(data).map_err(malformed)?;
            }
            (OptionKind::SetMetaContext, OptionReplyKind::Ack) => self.ask(OptionKind::Go, out),
            (OptionKind::Go, OptionReplyKind::Info) => self.fact(data).map_err(malformed)?,
            (OptionKind::Go, OptionReplyKind::Ack) if self.has_export_info => return Ok(self.ready()),
            _ => return Err(HandshakeError::Malformed(option)),
        }
        Ok(Step::Again)
    }

    fn refused(
        &mut self,
        option: OptionKind,
        kind: OptionReplyKind,
        data: &[u8],
        out: &mut Vec<u8>,
    ) -> Result<Step, HandshakeError> {
        match option {
            OptionKind::ExtendedHeaders => self.ask(OptionKind::StructuredReply, out),
            OptionKind::StructuredReply => self.ask(OptionKind::Go, out),
            OptionKind::SetMetaContext => {
                self.agreed.contexts.clear();
                self.ask(OptionKind::Go, out);
            }
            OptionKind::Go if kind == OptionReplyKind::Unsupported => self.ask(OptionKind::ExportName, out),
            _ => {
                let message = String::from_utf8_lossy(data).chars().filter(|c| !c.is_control()).collect();
                return Err(HandshakeError::Refused { option, kind, message });
            }
        }
        Ok(Step::Again)
    }

    fn context_fact(&mut self, data: &[u8]) -> Result<(), Truncated> {
        let mut cursor = Cursor::new(data);
        let id = cursor.u32()?;
        let name = std::str::from_utf8(cursor.rest()).map_err(|_| Truncated)?;
        // A server may answer with more than was asked for; what was not asked for is not kept.
        let asked = self.wanted.contexts.iter().any(|wanted| wanted == name);
        if asked && self.agreed.contexts.len() < CONTEXTS_SELECTED_MAX {
            self.agreed.contexts.push((name.to_owned(), id));
        }
        Ok(())
    }

    fn fact(&mut self, data: &[u8]) -> Result<(), Truncated> {
        match Fact::decode(data)? {
            Fact::Export(size, flags) => {
                (self.agreed.size, self.agreed.flags, self.has_export_info) = (size, flags, true);
            }
            Fact::Blocks(blocks) => self.agreed.blocks = Some(blocks),
            Fact::Name(_) | Fact::Description(_) | Fact::Unknown => {}
        }
        Ok(())
    }

    fn export_fact(&mut self, data: &[u8]) -> Result<(), Truncated> {
        let mut cursor = Cursor::new(data);
        self.agreed.size = cursor.u64()?;
        self.agreed.flags = ExportFlags::from_wire(cursor.u16()?);
        self.has_export_info = true;
        Ok(())
    }
}

/// Bytes of a newstyle greeting.
pub const GREETING_BYTES: usize = 18;

/// What an oldstyle greeting has behind "NBDMAGIC".
const OLDSTYLE_MAGIC: u64 = 0x0000_4202_8186_1253;
/// Bytes of an oldstyle greeting.
const OLDSTYLE_BYTES: usize = 152;

fn is_oldstyle(greeting: &[u8; GREETING_BYTES]) -> bool {
    let mut cursor = Cursor::new(greeting);
    (cursor.u64(), cursor.u64()) == (Ok(GREETING_MAGIC), Ok(OLDSTYLE_MAGIC))
}

/// For a client that only asks: appends the answer to a server's greeting.
///
/// # Errors
/// When it is none, or from a server that answers no options.
pub fn greet(greeting: &[u8; GREETING_BYTES], out: &mut Vec<u8>) -> Result<(), HandshakeError> {
    match answered(greeting, out)? & FIXED_NEWSTYLE {
        0 => Err(HandshakeError::TooOld(OptionKind::List)),
        _ => Ok(()),
    }
}

/// Appends the answer to a greeting; gives the greeting's flags.
fn answered(greeting: &[u8; GREETING_BYTES], out: &mut Vec<u8>) -> Result<u16, HandshakeError> {
    let flags = greeting_flags(greeting).ok_or(HandshakeError::NotNewstyle)?;
    out.put_u32(u32::from(flags & (FIXED_NEWSTYLE | NO_ZEROES)));
    Ok(flags)
}

fn greeting_flags(greeting: &[u8; GREETING_BYTES]) -> Option<u16> {
    let mut cursor = Cursor::new(greeting);
    let (greeting, option) = (cursor.u64().ok()?, cursor.u64().ok()?);
    let flags = cursor.u16().ok()?;
    (greeting == GREETING_MAGIC && option == OPTION_MAGIC).then_some(flags)
}
