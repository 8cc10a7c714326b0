//! The connections to one export: which of them takes a request, and what happens when they are lost.
//!
//! Connections are lost together: one that is gone says that the server may be another one by now, which has not seen all writes.
//! The first connection that is made then repeats them before other requests are sent.

use std::pin::pin;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use buffer::IoBuf;
use dial::Reach;
use event_listener::Event;
use futures_util::future::{Either, select};
use nbd_wire::ExportFlags;
use nbd_wire::client::Negotiated;
use parking_lot::Mutex;
use storage::{Repeatable, Unflushed};

use crate::ask::{Ask, What};
use crate::connect::{ExportInfo, block_sizes, shares};
use crate::connection::Connection;
use crate::errors::Error;
use crate::slots::Reply;

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
/// Between attempts: doubled from this to that.
const PAUSE_MIN: Duration = Duration::from_millis(20);
const PAUSE_MAX: Duration = Duration::from_secs(1);
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
    pub(crate) unflushed: Arc<Unflushed<Ask>>,
    state: Mutex<State>,
    /// A connection was made, or an attempt failed.
    changed: Event,
    reach: Arc<Reach>,
}

#[derive(Debug)]
struct State {
    /// The oldest first; empty while they are lost.
    connections: Vec<Arc<Connection>>,
    made: Instant,
    lost: Option<Lost>,
    /// A task tries to connect.
    attempting: bool,
    /// A task makes one more connection, or the server did not take it.
    no_more: bool,
}

#[derive(Debug)]
struct Lost {
    since: Instant,
    /// The newest attempt, and what became of it.
    tried: Option<(Instant, Error)>,
}

