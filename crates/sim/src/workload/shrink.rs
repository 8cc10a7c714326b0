//! Making a failing workload small.

use storage::Zeroing;

use super::{Op, Step, Workload};
use crate::subject::Durability;

/// The smallest workload found that still fails, after at most `runs` calls of `fails`.
///
/// First steps are left out, in blocks that get smaller; then each step is made simpler: shorter, on
/// one queue, not dropped, without FUA.
pub fn shrink(workload: &Workload, runs: usize, mut fails: impl FnMut(&Workload) -> bool) -> Workload {
    let mut left = runs;
    let mut best = workload.clone();
    let mut try_it = |candidate: Workload, best: &mut Workload| {
        if left == 0 || candidate == *best {
            return false;
        }
        left -= 1;
        let failed = fails(&candidate);
        if failed {
            *best = candidate;
        }
        failed
    };
    loop {
        let before = best.clone();
        leave_out(&mut best, &mut try_it);
        simplify(&mut best, &mut try_it);
        if best == before {
            return best;
        }
    }
}

type Try<'a> = dyn FnMut(Workload, &mut Workload) -> bool + 'a;

fn leave_out(best: &mut Workload, try_it: &mut Try<'_>) {
    let mut block = best.steps.len().div_ceil(2);
    while block > 0 {
        let mut from = 0;
        while from < best.steps.len() {
            let mut candidate = best.clone();
            candidate.steps.drain(from..(from + block).min(best.steps.len()));
            if !try_it(candidate, best) {
                from += block;
            }
        }
        block = if block == 1 { 0 } else { block.div_ceil(2) };
    }
}

fn simplify(best: &mut Workload, try_it: &mut Try<'_>) {
    for index in 0..best.steps.len() {
        for change in SIMPLER {
            let mut candidate = best.clone();
            candidate.steps[index] = change(candidate.steps[index]);
            // The same change may help again: half of a half.
            while candidate != *best && try_it(candidate.clone(), best) {
                candidate.steps[index] = change(candidate.steps[index]);
            }
        }
    }
}

const SIMPLER: [fn(Step) -> Step; 6] = [
    |step| Step { queue: 0, ..step },
    |step| Step { dropped_after: None, ..step },
    |step| with_range(step, |at, len| (at, (len / 2).max(1))),
    |step| with_range(step, |at, len| (at + len / 2, len - len / 2)),
    |step| match step.op {
        Op::Write { at, len, .. } => {
            Step { op: Op::Write { at, len, durability: Durability::AtFlush }, ..step }
        }
        Op::Zero { at, len, .. } => {
            let op = Op::Zero { at, len, how: Zeroing::Keep, durability: Durability::AtFlush };
            Step { op, ..step }
        }
        Op::Read { .. }
        | Op::Discard { .. }
        | Op::Flush
        | Op::Tidy { .. }
        | Op::Reopen { .. }
        | Op::Manage(_) => step,
    },
    |step| match step.op {
        Op::Reopen { .. } => Step { op: Op::Reopen { variant: 0 }, ..step },
        Op::Read { .. }
        | Op::Write { .. }
        | Op::Zero { .. }
        | Op::Discard { .. }
        | Op::Flush
        | Op::Tidy { .. }
        | Op::Manage(_) => step,
    },
];

fn with_range(step: Step, change: impl Fn(u64, u64) -> (u64, u64)) -> Step {
    let op = match step.op {
        Op::Read { at, len } => {
            let (at, len) = change(at, len);
            Op::Read { at, len }
        }
        Op::Write { at, len, durability } => {
            let (at, len) = change(at, len);
            Op::Write { at, len, durability }
        }
        Op::Zero { at, len, how, durability } => {
            let (at, len) = change(at, len);
            Op::Zero { at, len, how, durability }
        }
        Op::Discard { at, len } => {
            let (at, len) = change(at, len);
            Op::Discard { at, len }
        }
        Op::Flush | Op::Tidy { .. } | Op::Reopen { .. } | Op::Manage(_) => step.op,
    };
    Step { op, ..step }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_left_is_what_the_failure_needs() {
        let read = |at| Step::of(Op::Read { at, len: 4096 });
        let mut steps: Vec<Step> = (0..100).map(read).collect();
        steps[37] = Step { queue: 3, op: Op::Flush, dropped_after: Some(2) };
        steps[80] = Step::of(Op::Discard { at: 0, len: 65536 });
        let needs = |workload: &Workload| {
            let flush = workload.steps.iter().position(|step| step.op == Op::Flush);
            let discard = workload
                .steps
                .iter()
                .position(|step| matches!(step.op, Op::Discard { len, .. } if len >= 512));
            matches!((flush, discard), (Some(flush), Some(discard)) if flush < discard)
        };
        let small = shrink(&Workload { steps }, 1000, needs);
        let discard = small.steps.iter().find(|step| step.op != Op::Flush).copied();
        assert_eq!(small.steps.len(), 2);
        assert_eq!(small.steps[0], Step::of(Op::Flush));
        assert!(matches!(discard.map(|step| step.op), Some(Op::Discard { len: 512, .. })));
    }
}
