//! A job from its beginning to its end, on the disk's loop.

use std::cell::Cell;
use std::sync::Arc;

use graph::{Change, DiskNode, JobHost, JobOwner};
use job::{Life, Terms};

use super::begin::{Started, Work, close_target, of_job};
use super::site::{Site, Uses};
use super::state::{Running, State};
use crate::error::{Error, ErrorKind};
use crate::in_flight::{Inside, Shared};

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
