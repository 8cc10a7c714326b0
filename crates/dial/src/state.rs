//! What this process may reach, and who connects for it.
//!
//! One for the process, as its sandbox is.

use std::collections::{BTreeSet, VecDeque};
use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};

use parking_lot::Mutex;
use reactor::net::Stream;

use crate::address::Address;

static STATE: Mutex<State> =
    Mutex::new(State { named: BTreeSet::new(), is_confined: false, brokers: None, told_of_the_end: false });

struct State {
    /// Addresses that the user gave, in drives and otherwise.
    named: BTreeSet<Address>,
    /// Others are not to be reached.
    is_confined: bool,
    /// Who connects for this process, the one that is asked first; `None`: it does so itself.
    brokers: Option<VecDeque<Stream>>,
    told_of_the_end: bool,
}

/// From here on only `allowed` and addresses that drives are opened with are reached: redirects lead nowhere else.
pub fn confine(allowed: impl IntoIterator<Item = Address>) {
    let mut state = STATE.lock();
    state.named.extend(allowed);
    state.is_confined = true;
}

/// Notes an address that a drive was opened with. Once there is a broker the list is closed, and this does nothing.
pub fn name(address: Address) {
    let mut state = STATE.lock();
    if state.brokers.is_none() {
        state.named.insert(address);
    }
}

/// The addresses that were noted.
pub fn named() -> Vec<Address> {
    STATE.lock().named.iter().cloned().collect()
}

/// Whether `address` may be reached.
///
/// # Errors
/// When this process is confined, and nobody named it.
pub fn check(address: &Address) -> io::Result<()> {
    let state = STATE.lock();
    if !state.is_confined || state.named.contains(address) { Ok(()) } else { Err(forbidden(address)) }
}

pub(crate) fn forbidden(address: &Address) -> io::Error {
    let what = format!(
        "{address} is none of the addresses that this server may connect to (--allow-connect {address} at its start adds it)"
    );
    io::Error::new(io::ErrorKind::PermissionDenied, what)
}

/// From here on `brokers` make all connections to TCP addresses, each the peer of one that [`crate::broker::serve`]s the list of [`named`].
/// The first is asked, the next ones when it has ended.
pub fn through(brokers: Vec<OwnedFd>) {
    let mut state = STATE.lock();
    state.brokers = Some(brokers.into_iter().map(Stream::from_fd).collect());
    state.is_confined = true;
}

/// What became of a question.
pub(crate) enum Asked {
    /// It is on its way.
    Sent,
    /// There is no broker: this process connects itself.
    Directly,
    /// The broker has more to do than it has read: later.
    Later,
}

/// Sends a question to the first broker that lives.
///
/// # Errors
/// When all have ended.
pub(crate) fn send(message: &[u8], answers: BorrowedFd<'_>) -> io::Result<Asked> {
    let mut state = STATE.lock();
    let Some(brokers) = &mut state.brokers else { return Ok(Asked::Directly) };
    while let Some(broker) = brokers.front() {
        match broker.send_with_fds_now(message, &[answers]) {
            Ok(()) => return Ok(Asked::Sent),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(Asked::Later),
            Err(error) => {
                brokers.pop_front();
                let left = brokers.len();
                tracing::warn!(%error, "the process that makes connections has ended; {left} more of them are ready");
            }
        }
    }
    if !std::mem::replace(&mut state.told_of_the_end, true) {
        tracing::error!(
            "all processes that make connections have ended: lost connections do not come back until this server is started again"
        );
    }
    Err(io::Error::other("the processes that make connections for this server have ended; start it again"))
}
