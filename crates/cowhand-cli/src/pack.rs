//! `cowhand pack`: the chunks that a start reads, in few objects beside the image.

use std::collections::HashSet;
use std::fs::File;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;

use catalog::object_store;
use graph::size::human_size;
use graph::trace::{Plan, PlanRequest, ReadError, disks, plan};
use remote::chunked::{Error, Packed, Place, split_key, without_prefix};
use serde::Serialize;
use tool::failure::{Failure, warn};
use tool::output::{printable, write_json};

use crate::copying;
use crate::copying::watch::Watch;
use crate::output::{OutputFormat, with_json};

/// Disks of a trace that a message names at most.
const DISKS_SHOWN_MAX: usize = 10;

const EXAMPLES: &str = "\
Examples:
  cowhand serve --trace start.trace disk.qcow2   # start the guest once, and end the server
  cowhand pack start.trace s3://images/vm
docs/guide/object-stores.md is a walk through all of it.";

/// Arguments of `cowhand pack`.
#[derive(Debug, clap::Args)]
#[command(
    long_about = "Copy the chunks that a start reads into few objects beside a chunked image, so that a start takes few requests. TRACE is what a \
        start read (cowhand serve --trace), of this disk or of another one with the same content.\n\n\
        FOLDER/NAME.start lists these chunks in the order in which they were read, and packs in FOLDER/packs have copies of them, up to 8 MiB of the \
        disk each. A server that a guest starts from reads these ahead of it. All checkpoints that are published to NAME use the list: chunks that are others \
        there are fetched by themselves. Each chunk is checked against its name as ever; without list and packs a start takes longer, and nothing else.\n\n\
        What the list names and a new trace does not is forgotten: cowhand prune removes packs that no list names. No key is needed for encrypted images.",
    after_help = EXAMPLES,
    after_long_help = with_json(EXAMPLES, &[JSON])
)]
pub struct Args {
    /// What a start read
    #[arg(value_name = "TRACE")]
    trace: PathBuf,

    /// The image in the store: s3://BUCKET/FOLDER/NAME
    #[arg(value_name = "NAME")]
    name: String,

    /// The disk that is meant, if the trace is of several: its path or its file name
    #[arg(long, value_name = "DISK")]
    drive: Option<PathBuf>,

    /// Say nothing but errors
    #[arg(short = 'q')]
    quiet: bool,

    /// Form of the result
    #[arg(long, value_enum, default_value_t, value_name = "FORMAT")]
    output: OutputFormat,
}

/// What [`Report`] prints.
const JSON: &str = "  target                  text: the image in the store, as it was named
  list                    text: the start list
  chunks                  number of chunks in it
  packs                   number of packs of them
  bytes                   bytes of these packs
  uploaded                number of packs that were made
  uploaded-bytes          their bytes
  cut                     bool: the trace reads more than a list names
  changed                 bool: the list is another one than before";

/// What was done.
#[derive(Debug, Serialize)]
#[serde(rename_all = "kebab-case")]
struct Report {
    target: String,
    list: String,
    chunks: u64,
    packs: u64,
    bytes: u64,
    uploaded: u64,
    uploaded_bytes: u64,
    cut: bool,
    changed: bool,
}

/// Packs.
pub fn run(args: &Args, out: &mut dyn Write) -> Result<ExitCode, Failure> {
    let watch = Watch::begin(false)?;
    let trace = File::open(&args.trace).map_err(|error| args.no_trace(&error.into()))?;
    let (packed, is_cut) = copying::reactor()?.run(async {
        let place = watch.within_grace(args.place()).await??;
        let packed = watch.within_grace(args.pack(&place, trace)).await;
        if let Err(error) = place.end_push().await {
            warn(&format!("cowhand prune will take this for a push that still runs: {error}"));
        }
        packed.flatten()
    })?;
    let Packed { list, chunks, packs, bytes, uploaded, uploaded_bytes, is_changed, .. } = packed;
    let (target, changed, cut) = (args.name.clone(), is_changed, is_cut || packed.is_cut);
    let report = Report { target, list, chunks, packs, bytes, uploaded, uploaded_bytes, cut, changed };
    match args.output {
        _ if args.quiet => {}
        OutputFormat::Json => write_json(out, &report)?,
        OutputFormat::Human => report.write_human(out)?,
    }
    Ok(ExitCode::SUCCESS)
}

