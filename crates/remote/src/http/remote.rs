//! A file's server: connections that are kept, and requests that are tried again.

pub(crate) mod exchange;
mod heads;

use std::cell::RefCell;
use std::collections::VecDeque;
use std::io;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

use async_lock::Semaphore;
use memory::secret::Secret;
use memory::{IoBuf, IoBytes};
use net::dial::Reach;
use net::dial::line::Backoff;
use net::tls::{ClientCredentials, ClientTls};
use parking_lot::Mutex;
use wire::http::{Origin, Scheme, Url};

use self::heads::failed_head;
use crate::http::authorize::Authorize;
use crate::http::connection::{Connection, Ended, address_of};
use crate::http::errors::{Error, connect_error, tls_error};
use crate::http::judge::{Pinned, RangeRequest, Verdict, code, judge, words};
use crate::http::proxy::{self, Way};

/// Requests on their way at a time, each over a connection of its own: servers limit what one client may have.
const REQUESTS_MAX: usize = 16;
/// A connection is used again if it was idle for less: many servers end those that are for longer.
const IDLE_MAX: Duration = Duration::from_secs(55);
/// Redirects that one request follows.
const REDIRECTS_MAX: usize = 5;
/// Between attempts.
const PAUSES: Backoff = Backoff { next: Duration::from_millis(50), longest: Duration::from_secs(2) };

/// The server of a file.
#[derive(Debug)]
pub(crate) struct Remote {
    /// The name that was given.
    pub(crate) url: Url,
    tls: Option<ClientCredentials>,
    authorize: Arc<dyn Authorize>,
    proxy_login: Option<Arc<Secret>>,
    timeouts: Timeouts,
    /// Where requests go: the name that was given, or where it led.
    place: Mutex<Url>,
    /// The newest last.
    idle: Mutex<VecDeque<Connection>>,
    turns: Semaphore,
    /// Whether the last attempt failed: said once, until one succeeds.
    reach: Arc<Reach>,
    /// The server has answered a request that was no read.
    reached: AtomicBool,
}

/// How long is waited, as [`crate::http::Options`] has it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Timeouts {
    /// Of a step of an attempt.
    pub(crate) timeout: Duration,
    /// Of all attempts of the first request.
    pub(crate) open_timeout: Option<Duration>,
    /// Of all attempts of each later one.
    pub(crate) remote_timeout: Option<Duration>,
}

/// Why an attempt gave no bytes.
#[derive(Debug)]
enum Failure {
    Final(Error),
    Again {
        error: Error,
        after: Option<Duration>,
    },
    /// A connection that was kept had ended: another one may not have.
    KeptInVain,
    Elsewhere(Url),
}

impl Remote {
    pub(crate) fn new(
        url: Url,
        tls: Option<ClientCredentials>,
        authorize: Arc<dyn Authorize>,
        timeouts: Timeouts,
    ) -> Self {
        let (place, idle) = (Mutex::new(url.clone()), Mutex::default());
        let (turns, reach) = (Semaphore::new(REQUESTS_MAX), Reach::new(url.name()));
        let reached = AtomicBool::new(false);
        Self { url, tls, authorize, proxy_login: None, timeouts, place, idle, turns, reach, reached }
    }

    /// Shows proxies on the way this user and password.
    pub(crate) fn with_proxy_login(self, proxy_login: Option<Arc<Secret>>) -> Self {
        Self { proxy_login, ..self }
    }

    /// Fetches bytes of the file from `first` on into `buf`: all of it; or up to the file's end if nothing is pinned, and how many.
    pub(crate) async fn fetch(
        &self,
        first: u64,
        buf: IoBuf,
        pinned: Option<&Pinned>,
    ) -> (Result<(u64, Pinned), Error>, IoBuf) {
        let (len, last) = (buf.len(), RefCell::new(None));
        let attempts = pin!(self.until_answered(first, buf, pinned, &last));
        let waited = match pinned {
            None => self.timeouts.open_timeout,
            Some(_) => self.timeouts.remote_timeout,
        };
        let done = self.in_time(waited, &last, attempts).await;
        done.unwrap_or_else(|error| (Err(error), IoBuf::uninit(len)))
    }

    /// What `attempts` give within `waited`; `last` is what became of the last one of them.
    async fn in_time<T>(
        &self,
        waited: Option<Duration>,
        last: &RefCell<Option<Error>>,
        attempts: impl Future<Output = T> + Unpin,
    ) -> Result<T, Error> {
        let in_time = async {
            let Some(waited) = waited else { return Ok(attempts.await) };
            reactor::within(waited, attempts).await.ok_or(waited)
        };
        let server = || self.url.origin().clone();
        match net::dial::unless_ended(in_time).await {
            Some(Ok(done)) => Ok(done),
            Some(Err(waited)) => {
                let last = last.take().map(Box::new);
                Err(Error::Silent { server: server(), waited, option: "remote-timeout", last })
            }
            None => Err(Error::Lost { server: server(), reason: "this program ends".to_owned() }),
        }
    }

