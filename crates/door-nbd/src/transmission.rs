//! The transmission phase of one connection: takes requests in and answers or starts them.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::pin::pin;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use export::{
    Budget, Departure, Hints, InFlight, LocalEvent, Pace, Permit, Place, ReadKind, Shutdown, ZeroFlags,
};
use futures_util::future::{Either, select};
use net::tls::Transport;
use wire::nbd::server::Session;
use wire::nbd::{
    Command, Decoded, ErrorCode, RequestHeader, Served, UnknownMagic, error_reply, hole_reply, limits,
    read_head,
};

use crate::client::{Client, PendingRequest, What};
use crate::gone::Gone;
use crate::inbox::{Inbox, ReceiveError};
use crate::limits::{
    BATCHES_BEFORE_YIELD, INLINE_BYTES_BEFORE_YIELD, INLINE_READ_BYTES_MAX, RECEIVE_BYTES,
    RECEIVE_BYTES_AFTER_LARGE, REQUESTS_WAITING_MAX,
};
use crate::outbox::Outbox;
use crate::requests::Work;

use self::together::Delayed;

mod payload;
mod together;

/// Why no more requests are read.
#[derive(Debug, thiserror::Error)]
pub(crate) enum End {
    #[error("client says goodbye")]
    Disconnect,
    #[error("server shuts down")]
    Shutdown,
    #[error("another process resumes the client")]
    HandOver,
    #[error("connection closed by the client")]
    Gone,
    #[error("replies cannot be sent")]
    CannotSend,
    #[error("client has read none of its replies for {} s", .0.as_secs_f32())]
    Unread(Duration),
    #[error("client has sent nothing of a payload that it began for {} s", .0.as_secs_f32())]
    Unsent(Duration),
    #[error(transparent)]
    Receive(#[from] ReceiveError),
    #[error(transparent)]
    Magic(#[from] UnknownMagic),
    #[error("request carries {found} bytes; at most {max} are skipped", max = limits::PAYLOAD_SKIP_BYTES_MAX)]
    PayloadTooLong { found: u64 },
}

impl End {
    /// The replies that are still to come are not read.
    fn is_abrupt(&self) -> bool {
        !matches!(self, Self::Disconnect | Self::Shutdown | Self::HandOver)
    }

    /// The client was sent away, because it held what others wait for.
    pub(crate) fn is_stall(&self) -> bool {
        matches!(self, Self::Unread(_) | Self::Unsent(_))
    }
}

/// What a connection needs of its server.
#[derive(Debug)]
pub(crate) struct Means<'a> {
    pub(crate) budget: &'a Arc<Budget>,
    pub(crate) shutdown: &'a Shutdown,
    pub(crate) stall_timeout: Duration,
    pub(crate) merges: bool,
    pub(crate) pace: Pace,
    pub(crate) departure: Rc<Departure>,
}

/// One connection that has chosen its export.
#[derive(Debug)]
pub(crate) struct Transmission {
    client: Rc<Client>,
    line: Rc<Line>,
    served: Served,
    transport: Rc<Transport>,
    inbox: Inbox,
    shutdown: Shutdown,
    stall_timeout: Duration,
    inline: Inline,
    last_write_was_large: bool,
    /// Sends so far.
    batches: u32,
    /// Bytes answered inline since others had their turn.
    inline_bytes: Cell<usize>,
    merges: bool,
    /// Requests that may go together with the next one.
    held: Vec<Delayed>,
    departure: Rc<Departure>,
    at_hand: AtHand,
}

impl Transmission {
    pub(crate) fn new(
        session: &Session<Place>,
        transport: Rc<Transport>,
        inbox: Inbox,
        means: Means<'_>,
    ) -> Self {
        let Means { budget, shutdown, stall_timeout, merges, pace, departure } = means;
        let client = Rc::new(Client {
            entry: Arc::clone(session.chosen.entry()),
            dialect: session.dialect,
            wants_whole_reads: Cell::default(),
            contexts: session.contexts.clone().into(),
            outbox: Outbox::new(Rc::clone(&transport), stall_timeout),
            in_flight: InFlight::new(Arc::clone(budget)),
            gone: Rc::default(),
            pace,
            at_work: Rc::default(),
            landing: RefCell::default(),
        });
        Self {
            line: Line::new(&client),
            client,
            served: Served::new(&session.export, session.dialect, !session.contexts.is_empty()),
            transport,
            inbox,
            shutdown: shutdown.clone(),
            stall_timeout,
            inline: Inline::default(),
            last_write_was_large: false,
            batches: 0,
            inline_bytes: Cell::new(0),
            merges,
            held: Vec::new(),
            departure,
            at_hand: AtHand::default(),
        }
    }

