//! `cowhand backup`: full and incremental backups in a directory, which plain qemu-img can read.

mod forget;
mod full;
mod image;
mod manifest;
mod new_point;
mod restore;
mod server;

use std::ffi::{OsStr, OsString};
use std::io::Write;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::ArgGroup;
use graph::probe::Format;
use graph::size::human_size;
use serde::Serialize;
use serde_json::json;
use tool::failure::{FAILED, Failure, warn};
use tool::output::write_json;

use self::full::FullBecause;
use self::manifest::{POINT_JSON, Point, Store};
use crate::copying::Memory;
use crate::copying::report::ReportArgs;
use crate::drive::{OpenArgs, formats, made_formats};
use crate::output::{OutputFormat, with_json};

const EXAMPLES: &str = "\
Examples:
  cowhand backup disk.qcow2 /backups/disk
  cowhand backup /run/cowhand/qmp /backups/disk --disk disk
  cowhand backup --list /backups/disk
  cowhand backup --verify /backups/disk
  cowhand backup --restore /backups/disk@3 disk.qcow2
  cowhand backup --forget 7 /backups/disk";

/// Arguments of `cowhand backup`.
#[derive(Debug, clap::Args)]
#[command(
    long_about = "Keep full and incremental backups of a disk in a directory. SOURCE is an image that no process has open, or the control \
        socket of a server that has it open (cowhand serve --qmp, or QEMU's): then guests continue to write, and the backup is of one moment. \
        The first point is a full one; each later one holds what changed since, by a bitmap that is kept in the image. Where there \
        is no such bitmap, the next point is a full one again, and that is said.\n\n\
        Each point is a qcow2 image over the one before it: qemu-img convert DIR/0003-incremental.qcow2 reads the disk as it was. \
        A point counts when it is whole, checked and on disk; an interrupted backup leaves the points before it, and the \
        next run continues from the last of them.\n\n\
        An increment needs the points before it, back to a full one. So --forget removes the oldest points a run at a time: a full point \
        and its increments. Take a full one now and then (--full), or the first run never ends.",
    after_help = EXAMPLES,
    after_long_help = with_json(EXAMPLES, &[JSON, POINT_JSON]),
    group = ArgGroup::new("action").multiple(false)
)]
pub struct Args {
    /// SOURCE DIR; with an action DIR, and with --restore DIR[@POINT] TARGET
    #[arg(value_name = "NAME", required = true, num_args = 1..=2)]
    names: Vec<OsString>,

    /// List the points
    #[arg(long, group = "action")]
    list: bool,

    /// Look at every point: its file is what was written, and its metadata is sound
    #[arg(long, group = "action")]
    verify: bool,

    /// Make TARGET an image of the disk as it was at POINT [default: the last]
    #[arg(long, group = "action")]
    restore: bool,

    /// Remove the oldest points, a full one with its increments at a time, while N points stay at least
    #[arg(long, group = "action", value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    forget: Option<u32>,

    /// Take a full backup, also where an incremental one is possible
    #[arg(long, conflicts_with = "action")]
    full: bool,

    /// The disk of the server, if it has several
    #[arg(long, value_name = "NAME", conflicts_with = "action")]
    disk: Option<String>,

    /// Format of SOURCE: qcow2 or raw [default: what its first bytes say]
    #[arg(short = 'f', value_name = "FORMAT", value_parser = formats(), hide_possible_values = true, conflicts_with = "action")]
    format: Option<Format>,

    /// Format of TARGET: qcow2 or raw
    #[arg(short = 'O', value_name = "FORMAT", value_parser = made_formats(), hide_possible_values = true, default_value = "qcow2")]
    target_format: Format,

    #[command(flatten)]
    opening: OpenArgs,

    #[command(flatten)]
    report: ReportArgs,
}

/// What the actions print beside [`Point`].
const JSON: &str = "\
With --list a list of points, each with:
  missing?                bool: its file is not there
With --forget a list of the points that were removed. Without an action the new point, and:
  full-because?           text: why it is a full one: first, asked, earlier-build, no-bitmap or
                          bitmap-missed-changes; absent of an incremental one
With --verify a list, of each point:
  point                   number
  sound                   bool
  verdict                 text: what is wrong, or \"sound\"
With --restore nothing is printed.
Of each point:";

/// A point that was taken, as JSON.
#[derive(Debug, Serialize)]
#[serde(rename_all = "kebab-case")]
struct Taken<'a> {
    #[serde(flatten)]
    point: &'a Point,
    #[serde(skip_serializing_if = "Option::is_none")]
    full_because: Option<&'static str>,
}

/// Backs up, or does what was asked with the points.
pub fn run(args: &Args, out: &mut dyn Write) -> Result<ExitCode, Failure> {
    let (first, second) = (args.names.first(), args.names.get(1));
    let wrong = |what: &str| Err(Failure::new(what));
    let takes_directory = args.list || args.verify || args.forget.is_some();
    match (first, second) {
        (Some(directory), None) if args.list => list(args, directory, out),
        (Some(directory), None) if args.verify => verify(args, directory, out),
        (Some(directory), None) if args.forget.is_some() => forget(args, directory, out),
        (Some(directory), Some(target)) if args.restore => restore(args, directory, target, out),
        (Some(source), Some(directory)) if !takes_directory => take(args, source, directory, out),
        _ if args.restore => wrong("--restore takes DIR[@POINT] and TARGET"),
        _ if takes_directory => wrong("--list, --verify and --forget take DIR alone"),
        _ => wrong("backup takes SOURCE and DIR"),
    }
}

