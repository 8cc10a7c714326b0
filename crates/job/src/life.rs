//! A job's life: what its users ask of it, and what it tells them. The work itself is elsewhere ([`crate::Mirror`], [`crate::Stream`],
//! [`crate::Backup`], [`crate::Merge`]); between two steps it asks here whether to rest, to slow down or to end.

mod charge;
mod ending;

use std::cell::{Cell, RefCell};
use std::fmt;
use std::pin::pin;
use std::time::Duration;

use futures_util::future::select;
use sync::Event;

use crate::error::Error;
use crate::rate::{LoopClock, RateLimit};
use crate::state::{Status, Verb};
use crate::terms::{End, IoStatus, Notice, OnError, Terms, VerbError, Verdict};

/// Time before a request that failed is tried again, where failures are ignored.
const RETRY: Duration = Duration::from_millis(100);

/// A job's life. Belongs to one loop.
pub struct Life {
    terms: Terms,
    status: Cell<Status>,
    paused: Cell<bool>,
    end: Cell<Option<End>>,
    finalized: Cell<bool>,
    dismissed: Cell<bool>,
    error: RefCell<Option<String>>,
    io_status: Cell<IoStatus>,
    rate: RateLimit,
    speed: Cell<u64>,
    progress: Cell<(u64, u64)>,
    changed: Event,
    tell: Box<dyn Fn(Notice)>,
}

impl fmt::Debug for Life {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Life")
            .field("id", &self.terms.id)
            .field("status", &self.status)
            .finish_non_exhaustive()
    }
}

impl Life {
    /// A job that is created. `tell` hears of everything from then on; it must not ask the job for anything that changes it.
    pub fn new(terms: Terms, speed: u64, tell: impl Fn(Notice) + 'static) -> Self {
        let life = Self {
            terms,
            status: Cell::new(Status::Undefined),
            paused: Cell::default(),
            end: Cell::default(),
            finalized: Cell::default(),
            dismissed: Cell::default(),
            error: RefCell::default(),
            io_status: Cell::default(),
            rate: RateLimit::new(speed, LoopClock),
            speed: Cell::new(speed),
            progress: Cell::default(),
            changed: Event::new(),
            tell: Box::new(tell),
        };
        life.enter(Status::Created);
        life
    }

    /// What stays the same.
    pub fn terms(&self) -> &Terms {
        &self.terms
    }

    /// Where it is.
    pub fn status(&self) -> Status {
        self.status.get()
    }

    /// Whether it rests, or will at its next step.
    pub fn is_paused(&self) -> bool {
        self.paused.get()
    }

    /// How it was asked to end.
    pub fn asked_to_end(&self) -> Option<End> {
        self.end.get()
    }

    /// Why it failed.
    pub fn error(&self) -> Option<String> {
        self.error.borrow().clone()
    }

    /// How its requests failed.
    pub fn io_status(&self) -> IoStatus {
        self.io_status.get()
    }

    /// Bytes a second at most; 0 is no limit.
    pub fn speed(&self) -> u64 {
        self.speed.get()
    }

    /// Bytes done, and bytes to do in all.
    pub fn progress(&self) -> (u64, u64) {
        self.progress.get()
    }

    /// Says how far it is.
    pub fn set_progress(&self, done: u64, total: u64) {
        self.progress.set((done, total.max(done)));
    }

    /// Goes on to `next`, and tells. An impossible step is a fault of the job's own.
    pub fn enter(&self, next: Status) {
        debug_assert!(self.status.get().leads_to(next), "from {:?} to {next:?}", self.status.get());
        self.status.set(next);
        (self.tell)(Notice::Status(next));
        self.changed.notify(usize::MAX);
    }

    fn check(&self, verb: Verb) -> Result<(), VerbError> {
        let status = self.status.get();
        match status.takes(verb) {
            true => Ok(()),
            false => Err(VerbError::NotNow { id: self.terms.id.clone(), status, verb }),
        }
    }

