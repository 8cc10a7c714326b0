//! Clients: they carry out the steps of a workload and compare what they read with the oracle.

mod turns;

use std::cell::{Cell, RefCell};
use std::future::Future;
use std::pin::pin;
use std::rc::Rc;
use std::task::Poll;

use storage::{IoBuf, IoBytes};

use crate::executor::Sim;
use crate::failure::FailureKind;
use crate::model::{Model, Started};
use crate::request::Tick;
use crate::subject::{Durability, Management, Subject, Target};
use crate::workload::{Op, Step};
use crate::world::World;

/// What buffers hold before a read: a reader that is given bytes that were never written sees these.
const UNREAD: u8 = 0xee;

/// What the clients of one disk share.
pub(crate) struct Clients {
    pub world: World,
    pub model: RefCell<Model>,
    /// Errors are to be expected, because something below fails.
    pub faulty: bool,
    /// What clients received.
    pub errors: RefCell<Vec<(String, String)>>,
    pub alignment: u64,
    /// An open or a close failed, or something behind the clients' backs did.
    pub unclean: Cell<bool>,
    /// Requests were given up by the disk itself.
    pub gave_up: Cell<bool>,
    found: RefCell<Option<FailureKind>>,
}

impl Clients {
    pub fn new(world: &World, model: Model, faulty: bool, alignment: u64) -> Rc<Self> {
        Rc::new(Self {
            world: world.clone(),
            model: RefCell::new(model),
            faulty,
            errors: RefCell::default(),
            alignment,
            unclean: Cell::new(false),
            gave_up: Cell::new(false),
            found: RefCell::default(),
        })
    }

    async fn open<T: Target>(&self, target: &T, variant: u32) -> Result<Option<Rc<T::Subject>>, FailureKind> {
        match target.open(&self.world, variant).await {
            Ok(subject) => Ok(Some(Rc::new(subject))),
            Err(error) => {
                self.unclean.set(true);
                self.reported(format!("open as {variant}"), error.to_string())?;
                Ok(None)
            }
        }
    }

    /// Closes the disk when nothing is in flight any more, neither for us nor below.
    pub async fn close<S: Subject>(&self, subject: Rc<S>) -> Result<(), FailureKind> {
        self.settle();
        let closed = subject.close().await;
        self.settle();
        self.gave_up.set(self.gave_up.get() | subject.gave_work_up());
        let behind = subject.background_errors();
        if behind > 0 {
            self.unclean.set(true);
            self.reported("background work".into(), format!("{behind} errors counted"))?;
        }
        match closed {
            Ok(()) => {
                // A close that went well has written everything back, but promises no durability.
                Ok(())
            }
            Err(error) => {
                self.model.borrow_mut().close_failed();
                self.unclean.set(true);
                self.reported("close".into(), error.to_string())
            }
        }
    }

    fn settle(&self) {
        self.world.drain();
        let now = self.world.tick();
        self.model.borrow_mut().settle(now);
    }

    async fn side_by_side<S: Subject>(
        self: &Rc<Self>,
        subject: &Rc<S>,
        sim: &Sim,
        steps: &[Step],
    ) -> Result<(), FailureKind> {
        let last = steps.iter().map(|step| step.queue).max().unwrap_or(0);
        let mut queues = Vec::new();
        for queue in 0..=last {
            let steps: Vec<Step> = steps.iter().filter(|step| step.queue == queue).copied().collect();
            let (clients, subject) = (Rc::clone(self), Rc::clone(subject));
            queues.push(sim.spawn(async move { clients.queue(&*subject, &steps).await }));
        }
        for queue in queues {
            queue.await;
        }
        self.found.take().map_or(Ok(()), Err)
    }

    async fn queue<S: Subject>(&self, subject: &S, steps: &[Step]) {
        for step in steps {
            if self.found.borrow().is_some() {
                return;
            }
            if let Err(found) = self.step(subject, step).await {
                self.found.borrow_mut().get_or_insert(found);
            }
        }
    }