/// How an export is opened.
#[derive(Debug)]
pub(crate) struct Opening {
    pub(crate) found: ExportInfo,
    pub(crate) is_written: bool,
    pub(crate) reconnect_delay: Duration,
    pub(crate) open_timeout: Duration,
    pub(crate) remote_timeout: Option<Duration>,
    pub(crate) unflushed: Unflushed<Ask>,
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
        let mut pause = PAUSE_MIN;
        let connection = loop {
            let timeout = if open_timeout.is_zero() { OPENING_MAX } else { attempt_time(until) };
            match found.connect(&unflushed, timeout).await {
                Ok(connection) => break connection,
                Err(error) if Instant::now() >= until => return Err(error),
                // The last attempt is made when the time is over: a server that starts until then is found.
                Err(_) => reactor::sleep(pause.min(until.saturating_duration_since(Instant::now()))).await,
            }
            pause = (pause * 2).min(PAUSE_MAX);
        };
        let negotiated = connection.negotiated.clone();
        let state = State {
            connections: vec![connection],
            made: Instant::now(),
            lost: None,
            attempting: false,
            no_more: !found.is_made_again() || (is_written && !shares(&negotiated)),
        };
        let (state, changed) = (Mutex::new(state), Event::new());
        let reach = Reach::new(&*found.name);
        Ok(Arc::new(Self {
            found,
            negotiated,
            is_written,
            reconnect_delay,
            remote_timeout,
            unflushed,
            state,
            changed,
            reach,
        }))
    }

    /// Sends a request; again over a new connection when one is lost, for as long as it may take to come back.
    pub(crate) async fn run(self: &Arc<Self>, ask: &Ask, mut buf: Option<IoBuf>) -> Reply {
        let mut until = None;
        loop {
            let connection = match self.connection(&ask.what).await {
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
            let is_read = matches!(ask.what, What::Read);
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
        let request = pin!(connection.request(ask, buf));
        match select(request, reactor::sleep(timeout)).await {
            Either::Left((reply, _)) => reply,
            Either::Right(((), request)) => {
                connection.lose(&format!("no answer within {} s (remote-timeout)", timeout.as_secs()));
                request.await
            }
        }
    }

    /// A connection for a request; waits for one while they are lost.
    async fn connection(self: &Arc<Self>, what: &What) -> Result<Arc<Connection>, Error> {
        if let Some(connection) = self.pick(what) {
            return Ok(connection);
        }
        loop {
            let changed = self.changed.listen();
            if let Some(connection) = self.pick(what) {
                return Ok(connection);
            }
            self.attempt()?;
            let Some(()) = dial::unless_ended(changed).await else {
                return Err(Error::Lost("this program ends".into()));
            };
        }
    }

    fn pick(self: &Arc<Self>, what: &What) -> Option<Arc<Connection>> {
        let mut state = self.state.lock();
        if take_out_ended(&mut state.connections, |connection| connection.lost()) {
            self.forget_all(&mut state);
        }
        let first = state.connections.first()?;
        if matches!(what, What::Flush) {
            return Some(Arc::clone(first));
        }
        let thread = std::thread::current().id();
        let mine = |connection: &&Arc<Connection>| connection.owner == thread;
        let load = |connection: &&Arc<Connection>| connection.in_flight();
        let own = state.connections.iter().filter(mine).min_by_key(load);
        let chosen = own.or_else(|| state.connections.iter().min_by_key(load)).map(Arc::clone)?;
        let room = !state.no_more && state.connections.len() < CONNECTIONS_MAX;
        if room && (chosen.owner != thread || chosen.in_flight() >= BUSY) {
            state.no_more = true;
            reactor::spawn(one_more(Arc::downgrade(self))).detach();
        }
        Some(chosen)
    }

    fn forget_all(&self, state: &mut State) {
        let reason = state.connections.iter().find_map(|connection| connection.lost());
        let reason = reason.map(|error| error.to_string());
        self.reach.fails(&reason.as_deref().unwrap_or("the connection is lost"));
        for connection in state.connections.drain(..) {
            connection.lose("another connection to the same export was");
        }
        self.unflushed.connection_lost();
        tracing::warn!("{}: the connection is lost", self.found.name);
        state.lost = Some(Lost { since: Instant::now(), tried: None });
    }

    /// Has a task of this loop connect, unless one does.
    ///
    /// # Errors
    /// When the time for that is over; with what became of the last attempt.
    fn attempt(self: &Arc<Self>) -> Result<(), Error> {
        let mut state = self.state.lock();
        if state.attempting || !state.connections.is_empty() {
            return Ok(());
        }
        let now = Instant::now();
        let until = match &state.lost {
            Some(lost) => lost.since + self.reconnect_delay,
            None => now,
        };
        if let Some((tried, error)) = state.lost.as_ref().and_then(|lost| lost.tried.as_ref())
            && now >= until
            && now < *tried + PAUSE_MAX
        {
            return Err(error.clone());
        }
        state.attempting = true;
        let not_before = state.made + PAUSE_MIN;
        drop(state);
        let attempt = Attempt(Arc::downgrade(self));
        reactor::spawn(async move { attempt.run(not_before, until).await }).detach();
        Ok(())
    }

    /// Makes a connection to the export as it was, and repeats over it what was not flushed.
    async fn restore(&self, timeout: Duration) -> Result<Arc<Connection>, Error> {
        let connection = self.found.connect(&self.unflushed, timeout).await?;
        let restored = match self.check_same(&connection.negotiated) {
            Ok(()) => self.repeat(&connection).await,
            Err(error) => Err(error),
        };
        match restored {
            Ok(()) => Ok(connection),
            Err(error) => {
                connection.close();
                Err(error)
            }
        }
    }

    /// What became of an attempt; whether there is a connection now.
    fn attempted(&self, restored: Result<Arc<Connection>, Error>) -> bool {
        let (mut state, now) = (self.state.lock(), Instant::now());
        match restored {
            Ok(connection) => {
                tracing::info!("{}: connected again", self.found.name);
                self.reach.answers();
                state.connections.push(connection);
                (state.made, state.lost) = (now, None);
                state.no_more = self.is_written && !shares(&self.negotiated);
                true
            }
            Err(error) => {
                self.reach.fails(&error);
                let lost = state.lost.get_or_insert(Lost { since: now, tried: None });
                lost.tried = Some((now, error));
                false
            }
        }
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
        let flush = async || send(&Ask::flush().repeated()).await;
        let timeout = self.remote_timeout.map_or(REPEAT_MAX, |timeout| timeout.min(REPEAT_MAX));
        let until = Instant::now() + timeout;
        let sent = pin!(self.unflushed.repeat(send, flush));
        match select(sent, reactor::sleep_until(until)).await {
            Either::Left((sent, _)) => sent,
            Either::Right(_) => {
                let seconds = timeout.as_secs();
                Err(Error::Silent { server: self.found.name.clone(), seconds })
            }
        }
    }
}

impl Drop for Client {
    fn drop(&mut self) {
        self.state.get_mut().connections.iter().for_each(|connection| connection.close());
    }
}

fn attempt_time(until: Instant) -> Duration {
    until.saturating_duration_since(Instant::now()).clamp(ATTEMPT_MIN, ATTEMPT_MAX)
}

/// Takes out connections whose loop has ended: the server goes on without them, what they brought it is there. Says whether another one is lost. Each
/// is looked at once: one whose loop ends between two looks would be taken for lost.
fn take_out_ended<C>(connections: &mut Vec<C>, lost: impl Fn(&C) -> Option<Error>) -> bool {
    let mut is_lost = false;
    connections.retain(|connection| match lost(connection) {
        Some(Error::LoopEnded) => false,
        other => {
            is_lost |= other.is_some();
            true
        }
    });
    is_lost
}

/// A task that tries to connect.
struct Attempt(Weak<Client>);

impl Attempt {
    async fn run(self, not_before: Instant, until: Instant) {
        // A server that ends every connection at once is not asked without a pause.
        reactor::sleep_until(not_before).await;
        let mut pause = PAUSE_MIN;
        loop {
            let Some(client) = self.0.upgrade() else { return };
            let restored = client.restore(attempt_time(until)).await;
            if client.attempted(restored) {
                return;
            }
            drop(client);
            if Instant::now() + pause >= until {
                return;
            }
            reactor::sleep(pause).await;
            pause = (pause * 2).min(PAUSE_MAX);
        }
    }
}

impl Drop for Attempt {
    /// Also when its loop ends in the middle: another task tries then.
    fn drop(&mut self) {
        if let Some(client) = self.0.upgrade() {
            client.state.lock().attempting = false;
            client.changed.notify(usize::MAX);
        }
    }
}

/// Makes one more connection on this loop. A server that does not take it is not asked again.
async fn one_more(client: Weak<Client>) {
    let Some(client) = client.upgrade() else { return };
    let made = client.found.connect(&client.unflushed, ATTEMPT_MAX).await;
    let checked = made.and_then(|made| client.check_same(&made.negotiated).map(|()| made));
    match checked {
        Ok(connection) => {
            let mut state = client.state.lock();
            if state.connections.is_empty() {
                drop(state);
                connection.close();
            } else {
                state.connections.push(connection);
                state.no_more = false;
            }
        }
        Err(error) => tracing::debug!(%error, "{}: no further connection", client.found.name),
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    /// A loop that ended between two looks was taken for a lost server, and what was not flushed for lost with it.
    #[test]
    fn a_connection_whose_loop_ends_while_it_is_looked_at_is_no_lost_server() {
        let ends = Error::LoopEnded;
        let looks: [Vec<Option<Error>>; 3] =
            [vec![None, Some(ends.clone())], vec![Some(ends)], vec![None, None]];
        let mut connections: Vec<_> = looks.iter().map(|looks| (Cell::new(0), looks)).collect();
        let look = |(at, looks): &(Cell<usize>, &Vec<Option<Error>>)| {
            at.set(at.get() + 1);
            looks[at.get() - 1].clone()
        };
        assert!(!take_out_ended(&mut connections, look));
        assert_eq!(connections.len(), 2);
        assert!(take_out_ended(&mut vec![()], |()| Some(Error::Lost("gone".into()))));
    }
}
