//! Fixed newstyle negotiation as a state machine: bytes in, bytes and events out.

use super::answers::Answer;
use crate::nbd::cursor::{Cursor, Truncated};
use crate::nbd::limits::{OPTION_BYTES_MAX, OPTION_SKIP_BYTES_MAX, OPTIONS_MAX};
use crate::nbd::option::{FIXED_NEWSTYLE, GREETING_MAGIC, NO_ZEROES, OPTION_MAGIC, put_error};
use crate::nbd::put::Put;
use crate::nbd::{Dialect, ExportInfo, OptionKind, OptionReplyKind, Selected};

/// Whether a connection is, can be or must be encrypted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tls {
    /// STARTTLS is refused.
    Off,
    /// STARTTLS is possible.
    Allowed,
    /// Nothing but STARTTLS is possible.
    Required,
    /// The bytes that arrive were already decrypted.
    Active,
}

/// Why a client does not get an export.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// There is none of that name; the text says which there are.
    Unknown(String),
    /// There is, but not for this client now; the text says why.
    Policy(String),
    /// The server is going away.
    Shutdown,
}

/// What the handshake asks the server about.
pub trait Catalogue {
    /// What the server keeps for a client that has chosen an export.
    type Chosen;

    /// Name and description of every export that may be listed.
    fn list(&self) -> Vec<(String, String)>;

    /// The export called `name`; the empty name means a default.
    fn describe(&self, name: &str) -> Result<ExportInfo, Refusal>;

    /// As [`Catalogue::describe`], for a client that will now use it.
    fn choose(&self, name: &str) -> Result<(Self::Chosen, ExportInfo), Refusal>;
}

/// What was agreed on.
#[derive(Debug)]
pub struct Session<C> {
    /// The catalogue's.
    pub chosen: C,
    /// The export, its flags as this client knows them.
    pub export: ExportInfo,
    /// How messages look from now on.
    pub dialect: Dialect,
    /// The metadata contexts that BLOCK_STATUS reports.
    pub contexts: Vec<Selected>,
}

/// What came of the bytes; replies were appended to the caller's buffer.
#[derive(Debug)]
pub enum Step<C> {
    /// This many bytes more, at least, before anything can be said.
    Need(usize),
    /// A message was answered; there may be another.
    Again,
    /// Send what is to be sent, then speak TLS; call [`Handshake::tls_started`] when it is up. Bytes
    /// received so far belong to TLS.
    StartTls,
    /// Send what is to be sent; transmission begins.
    Ready(Session<C>),
    /// Send what is to be sent and close: the client leaves.
    Done,
}

/// Why a connection is closed before transmission.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum HandshakeError {
    /// Flags that were never offered.
    #[error("client flags are {found:#x}; offered are 0x3")]
    ClientFlags {
        /// As sent.
        found: u32,
    },
    /// Not the start of an option.
    #[error("option starts with {found:#x} instead of IHAVEOPT")]
    OptionMagic {
        /// As sent.
        found: u64,
    },
    /// Longer than what is skipped for courtesy.
    #[error("option data has {found} bytes; at most {OPTION_SKIP_BYTES_MAX} are skipped")]
    OptionTooLong {
        /// As sent.
        found: u32,
    },
    /// One more than allowed.
    #[error("client sent more than {OPTIONS_MAX} options")]
    TooManyOptions,
    /// An option whose failure cannot be answered (EXPORT_NAME, or a client that is not fixed newstyle).
    #[error("{option:?} cannot be granted: {reason}")]
    Unanswerable {
        /// The option.
        option: OptionKind,
        /// What is wrong.
        reason: String,
    },
    /// Bytes of a later message came before the answer to STARTTLS: a peer injects them.
    #[error("client sent bytes between STARTTLS and its answer")]
    BytesBeforeTls,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    ClientFlags,
    Option,
    /// Option data too long to be looked at is thrown away; the answer is already known.
    Skip {
        option: OptionKind,
        left: usize,
    },
}

/// One connection's negotiation.
#[derive(Debug)]
pub struct Handshake {
    state: State,
    options_seen: u32,
    pub(super) tls: Tls,
    pub(super) tls_refusal: Option<&'static str>,
    pub(super) fixed: bool,
    pub(super) no_zeroes: bool,
    pub(super) dialect: Dialect,
    /// The contexts of the last SET_META_CONTEXT and the name of the export they are for.
    pub(super) selected: Option<(String, Vec<Selected>)>,
}

impl Handshake {
    /// A new connection; appends the greeting to `out`.
    pub fn new(tls: Tls, out: &mut Vec<u8>) -> Self {
        out.put_u64(GREETING_MAGIC);
        out.put_u64(OPTION_MAGIC);
        out.put_u16(FIXED_NEWSTYLE | NO_ZEROES);
        Self {
            state: State::ClientFlags,
            options_seen: 0,
            tls,
            tls_refusal: None,
            fixed: false,
            no_zeroes: false,
            dialect: Dialect::Simple,
            selected: None,
        }
    }

