//! Large requests in steps, so that others get between; and who makes a request learns when its disk admits it.

use std::future::Future;

/// Bytes of a request that are read or written in one step; steps begin at multiples of it. The largest cluster that
/// qcow2 has, so that no cluster is written in two; about a millisecond of a loop's time from the page cache.
pub const STEP_BYTES: u64 = 2 << 20;

/// Says when the next step of a request may begin.
pub trait Pace {
    /// Bytes of a step at most: a multiple of [`STEP_BYTES`].
    const BYTES: u64 = STEP_BYTES;

    /// Ends when `bytes` more may be read or written: at most [`Pace::BYTES`].
    fn step(&self, bytes: u64) -> impl Future<Output = ()>;

    /// The request is past the limits of its disk: from now on it runs, and must not be dropped. It may be called more than once.
    fn admitted(&self) {}
}

/// Every step begins at once.
#[derive(Clone, Copy, Debug, Default)]
pub struct Unpaced;

impl Pace for Unpaced {
    /// What an NBD server takes in one request at most: a tool's request to a server stays one.
    const BYTES: u64 = 32 << 20;

    fn step(&self, _bytes: u64) -> impl Future<Output = ()> {
        std::future::ready(())
    }
}

/// Bytes of the step that begins at `offset`, of a request that has `left` from there on.
pub fn step_bytes<P: Pace>(_: &P, offset: u64, left: u64) -> u64 {
    left.min(P::BYTES - offset % P::BYTES)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn steps_end_at_multiples_of_their_size_and_cover_the_request() {
        let step = Unpaced::BYTES;
        assert!(step.is_multiple_of(STEP_BYTES));
        let (mut at, end, mut steps) = (step - 512, 3 * step + 1, Vec::new());
        while at < end {
            let bytes = step_bytes(&Unpaced, at, end - at);
            steps.push(bytes);
            at += bytes;
        }
        assert_eq!(steps, [512, step, step, 1]);
    }
}
