//! A single-threaded executor in which the seed decides who runs next.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::fmt;
use std::future::Future;
use std::pin::{Pin, pin};
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, Wake, Waker};
use std::time::Duration;

use parking_lot::Mutex;

use crate::rng::Rng;
use crate::world::World;

/// Steps after which a run counts as going round in circles.
pub const STEPS_MAX: u64 = 20_000_000;

/// The clock moves by less than this at each step.
const STEP_NANOS_MAX: u64 = 10_000;

const MAIN: u64 = 0;

type Tasks = BTreeMap<u64, Pin<Box<dyn Future<Output = ()>>>>;

/// Why a run did not end.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Stuck {
    /// Nothing can run, no request can complete, no timer is set, and the main future has not ended.
    Deadlock {
        /// Tasks that wait.
        tasks: usize,
        /// Requests that are held.
        held: Vec<String>,
    },
    /// [`STEPS_MAX`] steps were taken.
    Livelock,
}

impl fmt::Display for Stuck {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Stuck::Deadlock { tasks, held } => {
                write!(f, "deadlock: main and {tasks} tasks wait, nothing can wake them; held: {held:?}")
            }
            Stuck::Livelock => write!(f, "livelock: {STEPS_MAX} steps without an end"),
        }
    }
}

impl std::error::Error for Stuck {}

/// A handle for futures that run under [`run`].
#[derive(Clone)]
pub struct Sim {
    world: World,
    shared: Rc<Shared>,
}

struct Shared {
    spawned: RefCell<Tasks>,
    cancelled: RefCell<Vec<u64>>,
    next: Cell<u64>,
    rng: RefCell<Rng>,
    ready: Arc<Ready>,
}

/// Tasks that want to run.
#[derive(Default)]
struct Ready {
    tasks: Mutex<Vec<u64>>,
}

struct TaskWaker {
    task: u64,
    queued: AtomicBool,
    ready: Arc<Ready>,
}

impl Wake for TaskWaker {
    fn wake(self: Arc<Self>) {
        if !self.queued.swap(true, Ordering::Relaxed) {
            self.ready.tasks.lock().push(self.task);
        }
    }
}

impl Sim {
    /// Runs `future` beside the caller.
    pub fn spawn<T: 'static>(&self, future: impl Future<Output = T> + 'static) -> Task<T> {
        let task = self.shared.next.get();
        self.shared.next.set(task + 1);
        let result = Rc::new(RefCell::new(Joined { value: None, waker: None }));
        let given = Rc::clone(&result);
        let body = async move {
            let value = future.await;
            let mut given = given.borrow_mut();
            given.value = Some(value);
            if let Some(waker) = given.waker.take() {
                waker.wake();
            }
        };
        self.shared.spawned.borrow_mut().insert(task, Box::pin(body));
        Task { number: task, result, shared: Rc::clone(&self.shared) }
    }

    /// Lets others run first.
    pub async fn yield_now(&self) {
        let mut yielded = false;
        std::future::poll_fn(|context| {
            if std::mem::replace(&mut yielded, true) {
                return Poll::Ready(());
            }
            context.waker().wake_by_ref();
            Poll::Pending
        })
        .await;
    }

    /// The machine below.
    pub fn world(&self) -> &World {
        &self.world
    }

    /// Virtual time.
    pub fn now(&self) -> Duration {
        self.world.now()
    }

    /// Waits on the virtual clock.
    pub async fn sleep(&self, duration: Duration) {
        self.world.sleep(duration).await;
    }

    /// A number below `bound`, decided by the seed.
    pub fn below(&self, bound: u64) -> u64 {
        self.shared.rng.borrow_mut().below(bound)
    }
}

struct Joined<T> {
    value: Option<T>,
    waker: Option<Waker>,
}

/// A spawned task. Awaiting it gives its value; dropping it lets it run on.
pub struct Task<T> {
    number: u64,
    result: Rc<RefCell<Joined<T>>>,
    shared: Rc<Shared>,
}

