//! What runs the work that requests leave behind when they are dropped.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use event_listener::Event;
use qcow2::{Host, Work};

/// The simulated machine.
#[derive(Debug, Default)]
pub struct Machine(Arc<Works>);

/// Work that has not ended.
#[derive(Debug, Default)]
struct Works {
    running: AtomicUsize,
    ended: Event,
}

impl Host for Machine {
    fn spawn(&self, work: Work) {
        let works = Arc::clone(&self.0);
        works.running.fetch_add(1, Ordering::SeqCst);
        sim::spawn(async move {
            work.await;
            works.running.fetch_sub(1, Ordering::SeqCst);
            works.ended.notify(usize::MAX);
        });
    }
}

impl Machine {
    /// Waits until nothing is at work any more.
    pub async fn idle(&self) {
        loop {
            let ended = self.0.ended.listen();
            if self.0.running.load(Ordering::SeqCst) == 0 {
                return;
            }
            ended.await;
        }
    }
}