fn take(args: &Args, source: &OsStr, directory: &OsStr, out: &mut dyn Write) -> Result<ExitCode, Failure> {
    let is_socket = Path::new(source).metadata().is_ok_and(|found| found.file_type().is_socket());
    if !is_socket && args.disk.is_some() {
        return Err(Failure::new("--disk names a disk of a server; SOURCE is no control socket"));
    }
    let memory = Memory::default();
    let rules = memory.rules(args.opening.policy()?);
    let options = match is_socket {
        true => None,
        false => Some(args.opening.options(&source.to_owned(), "-f", args.format)?),
    };
    let watch = args.report.watch()?;
    let mut store = Store::open(Path::new(directory), true)?;
    let (point, because) = match options {
        None => server::take(&mut store, Path::new(source), args.disk.as_deref(), args.full, &watch)?,
        Some(options) => image::take(&mut store, options, &rules, args.full, &watch)?,
    };
    if let Some(reported) = because.and_then(FullBecause::reported) {
        warn(reported);
    }
    match args.report.output {
        _ if args.report.quiet => {}
        OutputFormat::Json => {
            let full_because = because.map(FullBecause::name);
            write_json(out, &Taken { point: &point, full_because })?;
        }
        OutputFormat::Human => show(&point, out)?,
    }
    Ok(ExitCode::SUCCESS)
}

fn show(point: &Point, out: &mut dyn Write) -> Result<(), Failure> {
    Ok(writeln!(out, "{}", line_of(point))?)
}

fn line_of(point: &Point) -> String {
    let Point { point, kind, file, disk_bytes, file_bytes, .. } = point;
    let (disk, size) = (human_size(*disk_bytes), human_size(*file_bytes));
    format!("{point:4}  {:11}  {size:>9} of {disk:>9}  {file}", kind.name())
}

/// A point of the list, as JSON.
#[derive(Debug, Serialize)]
#[serde(rename_all = "kebab-case")]
struct Listed<'a> {
    #[serde(flatten)]
    point: &'a Point,
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    missing: bool,
}

fn list(args: &Args, directory: &OsStr, out: &mut dyn Write) -> Result<ExitCode, Failure> {
    let store = Store::open(Path::new(directory), false)?;
    let points = store.points().iter().map(|point| Listed { point, missing: !store.has_file(point) });
    match args.report.output {
        OutputFormat::Json => write_json(out, &points.collect::<Vec<_>>())?,
        OutputFormat::Human => {
            for Listed { point, missing } in points {
                writeln!(out, "{}{}", line_of(point), if missing { ", which is not there" } else { "" })?;
            }
        }
    }
    Ok(ExitCode::SUCCESS)
}

fn forget(args: &Args, directory: &OsStr, out: &mut dyn Write) -> Result<ExitCode, Failure> {
    let mut store = Store::open(Path::new(directory), false)?;
    let removed = forget::forget(&mut store, args.forget.unwrap_or(u32::MAX))?;
    match args.report.output {
        _ if args.report.quiet => {}
        OutputFormat::Json => write_json(out, &removed)?,
        OutputFormat::Human => {
            removed.iter().try_for_each(|point| writeln!(out, "{}, removed", line_of(point)))?;
        }
    }
    Ok(ExitCode::SUCCESS)
}

fn verify(args: &Args, directory: &OsStr, out: &mut dyn Write) -> Result<ExitCode, Failure> {
    let store = Store::open(Path::new(directory), false)?;
    let rules = Memory::default().rules(args.opening.policy()?);
    let watch = args.report.watch()?;
    let mut found = Vec::new();
    let human = args.report.output == OutputFormat::Human && !args.report.quiet;
    let wrong = restore::verify(&store, &rules, &watch, |point, failure| {
        let verdict = failure.map_or_else(|| "sound".to_owned(), ToString::to_string);
        if human {
            writeln!(out, "{:4}  {:11}  {verdict}", point.point, point.kind.name())?;
        }
        found.push(json!({ "point": point.point, "sound": failure.is_none(), "verdict": verdict }));
        Ok(())
    })?;
    if args.report.output == OutputFormat::Json && !args.report.quiet {
        write_json(out, &found)?;
    }
    Ok(if wrong == 0 { ExitCode::SUCCESS } else { ExitCode::from(FAILED) })
}

fn restore(args: &Args, place: &OsStr, target: &OsStr, out: &mut dyn Write) -> Result<ExitCode, Failure> {
    let (directory, number) = place_of(place);
    let store = Store::open(&directory, false)?;
    let point = store.point(number)?.clone();
    let rules = Memory::default().rules(args.opening.policy()?);
    let watch = args.report.watch()?;
    let quiet: &mut dyn Write = &mut std::io::sink();
    let out = if args.report.quiet { quiet } else { out };
    restore::restore(&store, &point, Path::new(target), args.target_format, &rules, &watch, out)?;
    Ok(ExitCode::SUCCESS)
}

/// `DIR` or `DIR@POINT`. A directory whose name ends like that is meant by its whole name.
fn place_of(text: &OsStr) -> (PathBuf, Option<u32>) {
    let whole = (PathBuf::from(text), None);
    if whole.0.is_dir() {
        return whole;
    }
    let bytes = text.as_bytes();
    let Some(at) = bytes.iter().rposition(|byte| *byte == b'@') else { return whole };
    let (directory, number) = bytes.split_at(at);
    let number = std::str::from_utf8(number).ok().and_then(|text| text.trim_start_matches('@').parse().ok());
    match number {
        Some(number) => (PathBuf::from(OsString::from_vec(directory.to_vec())), Some(number)),
        None => whole,
    }
}