    /// Serves until there is nothing more to read, then until every request in flight is answered. When the client is
    /// gone nothing more is begun for it: what waits is dropped, reads at work end at their next step, and only
    /// writes that were taken in whole are carried out. Gives the bytes of a request that was not taken in whole, if the client is for another
    /// process.
    pub(crate) async fn run(mut self) -> (End, Option<Vec<u8>>) {
        let (client, line) = (Rc::clone(&self.client), Rc::clone(&self.line));
        let sender = reactor::spawn({
            let outbox = Rc::clone(&client.outbox);
            async move { outbox.run().await }
        });
        let starter = reactor::spawn({
            let line = Rc::clone(&line);
            async move { line.run().await }
        });
        let watcher = reactor::spawn({
            let (transport, client) = (Rc::clone(&self.transport), Rc::clone(&client));
            async move {
                transport.hung_up().await;
                client.go();
            }
        });
        let end = self.take_in().await;
        self.count_inline();
        // A shutdown ends the receiving, too, and answers what it has taken in.
        if !end.is_abrupt() || self.shutdown.is_triggered() {
            let answered = pin!(async {
                line.emptied().await;
                client.outbox.finish().await;
                client.in_flight.drained().await;
                client.outbox.finish().await;
            });
            select(answered, pin!(client.gone.wait())).await;
        }
        if client.gone.is_declared() || end.is_abrupt() && !self.shutdown.is_triggered() {
            client.abandon();
            // A send under way ends, whether its client reads or not.
            self.transport.hang_up();
            client.count_dropped(line.clear() as u64);
            // It may be waiting for memory, and only one task at a time waits for what is in flight.
            starter.cancel().await;
            client.in_flight.drained().await;
            client.landed();
        }
        client.outbox.close();
        drop(watcher);
        sender.await;
        let given = matches!(end, End::HandOver) && !client.gone.is_declared() && !client.outbox.has_failed();
        let begun = given.then(|| [self.at_hand.begun(), self.inbox.bytes()].concat());
        self.transport.close().await;
        (if client.outbox.has_stalled() { End::Unread(self.stall_timeout) } else { end }, begun)
    }

    /// Takes requests in until there are no more.
    async fn take_in(&mut self) -> End {
        let gone: Rc<Gone> = Rc::clone(&self.client.gone);
        match select(pin!(self.receive_requests()), pin!(gone.wait())).await {
            Either::Left((end, _)) => end,
            Either::Right(_) => End::Gone,
        }
    }

    async fn receive_requests(&mut self) -> End {
        loop {
            if let Err(end) = self.handle_batch().await {
                return end;
            }
            if let Err(end) = self.send().await {
                return end;
            }
            if self.departure.is_asked() {
                return End::HandOver;
            }
            // Until the loop tells whether the client can be given away it goes on.
            if self.shutdown.is_triggered() && !self.shutdown.hands_over() {
                return End::Shutdown;
            }
            let large = std::mem::take(&mut self.last_write_was_large);
            let most = if large { RECEIVE_BYTES_AFTER_LARGE } else { RECEIVE_BYTES };
            match self.inbox.receive_unless(&self.transport, most, &self.departure).await {
                Ok(true) => {}
                Ok(false) => return End::HandOver,
                Err(error) => return error.into(),
            }
        }
    }

    /// Handles every request that is there in full, and a payload that is not.
    async fn handle_batch(&mut self) -> Result<(), End> {
        let handled = self.handle_requests().await;
        self.start_held();
        handled
    }

    async fn handle_requests(&mut self) -> Result<(), End> {
        while let Decoded::Head { bytes, head } =
            RequestHeader::decode(self.client.dialect, self.inbox.bytes())?
        {
            self.at_hand.begin(&self.inbox.bytes()[..bytes]);
            self.inbox.consume(bytes);
            match Command::check(&head, &self.served) {
                Ok(command) => self.start(&head, command).await?,
                Err(code) => {
                    self.start_held();
                    self.skip(head.payload_bytes(self.client.dialect)).await?;
                    self.refuse(&head, code);
                }
            }
            if self.client.outbox.is_due() {
                self.start_held();
                self.send().await?;
            }
        }
        Ok(())
    }

