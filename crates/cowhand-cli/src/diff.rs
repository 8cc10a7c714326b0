//! `cowhand diff`: which ranges of two disks may differ, from their maps alone.

mod published;

use std::ffi::OsString;
use std::io::{self, Write};
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;

use checkpoints::{Differences, Part};
use graph::options::DiskOptions;
use graph::probe::Format;
use graph::size::human_size;
use graph::{Disk, OpenRules};
use lineage::LayerId;
use serde_json::json;
use tool::failure::Failure;
use tool::lineages::part::{self, PART_JSON};

use self::published::Pair;
use crate::copying;
use crate::drive::NamesArgs;
use crate::lineages::args::{CheckpointArg, DiskArg, Served, with_disk};
use crate::output::{OutputFormat, with_json};

const EXAMPLES: &str = "\
Examples:
  cowhand diff disk.qcow2@installed disk.qcow2
  cowhand diff --output json disk.qmp@one disk.qmp@two";

/// Arguments of `cowhand diff`.
#[derive(Debug, clap::Args)]
#[command(
    long_about = "Show the ranges in which two disks or checkpoints may differ. No data is read: what both have from the layers that they \
        share is the same, and each range that a layer of only one of them says something about is shown, with what A and B say: \"data\", \
        \"zero\", or \"shared\" (from below). cowhand compare reads the data.\n\n\
        A and B are checkpoints (DISK@NAME) or the paths of images that no process writes. One of them may be a disk that a server has open \
        (SOCKET or SOCKET:NODE), as it is now, beside a checkpoint of its lineage. Or both are published disks of a store \
        (s3://BUCKET/FOLDER/NAME, or NAME@CHECKPOINT): the names of their chunks are compared, and no chunk is read.",
    after_help = with_disk(EXAMPLES),
    after_long_help = with_json(&with_disk(EXAMPLES), &[PART_JSON])
)]
pub struct Args {
    /// A checkpoint, an image, or a disk that a server has open
    #[arg(value_name = "A")]
    one: OsString,

    /// Another one
    #[arg(value_name = "B")]
    other: OsString,

    /// The secret (--object secret,id=ID,file=PATH) that holds the key of encrypted published disks
    #[arg(long, value_name = "ID")]
    encrypt_key_secret: Option<String>,

    #[command(flatten)]
    names: NamesArgs,

    /// Form of the result
    #[arg(long, value_enum, default_value_t, value_name = "FORMAT")]
    output: OutputFormat,
}

/// Shows the ranges.
pub fn run(args: &Args, out: &mut dyn Write) -> Result<ExitCode, Failure> {
    if let Some(pair) = Pair::of(&args.one, &args.other)? {
        pair.show(args.encrypt_key_secret.as_deref(), Printer::new(out, args.output))?;
        return Ok(ExitCode::SUCCESS);
    }
    if let Some(live) = Live::of(&args.one, &args.other)? {
        live.show(Printer::new(out, args.output))?;
        return Ok(ExitCode::SUCCESS);
    }
    let rules = OpenRules { policy: args.names.policy()?, ..OpenRules::default() };
    let [one, other] = [&args.one, &args.other].map(options_of);
    let (one, other) = (one?, other?);
    copying::reactor()?.run(async {
        let one = copying::open(&one, &rules, "open").await?;
        let other = copying::open(&other, &rules, "open").await?;
        let shown = show(&one, &other, Printer::new(out, args.output)).await;
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
        let sealed = CheckpointArg::of(text)?.find()?;
        // A layer that was written since is another one.
        sealed.chain()?;
        return Ok(sealed.options());
    }
    let mut options = DiskOptions::of_path(&path);
    options.layer.read_only = true;
    if path.extension().is_some_and(|extension| extension == "qcow2") {
        options.layer.format = Some(Format::Qcow2);
    }
    Ok(options)
}

async fn show(one: &Arc<Disk>, other: &Arc<Disk>, mut printer: Printer<'_>) -> Result<(), Failure> {
    let mut differences = Differences::of(one.root(), other.root(), 0);
    printer.begin()?;
    let failed = |error| Failure::because("cannot read a map", &error);
    while let Some(part) = differences.next().await.map_err(failed)? {
        printer.row(part)?;
    }
    Ok(printer.end()?)
}

/// A disk that a server has open, and a checkpoint of its lineage: the server compares them.
struct Live {
    served: Served,
    checkpoint: LayerId,
    /// The disk is A.
    is_first: bool,
}

impl Live {
    fn of(one: &OsString, other: &OsString) -> Result<Option<Self>, Failure> {
        let (served, text, is_first) = match (DiskArg::of(one).served()?, DiskArg::of(other).served()?) {
            (None, None) => return Ok(None),
            (Some(served), None) => (served, other, true),
            (None, Some(served)) => (served, one, false),
            (Some(_), Some(_)) => {
                return Err(Failure::new(
                    "both are disks at work: take a checkpoint of one of them (cowhand checkpoint), and compare that",
                ));
            }
        };
        let checkpoint = CheckpointArg::of(text)?.find()?.id;
        Ok(Some(Self { served, checkpoint, is_first }))
    }

    fn show(mut self, mut printer: Printer<'_>) -> Result<(), Failure> {
        printer.begin()?;
        let mut offset = Some(0);
        while let Some(from) = offset {
            let wanted = json!({ "node-name": self.served.node, "checkpoint": self.checkpoint.to_string(), "offset": from });
            let page = self.served.remote.ask("cowhand-diff", wanted)?;
            for range in page["ranges"].as_array().into_iter().flatten() {
                let part = part::of_json(range).ok_or_else(|| {
                    Failure::new(format!(
                        "the server answers cowhand-diff with a range that is none: {range}"
                    ))
                })?;
                let [checkpoint, disk] = part.says;
                let says = if self.is_first { [disk, checkpoint] } else { part.says };
                printer.row(Part { says, ..part })?;
            }
            offset = page["next"].as_u64();
        }
        Ok(printer.end()?)
    }
}

/// Prints ranges as they come.
struct Printer<'a> {
    out: &'a mut dyn Write,
    output: OutputFormat,
    rows: u64,
    bytes: u64,
}

impl<'a> Printer<'a> {
    fn new(out: &'a mut dyn Write, output: OutputFormat) -> Self {
        Self { out, output, rows: 0, bytes: 0 }
    }

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
                write!(self.out, "{comma}{}", part::json_of(&part))
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