impl Args {
    /// Where the image is. Asks no store.
    async fn place(&self) -> Result<Place, Failure> {
        let (_, name) = split_key(without_prefix(&self.name));
        let cannot = || format!("cannot pack {}", graph::drive::shown(name.as_ref()));
        match object_store(name).await {
            Some(Ok((store, key))) => Ok(Place::in_bucket(Arc::new(store), &key)),
            Some(Err(error)) => Err(Failure::because(cannot(), &error)),
            None => {
                let allowed = "s3://BUCKET/FOLDER/NAME, or the same with gs or az";
                Err(Failure::new(format!("{}; allowed: {allowed}", cannot())))
            }
        }
    }

    /// Packs what the trace reads of the image. Says also whether the trace reads more than was looked at.
    async fn pack(&self, place: &Place, trace: File) -> Result<(Packed, bool), Failure> {
        let failed = |error: Error| {
            let failure = Failure::because(format!("cannot pack {}", place.image()), &error);
            match error {
                Error::StartList { .. } => failure.with_hint(
                    "a start list makes starts faster and nothing else: remove the object if it is a damaged one",
                ),
                _ => failure,
            }
        };
        let packing = place.packing().await.map_err(failed)?;
        let (size, chunk_bytes) = (packing.manifest().size(), packing.manifest().chunk_size().bytes());
        let drive = self.drive.clone().unwrap_or_default();
        let again = trace.try_clone().map_err(|error| self.no_trace(&error.into()))?;
        let wanted = PlanRequest { drive, size, bytes_max: None };
        let planned = reactor::blocking(move || plan(trace, &wanted)).await;
        let planned = planned.map_err(|error| self.no_trace(&error))?;
        let Plan { ranges, is_cut, .. } = planned.ok_or_else(|| self.of_others(again))?;
        let mut met = HashSet::new();
        let chunks =
            ranges.iter().flat_map(|range| range.start / chunk_bytes..range.end.div_ceil(chunk_bytes));
        let packed = packing.run(chunks.filter(|chunk| met.insert(*chunk))).await.map_err(failed)?;
        Ok((packed, is_cut))
    }

    fn no_trace(&self, error: &ReadError) -> Failure {
        Failure::because(format!("cannot read the trace {}", self.trace.display()), error)
    }

    /// The trace does not say which of its disks is meant.
    fn of_others(&self, trace: File) -> Failure {
        let names = || -> Result<Vec<String>, ReadError> {
            io::Seek::rewind(&mut &trace)?;
            Ok(disks(trace)?.into_iter().map(|disk| printable(&disk.name).into_owned()).collect())
        };
        let names = match names() {
            Ok(names) => names,
            Err(error) => return self.no_trace(&error),
        };
        let (shown, more) = names.split_at(names.len().min(DISKS_SHOWN_MAX));
        let more = if more.is_empty() { "" } else { ", ..." };
        let what = match &self.drive {
            None => "is of several disks".to_owned(),
            Some(drive) => format!("is of no disk {}", drive.display()),
        };
        let path = Path::display(&self.trace);
        Failure::new(format!("the trace {path} {what}; it has: {}{more}", shown.join(", ")))
            .with_hint("--drive names the disk")
    }
}

impl Report {
    fn write_human(&self, out: &mut dyn Write) -> io::Result<()> {
        let Self { target, chunks, packs, bytes, uploaded, uploaded_bytes, .. } = self;
        let (bytes, sent) = (human_size(*bytes), human_size(*uploaded_bytes));
        let target = printable(target);
        let cut = if self.cut { "; the trace reads more" } else { "" };
        let what = match (self.changed, uploaded) {
            (false, _) => "nothing has changed".to_owned(),
            (true, uploaded) => format!("uploaded {uploaded}, {sent}"),
        };
        writeln!(out, "{target}: a start reads {chunks} chunks in {packs} packs, {bytes}; {what}{cut}")
    }
}
