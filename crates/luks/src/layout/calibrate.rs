//! How many iterations take a given time on this machine.

use std::time::Duration;

use crate::layout::Hash;

/// The fewest iterations of a password (specification, 5.4).
pub const ITERATIONS_MIN: u32 = 1000;

/// The first try; each further one has twice as many, until one takes long enough to be believed.
const FIRST_TRY: u32 = 1 << 12;
/// A try that takes this part of the time asked for is believed.
const BELIEVED_PART: u32 = 8;
/// A key slot of a header may have a share of [`crate::layout::PBKDF2_COST_MAX`], so that all eight, and the digest, may have the same.
const SHARES: u64 = crate::layout::SLOTS as u64 + 1;

/// A try that is believed is made so often, and the fastest one counts: whatever else the machine does makes a try slower, never faster.
const TRIES: u32 = 3;

/// Iterations of PBKDF2 that take `time` for a key of `key_bytes`, by `clock`. Costs a half of that time, about. A clock that
/// stands still gives the most iterations that are allowed, and one that leaps the fewest: neither fails.
pub fn calibrate(hash: Hash, key_bytes: usize, time: Duration, clock: &mut dyn FnMut() -> Duration) -> u32 {
    let most = crate::layout::PBKDF2_COST_MAX / SHARES / hash.pbkdf2_cost(1, key_bytes);
    search(time, u32::try_from(most).unwrap_or(u32::MAX), &mut |iterations| {
        let start = clock();
        // Without ciphers it takes no time, and what the iterations are for fails.
        let _ = hash.pbkdf2(b"password", b"salt", iterations, key_bytes);
        clock().saturating_sub(start)
    })
}

/// Iterations that take `time`, `most` of them at most, where `took` tries a number of them.
fn search(time: Duration, most: u32, took: &mut dyn FnMut(u32) -> Duration) -> u32 {
    let mut iterations = FIRST_TRY;
    loop {
        let first = took(iterations);
        if first >= time / BELIEVED_PART && !first.is_zero() || iterations >= most {
            let fastest = (1..TRIES).fold(first, |fastest, _| fastest.min(took(iterations)));
            let wanted = u128::from(iterations) * time.as_nanos() / fastest.as_nanos().max(1);
            let wanted = u32::try_from(wanted).unwrap_or(u32::MAX);
            return wanted.clamp(ITERATIONS_MIN, most);
        }
        iterations *= 2;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MOST: u32 = 1 << 24;

    #[test]
    fn iterations_are_those_of_the_time_asked_for() {
        // A machine that takes a microsecond an iteration.
        let asked =
            |ms| search(Duration::from_millis(ms), MOST, &mut |count| Duration::from_micros(count.into()));
        assert_eq!(
            [asked(10), asked(100), asked(2000), asked(0)],
            [10_000, 100_000, 2_000_000, ITERATIONS_MIN]
        );
    }

    #[test]
    fn what_else_the_machine_does_makes_no_key_weaker() {
        let mut tries = 0;
        let disturbed = search(Duration::from_millis(100), MOST, &mut |count| {
            tries += 1;
            Duration::from_micros(u64::from(count) * if tries % 3 == 1 { 1 } else { 9 })
        });
        assert_eq!(disturbed, 100_000);
    }

    #[test]
    fn a_clock_that_leaps_ends_it_with_the_fewest_and_one_that_stands_with_the_most() {
        let time = Duration::from_millis(10);
        assert_eq!(search(time, MOST, &mut |_| Duration::from_secs(3600)), ITERATIONS_MIN);
        assert_eq!(search(time, MOST, &mut |_| Duration::ZERO), MOST);
        let mut now = Duration::ZERO;
        let mut leaping = || {
            now += Duration::from_secs(3600);
            now
        };
        assert_eq!(calibrate(Hash::Sha1, 20, time, &mut leaping), ITERATIONS_MIN);
    }
}
