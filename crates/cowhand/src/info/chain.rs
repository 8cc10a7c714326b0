//! Follows an image's backing files, downwards and never in a circle.

use std::path::{Path, PathBuf};

use image::names::{Identity, Located, Policy, Role};
use image::options::{DiskOptions, LayerOptions};
use image::probe::Format;
use qcow2_layout::Header;

use super::model::ImageInfo;
use super::read::{Opened, cannot_open, open};
use crate::failure::Failure;

/// Images in a chain at most. Longer ones work nowhere, and each costs memory.
const DEPTH_MAX: usize = 1000;

/// Snapshots and bitmaps of all images of a chain together: four images with as many as the format
/// allows in one. Bounds what is held in memory until it is printed.
const LISTED_MAX: usize = 4 * 65536;

/// The image that `options` name, and all below it.
pub fn read_chain(options: &DiskOptions, policy: &Policy) -> Result<Vec<ImageInfo>, Failure> {
    let mut next = Some(Next {
        located: Located::by_user(&options.filename)
            .map_err(|error| cannot_open(&options.filename, &error))?,
        shown: options.filename.clone(),
        layer: options.layer.clone(),
    });
    let (mut infos, mut seen, mut listed) = (Vec::new(), Vec::new(), 0);
    while let Some(current) = next {
        refuse_endless(&current, &seen)?;
        seen.push(current.located.identity());
        let opened = open(&current.located, &current.shown, &current.layer)?;
        listed += listed_in(&opened.info);
        if listed > LISTED_MAX {
            return Err(Failure::new(format!(
                "the chain lists {listed} snapshots and bitmaps up to {}; at most {LISTED_MAX} are shown at once",
                current.shown.display()
            )));
        }
        next = below(&current, &opened, policy)?;
        infos.push(opened.info);
    }
    Ok(infos)
}

/// An image that is about to be read.
struct Next {
    located: Located,
    shown: PathBuf,
    layer: LayerOptions,
}

fn refuse_endless(current: &Next, seen: &[Identity]) -> Result<(), Failure> {
    let shown = current.shown.display();
    if let Some(depth) = seen.iter().position(|identity| *identity == current.located.identity()) {
        return Err(Failure::new(format!(
            "the backing chain is a circle: {shown}, {} images down, is image {depth} of the chain again",
            seen.len()
        )));
    }
    if seen.len() >= DEPTH_MAX {
        return Err(Failure::new(format!(
            "the backing chain goes on below {DEPTH_MAX} images (next: {shown}); at most {DEPTH_MAX} are followed"
        )));
    }
    Ok(())
}

fn listed_in(info: &ImageInfo) -> usize {
    let bitmaps = match &info.format_specific {
        Some(super::model::FormatSpecific::Qcow2(specific)) => specific.bitmaps.len(),
        _ => 0,
    };
    info.snapshots.len() + bitmaps
}

/// The image below: the one that the user named, or the one that this image names, if that is allowed.
fn below(current: &Next, opened: &Opened, policy: &Policy) -> Result<Option<Next>, Failure> {
    let Some(mut layer) = current.layer.below() else { return Ok(None) };
    if let Some(path) = layer.file.filename.clone() {
        let located = Located::by_user(&path).map_err(|error| cannot_open(&path, &error))?;
        return Ok(Some(Next { located, shown: path, layer }));
    }
    let Some(header) = &opened.header else { return Ok(None) };
    let Some(name) = &header.backing else { return Ok(None) };
    let failed = |error: &dyn std::error::Error| {
        Failure::because(format!("cannot follow the chain below {}", current.shown.display()), error)
    };
    let located = policy
        .resolve(current.located.place(), name.as_bytes(), Role::Backing)
        .map_err(|error| failed(&error))?;
    if layer.format.is_none() {
        layer.format = named_format(header).map_err(|error| failed(&error))?;
    }
    let shown = opened.info.full_backing_filename.as_deref().unwrap_or(name);
    Ok(Some(Next { located, shown: Path::new(shown).to_owned(), layer }))
}

/// The format that the overlay's header gives its backing file; without one, the content decides.
fn named_format(header: &Header) -> Result<Option<Format>, std::io::Error> {
    let Some(name) = &header.extensions.backing_format else { return Ok(None) };
    match Format::of_name(name) {
        Some(format) => Ok(Some(format)),
        None => Err(std::io::Error::new(
            std::io::ErrorKind::Unsupported,
            format!("the backing file's format is given as {name:?}; qcow2 and raw are supported"),
        )),
    }
}
