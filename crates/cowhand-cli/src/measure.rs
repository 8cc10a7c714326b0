//! `cowhand measure`: how large the file of a new image will be.

use std::ffi::OsString;
use std::io::Write;
use std::process::ExitCode;
use std::sync::Arc;

use block::{Blame, Block, SECTOR_BYTES};
use graph::options::DiskOptions;
use graph::probe::Format;
use graph::{Disk, OpenRules};
use qcow2::snapshot::SnapshotName;
use qcow2::{Content, CreateOptions, DataClusters, Preallocation};
use qcow2_layout::Version;
use serde::Serialize;
use tool::create::options::{self, NewImage};
use tool::failure::Failure;
use tool::output::write_json;
use tool::voice;

use crate::convert::snapshot;
use crate::copying::{self, Memory};
use crate::drive::{OpenArgs, formats, made_formats, parse_bytes};
use crate::map::is_unmapped;
use crate::map::pieces::{file_bytes, pieces_max, too_many};
use crate::output::{OutputFormat, with_json};

const EXAMPLES: &str = "\
Examples:
  cowhand measure -O qcow2 --size 1T
  cowhand measure -O qcow2 -o cluster_size=128k,extended_l2=on disk.raw
  cowhand measure --output json -O qcow2 file=disk.qcow2,backing.l2-cache-size=1M";

/// Arguments of `cowhand measure`.
#[derive(Debug, clap::Args)]
#[command(
    long_about = "Say how large the file of a new image will be, before it is made: empty, with --size, or as a copy of \
        the disk DRIVE. Nothing is written, and no data is read: the map says where there is some.\n\n\
        \"required\" is enough for what is to be in it, \"fully allocated\" for a disk that was written everywhere, \
        \"bitmaps\" comes on top where the bitmaps of DRIVE are copied too.",
    after_help = EXAMPLES,
    after_long_help = with_json(EXAMPLES, &[JSON])
)]
pub struct Args {
    /// The disk to be copied: a path, or a DRIVE (cowhand info --help says what that is)
    #[arg(value_name = "DRIVE")]
    drive: Option<OsString>,

    /// Format of DRIVE: qcow2 or raw [default: what its first bytes say]
    #[arg(short = 'f', value_name = "FORMAT", value_parser = formats(), hide_possible_values = true)]
    format: Option<Format>,

    #[command(flatten)]
    opening: OpenArgs,

    /// Size of the disk of an empty image, instead of DRIVE
    #[arg(long, value_name = "SIZE", value_parser = parse_bytes)]
    size: Option<u64>,

    /// Format of the new image: qcow2, raw or luks
    #[arg(short = 'O', value_name = "FORMAT", value_parser = made_formats(), hide_possible_values = true, default_value = "raw")]
    target: Format,

    /// Its creation options: name=value,... (-o help lists them; may be repeated)
    #[arg(short = 'o', value_name = "OPTIONS")]
    options: Vec<String>,

    /// A snapshot of DRIVE, in place of its disk: an id or a name, or snapshot.id=ID,snapshot.name=NAME
    #[arg(short = 'l', value_name = "SNAPSHOT", value_parser = snapshot::parse)]
    snapshot: Option<SnapshotName>,

    /// Form of the result
    #[arg(long, value_enum, default_value_t, value_name = "FORMAT")]
    output: OutputFormat,
}

/// What [`Measured`] prints.
const JSON: &str = "  required                size of the file of the new image
  fully-allocated         size of the file if all of the disk is written
  bitmaps?                bytes that copies of the bitmaps add; absent if either image can have
                          none";

/// The result, with qemu-img's names, in its order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
struct Measured {
    /// Where both images can have bitmaps.
    #[serde(skip_serializing_if = "Option::is_none")]
    bitmaps: Option<u64>,
    required: u64,
    fully_allocated: u64,
}

/// Measures.
pub fn run(args: &Args, out: &mut dyn Write) -> Result<ExitCode, Failure> {
    // qemu-img has no list there.
    if options::asks_for_help(&args.options) && !voice::is_qemu() {
        out.write_all(options::help(args.target, false).as_bytes())?;
        return Ok(ExitCode::SUCCESS);
    }
    if formats::sink::NewImage::of_name(args.target.name()).is_some() {
        let format = args.target;
        return Err(Failure::new(format!(
            "cannot measure: how large a {format} image is, is known when it is made"
        )));
    }
    let image = NewImage::parse(&args.options, args.target)
        .map_err(|error| Failure::because("cannot measure", &error))?;
    if image.size.is_some() {
        return Err(Failure::new("-o size is for create; --size measures an empty image of that size"));
    }
    let measured = match (args.size, &args.drive) {
        (Some(size), None) => measure_empty(args, image, size)?,
        (None, Some(drive)) => measure_copy(args, image, drive)?,
        (Some(_), Some(_)) => {
            return Err(Failure::new(
                "--size is for an empty image, DRIVE for a copy of it; give one of them",
            ));
        }
        (None, None) => return Err(Failure::new("neither --size nor DRIVE is given; give one of them")),
    };
    match args.output {
        OutputFormat::Json => write_json(out, &measured)?,
        OutputFormat::Human => show(&measured, out)?,
    }
    Ok(ExitCode::SUCCESS)
}

