//! Checkpoints in object stores: published while the disk is in use, and disks that begin as one.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use ::checkpoints::{Publication, PublishError, PushTarget, Sealed, Source, Target, place_of};
use graph::Change as GraphChange;
use graph::DiskNode;
use graph::probe::Format;
use remote::chunked::{ChunkSize, Compression};

use super::{invalid, named};
use crate::create::{NewImage, apart, make_whole};
use crate::disk::Disk;
use crate::error::Error;
use crate::jobs::{Job, Site, publish_of, push_of};
use crate::pending::Pending;

/// Where a checkpoint is published, and how. What is not said is as in the image that is there.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Publish {
    /// The image: `s3://BUCKET/FOLDER/NAME`. Where the store is, and the credentials for it, AWS's environment variables and files say.
    pub target: String,
    /// An image of the same lineage and folder of which unchanged chunks are taken, or `none`; else one is looked for.
    pub parent: Option<String>,
    /// Bytes of a chunk: 512 KiB, 1, 2 or 4 MiB.
    pub chunk_bytes: Option<u64>,
    /// Whether chunks are compressed.
    pub compress: Option<bool>,
    /// The secret that holds the key of the image; without it is not encrypted.
    pub key_secret: Option<String>,
    /// Also a store is written to that cannot detect another upload to the same name at the same time.
    pub force: bool,
    /// Bytes of the disk that are read a second at most; 0 is no limit.
    pub speed_bytes: u64,
}

/// Where a disk is pushed, and how. What is not said is as in the image that is there.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Push {
    /// The image: `s3://BUCKET/FOLDER/NAME`. Where the store is, and the credentials for it, AWS's environment variables and files say.
    pub target: String,
    /// A bitmap of the disk that has recorded all changes since the disk was pushed to the target: only what it has as changed when the job begins is read, and the
    /// rest taken from the image that is there. It is not cleared.
    pub bitmap: Option<String>,
    /// Bytes of a chunk: 512 KiB, 1, 2 or 4 MiB.
    pub chunk_bytes: Option<u64>,
    /// Whether chunks are compressed.
    pub compress: Option<bool>,
    /// The secret that holds the key of the image; without it is not encrypted.
    pub key_secret: Option<String>,
    /// Also a store is written to that cannot detect another upload to the same name at the same time.
    pub force: bool,
    /// Bytes of the disk that are read a second at most, but for what is overwritten meanwhile; 0 is no limit.
    pub speed_bytes: u64,
}

/// A checkpoint on its way to a store.
#[derive(Clone, Debug)]
pub struct Published {
    /// The id of its layer.
    pub id: String,
    /// The name in the store that stays this checkpoint's, once the job has ended.
    pub image: String,
    /// Uploads.
    pub job: Job,
}

/// A published checkpoint that a disk is to begin as.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Restore {
    /// Its name: `s3://BUCKET/FOLDER/NAME`, or `http://HOST/FOLDER/NAME` where its folder is on a web server.
    pub source: String,
    /// One of the checkpoints below it that were published to the name, by its name or id; the uppermost without.
    pub at: Option<String>,
    /// The secret that holds the key of an encrypted image.
    pub key_secret: Option<String>,
}

/// A disk that begins as a published checkpoint.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Restored {
    /// The name in the store that stays this checkpoint's.
    pub image: String,
    /// The backing file of the disk, which [`OpenOptions::allow_name`](crate::OpenOptions::allow_name) allows.
    pub backing: String,
    /// Size of the disk.
    pub size_bytes: u64,
}

