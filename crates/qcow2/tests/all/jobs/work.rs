//! What a job does on the simulated machine: the same work and the same last steps, in the same order, as in the server
//! (`serve/jobs/work.rs`); the exchange of layers is what `graph::Graph::replace` does.

use std::cell::Cell;
use std::sync::Arc;

use block::Block;
use job::{
    Backup, BackupPace, BeforeWrite, Ended, Error, Guarded, Life, Merge, Mirror, Stream, Tracked, What,
};
use qcow2::{CreateOptions, Qcow2, create};

use super::disk::Parts;
use super::images::{BASE, CLUSTER, COPY, FILES, OVERLAY, SIZE, TOP};
use super::judge::read_all;
use super::note::{Note, hash};
use super::target::{Kind, open_alone, options};

/// The work of a job.
pub enum Work {
    Snapshot,
    /// The image with this place in the chain takes over what lies below it; afterwards that is the layer with the second place, if any.
    Stream(Stream, usize, Option<usize>),
    Merge(Merge),
    Mirror(Mirror),
    /// With the hash of what is copied.
    Backup(Backup, Cell<u64>),
}

/// Why a job ended early.
pub enum Failed {
    /// A request failed.
    Told,
    /// No request did: it was given up, or a guest's write was.
    GivenUp,
}

impl From<String> for Failed {
    fn from(_: String) -> Self {
        Self::Told
    }
}

impl Failed {
    pub fn of(error: Error) -> Self {
        match error {
            Error::Cancelled | Error::Dropped { .. } => Self::GivenUp,
            Error::Request { .. } | Error::TooSmall { .. } => Self::Told,
        }
    }
}

fn told(error: impl std::fmt::Display) -> String {
    error.to_string()
}

impl Work {
    /// Of a disk that nobody uses yet; with what guests are to write through.
    pub async fn of(parts: &Parts) -> Result<(Self, Arc<dyn Block>), String> {
        let block = |at: usize| Arc::new(parts.layers[at].1.clone()) as Arc<dyn Block>;
        let (top, lowest) = (block(0), parts.layers.len() - 1);
        let tracked = |name, target, is_synchronous| {
            Tracked::new(name, Arc::clone(&top), target, CLUSTER, is_synchronous)
        };
        let copy = || parts.copy.clone().map(|copy| Arc::new(copy) as Arc<dyn Block>).ok_or("no copy");
        Ok(match parts.kind {
            Kind::Snapshot => (Self::Snapshot, top),
            Kind::Stream | Kind::StreamToBase => {
                let base = (parts.kind == Kind::StreamToBase).then_some(2);
                let guarded = Guarded::new(Arc::clone(&top));
                let layers = base.unwrap_or(lowest + 1) as u32;
                let stream = Stream::new(Arc::clone(&guarded), base.map(block), layers);
                (Self::Stream(stream, 0, base), guarded)
            }
            Kind::StreamMiddle => {
                (Self::Stream(Stream::new(Guarded::new(block(1)), None, lowest as u32), 1, None), top)
            }
            Kind::CommitMiddle => (Self::Merge(Merge { top: block(1), layers: 1, base: block(2) }), top),
            Kind::CommitTop => {
                let tracked = tracked("commit_top", block(lowest), false);
                let mirror = Mirror::new(Arc::clone(&tracked));
                mirror.mark(What::Layers(lowest as u32)).await.map_err(told)?;
                (Self::Mirror(mirror), tracked)
            }
            Kind::Mirror | Kind::MirrorBlocking => {
                let tracked = tracked("mirror_top", copy()?, parts.kind == Kind::MirrorBlocking);
                let mirror = Mirror::new(Arc::clone(&tracked));
                mirror.mark(What::Everything).await.map_err(told)?;
                (Self::Mirror(mirror), tracked)
            }
            Kind::Backup => {
                let filter = BeforeWrite::new(Arc::clone(&top), copy()?, CLUSTER, None, false);
                filter.mark(What::Everything).await.map_err(told)?;
                let hash = Cell::new(hash(&read_all(&*top).await?));
                let backup = Backup {
                    filter: Arc::clone(&filter),
                    what: What::Everything,
                    pace: BackupPace::default(),
                };
                (Self::Backup(backup, hash), filter)
            }
        })
    }

    pub async fn run(&self, life: &Life) -> Result<Ended, Error> {
        match self {
            Self::Snapshot => {}
            Self::Stream(stream, ..) => stream.run(life).await?,
            Self::Merge(merge) => merge.run(life).await?,
            Self::Mirror(mirror) => return mirror.run(life).await,
            Self::Backup(backup, _) => backup.run(life).await?,
        }
        Ok(Ended::Complete)
    }

