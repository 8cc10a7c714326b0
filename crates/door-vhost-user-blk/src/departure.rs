//! How a front-end is told to end, or to be given to another process.

use std::cell::Cell;
use std::rc::Rc;

use export::{Ending, HangUp, LocalEvent};
use reactor::net::Stream;

/// One front-end's way out.
#[derive(Debug)]
pub(crate) struct Departure {
    stream: Rc<Stream>,
    /// It has its place at the export.
    can_be_given: Cell<bool>,
    asked: Cell<bool>,
    /// Only the task that takes its messages waits.
    event: LocalEvent,
}

impl Departure {
    pub(crate) fn new(stream: &Rc<Stream>) -> Rc<Self> {
        Rc::new(Self {
            stream: Rc::clone(stream),
            can_be_given: Cell::new(false),
            asked: Cell::new(false),
            event: LocalEvent::default(),
        })
    }

    /// The connection can go on elsewhere from now on.
    pub(crate) fn can_be_given(&self) {
        self.can_be_given.set(true);
    }

    /// Ends when the front-end is to go on elsewhere.
    pub(crate) async fn asked(&self) {
        self.event.until(|| self.asked.get()).await;
    }
}

impl HangUp for Departure {
    fn hang_up(&self, how: Ending) {
        if how == Ending::HandOver && self.can_be_given.get() {
            self.asked.set(true);
            self.event.wake();
        } else {
            self.stream.hang_up(how);
        }
    }
}
