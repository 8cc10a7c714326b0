//! A connection in transmission.
//!
//! Two tasks of the loop that made it send and receive ([`crate::send`], [`crate::receive`]); requests of any thread go through the
//! table here. A task that finds the connection broken says so once ([`Connection::lose`]): both tasks end, and
//! all waiting requests are completed.

use std::future::poll_fn;
use std::os::fd::OwnedFd;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::thread::ThreadId;

use buffer::{IoBuf, IoVec};
use event_listener::Event;
use nbd_wire::client::Negotiated;
use nbd_wire::{Dialect, ExportFlags, HeaderBytes};
use parking_lot::Mutex;
use storage::Unflushed;

use crate::ask::{Ask, What};
use crate::errors::Error;
use crate::slots::{Broken, Ended, Reply, Slots};

/// A request that is to be sent.
#[derive(Debug)]
pub(crate) struct Outgoing {
    pub(crate) header: HeaderBytes,
    pub(crate) payload: IoVec,
}

/// What the sender is to do next.
#[derive(Debug)]
pub(crate) enum ToSend {
    Requests(Vec<Outgoing>),
    /// The storage is not used any more.
    Goodbye,
    /// The connection is lost.
    Nothing,
}

#[derive(Debug)]
struct Table {
    slots: Slots,
    outgoing: Vec<Outgoing>,
    sender: Option<Waker>,
    lost: Option<Error>,
    closing: bool,
}

/// A connection.
#[derive(Debug)]
pub(crate) struct Connection {
    /// What was agreed on.
    pub(crate) negotiated: Negotiated,
    /// The thread whose loop has its tasks.
    pub(crate) owner: ThreadId,
    table: Mutex<Table>,
    /// A slot is free, or the connection is lost.
    room: Event,
    unflushed: Arc<Unflushed<Ask>>,
    /// The socket, to end it from any thread.
    socket: OwnedFd,
}

impl Connection {
    pub(crate) fn new(negotiated: Negotiated, unflushed: Arc<Unflushed<Ask>>, socket: OwnedFd) -> Self {
        let table =
            Table { slots: Slots::default(), outgoing: Vec::new(), sender: None, lost: None, closing: false };
        let owner = std::thread::current().id();
        Self { negotiated, owner, table: Mutex::new(table), room: Event::new(), unflushed, socket }
    }

    /// The number by which the server calls the context that was asked for, if it has it.
    pub(crate) fn allocation_context(&self) -> Option<u32> {
        self.negotiated.contexts.first().map(|(_, id)| *id)
    }

    /// Why it is of no use any more, if it is not.
    pub(crate) fn lost(&self) -> Option<Error> {
        self.table.lock().lost.clone()
    }

    /// Requests on their way.
    pub(crate) fn in_flight(&self) -> usize {
        self.table.lock().slots.in_flight()
    }

    /// Sends a request and waits for its reply. Dropped, the request is still on its way.
    pub(crate) async fn request(&self, ask: &Ask, buf: Option<IoBuf>) -> Reply {
        let mut entered = self.enter(ask, buf);
        while let Err(Turned { back, lost: None }) = entered {
            let room = self.room.listen();
            entered = match self.enter(ask, back) {
                Err(Turned { back, lost: None }) => {
                    room.await;
                    self.enter(ask, back)
                }
                other => other,
            };
        }
        match entered {
            Ok(index) => Pending { connection: self, index: Some(index) }.await,
            Err(Turned { back, lost }) => {
                let error = lost.unwrap_or(Error::Unsupported("take more requests"));
                Reply { result: Err(error), buf: back, extents: Vec::new() }
            }
        }
    }

