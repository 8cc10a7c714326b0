//! One process after the other has the disk: ours, and where there is a second writer, that one.

use std::rc::Rc;

use super::Clients;
use crate::executor::Sim;
use crate::failure::FailureKind;
use crate::subject::{Subject, Target};
use crate::workload::{Op, Step};

/// What another process does with the disk before it closes it, in phases of the workload.
const OF_OTHER_MAX: usize = 3;

impl Clients {
    /// Opens, runs all steps and gives the disk that is open at the end.
    pub async fn run<T: Target>(
        self: &Rc<Self>,
        target: &T,
        sim: &Sim,
        steps: &[Step],
    ) -> Result<Option<Rc<T::Subject>>, FailureKind> {
        let Some(mut subject) = self.open(target, 0).await? else { return Ok(None) };
        let phases: Vec<&[Step]> =
            steps.chunk_by(|one, next| !one.op.is_barrier() && !next.op.is_barrier()).collect();
        let mut phases = &phases[..];
        while let Some((phase, rest)) = phases.split_first() {
            phases = rest;
            let Op::Reopen { variant } = phase[0].op else {
                self.phase(&subject, sim, phase).await?;
                continue;
            };
            self.close(subject).await?;
            let opened = if target.abilities().second_writer {
                let of_other = phases.iter().take(OF_OTHER_MAX).take_while(|phase| !phase[0].op.is_reopen());
                let (of_other, of_us) = phases.split_at(of_other.count());
                phases = of_us;
                self.open_behind_other(target, sim, variant, of_other).await?
            } else {
                self.open(target, variant).await?
            };
            let Some(opened) = opened else { return Ok(None) };
            subject = opened;
        }
        Ok(Some(subject))
    }

    async fn phase<S: Subject>(
        self: &Rc<Self>,
        subject: &Rc<S>,
        sim: &Sim,
        phase: &[Step],
    ) -> Result<(), FailureKind> {
        match phase[0].op {
            Op::Manage(operation) => self.manage(&**subject, operation).await,
            Op::Reopen { .. }
            | Op::Read { .. }
            | Op::Write { .. }
            | Op::Zero { .. }
            | Op::Discard { .. }
            | Op::Flush
            | Op::Tidy { .. } => self.side_by_side(subject, sim, phase).await,
        }
    }

    /// Another process has the disk open and does `phases`, then closes it; meanwhile ours opens it, and waits for
    /// the lock from before the other begins.
    async fn open_behind_other<T: Target>(
        self: &Rc<Self>,
        target: &T,
        sim: &Sim,
        variant: u32,
        phases: &[&[Step]],
    ) -> Result<Option<Rc<T::Subject>>, FailureKind> {
        let Some(other) = self.open(target, 0).await? else { return Ok(None) };
        let work = async {
            for phase in phases {
                self.phase(&other, sim, phase).await?;
            }
            self.close(other).await
        };
        // In this order: ours is at the lock when the other does its first step.
        let (opened, worked) = futures_util::future::join(self.open(target, variant), work).await;
        worked?;
        let opened = opened?;
        // Before anything of ours makes the file longer, or after.
        if let (Some(subject), 0) = (&opened, sim.below(2)) {
            self.read_back(&**subject).await?;
        }
        Ok(opened)
    }

    /// Reads everything that was ever touched, and compares; an error is reported as any other.
    async fn read_back<S: Subject>(&self, subject: &S) -> Result<(), FailureKind> {
        let ranges = self.model.borrow().ranges(subject.size());
        for (at, len) in ranges {
            self.read(subject, at, len, None, &Step::of(Op::Read { at, len })).await?;
        }
        Ok(())
    }
}
