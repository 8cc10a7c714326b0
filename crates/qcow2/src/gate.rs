//! Who is inside the image: grace periods for freed clusters, and exclusive access.
//!
//! Every request holds a [`Pass`] from its first look at the map to the end of its last I/O. A
//! cluster that was freed may be punched or given out again only after all requests have left that
//! were inside when it was freed ([`Gate::grace`]): one of them may still read or write it.

use sync::Event;
use sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering::SeqCst};

/// Counts the requests inside, in two generations.
#[derive(Debug, Default)]
pub(crate) struct Gate {
    generation: AtomicU64,
    inside: [Count; 2],
    closed: AtomicBool,
    /// The gate stays closed.
    ended: AtomicBool,
    /// A generation has no request inside any more.
    emptied: Event,
    /// Who waits for that: telling none costs as much as entering.
    waiting: AtomicUsize,
    /// Apart from `emptied`: requests that wait to enter look in and leave again, and would wake each other
    /// for as long as the gate is closed.
    opened: Event,
}

#[derive(Debug, Default)]
#[repr(align(128))]
struct Count(AtomicU64);

/// The right to use the map and the clusters it names. Given back on drop.
#[derive(Debug)]
pub(crate) struct Pass<'a> {
    gate: &'a Gate,
    generation: usize,
}

impl Drop for Pass<'_> {
    fn drop(&mut self) {
        self.gate.leave(self.generation);
    }
}

/// No other request is in flight, and none enters, until this is dropped.
#[derive(Debug)]
pub(crate) struct Closed<'a>(&'a Gate);

impl Closed<'_> {
    /// No request enters any more. Those that wait to are refused.
    pub(crate) fn for_ever(self) {
        self.0.ended.store(true, SeqCst);
    }
}

impl Drop for Closed<'_> {
    fn drop(&mut self) {
        let ended = self.0.ended.load(SeqCst);
        self.0.closed.store(ended, SeqCst);
        self.0.opened.notify(usize::MAX);
    }
}

impl Gate {
    /// Enters unless the gate is closed. No lock, no wait.
    #[inline]
    pub(crate) fn try_enter(&self) -> Option<Pass<'_>> {
        loop {
            let now = self.generation.load(SeqCst);
            let generation = (now % 2) as usize;
            self.inside[generation].0.fetch_add(1, SeqCst);
            // Looked at after counting: closing the gate or turning the generation looks at
            // the counts after that, so one of the two sees the other.
            if self.closed.load(SeqCst) {
                self.leave(generation);
                return None;
            }
            if self.generation.load(SeqCst) == now {
                return Some(Pass { gate: self, generation });
            }
            self.leave(generation);
        }
    }

    /// Enters; waits while the gate is closed. `None` if it is closed for ever.
    pub(crate) async fn enter(&self) -> Option<Pass<'_>> {
        loop {
            if let Some(pass) = self.try_enter() {
                return Some(pass);
            }
            let opened = self.opened.listen();
            if self.ended.load(SeqCst) {
                return None;
            }
            if self.closed.load(SeqCst) {
                opened.await;
            }
        }
    }

    /// The pass that was detached from this gate.
    pub(crate) fn attach(&self, detached: Detached) -> Pass<'_> {
        Pass { gate: self, generation: detached.generation }
    }

    fn leave(&self, generation: usize) {
        // A waiter announces itself before it looks at the count: one of the two sees the other.
        if self.inside[generation].0.fetch_sub(1, SeqCst) == 1 && self.waiting.load(SeqCst) > 0 {
            self.emptied.notify(usize::MAX);
        }
    }

    /// Whether no request is in flight at this moment.
    pub(crate) fn is_empty(&self) -> bool {
        self.inside.iter().all(|count| count.0.load(SeqCst) == 0)
    }

    /// Waits until every request that is inside now has left. Call it once at a time.
    pub(crate) async fn grace(&self) {
        let now = self.generation.load(SeqCst);
        // A grace period that was abandoned half-way may have left a request in the other generation.
        self.empty(((now + 1) % 2) as usize).await;
        self.generation.store(now + 1, SeqCst);
        self.empty((now % 2) as usize).await;
    }

    /// Closes the gate and waits until every request has left. Call it once at a time.
    pub(crate) async fn close(&self) -> Closed<'_> {
        self.closed.store(true, SeqCst);
        let closed = Closed(self);
        self.empty(0).await;
        self.empty(1).await;
        closed
    }

    async fn empty(&self, generation: usize) {
        let _waiting = Waiter::new(&self.waiting);
        loop {
            if self.inside[generation].0.load(SeqCst) == 0 {
                return;
            }
            let emptied = self.emptied.listen();
            if self.inside[generation].0.load(SeqCst) != 0 {
                emptied.await;
            }
        }
    }
}