    /// Sends what was answered. Now and then the other connections of this loop get their turn: a
    /// client that asks and reads fast enough would never have us wait.
    async fn send(&mut self) -> Result<(), End> {
        self.count_inline();
        self.client.outbox.send().await;
        self.batches = self.batches.wrapping_add(1);
        if self.batches.is_multiple_of(BATCHES_BEFORE_YIELD)
            || self.inline_bytes.get() >= INLINE_BYTES_BEFORE_YIELD
        {
            self.inline_bytes.set(0);
            reactor::yield_now().await;
        }
        if self.client.outbox.has_failed() { Err(End::CannotSend) } else { Ok(()) }
    }

    async fn start(&mut self, head: &RequestHeader, command: Command) -> Result<(), End> {
        if !matches!(command, Command::Read { .. } | Command::Write { .. }) {
            self.start_held();
        }
        let work = match command {
            Command::Disconnect => return Err(End::Disconnect),
            Command::Read { offset, len, whole } => {
                if whole {
                    // One chunk was meant; a client that says so once gets no other.
                    self.client.wants_whole_reads.set(true);
                }
                self.read(head, offset, len).await;
                return Ok(());
            }
            Command::BlockStatus { target, one, .. } => return self.block_status(head, target, one).await,
            Command::Write { offset, len, fua } => return self.write(head, offset, len, fua).await,
            Command::Flush => Work::Flush,
            Command::Trim { offset, len, fua } => Work::Discard { offset, len, fua },
            Command::WriteZeroes { offset, len, fua, no_hole, fast } => {
                Work::Zero { offset, len, flags: ZeroFlags { unmap: !no_hole, fast_only: fast, fua } }
            }
            Command::Cache { offset, len } => Work::Prefetch { offset, len },
        };
        self.line.put(asked(head, What::Perform(work))).await;
        Ok(())
    }

    async fn read(&mut self, head: &RequestHeader, offset: u64, len: u32) {
        let hints = self.hints(0);
        if len <= INLINE_READ_BYTES_MAX && self.read_now(head, offset, len, hints) {
            self.inline.reads += 1;
            self.inline.bytes += u64::from(len);
            self.inline_bytes.set(self.inline_bytes.get() + usize::try_from(len).unwrap_or(usize::MAX));
            return;
        }
        if !self.hold_read(head, len) {
            self.line.put(asked(head, What::Read { len, hints })).await;
        }
    }

    /// What is known of a request for which `places` were taken: whether others were received with it, or are at work.
    fn hints(&self, places: u32) -> Hints {
        let more_waiting = !self.inbox.bytes().is_empty() || self.client.in_flight.requests() > places;
        Hints { more_waiting }
    }

    fn refuse(&self, head: &RequestHeader, code: ErrorCode) {
        tracing::debug!(%code, ?head, "request refused");
        self.client.entry.counters().refused();
        let mut reply = Vec::new();
        let message = code.to_string();
        error_reply(&mut reply, self.client.dialect, (head.cookie, head.offset), code, &message, None);
        self.client.outbox.push_small(&reply, None);
    }

    /// A place for a request that brings `payload` bytes, when there is one: behind those that wait in line.
    async fn admit(&mut self, payload: u64) -> Permit {
        if self.line.is_empty()
            && let Some(permit) = self.client.in_flight.try_admit(payload)
        {
            return permit;
        }
        // They have places that this one may wait for.
        self.start_held();
        self.client.outbox.send().await;
        self.line.emptied().await;
        self.client.in_flight.admit(payload).await
    }
}

fn asked(head: &RequestHeader, what: What) -> PendingRequest {
    PendingRequest { cookie: head.cookie, offset: head.offset, what }
}

/// Reads that were answered inline since the last look at the counters.
#[derive(Debug, Default)]
struct Inline {
    reads: u64,
    bytes: u64,
}

impl Transmission {
    /// Answers a read if that needs no waiting, and says whether it did.
    fn read_now(&self, head: &RequestHeader, offset: u64, len: u32, hints: Hints) -> bool {
        let entry = &self.client.entry;
        if entry.has_left_behind() {
            return false;
        }
        let disk = entry.disk();
        let fill = |buf: &mut [u8]| {
            if buf.is_empty() { Some(ReadKind::Data) } else { disk.try_read(offset, buf, hints) }
        };
        match self.answer_filled(head, offset, len, fill) {
            None => false,
            Some(ReadKind::Data) => true,
            Some(ReadKind::Zeroes) => self.answer_zeroes(head, offset, len),
        }
    }

    /// Answers a read of nothing but zeroes, and says whether it did.
    fn answer_zeroes(&self, head: &RequestHeader, offset: u64, len: u32) -> bool {
        let Client { outbox, dialect, .. } = &*self.client;
        if let Some(hole) = hole_reply(*dialect, head.cookie, offset, len) {
            outbox.push_small(&hole, None);
            return true;
        }
        let zeroes = |buf: &mut [u8]| {
            buf.fill(0);
            Some(ReadKind::Data)
        };
        self.answer_filled(head, offset, len, zeroes).is_some()
    }

