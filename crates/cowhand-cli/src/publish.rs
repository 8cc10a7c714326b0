//! `cowhand publish`: a checkpoint as a chunked image in an object store.

mod parent;

use std::ffi::OsString;
use std::io::Write;
use std::process::ExitCode;
use std::sync::Arc;

use graph::size::human_size;
use graph::{Disk, OpenRules};
use job::{LoopClock, RateLimit};
use lineage::LayerId;
use serde::Serialize;
use storage_chunked::{CHECKPOINTS_MAX, Checkpoint, Error, Manifest, Of, Place, Published};
use storage_s3::StoreError;

use self::parent::{Candidate, Parent, Search};
use crate::copying::report::ReportArgs;
use crate::copying::{self, Memory};
use crate::drive::{NamesArgs, parse_bytes};
use crate::failure::Failure;
use crate::lineages::args::{CheckpointArg, DISK_HELP};
use crate::lineages::sealed::Sealed;
use crate::output::{OutputFormat, printable, write_json};
use crate::push::session::{Sent, Session, TargetArgs};
use crate::push::upload::{Figures, Upload};

/// The value of `--parent` by which everything is read.
const NO_PARENT: &str = "none";

/// Arguments of `cowhand publish`.
#[derive(Debug, clap::Args)]
#[command(
    long_about = "Upload a checkpoint to an object store as a chunked image, also while its disk is served: sealed layers are not written any \
        more, so guests wait for nothing. s3://BUCKET/FOLDER/NAME is then that checkpoint, and s3://BUCKET/FOLDER/NAME@ID is it for ever: a \
        later checkpoint that is published to NAME replaces only the first. cowhand restore makes disks of both.\n\n\
        Of its parent, a checkpoint of the same lineage that is there, everything is taken that the layers of only one of the two say nothing \
        about, by their maps: it is neither read nor asked for. That is the checkpoint at NAME, else the nearest one in the folder; --parent names \
        another one. Chunks that are there are not uploaded, zeroes are not stored. After Ctrl-C or an error what was there is there, and \
        the next publish finds the chunks that were uploaded.\n\n\
        What is the same for all chunked images (chunks, compression, two uploads to one name) cowhand push --help says.",
    after_help = DISK_HELP
)]
pub struct Args {
    /// The checkpoint: DISK@NAME
    #[arg(value_name = "CHECKPOINT")]
    checkpoint: OsString,

    #[command(flatten)]
    target: TargetArgs,

    /// A published checkpoint of the same lineage in the same folder, of which unchanged chunks are taken; none: everything is read [default: found by itself]
    #[arg(long, value_name = "NAME")]
    parent: Option<String>,

    #[command(flatten)]
    names: NamesArgs,

    /// Bytes of the disk that are read a second at most; no more than that is uploaded
    #[arg(short = 'r', value_name = "RATE", value_parser = parse_bytes)]
    rate: Option<u64>,

    /// Say how much would be read, and write nothing
    #[arg(short = 'n', long)]
    dry_run: bool,

    #[command(flatten)]
    report: ReportArgs,
}

/// What was done.
#[derive(Debug, Serialize)]
#[serde(rename_all = "kebab-case")]
struct Report {
    checkpoint: String,
    /// Of its layer.
    id: String,
    target: String,
    /// The name that stays this checkpoint's.
    image: String,
    /// The checkpoint at the store of which unchanged chunks were taken.
    parent: Option<String>,
    #[serde(flatten)]
    sent: Sent,
    /// Something was written.
    changed: bool,
    dry_run: bool,
}

/// Publishes.
pub fn run(args: &Args, out: &mut dyn Write) -> Result<ExitCode, Failure> {
    let sealed = Sealed::find(&CheckpointArg::of(&args.checkpoint)?)?;
    // Also refuses a chain with a layer that was written.
    let chain = sealed.chain()?;
    let options = sealed.options();
    let rules = Memory::default().rules(args.names.policy()?);
    let watch = args.report.watch()?;
    let report = copying::reactor()?.run(async {
        let session = watch.within_grace(Session::begin("publish to", &args.target, &watch)).await??;
        let disk = copying::open(&options, &rules, "publish").await?;
        let publication = Publication { args, session: &session, sealed: &sealed, chain, rules: &rules };
        let published = watch.within_grace(publication.run(&disk)).await.flatten();
        session.end().await;
        copying::finish(&disk, published, |error| copying::because("publish", &options, error)).await
    })?;
    match (args.report.quiet, args.report.output) {
        (true, _) => {}
        (false, OutputFormat::Json) => write_json(out, &report)?,
        (false, OutputFormat::Human) => report.write_human(out)?,
    }
    Ok(ExitCode::SUCCESS)
}