    /// The last step.
    pub async fn finish(&self, parts: &Parts, ended: Ended) -> Result<Finished, Failed> {
        let top = parts.layers[0].0;
        let note = |stands_on, whole| Note { stands_on, whole };
        match self {
            Self::Snapshot => Ok(put_overlay(parts).await?),
            Self::Stream(_, of, below) => {
                let name = below.map(|below| FILES[parts.layers[below].0].to_owned());
                put_below(parts, *of, name, *below).await?;
                Ok(Finished::same(parts, note(top, None)))
            }
            Self::Merge(_) => {
                put_below(parts, 0, Some(FILES[BASE].to_owned()), Some(2)).await?;
                Ok(Finished::same(parts, note(top, None)))
            }
            Self::Mirror(mirror) => {
                match ended {
                    Ended::Complete => mirror.keep_durable().await.map_err(Failed::of)?,
                    Ended::Left => {
                        mirror.flush().await.map_err(Failed::of)?;
                        parts.flush().await?;
                    }
                }
                let drained = parts.drain().await;
                mirror.catch_up().await.map_err(Failed::of)?;
                let source = read_all(&parts.layers[0].1).await?;
                let finished = match (ended, parts.kind) {
                    (Ended::Left, Kind::CommitTop) => Finished::same(parts, note(TOP, None)),
                    (Ended::Left, _) => Finished::same(parts, note(TOP, Some(hash(&source)))),
                    (Ended::Complete, Kind::CommitTop) => {
                        let base = parts.layers[parts.layers.len() - 1].1.clone();
                        Finished { note: note(BASE, None), root: Arc::new(base) }
                    }
                    (Ended::Complete, _) => {
                        let copy = parts.copy.clone().ok_or("no copy").map_err(told)?;
                        Finished { note: note(COPY, None), root: Arc::new(copy) }
                    }
                };
                let pivoted = read_all(&*finished.root).await?;
                assert!(*pivoted == *source, "the disk reads otherwise after the switch");
                finished.put_in_force(parts, drained).await?;
                Ok(finished)
            }
            Self::Backup(_, hash) => Ok(Finished::same(parts, note(top, Some(hash.get())))),
        }
    }
}

/// What the disk stands on when a job has ended.
pub struct Finished {
    pub note: Note,
    pub root: Arc<dyn Block>,
}

impl Finished {
    /// Still the uppermost image, without a filter.
    fn same(parts: &Parts, note: Note) -> Self {
        Self { note, root: Arc::new(parts.layers[0].1.clone()) }
    }

    /// The platform notes it, and requests go on. Without the note nobody knows where acknowledged writes are: then none is taken.
    pub async fn put_in_force(&self, parts: &Parts, drained: storage::RangeGuard<'_>) -> Result<(), String> {
        let noted = parts.note(self.note).await;
        match &noted {
            Ok(()) => *parts.root.borrow_mut() = Arc::clone(&self.root),
            Err(_) => parts.is_dead.set(true),
        }
        drop(drained);
        noted
    }
}

/// A new image over the disk.
async fn put_overlay(parts: &Parts) -> Result<Finished, String> {
    let file = parts.world.open(OVERLAY);
    let made = CreateOptions {
        size: SIZE,
        cluster_size: CLUSTER,
        backing_file: Some(FILES[TOP].into()),
        backing_format: Some("qcow2".into()),
        ..CreateOptions::default()
    };
    create(&file, None, &made).await.map_err(told)?;
    let overlay = open_alone(&parts.world, OVERLAY, options(parts.variant), Arc::clone(&parts.host)).await?;
    parts.flush().await?;
    let drained = parts.drain().await;
    let below: Arc<dyn Block> = Arc::new(parts.layers[0].1.clone());
    let set = overlay.hold_still().await.and_then(|still| still.set_backing(Some(Arc::clone(&below))));
    set.map_err(told)?;
    *parts.overlay.borrow_mut() = Some(overlay.clone());
    *parts.unflushed.borrow_mut() = Some(below);
    let finished = Finished { note: Note { stands_on: OVERLAY, whole: None }, root: Arc::new(overlay) };
    finished.put_in_force(parts, drained).await?;
    Ok(finished)
}

/// The header of the image at this place names another backing file, and then that is below it.
async fn put_below(
    parts: &Parts,
    of: usize,
    name: Option<String>,
    below: Option<usize>,
) -> Result<(), String> {
    let image = &parts.layers[of].1;
    let format = name.as_ref().map(|_| "qcow2".to_owned());
    image.set_backing_name(name, format).await.map_err(told)?;
    parts.flush().await?;
    let _drained = parts.drain().await;
    let images: Vec<&Qcow2> = parts.layers[..=of].iter().map(|(_, image)| image).collect();
    let mut still = Vec::new();
    for image in &images {
        still.push(image.hold_still().await.map_err(told)?);
    }
    let mut below = below.map(|at| Arc::new(parts.layers[at].1.clone()) as Arc<dyn Block>);
    for (still, image) in still.iter().zip(&images).rev() {
        still.set_backing(below).map_err(told)?;
        below = Some(Arc::new((*image).clone()));
    }
    Ok(())
}
