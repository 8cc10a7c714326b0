//! Crash states of a run, each of them looked at.

use super::run::guarded;
use super::{Ran, Setup, failed, run_workload};
use crate::clients::{Clients, read_range};
use crate::crash::{CrashOptions, CrashState, CrashStates};
use crate::executor::Sim;
use crate::failure::{Failure, FailureKind};
use crate::model::Model;
use crate::request::Tick;
use crate::rng::Rng;
use crate::subject::{Management, Subject, Target};
use crate::workload::{Op, Shape, Step, Workload};
use crate::world::World;

/// What to do with the crash states of a run.
#[derive(Clone, Debug)]
pub struct CrashPlan {
    /// Which states to build.
    pub states: CrashOptions,
    /// In one of so many states the clients go on, and everything is checked again: damage that
    /// shows only later. 0 for never.
    pub go_on_in_one_of: u64,
    /// For so many steps.
    pub go_on_steps: usize,
}

impl Default for CrashPlan {
    fn default() -> Self {
        Self { states: CrashOptions::default(), go_on_in_one_of: 16, go_on_steps: 100 }
    }
}

/// How much was looked at.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CrashCounts {
    /// States checked, opened and read.
    pub states: u64,
    /// Of these, how many were used further.
    pub gone_on: u64,
}

impl std::ops::AddAssign for CrashCounts {
    fn add_assign(&mut self, other: Self) {
        self.states += other.states;
        self.gone_on += other.gone_on;
    }
}

/// Runs the workload and looks at what a crash at any instant leaves. `judge` is asked about each
/// state too (a peer's checker, on a sample that it chooses).
pub fn crash_everywhere<T: Target>(
    target: &T,
    workload: &Workload,
    setup: &Setup,
    plan: &CrashPlan,
    judge: &mut dyn FnMut(&CrashState) -> Result<(), String>,
) -> Result<CrashCounts, Box<Failure>> {
    let ran = run_workload(target, workload, &Setup { record: true, ..setup.clone() })?;
    let mut counts = CrashCounts::default();
    look_at_all(target, &ran, setup.seed, plan, judge, &mut counts).map_err(|(state, kind)| {
        Box::new(Failure {
            crash: Some(state.to_string()),
            faults: setup.faults.clone(),
            ..failed(target, setup.seed, workload, kind)
        })
    })?;
    Ok(counts)
}

pub(super) fn look_at_all<T: Target>(
    target: &T,
    ran: &Ran,
    seed: u64,
    plan: &CrashPlan,
    judge: &mut dyn FnMut(&CrashState) -> Result<(), String>,
    counts: &mut CrashCounts,
) -> Result<(), (Box<CrashState>, FailureKind)> {
    let Some(recording) = &ran.recording else { return Ok(()) };
    let mut rng = Rng::new(seed ^ plan.states.seed);
    for state in CrashStates::new(recording, ran.model.acknowledgements(), plan.states) {
        counts.states += 1;
        let go_on = plan.go_on_in_one_of > 0 && rng.chance(1, plan.go_on_in_one_of);
        let steps = if go_on { plan.go_on_steps } else { 0 };
        counts.gone_on += u64::from(go_on);
        let looked = look_at(target, &state, &ran.model, steps, rng.next_u64());
        let judged = looked.and_then(|()| judge(&state).map_err(FailureKind::Check));
        judged.map_err(|kind| (Box::new(state), kind))?;
    }
    Ok(())
}

fn look_at<T: Target>(
    target: &T,
    state: &CrashState,
    model: &Model,
    steps: usize,
    seed: u64,
) -> Result<(), FailureKind> {
    let (world, _disks) = state.boot(seed);
    guarded(&world, seed, |sim| look_inside(target, sim, state.instant, model, steps, seed))?;
    if steps == 0 || !target.abilities().snapshots {
        return Ok(());
    }
    let (world, _disks) = state.boot(seed);
    guarded(&world, seed, |sim| look_at_snapshots(target, sim, state.instant, model))
}

