//! The gate of a disk: it keeps new requests out for a while. Requests in flight are counted elsewhere.

use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};

use event_listener::Event;

use super::Front;

/// Open, or shut by a number of tasks that change the disk itself.
///
/// A request counts itself as started ([`super`]) and reads the gate after that; a task that
/// shuts the gate reads the counts after that: one of the two sees the other.
#[derive(Debug, Default)]
pub(super) struct Gate {
    shut: AtomicUsize,
    opened: Event,
    left: Event,
}

impl Gate {
    #[inline]
    pub(super) fn is_shut(&self) -> bool {
        self.shut.load(SeqCst) > 0
    }

    pub(super) fn shut(&self) {
        self.shut.fetch_add(1, SeqCst);
    }

    pub(super) fn open(&self) {
        if self.shut.fetch_sub(1, SeqCst) == 1 {
            self.opened.notify(usize::MAX);
        }
    }

    /// Waits until the gate may be open.
    pub(super) async fn opened(&self) {
        let opened = self.opened.listen();
        if self.is_shut() {
            opened.await;
        }
    }

    /// A request has left, or has been turned away.
    #[inline]
    pub(super) fn leave(&self) {
        if self.is_shut() {
            self.left.notify(usize::MAX);
        }
    }

    /// Waits until no request is in flight, as `inside` counts them. The gate is shut.
    pub(super) async fn emptied(&self, inside: impl Fn() -> u64) {
        loop {
            let left = self.left.listen();
            if inside() == 0 {
                return;
            }
            left.await;
        }
    }
}

impl Front {
    /// Keeps requests out until [`Front::open_gate`], and suspends the limits: requests that wait for one are
    /// admitted.
    pub(crate) fn close_gate(&self) {
        self.gate.shut();
        self.suspend_limits();
    }

    /// Takes one [`Front::close_gate`] back.
    pub(crate) fn open_gate(&self) {
        self.restore_limits();
        self.gate.open();
    }

    /// Whether requests are kept out.
    pub(crate) fn is_shut(&self) -> bool {
        self.gate.is_shut()
    }

    /// Waits until no request is in flight. The gate must be shut.
    pub(crate) async fn emptied(&self) {
        self.gate.emptied(|| self.counting.in_flight()).await;
    }
}

/// A drained disk: requests are kept out and none is in flight until this is dropped.
#[derive(Debug)]
#[must_use = "the disk works on as soon as this is dropped"]
pub struct Drained<'a> {
    front: &'a Front,
}

impl<'a> Drained<'a> {
    /// The gate of `front` is shut, and nothing is in flight.
    pub(crate) fn new(front: &'a Front) -> Self {
        Self { front }
    }
}

impl Drop for Drained<'_> {
    fn drop(&mut self) {
        self.front.open_gate();
    }
}
