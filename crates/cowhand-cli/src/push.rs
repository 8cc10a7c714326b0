//! `cowhand push`: a disk as a chunked image in an object store.

mod upload;

use std::io::Write;
use std::pin::pin;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use clap::builder::{PossibleValuesParser, TypedValueParser};
use futures_util::future::{Either, select};
use graph::Disk;
use graph::cache_mode::CacheMode;
use graph::drivers::object_store;
use graph::size::human_size;
use job::Dirty;
use serde::Serialize;
use storage_chunked::{
    ChunkSize, Compression, Error, Manifest, Place, Published, WithoutConditions, Writing,
};
use storage_s3::StoreError;

use self::upload::{Figures, Upload, UploadError};
use crate::copying::watch::Watch;
use crate::copying::{self, Memory};
use crate::drive::{DriveArgs, cache_modes, parse_bytes};
use crate::failure::{Failure, warn};
use crate::output::{OutputFormat, write_json};

/// Often enough for a person who pressed Ctrl-C.
const LOOKS_AT_SIGNALS: Duration = Duration::from_millis(100);
/// A store that does not answer has been waited for before.
const TOLD_WITHIN: Duration = Duration::from_secs(5);
/// What stands before the name in a DRIVE.
const PREFIX: &str = "chunked:";
/// What of a disk is marked as changed together: no chunk is smaller.
const UNIT_BYTES: u64 = storage_chunked::CHUNK_BYTES_MIN;

/// Arguments of `cowhand push`.
#[derive(Debug, clap::Args)]
#[command(
    long_about = "Upload a disk to an object store as a chunked image: a manifest, and chunks that are named by the SHA-256 of their \
        bytes. s3://BUCKET/FOLDER/NAME is the manifest FOLDER/NAME.json and chunks in FOLDER/chunks, which all images of the folder \
        share. Chunks that are there are not uploaded, and chunks of zeroes are not stored. Holes of the disk are not read.\n\n\
        The manifest is written last: until then, and after Ctrl-C or an error, the image that was there is there. If another push \
        changed the same name meanwhile, this push fails and the other image stays.\n\n\
        cowhand pull makes an image of it again, and every DRIVE can be chunked:s3://BUCKET/FOLDER/NAME.",
    after_help = "\
Examples:
  cowhand push -p disk.qcow2 s3://images/debian
  cowhand push --bitmap since-push disk.qcow2 s3://images/debian
  cowhand serve --overlay top.qcow2 chunked:s3://images/debian
cowhand info --help says what a DRIVE is, docs/guide/object-stores.md what is at the store."
)]
pub struct Args {
    #[command(flatten)]
    drive: DriveArgs,

    /// The image in the store: s3://BUCKET/FOLDER/NAME
    #[arg(value_name = "NAME")]
    target: String,

    /// Bytes of a chunk: 512k, 1M, 2M or 4M [default: as the image that is there, or 1M]
    #[arg(long, value_name = "BYTES", value_parser = parse_chunk_size)]
    chunk_size: Option<ChunkSize>,

    /// Compress chunks [default: as the image that is there, or zstd]
    #[arg(long, value_name = "HOW", value_parser = compressions())]
    compress: Option<Compression>,

    /// Read only what this bitmap of the disk says was changed since the last push; it stays as it is
    #[arg(long, value_name = "BITMAP")]
    bitmap: Option<String>,

    /// Push to a store that cannot detect another push to the same name at the same time, too
    #[arg(long)]
    force: bool,

    /// Cache mode of DRIVE: writeback, writethrough, none, directsync, unsafe
    #[arg(short = 'T', value_name = "MODE", value_parser = cache_modes(), hide_possible_values = true)]
    cache: Option<CacheMode>,

    /// Show how far it is, on a terminal (SIGUSR1 shows it anywhere)
    #[arg(short = 'p')]
    progress: bool,

    /// Say nothing but errors
    #[arg(short = 'q')]
    quiet: bool,

