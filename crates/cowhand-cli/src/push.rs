//! `cowhand push`: a disk as a chunked image in an object store.

mod served;
mod signals;
pub mod target;

use std::io::Write;
use std::process::ExitCode;

use checkpoints::{Sent, Session};
use graph::cache_mode::CacheMode;
use job::{LoopClock, RateLimit};
use serde::{Deserialize, Serialize};
use tool::failure::Failure;
use tool::output::write_json;

pub use self::signals::Signals;
use self::target::{SENT_JSON, TargetArgs, uploaded};
use crate::copying::report::ReportArgs;
use crate::copying::watch::Watch;
use crate::copying::{self, Memory};
use crate::drive::{DriveArgs, cache_modes, parse_bytes};
use crate::lineages::args::DiskArg;
use crate::output::{OutputFormat, with_json};

const EXAMPLES: &str = "\
Examples:
  cowhand push -p disk.qcow2 s3://images/debian
  cowhand push --bitmap since-push disk.qcow2 s3://images/debian
  cowhand push -p /run/cowhand/vm.qmp s3://images/vm
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
        In place of DRIVE there may be the control socket of the server that has the disk open (cowhand serve --qmp): SOCKET, or SOCKET:NODE \
        where the server has several disks. Then a job of the server, cowhand-push, pushes the disk as it is when the job begins, and clients \
        continue to write. What they overwrite before it is read is read first; they wait for that, and for the store only if they overwrite more than it \
        takes and 32 MiB. After 20 s such a write is done, and the push fails. Store, credentials and secrets are the server's.\n\n\
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

    /// Bytes of the disk that are read a second at most; no more than that is uploaded, but for what clients overwrite
    #[arg(short = 'r', value_name = "RATE", value_parser = parse_bytes)]
    rate: Option<u64>,

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
    outcome: Outcome,
}

/// What came of it.
#[derive(Debug, Deserialize, Serialize)]
struct Outcome {
    #[serde(flatten)]
    sent: Sent,
    /// The manifest is another one than before.
    changed: bool,
}

/// Pushes.
pub fn run(args: &Args, out: &mut dyn Write) -> Result<ExitCode, Failure> {
    let served = DiskArg::of(args.drive.drive.as_os_str()).served()?;
    let watch = args.report.watch()?;
    let report = match served {
        Some(served) => served::push(args, served, &watch)?,
        None => push(args, &watch)?,
    };
    match (args.report.quiet, args.report.output) {
        (true, _) => {}
        (false, OutputFormat::Json) => write_json(out, &report)?,
        (false, OutputFormat::Human) => report.write_human(out)?,
    }
    Ok(ExitCode::SUCCESS)
}

/// Pushes a disk that this process opens.
fn push(args: &Args, watch: &Watch) -> Result<Report, Failure> {
    let mut options = args.drive.options()?;
    options.layer.read_only = true;
    if let Some(mode) = args.cache {
        options.set_cache(mode);
    }
    let rules = Memory::default().rules(args.drive.policy()?);
    let target = args.target.target();
    copying::reactor()?.run(async {
        let signals = Signals::new(watch, args.rate.map(|rate| RateLimit::new(rate, LoopClock)));
        let session = watch.within_grace(Session::begin("push to", &target, &signals)).await??;
        let disk = copying::open(&options, &rules, "push").await?;
        let pushing = async {
            let changed = match &args.bitmap {
                None => None,
                Some(bitmap) => Some(checkpoints::changed(&disk, bitmap).await?),
            };
            let (sent, changed) = signals.settled(session.push(&disk, changed.as_ref()).await)?;
            let filename = block::Block::name(&*disk).to_owned();
            Ok(Report { filename, target: target.image.clone(), outcome: Outcome { sent, changed } })
        };
        let pushed = watch.within_grace(pushing).await.flatten();
        session.end().await;
        copying::finish(&disk, pushed, |error| copying::because("push", &options, error)).await
    })
}

impl Report {
    fn write_human(&self, out: &mut dyn Write) -> std::io::Result<()> {
        let Outcome { sent, changed } = &self.outcome;
        let (target, chunks) = (&self.target, sent.chunks);
        match changed {
            true => writeln!(out, "{target}: {chunks} chunks; {}", uploaded(sent)),
            false => writeln!(out, "{target}: {chunks} chunks; nothing has changed"),
        }
    }
}
