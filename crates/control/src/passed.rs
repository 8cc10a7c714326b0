//! Descriptors that a client passed along with its bytes.

use std::cell::RefCell;
use std::os::fd::OwnedFd;

/// Those of one client that no command has taken yet, as they came. As in QEMU they wait for a command that wants one,
/// until others come.
#[derive(Debug, Default)]
pub struct Passed {
    waiting: RefCell<Vec<OwnedFd>>,
}

impl Passed {
    /// Takes the one that came first.
    pub fn take(&self) -> Option<OwnedFd> {
        let mut waiting = self.waiting.borrow_mut();
        (!waiting.is_empty()).then(|| waiting.remove(0))
    }

    /// Others came: those that were not taken are closed.
    pub fn replace(&self, fds: Vec<OwnedFd>) {
        *self.waiting.borrow_mut() = fds;
    }
}
