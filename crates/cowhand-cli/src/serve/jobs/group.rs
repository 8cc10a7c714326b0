//! Jobs that succeed together or not at all.

use std::cell::Cell;
use std::rc::Rc;

use event_listener::Event;

/// Jobs of one transaction. They wait for each other before their last step; the failure of one ends all.
#[derive(Debug, Default)]
pub struct Group {
    working: Cell<usize>,
    failed: Cell<bool>,
    changed: Event,
}

impl Group {
    /// One without jobs. Nobody goes on before it is [`Group::complete`].
    pub fn new() -> Rc<Self> {
        let group = Self::default();
        group.join();
        Rc::new(group)
    }

    /// No more jobs join, or one of them has done its work.
    pub fn complete(&self) {
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
