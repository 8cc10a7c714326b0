//! In an image that nobody else has open.

use block::{Raw, SECTOR_BYTES};
use graph::options::DiskOptions;
use graph::probe::{Format, FormatError};
use graph::{Disk, OpenError, OpenRules, raw_of};
use qcow2::{Preallocation, ResizeOptions};
use reactor::Reactor;
use storage::Allocation;

use super::{Args, check_shrink, new_size};
use crate::copying::watch::survive_questions;
use crate::failure::{Failure, warn};
use crate::voice;

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
    let reactor = Reactor::new(reactor::available()).map_err(|error| failed(&error))?;
    reactor.run(async {
        let disk = open(&options, &rules).await.map_err(|error| failed(&error))?;
        let size = new_size(&args.size, disk.size())
            .and_then(|size| check_shrink(args, size, disk.size()).map(|()| size))
            .map(|size| whole_sectors(&disk, size));
        let done = match size {
            Ok(size) => resize_disk(&disk, size, options_of(args))
                .await
                .map_err(|error| failed(&*error))
                .map(|()| size),
            Err(failure) => Err(failure),
        };
        let closed = disk.close().await.map_err(|error| failed(&error));
        done.and_then(|size| closed.map(|()| made(size)))
    })
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

/// Gives a disk that nobody else uses another size. What is known of a raw one as it is open stays as it was.
pub async fn resize_disk(
    disk: &Disk,
    size: u64,
    options: ResizeOptions,
) -> Result<(), Box<dyn std::error::Error>> {
    match raw_of(&*disk.root()) {
        Some(raw) => resize_raw(raw, size, options).await,
        None => Ok(disk.resize(size, options).await?),
    }
}

/// A raw disk is as long as its file, from its offset on.
async fn resize_raw(raw: &Raw, size: u64, options: ResizeOptions) -> Result<(), Box<dyn std::error::Error>> {
    let old = raw.size;
    if !raw.storage.capabilities().resizable {
        return Err("the disk is a device, whose size is what it is".into());
    }
    if raw.fixed {
        return Err("the disk is a part of a file, and its size is given (option size)".into());
    }
    if size < old && options.preallocation != Preallocation::Off {
        return Err("nothing is added that could be preallocated while shrinking".into());
    }
    let how = match options.preallocation {
        Preallocation::Off => None,
        Preallocation::Falloc => Some(Allocation::Reserve),
        Preallocation::Full => Some(Allocation::Write),
        Preallocation::Metadata => {
            return Err(format!("a {} image has no metadata that could be preallocated", raw.driver).into());
        }
    };
    let length = raw.offset.checked_add(size).ok_or("the size and the offset together are beyond 64 bits")?;
    raw.storage.shorten_to(length).await?;
    // Also when the disk becomes smaller: a file may lack what the last sector of a disk has.
    // To what is added to a LUKS file nothing is written: it reads as noise, as in every new one.
    raw.storage.extend_to(length).await?;
    if let Some(how) = how.filter(|_| size > old) {
        raw.storage.allocate(raw.offset + old, size - old, how).await?;
    }
    Ok(raw.storage.flush().await?)
}