    /// The connection is encrypted now: everything negotiated before is forgotten ("TLS versions").
    pub fn tls_started(&mut self) {
        self.tls = Tls::Active;
        self.tls_refusal = None;
        self.dialect = Dialect::Simple;
        self.selected = None;
    }

    /// Why the client has been refused so far, if that was for want of TLS, on either side.
    pub fn tls_refusal(&self) -> Option<&'static str> {
        self.tls_refusal
    }

    /// Takes at most one message off the start of `input`, appends the answer to `out`, and says how
    /// many bytes it took. Bytes not taken are to be offered again. `out` never grows by more than
    /// the answer to one option.
    ///
    /// # Errors
    /// The connection is to be closed, after `out` was sent.
    pub fn step<C: Catalogue>(
        &mut self,
        input: &[u8],
        catalogue: &C,
        out: &mut Vec<u8>,
    ) -> Result<(usize, Step<C::Chosen>), HandshakeError> {
        match self.state {
            State::ClientFlags => self.client_flags(input),
            State::Option => self.option(input, catalogue, out),
            State::Skip { option, left } => Ok(self.skip(option, left, input, out)),
        }
    }

    fn client_flags<C>(&mut self, input: &[u8]) -> Result<(usize, Step<C>), HandshakeError> {
        let Some(flags) = input.first_chunk::<4>().map(|flags| u32::from_be_bytes(*flags)) else {
            return Ok((0, Step::Need(4_usize.saturating_sub(input.len()))));
        };
        if flags & !u32::from(FIXED_NEWSTYLE | NO_ZEROES) != 0 {
            return Err(HandshakeError::ClientFlags { found: flags });
        }
        self.fixed = flags & u32::from(FIXED_NEWSTYLE) != 0;
        self.no_zeroes = flags & u32::from(NO_ZEROES) != 0;
        self.state = State::Option;
        Ok((4, Step::Again))
    }

    fn option<C: Catalogue>(
        &mut self,
        input: &[u8],
        catalogue: &C,
        out: &mut Vec<u8>,
    ) -> Result<(usize, Step<C::Chosen>), HandshakeError> {
        const HEADER_BYTES: usize = 16;
        if let Some(magic) = input.first_chunk::<8>().map(|magic| u64::from_be_bytes(*magic))
            && magic != OPTION_MAGIC
        {
            return Err(HandshakeError::OptionMagic { found: magic });
        }
        let mut cursor = Cursor::new(input);
        let Ok((option, len)) = option_header(&mut cursor) else {
            return Ok((0, Step::Need(HEADER_BYTES.saturating_sub(input.len()).max(1))));
        };
        if len > OPTION_SKIP_BYTES_MAX {
            return Err(HandshakeError::OptionTooLong { found: len });
        }
        let data_bytes = usize::try_from(len).unwrap_or(usize::MAX);
        if len > OPTION_BYTES_MAX {
            self.count_option()?;
            self.answerable(option, "its data is too long")?;
            self.state = State::Skip { option, left: data_bytes };
            return Ok((HEADER_BYTES, Step::Again));
        }
        let Ok(data) = cursor.bytes(data_bytes) else {
            return Ok((0, Step::Need((HEADER_BYTES + data_bytes).saturating_sub(input.len()).max(1))));
        };
        self.count_option()?;
        let taken = HEADER_BYTES + data_bytes;
        let step = match self.answer(option, data, catalogue, out)? {
            Answer::Again => Step::Again,
            Answer::StartTls if !cursor.rest().is_empty() => return Err(HandshakeError::BytesBeforeTls),
            Answer::StartTls => Step::StartTls,
            Answer::Ready(session) => Step::Ready(session),
            Answer::Done => Step::Done,
        };
        Ok((taken, step))
    }

    fn skip<C>(
        &mut self,
        option: OptionKind,
        left: usize,
        input: &[u8],
        out: &mut Vec<u8>,
    ) -> (usize, Step<C>) {
        let taken = left.min(input.len());
        let left = left - taken;
        if left > 0 {
            self.state = State::Skip { option, left };
            // One byte is enough to go on: the caller need not hold what is thrown away.
            return (taken, Step::Need(1));
        }
        put_error(out, option, OptionReplyKind::TooBig, "option data is too long");
        self.state = State::Option;
        (taken, Step::Again)
    }

    fn count_option(&mut self) -> Result<(), HandshakeError> {
        self.options_seen += 1;
        if self.options_seen > OPTIONS_MAX { Err(HandshakeError::TooManyOptions) } else { Ok(()) }
    }

    /// An error unless a reply to `option` can say what is wrong with it.
    pub(super) fn answerable(&self, option: OptionKind, reason: &str) -> Result<(), HandshakeError> {
        if option == OptionKind::ExportName || !self.fixed {
            return Err(HandshakeError::Unanswerable { option, reason: reason.into() });
        }
        Ok(())
    }
}

fn option_header(cursor: &mut Cursor<'_>) -> Result<(OptionKind, u32), Truncated> {
    cursor.u64()?;
    Ok((OptionKind::from_wire(cursor.u32()?), cursor.u32()?))
}
