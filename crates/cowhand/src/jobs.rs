//! Jobs on a disk in use: commit, stream, mirror and backup, without a server.
//!
//! A job runs on the disk's first loop. Its [`Job`] is a handle; dropping it changes nothing. A disk has one job at a time that uses its layers.

mod begin;
mod options;
mod site;
mod state;

use std::fmt;
use std::sync::Arc;

use graph::{Change, DiskNode};
pub use job::Status as JobStatus;

use self::begin::Started;
#[cfg(feature = "checkpoints")]
pub(crate) use self::begin::merge_of;
#[cfg(all(feature = "checkpoints", feature = "s3"))]
pub(crate) use self::begin::{publish_of, push_of};
pub(crate) use self::options::Target;
pub use self::options::{Backup, Commit, Copied, Mirror, Stream};
pub(crate) use self::site::Site;
use self::site::Uses;
pub use self::state::JobInfo;
use self::state::{Running, State};
use crate::disk::Disk;
use crate::error::{Error, ErrorKind};
#[cfg(feature = "checkpoints")]
use crate::in_flight::Inside;
use crate::in_flight::{HOME, Shared};
use crate::options::OpenOptions;
use crate::pending::Pending;
use crate::request::Job as Work;

/// A job on a disk.
#[derive(Clone)]
pub struct Job {
    shared: Arc<Shared>,
    state: Arc<State>,
}

impl Disk {
    /// Begins to copy what images of the chain hold into the one below them, while the disk is in use. With the uppermost image among them the job
    /// becomes ready when the base has all of it ([`Job::ready`]), and the disk switches to the base when it is asked to ([`Job::complete`]). Otherwise it
    /// ends by itself. The files of the images above the base are of no use afterwards, and stay.
    ///
    /// # Errors
    /// [`ErrorKind::Invalid`] where the layers are not there; [`ErrorKind::InUse`] while the disk has a job.
    ///
    /// # Crash
    /// The old chain or the new one, whole.
    pub fn commit(&self, commit: Commit) -> Pending<Job> {
        self.begin_job(async move |site, change, disk| begin::commit(site, change, disk, &commit).await)
    }

    /// Begins to copy what the backing files hold into the disk's own image, which does not need them afterwards. Ends by itself.
    ///
    /// # Errors
    /// As [`Disk::commit`]; [`ErrorKind::Unsupported`] where the disk's own image is no qcow2.
    pub fn stream(&self, stream: Stream) -> Pending<Job> {
        self.begin_job(async move |site, change, disk| begin::stream(site, change, disk, &stream).await)
    }

    /// Begins to keep a copy of the disk in `target`, an image of the same size, in step with what is written. It becomes ready when the copy has
    /// everything; completed, the disk switches to it; cancelled then, the copy is whole as of that moment and is closed.
    ///
    /// # Errors
    /// As [`Disk::commit`]; when the target cannot be opened, or has another size.
    pub fn mirror(&self, target: OpenOptions, mirror: Mirror) -> Pending<Job> {
        let target = match target.for_job() {
            Ok(target) => target,
            Err(error) => return Pending::ended(Err(error)),
        };
        self.begin_job(async move |site, change, disk| {
            begin::mirror(site, change, disk, &target, &mirror).await
        })
    }

    /// Begins a copy of the disk as it is when this completes, in `target`, an image of the same size: what is overwritten meanwhile is copied first. Ends
    /// by itself; the target is closed then.
    ///
    /// # Errors
    /// As [`Disk::mirror`].
    pub fn backup(&self, target: OpenOptions, backup: Backup) -> Pending<Job> {
        let target = match target.for_job() {
            Ok(target) => target,
            Err(error) => return Pending::ended(Err(error)),
        };
        self.begin_job(async move |site, change, disk| {
            begin::backup(site, change, disk, &target, &backup).await
        })
    }