impl Report {
    fn write_human(&self, out: &mut dyn Write) -> std::io::Result<()> {
        let Sent { chunks, uploaded, uploaded_bytes, read_bytes, .. } = &self.sent;
        let since = self.parent.as_ref().map_or_else(String::new, |parent| format!(" since {parent}"));
        let image = printable(&self.image);
        match (self.dry_run, self.changed) {
            (true, _) => writeln!(out, "{image}: would read {}{since}", human_size(*read_bytes)),
            (false, false) => writeln!(out, "{image}: {chunks} chunks; nothing has changed"),
            (false, true) => {
                let bytes = human_size(*uploaded_bytes);
                writeln!(out, "{image}: {chunks} chunks; uploaded {uploaded} objects, {bytes}{since}")
            }
        }
    }
}

/// A checkpoint on its way.
struct Publication<'a> {
    args: &'a Args,
    session: &'a Session<'a>,
    sealed: &'a Sealed,
    /// Its layers from the upper to the lower, and the backing file of the last one outside the lineage.
    chain: (Vec<LayerId>, Option<String>),
    rules: &'a OpenRules,
}

impl Publication<'_> {
    async fn run(&self, disk: &Arc<Disk>) -> Result<Report, Failure> {
        let Self { args, session, .. } = self;
        if !args.dry_run {
            // From here on nothing is removed that a parent leads to.
            session.place.begin_push().await.map_err(|error| session.hinted(&error))?;
        }
        let published = session.find().await?;
        let base = self.base().await?;
        let below = base.as_ref().map_or(&[][..], |base| base.image.manifest.checkpoints());
        let parent = self.parent(published.as_ref(), base.as_ref()).await?;
        let like = published.as_ref().or(parent.as_ref().map(|parent| &parent.image));
        let manifest =
            session.new_manifest(block::Block::size(&**disk), like.map(|image| &image.manifest))?;
        let mut manifest = manifest.of_checkpoints(self.checkpoints(below));
        let changed = match &parent {
            Some(parent) => Some(parent.changed(disk, self.sealed, self.rules).await?),
            None => None,
        };
        let figures = Figures::default();
        let upload = Upload {
            disk: &**disk,
            place: &session.place,
            old: parent.as_ref().map(|parent| &parent.image),
            changed: changed.as_ref(),
            figures: &figures,
            how: session.writing(&manifest, published.is_some()),
            rate: args.rate.map(|rate| RateLimit::new(rate, LoopClock)),
        };
        let id = self.sealed.id.to_string();
        let lasting = session.place.of_checkpoint(&id);
        let is_changed = match args.dry_run {
            true => {
                upload.measure(&manifest).await.map_err(|error| session.of_upload(&upload, &error))?;
                false
            }
            false => {
                session.upload(&upload, &mut manifest).await?;
                let is_new = self.keep(&lasting, &manifest).await?;
                let is_changed = published.as_ref().is_none_or(|old| old.manifest != manifest);
                if is_changed {
                    session.publish(&manifest, published.as_ref()).await?;
                }
                is_new || is_changed
            }
        };
        Ok(Report {
            checkpoint: args.checkpoint.to_string_lossy().into_owned(),
            id,
            target: args.target.target.clone(),
            image: lasting.image(),
            parent: parent.map(|parent| parent.image_name),
            sent: Sent::of(&manifest, &figures),
            changed: is_changed,
            dry_run: args.dry_run,
        })
    }

    /// The image at the store of which chunks are taken.
    async fn parent(
        &self,
        published: Option<&Published>,
        base: Option<&Candidate>,
    ) -> Result<Option<Parent>, Failure> {
        let Self { args, session, sealed, chain: (chain, _), .. } = self;
        let search = Search { sealed, chain, base };
        let fits = |image: &Published| {
            let like = published.unwrap_or(image);
            // Of no bytes: what is compared is how chunks are made.
            let new = session.new_manifest(0, Some(&like.manifest));
            new.is_ok_and(|new| image.manifest.has_objects_for(&new))
        };
        let failed = |error| session.failed(&error);
        match args.parent.as_deref() {
            Some(NO_PARENT) => Ok(None),
            Some(name) => {
                let candidate = self.named_parent(name).await?;
                let image = candidate.place.image();
                if !fits(&candidate.image) {
                    let what = format!(
                        "--parent: chunks of {image} have another size, or are compressed and those of the new image are not"
                    );
                    return Err(Failure::new(what));
                }
                match search.parent(&candidate) {
                    Some(parent) => Ok(Some(parent)),
                    None => {
                        search.nearest(&candidate.place, Of::Image, fits).await.map_err(failed)?.map_or_else(
                            || {
                                Err(Failure::new(format!(
                                    "--parent: the lineage has no checkpoint of {image}"
                                )))
                            },
                            |parent| Ok(Some(parent)),
                        )
                    }
                }
            }
            None => {
                let image = published.filter(|image| fits(image)).cloned();
                let own = image.map(|image| Candidate { place: Arc::clone(&session.place), image });
                match own.and_then(|own| search.parent(&own)) {
                    Some(parent) => Ok(Some(parent)),
                    None => search.nearest(&session.place, Of::Folder, fits).await.map_err(failed),
                }
            }
        }
    }

    /// The image that --parent names.
    async fn named_parent(&self, name: &str) -> Result<Candidate, Failure> {
        let own = &self.session.place;
        let place = own.beside(name).ok_or_else(|| {
            let what = "--parent is";
            Failure::new(format!(
                "{what} {}; allowed: {NO_PARENT}, or a name in the folder of {}",
                printable(name),
                own.image()
            ))
        })?;
        let image = place.read().await.map_err(|error| self.session.failed(&error))?;
        if image.manifest.checkpoints().is_empty() {
            let what = format!("--parent: {} is no published checkpoint: it was pushed", place.image());
            return Err(Failure::new(what));
        }
        Ok(Candidate { place: Arc::new(place), image })
    }

    /// The image that the lowest layer is backed by, if that is a published checkpoint of the same folder: one that stays what it is.
    async fn base(&self) -> Result<Option<Candidate>, Failure> {
        let place = self.chain.1.as_deref().and_then(|base| self.session.place.beside(base));
        let Some(place) = place.filter(|place| place.checkpoint().is_some()) else { return Ok(None) };
        let image = place.read().await.map_err(|error| self.session.failed(&error))?;
        Ok(Some(Candidate { place: Arc::new(place), image }))
    }

    /// This checkpoint and all below it; `below` are those that another lineage had.
    fn checkpoints(&self, below: &[Checkpoint]) -> Vec<Checkpoint> {
        let named = |id: &LayerId| {
            let entry = self.sealed.survey.layers.get(id).and_then(|layer| layer.entry.as_ref());
            let name = entry.filter(|entry| !entry.deleted).and_then(|entry| entry.name.as_ref());
            Checkpoint { id: id.to_string(), name: name.map(ToString::to_string) }
        };
        self.chain.0.iter().map(named).chain(below.iter().cloned()).take(CHECKPOINTS_MAX).collect()
    }

    /// Makes the manifest that stays, unless it is there.
    async fn keep(&self, lasting: &Place, manifest: &Manifest) -> Result<bool, Failure> {
        let there = lasting.find().await.map_err(|error| self.session.failed(&error))?;
        if there.is_some() {
            return Ok(false);
        }
        match self.session.publish_at(lasting, manifest, None).await {
            Ok(()) => Ok(true),
            // The process that published the same checkpoint meanwhile made the same disk.
            Err(Error::Store(StoreError::Exists { .. })) => Ok(false),
            Err(error) => Err(self.session.hinted(&error)),
        }
    }
}
