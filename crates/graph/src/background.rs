//! Engine work that outlives the requests that caused it.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use event_listener::Event;
use qcow2::{Budget, Calculation, Host, Work};

/// Runs the engine's work on the loop of the thread that starts it, and knows whether any is left:
/// a loop must not end before.
#[derive(Clone, Debug)]
pub(crate) struct BackgroundTasks {
    works: Arc<Works>,
    map_budget: Arc<Budget>,
}

#[derive(Debug, Default)]
struct Works {
    running: AtomicUsize,
    ended: Event,
}

/// One piece of work, from its start to its end.
struct Running(Arc<Works>);

impl Drop for Running {
    fn drop(&mut self) {
        if self.0.running.fetch_sub(1, Ordering::AcqRel) == 1 {
            self.0.ended.notify(usize::MAX);
        }
    }
}

impl Host for BackgroundTasks {
    fn spawn(&self, work: Work) {
        self.works.running.fetch_add(1, Ordering::AcqRel);
        let running = Running(Arc::clone(&self.works));
        reactor::spawn(async move {
            work.await;
            drop(running);
        })
        .detach();
    }

    fn calculate(&self, calculation: Calculation) -> Work {
        Box::pin(reactor::blocking(calculation))
    }

    fn map_budget(&self) -> Arc<Budget> {
        Arc::clone(&self.map_budget)
    }
}

impl BackgroundTasks {
    /// Tasks whose images take their memory out of `map_budget`.
    pub(crate) fn new(map_budget: Arc<Budget>) -> Self {
        Self { works: Arc::default(), map_budget }
    }

    /// Waits until no work is left, on whichever loop. Those loops must go on running meanwhile.
    pub(crate) async fn idle(&self) {
        loop {
            let ended = self.works.ended.listen();
            if self.works.running.load(Ordering::Acquire) == 0 {
                return;
            }
            ended.await;
        }
    }
}
