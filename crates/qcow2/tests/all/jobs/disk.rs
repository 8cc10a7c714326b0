//! The disk that guests use, while a job is at work on it.

use std::cell::{Cell, RefCell};
use std::future::pending;
use std::rc::Rc;
use std::sync::Arc;

use block::{Block, ReadKind, ZeroOptions};
use job::{End, Ended, Life, Notice, OnError, Snapshot, Status, Task, Terms};
use qcow2::Qcow2;
use sim::{Durability, Management, Subject, World};
use storage::{Hints, IoBuf, IoVec, RangeLocks, RangeMode, Zeroing};

use super::host::Failed;
use super::images::SIZE;
use super::machine::Machine;
use super::note::Note;
use super::target::Kind;
use super::work::task_of;

/// How often a job is let go on that stopped because of errors.
const RESUMED_MAX: usize = 3;

/// What a disk and its job are made of.
pub struct Parts {
    pub kind: Kind,
    pub world: World,
    /// From the upper to the lower, as they were opened.
    pub layers: Vec<(usize, Qcow2)>,
    /// Theirs, not that of the copy.
    pub host: Arc<Machine>,
    pub copy: Option<Qcow2>,
    pub variant: u32,
    /// What was put over the disk.
    pub overlay: RefCell<Option<Qcow2>>,
    /// What requests go to.
    pub root: RefCell<Arc<dyn Block>>,
    /// What they went to before the overlay was put over it, until that is durable.
    pub unflushed: RefCell<Option<Arc<dyn Block>>>,
    /// Requests are inside in the shared mode; an exchange keeps them out.
    pub gate: RangeLocks,
    /// What backs the disk is unknown.
    pub is_dead: Cell<bool>,
    /// A mirror is taken off a copy that stays whole.
    pub is_left: Cell<bool>,
    /// The hash of a copy that is reported to the platform when the job has succeeded.
    pub whole: Cell<Option<u64>>,
    /// Failures of the job.
    failed: Cell<u64>,
    /// A job left requests under way behind.
    gave_up: Cell<bool>,
}

/// An opened disk.
pub struct Disk {
    parts: Rc<Parts>,
    life: Option<Rc<Life>>,
}

impl Parts {
    pub fn new(
        kind: Kind,
        world: World,
        (layers, host): (Vec<(usize, Qcow2)>, Arc<Machine>),
        copy: Option<Qcow2>,
        variant: u32,
    ) -> Self {
        let root: Arc<dyn Block> = Arc::new(layers[0].1.clone());
        Self {
            kind,
            world,
            layers,
            host,
            copy,
            variant,
            overlay: RefCell::default(),
            root: RefCell::new(root),
            unflushed: RefCell::default(),
            gate: RangeLocks::default(),
            is_dead: Cell::default(),
            is_left: Cell::default(),
            whole: Cell::default(),
            failed: Cell::default(),
            gave_up: Cell::default(),
        }
    }

    /// Keeps requests out; none is in flight, nor anything that they left behind.
    pub async fn drain(&self) -> storage::RangeGuard<'_> {
        let drained = self.gate.acquire(0, 1, RangeMode::Exclusive).await;
        self.host.idle().await;
        drained
    }

    /// Flushes what backed the disk before an overlay was put over that.
    pub async fn flush_below(&self) -> Result<(), String> {
        let below = self.unflushed.borrow().clone();
        if let Some(below) = below {
            below.flush().await.map_err(|error| error.to_string())?;
            self.unflushed.take();
        }
        Ok(())
    }

    /// Likewise, and then what it is backed by.
    pub async fn flush(&self) -> Result<(), String> {
        self.flush_below().await?;
        let root = Arc::clone(&self.root.borrow());
        root.flush().await.map_err(|error| error.to_string())
    }

    /// Has the platform note it.
    pub async fn note(&self, note: Note) -> Result<(), String> {
        let failures = note.write(&self.world).await?;
        (0..failures).for_each(|_| self.fails());
        Ok(())
    }

    /// All images that were opened.
    fn images(&self) -> Vec<Qcow2> {
        let layers = self.layers.iter().map(|(_, image)| image.clone());
        self.overlay.borrow().clone().into_iter().chain(layers).chain(self.copy.clone()).collect()
    }

    pub fn fails(&self) {
        self.failed.set(self.failed.get() + 1);
    }

    /// Works to the end and does the last step. Then the platform is notified of a copy that is whole.
    async fn done(&self, task: Option<&Task>, life: &Life) -> Result<(), Failed> {
        let ended = match task {
            Some(task) => task.run(life).await?,
            None => Ended::Complete,
        };
        life.settle(std::future::ready(true)).await?;
        self.is_left.set(ended == Ended::Left && self.kind.copies());
        match task {
            Some(task) => task.finish(self, ended).await?,
            None => Snapshot::take(self).await?.keep().await,
        }
        if let Some(whole) = self.whole.take() {
            self.note(Note { stands_on: self.layers[0].0, whole: Some(whole) }).await?;
        }
        Ok(())
    }

    async fn live(&self, task: Option<Task>, life: &Life) {
        life.begin();
        if let Err(failed) = self.done(task.as_ref(), life).await {
            match failed {
                Failed::Reported => self.fails(),
                Failed::GivenUp => self.gave_up.set(true),
            }
            life.abort();
            self.is_left.set(false);
            if let Some(task) = task.filter(|_| !self.is_dead.get()) {
                task.abort(self).await;
            }
        }
        life.conclude(None);
    }
}

