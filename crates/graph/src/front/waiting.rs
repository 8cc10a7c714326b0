//! A request in line.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};

use throttle::{Ticket, Time};

use super::clock::Sleep;
use super::group::{Look, ThrottleGroup};

/// Ends when the request may go. Dropped before, the request leaves the line.
pub(super) struct Waiting<'a> {
    group: &'a ThrottleGroup,
    ticket: Ticket,
    /// While it keeps the group's timer.
    timer: Option<(Time, Sleep)>,
    granted: bool,
}

impl<'a> Waiting<'a> {
    pub(super) fn new(group: &'a ThrottleGroup, ticket: Ticket) -> Self {
        Self { group, ticket, timer: None, granted: false }
    }
}

impl Future for Waiting<'_> {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        loop {
            match self.group.look(self.ticket, cx.waker()) {
                Look::Granted => {
                    self.granted = true;
                    self.timer = None;
                    return Poll::Ready(());
                }
                Look::Wait => {
                    self.timer = None;
                    return Poll::Pending;
                }
                Look::Keep(at) => {
                    let group = self.group;
                    let (armed, sleep) = self.timer.get_or_insert_with(|| (at, group.clock.sleep_until(at)));
                    if *armed != at {
                        (*armed, *sleep) = (at, group.clock.sleep_until(at));
                    }
                    if sleep.as_mut().poll(cx).is_pending() {
                        return Poll::Pending;
                    }
                    // A timer that has ended must not be polled again.
                    self.timer = None;
                }
            }
        }
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        if !self.granted {
            self.group.cancel(self.ticket);
        }
    }
}

impl fmt::Debug for Waiting<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Waiting").field("ticket", &self.ticket).finish_non_exhaustive()
    }
}