impl<T> Task<T> {
    /// Drops the task's future before its next step.
    pub fn cancel(self) {
        self.shared.cancelled.borrow_mut().push(self.number);
    }
}

impl<T> Future for Task<T> {
    type Output = T;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<T> {
        let mut joined = self.result.borrow_mut();
        match joined.value.take() {
            Some(value) => Poll::Ready(value),
            None => {
                joined.waker = Some(context.waker().clone());
                Poll::Pending
            }
        }
    }
}

/// Runs `main` and all it spawns until `main` ends. Whatever is ready, task or request, the seed
/// chooses what goes on; when nothing is, the clock jumps to the next timer. Tasks left over are dropped.
pub fn run<'a, T, F>(world: &World, seed: u64, main: impl FnOnce(Sim) -> F) -> Result<T, Stuck>
where
    F: Future<Output = T> + 'a,
{
    let ready = Arc::new(Ready::default());
    let mut rng = Rng::new(seed);
    let shared = Rc::new(Shared {
        spawned: RefCell::default(),
        cancelled: RefCell::default(),
        next: Cell::new(MAIN + 1),
        rng: RefCell::new(rng.fork()),
        ready: Arc::clone(&ready),
    });
    let sim = Sim { world: world.clone(), shared: Rc::clone(&shared) };
    let _current = Current::enter(sim.clone());
    let mut main = pin!(main(sim));
    let mut executor = Executor { world, shared, rng, tasks: Tasks::new(), wakers: BTreeMap::new() };
    executor.enqueue(MAIN);
    for _ in 0..STEPS_MAX {
        executor.take_new_and_cancelled();
        match executor.choose()? {
            Choice::Moved => {}
            Choice::Task(MAIN) => {
                let waker = executor.waker(MAIN);
                if let Poll::Ready(value) = main.as_mut().poll(&mut Context::from_waker(&waker)) {
                    return Ok(value);
                }
            }
            Choice::Task(task) => executor.step(task),
        }
    }
    Err(Stuck::Livelock)
}

thread_local! {
    static CURRENT: RefCell<Vec<Sim>> = const { RefCell::new(Vec::new()) };
}

/// The run of this thread, until this is dropped.
struct Current;

impl Current {
    fn enter(sim: Sim) -> Self {
        CURRENT.with_borrow_mut(|current| current.push(sim));
        Self
    }
}

impl Drop for Current {
    fn drop(&mut self) {
        CURRENT.with_borrow_mut(Vec::pop);
    }
}

/// Runs `future` beside everything else in the run that this thread is in, for code that has no
/// [`Sim`] at hand. Outside a run (which ended meanwhile) it is dropped: the machine is off.
pub fn spawn(future: impl Future<Output = ()> + 'static) {
    if let Some(sim) = CURRENT.with_borrow(|current| current.last().cloned()) {
        drop(sim.spawn(future));
    }
}

enum Choice {
    /// A request completed or the clock jumped.
    Moved,
    Task(u64),
}

struct Executor<'a> {
    world: &'a World,
    shared: Rc<Shared>,
    rng: Rng,
    tasks: Tasks,
    wakers: BTreeMap<u64, Arc<TaskWaker>>,
}

