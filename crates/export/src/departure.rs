//! How a client is asked to end, or to be given to another process.

use std::cell::Cell;
use std::fmt;
use std::rc::Rc;

use crate::local_event::LocalEvent;
use crate::loops::{Ending, HangUp};

/// One client's way out: it is given away where that can be, and hung up on otherwise.
pub struct Departure {
    hang_up: Box<dyn HangUp>,
    can_be_given: Cell<bool>,
    asked: Cell<bool>,
    /// Only the task that takes its requests in waits.
    event: LocalEvent,
}

impl Departure {
    /// Of a client that cannot be given away yet. `hang_up` ends it otherwise.
    pub fn new(hang_up: impl HangUp + 'static) -> Rc<Self> {
        Rc::new(Self {
            hang_up: Box::new(hang_up),
            can_be_given: Cell::new(false),
            asked: Cell::new(false),
            event: LocalEvent::default(),
        })
    }

    /// The client can move to another process from now on: its server looks at [`Departure::is_asked`], or waits for [`Departure::asked`].
    pub fn can_be_given(&self) {
        self.can_be_given.set(true);
    }

    /// Whether it is to go on elsewhere.
    pub fn is_asked(&self) -> bool {
        self.asked.get()
    }

    /// Ends when it is to go on elsewhere. One task may wait at a time.
    pub async fn asked(&self) {
        self.event.until(|| self.is_asked()).await;
    }
}

impl HangUp for Departure {
    fn hang_up(&self, how: Ending) {
        if how == Ending::HandOver && self.can_be_given.get() {
            self.asked.set(true);
            self.event.wake();
        } else {
            self.hang_up.hang_up(how);
        }
    }
}

impl fmt::Debug for Departure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { can_be_given, asked, .. } = self;
        f.debug_struct("Departure")
            .field("can_be_given", can_be_given)
            .field("asked", asked)
            .finish_non_exhaustive()
    }
}
