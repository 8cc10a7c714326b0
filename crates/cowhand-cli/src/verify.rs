//! `cowhand verify`: checksums of what disks hold.

mod digest;
mod list;

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::thread;
use std::time::{Duration, Instant};

use graph::OpenRules;
use graph::cache_mode::CacheMode;
use graph::options::DiskOptions;
use graph::probe::Format;
use serde::Serialize;
use tool::failure::{FAILED, Failure};
use tool::output::{printable, tell, write_json};

use self::digest::{Algorithm, Done};
use self::list::Line;
use crate::copying::{self, Memory};
use crate::drive::{OpenArgs, cache_modes, formats};
use crate::exit_codes;
use crate::output::{OutputFormat, with_json};
use crate::progress::Progress;

/// Often enough to be seen moving.
const SHOWN_EVERY: Duration = Duration::from_millis(200);

const EXAMPLES: &str = "\
Examples:
  cowhand verify disk.qcow2 other.raw > SUMS
  cowhand verify --check SUMS
  cowhand verify --algorithm blake3 -p *.qcow2
  cowhand convert disk.qcow2 disk.raw && cowhand verify disk.qcow2 && sha256sum disk.raw
cowhand info --help says what a DRIVE is.";

/// Arguments of `cowhand verify`.
#[derive(Debug, clap::Args)]
#[command(
    long_about = format!("Print checksums of what guests see of disks, in lines that sha256sum prints and checks, or check such lines. The \
        format, the chain and how an image lies in its file make no difference: the checksum is that of the raw disk. Zeroes \
        that the map knows are not read. Several disks are read at the same time.\n\n\
        {}", exit_codes::of_verify()),
    after_help = EXAMPLES,
    after_long_help = with_json(EXAMPLES, &[JSON])
)]
pub struct Args {
    /// The disks: paths, or DRIVEs
    #[arg(value_name = "DRIVE", required_unless_present = "check")]
    drives: Vec<OsString>,

    /// Format of each: qcow2 or raw [default: what its first bytes say]
    #[arg(short = 'f', value_name = "FORMAT", value_parser = formats(), hide_possible_values = true)]
    format: Option<Format>,

    #[command(flatten)]
    opening: OpenArgs,

    /// The checksum
    #[arg(short = 'a', long, value_enum, default_value_t, value_name = "NAME")]
    algorithm: Algorithm,

    /// Check the lines of FILE (- is standard input)
    #[arg(long, value_name = "FILE", conflicts_with = "drives")]
    check: Option<PathBuf>,

    /// Cache mode of all: writeback, writethrough, none, directsync, unsafe
    #[arg(short = 'T', value_name = "MODE", value_parser = cache_modes(), hide_possible_values = true)]
    cache: Option<CacheMode>,

    /// Show how far it is, on a terminal
    #[arg(short = 'p')]
    progress: bool,

    /// Print nothing but errors; the exit code has the result of --check
    #[arg(short = 'q')]
    quiet: bool,

    /// Form of the result
    #[arg(long, value_enum, default_value_t, value_name = "FORMAT")]
    output: OutputFormat,
}

/// A disk, and the checksum that it should have.
#[derive(Debug)]
struct DiskToVerify {
    name: OsString,
    expected: Option<String>,
}

/// What [`Verdict`] prints, in a list.
const JSON: &str = "\
A list of disks, of each:
  filename                text: the disk, as it was named
  algorithm               text: sha256 or blake3
  digest?                 text: the checksum in hexadecimal; absent if the disk could not be read
  size?                   size of the disk; likewise
  expected?               text: the checksum that it should have (--check)
  ok                      bool: it could be read and, with --check, has that checksum";

/// What is said of a disk.
#[derive(Debug, Serialize)]
struct Verdict {
    filename: String,
    algorithm: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    digest: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    size: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    expected: Option<String>,
    /// It could be read and, if a checksum was expected, has it.
    ok: bool,
}

impl Verdict {
    fn of(asked: &DiskToVerify, algorithm: Algorithm, done: Option<Done>) -> Self {
        let ok = done.as_ref().is_some_and(|done| {
            asked.expected.as_ref().is_none_or(|expected| expected.eq_ignore_ascii_case(&done.digest))
        });
        let (digest, size) = done.map(|done| (done.digest, done.size)).unzip();
        Self {
            filename: asked.name.to_string_lossy().into_owned(),
            algorithm: algorithm.name(),
            digest,
            size,
            expected: asked.expected.clone(),
            ok,
        }
    }

    fn write_human(&self, out: &mut dyn Write) -> std::io::Result<()> {
        match (&self.digest, &self.expected) {
            (Some(digest), None) => {
                let line = Line { digest: digest.clone(), name: self.filename.clone() };
                writeln!(out, "{line}")
            }
            (Some(_), Some(_)) => {
                writeln!(out, "{}: {}", printable(&self.filename), if self.ok { "OK" } else { "FAILED" })
            }
            (None, Some(_)) => writeln!(out, "{}: FAILED open or read", printable(&self.filename)),
            (None, None) => Ok(()),
        }
    }
}

