//! The connections to one export: which of them takes a request, and what becomes of it when they are lost.

use std::pin::pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use memory::IoBuf;
use net::dial::line::{Backoff, End, Line, Redial, Unflushed};
use wire::nbd::ExportFlags;
use wire::nbd::client::Negotiated;

use crate::nbd::ask::{Ask, What};
use crate::nbd::connect::{ExportInfo, block_sizes, shares};
use crate::nbd::connection::Connection;
use crate::nbd::errors::Error;
use crate::nbd::incoming::Reply;

/// Most connections of one storage: each is a thread's or a task's work at the server.
const CONNECTIONS_MAX: usize = 4;
/// With so many requests on their way over a connection another one is made.
const BUSY: usize = 16;
/// An attempt to connect takes at most this long.
const ATTEMPT_MAX: Duration = Duration::from_secs(10);
/// And is given at least this long.
const ATTEMPT_MIN: Duration = Duration::from_secs(1);
/// A server that takes long to open an export is waited for, where no time is given to open it.
const OPENING_MAX: Duration = Duration::from_secs(60);
/// Repeating what was not flushed takes at most this long.
const REPEAT_MAX: Duration = Duration::from_secs(60);

/// The connections of one storage.
#[derive(Debug)]
pub(crate) struct Client {
    found: ExportInfo,
    /// What every connection must say of the export.
    pub(crate) negotiated: Negotiated,
    is_written: bool,
    reconnect_delay: Duration,
    remote_timeout: Option<Duration>,
    pub(crate) unflushed: Arc<Unflushed<What>>,
    line: Line<Self>,
    /// A task makes one more connection, or the server did not take it. Changed under the lock of the line, or by that task.
    no_more: AtomicBool,
}

/// How an export is opened.
#[derive(Debug)]
pub(crate) struct Opening {
    pub(crate) found: ExportInfo,
    pub(crate) is_written: bool,
    pub(crate) reconnect_delay: Duration,
    pub(crate) open_timeout: Duration,
    pub(crate) remote_timeout: Option<Duration>,
    pub(crate) unflushed: Unflushed<What>,
}

impl Client {
    /// Connects, until the timeout of `opening` if that fails.
    ///
    /// # Errors
    /// With what became of the last attempt.
    pub(crate) async fn open(opening: Opening) -> Result<Arc<Self>, Error> {
        let Opening { found, is_written, reconnect_delay, open_timeout, remote_timeout, unflushed } = opening;
        let unflushed = Arc::new(unflushed);
        let until = Instant::now() + open_timeout;
        let mut pauses = Self::PAUSES;
        let connection = loop {
            let timeout = if open_timeout.is_zero() { OPENING_MAX } else { attempt_time(until) };
            match found.connect(&unflushed, timeout).await {
                Ok(connection) => break connection,
                Err(error) if Instant::now() >= until => return Err(error),
                // The last attempt is made when the time is over: a server that starts until then is found.
                Err(_) => {
                    let left = until.saturating_duration_since(Instant::now());
                    reactor::sleep(pauses.pause().min(left)).await;
                }
            }
        };
        let negotiated = connection.negotiated.clone();
        let line = Line::new(&found.name, connection, Some(reconnect_delay));
        let no_more = AtomicBool::new(!found.is_made_again() || (is_written && !shares(&negotiated)));
        Ok(Arc::new(Self {
            found,
            negotiated,
            is_written,
            reconnect_delay,
            remote_timeout,
            unflushed,
            line,
            no_more,
        }))
    }

    /// Sends a request; again over a new connection when one is lost, for as long as it may take to come back.
    pub(crate) async fn run(self: &Arc<Self>, ask: &Ask, mut buf: Option<IoBuf>) -> Reply {
        let mut until = None;
        loop {
            let pick = |connections: &[Arc<Connection>]| self.pick(&ask.kind, connections);
            let connection = match Line::connection(self, pick).await {
                Ok(connection) => connection,
                Err(error) => return Reply { result: Err(error), buf, extents: Vec::new() },
            };
            let reply = self.ask(&connection, ask, buf).await;
            match &reply.result {
                Err(Error::LoopEnded) => {}
                Err(Error::Lost(_)) => {
                    let now = Instant::now();
                    if now >= *until.get_or_insert(now + self.reconnect_delay) {
                        return reply;
                    }
                }
                _ => return reply,
            }
            let len = usize::try_from(ask.len).unwrap_or(usize::MAX);
            let is_read = ask.kind == What::Read;
            // The one that it had went with the connection.
            buf = reply.buf.or_else(|| is_read.then(|| IoBuf::try_uninit(len)).flatten());
            if is_read && buf.is_none() {
                return Reply { buf: None, ..reply };
            }
        }
    }

