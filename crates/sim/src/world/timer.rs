//! Waiting on the virtual clock.

use std::collections::BTreeMap;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use super::World;
use super::machine::Machine;

/// Deadlines in nanoseconds, with a number that tells equal ones apart.
pub(crate) type Timers = BTreeMap<(u64, u64), Option<Waker>>;

/// Ends when the virtual clock has reached its deadline.
#[derive(Debug)]
pub struct Sleep {
    world: World,
    key: (u64, u64),
}

impl Sleep {
    pub(super) fn new(world: World, duration: Duration) -> Self {
        let key = world.machine.lock().add_timer(duration);
        Self { world, key }
    }
}

impl Future for Sleep {
    type Output = ();

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        let mut machine = self.world.machine.lock();
        if machine.now_nanos >= self.key.0 {
            return Poll::Ready(());
        }
        machine.timers.insert(self.key, Some(context.waker().clone()));
        Poll::Pending
    }
}

impl Drop for Sleep {
    fn drop(&mut self) {
        self.world.machine.lock().timers.remove(&self.key);
    }
}

impl Machine {
    fn add_timer(&mut self, duration: Duration) -> (u64, u64) {
        let nanos = u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX);
        let key = (self.now_nanos.saturating_add(nanos), self.next_tick());
        self.timers.insert(key, None);
        key
    }

    pub(super) fn next_timer(&self) -> Option<Duration> {
        let (deadline, _) = self.timers.first_key_value()?.0;
        Some(Duration::from_nanos(deadline.saturating_sub(self.now_nanos)))
    }

    pub(super) fn advance(&mut self, by: Duration) -> Vec<Waker> {
        self.now_nanos = self.now_nanos.saturating_add(u64::try_from(by.as_nanos()).unwrap_or(u64::MAX));
        let later = self.timers.split_off(&(self.now_nanos.saturating_add(1), 0));
        let due = std::mem::replace(&mut self.timers, later);
        due.into_values().flatten().collect()
    }
}
