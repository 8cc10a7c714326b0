//! How each kind of job begins.

use std::cell::Cell;
use std::sync::Arc;

use block::Block;
use graph::{Change, CommitError, DiskNode, JobHost, JobOwner, ReplaceError, StepError, tracking_unit};
use job::{BackupPace, BeforeWrite, Ended, Life, MirrorJob, Over, Pivot, Task, Terms, Tracked, What};
use qcow2::Qcow2;

use super::options::{Backup, Commit, Copied, Mirror, Stream, Target};
use super::site::{Site, Uses};
use super::state::{Running, State};
use crate::error::{Error, ErrorKind};
use crate::in_flight::{Inside, Shared};

/// What a job does.
pub(super) enum Work {
    /// Layers of the disk are copied.
    Task(Task),
    /// Layers of its lineage that nothing needs by themselves become one.
    #[cfg(feature = "checkpoints")]
    Merge(::checkpoints::LayerMerge),
    /// A sealed layer is uploaded.
    #[cfg(all(feature = "checkpoints", feature = "s3"))]
    Publish(Box<::checkpoints::Publication>),
    /// The disk is uploaded as it was when the job began.
    #[cfg(all(feature = "checkpoints", feature = "s3"))]
    Push(Box<::checkpoints::LivePush>),
}

impl Work {
    #[cfg_attr(
        not(feature = "checkpoints"),
        expect(unused_variables, reason = "a task has what it works on")
    )]
    async fn run(&self, host: &Host<'_>, life: &Life) -> Result<Ended, Error> {
        match self {
            Self::Task(task) => task.run(life).await.map_err(of_job),
            #[cfg(feature = "checkpoints")]
            Self::Merge(merge) => match merge.run(host.graph, life).await {
                Ok(()) => Ok(Ended::Complete),
                Err(error) => Err(Error::of_checkpoints(merge.place.directory(), &error)),
            },
            #[cfg(all(feature = "checkpoints", feature = "s3"))]
            Self::Publish(publication) => match publication.run(host.graph.rules(), life).await {
                Ok(_) => Ok(Ended::Complete),
                Err(_) if life.is_given_up() => Err(of_job(job::Error::Cancelled)),
                Err(error) => Err(Error::of_publishing(publication.sealed.survey.place.directory(), &error)),
            },
            #[cfg(all(feature = "checkpoints", feature = "s3"))]
            Self::Push(push) => match push.run(life).await {
                Ok(_) => Ok(Ended::Complete),
                Err(_) if life.is_given_up() => Err(of_job(job::Error::Cancelled)),
                Err(error) => Err(Error::of_publishing(&host.disk.path(), &error)),
            },
        }
    }

    /// Takes the last step.
    async fn finish(&self, host: &Host<'_>, ended: Ended) -> Result<(), Error> {
        match self {
            Self::Task(task) => task.finish(host, ended).await.map_err(|error| match error {
                StepError::Copy(error) => of_job(error),
                error => Error::of_steps("the last step failed", &error),
            }),
            #[cfg(feature = "checkpoints")]
            Self::Merge(_) => Ok(()),
            #[cfg(all(feature = "checkpoints", feature = "s3"))]
            Self::Publish(_) => Ok(()),
            #[cfg(all(feature = "checkpoints", feature = "s3"))]
            Self::Push(push) => {
                push.end(host).await;
                Ok(())
            }
        }
    }

    /// Puts back what was put in.
    async fn abort(&self, host: &Host<'_>) {
        match self {
            Self::Task(task) => task.abort(host).await,
            #[cfg(feature = "checkpoints")]
            Self::Merge(_) => {}
            #[cfg(all(feature = "checkpoints", feature = "s3"))]
            Self::Publish(_) => {}
            #[cfg(all(feature = "checkpoints", feature = "s3"))]
            Self::Push(push) => push.end(host).await,
        }
    }
}

fn of_job(error: job::Error) -> Error {
    match error {
        job::Error::Cancelled => Error::said(ErrorKind::Cancelled, "the job was cancelled"),
        error => Error::of_steps("the job failed", &error),
    }
}

/// A job that has begun: its filter, if it has one, is over the disk.
pub(crate) struct Started {
    pub(super) kind: &'static str,
    pub(super) work: Work,
    pub(super) speed_bytes: u64,
    /// The node of its target, if it opened one.
    pub(super) target: Option<String>,
}

