//! What is shown of an image, or of it and all below it.

use std::path::{Path, PathBuf};

use graph::drive::path_of;
use graph::names::Policy;
use graph::options::DiskOptions;
use graph::{ChainWalk, DataFiles, FoundImage, OpenError};
use tool::failure::Failure;
use tool::info::model::{BitmapInfo, FormatSpecific, ImageInfo};
use tool::info::read::{cannot_open, image_info};

use crate::copying::{self, Memory};

/// Snapshots and bitmaps of all images of a chain together: four images with as many as the format
/// allows in one. Bounds what is held in memory until it is printed.
const LISTED_MAX: usize = 4 * 65536;

/// Bytes of the names of all snapshots and bitmaps of a chain together: as many as the format allows of one kind in one image.
const NAMES_BYTES_MAX: usize = 64 << 20;

/// The image that `options` name.
pub fn read_image(options: &DiskOptions) -> Result<ImageInfo, Failure> {
    let images = read(options, Policy::default(), 1)?;
    images.into_iter().next().ok_or_else(|| Failure::new("a chain without an image"))
}

/// The image that `options` name, and all below it.
pub fn read_chain(options: &DiskOptions, policy: Policy) -> Result<Vec<ImageInfo>, Failure> {
    read(options, policy, usize::MAX)
}

fn read(options: &DiskOptions, policy: Policy, images: usize) -> Result<Vec<ImageInfo>, Failure> {
    let mut options = options.clone();
    options.layer.read_only = true;
    // Only the images are reported; filters over them change nothing of that.
    options.filters.clear();
    let failed = |error: &dyn std::error::Error| cannot_open(&options.filename, error);
    let rules = Memory::default().rules(policy);
    copying::small_reactor()?.run(async {
        let mut walk = ChainWalk::new(&options, &rules, DataFiles::Leave).map_err(|error| failed(&error))?;
        let (mut infos, mut listed, mut names): (Vec<ImageInfo>, _, _) = (Vec::new(), 0, 0);
        let (mut shown, mut above) = (options.filename.clone(), None);
        while infos.len() < images {
            let image = walk.next(above.as_ref()).await.map_err(|error| not_found(&shown, above.as_ref(), &error))?;
            let Some(image) = image else { break };
            if let Some(above) = infos.last() {
                shown = shown_below(&image, above);
            }
            let info = image_info(&image, &shown).await?;
            listed += listed_in(&info);
            if listed > LISTED_MAX {
                return Err(Failure::new(format!(
                    "the chain lists {listed} snapshots and bitmaps up to {}; at most {LISTED_MAX} are shown at once",
                    shown.display()
                )));
            }
            names += names_in(&info);
            if names > NAMES_BYTES_MAX {
                return Err(Failure::new(format!(
                    "the names of the snapshots and bitmaps of the chain have {names} bytes up to {}; at most {NAMES_BYTES_MAX} are shown at once",
                    shown.display()
                )));
            }
            infos.push(info);
            above = Some(image);
        }
        Ok(infos)
    })
}

/// The way down ended at an image, or below one.
fn not_found(shown: &Path, above: Option<&FoundImage>, error: &OpenError) -> Failure {
    match above {
        None => cannot_open(shown, error).with_hint_about_lock(error),
        Some(_) => Failure::because(format!("cannot follow the chain below {}", shown.display()), error)
            .with_hint_about_lock(error),
    }
}

/// What the user knows the image as: as options name it, or as the name in the image above is seen from where that lies.
fn shown_below(image: &FoundImage, above: &ImageInfo) -> PathBuf {
    let by_option = image.options.file.filename.clone();
    let by_name = || above.full_backing_filename.as_ref().map(|name| path_of(Path::new(name)));
    by_option.or_else(by_name).unwrap_or_default()
}

fn bitmaps_of(info: &ImageInfo) -> &[BitmapInfo] {
    match &info.format_specific {
        Some(FormatSpecific::Qcow2(specific)) => &specific.bitmaps,
        _ => &[],
    }
}

fn listed_in(info: &ImageInfo) -> usize {
    info.snapshots.len() + bitmaps_of(info).len()
}

fn names_in(info: &ImageInfo) -> usize {
    let snapshots = info.snapshots.iter().map(|one| one.id.len() + one.name.len());
    snapshots.chain(bitmaps_of(info).iter().map(|one| one.name.len())).sum()
}