    async fn until_answered(
        &self,
        first: u64,
        mut buf: IoBuf,
        pinned: Option<&Pinned>,
        last: &RefCell<Option<Error>>,
    ) -> (Result<(u64, Pinned), Error>, IoBuf) {
        let (mut pauses, mut redirects) = (PAUSES, 0);
        let mut url = self.place.lock().clone();
        loop {
            let (attempted, back) = self.attempt(&url, first, buf, pinned).await;
            buf = back;
            match attempted {
                Ok(found) => {
                    self.succeeded(url);
                    return (Ok(found), buf);
                }
                Err(Failure::KeptInVain) => {}
                Err(Failure::Elsewhere(to)) => {
                    redirects += 1;
                    match self.follow(&url, to, redirects) {
                        Ok(to) => url = to,
                        Err(error) => return (Err(error), buf),
                    }
                }
                // What it led to then may have ended; where it leads now is asked once.
                Err(Failure::Final(_)) if redirects == 0 && url != self.url => url = self.url.clone(),
                Err(Failure::Final(error)) => return (Err(error), buf),
                // A task that opens it sees at once that no server is there.
                Err(Failure::Again {
                    error: error @ (Error::Connect { .. } | Error::Credentials { .. }),
                    ..
                }) if pinned.is_none() => return (Err(error), buf),
                Err(Failure::Again { error, after }) => {
                    *last.borrow_mut() = Some(self.failed(error));
                    pause(&mut pauses, after).await;
                    (url, redirects) = (self.place.lock().clone(), 0);
                }
            }
        }
    }

    fn follow(&self, from: &Url, to: Url, redirects: usize) -> Result<Url, Error> {
        let refused = |what: String| Err(Error::Redirect { url: self.url.clone(), what });
        if !self.authorize.follows_redirects() {
            return refused(format!(
                "the server says that it is at {to}, and signed requests are not sent elsewhere"
            ));
        }
        if redirects > REDIRECTS_MAX {
            return refused(format!("it leads to {REDIRECTS_MAX} other places and on to {to}"));
        }
        if (from.origin().scheme, to.origin().scheme) == (Scheme::Https, Scheme::Http) {
            return refused(format!("it leads to {to}, which is not encrypted as {} is", from.origin()));
        }
        // A server that may connect to named addresses only is not led elsewhere.
        match address_of(to.origin()).and_then(|address| net::dial::check(&address)) {
            Ok(()) => Ok(to),
            Err(error) => refused(format!("it leads to {to}, and {error}")),
        }
    }

    fn succeeded(&self, url: Url) {
        if self.reach.answers() {
            tracing::info!("{}: the server answers again", self.url);
        }
        let mut place = self.place.lock();
        if *place != url {
            *place = url;
        }
    }

    fn failed(&self, error: Error) -> Error {
        if self.reach.fails(&error) {
            tracing::warn!(%error, "{}: tried again until it answers", self.url);
        }
        error
    }

    async fn attempt(
        &self,
        url: &Url,
        first: u64,
        buf: IoBuf,
        pinned: Option<&Pinned>,
    ) -> (Result<(u64, Pinned), Failure>, IoBuf) {
        let _turn = self.turns.acquire().await;
        let len = buf.len();
        let asked = RangeRequest { url, first, len: len as u64, pinned };
        let (mut connection, is_kept) = match self.connection(url.origin()).await {
            Ok(connection) => connection,
            Err(failure) => return (Err(failure), buf),
        };
        let head = match self.head(asked, &connection).await {
            Ok(head) => head,
            Err(error) => return (Err(failed_head(error)), buf),
        };
        let answer = match connection.ask(&head, &IoBytes::zeroed(0)).await {
            Ok(answer) => answer,
            Err(Ended::Lost(_)) if is_kept => return (Err(Failure::KeptInVain), buf),
            Err(ended) => return (Err(self.ended(url, ended)), buf),
        };
        let failure = match judge(asked, &answer) {
            Verdict::Bytes { len: there, file } => {
                // As long as `buf` at most: the verdict is for what was asked for.
                let there_len = usize::try_from(there).unwrap_or(usize::MAX).min(len);
                match connection.body(buf, there_len).await {
                    Ok(buf) => {
                        self.keep(connection, answer.closes);
                        return (Ok((there, file)), buf);
                    }
                    Err(ended) => return (Err(self.ended(url, ended)), IoBuf::uninit(len)),
                }
            }
            Verdict::Wrong(error) => Failure::Final(error),
            Verdict::Elsewhere(to) => {
                self.pass_body(connection, &answer).await;
                Failure::Elsewhere(to)
            }
            Verdict::Later { status, after } => {
                let words = self.refusal(connection, &answer).await;
                Failure::Again { error: Error::Refused { url: url.clone(), status, words }, after }
            }
            Verdict::Refused { status } => {
                let words = self.refusal(connection, &answer).await;
                Failure::Final(Error::Refused { url: url.clone(), status, words })
            }
        };
        (Err(failure), buf)
    }

