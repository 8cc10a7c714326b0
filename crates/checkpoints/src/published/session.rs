//! What pushing and publishing share: where an image goes, its upload while it is followed, and the moment at which it counts.

use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use block::Block;
use catalog::{image_key, object_store};
use futures_util::future::{Either, select};
use graph::Disk;
use job::Dirty;
use remote::chunked::{
    ChunkSize, Compression, Error, Manifest, Place, Published, WithoutConditions, Writing, without_prefix,
};
use serde::{Deserialize, Serialize};

use super::error::PublishError;
use super::follow::Follow;
use super::moment::Moment;
use super::upload::{Figures, Upload, UploadError};

/// Often enough for a person who pressed Ctrl-C.
const LOOKS: Duration = Duration::from_millis(100);
/// A store that does not answer has been waited for before.
const REPORTED_WITHIN: Duration = Duration::from_secs(5);

/// Where an image goes, and how its objects are made.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Target {
    /// The image in the store: `s3://BUCKET/FOLDER/NAME`.
    pub image: String,
    /// Bytes of a chunk; `None`: as the image that is there, or 1 MiB.
    pub chunk_size: Option<ChunkSize>,
    /// How chunks are compressed; `None`: as the image that is there, or zstd.
    pub compression: Option<Compression>,
    /// The secret that holds the key of the image; `None`: it is not encrypted.
    pub key_secret: Option<String>,
    /// Also a store is written to that cannot detect another upload to the same name at the same time.
    pub force: bool,
}

impl Target {
    /// Where that is. Asks no store.
    ///
    /// # Errors
    /// When the name is none in a store, or that of a checkpoint, which stays what it is; when its credentials or the key cannot be read.
    pub async fn place(&self, doing: &'static str) -> Result<Place, PublishError> {
        let image = || self.image.clone();
        let settings = |source| PublishError::Settings { doing, image: image(), source };
        let key = self.key_secret.as_deref().map(image_key).transpose().map_err(settings)?;
        match object_store(without_prefix(&self.image)).await {
            Some(Ok((store, object))) => {
                let place = Place::in_bucket(Arc::new(store), &object).with_key(key);
                // Disks that were restored from it are backed by it.
                match place.checkpoint() {
                    Some(_) => Err(PublishError::OfCheckpoint { doing, image: image() }),
                    None => Ok(place),
                }
            }
            Some(Err(source)) => Err(settings(source)),
            None => {
                let image = graph::drive::shown(self.image.as_ref());
                Err(PublishError::NoStore { doing, image })
            }
        }
    }

    /// The manifest of a disk of zeroes at `place`, with chunks as in this target, else as in `like`.
    ///
    /// # Errors
    /// When the disk is too large.
    pub(super) fn manifest(
        &self,
        doing: &'static str,
        place: &Place,
        size: u64,
        like: Option<&Manifest>,
    ) -> Result<Manifest, PublishError> {
        let chunk_size = self.chunk_size.or(like.map(Manifest::chunk_size)).unwrap_or_default();
        let compression = self.compression.or(like.map(Manifest::compression));
        let manifest = Manifest::of_zeroes(size, chunk_size, compression.unwrap_or(Compression::Zstd));
        let key_id = place.key().map(|key| key.id());
        let image = || self.image.clone();
        let manifest = manifest.map(|manifest| manifest.of_key(key_id));
        manifest.map_err(|source| PublishError::Manifest { doing, image: image(), source })
    }
}

/// An image on its way to a store.
pub struct Session<'a, F> {
    /// What is done, in messages: `push to`, `publish to`.
    doing: &'static str,
    /// Where it goes.
    target: &'a Target,
    /// Where that is.
    pub(super) place: Arc<Place>,
    /// Sees how far it is, and ends it.
    pub(super) follow: &'a F,
}

/// What was sent.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "kebab-case")]
pub struct Sent {
    /// Size of the disk.
    pub virtual_size: u64,
    /// Bytes of a chunk.
    pub chunk_size: u64,
    /// How chunks are compressed.
    pub compression: Compression,
    /// Chunks of the image that are no zeroes.
    pub chunks: u64,
    /// Those of them of which only what has changed was sent.
    #[serde(default)]
    pub deltas: u64,
    /// Objects that were made: chunks, delta objects, and tables of them.
    pub uploaded: u64,
    /// Their bytes, as they were sent.
    pub uploaded_bytes: u64,
    /// Bytes of the disk that were read.
    pub read_bytes: u64,
}