    /// Answers a read with the bytes that `fill` puts into the reply; gives what `fill` says. Nothing is answered unless that is
    /// [`ReadKind::Data`]; `None` also where the account of the client has no room for the reply.
    fn answer_filled(
        &self,
        head: &RequestHeader,
        offset: u64,
        len: u32,
        fill: impl FnOnce(&mut [u8]) -> Option<ReadKind>,
    ) -> Option<ReadKind> {
        let Client { outbox, dialect, in_flight, .. } = &*self.client;
        let size = usize::try_from(len).unwrap_or(usize::MAX);
        let permit = match outbox.needs_permit(size) {
            false => None,
            true => Some(in_flight.try_admit(u64::from(len))?),
        };
        let reply = read_head(*dialect, head.cookie, offset, len);
        outbox.push_filled(&reply, size, permit, fill)
    }

    fn count_inline(&mut self) {
        let Inline { reads, bytes } = std::mem::take(&mut self.inline);
        if reads > 0 {
            self.client.entry.counters().read_inline(reads, bytes);
        }
    }
}

/// Bytes of a request's header at most (NBD protocol, "Extended request message").
const HEAD_BYTES_MAX: usize = 32;

/// The header of the request that is taken in now, and what of it goes to another process.
#[derive(Debug, Default)]
struct AtHand {
    head: [u8; HEAD_BYTES_MAX],
    /// How much of `head` counts.
    len: usize,
    /// A request whose payload had begun to come when the client was given away.
    begun: Vec<u8>,
}

impl AtHand {
    /// A request with this header is taken in from here on.
    fn begin(&mut self, head: &[u8]) {
        self.len = head.len().min(HEAD_BYTES_MAX);
        self.head[..self.len].copy_from_slice(&head[..self.len]);
    }

    /// It goes to another process, with as much of its payload as came.
    fn give(&mut self, payload: &[u8]) {
        self.begun = [&self.head[..self.len], payload].concat();
    }

    /// What goes to another process.
    fn begun(&self) -> &[u8] {
        &self.begun
    }
}

/// The line of one connection. Requests wait outside of the socket, and cost some hundred bytes each: so the reader goes on, and meets the end of the
/// connection behind them. What waits here when the client goes is never begun.
#[derive(Debug)]
struct Line {
    client: Rc<Client>,
    waiting: RefCell<VecDeque<PendingRequest>>,
    /// Something was put in: for the task of [`Line::run`].
    put: LocalEvent,
    /// Something was taken out: for the reader.
    taken: LocalEvent,
}

impl Line {
    fn new(client: &Rc<Client>) -> Rc<Self> {
        Rc::new(Self {
            client: Rc::clone(client),
            waiting: RefCell::default(),
            put: LocalEvent::default(),
            taken: LocalEvent::default(),
        })
    }

    /// Starts `asked`, now or when there is memory for it and for those before it. Ends when the line has room.
    async fn put(&self, asked: PendingRequest) {
        if self.is_empty()
            && let Some(permit) = self.client.in_flight.try_admit(asked.bytes())
        {
            return self.client.start(asked, permit);
        }
        self.client.outbox.send().await;
        self.taken.until(|| self.waiting.borrow().len() < REQUESTS_WAITING_MAX).await;
        self.waiting.borrow_mut().push_back(asked);
        self.put.wake();
    }

    /// Starts those that wait, for ever.
    async fn run(&self) {
        loop {
            self.put.until(|| !self.is_empty()).await;
            let Some(bytes) = self.waiting.borrow().front().map(PendingRequest::bytes) else { continue };
            let permit = self.client.in_flight.admit(bytes).await;
            // It stayed in line meanwhile, or was given up with it.
            let asked = self.waiting.borrow_mut().pop_front();
            if let Some(asked) = asked {
                self.client.start(asked, permit);
                // Its reply may be there already, and the reader may be waiting for bytes.
                self.client.outbox.nudge();
            }
            self.taken.wake();
        }
    }

    fn is_empty(&self) -> bool {
        self.waiting.borrow().is_empty()
    }

    /// Ends when nothing waits.
    async fn emptied(&self) {
        self.taken.until(|| self.is_empty()).await;
    }

    /// Gives up what waits. Says how many.
    fn clear(&self) -> usize {
        let given_up = std::mem::take(&mut *self.waiting.borrow_mut());
        self.taken.wake();
        given_up.len()
    }
}
