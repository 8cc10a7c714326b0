//! A job from its beginning to its end, on the disk's loop.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use graph::{Change, DiskNode, JobHost, JobOwner};
use job::{End, Life, Status, Terms};
use parking_lot::Mutex;

use super::JobInfo;
use super::begin::{Started, Work, close_target, of_job};
use super::site::{Site, Uses};
use crate::error::{Error, ErrorKind};
use crate::in_flight::{Inside, Shared};
use crate::pending::Reply;

thread_local! {
    /// The jobs of disks whose first loop this thread is, by the number of their state.
    static RUNNING: RefCell<BTreeMap<u64, Rc<Running>>> = const { RefCell::new(BTreeMap::new()) };
}

/// A job as all threads see it.
pub(crate) struct State {
    number: u64,
    inner: Mutex<Inner>,
}

struct Inner {
    kind: &'static str,
    /// How it ended; `None` while it is at work.
    end: Option<Ending>,
    waiting: Vec<Reply<()>>,
}

/// How a job ended.
#[derive(Clone)]
struct Ending {
    result: Result<(), (ErrorKind, String)>,
    info: JobInfo,
}

/// A job at work.
pub(super) struct Running {
    pub(super) life: Life,
}

/// What a job is carried out on.
pub(super) type Host<'a> = JobHost<'a, Owner<'a>>;

/// What a job has beside its disk.
pub(super) struct Owner<'a> {
    /// Its target is the disk's now.
    has_switched: &'a Cell<bool>,
}

impl JobOwner for Owner<'_> {
    fn leave_target(&self) {
        self.has_switched.set(true);
    }
}

impl State {
    fn new() -> Arc<Self> {
        static NUMBERS: AtomicU64 = AtomicU64::new(0);
        let inner = Inner { kind: "job", end: None, waiting: Vec::new() };
        Arc::new(Self { number: NUMBERS.fetch_add(1, Ordering::Relaxed), inner: Mutex::new(inner) })
    }

    pub(super) fn kind(&self) -> &'static str {
        self.inner.lock().kind
    }

    /// What is known of a job that has ended.
    pub(super) fn info(&self) -> JobInfo {
        let end = self.inner.lock().end.clone();
        let over = JobInfo { status: Status::Null, done_bytes: 0, total_bytes: 0, speed_bytes: 0 };
        end.map_or(over, |end| end.info)
    }

    /// How it ended; of a job that has not, that its loop has.
    pub(super) fn result(&self) -> Result<(), Error> {
        match &self.inner.lock().end {
            Some(end) => of_ending(end),
            None => Err(Error::loop_ended()),
        }
    }

    /// Answers when it has ended.
    pub(super) fn when_ended(&self, reply: Reply<()>) {
        let mut inner = self.inner.lock();
        match &inner.end {
            Some(end) => {
                let result = of_ending(end);
                drop(inner);
                reply.send(result);
            }
            None => inner.waiting.push(reply),
        }
    }

    fn end(&self, end: Ending) {
        let waiting = {
            let mut inner = self.inner.lock();
            inner.end = Some(end.clone());
            std::mem::take(&mut inner.waiting)
        };
        waiting.into_iter().for_each(|reply| reply.send(of_ending(&end)));
    }
}

fn of_ending(end: &Ending) -> Result<(), Error> {
    end.result.clone().map_err(|(kind, text)| Error::said(kind, text))
}

impl Running {
    /// The job of this loop whose state it is, while it is at work.
    pub(super) fn of(state: &State) -> Option<Rc<Self>> {
        RUNNING.with_borrow(|running| running.get(&state.number).cloned())
    }

    pub(super) fn info(&self) -> JobInfo {
        let (done_bytes, total_bytes) = self.life.progress();
        JobInfo { status: self.life.status(), done_bytes, total_bytes, speed_bytes: self.life.speed() }
    }
}

/// Begins a job on the disk that `inside` keeps open, and runs it in the background. `begin` puts its filter over the disk.
pub(crate) async fn begin(
    shared: &Arc<Shared>,
    inside: &Inside,
    uses: Uses,
    begin: impl AsyncFnOnce(&Site, &Change<'_>, &Arc<DiskNode>) -> Result<Started, Error>,
) -> Result<Arc<State>, Error> {
    let site = shared.site()?;
    let state = State::new();
    site.claim(&state, uses)?;
    let begun = async {
        let disk = site.node(inside.shared_disk()).await?;
        let change = site.graph.change().await;
        let begun = begin(&site, &change, &disk).await?;
        Ok::<_, Error>((disk, begun))
    };
    let (disk, begun) = begun.await.inspect_err(|_| site.release(&state))?;
    state.inner.lock().kind = begun.kind;
    let terms = Terms { id: begun.kind.to_owned(), ..Terms::default() };
    let running = Rc::new(Running { life: Life::new(terms, begun.speed_bytes, |_| ()) });
    RUNNING.with_borrow_mut(|all| all.insert(state.number, Rc::clone(&running)));
    let job = Arc::clone(&state);
    reactor::spawn(async move {
        let result = live(&site, &running.life, &disk, begun).await;
        drop(disk);
        let info = running.info();
        RUNNING.with_borrow_mut(|all| all.remove(&job.number));
        site.release(&job);
        // A caller that waits for the end may close the disk.
        drop(site);
        job.end(Ending { result, info });
    })
    .detach();
    Ok(state)
}

/// Lives a job's life.
async fn live(
    site: &Site,
    life: &Life,
    disk: &Arc<DiskNode>,
    begun: Started,
) -> Result<(), (ErrorKind, String)> {
    let Started { work, target, .. } = begun;
    let has_switched = Cell::new(false);
    let host = JobHost { graph: &site.graph, disk, owner: Owner { has_switched: &has_switched } };
    life.begin();
    let done = done(life, &work, &host).await;
    if done.is_err() {
        life.abort();
        work.abort(&host).await;
    }
    drop(work);
    if let Some(target) = target.filter(|_| !has_switched.get()) {
        let change = site.graph.change().await;
        close_target(site, &change, &target).await;
    }
    let result = done.map_err(|error| (error.kind(), error.to_string()));
    life.conclude(result.clone().err().map(|(_, text)| text));
    life.dismissed().await;
    result
}

async fn done(life: &Life, work: &Work, host: &Host<'_>) -> Result<(), Error> {
    let ended = work.run(host, life).await?;
    life.settle(async { true }).await.map_err(of_job)?;
    work.finish(host, ended).await
}

/// Ends the jobs of a disk that closes, by force, and waits until they have cleaned up. On the disk's loop.
pub(crate) async fn end_jobs(site: &Site) {
    let jobs = site.jobs();
    for running in jobs.iter().filter_map(|state| Running::of(state)) {
        // One that has ended refuses.
        let _ = running.life.ask_to_end(End::Force);
    }
    for state in jobs {
        let (reply, ended) = crate::Pending::new();
        state.when_ended(reply);
        // Whatever it ended with.
        let _ = ended.await;
    }
}