    fn enter(&self, ask: &Ask, buf: Option<IoBuf>) -> Result<usize, Turned> {
        let mark = if matches!(ask.what, What::Flush) && !ask.is_repeat { self.unflushed.mark() } else { 0 };
        let mut table = self.table.lock();
        if let Some(error) = table.lost.clone() {
            return Err(Turned { back: buf, lost: Some(error) });
        }
        let entered = table.slots.enter(ask.clone(), mark, buf);
        let (index, cookie) = entered.map_err(|back| Turned { back, lost: None })?;
        let dialect = self.negotiated.dialect;
        let header = ask.header(cookie, dialect == Dialect::Extended).encode(dialect);
        table.outgoing.push(Outgoing { header, payload: ask.payload() });
        let sender = table.sender.take();
        drop(table);
        if let Some(sender) = sender {
            sender.wake();
        }
        Ok(index)
    }

    /// What is to be sent, once there is something.
    pub(crate) async fn to_send(&self) -> ToSend {
        poll_fn(|cx| {
            let mut table = self.table.lock();
            if table.lost.is_some() {
                return Poll::Ready(ToSend::Nothing);
            }
            if !table.outgoing.is_empty() {
                return Poll::Ready(ToSend::Requests(std::mem::take(&mut table.outgoing)));
            }
            if table.closing {
                return Poll::Ready(ToSend::Goodbye);
            }
            table.sender = Some(cx.waker().clone());
            Poll::Pending
        })
        .await
    }

    /// Changes the table of requests by what arrived.
    pub(crate) fn arrived<T>(
        &self,
        change: impl FnOnce(&mut Slots) -> Result<T, Broken>,
    ) -> Result<T, Broken> {
        change(&mut self.table.lock().slots)
    }

    /// The reply to `cookie` is complete.
    pub(crate) fn answered(&self, cookie: u64) -> Result<(), Broken> {
        let mut table = self.table.lock();
        let Ended { ask, mark, succeeded, waker } = table.slots.end(cookie)?;
        // Before a request is answered: its client may flush then. And before the connection may be lost: what another one repeats has this write.
        if succeeded && matches!(ask.what, What::Flush) {
            self.unflushed.flushed(mark);
        } else if succeeded && ask.is_to_be_flushed() && self.negotiated.flags.has(ExportFlags::FLUSH) {
            self.unflushed.acknowledged(ask);
        }
        drop(table);
        match waker {
            Some(waker) => waker.wake(),
            // No task waits: the slot is free already.
            None => _ = self.room.notify(1),
        }
        Ok(())
    }

    /// The connection is of no use any more.
    pub(crate) fn lose(&self, reason: &str) {
        self.end(Error::Lost(reason.into()));
    }

    /// Likewise; `error` is returned to all waiting requests.
    pub(crate) fn end(&self, error: Error) {
        let mut table = self.table.lock();
        if table.lost.is_some() {
            return;
        }
        table.lost = Some(error.clone());
        table.outgoing.clear();
        let reported = table.slots.end_all(&error);
        let sender = table.sender.take();
        drop(table);
        // Fails where the server was faster.
        let _ = rustix::net::shutdown(&self.socket, rustix::net::Shutdown::Both);
        reported.into_iter().chain(sender).for_each(Waker::wake);
        self.room.notify(usize::MAX);
    }

    /// The storage is not used any more: what is on its way is sent, then a goodbye.
    pub(crate) fn close(&self) {
        let mut table = self.table.lock();
        table.closing = true;
        let sender = table.sender.take();
        drop(table);
        if let Some(sender) = sender {
            sender.wake();
        }
    }
}

/// A request that was not taken.
struct Turned {
    back: Option<IoBuf>,
    /// None if there was no room.
    lost: Option<Error>,
}

/// Waits for a reply.
struct Pending<'a> {
    connection: &'a Connection,
    /// None once the reply was taken: the slot is another task's then.
    index: Option<usize>,
}

impl Future for Pending<'_> {
    type Output = Reply;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Reply> {
        let Some(index) = self.index else { return Poll::Pending };
        let Some(reply) = self.connection.table.lock().slots.poll(index, cx.waker()) else {
            return Poll::Pending;
        };
        self.index = None;
        self.connection.room.notify(1);
        Poll::Ready(reply)
    }
}

impl Drop for Pending<'_> {
    fn drop(&mut self) {
        if let Some(index) = self.index {
            self.connection.table.lock().slots.abandon(index);
            self.connection.room.notify(1);
        }
    }
}