pub(super) async fn commit(
    site: &Site,
    change: &Change<'_>,
    disk: &Arc<DiskNode>,
    commit: &Commit,
) -> Result<Started, Error> {
    let images = images(site, disk)?;
    let lowest = images.len().saturating_sub(1);
    let (top, base) = (commit.top, commit.base.unwrap_or(lowest));
    if base <= top || base > lowest {
        return Err(invalid(format!(
            "images {top} to {base} of a chain of {}: the base must be below the top and in the chain",
            images.len()
        )));
    }
    if top == 0 && disk.disk.read_only() {
        return Err(Error::said(
            ErrorKind::ReadOnly,
            "the disk is read-only: its own image is not committed",
        ));
    }
    let begun = site.graph.begin_commit(change, disk, (top, base), None, |mirror| mirror).await;
    let task = begun.map_err(|error| match error {
        CommitError::Exchange(error) => not_begun(&error),
        CommitError::Grow(error) => error.into(),
        error => invalid(error.to_string()),
    })?;
    Ok(Started { kind: "commit", work: Work::Task(task), speed_bytes: commit.speed_bytes, target: None })
}

pub(super) async fn stream(
    site: &Site,
    change: &Change<'_>,
    disk: &Arc<DiskNode>,
    stream: &Stream,
) -> Result<Started, Error> {
    let images = images(site, disk)?;
    let own = images.first().filter(|image| image.downcast_ref::<Qcow2>().is_some());
    let own = own.ok_or_else(|| {
        Error::said(ErrorKind::Unsupported, "the disk's own image is no qcow2 image: it has nothing below it")
    })?;
    if disk.disk.read_only() {
        return Err(Error::said(ErrorKind::ReadOnly, "the disk is read-only"));
    }
    let layers = match stream.base {
        None => None,
        Some(0) => return Err(invalid("the base is the disk's own image; it must be below that".to_owned())),
        Some(at) if at < images.len() => Some(u32::try_from(at).unwrap_or(u32::MAX)),
        Some(at) => return Err(invalid(format!("the base is image {at} of a chain of {}", images.len()))),
    };
    let begun = site.graph.begin_stream(change, disk, Arc::clone(own), layers, None).await;
    let task = begun.map_err(|error| not_begun(&error))?;
    Ok(Started { kind: "stream", work: Work::Task(task), speed_bytes: stream.speed_bytes, target: None })
}

pub(super) async fn mirror(
    site: &Site,
    change: &Change<'_>,
    disk: &Arc<DiskNode>,
    target: &Target,
    mirror: &Mirror,
) -> Result<Started, Error> {
    let what = what_of(mirror.copied);
    let node = open_target(site, change, disk, target, what).await?;
    let begun = async {
        let over = Over::of(what, &*disk.disk.top_image(), &*node.disk.top_image());
        if over != Over::Own && node.disk.image().is_none() {
            return Err(invalid("the target is raw and holds all of a disk: copy everything".to_owned()));
        }
        let block = Arc::clone(&node.disk) as Arc<dyn Block>;
        let unit = tracking_unit(&*block);
        let tracked = Tracked::new("mirror_top", disk.disk.root(), block, unit, mirror.synchronous);
        let put = site.graph.put_tracked_over(change, disk, &tracked, what, async |_| Ok(())).await;
        let job = put.map_err(|error| not_begun(&error))?;
        Ok(Task::Mirror(MirrorJob {
            mirror: job,
            pivot: Pivot::Target { name: node.name(), over, replaces: None },
        }))
    };
    let begun = begun.await;
    finish(site, change, node, "mirror", begun, mirror.speed_bytes).await
}

pub(super) async fn backup(
    site: &Site,
    change: &Change<'_>,
    disk: &Arc<DiskNode>,
    target: &Target,
    backup: &Backup,
) -> Result<Started, Error> {
    let what = what_of(backup.copied);
    let node = open_target(site, change, disk, target, what).await?;
    let begun = async {
        let block = Arc::clone(&node.disk) as Arc<dyn Block>;
        let unit = tracking_unit(&*block);
        let filter = BeforeWrite::new(disk.disk.root(), block, unit, None, false);
        if backup.break_writes {
            filter.break_writes();
        }
        let over = Arc::clone(&filter);
        let mark = async || filter.mark(what).await;
        let put = site.graph.put_filter_over(change, disk, Box::new(|_| over), mark).await;
        put.map_err(|error| not_begun(&error))?;
        Ok(Task::Backup(job::Backup { filter, what, pace: BackupPace::default() }))
    };
    let begun = begun.await;
    finish(site, change, node, "backup", begun, backup.speed_bytes).await
}

/// The job that merges layers of a lineage.
#[cfg(feature = "checkpoints")]
pub(crate) fn merge_of(merge: ::checkpoints::LayerMerge, speed_bytes: u64) -> Started {
    Started { kind: "forget", work: Work::Merge(merge), speed_bytes, target: None }
}

