//! From received bytes to requests that run: the loop of one connection after its handshake.

use std::future::Future;
use std::pin::{Pin, pin};
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use buffer::IoBuf;
use event_listener::Event;
use futures_util::future::select;
use nbd_wire::server::Session;
use nbd_wire::{
    BlockStatusFilter, Command, Decoded, Dialect, ErrorCode, RequestHeader, Selected, Served, Targeted,
    UnknownMagic, done_reply, error_reply, hole_reply, limits, read_head,
};
use qcow2::ReadKind;

use crate::block_status::Question;
use crate::budget::{Budget, InFlight, Permit};
use crate::export::ZeroFlags;
use crate::exports::{ExportEntry, Place};
use crate::inbox::{Inbox, ReceiveError};
use crate::limits::{
    BATCHES_BEFORE_YIELD, DIRECT_RECEIVE_BYTES_MIN, INLINE_READ_BYTES_MAX, LARGE_WRITE_BYTES_MIN,
    RECEIVE_BYTES, RECEIVE_BYTES_AFTER_LARGE, STATUS_REQUEST_BYTES,
};
use crate::outbox::Outbox;
use crate::requests::{Request, Work};
use crate::shutdown::Shutdown;
use crate::transport::Transport;

/// Why no more requests are read.
#[derive(Debug, thiserror::Error)]
pub(crate) enum End {
    #[error("client says goodbye")]
    Disconnect,
    #[error("server shuts down")]
    Shutdown,
    #[error("replies cannot be sent")]
    CannotSend,
    #[error(transparent)]
    Receive(#[from] ReceiveError),
    #[error(transparent)]
    Magic(#[from] UnknownMagic),
    #[error("request carries {found} bytes; at most {max} are skipped", max = limits::PAYLOAD_SKIP_BYTES_MAX)]
    PayloadTooLong { found: u64 },
}

impl End {
    /// The client is gone, and nobody reads the replies that are still to come.
    fn is_abrupt(&self) -> bool {
        match self {
            Self::Disconnect | Self::Shutdown => false,
            Self::CannotSend | Self::Receive(_) | Self::Magic(_) | Self::PayloadTooLong { .. } => true,
        }
    }
}

/// Reads that were answered inline since the last look at the counters.
#[derive(Debug, Default)]
struct Inline {
    reads: u64,
    bytes: u64,
}

/// One connection that has chosen its export.
#[derive(Debug)]
pub(crate) struct Transmission {
    entry: Arc<ExportEntry>,
    dialect: Dialect,
    contexts: Vec<Selected>,
    served: Served,
    transport: Rc<Transport>,
    inbox: Inbox,
    outbox: Rc<Outbox>,
    in_flight: Rc<InFlight>,
    shutdown: Shutdown,
    inline: Inline,
    /// The client went without a word.
    gone: Event,
    last_write_was_large: bool,
    /// Sends so far.
    batches: u32,
}

impl Transmission {
    pub(crate) fn new(
        session: &Session<Place>,
        transport: Rc<Transport>,
        inbox: Inbox,
        budget: &Arc<Budget>,
        shutdown: &Shutdown,
    ) -> Self {
        Self {
            entry: Arc::clone(session.chosen.entry()),
            dialect: session.dialect,
            contexts: session.contexts.clone(),
            served: Served::new(&session.export, session.dialect, !session.contexts.is_empty()),
            outbox: Outbox::new(Rc::clone(&transport)),
            transport,
            inbox,
            in_flight: InFlight::new(Arc::clone(budget)),
            shutdown: shutdown.clone(),
            inline: Inline::default(),
            gone: Event::new(),
            last_write_was_large: false,
            batches: 0,
        }
    }

    /// Serves until there is nothing more to read, then until every request in flight is answered.
    pub(crate) async fn run(mut self) -> End {
        let outbox = Rc::clone(&self.outbox);
        let sender = reactor::spawn(async move { outbox.run().await });
        let end = self.receive_requests().await;
        self.count_inline();
        // A shutdown ends the receiving, too, and answers what it has taken in.
        if end.is_abrupt() && !self.shutdown.is_triggered() {
            self.gone.notify(usize::MAX);
        }
        self.outbox.finish().await;
        self.in_flight.drained().await;
        self.outbox.finish().await;
        self.outbox.close();
        sender.await;
        self.transport.close().await;
        end
    }

    async fn receive_requests(&mut self) -> End {
        loop {
            if let Err(end) = self.handle_batch().await {
                return end;
            }
            if let Err(end) = self.send().await {
                return end;
            }
            if self.shutdown.is_triggered() {
                return End::Shutdown;
            }
            let large = std::mem::take(&mut self.last_write_was_large);
            let most = if large { RECEIVE_BYTES_AFTER_LARGE } else { RECEIVE_BYTES };
            if let Err(error) = self.inbox.receive(&self.transport, most).await {
                return error.into();
            }
        }
    }

    /// Handles every request that is there in full, and a payload that is not.
    async fn handle_batch(&mut self) -> Result<(), End> {
        while let Decoded::Head { bytes, head } = RequestHeader::decode(self.dialect, self.inbox.bytes())? {
            self.inbox.consume(bytes);
            match Command::check(&head, &self.served) {
                Ok(command) => self.start(&head, command).await?,
                Err(code) => {
                    self.skip(head.payload_bytes(self.dialect)).await?;
                    self.refuse(&head, code);
                }
            }
            if self.outbox.is_due() {
                self.send().await?;
            }
        }
        Ok(())
    }

    /// Sends what was answered. Now and then the other connections of this loop get their turn: a
    /// client that asks and reads fast enough would never have us wait.
    async fn send(&mut self) -> Result<(), End> {
        self.count_inline();
        self.outbox.send().await;
        self.batches = self.batches.wrapping_add(1);
        if self.batches.is_multiple_of(BATCHES_BEFORE_YIELD) {
            reactor::yield_now().await;
        }
        if self.outbox.has_failed() { Err(End::CannotSend) } else { Ok(()) }
    }

    async fn start(&mut self, head: &RequestHeader, command: Command) -> Result<(), End> {
        let work = match command {
            Command::Disconnect => return Err(End::Disconnect),
            Command::Read { offset, len, .. } => {
                self.read(head, offset, len).await;
                return Ok(());
            }
            Command::BlockStatus { target, one, .. } => return self.block_status(head, target, one).await,
            Command::Write { offset, len, fua } => return self.write(head, offset, len, fua).await,
            Command::Flush => Work::Flush,
            Command::Trim { offset, len, fua } => Work::Trim { offset, len, fua },
            Command::WriteZeroes { offset, len, fua, no_hole, fast } => {
                Work::Zero { offset, len, flags: ZeroFlags { no_hole, fast, fua } }
            }
            Command::Cache { offset, len } => Work::Cache { offset, len },
        };
        let permit = self.admit(0).await;
        self.spawn(self.request(head, permit).perform(work));
        Ok(())
    }

    async fn read(&mut self, head: &RequestHeader, offset: u64, len: u32) {
        if len <= INLINE_READ_BYTES_MAX && self.read_now(head, offset, len) {
            self.inline.reads += 1;
            self.inline.bytes += u64::from(len);
            return;
        }
        let permit = self.admit(u64::from(len)).await;
        let request = self.request(head, permit);
        // It is known to wait, so it is a task from the start.
        reactor::spawn_now(self.unless_gone(async move { request.read(len).await })).detach();
    }

    /// Answers a read if that needs no waiting, and says whether it did.
    fn read_now(&self, head: &RequestHeader, offset: u64, len: u32) -> bool {
        let reply = read_head(self.dialect, head.cookie, offset, len);
        let size = usize::try_from(len).unwrap_or(usize::MAX);
        let disk = self.entry.disk();
        let fill = |buf: &mut [u8]| {
            if buf.is_empty() { Some(ReadKind::Data) } else { disk.try_read(offset, buf) }
        };
        match self.outbox.push_filled(&reply, size, fill) {
            None => return false,
            Some(ReadKind::Data) => {}
            Some(ReadKind::Zeroes) => match hole_reply(self.dialect, head.cookie, offset, len) {
                Some(hole) => self.outbox.push_small(&hole, None),
                None => {
                    self.outbox.push_filled(&reply, size, |buf| {
                        buf.fill(0);
                        Some(ReadKind::Data)
                    });
                }
            },
        }
        true
    }

    async fn write(&mut self, head: &RequestHeader, offset: u64, len: u32, fua: bool) -> Result<(), End> {
        let size = usize::try_from(len).unwrap_or(usize::MAX);
        self.last_write_was_large = size >= LARGE_WRITE_BYTES_MIN;
        let permit = self.admit(u64::from(len)).await;
        let data = self.payload(size).await?.freeze().into();
        if len == 0 {
            self.outbox.push_small(&done_reply(self.dialect, head.cookie, offset), Some(permit));
            return Ok(());
        }
        if !self.inbox.bytes().is_empty() {
            // The next request can be looked at while this one is written.
            reactor::fs::defer_long_calls();
        }
        self.spawn(self.request(head, permit).perform(Work::Write { offset, data, fua }));
        Ok(())
    }

    async fn block_status(&mut self, head: &RequestHeader, target: Targeted, one: bool) -> Result<(), End> {
        let filter = match target {
            Targeted::Range { len } => Ok((len, self.contexts.clone())),
            Targeted::Filter { payload_bytes } => self.filter(head, payload_bytes).await?,
        };
        let (len, contexts) = match filter {
            Ok(asked) => asked,
            Err(code) => {
                self.refuse(head, code);
                return Ok(());
            }
        };
        let permit = self.admit(STATUS_REQUEST_BYTES).await;
        let (dialect, cookie, offset) = (self.dialect, head.cookie, head.offset);
        let question = Question { dialect, cookie, offset, len, one, contexts };
        self.spawn(self.request(head, permit).block_status(question));
        Ok(())
    }

    /// Takes the context filter of an extended BLOCK_STATUS off the stream.
    async fn filter(
        &mut self,
        head: &RequestHeader,
        payload_bytes: u32,
    ) -> Result<Result<(u64, Vec<Selected>), ErrorCode>, End> {
        let size = usize::try_from(payload_bytes).unwrap_or(usize::MAX);
        let payload = self.payload(size).await?;
        let filter = BlockStatusFilter::decode(&payload[..size], &self.contexts);
        Ok(filter.and_then(|BlockStatusFilter { len, ids }| {
            Command::block_status_range(head.offset, len, &self.served)?;
            let asked = self.contexts.iter().filter(|context| ids.contains(&context.id));
            Ok((len, asked.cloned().collect()))
        }))
    }

    /// Takes a payload of `size` bytes off the stream: what is there by a copy, much that is missing
    /// straight from the socket.
    async fn payload(&mut self, size: usize) -> Result<IoBuf, End> {
        let mut payload = IoBuf::uninit(size);
        payload.truncate(size);
        let mut filled = self.inbox.take_into(&mut payload);
        if filled < size {
            // What is answered must not wait for a client that is slow to send.
            self.outbox.send().await;
        }
        while filled < size {
            let missing = size - filled;
            if missing < DIRECT_RECEIVE_BYTES_MIN {
                self.inbox.receive_at_least(&self.transport, missing).await?;
                filled += self.inbox.take_into(&mut payload[filled..]);
                continue;
            }
            let (received, room) = self.transport.recv(payload.split_off(filled)).await;
            payload.unsplit(room);
            match received.map_err(ReceiveError::from)? {
                0 => return Err(ReceiveError::Ended.into()),
                count => filled += count,
            }
        }
        Ok(payload)
    }

    /// Throws a payload away that comes with a request that is refused.
    async fn skip(&mut self, size: u64) -> Result<(), End> {
        if size > limits::PAYLOAD_SKIP_BYTES_MAX {
            return Err(End::PayloadTooLong { found: size });
        }
        let mut left = usize::try_from(size).unwrap_or(usize::MAX);
        loop {
            let there = self.inbox.bytes().len().min(left);
            self.inbox.consume(there);
            left -= there;
            if left == 0 {
                return Ok(());
            }
            self.outbox.send().await;
            self.inbox.receive(&self.transport, RECEIVE_BYTES).await?;
        }
    }

    fn refuse(&self, head: &RequestHeader, code: ErrorCode) {
        tracing::debug!(%code, ?head, "request refused");
        self.entry.counters().invalid.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        let mut reply = Vec::new();
        let message = code.to_string();
        error_reply(&mut reply, self.dialect, (head.cookie, head.offset), code, &message, None);
        self.outbox.push_small(&reply, None);
    }

    /// A place for one more request, when there is one.
    async fn admit(&self, payload: u64) -> Permit {
        if let Some(permit) = self.in_flight.try_admit(payload) {
            return permit;
        }
        self.outbox.send().await;
        self.in_flight.admit(payload).await
    }

    fn request(&self, head: &RequestHeader, permit: Permit) -> Request {
        Request::new(&self.entry, &self.outbox, (self.dialect, head.cookie, head.offset), permit)
    }

    /// Runs `request` as far as it gets without waiting; gives it a task if it has to wait.
    fn spawn(&self, request: impl Future<Output = ()> + 'static) {
        let mut request: Pin<Box<dyn Future<Output = ()>>> = Box::pin(request);
        // The task polls again at once, with a waker of its own: no wake-up is lost to this one.
        if let Poll::Ready(()) = request.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
            return;
        }
        reactor::spawn(self.unless_gone(request)).detach();
    }

    /// `request`, given up when its client goes: a limit may hold requests for hours, and those of a client
    /// that is gone would keep its place.
    fn unless_gone(&self, request: impl Future<Output = ()> + 'static) -> impl Future<Output = ()> + 'static {
        let outbox = Rc::clone(&self.outbox);
        let gone = self.entry.disk().holds_back().then(|| self.gone.listen());
        async move {
            match gone {
                Some(gone) => _ = select(pin!(request), gone).await,
                None => request.await,
            }
            outbox.nudge();
        }
    }

    fn count_inline(&mut self) {
        let Inline { reads, bytes } = std::mem::take(&mut self.inline);
        if reads > 0 {
            let counters = self.entry.counters();
            counters.read.add(reads, bytes);
            counters.inline_reads.fetch_add(reads, std::sync::atomic::Ordering::Relaxed);
        }
    }
}
