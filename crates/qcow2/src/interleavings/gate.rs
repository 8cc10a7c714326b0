//! The gate: grace periods and exclusive access.

use std::sync::Arc;

use futures_util::FutureExt;
use sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use sync::explore::{block_on, explore, thread};

use crate::gate::Gate;

/// Something that the map leads to until it is freed, and that is reused after a grace period.
#[derive(Default)]
struct Shared {
    gate: Gate,
    /// Index of the thing in use; all below it are freed.
    current: AtomicU64,
    /// All below this are reused by now.
    reused: AtomicU64,
    alone: AtomicBool,
}

impl Shared {
    fn replace(&self, abandon: bool) {
        let old = self.current.fetch_add(1, SeqCst);
        if abandon {
            let _ = Box::pin(self.gate.grace()).as_mut().now_or_never();
        }
        block_on(self.gate.grace());
        self.reused.store(old + 1, SeqCst);
    }

    fn use_it(&self) {
        let _pass = block_on(self.gate.enter());
        assert!(!self.alone.load(SeqCst), "inside a closed gate");
        let found = self.current.load(SeqCst);
        assert!(self.reused.load(SeqCst) <= found, "{found} was reused while a request used it");
        assert!(!self.alone.load(SeqCst), "the gate closed over a request");
    }

    fn close(&self) {
        let _closed = block_on(self.gate.close());
        self.alone.store(true, SeqCst);
        self.alone.store(false, SeqCst);
    }
}

fn together(threads: impl IntoIterator<Item = fn(&Shared)>) {
    let shared = Arc::new(Shared::default());
    let start = |body: fn(&Shared)| {
        let shared = Arc::clone(&shared);
        thread::spawn(move || body(&shared))
    };
    let threads: Vec<_> = threads.into_iter().map(start).collect();
    threads.into_iter().for_each(|thread| thread.join().unwrap());
}

#[test]
fn a_grace_period_outlasts_everybody_who_was_inside() {
    explore(|| {
        let user = |shared: &Shared| (0..3).for_each(|_| shared.use_it());
        let freer = |shared: &Shared| (0..3).for_each(|_| shared.replace(false));
        together([user as fn(&Shared), user, freer]);
    });
}

#[test]
fn an_abandoned_grace_period_shortens_none_that_follows() {
    explore(|| {
        let user = |shared: &Shared| (0..3).for_each(|_| shared.use_it());
        let freer = |shared: &Shared| (0..3).for_each(|round| shared.replace(round != 1));
        together([user as fn(&Shared), user, freer]);
    });
}

#[test]
fn whoever_closed_the_gate_is_alone_and_all_others_get_in_afterwards() {
    explore(|| {
        let user = |shared: &Shared| (0..2).for_each(|_| shared.use_it());
        let closer = |shared: &Shared| (0..2).for_each(|_| shared.close());
        let freer = |shared: &Shared| shared.replace(false);
        together([user as fn(&Shared), user, closer, freer]);
    });
}

#[test]
fn a_request_that_does_not_wait_is_in_before_the_gate_closes_or_not_at_all() {
    explore(|| {
        let user = |shared: &Shared| {
            for _ in 0..3 {
                let Some(pass) = shared.gate.try_enter() else { continue };
                assert!(!shared.alone.load(SeqCst), "inside a closed gate");
                let detached = pass.detach();
                assert!(!shared.alone.load(SeqCst), "the gate closed over a detached pass");
                drop(shared.gate.attach(detached));
            }
        };
        let closer = |shared: &Shared| (0..2).for_each(|_| shared.close());
        together([user as fn(&Shared), user, closer]);
    });
}
