//! Which loops still answer at the end.

use std::cell::RefCell;
use std::sync::Arc;
use std::time::{Duration, Instant};

use export::{Answers, Loops};

/// Each loop is asked for a sign of life when the end begins, and again and again until it is over. One that a system call holds up gives none.
pub(super) struct Roll {
    loops: Arc<Loops>,
    /// What was asked at the beginning, and when.
    first: RefCell<Option<(Answers, Instant)>>,
    /// Loops that the log knows of.
    named: RefCell<Vec<String>>,
}

impl Roll {
    /// How long the first steps of the end wait for a loop.
    pub(super) const PATIENCE: Duration = Duration::from_secs(1);

    /// Asks all loops.
    pub(super) fn call(loops: &Arc<Loops>) -> Self {
        let first = (loops.ask_all(), Instant::now());
        Self { loops: Arc::clone(loops), first: RefCell::new(Some(first)), named: RefCell::default() }
    }

    /// Ends when a loop has not answered for `patience`, which is at least [`Roll::PATIENCE`]. The log hears of it earlier.
    pub(super) async fn lost(&self, patience: Duration) {
        loop {
            let first = self.first.take();
            let (answers, asked) = first.unwrap_or_else(|| (self.loops.ask_all(), Instant::now()));
            reactor::sleep_until(asked + Self::PATIENCE).await;
            let missing = answers.missing();
            if missing.is_empty() {
                continue;
            }
            self.name(missing);
            reactor::sleep_until(asked + patience).await;
            if !answers.missing().is_empty() {
                return;
            }
        }
    }

    fn name(&self, missing: Vec<String>) {
        let mut named = self.named.borrow_mut();
        for name in missing.into_iter().filter(|name| !named.contains(name)).collect::<Vec<_>>() {
            tracing::error!(
                "event loop {name} does not answer: a call of the system for one of its clients does not return; all else ends without it"
            );
            named.push(name);
        }
    }
}

#[cfg(test)]
mod tests {
    use export::Shutdown;

    use super::*;

    /// Loops that never run answer nothing; one that has ended needs to answer nothing.
    #[test]
    fn a_loop_that_does_not_answer_is_lost_and_one_that_has_ended_is_not() {
        let reactor = reactor::Reactor::new(reactor::Backend::Threads).unwrap();
        let loops = Loops::new(2, Shutdown::new());
        let roll = Roll::call(&loops);
        let long_ago = Instant::now().checked_sub(Roll::PATIENCE).unwrap();
        let (answers, _) = roll.first.take().unwrap();
        roll.first.replace(Some((answers, long_ago)));
        reactor.run(roll.lost(Roll::PATIENCE));
        assert_eq!(*roll.named.borrow(), ["cowhand-loop-0", "cowhand-loop-1"]);
        let asked = loops.ask_all();
        loops.shutdown().trigger();
        loops.run(reactor::Backend::Threads).unwrap();
        assert!(asked.missing().is_empty() && loops.ask_all().missing().is_empty());
    }
}
