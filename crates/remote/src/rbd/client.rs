//! The worker of one image, and what happens when it is lost.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use net::dial::line::{Backoff, End, Line, Redial, Unflushed, UnflushedMode};

use crate::rbd::connection::Connection;
use crate::rbd::errors::Error;
use crate::rbd::message::{Answer, Ask, Kind};
use crate::rbd::opening::Opening;

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
    pub(crate) unflushed: Arc<Unflushed<Kind>>,
    /// Bytes of the image.
    pub(crate) length: AtomicU64,
    line: Line<Self>,
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
        let line = Line::new(&name, connection, None);
        let length = AtomicU64::new(found);
        Ok(Arc::new(Self { name, opening, patience, unflushed, length, line }))
    }

    /// Asks the worker; again another one when it is lost, for as long as a request may take. Of a read, fills `into`.
    ///
    /// # Errors
    /// The cluster's, or when nothing comes of it in time.
    pub(crate) async fn run(self: &Arc<Self>, ask: &Ask, into: &mut [u8]) -> Result<Answer, Error> {
        let asked = async {
            loop {
                let connection = Line::connection(self, |connections| connections.first().cloned()).await?;
                match connection.request(ask, &mut *into).await {
                    Err(Error::Lost) => {}
                    answer => return answer,
                }
            }
        };
        let in_time = async {
            let Some(patience) = self.patience else { return asked.await };
            let answer = reactor::within(patience, asked).await;
            answer.unwrap_or_else(|| Err(self.silent(patience)))
        };
        net::dial::unless_ended(in_time).await.unwrap_or_else(|| Err(self.ends()))
    }

    fn silent(&self, patience: Duration) -> Error {
        let reason = self.line.failure().as_ref().map(Error::to_string);
        Error::Silent { name: self.name.clone(), seconds: patience.as_secs(), reason }
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
        self.unflushed.repeat(async |ask: &Ask| connection.request(ask, &mut []).await.map(drop)).await
    }
}

impl Redial for Client {
    type Connection = Connection;
    type Error = Error;
    const PAUSES: Backoff = Backoff { next: PAUSE, longest: PAUSE };

    fn line(&self) -> &Line<Self> {
        &self.line
    }

    fn end_of(connection: &Connection) -> Option<End> {
        connection.is_lost().then(|| End::Lost("the process that has the image ended".to_owned()))
    }

    fn lost(&self, _: Vec<Arc<Connection>>) {
        tracing::warn!("{}: the process that has the image ended; another one is started", self.name);
    }

    async fn restore(&self, _: Option<Instant>) -> Result<Arc<Connection>, Error> {
        let (connection, found) = start(&self.opening, &self.unflushed).await?;
        let restored = async {
            self.check_length(found)?;
            self.repeat(&connection).await
        };
        restored.await.inspect_err(|_| connection.close())?;
        Ok(connection)
    }

    fn restored(&self) {
        tracing::info!("{}: opened again", self.name);
    }

    fn ends(&self) -> Error {
        Error::Ends { name: self.name.clone() }
    }
}

impl Drop for Client {
    fn drop(&mut self) {
        self.line.take_all().iter().for_each(|connection| connection.close());
    }
}

/// A worker that has the image open, and the bytes of that.
async fn start(opening: &Opening, unflushed: &Arc<Unflushed<Kind>>) -> Result<(Arc<Connection>, u64), Error> {
    let within = OPENS_WITHIN + Duration::from_secs(opening.connect_timeout_s.into());
    let opened = reactor::within(within, Connection::open(opening, unflushed)).await;
    let (connection, found) = opened.unwrap_or_else(|| {
        let reason = format!("no answer within {} s", within.as_secs());
        Err(Error::Open { reason, kind: std::io::ErrorKind::TimedOut })
    })?;
    Ok((connection, found.bytes))
}