/// Every snapshot that a client was notified of is there, and holds what it must.
pub(super) async fn look_at_snapshots<T: Target>(
    target: &T,
    sim: Sim,
    crash: Tick,
    model: &Model,
) -> Result<(), FailureKind> {
    let world = sim.world().clone();
    target.check(&world).await.map_err(FailureKind::Check)?;
    let subject = target.open(&world, 0).await.map_err(|error| FailureKind::Open(error.to_string()))?;
    let clients = Clients::new(&world, model.clone(), false, target.abilities().alignment);
    clients.try_snapshots(&subject, crash).await?;
    closed(&subject).await?;
    target.check(&world).await.map(drop).map_err(FailureKind::Check)
}

/// The clients of a new workload begin with a disk that has no snapshots of theirs.
async fn without_snapshots<T: Target>(target: &T, world: &World) -> Result<(), FailureKind> {
    let failed = |error: <T::Subject as Subject>::Error| FailureKind::UnexpectedError {
        op: "deleting snapshots".into(),
        error: error.to_string(),
    };
    let subject = target.open(world, 0).await.map_err(failed)?;
    for name in subject.snapshots().await.map_err(failed)?.unwrap_or_default() {
        subject.manage(Management::SnapshotDelete(name)).await.map_err(failed)?;
    }
    closed(&subject).await
}

async fn look_inside<T: Target>(
    target: &T,
    sim: Sim,
    crash: Tick,
    model: &Model,
    steps: usize,
    seed: u64,
) -> Result<(), FailureKind> {
    let world = sim.world().clone();
    target.check(&world).await.map_err(FailureKind::Check)?;
    alone(target, &world, crash, model)?;
    let subject = target.open(&world, 0).await.map_err(|error| FailureKind::Open(error.to_string()))?;
    let size = subject.size();
    if !model.size_is_legal(size, crash) {
        return Err(FailureKind::Size { found: size });
    }
    let mut found = Vec::new();
    for (at, len) in model.ranges(size) {
        let bytes = read_range(&subject, at, len).await?;
        model.check_crash(at, &bytes, crash).map_err(FailureKind::Data)?;
        if steps > 0 {
            found.push((at, bytes.to_vec()));
        }
    }
    closed(&subject).await?;
    drop(subject);
    if steps > 0 {
        go_on(target, &world, &sim, model.restarted(size, &found), steps, seed).await?;
    }
    world.violations().pop().map_or(Ok(()), |breach| Err(FailureKind::Breach(breach)))
}

/// A disk that can be read without the others holds what may be there after the crash.
fn alone<T: Target>(target: &T, world: &World, crash: Tick, model: &Model) -> Result<(), FailureKind> {
    let Some(disk) = target.read_alone() else { return Ok(()) };
    let content = world.current(disk);
    for (at, len) in model.ranges(content.length()) {
        let mut bytes = vec![0; len as usize];
        content.read(at, &mut bytes);
        model.check_crash(at, &bytes, crash).map_err(FailureKind::Data)?;
    }
    Ok(())
}

/// The clients come back after the crash and work on.
async fn go_on<T: Target>(
    target: &T,
    world: &World,
    sim: &Sim,
    model: Model,
    steps: usize,
    seed: u64,
) -> Result<(), FailureKind> {
    let abilities = target.abilities();
    if abilities.snapshots {
        without_snapshots(target, world).await?;
    }
    let alignment = abilities.alignment;
    let mut workload = Shape::new(abilities, steps, 1).generate(seed);
    workload.steps.push(Step::of(Op::Flush));
    let clients = Clients::new(world, model, false, alignment);
    if let Some(subject) = clients.run(target, sim, &workload.steps).await? {
        clients.read_all(&*subject).await?;
        clients.close(subject).await?;
    }
    target.check(world).await.map(drop).map_err(FailureKind::Check)
}

async fn closed<S: Subject>(subject: &S) -> Result<(), FailureKind> {
    let close =
        |error: S::Error| FailureKind::UnexpectedError { op: "close".into(), error: error.to_string() };
    subject.close().await.map_err(close)
}
