//! The worker of one image, and what happens when it is lost.

use std::pin::pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use dial::Reach;
use event_listener::Event;
use futures_util::future::{Either, select};
use parking_lot::Mutex;
use storage::{Repeatable, Unflushed, UnflushedMode};

use crate::ask::Ask;
use crate::connection::Connection;
use crate::errors::Error;
use crate::message::{Answer, Kind};
use crate::opening::Opening;

/// From one start of a worker to the next at least.
const PAUSE: Duration = Duration::from_millis(500);
/// Opening takes at most so much longer than connecting may: to look at an image that another client has just lost.
const OPENS_WITHIN: Duration = Duration::from_secs(60);

/// An image, whichever worker has it.
#[derive(Debug)]
pub(crate) struct Client {
    name: String,
    opening: Opening,
    /// How long a request may take, all workers together.
    patience: Option<Duration>,
    pub(crate) unflushed: Arc<Unflushed<Ask>>,
    /// Bytes of the image.
    pub(crate) length: AtomicU64,
    state: Mutex<State>,
    /// There is another worker, or none could be had.
    changed: Event,
    reach: Arc<Reach>,
}

#[derive(Debug)]
struct State {
    connection: Arc<Connection>,
    made: Instant,
    /// A task starts another one.
    is_attempted: bool,
    /// What became of the last attempt.
    failed: Option<Error>,
}

impl Client {
    /// Starts a worker that opens the image.
    ///
    /// # Errors
    /// When it cannot; with its words.
    pub(crate) async fn open(
        name: String,
        opening: Opening,
        patience: Option<Duration>,
        mode: UnflushedMode,
    ) -> Result<Arc<Self>, Error> {
        let unflushed = Arc::new(Unflushed::new(mode));
        let (connection, found) = start(&opening, &unflushed).await?;
        let state = State { connection, made: Instant::now(), is_attempted: false, failed: None };
        let (length, state) = (AtomicU64::new(found), Mutex::new(state));
        let (changed, reach) = (Event::new(), Reach::new(&*name));
        Ok(Arc::new(Self { name, opening, patience, unflushed, length, state, changed, reach }))
    }

    /// Asks the worker; again another one when it is lost, for as long as a request may take. Of a read, fills `into`.
    ///
    /// # Errors
    /// The cluster's, or when nothing comes of it in time.
    pub(crate) async fn run(self: &Arc<Self>, ask: &Ask, into: &mut [u8]) -> Result<Answer, Error> {
        let asked = async {
            loop {
                let connection = self.connection().await;
                match connection.request(ask, &mut *into).await {
                    Err(Error::Lost) => {}
                    answer => return answer,
                }
            }
        };
        let in_time = async {
            let Some(patience) = self.patience else { return asked.await };
            match select(pin!(asked), reactor::sleep(patience)).await {
                Either::Left((answer, _)) => answer,
                Either::Right(_) => Err(self.silent(patience)),
            }
        };
        dial::unless_ended(in_time).await.unwrap_or_else(|| Err(Error::Ends { name: self.name.clone() }))
    }

    fn silent(&self, patience: Duration) -> Error {
        let state = self.state.lock();
        let reason = state.failed.as_ref().filter(|_| state.connection.is_lost()).map(Error::to_string);
        Error::Silent { name: self.name.clone(), seconds: patience.as_secs(), reason }
    }

    /// A worker that has the image; waits for one while it is lost.
    async fn connection(self: &Arc<Self>) -> Arc<Connection> {
        loop {
            let changed = self.changed.listen();
            if let Some(connection) = self.living() {
                return connection;
            }
            changed.await;
        }
    }

    /// The worker, if it has not ended; otherwise a task of this loop starts another one, unless one does.
    fn living(self: &Arc<Self>) -> Option<Arc<Connection>> {
        let mut state = self.state.lock();
        if !state.connection.is_lost() {
            return Some(Arc::clone(&state.connection));
        }
        if !std::mem::replace(&mut state.is_attempted, true) {
            tracing::warn!("{}: the process that has the image ended; another one is started", self.name);
            self.reach.fails(&"the process that has the image ended");
            let (attempt, not_before) = (Attempt(Arc::downgrade(self)), state.made + PAUSE);
            reactor::spawn(async move { attempt.run(not_before).await }).detach();
        }
        None
    }

    /// What became of an attempt; whether there is a worker now.
    fn attempted(&self, restored: Result<Arc<Connection>, Error>) -> bool {
        let mut state = self.state.lock();
        match restored {
            Ok(connection) => {
                tracing::info!("{}: opened again", self.name);
                self.reach.answers();
                state.connection = connection;
                (state.made, state.failed) = (Instant::now(), None);
                true
            }
            Err(error) => {
                self.reach.fails(&error);
                state.failed = Some(error);
                false
            }
        }
    }

    /// Starts a worker, and has it repeat what was not flushed.
    async fn restore(&self) -> Result<Arc<Connection>, Error> {
        let (connection, found) = start(&self.opening, &self.unflushed).await?;
        let restored = match self.check_length(found) {
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

    /// An image that was cut is not the same one.
    fn check_length(&self, found: u64) -> Result<(), Error> {
        let was = self.length.load(Ordering::Acquire);
        if found >= was {
            return Ok(());
        }
        let reason = format!("the image has {found} bytes now and had {was}");
        Err(Error::Open { reason, kind: std::io::ErrorKind::InvalidData })
    }

    async fn repeat(&self, connection: &Arc<Connection>) -> Result<(), Error> {
        let send = async |ask: &Ask| connection.request(ask, &mut []).await.map(drop);
        let flush = async || send(&Ask::new(Kind::Flush, 0, 0).repeated()).await;
        self.unflushed.repeat(send, flush).await
    }
}

impl Drop for Client {
    fn drop(&mut self) {
        self.state.get_mut().connection.close();
    }
}

/// A worker that has the image open, and the bytes of that.
async fn start(opening: &Opening, unflushed: &Arc<Unflushed<Ask>>) -> Result<(Arc<Connection>, u64), Error> {
    let within = OPENS_WITHIN + Duration::from_secs(opening.connect_timeout_s.into());
    match select(pin!(Connection::open(opening, unflushed)), reactor::sleep(within)).await {
        Either::Left((opened, _)) => opened.map(|(connection, found)| (connection, found.bytes)),
        Either::Right(_) => {
            let reason = format!("no answer within {} s", within.as_secs());
            Err(Error::Open { reason, kind: std::io::ErrorKind::TimedOut })
        }
    }
}

/// A task that starts another worker, until that succeeds or the image is not used any more.
struct Attempt(Weak<Client>);

impl Attempt {
    async fn run(self, not_before: Instant) {
        // A worker that ends at once is not started without a pause.
        reactor::sleep_until(not_before).await;
        loop {
            let Some(client) = self.0.upgrade() else { return };
            let restored = client.restore().await;
            if client.attempted(restored) {
                return;
            }
            drop(client);
            reactor::sleep(PAUSE).await;
        }
    }
}

impl Drop for Attempt {
    /// Also when its loop ends in the middle: another task tries then.
    fn drop(&mut self) {
        if let Some(client) = self.0.upgrade() {
            client.state.lock().is_attempted = false;
            client.changed.notify(usize::MAX);
        }
    }
}
