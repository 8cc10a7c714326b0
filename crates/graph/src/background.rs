//! Engine work that outlives the requests that caused it.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use event_listener::Event;
use qcow2::{Budget, Calculation, Host, TablesAccount, Work};

use crate::map_memory::default_map_memory;

/// Runs the engine's work on the loop of the thread that starts it, and knows whether any is left:
/// a loop must not end before.
#[derive(Clone, Debug)]
pub struct BackgroundTasks {
    works: Arc<Works>,
    map_budget: Arc<Budget>,
    tables: Arc<TablesAccount>,
}

/// Memory for the tables that the images of a disk hold whole, at least: four of the largest L1 tables, and the places of the tables that they name.
/// A disk of 16 TiB at clusters of 64 KiB takes half a MiB an image of it.
const TABLES_BYTES_MIN: u64 = 128 << 20;

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

    fn tables_account(&self) -> Arc<TablesAccount> {
        Arc::clone(&self.tables)
    }
}

impl luks::Around for BackgroundTasks {
    fn spawn(&self, work: luks::Work) {
        Host::spawn(self, work);
    }

    fn calculate(&self, calculation: Calculation) -> Work {
        Host::calculate(self, calculation)
    }
}

/// What works on keys, and a check, use: the loop of the thread that asks, and its threads for what takes long.
#[derive(Clone, Copy, Debug)]
pub struct OnLoop;

impl luks::Around for OnLoop {
    fn spawn(&self, work: luks::Work) {
        reactor::spawn(work).detach();
    }

    fn calculate(&self, calculation: Calculation) -> Work {
        Box::pin(reactor::blocking(calculation))
    }
}

impl Host for OnLoop {
    fn spawn(&self, work: Work) {
        reactor::spawn(work).detach();
    }

    fn calculate(&self, calculation: Calculation) -> Work {
        Box::pin(reactor::blocking(calculation))
    }
}

impl BackgroundTasks {
    /// Tasks of one disk, whose images take their memory out of `map_budget`.
    pub fn new(map_budget: Arc<Budget>) -> Self {
        // More memory for maps than the default is a sign of disks with large tables: half of it is for
        // those.
        let given = map_budget.bytes_max();
        let is_more = given / 2 > TABLES_BYTES_MIN && given > default_map_memory();
        let tables = TablesAccount::new(if is_more { given / 2 } else { TABLES_BYTES_MIN });
        Self { works: Arc::default(), map_budget, tables }
    }

    /// Waits until no task is left, on any loop. Those loops must keep running meanwhile.
    pub async fn idle(&self) {
        let is_idle = || self.works.running.load(Ordering::Acquire) == 0;
        while !is_idle() {
            let ended = self.works.ended.listen();
            if !is_idle() {
                ended.await;
            }
        }
    }
}
