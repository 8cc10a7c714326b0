//! One run of a workload.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::rc::Rc;

use super::crash::look_at_snapshots;
use super::failed;
use crate::clients::Clients;
use crate::crash::Recording;
use crate::executor::{self, Sim, Stuck};
use crate::failure::{Failure, FailureKind};
use crate::model::Model;
use crate::subject::{Subject, Target};
use crate::workload::Workload;
use crate::world::{Fault, Order, Shortage, World};

/// The number of the disk in the stamps of the data that clients write.
pub const CLIENT_DISK: u32 = 1;

/// Circumstances of a run.
#[derive(Clone, Debug)]
pub struct Setup {
    /// Decides the schedule.
    pub seed: u64,
    /// In which order requests end.
    pub order: Order,
    /// What fails, counted from before the disk is opened.
    pub faults: Vec<Fault>,
    /// When there is no room below, counted likewise.
    pub shortages: Vec<Shortage>,
    /// Keep what is needed to build crash states.
    pub record: bool,
}

impl Setup {
    /// The seed decides the order in which requests end, nothing fails, nothing is recorded.
    pub fn shuffled(seed: u64) -> Self {
        Self { seed, order: Order::Shuffled, faults: Vec::new(), shortages: Vec::new(), record: false }
    }
}

/// What came of a run that found nothing wrong.
#[derive(Debug)]
pub struct Ran {
    /// The machine at the end.
    pub world: World,
    /// The oracle at the end.
    pub model: Model,
    /// From before the first open to after the last close.
    pub recording: Option<Recording>,
    /// What clients received: operation and error.
    pub errors: Vec<(String, String)>,
    /// Every open and every close went well, and nothing failed behind the clients' backs.
    pub clean: bool,
    /// A disk gave requests up whose failures reached no client.
    pub gave_up: bool,
    /// What the target found leaked at the end.
    pub leaks: u64,
}

/// Builds the images, runs the workload, closes, checks, opens again and reads everything back.
pub fn run_workload<T: Target>(target: &T, workload: &Workload, setup: &Setup) -> Result<Ran, Box<Failure>> {
    let world = World::new(setup.seed, Order::Immediate);
    let ran = guarded(&world, setup.seed, |sim| whole_run(target, workload, setup, sim));
    let ran = ran.and_then(|ran| look_at_snapshots_of(target, &ran, setup.seed).map(|()| ran));
    let fail = |kind| {
        let (faults, shortages) = (setup.faults.clone(), setup.shortages.clone());
        Box::new(Failure { faults, shortages, ..failed(target, setup.seed, workload, kind) })
    };
    ran.map_err(fail)
}

/// Every snapshot holds what it must, on a copy of the machine.
fn look_at_snapshots_of<T: Target>(target: &T, ran: &Ran, seed: u64) -> Result<(), FailureKind> {
    if !target.abilities().snapshots {
        return Ok(());
    }
    let now = ran.world.tick();
    guarded(&ran.world.copy(seed), seed, |sim| look_at_snapshots(target, sim, now, &ran.model))
}

/// Runs a future on the world; a panic and a deadlock are failures like others.
pub(super) fn guarded<V, F: Future<Output = Result<V, FailureKind>>>(
    world: &World,
    seed: u64,
    main: impl FnOnce(Sim) -> F,
) -> Result<V, FailureKind> {
    match catch_unwind(AssertUnwindSafe(|| executor::run(world, seed, main))) {
        Ok(Ok(result)) => result,
        Ok(Err(stuck @ (Stuck::Deadlock { .. } | Stuck::Livelock))) => Err(FailureKind::Stuck(stuck)),
        Err(panic) => Err(FailureKind::Panic(message_of(&*panic))),
    }
}

fn message_of(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().map(|text| (*text).to_owned());
    text.or_else(|| panic.downcast_ref::<String>().cloned()).unwrap_or_else(|| "of an unknown kind".into())
}

async fn whole_run<T: Target>(
    target: &T,
    workload: &Workload,
    setup: &Setup,
    sim: Sim,
) -> Result<Ran, FailureKind> {
    let world = sim.world().clone();
    let abilities = target.abilities();
    let mut model = Model::new(CLIENT_DISK, abilities.size, abilities.discarded);
    target.build(&world, &mut model).await.map_err(FailureKind::Build)?;
    if setup.record {
        world.start_recording();
    }
    world.set_order(setup.order);
    world.set_faults(setup.faults.clone());
    world.set_shortages(setup.shortages.clone());
    let faulty = !setup.faults.is_empty() || !setup.shortages.is_empty();
    let clients = Clients::new(&world, model, faulty, abilities.alignment);
    if let Some(subject) = clients.run(target, &sim, &workload.steps).await? {
        clients.close(subject).await?;
    }
    let recording = setup.record.then(|| world.recording());
    world.set_faults(Vec::new());
    world.set_shortages(Vec::new());
    world.set_order(Order::Immediate);
    let leaks = after_all(target, &world, &clients).await?;
    let (model, errors) = (clients.model.borrow().clone(), clients.errors.take());
    Ok(Ran {
        world,
        model,
        recording,
        errors,
        clean: !clients.unclean.get(),
        gave_up: clients.gave_up.get(),
        leaks,
    })
}

/// Nothing fails any more: the images are sound and hold what they must. Gives what is leaked.
async fn after_all<T: Target>(target: &T, world: &World, clients: &Rc<Clients>) -> Result<u64, FailureKind> {
    world.drain();
    let now = world.tick();
    clients.model.borrow_mut().settle(now);
    let leaks = target.check(world).await.map_err(FailureKind::Check)?;
    let open = |error: <T::Subject as Subject>::Error| FailureKind::Open(error.to_string());
    let subject = target.open(world, 0).await.map_err(open)?;
    let size = subject.size();
    let legal = clients.model.borrow().size_is_legal(size, world.tick());
    if !legal || (clients.errors.borrow().is_empty() && size != clients.model.borrow().size()) {
        return Err(FailureKind::Size { found: size });
    }
    let read = clients.read_all(&subject).await?;
    let close = |error: <T::Subject as Subject>::Error| FailureKind::UnexpectedError {
        op: "close".into(),
        error: error.to_string(),
    };
    subject.close().await.map_err(close)?;
    clients.same_alone(target, size, &read)?;
    world.violations().pop().map_or(Ok(leaks), |breach| Err(FailureKind::Breach(breach)))
}
