//! What is known of a job: by its loop while it is at work, by all threads when it has ended.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use job::{Life, Status};
use parking_lot::Mutex;

use crate::error::{Error, ErrorKind};
use crate::pending::Reply;

/// How far a job is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct JobInfo {
    /// Where it is in its life, as QEMU has it.
    pub status: Status,
    /// Bytes that are done.
    pub done_bytes: u64,
    /// Bytes that are to be done in all. They may become more while the disk is written.
    pub total_bytes: u64,
    /// Bytes a second at most; 0 is no limit.
    pub speed_bytes: u64,
}

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

impl State {
    pub(super) fn new() -> Arc<Self> {
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

    pub(super) fn end(&self, result: Result<(), (ErrorKind, String)>, info: JobInfo) {
        let end = Ending { result, info };
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
    /// The job of `state`, of this kind, is at work from now on.
    pub(super) fn begin(state: &State, kind: &'static str, life: Life) -> Rc<Self> {
        state.inner.lock().kind = kind;
        let running = Rc::new(Self { life });
        RUNNING.with_borrow_mut(|all| all.insert(state.number, Rc::clone(&running)));
        running
    }

    /// It is not at work any more; gives how far it came.
    pub(super) fn leave(&self, state: &State) -> JobInfo {
        RUNNING.with_borrow_mut(|all| all.remove(&state.number));
        self.info()
    }

    /// The job of this loop whose state it is, while it is at work.
    pub(super) fn of(state: &State) -> Option<Rc<Self>> {
        RUNNING.with_borrow(|running| running.get(&state.number).cloned())
    }

    pub(super) fn info(&self) -> JobInfo {
        let (done_bytes, total_bytes) = self.life.progress();
        JobInfo { status: self.life.status(), done_bytes, total_bytes, speed_bytes: self.life.speed() }
    }
}