    /// Form of the result
    #[arg(long, value_enum, default_value_t, value_name = "FORMAT")]
    output: OutputFormat,
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

/// What was done.
#[derive(Debug, Serialize)]
#[serde(rename_all = "kebab-case")]
struct Report {
    filename: String,
    target: String,
    virtual_size: u64,
    chunk_size: u64,
    compression: Compression,
    /// Chunks of the image that are no zeroes.
    chunks: u64,
    /// Objects that were made: chunks, and tables of them.
    uploaded: u64,
    /// Their bytes, as they were sent.
    uploaded_bytes: u64,
    /// Bytes of the disk that were read.
    read_bytes: u64,
    /// The manifest is another one than before.
    changed: bool,
}

/// Pushes.
pub fn run(args: &Args, out: &mut dyn Write) -> Result<ExitCode, Failure> {
    let mut options = args.drive.options()?;
    options.layer.read_only = true;
    if let Some(mode) = args.cache {
        options.set_cache(mode);
    }
    let rules = Memory::default().rules(args.drive.policy()?);
    let watch = Watch::begin(args.progress && !args.quiet)?;
    let report = copying::reactor()?.run(async {
        let place = watch.within_grace(place(args)).await??;
        let disk = copying::open(&options, &rules, "push").await?;
        let pushed = watch.within_grace(push(args, &watch, &place, &disk)).await.flatten();
        end_push(&place).await;
        copying::finish(&disk, pushed, |error| copying::because("push", &options, error)).await
    })?;
    match (args.quiet, args.output) {
        (true, _) => {}
        (false, OutputFormat::Json) => write_json(out, &report)?,
        (false, OutputFormat::Human) => report.write_human(out)?,
    }
    Ok(ExitCode::SUCCESS)
}

impl Report {
    fn write_human(&self, out: &mut dyn Write) -> std::io::Result<()> {
        let Self { target, chunks, uploaded, uploaded_bytes, .. } = self;
        let bytes = human_size(*uploaded_bytes);
        match self.changed {
            true => writeln!(out, "{target}: {chunks} chunks; uploaded {uploaded} objects, {bytes}"),
            false => writeln!(out, "{target}: {chunks} chunks; nothing has changed"),
        }
    }
}

impl Args {
    fn failed(&self, error: &dyn std::error::Error) -> Failure {
        Failure::because(format!("cannot push to {}", self.target), error)
    }

