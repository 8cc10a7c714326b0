//! The task that receives.

use std::io;
use std::rc::Rc;
use std::sync::Arc;

use memory::IoBuf;
use net::tls::{Inbox, Transport};
use wire::nbd::{ChunkKind, Decoded, ReplyHead, decode_chunk, decode_reply, limits};

use crate::nbd::ask::{Ask, What};
use crate::nbd::connection::Connection;
use crate::nbd::incoming::{Broken, Incoming};

/// Longest payload of a chunk that is no data: a status with as many extents as there may be.
const OTHER_BYTES_MAX: usize = 16 * limits::EXTENTS_MAX + 64;

/// Why nothing more is received.
#[derive(Debug)]
enum End {
    Broken(Broken),
    Io(io::Error),
}

impl From<Broken> for End {
    fn from(broken: Broken) -> Self {
        Self::Broken(broken)
    }
}

impl From<io::Error> for End {
    fn from(error: io::Error) -> Self {
        Self::Io(error)
    }
}

/// Receives replies until the connection ends.
pub(crate) async fn run(connection: Arc<Connection>, transport: Rc<Transport>, inbox: Inbox) {
    let mut receiver = Receiver { connection: &connection, transport: &transport, inbox };
    let reason = loop {
        match receiver.reply().await {
            Ok(()) => {}
            Err(End::Io(error)) => break error.to_string(),
            Err(End::Broken(what)) => break format!("the server breaks the protocol: {what}"),
        }
    };
    connection.lose(&reason);
}

struct Receiver<'a> {
    connection: &'a Connection,
    transport: &'a Transport,
    inbox: Inbox,
}

impl Receiver<'_> {
    /// Takes one simple reply, or one chunk.
    async fn reply(&mut self) -> Result<(), End> {
        match self.head().await? {
            ReplyHead::Simple { cookie, result } => self.simple(cookie, result).await,
            ReplyHead::Chunk { cookie, kind, done, payload_bytes, .. } => {
                let bytes = usize::try_from(payload_bytes).unwrap_or(usize::MAX);
                match kind {
                    ChunkKind::OffsetData => self.data(cookie, bytes).await?,
                    ChunkKind::None if !done => {
                        Err("a reply that continues after it said nothing".to_owned())?
                    }
                    _ => self.other(cookie, kind, bytes).await?,
                }
                if done { Ok(self.connection.answered(cookie)?) } else { Ok(()) }
            }
        }
    }

    async fn head(&mut self) -> Result<ReplyHead, End> {
        loop {
            let decoded = decode_reply(self.connection.negotiated.dialect, self.inbox.bytes());
            match decoded.map_err(|error| error.to_string())? {
                Decoded::Head { bytes, head } => {
                    self.inbox.consume(bytes);
                    return Ok(head);
                }
                Decoded::Need(more) => self.inbox.receive(self.transport, more).await?,
            }
        }
    }

    /// A reply without chunks; a read that succeeded brings its data that way in the simple dialect only.
    async fn simple(&mut self, cookie: u64, result: Result<(), wire::nbd::ErrorCode>) -> Result<(), End> {
        match result {
            Err(code) => self.connection.arrived(cookie, |_, incoming| {
                incoming.fail(code, b"");
                Ok(())
            })?,
            Ok(()) => {
                let data = self.connection.arrived(cookie, |ask, _| {
                    Ok((ask.kind == What::Read).then_some((ask.offset, ask.len)))
                })?;
                match data {
                    Some(_) if self.connection.negotiated.dialect != wire::nbd::Dialect::Simple => {
                        Err("data outside of a chunk".to_owned())?;
                    }
                    Some((offset, len)) => self.payload(cookie, offset, len).await?,
                    None => {}
                }
            }
        }
        Ok(self.connection.answered(cookie)?)
    }

    async fn data(&mut self, cookie: u64, payload_bytes: usize) -> Result<(), End> {
        const OFFSET_BYTES: usize = 8;
        while self.inbox.bytes().len() < OFFSET_BYTES.min(payload_bytes) {
            self.inbox.receive(self.transport, OFFSET_BYTES - self.inbox.bytes().len()).await?;
        }
        let offset = self.inbox.bytes().first_chunk::<OFFSET_BYTES>().map(|bytes| u64::from_be_bytes(*bytes));
        let len = payload_bytes.checked_sub(OFFSET_BYTES);
        let (Some(offset), Some(len)) = (offset, len) else {
            return Err(End::Broken("data without a place".to_owned()));
        };
        self.inbox.consume(OFFSET_BYTES);
        self.payload(cookie, offset, len as u64).await
    }

    async fn payload(&mut self, cookie: u64, offset: u64, len: u64) -> Result<(), End> {
        let (buf, at) =
            self.connection.arrived(cookie, |ask, incoming| incoming.take_buf(ask, offset, len))?;
        let len = usize::try_from(len).unwrap_or(usize::MAX);
        let buf = self.inbox.take(self.transport, buf, at, len).await?;
        Ok(self.connection.arrived(cookie, |_, incoming| {
            incoming.put_back(buf);
            Ok(())
        })?)
    }

    async fn other(&mut self, cookie: u64, kind: ChunkKind, payload_bytes: usize) -> Result<(), End> {
        if payload_bytes > OTHER_BYTES_MAX {
            let what = format!("a {kind:?} chunk has {payload_bytes} bytes; allowed are {OTHER_BYTES_MAX}");
            return Err(End::Broken(what));
        }
        let payload = IoBuf::uninit(payload_bytes);
        let payload = self.inbox.take(self.transport, payload, 0, payload_bytes).await?;
        let chunk = decode_chunk(kind, &payload).map_err(|error| error.to_string())?;
        let context = self.connection.allocation_context();
        let take = |ask: &Ask, incoming: &mut Incoming| incoming.take_chunk(ask, &chunk, context);
        Ok(self.connection.arrived(cookie, take)?)
    }
}
