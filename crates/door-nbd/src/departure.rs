//! How a client is told to end, or to be given to another process.

use std::cell::Cell;
use std::rc::Rc;
use std::sync::Arc;

use export::{Ending, HangUp, LocalEvent};
use reactor::net::Stream;

/// One client's way out.
#[derive(Debug)]
pub(crate) struct Departure {
    stream: Arc<Stream>,
    /// It has chosen its export, and speaks without TLS: another process can go on with it.
    can_be_given: Cell<bool>,
    asked: Cell<bool>,
    /// Only the task that takes its requests in waits.
    event: LocalEvent,
}

impl Departure {
    pub(crate) fn new(stream: &Arc<Stream>) -> Rc<Self> {
        Rc::new(Self {
            stream: Arc::clone(stream),
            can_be_given: Cell::new(false),
            asked: Cell::new(false),
            event: LocalEvent::default(),
        })
    }

    /// The connection can go on elsewhere from now on.
    pub(crate) fn can_be_given(&self) {
        self.can_be_given.set(true);
    }

    /// Whether it is to go on elsewhere.
    pub(crate) fn is_asked(&self) -> bool {
        self.asked.get()
    }

    /// Ends when it is to go on elsewhere.
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
