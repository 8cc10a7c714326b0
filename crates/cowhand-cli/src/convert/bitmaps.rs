//! Persistent bitmaps that go with the disk (`--bitmaps`).

use std::sync::Arc;

use graph::Disk;
use graph::probe::Format;
use qcow2::Qcow2;
use qcow2::bitmap::Bitmap;
use qcow2_layout::Version;
use tool::failure::{Failure, warn};

use super::args::Args;
use super::plan::Plan;

/// The bitmaps to be copied, of the only one of `sources`. They are checked before anything is written.
///
/// # Errors
/// When source or target cannot have bitmaps, or one of them is inconsistent and not to be left out.
pub fn of(args: &Args, sources: &[Arc<Disk>], plan: &Plan) -> Result<Vec<Arc<Bitmap>>, Failure> {
    if !args.bitmaps {
        return Ok(Vec::new());
    }
    let [source] = sources else {
        return Err(Failure::new("--bitmaps: several disks joined have no bitmaps in common; convert one"));
    };
    if args.snapshot.is_some() {
        return Err(Failure::new(
            "--bitmaps: bitmaps say what changed of the disk as it is, not of a snapshot (-l)",
        ));
    }
    let image = source.bitmap_image().ok_or_else(|| without(source.root().name(), "it is raw"))?;
    if image.geometry().version < Version::V3 {
        return Err(without(source.root().name(), VERSION_2));
    }
    if !args.no_create {
        check_target(args, plan, image.size())?;
    }
    check_consistent(args, &image)?;
    Ok(image.bitmaps())
}

const VERSION_2: &str = "version 2 (compat=0.10) has none";

fn without(name: &str, why: &str) -> Failure {
    Failure::new(format!("--bitmaps: {name} can have no bitmaps: {why}"))
}

fn check_target(args: &Args, plan: &Plan, source_bytes: u64) -> Result<(), Failure> {
    let (image, target) =
        (&plan.image, args.names.last().map_or_else(String::new, |name| name.display().to_string()));
    if image.format != Format::Qcow2 {
        return Err(without(&target, &format!("it will be {}", image.format)));
    }
    if image.options.version < Version::V3 {
        return Err(without(&target, VERSION_2));
    }
    match plan.size == source_bytes {
        true => Ok(()),
        false => Err(without(&target, "its disk will have another size than the one that they are of")),
    }
}

fn check_consistent(args: &Args, image: &Qcow2) -> Result<(), Failure> {
    for entry in image.inconsistent_bitmaps() {
        match args.skip_broken_bitmaps {
            true => warn(&format!("bitmap {:?} is inconsistent; it is left out", entry.name)),
            false => {
                let what =
                    format!("--bitmaps: bitmap {:?} of {} is inconsistent", entry.name, image.file().name());
                return Err(Failure::new(what).with_hint(
                    "--skip-broken-bitmaps leaves such bitmaps out; `cowhand bitmap --remove` removes one",
                ));
            }
        }
    }
    Ok(())
}

/// Puts copies of `bitmaps` into the image of `disk`, whose content is there.
///
/// # Errors
/// When it cannot have one of them; what was there before it stays.
pub async fn copy(bitmaps: &[Arc<Bitmap>], disk: &Disk) -> Result<(), Failure> {
    if bitmaps.is_empty() {
        return Ok(());
    }
    let image = disk.image().ok_or_else(|| without(disk.root().name(), "it is raw"))?;
    let copied = image.copy_bitmaps(bitmaps).await;
    copied.map_err(|error| {
        Failure::because(format!("cannot copy the bitmaps to {}", disk.root().name()), &error)
    })
}
