//! `cowhand bitmap`: persistent bitmaps of an image that is not in use elsewhere.

mod steps;

use std::ffi::OsString;
use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;

use graph::options::{Backing, DiskOptions};
use graph::probe::Format;
use graph::{Disk, OpenRules};
use qcow2::Qcow2;
use qcow2::bitmap::{Bitmap, BitmapChange, NewBitmap};
use tool::failure::Failure;

use self::steps::{Step, Steps};
use crate::copying;
use crate::drive::{DriveArgs, disk_options, formats, parse_bytes};

/// Arguments of `cowhand bitmap`.
#[derive(Debug, clap::Args)]
#[command(
    long_about = "Make, remove and change persistent bitmaps: each says which parts of a disk were written since it was made or \
        cleared, for incremental backups.\n\n\
        What is to be done is done in the order in which it is written, each step whole and durable before the next. \
        The image must not be open elsewhere.",
    after_help = "\
Examples:
  cowhand bitmap --add disk.qcow2 monday
  cowhand bitmap --add --disable -g 1M disk.qcow2 all
  cowhand bitmap --merge monday --merge tuesday disk.qcow2 all
  cowhand bitmap --merge monday -b base.qcow2 -F qcow2 disk.qcow2 all
  cowhand bitmap --remove disk.qcow2 monday
  cowhand bitmap --remove-all disk.qcow2"
)]
pub struct Args {
    #[command(flatten)]
    steps: Steps,

    /// Bytes of the disk that a bit of the new bitmap stands for: a power of two, 512 to 2G [default: a cluster, 4k to 64k]
    #[arg(short = 'g', value_name = "SIZE", value_parser = parse_bytes)]
    granularity: Option<u64>,

    /// The image that has the bitmaps to merge [default: DRIVE]
    #[arg(short = 'b', value_name = "FILE")]
    source: Option<OsString>,

    /// Its format [default: what its first bytes say]
    #[arg(short = 'F', value_name = "FORMAT", value_parser = formats(), hide_possible_values = true)]
    source_format: Option<Format>,

    #[command(flatten)]
    drive: DriveArgs,

    /// The bitmap's name
    #[arg(value_name = "BITMAP", required_unless_present = "remove_all", conflicts_with = "remove_all")]
    name: Option<String>,

    /// Remove all bitmaps of the image, whatever state they are in
    #[arg(long, conflicts_with_all = ["add", "remove", "clear", "enable", "disable", "merge"])]
    remove_all: bool,
}

impl Args {
    /// What does not go together.
    fn check(&self) -> Result<(), Failure> {
        let steps = &self.steps.0;
        let merges = steps.iter().any(|step| matches!(step, Step::Merge(_)));
        let wrong = if steps.is_empty() && !self.remove_all {
            "nothing is to be done: give --add, --remove, --clear, --enable, --disable, --merge or --remove-all"
        } else if self.granularity.is_some() && !steps.contains(&Step::Add) {
            "-g is the granularity of a new bitmap: it goes with --add"
        } else if self.source.is_some() && !merges {
            "-b has the bitmaps to merge: it goes with --merge"
        } else if self.source_format.is_some() && self.source.is_none() {
            "-F is the format of the image that -b names"
        } else {
            return Ok(());
        };
        Err(Failure::new(wrong))
    }
}

/// Changes bitmaps.
pub fn run(args: &Args) -> Result<ExitCode, Failure> {
    args.check()?;
    let mut options = args.drive.options()?;
    options.layer.backing = Backing::None;
    let rules = OpenRules { policy: args.drive.policy()?, ..OpenRules::default() };
    copying::reactor()?.run(async {
        let source = match &args.source {
            Some(file) => Some(open_source(args, file, &rules).await?),
            None => None,
        };
        let disk = copying::open(&options, &rules, "change the bitmaps of").await?;
        let done = act(args, &disk, source.as_deref(), &options).await;
        copying::finish(&disk, done, |error| copying::because("change the bitmaps of", &options, error)).await
    })?;
    Ok(ExitCode::SUCCESS)
}

/// The image whose bitmaps are merged, for reading alone.
async fn open_source(args: &Args, file: &OsString, rules: &OpenRules) -> Result<Arc<Disk>, Failure> {
    let mut options = disk_options(file, |path: &Path| path.symlink_metadata().is_ok())?;
    options.layer.format = args.source_format.or(options.layer.format);
    options.layer.read_only = true;
    options.layer.backing = Backing::None;
    copying::open(&options, rules, "read the bitmaps of").await
}

async fn act(args: &Args, disk: &Disk, source: Option<&Disk>, options: &DiskOptions) -> Result<(), Failure> {
    let image = image_of(disk)?;
    let source = match source {
        Some(source) => image_of(source)?,
        None => image.clone(),
    };
    if args.remove_all {
        return remove_all(&image, options).await;
    }
    let name = args.name.as_deref().unwrap_or_default();
    for step in &args.steps.0 {
        let what = || {
            let step = step.name();
            format!("cannot {step} bitmap {name:?} of {}", options.filename.display())
        };
        let change = match step {
            Step::Add => BitmapChange::Add(NewBitmap {
                granularity_bytes: args.granularity,
                recording: true,
                persistent: true,
            }),
            Step::Remove => BitmapChange::Remove,
            Step::Clear => BitmapChange::Clear,
            Step::Enable => BitmapChange::Record(true),
            Step::Disable => BitmapChange::Record(false),
            Step::Merge(name) => BitmapChange::Merge(find(&source, name, &what)?),
        };
        image.change_bitmap(name, change).await.map_err(|error| Failure::because(what(), &error))?;
    }
    Ok(())
}

async fn remove_all(image: &Qcow2, options: &DiskOptions) -> Result<(), Failure> {
    let usable = image.bitmaps().into_iter().map(|bitmap| bitmap.name().to_owned());
    let inconsistent = image.inconsistent_bitmaps().into_iter().map(|entry| entry.name);
    for name in usable.chain(inconsistent).collect::<Vec<_>>() {
        image.change_bitmap(&name, BitmapChange::Remove).await.map_err(|error| {
            let file = options.filename.display();
            Failure::because(format!("cannot remove bitmap {name:?} of {file}"), &error)
        })?;
    }
    Ok(())
}

fn image_of(disk: &Disk) -> Result<Qcow2, Failure> {
    disk.bitmap_image().ok_or_else(|| {
        let what = format!("{} is raw: it has no persistent bitmaps of its own", disk.root().name());
        Failure::new(what).with_hint("a file for them is named so: DRIVE,bitmaps=FILE")
    })
}

/// The bitmap to merge, if it can be trusted.
fn find(image: &Qcow2, name: &str, what: &impl Fn() -> String) -> Result<Arc<Bitmap>, Failure> {
    let found = image.bitmaps().into_iter().find(|bitmap| bitmap.name() == name);
    found.ok_or_else(|| {
        let file = image.file().name();
        Failure::explained(what(), format!("{file} has no bitmap {name:?}, or an inconsistent one"))
    })
}
