//! `cowhand diff`: which ranges of two disks may differ, from their maps alone.

use std::ffi::OsString;
use std::io::{self, Write};
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;

use graph::options::DiskOptions;
use graph::probe::Format;
use graph::size::human_size;
use graph::{Disk, OpenRules};
use lineage::CheckpointRef;
use serde_json::json;

use crate::copying;
use crate::drive::NamesArgs;
use crate::failure::Failure;
use crate::lineages::args::{CheckpointArg, DISK_HELP, DiskArg, look};
use crate::output::OutputFormat;

/// Arguments of `cowhand diff`.
#[derive(Debug, clap::Args)]
#[command(
    long_about = "Show the ranges in which two disks or checkpoints may differ. No data is read: what both have from the layers that they \
        share is the same, and each range that a layer of only one of them says something about is shown, with what A and B say: \"data\", \
        \"zero\", or \"shared\" (from below). cowhand compare reads the data.\n\n\
        A and B are checkpoints (DISK@NAME) or the paths of images that no process writes.",
    after_help = DISK_HELP
)]
pub struct Args {
    /// A checkpoint, or an image
    #[arg(value_name = "A")]
    one: OsString,

    /// Another one
    #[arg(value_name = "B")]
    other: OsString,

    #[command(flatten)]
    names: NamesArgs,

    /// Form of the result
    #[arg(long, value_enum, default_value_t, value_name = "FORMAT")]
    output: OutputFormat,
}

/// Shows the ranges.
pub fn run(args: &Args, out: &mut dyn Write) -> Result<ExitCode, Failure> {
    let rules = OpenRules { policy: args.names.policy()?, ..OpenRules::default() };
    let [one, other] = [&args.one, &args.other].map(options_of);
    let (one, other) = (one?, other?);
    copying::reactor()?.run(async {
        let one = copying::open(&one, &rules, "open").await?;
        let other = copying::open(&other, &rules, "open").await?;
        let shown = show(&one, &other, args.output, out).await;
        let closed = [one.close().await, other.close().await];
        shown?;
        closed
            .into_iter()
            .try_for_each(|closed| closed.map_err(|error| Failure::because("cannot close", &error)))
    })?;
    Ok(ExitCode::SUCCESS)
}

/// An image that exists is meant by its whole name, also with an `@` in it.
fn options_of(text: &OsString) -> Result<DiskOptions, Failure> {
    let path = match PathBuf::from(text) {
        path if path.symlink_metadata().is_ok() && matches!(DiskArg::of(text), DiskArg::File(_)) => path,
        _ => {
            let arg = CheckpointArg::of(text)?;
            layer_of(&arg)?
        }
    };
    let mut options = DiskOptions::of_path(&path);
    options.layer.read_only = true;
    if path.extension().is_some_and(|extension| extension == "qcow2") {
        options.layer.format = Some(Format::Qcow2);
    }
    Ok(options)
}

fn layer_of(arg: &CheckpointArg) -> Result<PathBuf, Failure> {
    // A disk that is gone may have checkpoints.
    let directory = arg.disk.parent().filter(|_| arg.disk.symlink_metadata().is_err());
    let seen = match directory {
        Some(directory) => {
            look(if directory.as_os_str().is_empty() { ".".as_ref() } else { directory.as_os_str() })?
        }
        None => look(arg.disk.as_os_str())?,
    };
    let disk = match seen.disk {
        Some(disk) => disk,
        None => arg.disk().place()?,
    };
    let checkpoint: &CheckpointRef = &arg.checkpoint;
    Ok(seen.survey.place.layer(seen.survey.find(&disk, checkpoint)?))
}

/// What a disk says of a range.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Says {
    Data,
    Zero,
    /// What the layers say that both are backed by.
    Shared,
    /// It is behind the end.
    Nothing,
}

impl Says {
    const fn name(self) -> &'static str {
        match self {
            Self::Data => "data",
            Self::Zero => "zero",
            Self::Shared => "shared",
            Self::Nothing => "nothing",
        }
    }
}

/// A disk, and how many of its layers are not the other one's.
struct Side<'a> {
    disk: &'a Disk,
    own_layers: usize,
}

