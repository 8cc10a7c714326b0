//! `cowhand publish`: a checkpoint as a chunked image in an object store.

use std::ffi::OsString;
use std::io::Write;
use std::process::ExitCode;

use checkpoints::{Outcome, Publication, Sent};
use graph::size::human_size;
use job::{LoopClock, RateLimit};
use serde::Serialize;
use tool::failure::Failure;
use tool::output::{printable, write_json};

use crate::copying::report::ReportArgs;
use crate::copying::{self, Memory};
use crate::drive::{NamesArgs, parse_bytes};
use crate::lineages::args::{CheckpointArg, with_disk};
use crate::output::{OutputFormat, with_json};
use crate::push::Signals;
use crate::push::target::{SENT_JSON, TargetArgs, uploaded};

const EXAMPLES: &str = "\
Examples:
  cowhand publish disk.qcow2@installed s3://images/vms/disk
  cowhand publish disk.qmp@installed s3://images/vms/disk";

/// Arguments of `cowhand publish`.
#[derive(Debug, clap::Args)]
#[command(
    long_about = "Upload a checkpoint to an object store as a chunked image, also while its disk is served: sealed layers are not written any \
        more, so guests wait for nothing. s3://BUCKET/FOLDER/NAME is then that checkpoint, and s3://BUCKET/FOLDER/NAME@ID is it for ever: a \
        later checkpoint that is published to NAME replaces only the first. cowhand restore makes disks of both.\n\n\
        Of its parent, a checkpoint of the same lineage that is there, everything is taken that the layers of only one of the two say nothing \
        about, by their maps: it is neither read nor asked for. That is the checkpoint at NAME, else the nearest one in the folder; --parent names \
        another one. Chunks that are there are not uploaded, zeroes are not stored. Of a chunk that differs from the parent's in less than half, what differs is \
        uploaded alone. After Ctrl-C or an error what was there is there, and \
        the next publish finds the chunks that were uploaded.\n\n\
        What is the same for all chunked images (chunks, compression, two uploads to one name) cowhand push --help says.",
    after_help = with_disk(EXAMPLES),
    after_long_help = with_json(&with_disk(EXAMPLES), &[JSON, OUTCOME_JSON, SENT_JSON])
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

/// What [`Report`] prints beside [`OUTCOME_JSON`] and [`SENT_JSON`].
const JSON: &str = "  checkpoint              text: the checkpoint, as it was named
  target                  text: the image in the store, as it was named
  dry-run                 bool: nothing was written; read-bytes is what would be read";

/// What [`Outcome`] prints beside [`Sent`].
const OUTCOME_JSON: &str = "  id                      text: id of the checkpoint's layer
  image                   text: the name in the store that stays this checkpoint's
  parent                  text: the published checkpoint of which unchanged chunks were taken, or
                          null
  changed                 bool: something was written";

/// What was done.
#[derive(Debug, Serialize)]
#[serde(rename_all = "kebab-case")]
struct Report {
    checkpoint: String,
    target: String,
    #[serde(flatten)]
    outcome: Outcome,
    dry_run: bool,
}

/// Hashing and compressing take the processors that guests leave.
const NICENESS: i32 = 10;

/// Publishes.
pub fn run(args: &Args, out: &mut dyn Write) -> Result<ExitCode, Failure> {
    // Threads that begin from here on inherit it. Where it is refused, guests share the processors with this.
    let _ = rustix::process::nice(NICENESS);
    let sealed = CheckpointArg::of(&args.checkpoint)?.find()?;
    let rules = Memory::default().rules(args.names.policy()?);
    let watch = args.report.watch()?;
    let (target, parent) = (args.target.target(), args.parent.clone());
    let publication = Publication { sealed, target, parent, is_dry: args.dry_run };
    let outcome = copying::reactor()?.run(async {
        let signals = Signals::new(&watch, args.rate.map(|rate| RateLimit::new(rate, LoopClock)));
        signals.settled(publication.run(&rules, &signals).await)
    })?;
    let checkpoint = args.checkpoint.to_string_lossy().into_owned();
    let report = Report { checkpoint, target: args.target.target.clone(), outcome, dry_run: args.dry_run };
    match (args.report.quiet, args.report.output) {
        (true, _) => {}
        (false, OutputFormat::Json) => write_json(out, &report)?,
        (false, OutputFormat::Human) => report.write_human(out)?,
    }
    Ok(ExitCode::SUCCESS)
}

impl Report {
    fn write_human(&self, out: &mut dyn Write) -> std::io::Result<()> {
        let Outcome { sent, parent, image, changed, .. } = &self.outcome;
        let Sent { chunks, read_bytes, .. } = sent;
        let since = parent.as_ref().map_or_else(String::new, |parent| format!(" since {parent}"));
        let image = printable(image);
        match (self.dry_run, changed) {
            (true, _) => writeln!(out, "{image}: would read {}{since}", human_size(*read_bytes)),
            (false, false) => writeln!(out, "{image}: {chunks} chunks; nothing has changed"),
            (false, true) => writeln!(out, "{image}: {chunks} chunks; {}{since}", uploaded(sent)),
        }
    }
}
