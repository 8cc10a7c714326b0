//! `cowhand compare`: whether two disks have the same content.

mod result;
mod walk;

use std::ffi::OsString;
use std::future::ready;
use std::io::Write;
use std::pin::pin;
use std::process::ExitCode;
use std::time::Instant;

use block::Block;
use futures_util::future::join;
use futures_util::{StreamExt, stream};
use graph::cache_mode::CacheMode;
use graph::options::DiskOptions;
use graph::probe::Format;
use graph::{Disk, OpenRules};
use storage::{Hints, IoBuf};
use tool::failure::Failure;
use tool::output::write_json;
use tool::voice;

pub(crate) use self::result::Difference;
use self::result::{Outcome, warn_of_sizes};
use self::walk::{Piece, Step, Walk};
use crate::copying::{self, Memory};
use crate::drive::{OpenArgs, cache_modes, formats};
use crate::exit_codes;
use crate::output::{OutputFormat, with_json};
use crate::progress::Progress;

/// Exit codes, as qemu-img's. 0 says that the disks are the same.
pub mod code {
    /// They differ.
    pub const DIFFERENT: u8 = 1;
    /// An image could not be opened, or the command line makes no sense.
    pub const CANNOT_OPEN: u8 = 2;
    /// A map could not be read.
    pub const CANNOT_MAP: u8 = 3;
    /// Data could not be read.
    pub const CANNOT_READ: u8 = 4;
}

/// Bytes of each disk that are read and compared at a time.
const PIECE_BYTES: u64 = 1 << 20;
/// Pieces that are read at the same time. With both disks that is 16 MiB of memory.
const PIECES_IN_FLIGHT: usize = 8;
/// A difference is reported by its sector.
const SECTOR_BYTES: usize = block::SECTOR_BYTES as usize;

const EXAMPLES: &str = "\
Examples:
  cowhand compare disk.qcow2 copy.raw
  cowhand compare -f raw -F qcow2 -p /dev/vg/disk disk.qcow2
  cowhand compare -s a.qcow2 b.qcow2              sizes and what is allocated must be the same too
  cowhand compare --output json a.qcow2 b.qcow2
cowhand info --help says what a DRIVE is.";

/// Arguments of `cowhand compare`.
#[derive(Debug, clap::Args)]
#[command(
    long_about = format!("Say whether two disks have the same content, whatever their formats and chains. What the maps of both call \
        zeroes is not read. Where one disk is longer, the rest must read as zeroes.\n\n\
        {}", exit_codes::of_compare()),
    after_help = EXAMPLES,
    after_long_help = with_json(EXAMPLES, &[result::JSON])
)]
pub struct Args {
    /// One disk: a path, or a DRIVE
    #[arg(value_name = "DRIVE1")]
    first: OsString,

    /// The other one
    #[arg(value_name = "DRIVE2")]
    second: OsString,

    /// Format of DRIVE1: qcow2 or raw [default: what its first bytes say]
    #[arg(short = 'f', value_name = "FORMAT", value_parser = formats(), hide_possible_values = true)]
    first_format: Option<Format>,

    /// Format of DRIVE2
    #[arg(short = 'F', value_name = "FORMAT", value_parser = formats(), hide_possible_values = true)]
    second_format: Option<Format>,

    #[command(flatten)]
    opening: OpenArgs,

    /// Cache mode of both: writeback, writethrough, none, directsync, unsafe
    #[arg(short = 'T', value_name = "MODE", value_parser = cache_modes(), hide_possible_values = true)]
    cache: Option<CacheMode>,

    /// Strict: sizes must be the same, and each part allocated, zero or compressed in both
    #[arg(short = 's')]
    strict: bool,

    /// Show how far it is, on a terminal
    #[arg(short = 'p')]
    progress: bool,

    /// Say nothing; the exit code has the result
    #[arg(short = 'q')]
    quiet: bool,

    /// Form of the result
    #[arg(long, value_enum, default_value_t, value_name = "FORMAT")]
    output: OutputFormat,
}

/// Compares.
pub fn run(args: &Args, out: &mut dyn Write) -> Result<ExitCode, Failure> {
    let mut progress = Progress::begin(args.progress && !args.quiet, 1, Instant::now());
    let compared = compare(args, &mut progress);
    if !voice::is_qemu() {
        progress.end();
    }
    let code = say(args, compared, out);
    // qemu-img ends the line of progress behind the result.
    out.flush()?;
    progress.end();
    code
}

/// Says what was found.
fn say(args: &Args, compared: Result<Outcome, Stopped>, out: &mut dyn Write) -> Result<ExitCode, Failure> {
    let is_for_people = !args.quiet && matches!(args.output, OutputFormat::Human);
    let outcome = compared.or_else(|Stopped { failure, in_rest }| {
        if in_rest && is_for_people {
            warn_of_sizes(out)?;
        }
        Err(failure)
    })?;
    match (args.quiet, args.output) {
        (true, _) => {}
        (false, OutputFormat::Json) => write_json(out, &outcome.report())?,
        (false, OutputFormat::Human) => outcome.write_human(out)?,
    }
    Ok(match outcome.difference {
        None => ExitCode::SUCCESS,
        Some(_) => ExitCode::from(code::DIFFERENT),
    })
}