    /// Begins a job, of a disk that `inside` keeps open. On the disk's loop.
    #[cfg(feature = "checkpoints")]
    pub(crate) async fn begin_inside(
        shared: Arc<Shared>,
        inside: &Inside,
        begin: impl AsyncFnOnce(&Site, &Change<'_>, &Arc<DiskNode>) -> Result<Started, Error>,
    ) -> Result<Job, Error> {
        let state = begin::begin(&shared, inside, Uses::Layers, begin).await?;
        Ok(Job { shared, state })
    }

    /// As [`Disk::begin_inside`], of a job that is none of the disk's layers: others run meanwhile.
    #[cfg(all(feature = "checkpoints", feature = "s3"))]
    pub(crate) async fn begin_beside(
        shared: Arc<Shared>,
        inside: &Inside,
        begin: impl AsyncFnOnce(&Site, &Change<'_>, &Arc<DiskNode>) -> Result<Started, Error>,
    ) -> Result<Job, Error> {
        let state = begin::begin(&shared, inside, Uses::Sealed, begin).await?;
        Ok(Job { shared, state })
    }

    fn begin_job<B>(&self, begin: B) -> Pending<Job>
    where
        B: AsyncFnOnce(&Site, &Change<'_>, &Arc<DiskNode>) -> Result<Started, Error> + Send + 'static,
    {
        let shared = Arc::clone(self.shared());
        let inside = match shared.enter() {
            Ok(inside) => inside,
            Err(error) => return Pending::ended(Err(error)),
        };
        let (reply, pending) = Pending::new();
        let loops = shared.loops().clone();
        let start = move || {
            let task = async move {
                let begun = begin::begin(&shared, &inside, Uses::Layers, begin).await;
                drop(inside);
                reply.send(begun.map(|state| Job { shared, state }));
            };
            reactor::spawn(task).detach();
        };
        loops.send(HOME, Work::Work(Box::new(start)));
        pending
    }
}

impl Job {
    /// How far it is; of one that has ended, its end.
    pub fn info(&self) -> Pending<JobInfo> {
        let ended = self.state.info();
        self.ask(move |running| match running {
            Some(running) => Ok(running.info()),
            None => Ok(ended),
        })
    }

    /// Has it rest after the steps that are under way.
    ///
    /// # Errors
    /// [`ErrorKind::Invalid`] when it rests already or is not at work.
    pub fn pause(&self) -> Pending<()> {
        self.act(|running| running.life.pause())
    }

    /// Has it work again.
    ///
    /// # Errors
    /// [`ErrorKind::Invalid`] when it does not rest.
    pub fn resume(&self) -> Pending<()> {
        self.act(|running| running.life.resume())
    }

    /// Sets its limit, in bytes a second; 0 is none.
    ///
    /// # Errors
    /// [`ErrorKind::Invalid`] when it has ended.
    pub fn set_speed(&self, bytes: u64) -> Pending<()> {
        self.act(move |running| running.life.set_speed(bytes))
    }

    /// Has it end. A mirror that is ready leaves a whole copy; otherwise what was copied is worth nothing, and the disk has the layers that it had.
    ///
    /// # Errors
    /// [`ErrorKind::Invalid`] when it has ended.
    pub fn cancel(&self) -> Pending<()> {
        self.act(|running| {
            let end = if running.life.is_paused() { job::End::Force } else { job::End::Cancel };
            running.life.ask_to_end(end)
        })
    }

    /// Has the disk switch to the copy, of a job that is ready. [`Job::ended`] reports when it has.
    ///
    /// # Errors
    /// [`ErrorKind::Invalid`] when it is not ready.
    pub fn complete(&self) -> Pending<()> {
        self.act(|running| running.life.ask_to_end(job::End::Complete))
    }

    /// Completes when the copy is in step with the disk, of a mirror or a commit of the uppermost image; of any other job, with its end.
    ///
    /// # Errors
    /// As [`Job::ended`], if it ends first.
    pub fn ready(&self) -> Pending<()> {
        let (reply, pending) = Pending::new();
        let state = Arc::clone(&self.state);
        let start = move || {
            let Some(running) = Running::of(&state) else { return reply.send(state.result()) };
            reactor::spawn(async move {
                running.life.ready().await;
                let has_ended = matches!(running.life.status(), JobStatus::Concluded | JobStatus::Null);
                drop(running);
                match has_ended {
                    true => state.when_ended(reply),
                    false => reply.send(Ok(())),
                }
            })
            .detach();
        };
        self.shared.loops().send(HOME, Work::Work(Box::new(start)));
        pending
    }

    /// Completes when it has ended and cleaned up: its target is closed, or the disk's.
    ///
    /// # Errors
    /// Why it failed; [`ErrorKind::Cancelled`] when it was cancelled before it had done its work.
    pub fn ended(&self) -> Pending<()> {
        let (reply, pending) = Pending::new();
        self.state.when_ended(reply);
        pending
    }

    /// Does `act` on the loop of the job.
    fn act(&self, act: impl FnOnce(&Running) -> Result<(), job::VerbError> + Send + 'static) -> Pending<()> {
        self.ask(move |running| match running {
            Some(running) => act(running).map_err(|error| Error::said(ErrorKind::Invalid, error.to_string())),
            None => Err(Error::said(ErrorKind::Invalid, "the job has ended")),
        })
    }

    fn ask<T: Send + 'static>(
        &self,
        ask: impl FnOnce(Option<&Running>) -> Result<T, Error> + Send + 'static,
    ) -> Pending<T> {
        let (reply, pending) = Pending::new();
        let state = Arc::clone(&self.state);
        let start = move || reply.send(ask(Running::of(&state).as_deref()));
        self.shared.loops().send(HOME, Work::Work(Box::new(start)));
        pending
    }
}

impl fmt::Debug for Job {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Job({} of {:?})", self.state.kind(), self.shared)
    }
}
