//! How far an amendment is, in qemu-img's form: each step that takes long counts as much as the others.

use std::ops::ControlFlow;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use qcow2::snapshot::Visited;

use crate::copying::watch::Watch;
use crate::progress::Progress;

/// Units of a step, so that shares of any total are precise to the digits that are shown.
const STEP: u64 = 1 << 40;

/// The steps of one amendment.
pub(super) struct Steps {
    progress: Arc<Mutex<Progress>>,
    /// Marks of zeroes are removed before the width of refcounts changes.
    width_follows: bool,
}

impl Steps {
    /// Begins now. `shown`: in qemu-img's form.
    pub(super) fn begin(shown: bool, downgrade: bool, width: bool) -> Self {
        let steps = (u64::from(downgrade) + u64::from(width)).max(1);
        let progress = Progress::begin(shown, steps * STEP, Instant::now());
        Self { progress: Arc::new(Mutex::new(progress)), width_follows: downgrade }
    }

    /// What the step that removes marks of zeroes calls.
    pub(super) fn visited(&self) -> Visited {
        let progress = Arc::clone(&self.progress);
        Arc::new(move |done, total| {
            let mut progress = progress.lock().unwrap_or_else(PoisonError::into_inner);
            progress.at(share(done, total), Instant::now());
        })
    }

    /// So many bytes of refcounts of another width are written; whether a signal asked for the end.
    pub(super) fn width_is_at(&self, watch: &Watch, done: u64, total: u64) -> ControlFlow<()> {
        let before = if self.width_follows { STEP } else { 0 };
        let mut progress = self.progress.lock().unwrap_or_else(PoisonError::into_inner);
        watch.look(&mut progress, before + share(done, total))
    }

    /// All steps are done.
    pub(super) fn end(&self) {
        let mut progress = self.progress.lock().unwrap_or_else(PoisonError::into_inner);
        progress.whole(Instant::now());
    }
}

/// What comes next, an error or a prompt, has a line of its own.
impl Drop for Steps {
    fn drop(&mut self) {
        self.progress.lock().unwrap_or_else(PoisonError::into_inner).end();
    }
}

/// The part of a step that `done` of `total` is.
fn share(done: u64, total: u64) -> u64 {
    let share = u128::from(done) * u128::from(STEP) / u128::from(total.max(1));
    u64::try_from(share).unwrap_or(STEP).min(STEP)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_step_is_whole_at_its_end_and_never_more() {
        assert_eq!(share(1, 8), STEP / 8);
        assert_eq!([share(8, 8), share(9, 8), share(0, 0)], [STEP, STEP, 0]);
        assert_eq!(share(u64::MAX, u64::MAX), STEP);
    }
}
