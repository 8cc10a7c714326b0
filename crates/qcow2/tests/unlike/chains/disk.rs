//! The disk that guests use, while a job is at work on it.

use std::cell::{Cell, RefCell};
use std::future::pending;
use std::rc::Rc;
use std::sync::Arc;

use block::{Block, ReadKind, ZeroOptions};
use job::{End, Ended, Life, OnError, Status, Task, Terms};
use sim::{Durability, Management, Subject, World};
use storage::{Hints, IoBuf, IoVec, RangeGuard, RangeLocks, RangeMode, Zeroing};

use super::guest::{read_all, same};
use super::host::Failed;
use super::images::{Images, Layer};
use super::machine::Machine;
use super::note::Note;
use super::shape::{Kind, Mode};
use super::work::task_of;

/// What a disk and its job are made of.
pub struct Parts {
    pub images: Rc<Images>,
    pub world: World,
    /// From the upper to the lower, as they were opened.
    pub layers: Vec<Layer>,
    pub host: Arc<Machine>,
    pub target: Option<Layer>,
    pub variant: u32,
    /// What requests go to.
    pub root: RefCell<Arc<dyn Block>>,
    /// Requests are inside in the shared mode; an exchange keeps them out.
    pub gate: RangeLocks,
    /// What the target reads as while the job runs, if that is so.
    pub moment: RefCell<Option<Vec<u8>>>,
    /// The copy is left as it is.
    pub is_left: Cell<bool>,
    /// The hash of what the copy reads as, when it is whole.
    pub whole: Cell<Option<u64>>,
    /// A job left requests under way behind.
    gave_up: Cell<bool>,
    failed: RefCell<Option<String>>,
    /// Mirrors: guests are to write to both sides from now on.
    pub switch: RefCell<Option<Rc<dyn Fn()>>>,
    /// Requests that have come inside.
    entered: Cell<u32>,
}

/// A mirror that goes over to both sides does so when so many requests have come, if it was not asked before.
const SWITCHES_AT: u32 = 4;

/// An opened disk.
pub struct Disk {
    parts: Rc<Parts>,
    life: Option<Rc<Life>>,
}

impl Parts {
    pub fn new(
        images: Rc<Images>,
        world: World,
        (layers, host): (Vec<Layer>, Arc<Machine>),
        target: Option<Layer>,
        variant: u32,
    ) -> Self {
        let root = RefCell::new(Arc::clone(&layers[0].block));
        let gate = RangeLocks::default();
        let (moment, failed, gave_up, switch, is_left, whole, entered) = Default::default();
        Self {
            images,
            world,
            layers,
            host,
            target,
            variant,
            root,
            gate,
            moment,
            is_left,
            whole,
            gave_up,
            failed,
            switch,
            entered,
        }
    }

    pub fn kind(&self) -> Kind {
        self.images.case.kind()
    }

    /// Keeps requests out; none is in flight, nor anything that they left behind.
    pub async fn drain(&self) -> RangeGuard<'_> {
        let drained = self.gate.acquire(0, 1, RangeMode::Exclusive).await;
        self.host.idle().await;
        drained
    }

    pub async fn flush(&self) -> Result<(), String> {
        let root = Arc::clone(&self.root.borrow());
        match self.image_of(&root) {
            Some(image) => image.flush().await,
            None => root.flush().await.map_err(|error| error.to_string()),
        }
    }

    /// The image that a block is, if it is no filter of a job.
    fn image_of(&self, block: &Arc<dyn Block>) -> Option<&Layer> {
        self.layers.iter().chain(&self.target).find(|image| Arc::ptr_eq(&image.block, block))
    }

    /// What guests write through. A job's filter does not know of compressed clusters.
    fn written(&self, root: Arc<dyn Block>) -> Arc<dyn Block> {
        let case = self.images.case;
        let image = self.image_of(&root);
        // The node that the disk was mirrored to is the filter.
        let is_copy = self.target.as_ref().is_some_and(|target| Arc::ptr_eq(&target.block, &root));
        match image.filter(|_| case.compresses_writes() || (is_copy && case.compresses_copy())) {
            Some(image) => image.compressing(),
            None => root,
        }
    }

    /// Has the platform note it.
    pub async fn note(&self, note: Note) -> Result<(), String> {
        note.write(&self.world, self.images.disks()).await
    }

    pub fn top(&self) -> &Layer {
        &self.layers[0]
    }

    pub fn fails(&self, error: String) {
        self.failed.borrow_mut().get_or_insert(error);
    }

    async fn live(&self, task: Task, life: &Life) {
        life.begin();
        if let Err(failed) = self.done(&task, life).await {
            match failed {
                Failed::Reported(error) => self.fails(error),
                Failed::GivenUp => self.gave_up.set(true),
            }
            match life.status() {
                Status::Paused => life.enter(Status::Running),
                Status::Standby => life.enter(Status::Ready),
                _ => {}
            }
            life.enter(Status::Aborting);
            self.moment.take();
            task.abort(self).await;
        }
        life.conclude(None);
    }

    /// Works to the end and does the last step.
    async fn done(&self, task: &Task, life: &Life) -> Result<(), Failed> {
        let ended = task.run(life).await?;
        life.settle(std::future::ready(true)).await?;
        self.is_left.set(ended == Ended::Left);
        task.finish(self, ended).await?;
        match task {
            Task::Backup(_) => self.note_copy().await?,
            Task::Mirror(_) if ended == Ended::Left => self.note_copy().await?,
            _ => {}
        }
        Ok(())
    }

    /// An image that is not written to through the disk reads the same at each step of a job below it; what is read through the copy of a
    /// moment is that moment.
    async fn look(&self) -> Result<(), String> {
        let is_below_top = matches!(
            self.kind(),
            Kind::CommitMiddle | Kind::CommitSeveralMiddle | Kind::StreamMiddle | Kind::StreamMiddleToBase
        );
        if let Some(middle) = self.layers.get(1).filter(|layer| is_below_top && layer.image == 1) {
            same(&read_all(&*middle.block).await?, &self.images.flats[1], "the image below the top")?;
        }
        let expected = self.moment.borrow().clone();
        let (Some(expected), Some(target)) = (expected, &self.target) else { return Ok(()) };
        same(&read_all(&*target.block).await?, &expected, "the copy of a moment")
    }
}