impl Disk {
    /// Begins to upload a checkpoint to an object store, while the disk is in use: a sealed layer is not written. Only chunks that are not there are sent; of the parent
    /// everything is taken that the layers of only one of the two say nothing about. `NAME` is the checkpoint when the job has ended, and
    /// [`Published::image`] is it for ever. The job is no job of the disk's layers: checkpoints are taken meanwhile, and other jobs run.
    ///
    /// # Errors
    /// [`ErrorKind::NotFound`](crate::ErrorKind::NotFound) where there is no such checkpoint; [`ErrorKind::Invalid`](crate::ErrorKind::Invalid) where the
    /// target is none. What the store says is the job's.
    ///
    /// # Crash
    /// What was at the store is there; the next call finds the chunks that were sent.
    pub fn publish(&self, checkpoint: impl Into<String>, publish: Publish) -> Pending<Published> {
        let checkpoint = checkpoint.into();
        let shared = Arc::clone(self.shared());
        self.run(async move |inside| {
            let Publish { target, parent, chunk_bytes, compress, key_secret, force, speed_bytes } = publish;
            let target = target_of(target, chunk_bytes, compress, key_secret, force)?;
            let mut found = None;
            let begin = async |site: &Site, _: &GraphChange<'_>, disk: &Arc<DiskNode>| {
                let place = place_of(&site.graph, disk).map_err(|error| site.refused(&error))?;
                let wanted = named(&checkpoint)?;
                let sealed = reactor::blocking(move || {
                    let sealed = Sealed::of_disk(&place, &wanted)?;
                    sealed.chain()?;
                    Ok(sealed)
                });
                let sealed = sealed.await.map_err(|error: lineage::Error| site.refused(&error.into()))?;
                let at = target.place("publish to").await.map_err(|error| site.not_published(&error))?;
                let id = sealed.id.to_string();
                found = Some((at.of_checkpoint(&id).image(), id));
                let publication = Publication { sealed, target, parent, is_dry: false };
                Ok(publish_of(publication, speed_bytes))
            };
            let job = Self::begin_beside(shared, &inside, begin).await?;
            let (image, id) = found.ok_or_else(Error::loop_ended)?;
            Ok(Published { id, image, job })
        })
    }

    /// Begins to upload the disk as it is when this completes, while it is used: what is overwritten before it is read is read first, and kept in memory, 32 MiB
    /// at most, until it is sent. Beyond that writes wait for the store, for 20 s at most; then they are done, and the job fails. The image is looked up in the store
    /// before the job begins. Ends by itself.
    ///
    /// # Errors
    /// [`ErrorKind::InUse`](crate::ErrorKind::InUse) while the disk has a job; [`ErrorKind::NotFound`](crate::ErrorKind::NotFound) where it has no such bitmap;
    /// [`ErrorKind::Invalid`](crate::ErrorKind::Invalid) where the target is none; when the store does not answer.
    ///
    /// # Crash
    /// What was at the store is there, and nothing is left on this machine; the next call finds the chunks that were sent.
    pub fn push(&self, push: Push) -> Pending<Job> {
        let shared = Arc::clone(self.shared());
        self.run(async move |inside| {
            let Push { target, bitmap, chunk_bytes, compress, key_secret, force, speed_bytes } = push;
            let target = target_of(target, chunk_bytes, compress, key_secret, force)?;
            let site = shared.site()?;
            let target = PushTarget::find(target).await;
            let target = target.map_err(|error| site.not_published(&error))?;
            drop(site);
            let begin = async |site: &Site, change: &GraphChange<'_>, disk: &Arc<DiskNode>| {
                let push = target.begin(&site.graph, change, disk, bitmap.as_deref()).await;
                Ok(push_of(push.map_err(|error| site.not_published(&error))?, speed_bytes))
            };
            Self::begin_inside(Arc::clone(&shared), &inside, begin).await
        })
    }
}

/// Makes a disk at `path`, where nothing is, that begins as a published checkpoint: a qcow2 overlay whose backing file is the image in the store. It is ready at once;
/// what is read is fetched, each chunk checked against its name. Opened with [`OpenOptions::allow_name`](crate::OpenOptions::allow_name) of
/// [`Restored::backing`], [`Disk::stream`] fetches the rest in the background, as fast as it is allowed, and goes on where one that was ended has stopped; the disk is backed by
/// nothing then. Starts a thread for as long as it takes.
///
/// # Errors
/// [`ErrorKind::Exists`](crate::ErrorKind::Exists) where something is at the path; [`ErrorKind::NotFound`](crate::ErrorKind::NotFound) where there is no such
/// checkpoint; when the store does not answer.
///
/// # Crash
/// The disk is there, whole, or not.
pub fn restore(path: impl Into<PathBuf>, restore: Restore) -> Pending<Restored> {
    let path = path.into();
    apart(async move || restored(&path, &restore).await)
}

async fn restored(path: &Path, restore: &Restore) -> Result<Restored, Error> {
    let Restore { source, at, key_secret } = restore;
    let found = Source::find(source, at.as_deref(), key_secret.as_deref()).await;
    let found = found.map_err(|error: PublishError| Error::of_publishing(path, &error))?;
    let (backing, size_bytes) = (found.backing(), found.size);
    make_whole(path, &NewImage::overlay(size_bytes, backing.clone(), Format::Raw)).await?;
    Ok(Restored { image: found.name, backing, size_bytes })
}

/// Where an upload goes, and how its objects are made.
fn target_of(
    image: String,
    chunk_bytes: Option<u64>,
    compress: Option<bool>,
    key_secret: Option<String>,
    force: bool,
) -> Result<Target, Error> {
    let chunk_size = chunk_bytes.map(ChunkSize::new).transpose();
    let chunk_size = chunk_size.map_err(|error| invalid(error.to_string()))?;
    let compression = compress.map(|is_on| if is_on { Compression::Zstd } else { Compression::None });
    Ok(Target { image, chunk_size, compression, key_secret, force })
}