/// What the threads that read share.
struct Shared<'a> {
    args: &'a Args,
    asked: &'a [DiskToVerify],
    rules: OpenRules,
    /// The index of the next disk to be read.
    next: AtomicUsize,
    total_bytes: AtomicU64,
    done_bytes: AtomicU64,
}

/// Prints checksums, or checks them.
pub fn run(args: &Args, out: &mut dyn Write) -> Result<ExitCode, Failure> {
    let asked: Vec<DiskToVerify> = match &args.check {
        None => args.drives.iter().map(|name| DiskToVerify { name: name.clone(), expected: None }).collect(),
        Some(file) => {
            let lines = list::read(file)?.into_iter();
            lines.map(|line| DiskToVerify { name: line.name.into(), expected: Some(line.digest) }).collect()
        }
    };
    let rules = Memory::default().rules(args.opening.policy()?);
    let shared = Shared {
        args,
        asked: &asked,
        rules,
        next: AtomicUsize::new(0),
        total_bytes: AtomicU64::new(0),
        done_bytes: AtomicU64::new(0),
    };
    let mut verdicts = Vec::new();
    each(&shared, &mut |verdict| {
        if args.output == OutputFormat::Human && !args.quiet {
            verdict.write_human(out)?;
            out.flush()?;
        }
        verdicts.push(verdict);
        Ok(())
    })?;
    if args.output == OutputFormat::Json && !args.quiet {
        write_json(out, &verdicts)?;
    }
    let bad = verdicts.iter().filter(|verdict| !verdict.ok).count();
    if bad == 0 {
        return Ok(ExitCode::SUCCESS);
    }
    if args.check.is_some() {
        tell(format_args!("cowhand: {bad} of {} disks are not what they should be", verdicts.len()));
    }
    Ok(ExitCode::from(FAILED))
}

/// Reads all disks, several at the same time, and gives the verdicts in their order.
fn each(shared: &Shared<'_>, give: &mut dyn FnMut(Verdict) -> Result<(), Failure>) -> Result<(), Failure> {
    let cores = thread::available_parallelism().map_or(1, usize::from);
    let (sender, receiver) = channel();
    let mut progress = Progress::begin(shared.args.progress && !shared.args.quiet, 0, Instant::now());
    thread::scope(|scope| {
        for _ in 0..cores.min(shared.asked.len()) {
            let sender = sender.clone();
            scope.spawn(move || read_disks(shared, &sender));
        }
        drop(sender);
        let (mut early, mut next) = (BTreeMap::new(), 0);
        loop {
            match receiver.recv_timeout(SHOWN_EVERY) {
                Ok((index, result)) => drop(early.insert(index, result)),
                Err(RecvTimeoutError::Timeout) => {
                    progress.set_total(shared.total_bytes.load(Ordering::Relaxed));
                    progress.at(shared.done_bytes.load(Ordering::Relaxed), Instant::now());
                }
                Err(RecvTimeoutError::Disconnected) => break,
            }
            while let Some(result) = early.remove(&next) {
                progress.end();
                let Some(asked) = shared.asked.get(next) else { break };
                let done = result.map_err(|failure: Failure| failure.report()).ok();
                give(Verdict::of(asked, shared.args.algorithm, done))?;
                next += 1;
            }
        }
        progress.end();
        Ok(())
    })
}

/// One thread: takes disk after disk.
fn read_disks(shared: &Shared<'_>, sender: &Sender<(usize, Result<Done, Failure>)>) {
    loop {
        let index = shared.next.fetch_add(1, Ordering::Relaxed);
        let Some(asked) = shared.asked.get(index) else { return };
        let result = read_disk(shared, &asked.name);
        if sender.send((index, result)).is_err() {
            return;
        }
    }
}

fn read_disk(shared: &Shared<'_>, name: &OsString) -> Result<Done, Failure> {
    let options = options(shared.args, name)?;
    copying::reactor()?.run(async {
        let disk = copying::open(&options, &shared.rules, "verify").await?;
        shared.total_bytes.fetch_add(disk.size(), Ordering::Relaxed);
        let done = digest::digest(&*disk, shared.args.algorithm, &shared.done_bytes).await;
        copying::finish(&disk, done, |error| copying::because("verify", &options, error)).await
    })
}

/// How a disk is opened. A name in a list is a path, whatever it looks like.
fn options(args: &Args, name: &OsString) -> Result<DiskOptions, Failure> {
    let mut options = match &args.check {
        None => args.opening.options(name, "-f", args.format)?,
        Some(_) => {
            let mut options = DiskOptions::of_path(Path::new(name));
            options.layer.format = args.format;
            options
        }
    };
    options.layer.read_only = true;
    if let Some(mode) = args.cache {
        options.set_cache(mode);
    }
    Ok(options)
}
