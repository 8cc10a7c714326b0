//! The shell around sessions: sockets, time, and nothing to decide.

use std::cell::{Cell, RefCell};
use std::future::Future;
use std::io;
use std::os::fd::OwnedFd;
use std::pin::{Pin, pin};
use std::rc::{Rc, Weak};
use std::time::Instant;

use futures_util::future::{Either, join_all, select};
use memory::IoBuf;
use reactor::net::{Listener, Stream};
use serde_json::Value;

use crate::events::Events;
use crate::limits::{ACCEPT_PAUSE, CLIENTS_DEFAULT, FAREWELL, PATIENCE, RECEIVE_BYTES};
use crate::message::Command;
use crate::outbox::Outbox;
use crate::passed::Passed;
use crate::schema::{CommandSpec, EventSpec};
use crate::session::{Session, Step};
use crate::wire::Form;
use crate::{Answer, QmpError, wire};

/// What a command comes to.
pub type Outcome<'a> = Pin<Box<dyn Future<Output = Result<Answer, QmpError>> + 'a>>;

/// Does the commands.
pub trait Handler {
    /// All that can be done, with the arguments of each.
    fn commands(&self) -> &'static [CommandSpec];

    /// All that clients are notified of.
    fn events(&self) -> &'static [EventSpec];

    /// What `query-version` returns.
    fn version(&self) -> Value;

    /// Does one, whose arguments fit its schema. A client's commands come one after another, those of several clients at
    /// the same time. It is never dropped half-way, also when its client has gone. `passed` are the descriptors that its
    /// client sent.
    fn execute<'a>(&'a self, command: &'a Command, passed: &'a Passed) -> Outcome<'a>;
}

/// How a server treats its clients.
#[derive(Clone, Copy, Debug)]
pub struct ServerOptions {
    /// Clients at a time; one more gets an error and is sent away.
    pub clients: usize,
}

impl Default for ServerOptions {
    fn default() -> Self {
        Self { clients: CLIENTS_DEFAULT }
    }
}

/// Serves QMP on the event loop of its thread.
pub struct Server {
    handler: Rc<dyn Handler>,
    events: Rc<Events>,
    options: ServerOptions,
    clients: Cell<usize>,
    outboxes: RefCell<Vec<Weak<Outbox>>>,
}

impl Server {
    /// A server of what `handler` does.
    pub fn new(handler: Rc<dyn Handler>, events: Rc<Events>, options: ServerOptions) -> Rc<Self> {
        Rc::new(Self { handler, events, options, clients: Cell::new(0), outboxes: RefCell::default() })
    }

    /// Accepts clients for ever.
    pub async fn accept(self: Rc<Self>, listener: Listener, form: Form) {
        loop {
            match listener.accept().await {
                Ok(stream) => self.start(stream, form),
                Err(error) => {
                    tracing::warn!(%error, "cannot accept a control client");
                    reactor::sleep(ACCEPT_PAUSE).await;
                }
            }
        }
    }

    /// Waits for a moment until all clients were sent what is queued for them, then hangs up.
    pub async fn farewell(&self) {
        let outboxes: Vec<_> = self.outboxes.borrow().iter().filter_map(Weak::upgrade).collect();
        let all = join_all(outboxes.iter().map(|outbox| outbox.is_empty()));
        reactor::within(FAREWELL, all).await;
        outboxes.iter().for_each(|outbox| outbox.close());
    }

    /// Serves a client that is connected, and reads answers in `form`.
    pub fn start(self: &Rc<Self>, stream: Stream, form: Form) {
        if self.clients.get() >= self.options.clients {
            let most = self.options.clients;
            let error = QmpError::generic(format!("{most} clients are connected; no more are allowed"));
            tracing::warn!("{error}");
            let stream = Rc::new(stream);
            let outbox = Outbox::new(Rc::clone(&stream), form);
            outbox.push(wire::reply(Err(error), None));
            // The socket's own buffer takes a line; a client that does not read it has lost nothing.
            reactor::spawn(async move {
                let sent = pin!(Rc::clone(&outbox).send());
                select(sent, pin!(outbox.is_empty())).await;
                outbox.close();
            })
            .detach();
            return;
        }
        self.clients.set(self.clients.get() + 1);
        let server = Rc::clone(self);
        reactor::spawn(async move {
            server.serve(Rc::new(stream), form).await;
            server.clients.set(server.clients.get() - 1);
        })
        .detach();
    }

