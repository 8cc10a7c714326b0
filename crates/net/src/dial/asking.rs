//! A connection: made here, or asked for.

use std::collections::{BTreeSet, VecDeque};
use std::io::{self, IoSliceMut};
use std::mem::MaybeUninit;
use std::net::{SocketAddr, TcpStream, ToSocketAddrs};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::{Duration, Instant};

use memory::IoBuf;
use parking_lot::Mutex;
use reactor::net::Stream;
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SocketFlags, SocketType, recvmsg,
    socketpair,
};

use crate::dial::address::Address;
use crate::dial::message::{ANSWER_BYTES_MAX, Answer, Ask};
use crate::dial::target::{Allowed, Target};

/// Until a broker that had too much to do is asked again.
const PAUSE: Duration = Duration::from_millis(20);

/// A unix socket's kernel answers at once.
const AT_ONCE: Duration = Duration::from_secs(2);

/// Connects to a server within `timeout`, over any loop.
///
/// # Errors
/// When no server answers at any address of the host in time (`TimedOut`), the name has none, the target may not be reached
/// (`PermissionDenied`), or there was a broker and it has ended.
pub async fn connect(target: &Target, timeout: Duration) -> io::Result<Stream> {
    check(target)?;
    let connected = reactor::within(timeout, connect_until(target, Instant::now() + timeout)).await;
    connected.unwrap_or_else(|| Err(io::Error::new(io::ErrorKind::TimedOut, "no answer in time")))
}

async fn connect_until(target: &Target, until: Instant) -> io::Result<Stream> {
    loop {
        let within = until.saturating_duration_since(Instant::now());
        let ask = Ask { target: target.clone(), within };
        let (own, theirs) = pair()?;
        match send(&ask.encode(), theirs.as_fd())? {
            Delivery::Sent => {}
            Delivery::Directly => {
                let target = target.clone();
                // Where a redirect led before the list is closed, it may lead later.
                name(target.clone());
                return reactor::blocking(move || reach(&target, within)).await.map(Stream::from_fd);
            }
            Delivery::Later => {
                reactor::sleep(PAUSE).await;
                continue;
            }
        }
        // The broker has it now: its end of the pair closes with the broker.
        drop(theirs);
        match receive(own).await? {
            Some((Answer::Connected, Some(socket))) => return Ok(Stream::from_fd(socket)),
            Some((Answer::Forbidden, _)) => return Err(forbidden(target)),
            Some((Answer::Failed { number: 0, words }, _)) => return Err(io::Error::other(words)),
            Some((Answer::Failed { number, .. }, _)) => return Err(io::Error::from_raw_os_error(number)),
            // A broker that ended with the question is found out by the next one.
            Some((Answer::Busy, _)) | None => reactor::sleep(PAUSE).await,
            Some((Answer::Connected, None)) => return Err(io::Error::other("a socket is missing")),
        }
    }
}

/// The two ends over which one answer comes.
fn pair() -> io::Result<(OwnedFd, OwnedFd)> {
    Ok(socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)?)
}

/// An answer, with its socket; `None` if the broker ended first.
async fn receive(own: OwnedFd) -> io::Result<Option<(Answer, Option<OwnedFd>)>> {
    let mut sockets = Vec::new();
    let (received, buf) =
        Stream::from_fd(own).recv_with_fds(IoBuf::uninit(ANSWER_BYTES_MAX), &mut sockets).await;
    let bytes = match received {
        Ok(0) => return Ok(None),
        Err(error) if error.kind() == io::ErrorKind::ConnectionReset => return Ok(None),
        received => received?,
    };
    let answer = buf.get(..bytes).and_then(Answer::decode);
    let answer = answer.ok_or_else(|| io::Error::other("the broker's answer makes no sense"))?;
    Ok(Some((answer, sockets.pop())))
}

/// Connects to a unix socket; blocks. For callers that ask whether a server listens there.
///
/// # Errors
/// As [`connect`], but for a socket that may not be reached only in a process whose brokers make its connections.
pub fn connect_now(path: &Path) -> io::Result<UnixStream> {
    if !has_brokers() {
        return UnixStream::connect(path);
    }
    let target = Target::unix(path);
    check(&target)?;
    let (own, theirs) = pair()?;
    let ask = Ask { target: target.clone(), within: AT_ONCE };
    match send(&ask.encode(), theirs.as_fd())? {
        Delivery::Sent => drop(theirs),
        Delivery::Directly => return UnixStream::connect(path),
        Delivery::Later => return Err(io::ErrorKind::WouldBlock.into()),
    }
    rustix::net::sockopt::set_socket_timeout(&own, rustix::net::sockopt::Timeout::Recv, Some(AT_ONCE))?;
    let (bytes, socket) = receive_now(&own)?;
    match (Answer::decode(&bytes), socket) {
        (Some(Answer::Connected), Some(socket)) => Ok(UnixStream::from(socket)),
        (Some(Answer::Forbidden), _) => Err(forbidden(&target)),
        (Some(Answer::Failed { number: 0, words }), _) => Err(io::Error::other(words)),
        (Some(Answer::Failed { number, .. }), _) => Err(io::Error::from_raw_os_error(number)),
        _ => Err(io::ErrorKind::WouldBlock.into()),
    }
}