impl Executor<'_> {
    fn enqueue(&mut self, task: u64) {
        let ready = Arc::clone(&self.shared.ready);
        let waker = Arc::new(TaskWaker { task, queued: AtomicBool::new(false), ready });
        self.wakers.insert(task, Arc::clone(&waker));
        waker.wake();
    }

    fn take_new_and_cancelled(&mut self) {
        let spawned = std::mem::take(&mut *self.shared.spawned.borrow_mut());
        for (number, task) in spawned {
            self.tasks.insert(number, task);
            self.enqueue(number);
        }
        let cancelled = std::mem::take(&mut *self.shared.cancelled.borrow_mut());
        for number in cancelled {
            self.tasks.remove(&number);
            self.wakers.remove(&number);
        }
    }

    fn choose(&mut self) -> Result<Choice, Stuck> {
        self.world.advance(Duration::from_nanos(self.rng.below(STEP_NANOS_MAX)));
        let tasks = self.shared.ready.tasks.lock().len();
        let requests = self.world.completable();
        let total = (tasks + requests) as u64;
        // Requests compete with tasks; those kept back by the world get their turn here only when
        // no task is ready.
        if total > 0 && !self.rng.chance(tasks as u64, total) && self.world.complete_one(tasks == 0) {
            return Ok(Choice::Moved);
        }
        if tasks > 0 {
            let task = self.shared.ready.tasks.lock().swap_remove(self.rng.index(tasks));
            return Ok(Choice::Task(task));
        }
        if self.world.advance_to_next_timer() {
            return Ok(Choice::Moved);
        }
        Err(Stuck::Deadlock { tasks: self.tasks.len(), held: self.world.in_flight() })
    }

    fn waker(&self, task: u64) -> Waker {
        match self.wakers.get(&task) {
            Some(waker) => {
                waker.queued.store(false, Ordering::Relaxed);
                Waker::from(Arc::clone(waker))
            }
            None => Waker::noop().clone(),
        }
    }

    fn step(&mut self, task: u64) {
        let waker = self.waker(task);
        let Some(future) = self.tasks.get_mut(&task) else { return };
        if future.as_mut().poll(&mut Context::from_waker(&waker)).is_ready() {
            self.tasks.remove(&task);
            self.wakers.remove(&task);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::world::Order;

    fn order_of_two_tasks(seed: u64) -> Vec<u8> {
        let world = World::new(seed, Order::Shuffled);
        let log = Rc::new(RefCell::new(Vec::new()));
        let seen = Rc::clone(&log);
        run(&world, seed, |sim| async move {
            let tasks: Vec<_> = (0..2u8)
                .map(|name| {
                    let (sim, log) = (sim.clone(), Rc::clone(&log));
                    sim.clone().spawn(async move {
                        for _ in 0..4 {
                            log.borrow_mut().push(name);
                            sim.yield_now().await;
                        }
                    })
                })
                .collect();
            for task in tasks {
                task.await;
            }
        })
        .unwrap();
        seen.take()
    }

    #[test]
    fn one_seed_is_one_schedule_and_seeds_differ() {
        assert_eq!(order_of_two_tasks(5), order_of_two_tasks(5));
        let all: std::collections::BTreeSet<_> = (0..20).map(order_of_two_tasks).collect();
        assert!(all.len() > 5, "{all:?}");
    }

    #[test]
    fn waiting_for_something_that_never_comes_is_a_deadlock_not_a_hang() {
        let world = World::new(1, Order::Shuffled);
        let stuck = run(&world, 1, |_| std::future::pending::<()>()).unwrap_err();
        assert_eq!(stuck, Stuck::Deadlock { tasks: 0, held: Vec::new() });
    }

    #[test]
    fn sleeping_a_year_takes_no_time() {
        let world = World::new(1, Order::Shuffled);
        let year = Duration::from_secs(365 * 86_400);
        run(&world, 1, |sim| async move { sim.sleep(year).await }).unwrap();
        assert!(world.now() >= year);
    }

    #[test]
    fn a_cancelled_task_runs_no_further() {
        let world = World::new(1, Order::Shuffled);
        let ran = Rc::new(Cell::new(0));
        let count = Rc::clone(&ran);
        run(&world, 3, |sim| async move {
            let inner = sim.clone();
            let task = sim.spawn(async move {
                loop {
                    count.set(count.get() + 1);
                    inner.sleep(Duration::from_secs(1)).await;
                }
            });
            sim.sleep(Duration::from_secs(10)).await;
            task.cancel();
            sim.sleep(Duration::from_secs(100)).await;
        })
        .unwrap();
        assert!((9..=11).contains(&ran.get()), "{}", ran.get());
    }
}