impl Disk {
    /// Starts the job, if there is something to do; the disk is not in use yet.
    pub async fn start(parts: Rc<Parts>, has_job: bool, note: Note) -> Result<Self, String> {
        if !has_job {
            return Ok(Self { parts, life: None });
        }
        if note.whole.is_some() {
            // It is begun anew.
            parts.note(Note { whole: None, ..note }).await?;
        }
        let (task, root) = task_of(&parts).await?;
        *parts.root.borrow_mut() = root;
        let policy = if parts.variant & 2 == 0 { OnError::Report } else { OnError::Stop };
        let terms = Terms { on_source_error: policy, on_target_error: policy, ..Terms::default() };
        let counted = Rc::clone(&parts);
        let life = Rc::new(Life::new(terms, 0, move |notice| {
            if let Notice::Failed(..) = notice {
                counted.fails();
            }
        }));
        let (worker, worked) = (Rc::clone(&parts), Rc::clone(&life));
        sim::spawn(async move { worker.live(task, &worked).await });
        Ok(Self { parts, life: Some(life) })
    }

    /// The block that a request goes to. It is inside for as long as it holds the guard.
    async fn enter(&self) -> Result<(storage::RangeGuard<'_>, Arc<dyn Block>), String> {
        let inside = self.parts.gate.acquire(0, 1, RangeMode::Shared).await;
        match self.parts.is_dead.get() {
            true => Err("the platform could not note what the disk stands on".into()),
            false => Ok((inside, Arc::clone(&self.parts.root.borrow()))),
        }
    }

    /// Of a request that is still inside.
    async fn durable(&self, durability: Durability) -> Result<(), String> {
        match durability {
            Durability::AtFlush => Ok(()),
            Durability::AtReply => self.parts.flush().await,
        }
    }

    /// Has the job end: completed where that can be, or by force.
    async fn end_job(&self, life: &Life) {
        let (mut resumed, by_force) = (0, self.parts.variant & 1 == 1);
        while life.status() != Status::Concluded {
            let is_enough = by_force || resumed == RESUMED_MAX && life.is_paused();
            // What does not fit its state is refused.
            if is_enough {
                let _ = life.ask_to_end(End::Force);
            } else if life.is_paused() {
                resumed += usize::from(life.resume().is_ok());
            }
            if life.status() == Status::Ready && life.asked_to_end().is_none() {
                let _ = life.ask_to_end(End::Complete);
            }
            if life.status() != Status::Concluded {
                life.changed_or(pending()).await;
            }
        }
    }
}

impl Subject for Disk {
    type Error = String;

    fn size(&self) -> u64 {
        SIZE
    }

    async fn read(&self, offset: u64, buf: IoBuf) -> (Result<(), String>, IoBuf) {
        let (_inside, root) = match self.enter().await {
            Ok(entered) => entered,
            Err(error) => return (Err(error), buf),
        };
        let (read, mut buf) = root.read(offset, buf, Hints::NONE).await;
        if let Ok(ReadKind::Zeroes) = read {
            buf.fill(0);
        }
        (read.map(drop).map_err(|error| error.to_string()), buf)
    }

    async fn write(&self, offset: u64, data: IoVec, durability: Durability) -> Result<(), String> {
        let (_inside, root) = self.enter().await?;
        root.write(offset, data, Hints::NONE).await.map_err(|error| error.to_string())?;
        self.durable(durability).await
    }

    async fn zero(&self, offset: u64, len: u64, how: Zeroing, durability: Durability) -> Result<(), String> {
        let (_inside, root) = self.enter().await?;
        let options = ZeroOptions { unmap: how == Zeroing::Unmap, fast_only: false };
        root.zero(offset, len, options).await.map_err(|error| error.to_string())?;
        self.durable(durability).await
    }

    async fn discard(&self, offset: u64, len: u64) -> Result<(), String> {
        let (_inside, root) = self.enter().await?;
        root.discard(offset, len).await.map_err(|error| error.to_string())
    }

    /// What is asked of the job meanwhile. It refuses what does not fit its state.
    async fn tidy(&self, how: u32) -> Result<(), String> {
        let Some(life) = &self.life else { return Ok(()) };
        let _ = match how {
            0 | 1 => life.pause(),
            2..=4 => life.resume(),
            5 => life.ask_to_end(End::Cancel),
            6 => life.ask_to_end(End::Force),
            _ => life.ask_to_end(End::Complete),
        };
        Ok(())
    }

    async fn flush(&self) -> Result<(), String> {
        let _inside = self.enter().await?;
        self.parts.flush().await
    }

    async fn manage(&self, operation: Management) -> Result<(), String> {
        unreachable!("a disk with a job has no {operation:?}")
    }

    fn background_errors(&self) -> u64 {
        let behind = self.parts.images().into_iter().map(|image| {
            let status = image.status();
            status.leaked_clusters + status.bitmaps_put_off
        });
        self.parts.failed.get() + behind.sum::<u64>()
    }

    fn gave_work_up(&self) -> bool {
        self.parts.gave_up.get()
    }

    async fn close(&self) -> Result<(), String> {
        if let Some(life) = &self.life {
            self.end_job(life).await;
        }
        let mut result = Ok(());
        for image in self.parts.images() {
            result = result.and(image.close().await.map_err(|error| error.to_string()));
        }
        result
    }
}