    /// What the server says of a refusal.
    async fn refusal(&self, connection: Connection, answer: &wire::http::Answer) -> String {
        let body = self.pass_body(connection, answer).await.unwrap_or_default();
        let region = answer.bucket_region.as_deref().map(|region| format!("; the bucket is in {region}"));
        let code = code(&body).unwrap_or_else(|| words(answer.status).to_owned());
        format!("{code}{}", region.unwrap_or_default())
    }

    /// Receives a body that is not of the file, and keeps the connection if that is possible.
    async fn pass_body(&self, mut connection: Connection, answer: &wire::http::Answer) -> Option<Vec<u8>> {
        let body = connection.short_body(answer.length).await?;
        self.keep(connection, answer.closes);
        Some(body)
    }

    fn ended(&self, url: &Url, ended: Ended) -> Failure {
        let server = url.origin().clone();
        let error = match ended {
            Ended::Lost(error) => Error::Lost { server, reason: error.to_string() },
            Ended::Silent => {
                Error::Silent { server, waited: self.timeouts.timeout, option: "timeout", last: None }
            }
            Ended::Broken(error) => {
                return Failure::Final(Error::Broken { url: url.clone(), what: error.to_string() });
            }
        };
        Failure::Again { error, after: None }
    }

    /// A connection to `origin`: one that was kept (true), or a new one.
    async fn connection(&self, origin: &Origin) -> Result<(Connection, bool), Failure> {
        if let Some(connection) = self.kept(origin) {
            return Ok((connection, true));
        }
        let failed = |ended: Ended, word: fn(Origin, &io::Error) -> Error| match ended {
            Ended::Lost(error) => word(origin.clone(), &error),
            Ended::Silent => Error::Silent {
                server: origin.clone(),
                waited: self.timeouts.timeout,
                option: "timeout",
                last: None,
            },
            Ended::Broken(error) => word(origin.clone(), &io::Error::other(error)),
        };
        let tls = self.tls_for(origin).map_err(Failure::Final)?;
        let proxy = proxy::of(origin).map_err(Failure::Final)?;
        let way = proxy.map(|proxy| Way::new(proxy, self.proxy_login.clone()));
        let opened = Connection::open(origin, way, self.timeouts.timeout).await;
        let connection = opened.map_err(|ended| match failed(ended, connect_error) {
            // What the system forbids, it forbids again.
            error @ Error::Connect { kind: io::ErrorKind::PermissionDenied, .. } => Failure::Final(error),
            error => Failure::Again { error, after: None },
        })?;
        let Some(tls) = tls else { return Ok((connection, false)) };
        match connection.encrypt(&tls).await {
            Ok(connection) => Ok((connection, false)),
            // A certificate that is not believed will not be later.
            Err(Ended::Lost(error)) if error.kind() == io::ErrorKind::InvalidData => {
                Err(Failure::Final(tls_error(origin.clone(), &error)))
            }
            Err(ended) => Err(Failure::Again { error: failed(ended, tls_error), after: None }),
        }
    }

    fn tls_for(&self, origin: &Origin) -> Result<Option<ClientTls>, Error> {
        let refused = |reason: String| Error::Tls { server: origin.clone(), reason };
        match (origin.scheme, &self.tls) {
            (Scheme::Http, _) => Ok(None),
            (Scheme::Https, Some(credentials)) => ClientTls::new(credentials, &origin.host)
                .map(Some)
                .map_err(|error| refused(error.to_string())),
            (Scheme::Https, None) => {
                let what =
                    "it led there from http, which says nothing of whom to believe; give its https name";
                Err(refused(what.to_owned()))
            }
        }
    }

    /// The newest connection that is kept and of use; others are dropped.
    fn kept(&self, origin: &Origin) -> Option<Connection> {
        let mut idle = self.idle.lock();
        idle.retain(|connection| connection.idle_since.elapsed() < IDLE_MAX);
        while let Some(at) = idle.iter().rposition(|connection| connection.origin == *origin) {
            let connection = idle.remove(at).filter(Connection::is_usable);
            if connection.is_some() {
                return connection;
            }
        }
        None
    }

    fn keep(&self, mut connection: Connection, closes: bool) {
        if closes {
            return;
        }
        connection.idle_since = Instant::now();
        let mut idle = self.idle.lock();
        idle.push_back(connection);
        while idle.len() > REQUESTS_MAX {
            idle.pop_front();
        }
    }
}

/// Until the next attempt: for as long as the server asks for at least. The pause is chosen at random in its upper half, so that many who wait do
/// not come back together.
async fn pause(pauses: &mut Backoff, after: Option<Duration>) {
    let (half, random) = (pauses.pause() / 2, getrandom::u32().unwrap_or_default());
    let pause = half + half.mul_f64(f64::from(random) / f64::from(u32::MAX));
    reactor::sleep(pause.max(after.unwrap_or_default())).await;
}
