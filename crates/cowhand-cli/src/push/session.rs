//! What `push` and `publish` share: where an image goes, its upload under signals, and the moment at which it counts.

use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use clap::builder::{PossibleValuesParser, TypedValueParser};
use futures_util::future::{Either, select};
use graph::drivers::{image_key, object_store};
use job::Life;
use serde::Serialize;
use storage_chunked::{
    ChunkSize, Compression, Error, Manifest, Place, Published, WithoutConditions, Writing,
};
use storage_s3::StoreError;

use super::upload::{Figures, Upload, UploadError};
use crate::copying::watch::Watch;
use crate::drive::parse_bytes;
use crate::failure::{Failure, warn};

/// Often enough for a person who pressed Ctrl-C.
const LOOKS_AT_SIGNALS: Duration = Duration::from_millis(100);
/// A store that does not answer has been waited for before.
const TOLD_WITHIN: Duration = Duration::from_secs(5);
/// What stands before the name in a DRIVE.
const PREFIX: &str = "chunked:";

/// Where the image goes, and how its objects are made.
#[derive(Debug, clap::Args)]
pub struct TargetArgs {
    /// The image in the store: s3://BUCKET/FOLDER/NAME
    #[arg(value_name = "NAME")]
    pub target: String,

    /// Bytes of a chunk: 512k, 1M, 2M or 4M [default: as the image that is there, or 1M]
    #[arg(long, value_name = "BYTES", value_parser = parse_chunk_size)]
    pub chunk_size: Option<ChunkSize>,

    /// Compress chunks [default: as the image that is there, or zstd]
    #[arg(long, value_name = "HOW", value_parser = compressions())]
    pub compress: Option<Compression>,

    /// Encrypt chunks: the secret (--object secret,id=ID,file=PATH) that holds the key of the image, 32 random bytes or more
    #[arg(long, value_name = "ID")]
    pub encrypt_key_secret: Option<String>,

    /// Write to a store that cannot detect another upload to the same name at the same time, too
    #[arg(long)]
    pub force: bool,
}

fn parse_chunk_size(text: &str) -> Result<ChunkSize, String> {
    ChunkSize::new(parse_bytes(text)?).map_err(|error| error.to_string())
}

/// How chunks may be packed, as values of an option that a shell can complete.
fn compressions() -> impl TypedValueParser<Value = Compression> {
    PossibleValuesParser::new(["zstd", "none"]).map(|name| match name.as_str() {
        "zstd" => Compression::Zstd,
        _ => Compression::None,
    })
}

/// An image on its way to a store.
pub struct Session<'a> {
    /// What the command does, in messages: `push to`, `publish`.
    pub doing: &'static str,
    /// Where it goes.
    pub target: &'a TargetArgs,
    /// Where that is.
    pub place: Arc<Place>,
    /// Shows how far it is, and ends it.
    pub followed: Followed<'a>,
}