/// The job that uploads a checkpoint.
#[cfg(all(feature = "checkpoints", feature = "s3"))]
pub(crate) fn publish_of(publication: ::checkpoints::Publication, speed_bytes: u64) -> Started {
    Started { kind: "publish", work: Work::Publish(Box::new(publication)), speed_bytes, target: None }
}

/// The job that uploads a disk at work. Its filter is over the disk.
#[cfg(all(feature = "checkpoints", feature = "s3"))]
pub(crate) fn push_of(push: ::checkpoints::LivePush, speed_bytes: u64) -> Started {
    Started { kind: "push", work: Work::Push(Box::new(push)), speed_bytes, target: None }
}

/// A job with a target, which is closed if the job did not begin.
async fn finish(
    site: &Site,
    change: &Change<'_>,
    node: Arc<DiskNode>,
    kind: &'static str,
    begun: Result<Task, Error>,
    speed_bytes: u64,
) -> Result<Started, Error> {
    let name = node.name();
    // A node goes when no caller has it.
    drop(node);
    match begun {
        Ok(task) => Ok(Started { kind, work: Work::Task(task), speed_bytes, target: Some(name) }),
        Err(error) => {
            close_target(site, change, &name).await;
            Err(error)
        }
    }
}

/// Closes the target of a job that has ended or did not begin.
async fn close_target(site: &Site, change: &Change<'_>, name: &str) {
    match site.graph.remove(change, name).await {
        Ok(removed) => {
            if let Some(error) = removed.not_written {
                tracing::warn!(%error, "the target of a job could not be closed in order");
            }
        }
        Err(error) => tracing::warn!(%error, "the target of a job stays open"),
    }
}

/// Opens a target in the disk's graph.
async fn open_target(
    site: &Site,
    change: &Change<'_>,
    disk: &DiskNode,
    target: &Target,
    what: What,
) -> Result<Arc<DiskNode>, Error> {
    let opened = graph::open(&target.options, site.graph.rules()).await?;
    let (found, needed) = (opened.size(), disk.disk.size());
    if found != needed || opened.read_only() {
        let why = match opened.read_only() {
            true => Error::said(ErrorKind::ReadOnly, "the target is read-only"),
            false => invalid(format!("the target has {found} bytes, the disk {needed}")),
        };
        // Nothing was written.
        let _ = opened.close().await;
        return Err(why);
    }
    if let Some(image) = opened.image().filter(|_| what != What::Everything) {
        image.await_backing();
    }
    let opened = Arc::new(opened);
    opened.start_upkeep();
    let path = target.options.filename.clone();
    let new = DiskNode::new(site.name(), path, target.tree.clone(), opened);
    let added = site.graph.add_disk(change, new).and_then(|node| node.disk().cloned());
    added.map_err(|error| invalid(error.to_string()))
}

/// The images of the chain, the disk's own first.
fn images(site: &Site, disk: &DiskNode) -> Result<Vec<Arc<dyn Block>>, Error> {
    let layers = site.graph.layers(&disk.name()).map_err(|error| invalid(error.to_string()))?;
    Ok(layers.into_iter().filter(|layer| !layer.is_filter).map(|layer| layer.block).collect())
}

fn what_of(copied: Copied) -> What {
    match copied {
        Copied::Everything => What::Everything,
        Copied::Top => What::Layers(1),
        Copied::Nothing => What::Nothing,
    }
}

fn invalid(text: String) -> Error {
    Error::said(ErrorKind::Invalid, text)
}

fn not_begun(error: &ReplaceError) -> Error {
    Error::of_steps("the job is not begun", error)
}

/// What a job is carried out on.
type Host<'a> = JobHost<'a, Owner<'a>>;

/// What a job has beside its disk.
struct Owner<'a> {
    /// Its target is the disk's now.
    has_switched: &'a Cell<bool>,
}

impl JobOwner for Owner<'_> {
    fn leave_target(&self) {
        self.has_switched.set(true);
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
    let terms = Terms { id: begun.kind.to_owned(), ..Terms::default() };
    let running = Running::begin(&state, begun.kind, Life::new(terms, begun.speed_bytes, |_| ()));
    let job = Arc::clone(&state);
    reactor::spawn(async move {
        let result = live(&site, &running.life, &disk, begun).await;
        drop(disk);
        let info = running.leave(&job);
        site.release(&job);
        // A caller that waits for the end may close the disk.
        drop(site);
        job.end(result, info);
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
