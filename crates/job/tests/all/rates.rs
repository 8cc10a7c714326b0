//! A copy under a limit takes as long as the limit says. No test waits: the clock is made up.

use std::future::{Future, ready};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use futures_executor::block_on;
use job::{Clock, Content, Copy, CopyOptions, Counters, RateLimit, Scope};
use throttle::Time;

use crate::made_up::MadeUp;

/// A clock that goes on only when a task sleeps.
#[derive(Clone, Debug, Default)]
struct MadeUpClock(Arc<AtomicU64>);

impl Clock for MadeUpClock {
    fn now(&self) -> Time {
        Time::from_nanos(self.0.load(Ordering::Relaxed))
    }

    fn sleep(&self, wait: Duration) -> Pin<Box<dyn Future<Output = ()>>> {
        self.0.fetch_add(wait.as_nanos() as u64, Ordering::Relaxed);
        Box::pin(ready(()))
    }
}

#[test]
fn a_limited_copy_takes_its_time() {
    let sectors = 8 << 11;
    let (source, target) = (MadeUp::used("source", sectors), MadeUp::blank("target", sectors));
    let clock = MadeUpClock::default();
    let rate = RateLimit::new(1 << 20, clock.clone());
    let copy = Copy {
        source: &source,
        from: 0..8 << 20,
        target: &target,
        to: 0,
        scope: Scope::Everything,
        content: Content::Zeroes,
        options: CopyOptions { rate: Some(rate), ..CopyOptions::default() },
    };
    block_on(copy.run(&Counters::default())).unwrap();
    assert_eq!(target.bytes(), source.bytes());
    // 8 MiB at 1 MiB/s; the first tenth of a second's worth and the last piece are free.
    let seconds = clock.now().as_nanos() as f64 / 1e9;
    assert!((6.8..8.0).contains(&seconds), "{seconds}");
}
