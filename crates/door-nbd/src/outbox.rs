//! Replies of one connection on their way out, in batches.

use std::cell::{Cell, RefCell};
use std::io;
use std::rc::Rc;
use std::time::Duration;

use export::{LocalEvent, Permit, ReadKind};
use memory::{IoBuf, IoBytes, IoVec};
use net::tls::Transport;

use crate::limits::{
    BACKLOG_BYTES_MAX, BATCH_BYTES_MAX, BATCH_REPLIES_MAX, REPLY_BUFFER_BYTES, SEND_BYTES_MAX,
    SHARED_REPLY_BYTES_MAX, UNCOUNTED_BYTES_MAX,
};

/// Replies that were not sent yet. Headers, and the data of small inline reads, stand one after
/// another in a shared buffer, so that a batch of them is one part of one send; larger payloads are
/// parts of their own.
#[derive(Debug)]
pub(crate) struct Outbox {
    /// The connection, for the log.
    span: tracing::Span,
    transport: Rc<Transport>,
    queue: RefCell<Queue>,
    sending: Cell<bool>,
    failed: Cell<bool>,
    /// How long the client may take to read [`SEND_BYTES_MAX`].
    stall_timeout: Duration,
    stalled: Cell<bool>,
    /// Something was sent.
    progress: LocalEvent,
    /// Something is to be sent and no task sends.
    work: LocalEvent,
    closed: Cell<bool>,
}

#[derive(Debug)]
struct Queue {
    /// Complete parts.
    parts: IoVec,
    /// The shared buffer behind its finished parts; its first `filled` bytes come after `parts`.
    shared: IoBuf,
    filled: usize,
    replies: usize,
    /// Of the requests that `parts` answer.
    permits: Vec<Permit>,
    /// Bytes of replies without a permit.
    uncounted: usize,
}

impl Queue {
    fn bytes(&self) -> usize {
        self.parts.len() + self.filled
    }

    /// Makes the filled bytes of the shared buffer a part.
    fn cut(&mut self) {
        if self.filled > 0 {
            let part = self.shared.split_to(self.filled).freeze();
            self.filled = 0;
            self.parts.push(part);
        }
    }

    /// Room for `count` bytes in the shared buffer.
    fn room(&mut self, count: usize) -> &mut [u8] {
        if self.shared.len() - self.filled < count {
            self.cut();
            self.shared = IoBuf::uninit(REPLY_BUFFER_BYTES.max(count));
        }
        &mut self.shared[self.filled..self.filled + count]
    }

    fn put(&mut self, bytes: &[u8]) {
        self.room(bytes.len()).copy_from_slice(bytes);
        self.filled += bytes.len();
    }

    /// Whether as much waits as may: in all, and of what is in no account.
    fn is_long(&self) -> bool {
        self.bytes() >= BACKLOG_BYTES_MAX || self.uncounted >= UNCOUNTED_BYTES_MAX
    }

    /// One more reply, of `bytes` bytes.
    fn added(&mut self, bytes: usize, permit: Option<Permit>) {
        self.replies += 1;
        self.uncounted += if permit.is_none() { bytes } else { 0 };
        self.permits.extend(permit);
    }

    fn take(&mut self) -> (IoVec, Vec<Permit>) {
        self.cut();
        (self.replies, self.uncounted) = (0, 0);
        (std::mem::take(&mut self.parts), std::mem::take(&mut self.permits))
    }
}

impl Outbox {
    pub(crate) fn new(transport: Rc<Transport>, stall_timeout: Duration) -> Rc<Self> {
        let shared = IoBuf::uninit(REPLY_BUFFER_BYTES);
        let queue =
            Queue { parts: IoVec::new(), shared, filled: 0, replies: 0, permits: Vec::new(), uncounted: 0 };
        Rc::new(Self {
            span: tracing::Span::current(),
            transport,
            queue: RefCell::new(queue),
            sending: Cell::new(false),
            failed: Cell::new(false),
            stall_timeout,
            stalled: Cell::new(false),
            progress: LocalEvent::default(),
            work: LocalEvent::default(),
            closed: Cell::new(false),
        })
    }

    /// The connection, for the log: requests that had to wait end outside of its span.
    pub(crate) fn span(&self) -> &tracing::Span {
        &self.span
    }

    /// Adds a whole reply of a few bytes.
    pub(crate) fn push_small(&self, reply: &[u8], permit: Option<Permit>) {
        if self.has_failed() {
            return;
        }
        let mut queue = self.queue.borrow_mut();
        queue.put(reply);
        queue.added(reply.len(), permit);
    }

    /// Adds a reply of `head` and `payload`.
    pub(crate) fn push(&self, head: &[u8], payload: IoBytes, permit: Option<Permit>) {
        if self.has_failed() {
            return;
        }
        let mut queue = self.queue.borrow_mut();
        let bytes = head.len() + payload.len();
        queue.put(head);
        queue.cut();
        queue.parts.push(payload);
        queue.added(bytes, permit);
    }

