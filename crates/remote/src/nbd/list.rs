//! The exports of a server, and what it says of each.

use std::sync::Arc;
use std::time::Duration;

use memory::IoBytes;
use net::tls::{ClientTls, Inbox, Transport};
use wire::nbd::client::{self, Fact, GREETING_BYTES, HandshakeError};
use wire::nbd::{BlockSizes, ExportFlags, InfoKind, OptionKind, OptionReplyHeader, OptionReplyKind};

use crate::nbd::connect::{ExportInfo, connect_error};
use crate::nbd::errors::Error;
use crate::nbd::name::Server;

/// Replies to one option at most: a server that sends them for ever is not waited for.
const REPLIES_MAX: usize = 4096;

/// An export.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ListedExport {
    /// Its name.
    pub name: String,
    /// Text for people; may be empty.
    pub description: String,
    /// Its length in bytes, and what the server understands; `None` where it does not say.
    pub fact: Option<(u64, ExportFlags)>,
    /// What requests should look like, where the server says it.
    pub blocks: Option<BlockSizes>,
    /// Names of its metadata contexts.
    pub contexts: Vec<String>,
}

/// What a server has.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Listing {
    /// Its exports, in its order.
    pub exports: Vec<ListedExport>,
    /// It speaks with lengths of 64 bits.
    pub is_extended: bool,
}

/// Asks `server` what it has, within `timeout`. With `tls` nothing is asked before the connection is encrypted.
///
/// # Errors
/// When the server cannot be reached, is none, or does not list its exports.
pub async fn list_exports(
    server: &Server,
    tls: Option<ClientTls>,
    timeout: Duration,
) -> Result<Listing, Error> {
    let info = ExportInfo::new(server, "", None, tls)?;
    let listed = reactor::within(timeout, listed(&info, timeout)).await;
    listed.unwrap_or_else(|| Err(info.silent(timeout)))
}

async fn listed(info: &ExportInfo, timeout: Duration) -> Result<Listing, Error> {
    let mut asking = Asking::begin(info, timeout).await?;
    let is_extended = asking.has(OptionKind::ExtendedHeaders).await?;
    let is_structured = is_extended || asking.has(OptionKind::StructuredReply).await?;
    let mut exports = Vec::new();
    for (kind, data) in asking.granted(OptionKind::List, client::list).await? {
        if kind != OptionReplyKind::Server {
            return Err(asking.failed(HandshakeError::Malformed(OptionKind::List)));
        }
        let (name, description) = client::listed_name(&data)
            .map_err(|_| asking.failed(HandshakeError::Malformed(OptionKind::List)))?;
        exports.push(ListedExport {
            name: text(name),
            description: text(description),
            ..ListedExport::default()
        });
    }
    for export in &mut exports {
        asking.describe(export).await?;
        if is_structured {
            asking.list_contexts(export).await?;
        }
    }
    asking.leave().await;
    Ok(Listing { exports, is_extended })
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// A reply that is no error, with its data.
type Reply = (OptionReplyKind, Vec<u8>);

/// A connection on which options are asked.
struct Asking<'a> {
    info: &'a ExportInfo,
    transport: Transport,
    inbox: Inbox,
}

impl<'a> Asking<'a> {
    async fn begin(info: &'a ExportInfo, timeout: Duration) -> Result<Self, Error> {
        let stream = info.socket(timeout).await.map_err(|error| connect_error(&info.name, &error))?;
        let stream = Arc::new(stream);
        let transport = Transport::Plain(Arc::clone(&stream));
        let mut asking = Self { info, transport, inbox: Inbox::default() };
        let greeting = asking.take(GREETING_BYTES).await?;
        let malformed = || asking.failed(HandshakeError::NotNewstyle);
        let greeting = greeting.first_chunk::<GREETING_BYTES>().ok_or_else(malformed)?;
        let mut answer = Vec::new();
        client::greet(greeting, &mut answer).map_err(|error| asking.failed(error))?;
        asking.send(&answer).await?;
        if info.is_encrypted() {
            asking
                .granted(OptionKind::StartTls, |out| client::plain_option(out, OptionKind::StartTls))
                .await?;
            let tls = info.start_tls(&stream, &asking.inbox).await?;
            asking.transport = Transport::Tls(Box::new(tls));
        }
        Ok(asking)
    }

    fn failed(&self, source: HandshakeError) -> Error {
        Error::Handshake { server: self.info.name.clone(), source }
    }

