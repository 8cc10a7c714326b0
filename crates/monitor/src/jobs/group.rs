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

#[cfg(test)]
mod tests {
    use std::future::poll_fn;
    use std::pin::pin;
    use std::task::Poll;

    use super::*;

    /// What `future` has come to when it was asked so many times.
    fn asked<T>(times: usize, future: impl Future<Output = T>) -> Option<T> {
        let reactor = reactor::Reactor::new(reactor::Backend::Ring).unwrap();
        reactor.run(async {
            let (mut future, mut left) = (pin!(future), times);
            poll_fn(move |cx| match future.as_mut().poll(cx) {
                Poll::Ready(value) => Poll::Ready(Some(value)),
                Poll::Pending if left == 0 => Poll::Ready(None),
                Poll::Pending => {
                    left -= 1;
                    cx.waker().wake_by_ref();
                    Poll::Pending
                }
            })
            .await
        })
    }

    /// A backup in a transaction worked on while later actions were done, completed, and cleared its bitmap; then the transaction failed.
    #[test]
    fn no_job_begins_before_the_transaction_is_over_however_long_its_other_actions_take() {
        for is_grouped in [false, true] {
            let group = Group::new(is_grouped);
            group.join();
            assert!(asked(100, Rc::clone(&group).begun()).is_none(), "an action is still to come");
            group.join();
            group.begin();
            let begun = asked(1, Rc::clone(&group).begun()).expect("it is over");
            assert_eq!(begun.is_some(), is_grouped);
        }
    }

    #[test]
    fn grouped_jobs_succeed_when_all_have_done_their_work_and_fail_when_one_has() {
        for fails in [false, true] {
            let group = Group::new(true);
            group.join();
            group.join();
            group.begin();
            assert!(asked(100, group.done()).is_none(), "the other one works");
            if fails {
                group.fail();
                assert_eq!(asked(1, group.failed()), Some(()));
            }
            assert_eq!(asked(1, group.done()), Some(!fails));
        }
    }
}
