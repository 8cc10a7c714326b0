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

use crate::copying;
use crate::drive::NamesArgs;
use crate::failure::Failure;
use crate::lineages::args::{CheckpointArg, DISK_HELP, DiskArg};
use crate::lineages::difference::{Differences, Part};
use crate::lineages::sealed::Sealed;
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
    let path = PathBuf::from(text);
    if path.symlink_metadata().is_err() || !matches!(DiskArg::of(text), DiskArg::File(_)) {
        return Ok(Sealed::find(&CheckpointArg::of(text)?)?.options());
    }
    let mut options = DiskOptions::of_path(&path);
    options.layer.read_only = true;
    if path.extension().is_some_and(|extension| extension == "qcow2") {
        options.layer.format = Some(Format::Qcow2);
    }
    Ok(options)
}

async fn show(
    one: &Arc<Disk>,
    other: &Arc<Disk>,
    output: OutputFormat,
    out: &mut dyn Write,
) -> Result<(), Failure> {
    let mut differences = Differences::of(one.root(), other.root(), 0);
    let mut printer = Printer { out, output, rows: 0, bytes: 0 };
    printer.begin()?;
    let failed = |error| Failure::because("cannot read a map", &error);
    while let Some(part) = differences.next().await.map_err(failed)? {
        printer.row(part)?;
    }
    Ok(printer.end()?)
}

/// Prints ranges as they come.
struct Printer<'a> {
    out: &'a mut dyn Write,
    output: OutputFormat,
    rows: u64,
    bytes: u64,
}

impl Printer<'_> {
    fn begin(&mut self) -> io::Result<()> {
        match self.output {
            OutputFormat::Human => writeln!(self.out, "{:<18}{:<18}{:<8}B", "Offset", "Length", "A"),
            OutputFormat::Json => write!(self.out, "["),
        }
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
                write!(self.out, "{comma}{}", part.json())
            }
        }
    }

    fn end(self) -> io::Result<()> {
        match self.output {
            OutputFormat::Human => {
                writeln!(self.out, "{} in {} ranges may differ", human_size(self.bytes), self.rows)
            }
            OutputFormat::Json => writeln!(self.out, "]"),
        }
    }
}