    /// Has it rest after the steps that are under way.
    ///
    /// # Errors
    /// When it is asked to already, or not at work.
    pub fn pause(&self) -> Result<(), VerbError> {
        self.check(Verb::Pause)?;
        match self.rest() {
            true => Ok(()),
            false => Err(VerbError::PausedAlready { id: self.terms.id.clone() }),
        }
    }

    /// Has it rest; whether that is new.
    fn rest(&self) -> bool {
        let was_paused = self.paused.replace(true);
        self.changed.notify(usize::MAX);
        !was_paused
    }

    /// Lets it go on.
    ///
    /// # Errors
    /// When it does not rest.
    pub fn resume(&self) -> Result<(), VerbError> {
        self.check(Verb::Resume)?;
        if !self.paused.replace(false) {
            return Err(VerbError::NotPaused { id: self.terms.id.clone() });
        }
        self.io_status.set(IoStatus::Ok);
        self.changed.notify(usize::MAX);
        Ok(())
    }

    /// Has it end.
    ///
    /// # Errors
    /// When it has ended; with `End::Complete`, when it is not ready; with `End::Cancel`, when it rests.
    pub fn ask_to_end(&self, end: End) -> Result<(), VerbError> {
        self.check(if end == End::Complete { Verb::Complete } else { Verb::Cancel })?;
        if end == End::Cancel && self.paused.get() {
            return Err(VerbError::Rests { id: self.terms.id.clone() });
        }
        // Force is the last word; otherwise the first one counts.
        if end == End::Force || self.end.get().is_none() {
            self.end.set(Some(end));
        }
        if end == End::Force {
            self.leave_rest();
        }
        self.changed.notify(usize::MAX);
        Ok(())
    }

    /// Has it end without having begun, and be forgotten: what it was made with is undone.
    pub fn withdraw(&self) {
        self.end.set(Some(End::Force));
        self.dismissed.set(true);
        self.changed.notify(usize::MAX);
    }

    /// Waits until it is forgotten.
    pub async fn over(&self) {
        self.reaches(&[Status::Null]).await;
    }

    /// Waits until the job is in step with its source, or has ended.
    pub async fn ready(&self) {
        self.reaches(&[Status::Ready, Status::Concluded, Status::Null]).await;
    }

    /// Waits until the job has ended: its last step is done, or it was cancelled.
    pub async fn concluded(&self) {
        self.reaches(&[Status::Concluded, Status::Null]).await;
    }

    /// Waits until it is to end by force.
    pub async fn forced(&self) {
        loop {
            let changed = self.changed.listen();
            if self.end.get() == Some(End::Force) {
                return;
            }
            changed.await;
        }
    }

    async fn reaches(&self, states: &[Status]) {
        loop {
            let changed = self.changed.listen();
            if states.contains(&self.status.get()) {
                return;
            }
            changed.await;
        }
    }

    /// Has a pending job do its last step.
    ///
    /// # Errors
    /// When it is not pending.
    pub fn finalize(&self) -> Result<(), VerbError> {
        self.check(Verb::Finalize)?;
        self.finalized.set(true);
        self.changed.notify(usize::MAX);
        Ok(())
    }

    /// Has a job forgotten that has ended.
    ///
    /// # Errors
    /// When it has not.
    pub fn dismiss(&self) -> Result<(), VerbError> {
        self.check(Verb::Dismiss)?;
        self.dismissed.set(true);
        self.changed.notify(usize::MAX);
        Ok(())
    }

    /// Another limit, in bytes a second; 0 is none.
    ///
    /// # Errors
    /// When it has ended.
    pub fn set_speed(&self, speed: u64) -> Result<(), VerbError> {
        self.check(Verb::SetSpeed)?;
        self.speed.set(speed);
        self.rate.set(speed);
        self.changed.notify(usize::MAX);
        Ok(())
    }