/// What is said of a range by both.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Part {
    start: u64,
    length: u64,
    says: [Says; 2],
}

async fn show(
    one: &Arc<Disk>,
    other: &Arc<Disk>,
    output: OutputFormat,
    out: &mut dyn Write,
) -> Result<(), Failure> {
    let (files, others) = (files(one), files(other));
    let shared = files.iter().rev().zip(others.iter().rev()).take_while(|(one, other)| one == other).count();
    let sides = [
        Side { disk: one, own_layers: files.len() - shared },
        Side { disk: other, own_layers: others.len() - shared },
    ];
    let end = one.size().max(other.size());
    let mut printer = Printer { out, output, rows: 0, bytes: 0, last: None };
    printer.begin()?;
    let mut at = 0;
    while at < end {
        let mut length = end - at;
        let mut says = [Says::Nothing; 2];
        for (side, says) in sides.iter().zip(&mut says) {
            let (found, len) = side.look(at, length).await?;
            (*says, length) = (found, length.min(len));
        }
        let differs = says != [Says::Shared; 2];
        printer.take(differs.then_some(Part { start: at, length, says }))?;
        at += length;
    }
    printer.end()
}

impl Side<'_> {
    /// What the disk says at an offset, and for how many bytes.
    async fn look(&self, at: u64, length: u64) -> Result<(Says, u64), Failure> {
        let size = self.disk.size();
        if at >= size {
            return Ok((Says::Nothing, length));
        }
        let status = self.disk.block_status(at, length.min(size - at)).await;
        let status = status.map_err(|error| Failure::because("cannot read a map", &error))?;
        let is_shared = status.depth as usize >= self.own_layers;
        let says = match status {
            _ if is_shared => Says::Shared,
            _ if status.zero || !status.data => Says::Zero,
            _ => Says::Data,
        };
        Ok((says, status.len))
    }
}

/// The files of a chain, links resolved.
fn files(disk: &Disk) -> Vec<PathBuf> {
    let path = |name: &str| {
        let path = PathBuf::from(name);
        path.canonicalize().unwrap_or(path)
    };
    block::layers(disk.root()).map(|layer| path(layer.name())).collect()
}

/// Prints ranges as they come, neighbours of a kind as one: a map of any length takes no memory.
struct Printer<'a> {
    out: &'a mut dyn Write,
    output: OutputFormat,
    rows: u64,
    bytes: u64,
    last: Option<Part>,
}

impl Printer<'_> {
    fn begin(&mut self) -> io::Result<()> {
        match self.output {
            OutputFormat::Human => writeln!(self.out, "{:<18}{:<18}{:<8}B", "Offset", "Length", "A"),
            OutputFormat::Json => write!(self.out, "["),
        }
    }

    fn take(&mut self, part: Option<Part>) -> Result<(), Failure> {
        match (&mut self.last, part) {
            (Some(last), Some(part)) if last.says == part.says => last.length += part.length,
            _ => {
                let last = std::mem::replace(&mut self.last, part);
                last.map_or(Ok(()), |last| self.row(last))?;
            }
        }
        Ok(())
    }

    fn row(&mut self, part: Part) -> io::Result<()> {
        let Part { start, length, says: [one, other] } = part;
        self.bytes += length;
        self.rows += 1;
        match self.output {
            OutputFormat::Human => {
                writeln!(self.out, "{start:<#18x}{length:<#18x}{:<8}{}", one.name(), other.name())
            }
            OutputFormat::Json => {
                let comma = if self.rows > 1 { ",\n" } else { "" };
                write!(
                    self.out,
                    "{comma}{}",
                    json!({ "start": start, "length": length, "a": one.name(), "b": other.name() })
                )
            }
        }
    }

    fn end(mut self) -> Result<(), Failure> {
        self.take(None)?;
        match self.output {
            OutputFormat::Human => {
                writeln!(self.out, "{} in {} ranges may differ", human_size(self.bytes), self.rows)?
            }
            OutputFormat::Json => writeln!(self.out, "]")?,
        }
        Ok(())
    }
}
