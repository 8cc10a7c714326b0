//! The push of a disk that clients write to: of what it read as when the push began.

use std::sync::Arc;

use block::Block;
use graph::{Change, Disk, DiskNode, Graph};
use job::{Dirty, Host, take_filter_off};
use qcow2::bitmap::Bitmap;
use remote::chunked::{Place, Published};

use super::deltas;
use super::error::PublishError;
use super::follow::Follow;
use super::moment::Moment;
use super::session::{Sent, Session, Target};

const DOING: &str = "push to";

/// The ranges that a bitmap of a disk has as changed since the disk was pushed.
///
/// # Errors
/// When the disk has no such bitmap, or one that missed changes; when it cannot be read.
pub async fn changed(disk: &Disk, bitmap: &str) -> Result<Dirty, PublishError> {
    let bitmap = bitmap_of(disk, bitmap)?;
    let failed = |source| PublishError::Read { disk: disk.name().to_owned(), source };
    marks(disk, &bitmap).await.map_err(failed)
}

fn bitmap_of(disk: &Disk, name: &str) -> Result<Arc<Bitmap>, PublishError> {
    let bitmaps = disk.bitmaps();
    if let Some(bitmap) = bitmaps.iter().find(|bitmap| bitmap.name() == name) {
        return Ok(Arc::clone(bitmap));
    }
    if disk.inconsistent_bitmaps().iter().any(|entry| entry.name == *name) {
        return Err(PublishError::InconsistentBitmap { bitmap: name.to_owned() });
    }
    let known: Vec<_> = bitmaps.iter().map(|bitmap| bitmap.name()).collect();
    let known = if known.is_empty() { "none".to_owned() } else { known.join(", ") };
    Err(PublishError::NoBitmap { bitmap: name.to_owned(), known })
}

async fn marks(disk: &Disk, bitmap: &Bitmap) -> Result<Dirty, block::Error> {
    let marks = deltas::marks(disk.size());
    bitmap.dirty_ranges().await?.into_iter().for_each(|range| marks.mark(range));
    Ok(marks)
}

/// Where a disk at work is to be pushed, and the image that is there: its chunks have the size that those of the new one have.
pub struct PushTarget {
    target: Target,
    place: Arc<Place>,
    published: Option<Published>,
}

impl PushTarget {
    /// Looks the image up in the store.
    ///
    /// # Errors
    /// As [`Target::place`]; when the store does not answer, or the object is no manifest.
    pub async fn find(target: Target) -> Result<Self, PublishError> {
        let place = Arc::new(target.place(DOING).await?);
        let found = place.find().await;
        let published = found.map_err(|source| PublishError::Store {
            doing: DOING,
            image: target.image.clone(),
            source: source.into(),
        })?;
        Ok(Self { target, place, published })
    }

    /// The image, as others name it.
    pub fn image(&self) -> String {
        self.place.image()
    }

    /// Begins: what the disk reads as at this moment is pushed by [`LivePush::run`]. With `bitmap` only what that bitmap has as changed at this moment is
    /// read, and the rest taken from the image that is there. [`LivePush::end`] follows, whatever becomes of it.
    ///
    /// # Errors
    /// When the bitmap is not there or missed changes, the disk is too large, or the filter cannot be put over the disk. Then nothing has changed.
    pub async fn begin(
        self,
        graph: &Graph,
        change: &Change<'_>,
        node: &DiskNode,
        bitmap: Option<&str>,
    ) -> Result<LivePush, PublishError> {
        let Self { target, place, published } = self;
        let disk = &*node.disk;
        let bitmap = bitmap.map(|bitmap| bitmap_of(disk, bitmap)).transpose()?;
        let old = published.as_ref().map(|old| &old.manifest);
        let manifest = target.manifest(DOING, &place, disk.size(), old)?;
        let failed = |source| PublishError::Read { disk: disk.name().to_owned(), source };
        let made = Moment::new(disk.root(), place.image(), manifest.chunk_size().bytes());
        let (moment, filter) = made.map_err(failed)?;
        let old = old.filter(|old| old.has_objects_for(&manifest));
        let mut changed = None;
        let last_look = async || {
            let Some(bitmap) = bitmap else { return Ok(()) };
            let marks = marks(disk, &bitmap).await?;
            if let Some(old) = old {
                moment.give_up_unchanged(&manifest, old, &marks).await?;
            }
            changed = Some(marks);
            Ok(())
        };
        graph.put_filter_over(change, node, Box::new(|_| filter), last_look).await?;
        Ok(LivePush { target, place, published, moment, changed })
    }
}

/// A push of a disk at work. Its filter is over the disk.
pub struct LivePush {
    target: Target,
    place: Arc<Place>,
    published: Option<Published>,
    moment: Moment,
    changed: Option<Dirty>,
}

impl LivePush {
    /// Uploads. Returns what was sent, and whether the image changed; the former image stays until the last step. Clients that overwrite what is not
    /// read yet wait until it is, and for room in memory if the store takes less than they overwrite: 20 s at most, then the push fails. Memory: 64 MiB at
    /// most, and 48 bytes for each chunk that was overwritten and whose table is not made yet.
    ///
    /// # Errors
    /// Of the disk and the store; when a chunk could not be saved before it was overwritten; when it is ended. Chunks that were sent are found by the next one.
    ///
    /// # Crash
    /// What was at the store is there, and nothing is left of the push but chunks there.
    pub async fn run<F: Follow>(&self, follow: &F) -> Result<(Sent, bool), PublishError> {
        let session = Session::at(DOING, &self.target, Arc::clone(&self.place), follow);
        let pushed = session.until_forced(session.push_moment(
            &self.moment,
            self.changed.as_ref(),
            self.published.as_ref(),
        ));
        let pushed = pushed.await;
        session.end().await;
        pushed
    }

    /// Takes the filter off the disk, after success and failure alike.
    pub async fn end<H: Host>(&self, host: &H) {
        // Requests that wait for room go on: the filter is taken off when they have ended.
        self.moment.saved.end();
        let change = host.change().await;
        take_filter_off(host, &change, async || ()).await;
    }
}
