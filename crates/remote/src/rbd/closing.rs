//! Workers that close their images.

use std::os::fd::{BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use rustix::event::{PollFd, PollFlags, Timespec, poll};

/// Sockets of workers that were asked to end.
static CLOSING: Mutex<Vec<OwnedFd>> = Mutex::new(Vec::new());

/// Notes the socket of a worker that was asked to end.
pub(crate) fn add(socket: BorrowedFd<'_>) {
    let mut closing = CLOSING.lock();
    closing.retain(|socket| !is_gone(socket, Duration::ZERO));
    // Without a descriptor no task awaits it.
    closing.extend(socket.try_clone_to_owned());
}

/// Waits, at most for `patience`, until the images that were in use are closed: a program that ends does so before, so that the next one finds no other
/// user of them. Costs nothing if there were none.
pub fn settle(patience: Duration) {
    let until = Instant::now() + patience;
    let closing = std::mem::take(&mut *CLOSING.lock());
    for socket in closing {
        is_gone(&socket, until.saturating_duration_since(Instant::now()));
    }
}

/// Whether the worker is gone within `patience`.
fn is_gone(socket: &OwnedFd, patience: Duration) -> bool {
    // That a peer is gone is reported unasked.
    let mut asked = [PollFd::new(socket, PollFlags::empty())];
    let timeout = Timespec::try_from(patience).unwrap_or_default();
    !matches!(poll(&mut asked, Some(&timeout)), Ok(0))
}