    fn without_conditions(&self, is_tolerable: bool) -> WithoutConditions {
        match self.force || is_tolerable {
            true => WithoutConditions::Write,
            false => WithoutConditions::Refuse,
        }
    }
}

async fn place(args: &Args) -> Result<Place, Failure> {
    let name = args.target.strip_prefix(PREFIX).unwrap_or(&args.target);
    match object_store(name).await {
        Some(Ok((store, key))) => Ok(Place::in_bucket(Arc::new(store), &key)),
        Some(Err(error)) => Err(args.failed(&error)),
        None => {
            let shown = graph::drive::shown(args.target.as_ref());
            Err(Failure::new(format!("cannot push to {shown}; allowed: s3://BUCKET/FOLDER/NAME")))
        }
    }
}

async fn push(args: &Args, watch: &Watch, place: &Place, disk: &Arc<Disk>) -> Result<Report, Failure> {
    let size = block::Block::size(&**disk);
    let changed = changed(args, disk).await?;
    let published = place.find().await.map_err(|error| args.failed(&error))?;
    let chunk_size =
        args.chunk_size.or(published.as_ref().map(|old| old.manifest.chunk_size())).unwrap_or_default();
    let of_old = published.as_ref().map(|old| old.manifest.compression());
    let compression = args.compress.or(of_old).unwrap_or(Compression::Zstd);
    let mut manifest =
        Manifest::of_zeroes(size, chunk_size, compression).map_err(|error| args.failed(&error))?;
    let figures = Figures::default();
    let upload = Upload {
        disk: &**disk,
        place,
        old: published.as_ref().filter(|old| old.manifest.has_objects_for(&manifest)),
        changed: changed.as_ref(),
        figures: &figures,
        // The manifest that is there may be replaced on another condition.
        how: Writing { compression, without: args.without_conditions(published.is_some()) },
    };
    upload_watched(args, watch, &upload, &mut manifest).await?;
    watch.check()?;
    let is_changed = published.as_ref().is_none_or(|old| old.manifest != manifest);
    if is_changed {
        publish(args, place, &manifest, published.as_ref()).await?;
    }
    Ok(Report {
        filename: block::Block::name(&**disk).to_owned(),
        target: args.target.clone(),
        virtual_size: size,
        chunk_size: chunk_size.bytes(),
        compression,
        chunks: figures.chunks.get(),
        uploaded: figures.uploaded.get(),
        uploaded_bytes: figures.uploaded_bytes.get(),
        read_bytes: figures.read_bytes.get(),
        changed: is_changed,
    })
}

/// Removes this push's announcement from the folder: until then `cowhand prune` is refused there.
async fn end_push(place: &Place) {
    let said = match select(pin!(place.end_push()), reactor::sleep(TOLD_WITHIN)).await {
        Either::Left((Ok(()), _)) => return,
        Either::Left((Err(error), _)) => error.to_string(),
        Either::Right(_) => "no answer".to_owned(),
    };
    warn(&format!("cowhand prune will take this push for one that goes on: {said}"));
}

/// What the bitmap says was changed.
async fn changed(args: &Args, disk: &Disk) -> Result<Option<Dirty>, Failure> {
    let Some(name) = &args.bitmap else { return Ok(None) };
    if disk.inconsistent_bitmaps().iter().any(|entry| entry.name == *name) {
        let what = format!("--bitmap: bitmap {name:?} is inconsistent: it does not say what was changed");
        return Err(Failure::new(what).with_hint("without --bitmap everything is read and compared"));
    }
    let bitmaps = disk.bitmaps();
    let Some(bitmap) = bitmaps.iter().find(|bitmap| bitmap.name() == name) else {
        let known: Vec<_> = bitmaps.iter().map(|bitmap| bitmap.name()).collect();
        let known = if known.is_empty() { "none".to_owned() } else { known.join(", ") };
        return Err(Failure::new(format!("--bitmap: the disk has no bitmap {name:?}; it has: {known}")));
    };
    let marks = Dirty::new(block::Block::size(disk), UNIT_BYTES);
    let ranges = bitmap.dirty_ranges().await.map_err(|error| args.failed(&error))?;
    ranges.into_iter().for_each(|range| marks.mark(range));
    Ok(Some(marks))
}

/// Uploads until a signal ends it.
async fn upload_watched(
    args: &Args,
    watch: &Watch,
    upload: &Upload<'_>,
    manifest: &mut Manifest,
) -> Result<(), Failure> {
    let mut progress = watch.progress(manifest.size());
    let figures = upload.figures;
    let uploaded = {
        let told = pin!(async {
            while watch.look(&mut progress, figures.done_bytes.get()).is_continue() {
                reactor::sleep(LOOKS_AT_SIGNALS).await;
            }
        });
        match select(pin!(upload.run(manifest)), told).await {
            Either::Left((uploaded, _)) => uploaded.map_err(|error| match error {
                UploadError::Disk(error) => {
                    Failure::because(format!("cannot push {}", upload.disk.name()), &error)
                }
                UploadError::Image(error) => hinted(args.failed(&error), &error),
            }),
            Either::Right(((), _)) => watch.check(),
        }
    };
    progress.end();
    uploaded
}

/// With what the user can do about a store that knows no conditions.
fn hinted(failure: Failure, error: &Error) -> Failure {
    match error {
        Error::Store(StoreError::Unconditional { .. }) => failure
            .with_hint("--force pushes without that; nobody else may push to this name at the same time"),
        Error::Removing { .. } => failure.with_hint(
            "push again when that has ended; if it was killed, its object counts for a day, or until it is removed",
        ),
        _ => failure,
    }
}

async fn publish(
    args: &Args,
    place: &Place,
    manifest: &Manifest,
    old: Option<&Published>,
) -> Result<(), Failure> {
    place.publish(manifest, old, args.without_conditions(false)).await.map_err(|error| {
        let failure = hinted(args.failed(&error), &error);
        match error {
            Error::Store(StoreError::Exists { .. } | StoreError::Changed { .. }) => {
                failure.with_hint("somebody else pushed to this name; push again if theirs is to be replaced")
            }
            _ => failure,
        }
    })
}