    async fn step<S: Subject>(&self, subject: &S, step: &Step) -> Result<(), FailureKind> {
        let polls = step.dropped_after;
        match step.op {
            Op::Read { at, len } => match self.clipped(subject, at, len) {
                Some((at, len)) => self.read(subject, at, len, polls, step).await,
                None => Ok(()),
            },
            Op::Write { at, len, durability } => {
                let Some((at, len)) = self.clipped(subject, at, len) else { return Ok(()) };
                let now = self.world.tick();
                let (started, bytes) = {
                    let mut model = self.model.borrow_mut();
                    let (started, version) = model.start_write(at, len, now);
                    (started, model.bytes(version, at, len as usize))
                };
                let data = IoBytes::copy_from(&bytes).into();
                let result = at_most(subject.write(at, data, durability), polls).await;
                self.ended(started, result, durability, step)
            }
            Op::Zero { at, len, how, durability } => {
                let Some((at, len)) = self.clipped(subject, at, len) else { return Ok(()) };
                let now = self.world.tick();
                let started = self.model.borrow_mut().start_zero(at, len, now);
                let result = at_most(subject.zero(at, len, how, durability), polls).await;
                self.ended(started, result, durability, step)
            }
            Op::Discard { at, len } => {
                let Some((at, len)) = self.clipped(subject, at, len) else { return Ok(()) };
                let now = self.world.tick();
                let started = self.model.borrow_mut().start_discard(at, len, now);
                let result = at_most(subject.discard(at, len), polls).await;
                self.ended(started, result, Durability::AtFlush, step)
            }
            Op::Flush => {
                let now = self.world.tick();
                let started = self.model.borrow().start_flush(now);
                match at_most(subject.flush(), polls).await {
                    Some(Ok(())) => {
                        let now = self.world.tick();
                        self.model.borrow_mut().flushed(started, now);
                        Ok(())
                    }
                    Some(Err(error)) => self.reported(step.op.to_string(), error.to_string()),
                    None => Ok(()),
                }
            }
            Op::Tidy { how } => match at_most(subject.tidy(how), polls).await {
                Some(Err(error)) => self.reported(step.op.to_string(), error.to_string()),
                Some(Ok(())) | None => Ok(()),
            },
            Op::Reopen { .. } | Op::Manage(_) => Ok(()),
        }
    }

    async fn read<S: Subject>(
        &self,
        subject: &S,
        at: u64,
        len: u64,
        polls: Option<u32>,
        step: &Step,
    ) -> Result<(), FailureKind> {
        let started = self.world.tick();
        let mut buf = IoBuf::uninit(len as usize);
        buf.fill(UNREAD);
        match at_most(subject.read(at, buf), polls).await {
            Some((Ok(()), buf)) => self.compare(at, &buf, started),
            Some((Err(error), _)) => self.reported(step.op.to_string(), error.to_string()),
            None => Ok(()),
        }
    }

    fn compare(&self, at: u64, bytes: &[u8], started: Tick) -> Result<(), FailureKind> {
        let now = self.world.tick();
        self.model.borrow().check_read(at, bytes, started, now).map_err(FailureKind::Data)
    }

    fn ended<E: std::fmt::Display>(
        &self,
        started: Started,
        result: Option<Result<(), E>>,
        durability: Durability,
        step: &Step,
    ) -> Result<(), FailureKind> {
        let now = self.world.tick();
        let mut model = self.model.borrow_mut();
        match result {
            Some(Ok(())) => model.done(started, now, durability == Durability::AtReply),
            None => model.abandoned(started),
            Some(Err(error)) => {
                model.failed(started, now);
                drop(model);
                self.reported(step.op.to_string(), error.to_string())?;
            }
        }
        Ok(())
    }

    async fn manage<S: Subject>(&self, subject: &S, operation: Management) -> Result<(), FailureKind> {
        self.settle();
        let now = self.world.tick();
        let started = {
            let mut model = self.model.borrow_mut();
            match operation {
                Management::Resize(size) => Some(model.start_resize(size, now)),
                Management::SnapshotApply(name) => {
                    let Some(started) = model.start_snapshot_apply(name, now) else { return Ok(()) };
                    Some(started)
                }
                Management::SnapshotDelete(name) if !model.start_snapshot_delete(name, now) => return Ok(()),
                Management::SnapshotDelete(_) | Management::Change(_) => None,
                Management::SnapshotCreate(name) => {
                    model.start_snapshot_create(name, now);
                    None
                }
            }
        };
        let result = subject.manage(operation).await;
        let now = self.world.tick();
        let mut model = self.model.borrow_mut();
        match (result, operation) {
            (Ok(()), Management::SnapshotCreate(name)) => model.snapshot_created(name, now),
            (Ok(()), Management::SnapshotDelete(name)) => model.snapshot_deleted(name, now),
            (Ok(()), Management::Change(_)) => {}
            (Ok(()), Management::Resize(_) | Management::SnapshotApply(_)) => {
                if let Some(started) = started {
                    model.done(started, now, false);
                }
            }
            (Err(error), _) => {
                if let Some(started) = started {
                    model.failed(started, now);
                    // Of what failed no client knows whether it happened, but the disk says how long it is.
                    if !model.size_found(subject.size(), now) {
                        return Err(FailureKind::Size { found: subject.size() });
                    }
                }
                drop(model);
                self.reported(format!("{operation:?}"), error.to_string())?;
            }
        }
        Ok(())
    }

