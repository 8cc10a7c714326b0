//! In an image that nobody else has open.

use image::{Disk, OpenRules};
use qcow2::{Layer, Preallocation, Raw, ResizeOptions};
use reactor::Reactor;
use storage::Allocation;

use super::{Args, new_size};
use crate::failure::Failure;

/// Changes the size of the disk in an image; what to say of it.
pub(super) fn resize(args: &Args) -> Result<String, Failure> {
    if args.disk.is_some() {
        return Err(Failure::new("--disk names a disk of a server; an image has one"));
    }
    let options = args.drive.options()?;
    let failed = |error: &dyn std::error::Error| {
        Failure::because(format!("cannot resize {}", options.filename.display()), error)
    };
    let rules = OpenRules { policy: args.drive.policy()?, ..OpenRules::default() };
    let reactor = Reactor::new(reactor::available()).map_err(|error| failed(&error))?;
    reactor.run(async {
        let disk = image::open(&options, &rules).await.map_err(|error| failed(&error))?;
        let done = match new_size(&args.size, disk.size()) {
            Ok(size) => resize_disk(args, &disk, size).await.map_err(|error| failed(&*error)),
            Err(failure) => Err(failure),
        };
        let closed = disk.close().await.map_err(|error| failed(&error));
        done.and(closed)
    })?;
    Ok("Image resized.".to_owned())
}

async fn resize_disk(args: &Args, disk: &Disk, size: u64) -> Result<(), Box<dyn std::error::Error>> {
    let options = ResizeOptions { shrink: args.shrink, preallocation: args.preallocation };
    match disk.layer() {
        Layer::Qcow2(_) => Ok(disk.resize(size, options).await?),
        Layer::Raw(raw) => resize_raw(raw, size, options).await,
    }
}

/// A raw disk is as long as its file.
async fn resize_raw(raw: &Raw, size: u64, options: ResizeOptions) -> Result<(), Box<dyn std::error::Error>> {
    let old = raw.size;
    if !raw.storage.limits().resizable || raw.offset != 0 {
        return Err("the disk is a device or a part of a file, whose size is what it is".into());
    }
    if size < old && !options.shrink {
        return Err(format!(
            "the new size ({size}) is below the old one ({old}): what lies beyond would be lost; add --shrink"
        )
        .into());
    }
    if size < old && options.preallocation != Preallocation::Off {
        return Err("nothing is added that could be preallocated while shrinking".into());
    }
    let how = match options.preallocation {
        Preallocation::Off => None,
        Preallocation::Falloc => Some(Allocation::Reserve),
        Preallocation::Full => Some(Allocation::Write),
        Preallocation::Metadata => {
            return Err("a raw image has no metadata that could be preallocated".into());
        }
    };
    raw.storage.set_length(size).await?;
    if let Some(how) = how.filter(|_| size > old) {
        raw.storage.allocate(old, size - old, how).await?;
    }
    Ok(raw.storage.flush().await?)
}
