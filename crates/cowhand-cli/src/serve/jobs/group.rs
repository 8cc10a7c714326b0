//! Jobs of one transaction: they begin when it is over, and succeed together or not at all if it says so.

use std::cell::Cell;
use std::rc::Rc;

use event_listener::Event;

/// Jobs of one transaction. None begins before all actions are done: what a job does cannot be undone. Those of a grouped transaction wait
/// for each other before their last step, and the failure of one ends all.
#[derive(Debug)]
pub struct Group {
    is_grouped: bool,
    is_over: Cell<bool>,
    working: Cell<usize>,
    failed: Cell<bool>,
    changed: Event,
}

impl Group {
    /// One without jobs.
    pub fn new(is_grouped: bool) -> Rc<Self> {
        let (is_over, failed) = (Cell::new(false), Cell::new(false));
        Rc::new(Self { is_grouped, is_over, working: Cell::new(1), failed, changed: Event::new() })
    }

    /// The transaction is over: its jobs begin, and no more join.
    pub fn begin(&self) {
        self.is_over.set(true);
        self.complete();
    }

    /// Waits until the transaction is over. Gives the group if its jobs succeed together.
    pub async fn begun(self: Rc<Self>) -> Option<Rc<Self>> {
        loop {
            let changed = self.changed.listen();
            if self.is_over.get() {
                break;
            }
            changed.await;
        }
        self.is_grouped.then_some(self)
    }

    /// One of them has done its work.
    fn complete(&self) {
        self.working.set(self.working.get().saturating_sub(1));
        self.changed.notify(usize::MAX);
    }

    /// One more job, which has not done its work.
    pub fn join(&self) {
        self.working.set(self.working.get() + 1);
    }

    /// A job has done its work; waits for the others. `false`: one has failed.
    pub async fn done(&self) -> bool {
        self.complete();
        loop {
            let changed = self.changed.listen();
            if self.failed.get() {
                return false;
            }
            if self.working.get() == 0 {
                return true;
            }
            changed.await;
        }
    }

    /// A job has failed.
    pub fn fail(&self) {
        self.failed.set(true);
        self.changed.notify(usize::MAX);
    }

    /// Waits until a job has failed.
    pub async fn failed(&self) {
        loop {
            let changed = self.changed.listen();
            if self.failed.get() {
                return;
            }
            changed.await;
        }
    }
}
