//! How many iterations take a given time on this machine.

use std::time::Duration;

use crate::Hash;

/// The fewest iterations of a password (specification, 5.4).
pub const ITERATIONS_MIN: u32 = 1000;

/// The first try; each further one has twice as many, until one takes long enough to be believed.
const FIRST_TRY: u32 = 1 << 12;
/// A try that takes this part of the time asked for is believed.
const BELIEVED_PART: u32 = 8;
/// A key slot of a header may have a share of [`crate::ITERATIONS_MAX`], so that all eight may have the same.
const ITERATIONS_ASKED_MAX: u32 = 1 << 24;

/// Iterations of PBKDF2 that take `time` for a key of `key_bytes`, by `clock`. Costs about a quarter of that time. A clock that
/// stands still gives the most iterations that are allowed, and one that leaps the fewest: neither fails.
pub fn calibrate(hash: Hash, key_bytes: usize, time: Duration, clock: &mut dyn FnMut() -> Duration) -> u32 {
    let mut iterations = FIRST_TRY;
    loop {
        let start = clock();
        hash.pbkdf2(b"password", b"salt", iterations, key_bytes);
        let took = clock().saturating_sub(start);
        if took >= time / BELIEVED_PART && !took.is_zero() || iterations >= ITERATIONS_ASKED_MAX {
            let wanted = u128::from(iterations) * time.as_nanos() / took.as_nanos().max(1);
            let wanted = u32::try_from(wanted).unwrap_or(u32::MAX);
            return wanted.clamp(ITERATIONS_MIN, ITERATIONS_ASKED_MAX);
        }
        iterations *= 2;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A clock of a machine that takes a microsecond an iteration.
    fn asked(ms: u64, per_look: fn(u32) -> Duration) -> u32 {
        let mut now = Duration::ZERO;
        let mut looks = 0;
        calibrate(Hash::Sha1, 20, Duration::from_millis(ms), &mut || {
            looks += 1;
            if looks % 2 == 0 {
                now += per_look(FIRST_TRY << (looks / 2 - 1));
            }
            now
        })
    }

    #[test]
    fn iterations_are_those_of_the_time_asked_for() {
        let machine = |iterations: u32| Duration::from_micros(iterations.into());
        assert_eq!(asked(10, machine), 10_000);
        assert_eq!(asked(100, machine), 100_000);
        assert_eq!(asked(0, machine), ITERATIONS_MIN);
    }

    #[test]
    fn a_clock_that_leaps_ends_it_with_the_fewest() {
        assert_eq!(asked(10, |_| Duration::from_secs(3600)), ITERATIONS_MIN);
    }
}