/// Who sees how far an upload is.
#[derive(Clone, Copy)]
pub enum Followed<'a> {
    /// A terminal; signals end it.
    Signals(&'a Watch),
    /// The clients of a server: it is a job.
    Job(&'a Life),
}

/// What [`Sent`] prints.
pub const SENT_JSON: &str = "  virtual-size            size of the disk
  chunk-size              bytes of a chunk
  compression             text: none or zstd
  chunks                  number of chunks of the image that are no zeroes
  uploaded                number of objects that were made: chunks, and tables of them
  uploaded-bytes          their bytes, as they were sent
  read-bytes              bytes of the disk that were read";

/// What was sent.
#[derive(Debug, Serialize)]
#[serde(rename_all = "kebab-case")]
pub struct Sent {
    virtual_size: u64,
    chunk_size: u64,
    compression: Compression,
    /// Chunks of the image that are no zeroes.
    pub chunks: u64,
    /// Objects that were made: chunks, and tables of them.
    pub uploaded: u64,
    /// Their bytes, as they were sent.
    pub uploaded_bytes: u64,
    /// Bytes of the disk that were read.
    pub read_bytes: u64,
}

impl Sent {
    /// What these figures say of the disk of `manifest`.
    pub fn of(manifest: &Manifest, figures: &Figures) -> Self {
        Self {
            virtual_size: manifest.size(),
            chunk_size: manifest.chunk_size().bytes(),
            compression: manifest.compression(),
            chunks: figures.chunks.get(),
            uploaded: figures.uploaded.get(),
            uploaded_bytes: figures.uploaded_bytes.get(),
            read_bytes: figures.read_bytes.get(),
        }
    }
}

/// The image in a store that is meant, and its key. Asks no store.
///
/// # Errors
/// As [`Session::begin`].
pub async fn place_of(doing: &str, target: &TargetArgs) -> Result<Place, Failure> {
    let key = target.encrypt_key_secret.as_deref().map(image_key).transpose();
    let target = &target.target;
    let key = key.map_err(|error| Failure::because(format!("cannot {doing} {target}"), &error))?;
    match object_store(target.strip_prefix(PREFIX).unwrap_or(target)).await {
        Some(Ok((store, object))) => Ok(Place::in_bucket(Arc::new(store), &object).with_key(key)),
        Some(Err(error)) => Err(Failure::because(format!("cannot {doing} {target}"), &error)),
        None => {
            let shown = graph::drive::shown(target.as_ref());
            Err(Failure::new(format!("cannot {doing} {shown}; allowed: s3://BUCKET/FOLDER/NAME")))
        }
    }
}

impl<'a> Session<'a> {
    /// Asks no store yet.
    ///
    /// # Errors
    /// When the name is none in a store, or its credentials or the key cannot be read.
    pub async fn begin(
        doing: &'static str,
        target: &'a TargetArgs,
        followed: Followed<'a>,
    ) -> Result<Self, Failure> {
        let place = Arc::new(place_of(doing, target).await?);
        Ok(Self { doing, target, place, followed })
    }

    /// That failed because of this.
    pub fn failed(&self, error: &dyn std::error::Error) -> Failure {
        Failure::because(format!("cannot {} {}", self.doing, self.target.target), error)
    }

    /// The image that is there.
    ///
    /// # Errors
    /// When the store does not answer, or the object is no manifest.
    pub async fn find(&self) -> Result<Option<Published>, Failure> {
        self.place.find().await.map_err(|error| self.failed(&error))
    }

    /// The manifest of a disk of zeroes, with chunks as the arguments say, else as `like` has them.
    ///
    /// # Errors
    /// When the disk is too large.
    pub fn new_manifest(&self, size: u64, like: Option<&Manifest>) -> Result<Manifest, Failure> {
        let chunk_size = self.target.chunk_size.or(like.map(Manifest::chunk_size)).unwrap_or_default();
        let compression = self.target.compress.or(like.map(Manifest::compression));
        let manifest = Manifest::of_zeroes(size, chunk_size, compression.unwrap_or(Compression::Zstd));
        let key_id = self.place.key().map(|key| key.id());
        manifest.map(|manifest| manifest.of_key(key_id)).map_err(|error| self.failed(&error))
    }

    /// How objects of `manifest` are made. `is_tolerable`: that the manifest may be refused at the end by a store that knows no conditions for new objects.
    pub fn writing(&self, manifest: &Manifest, is_tolerable: bool) -> Writing {
        Writing { compression: manifest.compression(), without: self.without_conditions(is_tolerable) }
    }

    fn without_conditions(&self, is_tolerable: bool) -> WithoutConditions {
        match self.target.force || is_tolerable {
            true => WithoutConditions::Write,
            false => WithoutConditions::Refuse,
        }
    }

    /// Uploads to the end, or until a signal or the job's client ends it.
    ///
    /// # Errors
    /// Of the disk and the store; when it was ended.
    pub async fn upload(&self, upload: &Upload<'_>, manifest: &mut Manifest) -> Result<(), Failure> {
        let (figures, total) = (upload.figures, manifest.size());
        let uploading =
            pin!(async { upload.run(manifest).await.map_err(|error| self.of_upload(upload, &error)) });
        match self.followed {
            Followed::Signals(watch) => {
                let mut progress = watch.progress(total);
                let uploaded = {
                    let ended = pin!(async {
                        while watch.look(&mut progress, figures.done_bytes.get()).is_continue() {
                            reactor::sleep(LOOKS_AT_SIGNALS).await;
                        }
                    });
                    match select(uploading, ended).await {
                        Either::Left((uploaded, _)) => uploaded,
                        Either::Right(((), _)) => watch.check(),
                    }
                };
                progress.end();
                uploaded.and_then(|()| watch.check())
            }
            Followed::Job(life) => {
                // Its pace ends it.
                let followed = pin!(async {
                    loop {
                        life.set_progress(figures.done_bytes.get(), total);
                        reactor::sleep(LOOKS_AT_SIGNALS).await;
                    }
                });
                let Either::Left((uploaded, _)) = select(uploading, followed).await;
                life.set_progress(total, total);
                uploaded
            }
        }
    }

    /// What a failure of an upload means to the user.
    pub fn of_upload(&self, upload: &Upload<'_>, error: &UploadError) -> Failure {
        match error {
            UploadError::Disk(error) => {
                Failure::because(format!("cannot read {}", upload.disk.name()), error)
            }
            UploadError::Image(error) => self.hinted(error),
            UploadError::Job(error) => Failure::because("the job has ended", error),
        }
    }

    /// With what the user can do about it.
    pub fn hinted(&self, error: &Error) -> Failure {
        let failure = self.failed(error);
        match error {
            Error::Store(StoreError::Unconditional { .. }) => failure
                .with_hint("--force writes without that; no other process may write to this name meanwhile"),
            Error::Removing { .. } => failure.with_hint(
                "try again when that has ended; if it was killed, its object counts for a day, or until it is removed",
            ),
            Error::Store(StoreError::Exists { .. } | StoreError::Changed { .. }) => failure
                .with_hint("another process uploaded to this name; do it again if that is to be replaced"),
            _ => failure,
        }
    }

    /// Writes `manifest`, which replaces `old` if that has not changed since it was read.
    ///
    /// # Errors
    /// When the store does not take it, or another one is there.
    pub async fn publish(&self, manifest: &Manifest, old: Option<&Published>) -> Result<(), Failure> {
        self.publish_at(&self.place, manifest, old).await.map_err(|error| self.hinted(&error))
    }

    /// As [`Session::publish`], under another name of the folder.
    ///
    /// # Errors
    /// As there.
    pub async fn publish_at(
        &self,
        place: &Place,
        manifest: &Manifest,
        old: Option<&Published>,
    ) -> Result<(), Error> {
        place.publish(manifest, old, self.without_conditions(false)).await
    }

    /// Removes the announcement from the folder: until then `cowhand prune` is refused there.
    pub async fn end(&self) {
        let said = match select(pin!(self.place.end_push()), reactor::sleep(TOLD_WITHIN)).await {
            Either::Left((Ok(()), _)) => return,
            Either::Left((Err(error), _)) => error.to_string(),
            Either::Right(_) => "no answer".to_owned(),
        };
        warn(&format!("cowhand prune will take this push for one that still runs: {said}"));
    }
}