/// A comparison that did not get to its end.
struct Stopped {
    failure: Failure,
    /// Behind the end of the shorter disk.
    in_rest: bool,
}

impl From<Failure> for Stopped {
    fn from(failure: Failure) -> Self {
        Self { failure, in_rest: false }
    }
}

fn compare(args: &Args, progress: &mut Progress) -> Result<Outcome, Stopped> {
    let cannot_open = |failure: Failure| failure.with_code(code::CANNOT_OPEN);
    let first = options(args, &args.first, "-f", args.first_format).map_err(cannot_open)?;
    let second = options(args, &args.second, "-F", args.second_format).map_err(cannot_open)?;
    let policy = args.opening.policy().map_err(cannot_open)?;
    let rules = Memory::default().rules(policy);
    let reactor = copying::reactor().map_err(cannot_open)?;
    reactor.run(async {
        let disks = [
            open(&first, &rules).await.map_err(cannot_open)?,
            open(&second, &rules).await.map_err(cannot_open)?,
        ];
        compare_disks(args, [&disks[0], &disks[1]], progress).await
    })
}

fn options(
    args: &Args,
    drive: &OsString,
    option: &str,
    format: Option<Format>,
) -> Result<DiskOptions, Failure> {
    let mut options = args.opening.options(drive, option, format)?;
    options.layer.read_only = true;
    if let Some(mode) = args.cache {
        options.set_cache(mode);
    }
    Ok(options)
}

async fn open(options: &DiskOptions, rules: &OpenRules) -> Result<Disk, Failure> {
    graph::open(options, rules).await.map_err(|error| {
        let what = format!("cannot compare {}", options.filename.display());
        Failure::because(what, &error).with_hint_about_lock(&error)
    })
}

async fn compare_disks(
    args: &Args,
    disks: [&dyn Block; 2],
    progress: &mut Progress,
) -> Result<Outcome, Stopped> {
    let sizes = [disks[0].size(), disks[1].size()];
    let outcome = |difference| Outcome { sizes, difference };
    if args.strict && sizes[0] != sizes[1] {
        return Ok(outcome(Some(Difference::Size)));
    }
    progress.set_total(sizes[0].max(sizes[1]));
    let difference = first_difference(disks, args.strict, progress).await;
    if matches!(difference, Ok(None)) {
        progress.whole(Instant::now());
    }
    let stopped = |(offset, failure)| Stopped { failure, in_rest: offset >= sizes[0].min(sizes[1]) };
    difference.map(outcome).map_err(stopped)
}

/// The first place where the disks differ, or that cannot be read: with its offset. Pieces are read side by side, and judged in their order.
pub(crate) async fn first_difference(
    disks: [&dyn Block; 2],
    strict: bool,
    progress: &mut Progress,
) -> Result<Option<Difference>, (u64, Failure)> {
    let steps = stream::unfold(Walk::new(disks, strict), |mut walk| async move {
        walk.next().await.map(|step| (step, walk))
    });
    let judged = steps.map(|step| async move {
        match step {
            Step::Piece(piece) => (piece.offset, content_differs(disks, piece).await),
            Step::Allocation(offset) => (offset, Ok(Some(Difference::Allocation(offset)))),
            Step::Failed(offset, failure) => (offset, Err(failure)),
        }
    });
    let found = judged.buffered(PIECES_IN_FLIGHT).filter_map(|(offset, judged)| {
        progress.at(offset, Instant::now());
        ready(judged.map_err(|failure| (offset, failure)).transpose())
    });
    pin!(found).next().await.transpose()
}

async fn content_differs(disks: [&dyn Block; 2], piece: Piece) -> Result<Option<Difference>, Failure> {
    let [first, second] = disks;
    let (first, second) = join(read(first, piece, piece.data[0]), read(second, piece, piece.data[1])).await;
    let sector = match (first?, second?) {
        (Some(first), Some(second)) => first_unequal_sector(&first, &second),
        (Some(bytes), None) | (None, Some(bytes)) => first_data_sector(bytes),
        (None, None) => None,
    };
    Ok(sector.map(|sector| Difference::Content(piece.offset + (sector * SECTOR_BYTES) as u64)))
}

/// The bytes of a piece, if its map calls them data.
async fn read(disk: &dyn Block, piece: Piece, data: bool) -> Result<Option<IoBuf>, Failure> {
    if !data {
        return Ok(None);
    }
    let (result, bytes) = disk.read(piece.offset, IoBuf::uninit(piece.len), Hints::MORE_WAITING).await;
    match result {
        Ok(_) => Ok(Some(bytes)),
        Err(error) => {
            let what = format!("cannot read {} at offset {}", disk.name(), piece.offset);
            Err(Failure::because(what, &error).with_code(code::CANNOT_READ))
        }
    }
}

/// `None` if all are equal, found at the speed of memory; most pieces are.
fn first_unequal_sector(first: &[u8], second: &[u8]) -> Option<usize> {
    if first == second {
        return None;
    }
    first.chunks(SECTOR_BYTES).zip(second.chunks(SECTOR_BYTES)).position(|(first, second)| first != second)
}

fn first_data_sector(bytes: IoBuf) -> Option<usize> {
    let bytes = bytes.freeze();
    if bytes.is_zero() {
        return None;
    }
    bytes.chunks(SECTOR_BYTES).position(|sector| sector.iter().any(|byte| *byte != 0))
}