/// Counts a waiter, until dropped.
struct Waiter<'a>(&'a AtomicUsize);

impl<'a> Waiter<'a> {
    fn new(count: &'a AtomicUsize) -> Self {
        count.fetch_add(1, SeqCst);
        Self(count)
    }
}

impl Drop for Waiter<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, SeqCst);
    }
}

/// A pass in transit to work that outlives its request: [`Gate::attach`] makes a pass of it again.
#[derive(Debug)]
#[must_use = "a pass that is never attached again keeps every freed cluster from being used"]
pub(crate) struct Detached {
    generation: usize,
}

impl Pass<'_> {
    pub(crate) fn detach(self) -> Detached {
        Detached { generation: std::mem::ManuallyDrop::new(self).generation }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures_util::FutureExt;

    #[test]
    fn grace_waits_for_those_inside_and_not_for_newcomers() {
        let gate = Gate::default();
        let old = gate.try_enter().unwrap();
        let mut grace = Box::pin(gate.grace());
        assert!(grace.as_mut().now_or_never().is_none());
        let newcomer = gate.try_enter().unwrap();
        drop(old);
        assert!(grace.as_mut().now_or_never().is_some());
        drop(newcomer);
    }

    #[test]
    fn an_abandoned_grace_period_does_not_let_the_next_one_end_early() {
        let gate = Gate::default();
        let old = gate.try_enter().unwrap();
        assert!(Box::pin(gate.grace()).as_mut().now_or_never().is_none());
        let mut again = Box::pin(gate.grace());
        assert!(again.as_mut().now_or_never().is_none());
        drop(old);
        assert!(again.as_mut().now_or_never().is_some());
    }

    #[test]
    fn a_closed_gate_lets_nobody_in_until_it_opens() {
        let gate = Gate::default();
        let inside = gate.try_enter().unwrap();
        let mut close = Box::pin(gate.close());
        assert!(close.as_mut().now_or_never().is_none());
        assert!(gate.try_enter().is_none());
        drop(inside);
        let closed = close.as_mut().now_or_never().unwrap();
        drop(closed);
        assert!(gate.try_enter().is_some());
    }

    #[test]
    fn who_waits_at_a_gate_that_closes_for_ever_is_sent_away() {
        let gate = Gate::default();
        let closed = gate.close().now_or_never().unwrap();
        let mut waiting = Box::pin(gate.enter());
        assert!(waiting.as_mut().now_or_never().is_none());
        closed.for_ever();
        assert!(waiting.as_mut().now_or_never().unwrap().is_none());
        assert!(gate.try_enter().is_none());
    }

    #[test]
    fn a_pass_counts_while_it_is_detached() {
        let gate = Gate::default();
        let detached = gate.try_enter().unwrap().detach();
        let mut grace = Box::pin(gate.grace());
        assert!(grace.as_mut().now_or_never().is_none());
        drop(gate.attach(detached));
        assert!(grace.as_mut().now_or_never().is_some());
    }
}