    async fn send(&mut self, bytes: &[u8]) -> Result<(), Error> {
        let sent = self.transport.send_all(IoBytes::copy_from(bytes).into()).await;
        sent.map_err(|error| connect_error(&self.info.name, &error))
    }

    /// The next `len` bytes.
    async fn take(&mut self, len: usize) -> Result<Vec<u8>, Error> {
        while self.inbox.bytes().len() < len {
            let more = len - self.inbox.bytes().len();
            let received = self.inbox.receive(&self.transport, more).await;
            received.map_err(|error| connect_error(&self.info.name, &error))?;
        }
        let bytes = self.inbox.bytes().get(..len).unwrap_or_default().to_vec();
        self.inbox.consume(len);
        Ok(bytes)
    }

    /// Sends an option and takes all replies to it; an error reply ends them and is the second value.
    async fn ask(
        &mut self,
        option: OptionKind,
        put: impl FnOnce(&mut Vec<u8>),
    ) -> Result<(Vec<Reply>, Option<Reply>), Error> {
        let mut message = Vec::new();
        put(&mut message);
        self.send(&message).await?;
        let mut replies = Vec::new();
        while replies.len() < REPLIES_MAX {
            let header = self.take(OptionReplyHeader::BYTES).await?;
            let header = header.first_chunk().and_then(OptionReplyHeader::decode);
            let header = header.filter(|header| header.option == option);
            let header = header.ok_or_else(|| self.failed(HandshakeError::Malformed(option)))?;
            // At most the limit on replies, which the header was checked against.
            let data = self.take(usize::try_from(header.len).unwrap_or(usize::MAX)).await?;
            match header.kind {
                OptionReplyKind::Ack => return Ok((replies, None)),
                kind if kind.is_error() => return Ok((replies, Some((kind, data)))),
                kind => replies.push((kind, data)),
            }
        }
        Err(self.failed(HandshakeError::Endless(option)))
    }

    /// The replies to an option that must not be refused.
    async fn granted(
        &mut self,
        option: OptionKind,
        put: impl FnOnce(&mut Vec<u8>),
    ) -> Result<Vec<Reply>, Error> {
        match self.ask(option, put).await? {
            (replies, None) => Ok(replies),
            (_, Some((kind, data))) => {
                let message = text(&data).chars().filter(|c| !c.is_control()).collect();
                Err(self.failed(HandshakeError::Refused { option, kind, message }))
            }
        }
    }

    /// Whether the server agrees to an option without data.
    async fn has(&mut self, option: OptionKind) -> Result<bool, Error> {
        Ok(self.ask(option, |out| client::plain_option(out, option)).await?.1.is_none())
    }

    /// What the server says of an export before it is used. One that has gone meanwhile stays without.
    async fn describe(&mut self, export: &mut ListedExport) -> Result<(), Error> {
        let wanted = [InfoKind::Name, InfoKind::Description, InfoKind::BlockSize];
        let name = export.name.clone();
        let (replies, _) =
            self.ask(OptionKind::Info, |out| client::info(out, OptionKind::Info, &name, &wanted)).await?;
        for (kind, data) in replies {
            let fact = Fact::decode(&data).ok().filter(|_| kind == OptionReplyKind::Info);
            match fact.ok_or_else(|| self.failed(HandshakeError::Malformed(OptionKind::Info)))? {
                Fact::Export(size, flags) => export.fact = Some((size, flags)),
                Fact::Description(words) => export.description = text(words),
                Fact::Blocks(blocks) => export.blocks = Some(blocks),
                Fact::Name(_) | Fact::Unknown => {}
            }
        }
        Ok(())
    }

    async fn list_contexts(&mut self, export: &mut ListedExport) -> Result<(), Error> {
        let (option, name) = (OptionKind::ListMetaContext, export.name.clone());
        let all: [&str; 0] = [];
        let (replies, _) = self.ask(option, |out| client::meta_contexts(out, option, &name, &all)).await?;
        for (kind, data) in replies {
            let context = client::context_name(&data).ok().filter(|_| kind == OptionReplyKind::MetaContext);
            let context = context.ok_or_else(|| self.failed(HandshakeError::Malformed(option)))?;
            export.contexts.push(text(context));
        }
        Ok(())
    }

    /// Ends the connection; the server may have done so before.
    async fn leave(&mut self) {
        let mut message = Vec::new();
        client::abort(&mut message);
        let _ = self.send(&message).await;
    }
}
