//! A copy's own limit on bytes a second.

use std::fmt::Debug;
use std::future::Future;
use std::pin::Pin;
use std::sync::OnceLock;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use throttle::{LeakyBucket, Rate, Time};

/// Billionths of a byte in a byte: the bucket's unit.
const NANO: u128 = 1_000_000_000;

/// Bytes of a piece at most under a limit, as in QEMU.
const PIECE_BYTES_LIMITED: u64 = 512 << 10;

/// Bytes of a piece at `speed`, of `most` at most: less under a limit, so that it holds from second to second and a job that waits for it has little
/// under way.
pub(crate) fn piece_bytes(speed: u64, most: u64) -> u64 {
    if speed == 0 { most } else { most.min(PIECE_BYTES_LIMITED) }
}

/// Time and timers. Tests bring their own, so that none of them sleeps.
pub trait Clock: Debug + Send + Sync {
    /// The time, monotonic.
    fn now(&self) -> Time;

    /// Ends after `wait`, never before.
    fn sleep(&self, wait: Duration) -> Pin<Box<dyn Future<Output = ()>>>;
}

/// The time of the loop on which the copy runs.
#[derive(Clone, Copy, Debug, Default)]
pub struct LoopClock;

impl Clock for LoopClock {
    fn now(&self) -> Time {
        static START: OnceLock<Instant> = OnceLock::new();
        let elapsed = START.get_or_init(Instant::now).elapsed();
        Time::from_nanos(u64::try_from(elapsed.as_nanos()).unwrap_or(u64::MAX))
    }

    fn sleep(&self, wait: Duration) -> Pin<Box<dyn Future<Output = ()>>> {
        Box::pin(reactor::sleep(wait))
    }
}

/// Bytes a second, with a tenth of a second's worth at once.
#[derive(Debug)]
pub struct RateLimit {
    bucket: Mutex<LeakyBucket>,
    clock: Box<dyn Clock>,
}

impl RateLimit {
    /// A limit of `bytes_per_second`; 0 is none.
    pub fn new(bytes_per_second: u64, clock: impl Clock + 'static) -> Self {
        let rate = Rate { avg: bytes_per_second, ..Rate::UNLIMITED };
        Self { bucket: Mutex::new(LeakyBucket::new(rate, clock.now())), clock: Box::new(clock) }
    }

    /// Another limit from now on; 0 is none. Who waits goes on waiting as the old one said.
    pub fn set(&self, bytes_per_second: u64) {
        let rate = Rate { avg: bytes_per_second, ..Rate::UNLIMITED };
        *self.bucket.lock().unwrap_or_else(PoisonError::into_inner) =
            LeakyBucket::new(rate, self.clock.now());
    }

    /// Waits until `bytes` may pass, and charges them.
    pub async fn take(&self, bytes: u64) {
        loop {
            let wait = {
                let mut bucket = self.bucket.lock().unwrap_or_else(PoisonError::into_inner);
                let now = self.clock.now();
                let wait = bucket.wait(now);
                if wait.is_zero() {
                    bucket.fill(u128::from(bytes) * NANO, now);
                    return;
                }
                wait
            };
            self.clock.sleep(wait).await;
        }
    }
}
