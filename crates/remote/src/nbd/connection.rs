//! A connection in transmission.
//!
//! Two tasks of the loop that made it send and receive ([`crate::nbd::connect`]); requests of any thread go through its
//! table. A task that finds the connection broken says so once ([`Connection::lose`]): both tasks end, and
//! all waiting requests are completed.

use std::future::poll_fn;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::task::{Poll, Waker};
use std::thread::ThreadId;

use memory::{IoBuf, IoVec};
use net::dial::line::{InFlight, Protocol, Unflushed};
use wire::nbd::client::Negotiated;
use wire::nbd::{Dialect, ExportFlags, HeaderBytes};

use crate::nbd::ask::{Ask, What, header};
use crate::nbd::errors::Error;
use crate::nbd::incoming::{Broken, Incoming, Reply};

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

/// What is kept of requests to an NBD server.
#[derive(Debug)]
pub(crate) struct Nbd;

/// What is to be sent.
#[derive(Debug, Default)]
pub(crate) struct Outbox {
    requests: Vec<Outgoing>,
    sender: Option<Waker>,
    closing: bool,
}

impl Protocol for Nbd {
    type Kind = What;
    type Request = Incoming;
    type Reply = Reply;
    type Error = Error;
    type Shared = Outbox;
    /// More would only wait at the server.
    const IN_FLIGHT_MAX: usize = 128;

    fn lost(incoming: Incoming, error: Error) -> Reply {
        incoming.end_with(Err(error))
    }
}

/// A connection.
#[derive(Debug)]
pub(crate) struct Connection {
    /// What was agreed on.
    pub(crate) negotiated: Negotiated,
    /// The thread whose loop has its tasks.
    pub(crate) owner: ThreadId,
    requests: InFlight<Nbd>,
    /// The socket, to end it from any thread.
    socket: OwnedFd,
}

impl Connection {
    pub(crate) fn new(negotiated: Negotiated, unflushed: Arc<Unflushed<What>>, socket: OwnedFd) -> Self {
        let owner = std::thread::current().id();
        Self { negotiated, owner, requests: InFlight::new(unflushed), socket }
    }

    /// The number by which the server calls the context that was asked for, if it has it.
    pub(crate) fn allocation_context(&self) -> Option<u32> {
        self.negotiated.contexts.first().map(|(_, id)| *id)
    }

    /// Why it is of no use any more, if it is not.
    pub(crate) fn lost(&self) -> Option<Error> {
        self.requests.lock().lost().cloned()
    }

    /// Requests on their way.
    pub(crate) fn in_flight(&self) -> usize {
        self.requests.lock().in_flight()
    }

    /// Sends a request and waits for its reply. Dropped, the request is still on its way.
    pub(crate) async fn request(&self, ask: &Ask, mut buf: Option<IoBuf>) -> Reply {
        let entered = self.requests.entered(|| self.enter(ask, &mut buf)).await;
        match entered {
            Ok(taken) => taken.await,
            Err(error) => Reply { result: Err(error), buf, extents: Vec::new() },
        }
    }

    fn enter(&self, ask: &Ask, buf: &mut Option<IoBuf>) -> Result<Option<u64>, Error> {
        let mut table = self.requests.lock();
        let Some(cookie) = table.enter(ask, || Incoming::into_buf(buf.take()))? else { return Ok(None) };
        let dialect = self.negotiated.dialect;
        let header = header(ask, cookie, dialect == Dialect::Extended).encode(dialect);
        table.shared.requests.push(Outgoing { header, payload: ask.data.clone() });
        let sender = table.shared.sender.take();
        drop(table);
        if let Some(sender) = sender {
            sender.wake();
        }
        Ok(Some(cookie))
    }

    /// What is to be sent, once there is something.
    pub(crate) async fn to_send(&self) -> ToSend {
        poll_fn(|cx| {
            let mut table = self.requests.lock();
            if table.lost().is_some() {
                return Poll::Ready(ToSend::Nothing);
            }
            let outbox = &mut table.shared;
            if !outbox.requests.is_empty() {
                return Poll::Ready(ToSend::Requests(std::mem::take(&mut outbox.requests)));
            }
            if outbox.closing {
                return Poll::Ready(ToSend::Goodbye);
            }
            outbox.sender = Some(cx.waker().clone());
            Poll::Pending
        })
        .await
    }

    /// Changes what is kept of the request with this cookie by what arrived.
    pub(crate) fn arrived<T>(
        &self,
        cookie: u64,
        change: impl FnOnce(&Ask, &mut Incoming) -> Result<T, Broken>,
    ) -> Result<T, Broken> {
        let mut table = self.requests.lock();
        let (ask, incoming) = table.waiting(cookie).ok_or_else(|| unknown(cookie))?;
        change(ask, incoming)
    }

    /// The reply to `cookie` is complete.
    pub(crate) fn answered(&self, cookie: u64) -> Result<(), Broken> {
        let mut table = self.requests.lock();
        let (ask, incoming) = table.waiting(cookie).ok_or_else(|| unknown(cookie))?;
        incoming.check_whole(ask)?;
        let is_flushed = self.negotiated.flags.has(ExportFlags::FLUSH);
        self.requests.answered(table, cookie, |incoming| {
            let reply = incoming.end();
            let counts = is_flushed && reply.result.is_ok();
            (reply, counts)
        });
        Ok(())
    }

    /// The connection is of no use any more.
    pub(crate) fn lose(&self, reason: &str) {
        self.end(Error::Lost(reason.into()));
    }

    /// Likewise; `error` is returned to all waiting requests.
    pub(crate) fn end(&self, error: Error) {
        let mut table = self.requests.lock();
        if table.lost().is_some() {
            return;
        }
        let reported = table.lose(error);
        table.shared.requests.clear();
        let sender = table.shared.sender.take();
        drop(table);
        // Fails where the server was faster.
        let _ = rustix::net::shutdown(&self.socket, rustix::net::Shutdown::Both);
        self.requests.wake(reported.into_iter().chain(sender));
    }

    /// The storage is not used any more: what is on its way is sent, then a goodbye.
    pub(crate) fn close(&self) {
        let mut table = self.requests.lock();
        table.shared.closing = true;
        let sender = table.shared.sender.take();
        drop(table);
        if let Some(sender) = sender {
            sender.wake();
        }
    }
}

fn unknown(cookie: u64) -> Broken {
    format!("a reply has cookie {cookie:#x}, which no request on its way has")
}
