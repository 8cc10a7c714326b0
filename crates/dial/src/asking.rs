//! A connection: made here, or asked for.

use std::io;
use std::net::{SocketAddr, TcpStream, ToSocketAddrs};
use std::os::fd::{AsFd, OwnedFd};
use std::pin::pin;
use std::time::{Duration, Instant};

use buffer::IoBuf;
use futures_util::future::{Either, select};
use reactor::net::Stream;
use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};

use crate::address::Address;
use crate::message::{ANSWER_BYTES_MAX, Answer, Ask};
use crate::state::{self, Asked};

/// Until a broker that had too much to do is asked again.
const PAUSE: Duration = Duration::from_millis(20);

/// Connects to a server within `timeout`, over any loop.
///
/// # Errors
/// When nobody answers at any address of the host in time (`TimedOut`), the name has none, the address may not be reached
/// (`PermissionDenied`), or there was a broker and it has ended.
pub async fn connect(address: &Address, timeout: Duration) -> io::Result<Stream> {
    state::check(address)?;
    let attempt = pin!(connect_until(address, Instant::now() + timeout));
    match select(attempt, reactor::sleep(timeout)).await {
        Either::Left((connected, _)) => connected,
        Either::Right(_) => Err(io::Error::new(io::ErrorKind::TimedOut, "no answer in time")),
    }
}

async fn connect_until(address: &Address, until: Instant) -> io::Result<Stream> {
    loop {
        let within = until.saturating_duration_since(Instant::now());
        let ask = Ask { address: address.clone(), within };
        let (own, theirs) = pair()?;
        match state::send(&ask.encode(), theirs.as_fd())? {
            Asked::Sent => {}
            Asked::Directly => {
                let address = address.clone();
                // Where a redirect led before the list is closed, it may lead later.
                state::name(address.clone());
                let made = reactor::blocking(move || reach(&address, within)).await;
                return made.map(|socket| Stream::from_fd(socket.into()));
            }
            Asked::Later => {
                reactor::sleep(PAUSE).await;
                continue;
            }
        }
        // The broker has it now: its end of the pair closes with the broker.
        drop(theirs);
        match receive(own).await? {
            Some((Answer::Connected, Some(socket))) => return Ok(Stream::from_fd(socket)),
            Some((Answer::Forbidden, _)) => return Err(state::forbidden(address)),
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

/// Connects to the first address of a host that answers; blocks, after the name is known for `within` at most.
pub(crate) fn reach(address: &Address, within: Duration) -> io::Result<TcpStream> {
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