    /// Whether its options can change.
    ///
    /// # Errors
    /// When it has ended.
    pub fn check_change(&self) -> Result<(), VerbError> {
        self.check(Verb::Change)
    }

    /// Begins.
    pub fn begin(&self) {
        self.enter(Status::Running);
    }

    /// Begins while its disk is drained: it rests until that is over, which is before this comes back.
    pub fn begin_drained(&self) {
        self.begin();
        self.enter(Status::Paused);
        self.leave_rest();
    }

    /// In step with its source.
    pub fn become_ready(&self) {
        if self.status.get() == Status::Running {
            self.enter(Status::Ready);
        }
    }

    /// It ends early: what it put in is put back next. One that rests is woken first.
    pub fn abort(&self) {
        self.leave_rest();
        self.enter(Status::Aborting);
    }

    /// Whether what was done so far is worth nothing: by force, or cancelled before it was ready.
    pub fn is_given_up(&self) -> bool {
        match self.end.get() {
            Some(End::Force) => true,
            Some(End::Cancel) => !matches!(self.status.get(), Status::Ready | Status::Standby),
            Some(End::Complete) | None => false,
        }
    }

    /// Between two steps: rests for as long as it is to.
    ///
    /// # Errors
    /// [`Error::Cancelled`] when the job is given up.
    pub async fn pause_point(&self) -> Result<(), Error> {
        loop {
            let changed = self.changed.listen();
            let is_given_up = self.is_given_up();
            if is_given_up || !self.paused.get() {
                self.leave_rest();
                return if is_given_up { Err(Error::Cancelled) } else { Ok(()) };
            }
            match self.status.get() {
                Status::Running => self.enter(Status::Paused),
                Status::Ready => self.enter(Status::Standby),
                _ => {}
            }
            changed.await;
        }
    }

    fn leave_rest(&self) {
        match self.status.get() {
            Status::Paused => self.enter(Status::Running),
            Status::Standby => self.enter(Status::Ready),
            _ => {}
        }
    }

    /// Waits until a user asks for something, or `other` ends.
    pub async fn changed_or(&self, other: impl Future<Output = ()>) {
        select(pin!(self.changed.listen()), pin!(other)).await;
    }

    /// Whether a failed request is ignored by the job's terms, which is reported then.
    pub fn ignores(&self, error: &Error) -> bool {
        let Error::Request { side, .. } = error else { return false };
        let ignored = self.terms.on_error(*side) == OnError::Ignore && !self.is_given_up();
        if ignored {
            (self.tell)(Notice::Failed(*side, Verdict::Ignore));
        }
        ignored
    }

    /// What is to be made of a failed request: comes back when it is to be tried again.
    ///
    /// # Errors
    /// The same error when the job fails of it; [`Error::Cancelled`].
    pub async fn judge(&self, error: Error) -> Result<(), Error> {
        let Error::Request { side, .. } = &error else { return Err(error) };
        let side = *side;
        let policy = self.terms.on_error(side);
        let no_space = error.is_no_space();
        let is_given_up = self.is_given_up();
        let verdict = match policy {
            _ if is_given_up => Verdict::Report,
            OnError::Report => Verdict::Report,
            OnError::Enospc if !no_space => Verdict::Report,
            OnError::Ignore => Verdict::Ignore,
            OnError::Stop | OnError::Enospc => Verdict::Stop,
        };
        // A medium that fails is worth knowing of, also when the copy is not wanted any more.
        (self.tell)(Notice::Failed(side, verdict));
        match verdict {
            Verdict::Report if is_given_up => return Err(Error::Cancelled),
            Verdict::Report => return Err(error),
            Verdict::Ignore => self.changed_or(reactor::sleep(RETRY)).await,
            Verdict::Stop => {
                self.rest();
                self.io_status.set(if no_space { IoStatus::NoSpace } else { IoStatus::Failed });
            }
        }
        self.pause_point().await
    }
}