    /// Goes back to every snapshot there is, reads everything that was ever touched, and compares. The
    /// disk is left at the last of them.
    pub async fn try_snapshots<S: Subject>(&self, subject: &S, crash: Tick) -> Result<(), FailureKind> {
        let unexpected = |op: &str| {
            let op = op.to_owned();
            |error: S::Error| FailureKind::UnexpectedError { op, error: error.to_string() }
        };
        let listed = subject.snapshots().await.map_err(unexpected("listing snapshots"))?;
        let Some(found) = listed else { return Ok(()) };
        self.model.borrow().check_snapshot_names(&found, crash).map_err(FailureKind::Check)?;
        for name in found {
            let apply = Management::SnapshotApply(name);
            subject.manage(apply).await.map_err(unexpected("going back to a snapshot"))?;
            if self.model.borrow().snapshot_size(name) != Some(subject.size()) {
                return Err(FailureKind::Size { found: subject.size() });
            }
            let ranges = self.model.borrow().ranges(subject.size());
            for (at, len) in ranges {
                let bytes = read_range(subject, at, len).await?;
                self.model.borrow().check_snapshot(name, at, &bytes).map_err(FailureKind::Data)?;
            }
        }
        Ok(())
    }

    /// Reads everything that was ever touched, and compares. Gives offset and bytes of what was read.
    pub async fn read_all<S: Subject>(&self, subject: &S) -> Result<Vec<(u64, IoBuf)>, FailureKind> {
        let ranges = self.model.borrow().ranges(subject.size());
        let mut read = Vec::new();
        for (at, len) in ranges {
            let started = self.world.tick();
            let bytes = read_range(subject, at, len).await?;
            self.compare(at, &bytes, started)?;
            read.push((at, bytes));
        }
        Ok(read)
    }

    /// A disk that can be read without the others is the whole disk: as long as that, and with what was `read`.
    /// Where something failed below it may differ in what a write left that no client can rely on.
    pub fn same_alone<T: Target>(
        &self,
        target: &T,
        size: u64,
        read: &[(u64, IoBuf)],
    ) -> Result<(), FailureKind> {
        let Some(disk) = target.read_alone() else { return Ok(()) };
        let content = self.world.current(disk);
        if content.length() != size && !self.faulty {
            let found = format!("the disk has {size} bytes, its raw file has {}", content.length());
            return Err(FailureKind::Check(found));
        }
        for (at, expected) in read {
            let mut found = vec![0; expected.len()];
            content.read(*at, &mut found);
            if self.faulty {
                self.compare(*at, &found, self.world.tick())?;
            } else if let Some(differs) = found.iter().zip(&**expected).position(|(one, other)| one != other)
            {
                let at = at + differs as u64;
                return Err(FailureKind::Check(format!("the raw file differs from the disk at {at:#x}")));
            }
        }
        Ok(())
    }

    /// A client was notified of an error: right if something below failed, otherwise a finding.
    fn reported(&self, op: String, error: String) -> Result<(), FailureKind> {
        if !self.faulty {
            return Err(FailureKind::UnexpectedError { op, error });
        }
        self.errors.borrow_mut().push((op, error));
        Ok(())
    }

    /// The part of the range that lies on the disk, to its alignment.
    fn clipped<S: Subject>(&self, subject: &S, at: u64, len: u64) -> Option<(u64, u64)> {
        let size = subject.size();
        let from = at / self.alignment * self.alignment;
        let to = (at + len).next_multiple_of(self.alignment).min(size);
        (from < to).then(|| (from, to - from))
    }
}

/// Reads a range when nothing else goes on; an error is a finding.
pub(crate) async fn read_range<S: Subject>(subject: &S, at: u64, len: u64) -> Result<IoBuf, FailureKind> {
    let mut buf = IoBuf::uninit(len as usize);
    buf.fill(UNREAD);
    match subject.read(at, buf).await {
        (Ok(()), buf) => Ok(buf),
        (Err(error), _) => {
            let op = Op::Read { at, len }.to_string();
            Err(FailureKind::UnexpectedError { op, error: error.to_string() })
        }
    }
}

/// The output of `future`, or `None` if it is still pending after so many turns; it is then dropped.
async fn at_most<F: Future>(future: F, polls: Option<u32>) -> Option<F::Output> {
    let mut future = pin!(future);
    let mut left = polls;
    std::future::poll_fn(|context| match (future.as_mut().poll(context), &mut left) {
        (Poll::Ready(output), _) => Poll::Ready(Some(output)),
        (Poll::Pending, Some(0)) => Poll::Ready(None),
        (Poll::Pending, Some(left)) => {
            *left -= 1;
            // Turns are counted, not what the future waits for: it may be dropped while all of it waits.
            context.waker().wake_by_ref();
            Poll::Pending
        }
        (Poll::Pending, None) => Poll::Pending,
    })
    .await
}