impl Disk {
    /// Starts the job, if there is something to do; the disk is not in use yet.
    pub async fn start(parts: Rc<Parts>, has_job: bool, note: Note) -> Result<Self, String> {
        if !has_job {
            return Ok(Self { parts, life: None });
        }
        parts.note(Note { whole: None, is_begun: true, ..note }).await?;
        let (task, root) = task_of(&parts).await?;
        *parts.root.borrow_mut() = root;
        let terms =
            Terms { on_source_error: OnError::Report, on_target_error: OnError::Report, ..Terms::default() };
        let life = Rc::new(Life::new(terms, 0, |_| ()));
        let (worker, worked) = (Rc::clone(&parts), Rc::clone(&life));
        sim::spawn(async move { worker.live(task, &worked).await });
        Ok(Self { parts, life: Some(life) })
    }

    /// The block that a request goes to. It is inside for as long as it holds the guard.
    async fn enter(&self) -> (RangeGuard<'_>, Arc<dyn Block>) {
        let inside = self.parts.gate.acquire(0, 1, RangeMode::Shared).await;
        self.parts.entered.set(self.parts.entered.get() + 1);
        if self.parts.entered.get() == SWITCHES_AT {
            self.switch();
        }
        let root = Arc::clone(&self.parts.root.borrow());
        (inside, root)
    }

    /// A mirror of the mode that goes over to both sides does. Says whether there is one.
    fn switch(&self) -> bool {
        let switch = self.parts.switch.borrow().clone();
        let switch = switch.filter(|_| self.parts.images.case.mode() == Mode::Switching);
        if let Some(switch) = &switch {
            switch();
        }
        switch.is_some()
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
        let by_force = self.parts.variant & 1 == 1;
        while life.status() != Status::Concluded {
            // What does not fit its state is refused.
            if by_force {
                let _ = life.ask_to_end(End::Force);
            } else if life.is_paused() {
                let _ = life.resume();
            }
            if life.status() == Status::Ready && life.asked_to_end().is_none() {
                let _ = life.ask_to_end(End::Complete);
            }
            if self.parts.kind() == Kind::BackupNone && life.asked_to_end().is_none() {
                let _ = life.ask_to_end(End::Cancel);
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
        self.parts.root.borrow().size()
    }

    async fn read(&self, offset: u64, buf: IoBuf) -> (Result<(), String>, IoBuf) {
        let (_inside, root) = self.enter().await;
        let (read, mut buf) = root.read(offset, buf, Hints::NONE).await;
        if let Ok(ReadKind::Zeroes) = read {
            buf.fill(0);
        }
        (read.map(drop).map_err(|error| error.to_string()), buf)
    }

    async fn write(&self, offset: u64, data: IoVec, durability: Durability) -> Result<(), String> {
        let (_inside, root) = self.enter().await;
        let written = self.parts.written(root);
        written.write(offset, data, Hints::NONE).await.map_err(|error| error.to_string())?;
        self.durable(durability).await
    }

    async fn zero(&self, offset: u64, len: u64, how: Zeroing, durability: Durability) -> Result<(), String> {
        let (_inside, root) = self.enter().await;
        let options = ZeroOptions { unmap: how == Zeroing::Unmap, fast_only: false };
        root.zero(offset, len, options).await.map_err(|error| error.to_string())?;
        self.durable(durability).await
    }

    async fn discard(&self, offset: u64, len: u64) -> Result<(), String> {
        let (_inside, root) = self.enter().await;
        root.discard(offset, len).await.map_err(|error| error.to_string())
    }

    /// What is asked of the job meanwhile. It refuses what does not fit its state.
    async fn tidy(&self, how: u32) -> Result<(), String> {
        let Some(life) = &self.life else { return Ok(()) };
        let _ = match how {
            0 if self.switch() => Ok(()),
            0 | 1 => life.pause(),
            2..=4 => life.resume(),
            5 => life.ask_to_end(End::Cancel),
            6 => return self.parts.look().await,
            _ => life.ask_to_end(End::Complete),
        };
        Ok(())
    }

    async fn flush(&self) -> Result<(), String> {
        let _inside = self.enter().await;
        self.parts.flush().await
    }

    async fn manage(&self, operation: Management) -> Result<(), String> {
        unreachable!("a disk with a job has no {operation:?}")
    }

    fn gave_work_up(&self) -> bool {
        self.parts.gave_up.get()
    }

    async fn close(&self) -> Result<(), String> {
        if let Some(life) = &self.life {
            self.parts.look().await?;
            self.end_job(life).await;
        }
        let mut result =
            self.parts.failed.take().map_or(Ok(()), |error| Err(format!("the job failed: {error}")));
        for layer in self.parts.target.iter().chain(&self.parts.layers) {
            result = result.and(layer.close().await);
        }
        result
    }
}