    /// Sends a request over `connection`. A server that does not answer in time has lost the connection: what it may still do of the
    /// requests on their way is not waited for.
    async fn ask(&self, connection: &Connection, ask: &Ask, buf: Option<IoBuf>) -> Reply {
        let Some(timeout) = self.remote_timeout else { return connection.request(ask, buf).await };
        let mut request = pin!(connection.request(ask, buf));
        match reactor::within(timeout, request.as_mut()).await {
            Some(reply) => reply,
            None => {
                connection.lose(&format!("no answer within {} s (remote-timeout)", timeout.as_secs()));
                request.await
            }
        }
    }

    fn pick(self: &Arc<Self>, what: &What, connections: &[Arc<Connection>]) -> Option<Arc<Connection>> {
        let first = connections.first()?;
        if *what == What::Flush {
            return Some(Arc::clone(first));
        }
        let thread = std::thread::current().id();
        let mine = |connection: &&Arc<Connection>| connection.owner == thread;
        let load = |connection: &&Arc<Connection>| connection.in_flight();
        let own = connections.iter().filter(mine).min_by_key(load);
        let chosen = own.or_else(|| connections.iter().min_by_key(load))?;
        let room = !self.no_more.load(Ordering::Relaxed) && connections.len() < CONNECTIONS_MAX;
        if room && (chosen.owner != thread || chosen.in_flight() >= BUSY) {
            self.no_more.store(true, Ordering::Relaxed);
            reactor::spawn(one_more(Arc::downgrade(self))).detach();
        }
        Some(Arc::clone(chosen))
    }

    fn check_same(&self, found: &Negotiated) -> Result<(), Error> {
        let was = &self.negotiated;
        let what = if found.size != was.size {
            format!("the export has {} bytes now and had {}", found.size, was.size)
        } else if !found.flags.has(was.flags.without(ExportFlags::READ_ONLY))
            || (self.is_written && found.flags.has(ExportFlags::READ_ONLY))
        {
            "the export cannot do any more what it could".to_owned()
        } else if block_sizes(found).minimum > block_sizes(was).minimum
            || block_sizes(found).maximum < block_sizes(was).maximum
        {
            "the export takes blocks of other sizes than it did".to_owned()
        } else {
            return Ok(());
        };
        Err(Error::Export { server: self.found.name.clone(), what })
    }

    async fn repeat(&self, connection: &Connection) -> Result<(), Error> {
        let send = async |ask: &Ask| connection.request(ask, None).await.result;
        let timeout = self.remote_timeout.map_or(REPEAT_MAX, |timeout| timeout.min(REPEAT_MAX));
        let sent = reactor::within(timeout, self.unflushed.repeat(send)).await;
        let (server, seconds) = (&self.found.name, timeout.as_secs());
        sent.unwrap_or_else(|| Err(Error::Silent { server: server.clone(), seconds }))
    }
}

impl Redial for Client {
    type Connection = Connection;
    type Error = Error;
    const PAUSES: Backoff = Backoff { next: Duration::from_millis(20), longest: Duration::from_secs(1) };

    fn line(&self) -> &Line<Self> {
        &self.line
    }

    fn end_of(connection: &Connection) -> Option<End> {
        connection.lost().map(|error| match error {
            Error::LoopEnded => End::Loop,
            lost => End::Lost(lost.to_string()),
        })
    }

    fn lost(&self, connections: Vec<Arc<Connection>>) {
        for connection in connections {
            connection.lose("another connection to the same export was");
        }
        self.unflushed.connection_lost();
        tracing::warn!("{}: the connection is lost", self.found.name);
    }

    async fn restore(&self, until: Option<Instant>) -> Result<Arc<Connection>, Error> {
        let timeout = until.map_or(ATTEMPT_MAX, attempt_time);
        let connection = self.found.connect(&self.unflushed, timeout).await?;
        let restored = async {
            self.check_same(&connection.negotiated)?;
            self.repeat(&connection).await
        };
        restored.await.inspect_err(|_| connection.close())?;
        Ok(connection)
    }

    fn restored(&self) {
        tracing::info!("{}: connected again", self.found.name);
        self.no_more.store(self.is_written && !shares(&self.negotiated), Ordering::Relaxed);
    }

    fn ends(&self) -> Error {
        Error::Lost("this program ends".into())
    }
}

impl Drop for Client {
    fn drop(&mut self) {
        self.line.take_all().iter().for_each(|connection| connection.close());
    }
}

fn attempt_time(until: Instant) -> Duration {
    until.saturating_duration_since(Instant::now()).clamp(ATTEMPT_MIN, ATTEMPT_MAX)
}

/// Makes one more connection on this loop. A server that does not take it is not asked again.
async fn one_more(client: Weak<Client>) {
    let Some(client) = client.upgrade() else { return };
    let made = client.found.connect(&client.unflushed, ATTEMPT_MAX).await;
    let checked = made.and_then(|made| client.check_same(&made.negotiated).map(|()| made));
    match checked {
        Ok(connection) if client.line.add(&connection) => client.no_more.store(false, Ordering::Relaxed),
        Ok(connection) => connection.close(),
        Err(error) => tracing::debug!(%error, "{}: no further connection", client.found.name),
    }
}