impl Sent {
    /// What these figures say of the disk of `manifest`.
    pub(super) fn of(manifest: &Manifest, figures: &Figures) -> Self {
        Self {
            virtual_size: manifest.size(),
            chunk_size: manifest.chunk_size().bytes(),
            compression: manifest.compression(),
            chunks: figures.chunks.get(),
            deltas: figures.deltas.get(),
            uploaded: figures.uploaded.get(),
            uploaded_bytes: figures.uploaded_bytes.get(),
            read_bytes: figures.read_bytes.get(),
        }
    }
}

impl<'a, F: Follow> Session<'a, F> {
    /// Asks no store yet. [`Session::end`] follows what is done in it, whatever became of that.
    ///
    /// # Errors
    /// As [`Target::place`].
    pub async fn begin(doing: &'static str, target: &'a Target, follow: &'a F) -> Result<Self, PublishError> {
        let place = Arc::new(target.place(doing).await?);
        Ok(Self::at(doing, target, place, follow))
    }

    /// As [`Session::begin`], where it is known already.
    pub(super) fn at(doing: &'static str, target: &'a Target, place: Arc<Place>, follow: &'a F) -> Self {
        Self { doing, target, place, follow }
    }

    /// Makes the image one of a disk, of which `changed` says what may differ from the image that is there; of all of it without. Says whether it is another one now.
    /// What was there stays until the last step.
    ///
    /// # Errors
    /// Of the disk and the store, and when it is ended. Chunks that were sent are found by the next one.
    pub async fn push(&self, disk: &Disk, changed: Option<&Dirty>) -> Result<(Sent, bool), PublishError> {
        let published = self.find().await?;
        self.push_over(published.as_ref(), (disk, None), changed).await
    }

    /// As [`Session::push`], of a disk that is written meanwhile; `old` is the image that is there.
    ///
    /// # Errors
    /// As there; when something could not be saved before it was overwritten.
    pub(super) async fn push_moment(
        &self,
        moment: &Moment,
        changed: Option<&Dirty>,
        old: Option<&Published>,
    ) -> Result<(Sent, bool), PublishError> {
        self.push_over(old, (&moment.view, Some(moment)), changed).await
    }

    async fn push_over(
        &self,
        old: Option<&Published>,
        (disk, moment): (&dyn Block, Option<&Moment>),
        changed: Option<&Dirty>,
    ) -> Result<(Sent, bool), PublishError> {
        let mut manifest = self.new_manifest(disk.size(), old.map(|old| &old.manifest))?;
        let figures = Figures::default();
        let upload = Upload {
            disk,
            moment,
            place: &self.place,
            old: old.filter(|old| old.manifest.has_objects_for(&manifest)),
            changed,
            figures: &figures,
            // The manifest that is there may be replaced on another condition.
            how: self.writing(&manifest, old.is_some()),
            follow: self.follow,
        };
        self.upload(&upload, &mut manifest).await?;
        let is_changed = old.is_none_or(|old| old.manifest != manifest);
        if is_changed {
            self.publish(&manifest, old).await?;
        }
        Ok((Sent::of(&manifest, &figures), is_changed))
    }

    /// That the store failed, or an image there.
    pub(super) fn failed(&self, source: Error) -> PublishError {
        PublishError::Store { doing: self.doing, image: self.target.image.clone(), source: source.into() }
    }

    /// That the checkpoints of the lineage cannot be looked at.
    pub(super) fn not_searched(&self, source: Error) -> PublishError {
        PublishError::Search { doing: self.doing, image: self.target.image.clone(), source: source.into() }
    }

    /// The image that is there.
    ///
    /// # Errors
    /// When the store does not answer, or the object is no manifest.
    pub(super) async fn find(&self) -> Result<Option<Published>, PublishError> {
        self.place.find().await.map_err(|error| self.failed(error))
    }