fn show(measured: &Measured, out: &mut dyn Write) -> Result<(), Failure> {
    writeln!(out, "required size: {}", measured.required)?;
    writeln!(out, "fully allocated size: {}", measured.fully_allocated)?;
    if let Some(bitmaps) = measured.bitmaps {
        writeln!(out, "bitmaps size: {bitmaps}")?;
    }
    Ok(())
}

fn measure_empty(args: &Args, image: NewImage, size: u64) -> Result<Measured, Failure> {
    let of_drive = [("-f", args.format.is_some()), ("-l", args.snapshot.is_some())];
    if let Some((option, _)) = of_drive.iter().find(|(_, given)| *given) {
        return Err(Failure::new(format!("{option} is about DRIVE; with --size there is none")));
    }
    let options = CreateOptions { size, ..image.options };
    measure(image.format, &options, Content::Empty)
        .map_err(|error| Failure::because(format!("cannot measure an image of {size} bytes"), &*error))
}

fn measure_copy(args: &Args, image: NewImage, drive: &OsString) -> Result<Measured, Failure> {
    let mut options = args.opening.options(drive, "-f", args.format)?;
    options.layer.read_only = true;
    let rules = Memory::default().rules(args.opening.policy()?);
    measure_disk(&options, &rules, args.snapshot.as_ref(), image)
}

fn measure_disk(
    options: &DiskOptions,
    rules: &OpenRules,
    snapshot: Option<&SnapshotName>,
    image: NewImage,
) -> Result<Measured, Failure> {
    let failed = |error: &dyn std::error::Error| {
        Failure::because(format!("cannot measure {}", options.filename.display()), error)
    };
    copying::reactor()?.run(async {
        let disk =
            graph::open(options, rules).await.map_err(|error| failed(&error).with_hint_about_lock(&error))?;
        let disk = Arc::new(disk);
        let source = match snapshot {
            Some(name) => snapshot::view(std::slice::from_ref(&disk), name).await?,
            None => Arc::clone(&disk) as Arc<dyn Block>,
        };
        let target = CreateOptions { size: source.size(), ..image.options };
        let content = match is_counted(image.format, &target) && !is_unmapped(&disk) {
            true => Content::Copied {
                data_bytes: data_bytes(&*source, file_bytes(disk.root()), &target)
                    .await
                    .map_err(|e| failed(&e))?,
            },
            false => Content::Copied { data_bytes: source.size() },
        };
        let measured = measure(image.format, &target, content).map_err(|error| failed(&*error))?;
        let bitmaps = bitmaps(&disk, &target).filter(|_| image.format == Format::Qcow2);
        Ok(Measured { bitmaps, ..measured })
    })
}

/// Whether the result depends on where the disk has data, and the options are right.
fn is_counted(format: Format, target: &CreateOptions) -> bool {
    let whole = matches!(target.preallocation, Preallocation::Falloc | Preallocation::Full);
    format == Format::Qcow2
        && !whole
        && target.backing_file.is_none()
        && target.measure(Content::Empty).is_ok()
}

/// Bytes of the new image's clusters that the disk, in files of `files_bytes`, has data in, by its map.
async fn data_bytes(disk: &dyn Block, files_bytes: u64, target: &CreateOptions) -> Result<u64, qcow2::Error> {
    let mut clusters = DataClusters::new(target.cluster_size);
    add_data(disk, &mut clusters, pieces_max(files_bytes)).await?;
    Ok(clusters.bytes())
}

/// Adds where the disk has data, by its map.
///
/// # Errors
/// Also when it describes more than `pieces_max` pieces.
pub(crate) async fn add_data(
    disk: &dyn Block,
    clusters: &mut DataClusters,
    pieces_max: u64,
) -> Result<(), qcow2::Error> {
    let (mut at, end, mut pieces) = (0, disk.size(), 0);
    while at < end {
        pieces += 1;
        if pieces > pieces_max {
            return Err(Blame::new(disk.name()).corrupt(too_many(pieces_max)));
        }
        let status = disk.block_status(at, end - at).await?;
        if status.data && !status.zero {
            clusters.add(at, status.len);
        }
        at = (at + status.len).max(clusters.counted_to());
    }
    Ok(())
}

/// What copies of the disk's bitmaps take; `None` where it, or the new image, cannot have any.
fn bitmaps(disk: &Disk, target: &CreateOptions) -> Option<u64> {
    disk.image().filter(|image| image.geometry().version >= Version::V3)?;
    let bitmaps = disk.bitmaps();
    target.measure_bitmaps(bitmaps.iter().map(|bitmap| (bitmap.name(), bitmap.granularity_bytes())))
}

fn measure(
    format: Format,
    options: &CreateOptions,
    content: Content,
) -> Result<Measured, Box<dyn std::error::Error>> {
    let (required, fully_allocated) = match format {
        Format::Qcow2 => {
            let sizes = options.measure(content)?;
            (sizes.required, sizes.fully_allocated)
        }
        _ => {
            // Of a LUKS file the header and the key material stand before the disk.
            let before = options.encrypt.map_or(0, luks::area_bytes);
            let size = options.size.checked_next_multiple_of(SECTOR_BYTES);
            let size = size.and_then(|size| size.checked_add(before));
            let size = size.filter(|size| i64::try_from(*size).is_ok());
            let size = size.ok_or_else(|| format!("size is {}; allowed: below 2^63", options.size))?;
            (size, size)
        }
    };
    Ok(Measured { required, fully_allocated, bitmaps: None })
}
