//! What this process may reach, and who connects for it.
//!
//! One for the process, as its sandbox is.

use std::collections::{BTreeSet, VecDeque};
use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};

use parking_lot::Mutex;
use reactor::net::Stream;

use crate::dial::target::{Allowed, Target};

static STATE: Mutex<State> = Mutex::new(State {
    allowed: Allowed { targets: BTreeSet::new(), directories: Vec::new() },
    is_confined: false,
    brokers: None,
    reported_of_the_end: false,
});

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

pub(crate) fn forbidden(target: &Target) -> io::Error {
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
pub(crate) enum Delivery {
    /// It is on its way.
    Sent,
    /// There is no broker: this process connects itself.
    Directly,
    /// The broker has more to do than it has read: later.
    Later,
}

/// Whether connections are made by brokers from here on.
pub(crate) fn has_brokers() -> bool {
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
