//! `cowhand push`: a disk as a chunked image in an object store.

mod signals;
pub mod target;

use std::io::Write;
use std::process::ExitCode;

use checkpoints::{Sent, Session};
use graph::Disk;
use graph::cache_mode::CacheMode;
use graph::size::human_size;
use job::Dirty;
use serde::Serialize;

pub use self::signals::Signals;
use self::target::{SENT_JSON, TargetArgs};
use crate::copying::report::ReportArgs;
use crate::copying::{self, Memory};
use crate::drive::{DriveArgs, cache_modes};
use crate::failure::Failure;
use crate::output::{OutputFormat, with_json, write_json};

/// What of a disk is marked as changed together: no chunk is smaller.
const UNIT_BYTES: u64 = storage_chunked::CHUNK_BYTES_MIN;

const EXAMPLES: &str = "\
Examples:
  cowhand push -p disk.qcow2 s3://images/debian
  cowhand push --bitmap since-push disk.qcow2 s3://images/debian
  cowhand serve --overlay top.qcow2 chunked:s3://images/debian
cowhand info --help says what a DRIVE is, docs/reference/object-stores.md what is at the store.";

/// Arguments of `cowhand push`.
#[derive(Debug, clap::Args)]
#[command(
    long_about = "Upload a disk to an object store as a chunked image: a manifest, and chunks that are named by the SHA-256 of their \
        bytes. s3://BUCKET/FOLDER/NAME is the manifest FOLDER/NAME.json and chunks in FOLDER/chunks, which all images of the folder \
        share. Chunks that are there are not uploaded, and chunks of zeroes are not stored. Holes of the disk are not read.\n\n\
        The manifest is written last: until then, and after Ctrl-C or an error, the image that was there is there. If another push \
        changed the same name meanwhile, this push fails and the other image stays.\n\n\
        cowhand pull makes an image of it again, and every DRIVE can be chunked:s3://BUCKET/FOLDER/NAME.",
    after_help = EXAMPLES,
    after_long_help = with_json(EXAMPLES, &[JSON, SENT_JSON])
)]
pub struct Args {
    #[command(flatten)]
    drive: DriveArgs,

    #[command(flatten)]
    target: TargetArgs,

    /// Read only what this bitmap of the disk says was changed since the last push; it stays as it is
    #[arg(long, value_name = "BITMAP")]
    bitmap: Option<String>,

    /// Cache mode of DRIVE: writeback, writethrough, none, directsync, unsafe
    #[arg(short = 'T', value_name = "MODE", value_parser = cache_modes(), hide_possible_values = true)]
    cache: Option<CacheMode>,

    #[command(flatten)]
    report: ReportArgs,
}

/// What [`Report`] prints beside [`SENT_JSON`].
const JSON: &str = "  filename                text: the disk
  target                  text: the image in the store
  changed                 bool: the manifest is another one than before";

/// What was done.
#[derive(Debug, Serialize)]
#[serde(rename_all = "kebab-case")]
struct Report {
    filename: String,
    target: String,
    #[serde(flatten)]
    sent: Sent,
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
    let watch = args.report.watch()?;
    let target = args.target.target();
    let report = copying::reactor()?.run(async {
        let signals = Signals::new(&watch, None);
        let session = watch.within_grace(Session::begin("push to", &target, &signals)).await??;
        let disk = copying::open(&options, &rules, "push").await?;
        let pushing = async {
            let changed = changed(args, &disk).await?;
            let (sent, changed) = signals.settled(session.push(&disk, changed.as_ref()).await)?;
            let filename = block::Block::name(&*disk).to_owned();
            Ok(Report { filename, target: target.image.clone(), sent, changed })
        };
        let pushed = watch.within_grace(pushing).await.flatten();
        session.end().await;
        copying::finish(&disk, pushed, |error| copying::because("push", &options, error)).await
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
        let Sent { chunks, uploaded, uploaded_bytes, .. } = &self.sent;
        let target = &self.target;
        let bytes = human_size(*uploaded_bytes);
        match self.changed {
            true => writeln!(out, "{target}: {chunks} chunks; uploaded {uploaded} objects, {bytes}"),
            false => writeln!(out, "{target}: {chunks} chunks; nothing has changed"),
        }
    }
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
    let failed = |error| Failure::because(format!("cannot push to {}", args.target.target), &error);
    let ranges = bitmap.dirty_ranges().await.map_err(failed)?;
    ranges.into_iter().for_each(|range| marks.mark(range));
    Ok(Some(marks))
}