    /// Whether a reply of `len` bytes has to be in the account: it has memory of its own, or others wait already.
    pub(crate) fn needs_permit(&self, len: usize) -> bool {
        len > SHARED_REPLY_BYTES_MAX || self.sending.get()
    }

    /// Adds a reply of `head` and `len` bytes if `fill` has filled them; gives what `fill` says.
    pub(crate) fn push_filled(
        &self,
        head: &[u8],
        len: usize,
        permit: Option<Permit>,
        fill: impl FnOnce(&mut [u8]) -> Option<ReadKind>,
    ) -> Option<ReadKind> {
        if len > SHARED_REPLY_BYTES_MAX {
            // Without memory the request waits, and is notified.
            let mut payload = IoBuf::try_uninit(len)?;
            payload.truncate(len);
            let filled = fill(&mut payload[..len]);
            if filled == Some(ReadKind::Data) {
                self.push(head, payload.freeze(), permit);
            }
            return filled;
        }
        let mut queue = self.queue.borrow_mut();
        let room = queue.room(head.len() + len);
        let (head_room, payload) = room.split_at_mut(head.len());
        let filled = fill(payload);
        if filled == Some(ReadKind::Data) {
            head_room.copy_from_slice(head);
            queue.filled += head.len() + len;
            queue.added(head.len() + len, permit);
        }
        filled
    }

    /// Whether there is enough for a send.
    pub(crate) fn is_due(&self) -> bool {
        let queue = self.queue.borrow();
        queue.replies >= BATCH_REPLIES_MAX || queue.bytes() >= BATCH_BYTES_MAX
    }

    /// Whether the socket has failed: what is added from now on is dropped.
    pub(crate) fn has_failed(&self) -> bool {
        self.failed.get()
    }

    /// Has [`Outbox::run`] send what is there, once the tasks that are ready have added theirs.
    pub(crate) fn nudge(&self) {
        if !self.sending.get() {
            self.work.wake();
        }
    }

    /// Sends all that is there; if another task is sending, only waits until few enough bytes are left.
    pub(crate) async fn send(&self) {
        if self.sending.get() {
            let is_small = || !self.sending.get() || !self.queue.borrow().is_long();
            return self.progress.until(is_small).await;
        }
        if self.queue.borrow().bytes() == 0 {
            return;
        }
        let mut sending = Sending::start(self);
        while self.queue.borrow().bytes() > 0 {
            let (data, permits) = self.queue.borrow_mut().take();
            if !self.failed.get()
                && let Err(error) = self.send_in_time(data).await
            {
                tracing::debug!(%error, "replies cannot be sent");
                self.failed.set(true);
            }
            drop(permits);
            self.progress.wake();
        }
        sending.is_done = true;
    }

    async fn send_in_time(&self, mut data: IoVec) -> io::Result<()> {
        while !data.is_empty() {
            let rest = data.slice(data.len().min(SEND_BYTES_MAX), data.len());
            let piece = if rest.is_empty() { data } else { data.slice(0, SEND_BYTES_MAX) };
            match reactor::within(self.stall_timeout, self.transport.send_all(piece)).await {
                Some(result) => result?,
                None => {
                    self.stalled.set(true);
                    self.transport.hang_up();
                    return Err(io::ErrorKind::TimedOut.into());
                }
            }
            data = rest;
        }
        Ok(())
    }

    /// Whether the client has not read its replies for too long.
    pub(crate) fn has_stalled(&self) -> bool {
        self.stalled.get()
    }

    /// Replies are not read any more: what waits is dropped, what is added too.
    pub(crate) fn abandon(&self) {
        self.failed.set(true);
        let dropped = self.queue.borrow_mut().take();
        drop(dropped);
        self.progress.wake();
        self.work.wake();
    }

    /// Sends all that is there, or waits for the task that is sending it.
    pub(crate) async fn finish(&self) {
        self.send().await;
        self.progress.until(|| !self.sending.get()).await;
    }

    /// Sends what tasks add, until [`Outbox::close`].
    pub(crate) async fn run(&self) {
        while !self.closed.get() {
            let has_work = || !self.sending.get() && self.queue.borrow().bytes() > 0;
            self.work.until(|| self.closed.get() || has_work()).await;
            self.send().await;
        }
    }

    /// Ends [`Outbox::run`].
    pub(crate) fn close(&self) {
        self.closed.set(true);
        self.work.wake();
    }
}

/// The send under way. A send that is dropped half-way has sent any part of a reply: the stream is of no use then.
struct Sending<'a> {
    outbox: &'a Outbox,
    is_done: bool,
}

impl<'a> Sending<'a> {
    fn start(outbox: &'a Outbox) -> Self {
        outbox.sending.set(true);
        Self { outbox, is_done: false }
    }
}

impl Drop for Sending<'_> {
    fn drop(&mut self) {
        self.outbox.sending.set(false);
        if !self.is_done {
            self.outbox.failed.set(true);
        }
        self.outbox.progress.wake();
    }
}