/// The next message of a broker, and the socket that came along.
fn receive_now(own: &OwnedFd) -> io::Result<(Vec<u8>, Option<OwnedFd>)> {
    let mut bytes = vec![0; ANSWER_BYTES_MAX];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let flags = RecvFlags::CMSG_CLOEXEC;
    let received = recvmsg(own, &mut [IoSliceMut::new(&mut bytes)], &mut control, flags)?;
    bytes.truncate(received.bytes);
    let passed = control.drain().find_map(|message| match message {
        RecvAncillaryMessage::ScmRights(mut sockets) => sockets.next(),
        _ => None,
    });
    Ok((bytes, passed))
}

/// Connects to `target`; blocks.
pub(crate) fn reach(target: &Target, within: Duration) -> io::Result<OwnedFd> {
    match target {
        Target::Tcp(address) => reach_host(address, within).map(OwnedFd::from),
        Target::Unix(path) => UnixStream::connect(path).map(OwnedFd::from),
        Target::Abstract(name) => name.connect().map(OwnedFd::from),
    }
}

/// Connects to the first address of a host that answers; blocks, after the name is known for `within` at most.
fn reach_host(address: &Address, within: Duration) -> io::Result<TcpStream> {
    let until = Instant::now() + within;
    let found: Vec<SocketAddr> = (address.host(), address.port()).to_socket_addrs()?.collect();
    let mut failed = io::Error::new(io::ErrorKind::NotFound, "the name has no address");
    for found in found {
        let left = until.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(io::ErrorKind::TimedOut.into());
        }
        match TcpStream::connect_timeout(&found, left) {
            Ok(stream) => return Ok(stream),
            Err(error) => failed = error,
        }
    }
    Err(failed)
}

static STATE: Mutex<State> = Mutex::new(State {
    allowed: Allowed { targets: BTreeSet::new(), directories: Vec::new() },
    is_confined: false,
    brokers: None,
    reported_of_the_end: false,
});

/// What this process may reach, and who connects for it: one for the process, as its sandbox is.
struct State {
    /// What the user gave, in drives and otherwise.
    allowed: Allowed,
    /// Others are not to be reached.
    is_confined: bool,
    /// Processes that connect for this one, the one that is asked first; `None`: it connects itself.
    brokers: Option<VecDeque<Stream>>,
    reported_of_the_end: bool,
}

/// From here on only what `allowed` says and drives are opened with is connected to: redirects lead nowhere else.
pub fn confine(allowed: Allowed) {
    let mut state = STATE.lock();
    state.allowed.targets.extend(allowed.targets);
    state.allowed.directories.extend(allowed.directories);
    state.is_confined = true;
}

/// Notes what a drive is opened with. Once connections are made by brokers ([`through`]) the list is closed, and this does nothing.
pub fn name(target: Target) {
    let mut state = STATE.lock();
    if state.brokers.is_none() {
        state.allowed.targets.insert(target);
    }
}

/// What was noted.
pub fn allowed() -> Allowed {
    STATE.lock().allowed.clone()
}

/// Whether `target` may be reached.
///
/// # Errors
/// When this process is confined, and nothing that the user gave names it: a [`Forbidden`].
pub fn check(target: &Target) -> io::Result<()> {
    let state = STATE.lock();
    if !state.is_confined || state.allowed.resolve(target).is_some() {
        Ok(())
    } else {
        Err(forbidden(target))
    }
}

/// A server that this process may not connect to.
#[derive(Debug, thiserror::Error)]
#[error(
    "{target} is none of the addresses that this server may connect to (--allow-connect {target} at its start adds it, also in a server that takes over from this one)"
)]
pub struct Forbidden {
    target: Target,
}

fn forbidden(target: &Target) -> io::Error {
    io::Error::new(io::ErrorKind::PermissionDenied, Forbidden { target: target.clone() })
}

/// From here on `brokers` make all connections, each the peer of one that [`crate::dial::broker::serve`]s what is [`allowed`]; the list is closed.
/// The first is asked, the next ones when it has ended. Without any, no connection is made.
pub fn through(brokers: Vec<OwnedFd>) {
    let mut state = STATE.lock();
    state.brokers = Some(brokers.into_iter().map(Stream::from_fd).collect());
    state.is_confined = true;
}

/// What became of a question.
pub(super) enum Delivery {
    /// It is on its way.
    Sent,
    /// There is no broker: this process connects itself.
    Directly,
    /// The broker has more to do than it has read: later.
    Later,
}

/// Whether connections are made by brokers from here on.
fn has_brokers() -> bool {
    STATE.lock().brokers.is_some()
}

/// Sends a question to the first broker that lives.
///
/// # Errors
/// When all have ended.
pub(crate) fn send(message: &[u8], answers: BorrowedFd<'_>) -> io::Result<Delivery> {
    let mut state = STATE.lock();
    let Some(brokers) = &mut state.brokers else { return Ok(Delivery::Directly) };
    while let Some(broker) = brokers.front() {
        match broker.send_with_fds_now(message, &[answers]) {
            Ok(()) => return Ok(Delivery::Sent),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(Delivery::Later),
            Err(error) => {
                brokers.pop_front();
                let left = brokers.len();
                tracing::warn!(%error, "the process that makes connections has ended; {left} more of them are ready");
            }
        }
    }
    if !std::mem::replace(&mut state.reported_of_the_end, true) {
        tracing::error!(
            "all processes that make connections have ended: lost connections do not come back until this server is started again"
        );
    }
    Err(io::Error::other("the processes that make connections for this server have ended; start it again"))
}