    async fn serve(&self, stream: Rc<Stream>, form: Form) {
        let outbox = Outbox::new(Rc::clone(&stream), form);
        self.outboxes.borrow_mut().retain(|other| other.strong_count() > 0);
        self.outboxes.borrow_mut().push(Rc::downgrade(&outbox));
        let sender = reactor::spawn(Rc::clone(&outbox).send());
        outbox.push(wire::greeting(&self.handler.version()));
        self.talk(&stream, &outbox).await;
        // What was answered before the end is still sent, to a client that reads.
        reactor::within(FAREWELL, outbox.is_empty()).await;
        outbox.close();
        sender.await;
    }

    async fn talk(&self, stream: &Stream, outbox: &Rc<Outbox>) {
        let mut session = Session::new(self.handler.commands(), self.handler.events());
        let (mut buf, passed) = (IoBuf::uninit(RECEIVE_BYTES), Passed::default());
        let mut deadline = Some(Instant::now() + PATIENCE);
        loop {
            outbox.has_room().await;
            if outbox.is_closed() {
                return;
            }
            let count = match receive(stream, buf, &passed, deadline).await {
                Some((count, back)) => {
                    buf = back;
                    count
                }
                None => return,
            };
            if !self.handle(&mut session, &buf[..count], &passed, outbox).await {
                return;
            }
            deadline = match (session.is_negotiated(), session.is_midway()) {
                (true, false) => None,
                (true, true) => deadline.or(Some(Instant::now() + PATIENCE)),
                (false, _) => deadline,
            };
        }
    }

    /// Does what `bytes` ask for; `false` if that was the last.
    async fn handle(
        &self,
        session: &mut Session,
        mut bytes: &[u8],
        passed: &Passed,
        outbox: &Rc<Outbox>,
    ) -> bool {
        loop {
            outbox.has_room().await;
            if outbox.is_closed() {
                return false;
            }
            let before = session.is_negotiated();
            let (taken, step) = session.step(bytes);
            bytes = &bytes[taken..];
            match step {
                Step::Need => return true,
                Step::Reply(line) => outbox.push(line),
                Step::Execute(command) => {
                    let outcome = self.handler.execute(&command, passed).await;
                    outbox.push(wire::reply(outcome, command.id));
                }
                Step::Close(line) => {
                    outbox.push(line);
                    return false;
                }
            }
            if !before && session.is_negotiated() {
                self.events.subscribe(outbox);
            }
        }
    }
}

/// Bytes from the client; `None` at its end, or after `deadline`.
async fn receive(
    stream: &Stream,
    buf: IoBuf,
    passed: &Passed,
    deadline: Option<Instant>,
) -> Option<(usize, IoBuf)> {
    let mut fds = Vec::new();
    let (result, buf) = receive_until(stream, buf, &mut fds, deadline).await?;
    if !fds.is_empty() {
        passed.replace(fds);
    }
    match result {
        Ok(0) | Err(_) => None,
        Ok(count) => Some((count, buf)),
    }
}

async fn receive_until(
    stream: &Stream,
    buf: IoBuf,
    fds: &mut Vec<OwnedFd>,
    deadline: Option<Instant>,
) -> Option<(io::Result<usize>, IoBuf)> {
    let received = pin!(stream.recv_with_fds(buf, fds));
    match deadline {
        None => Some(received.await),
        Some(deadline) => match select(received, pin!(reactor::sleep_until(deadline))).await {
            Either::Left((received, _)) => Some(received),
            Either::Right(_) => {
                tracing::info!("a control client is too slow; its connection is closed");
                None
            }
        },
    }
}