    /// The manifest of a disk of zeroes, with chunks as the target says, else as `like` has them.
    ///
    /// # Errors
    /// When the disk is too large.
    pub(super) fn new_manifest(&self, size: u64, like: Option<&Manifest>) -> Result<Manifest, PublishError> {
        self.target.manifest(self.doing, &self.place, size, like)
    }

    /// How objects of `manifest` are made. `is_tolerable`: that the manifest may be refused at the end by a store that knows no conditions for new objects.
    pub(super) fn writing(&self, manifest: &Manifest, is_tolerable: bool) -> Writing {
        Writing { compression: manifest.compression(), without: self.without_conditions(is_tolerable) }
    }

    fn without_conditions(&self, is_tolerable: bool) -> WithoutConditions {
        match self.target.force || is_tolerable {
            true => WithoutConditions::Write,
            false => WithoutConditions::Refuse,
        }
    }

    /// Uploads to the end, or until it is ended.
    ///
    /// # Errors
    /// Of the disk and the store; when it was ended.
    pub(super) async fn upload(
        &self,
        upload: &Upload<'_, F>,
        manifest: &mut Manifest,
    ) -> Result<(), PublishError> {
        let (figures, total) = (upload.figures, manifest.size());
        let uploading = pin!(upload.run(manifest));
        let ended = pin!(async {
            while self.follow.look(figures.done_bytes.get(), total).is_continue() {
                reactor::sleep(LOOKS).await;
            }
        });
        match select(uploading, ended).await {
            Either::Left((uploaded, _)) => uploaded.map_err(|error| self.of_upload(upload, error))?,
            Either::Right(_) => return Err(PublishError::Cancelled),
        }
        match self.follow.look(total, total).is_continue() {
            true => Ok(()),
            false => Err(PublishError::Cancelled),
        }
    }

    /// What a failure of an upload is.
    pub(super) fn of_upload(&self, upload: &Upload<'_, F>, error: UploadError) -> PublishError {
        match error {
            UploadError::Disk(source) => PublishError::Read { disk: upload.disk.name().to_owned(), source },
            // Of the image of which chunks are taken: nothing else is read.
            UploadError::Image(error) if upload.old.is_some() && error.is_of_lost_object() => {
                PublishError::Lost {
                    doing: self.doing,
                    image: self.target.image.clone(),
                    source: error.into(),
                }
            }
            UploadError::Image(error) => self.failed(error),
            UploadError::Ended => PublishError::Cancelled,
        }
    }

    /// Writes `manifest`, which replaces `old` if that has not changed since it was read.
    ///
    /// # Errors
    /// When the store does not take it, or another one is there.
    pub(super) async fn publish(
        &self,
        manifest: &Manifest,
        old: Option<&Published>,
    ) -> Result<(), PublishError> {
        self.publish_at(&self.place, manifest, old).await.map_err(|error| self.failed(error))
    }

    /// As [`Session::publish`], under another name of the folder.
    ///
    /// # Errors
    /// As there.
    pub(super) async fn publish_at(
        &self,
        place: &Place,
        manifest: &Manifest,
        old: Option<&Published>,
    ) -> Result<(), Error> {
        place.publish(manifest, old, self.without_conditions(false)).await
    }

    /// Does `work` to its end, or until that is to come at once.
    ///
    /// # Errors
    /// Of the work; [`PublishError::Cancelled`] when it is ended.
    pub(super) async fn until_forced<T>(
        &self,
        work: impl Future<Output = Result<T, PublishError>>,
    ) -> Result<T, PublishError> {
        match select(pin!(work), pin!(self.follow.forced())).await {
            Either::Left((done, _)) => done,
            Either::Right(((), _)) => Err(PublishError::Cancelled),
        }
    }

    /// Removes the announcement from the folder: until then chunks are not removed there.
    pub async fn end(&self) {
        let why = match reactor::within(REPORTED_WITHIN, self.place.end_push()).await {
            Some(Ok(())) => return,
            Some(Err(error)) => error.to_string(),
            None => "no answer".to_owned(),
        };
        self.follow.warn(&format!("cowhand prune will take this push for one that still runs: {why}"));
    }
}
