//! Resizes an image that is not in use elsewhere.

use block::SECTOR_BYTES;
use graph::options::{Backing, DiskOptions};
use graph::probe::{Format, FormatError};
use graph::{Disk, OpenError, OpenRules};
use qcow2::ResizeOptions;
use reactor::Reactor;
use tool::failure::{Failure, warn};
use tool::voice;

use super::{Args, check_shrink, new_size};
use crate::copying::watch::survive_questions;

/// What is said of a size that is what was asked for, as by qemu-img.
pub(super) const RESIZED: &str = "Image resized.";

/// Changes the size of the disk in an image; what to say of it.
pub(super) fn resize(args: &Args) -> Result<String, Failure> {
    if args.disk.is_some() {
        return Err(Failure::new("--disk names a disk of a server; an image has one"));
    }
    survive_questions()?;
    let options = args.drive.options()?;
    let failed = |error: &dyn std::error::Error| {
        Failure::because(format!("cannot resize {}", options.filename.display()), error)
    };
    let rules = OpenRules { policy: args.drive.policy()?, ..OpenRules::default() };
    let reactor = Reactor::new(reactor::Backend::Ring).map_err(|error| failed(&error))?;
    reactor.run(async {
        let mut first = options.clone();
        if args.shrink {
            first.layer.backing = Backing::None;
        }
        let disk = open(&first, &rules).await.map_err(|error| failed(&error))?;
        let size = size_of(args, &disk);
        let grows = matches!(&size, Ok(size) if *size > disk.size());
        let disk = match args.shrink && grows && disk.root().driver() == Format::Qcow2.name() {
            // What a longer backing file has behind the old end must not show.
            true => {
                disk.close().await.map_err(|error| failed(&error))?;
                drop(disk);
                open(&options, &rules).await.map_err(|error| failed(&error))?
            }
            false => disk,
        };
        let done = match size {
            Ok(size) => {
                let resized = disk.resize(size, options_of(args)).await;
                resized.map_err(|error| failed(&error)).map(|()| size)
            }
            Err(failure) => Err(failure),
        };
        let closed = disk.close().await.map_err(|error| failed(&error));
        done.and_then(|size| closed.map(|()| made(size)))
    })
}

/// The size that is asked for.
fn size_of(args: &Args, disk: &Disk) -> Result<u64, Failure> {
    let size = new_size(&args.size, disk.size())?;
    check_shrink(args, size, disk.size())?;
    Ok(whole_sectors(disk, size))
}

/// A ciphered disk has whole sectors.
fn whole_sectors(disk: &Disk, size: u64) -> u64 {
    match disk.root().driver() == Format::Luks.name() {
        true => size.next_multiple_of(SECTOR_BYTES),
        false => size,
    }
}

/// Opens the disk. qemu-img takes a file without a header for a raw one, and so do we under its name: nothing is written that could
/// look like a header.
async fn open(options: &DiskOptions, rules: &OpenRules) -> Result<Disk, OpenError> {
    match graph::open(options, rules).await {
        Err(OpenError::Format { source: FormatError::RawGuessed, .. }) if voice::is_qemu() => {
            warn(&format!(
                "{} has no header and is taken for a raw disk; -f raw says so",
                options.filename.display()
            ));
            let mut options = options.clone();
            options.layer.format = Some(Format::Raw);
            graph::open(&options, rules).await
        }
        opened => opened,
    }
}

/// What to say of the new size: a raw file has any, a disk has whole sectors.
fn made(size: u64) -> String {
    match size.next_multiple_of(SECTOR_BYTES) {
        shown if shown == size => RESIZED.to_owned(),
        shown => format!(
            "Image resized: the file has {size} bytes, the disk {shown} (rounded up to whole sectors)."
        ),
    }
}

fn options_of(args: &Args) -> ResizeOptions {
    ResizeOptions { shrink: args.shrink, preallocation: args.preallocation, bitmaps: true }
}
