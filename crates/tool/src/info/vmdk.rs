//! What `info` shows of vmdk images. Of a flat extent nothing is opened: its length and space say all.

use std::path::Path;

use formats::vmdk::{Description, ExtentInfo, describe_extent};
use graph::{ExtentFile, FoundImage, VmdkFiles};

use super::model::{Child, FileInfo, FormatSpecific, ImageInfo, VmdkExtentInfo, VmdkInfo};
use super::read::{cannot_open, child, file_info as plain, full_name};
use crate::failure::Failure;

/// What is shown of a vmdk image.
pub async fn file_info(image: &FoundImage, vmdk: &VmdkFiles, shown: &Path) -> Result<ImageInfo, Failure> {
    let VmdkFiles { description, extents } = vmdk;
    let shown_extents = extents_of(description, extents, shown).await?;
    let mut info = plain(image, shown);
    let mut actual_size = info.actual_size.unwrap_or(0);
    let mut children: Vec<Child> = Vec::new();
    // The last first, as in QEMU.
    for (index, extent) in extents.iter().enumerate().rev() {
        let Some((length, space)) = extent.sizes else { continue };
        actual_size += space;
        children.push(extent_child(format!("extents.{index}"), extent, length, space));
    }
    children.append(&mut info.children);
    let parent = description.descriptor.parent().map(str::to_owned);
    Ok(ImageInfo {
        format: image.format().name().into(),
        virtual_size: shown_extents.iter().map(|extent| extent.virtual_size).sum(),
        actual_size: Some(actual_size),
        cluster_size: common_cluster(&shown_extents),
        dirty_flag: Some(false),
        full_backing_filename: parent.as_ref().map(|name| full_name(shown, name)),
        backing_filename_format: parent.as_ref().map(|_| image.format().name().into()),
        backing_filename: parent,
        format_specific: Some(FormatSpecific::Vmdk(VmdkInfo {
            cid: description.descriptor.cid,
            parent_cid: description.descriptor.parent_cid,
            create_type: description.descriptor.create_type.clone(),
            extents: shown_extents,
        })),
        children,
        ..info
    })
}

/// The extents in the order of the disk. The headers of sparse ones say how large they and their grains are.
async fn extents_of(
    description: &Description,
    files: &[ExtentFile],
    shown: &Path,
) -> Result<Vec<VmdkExtentInfo>, Failure> {
    let of = |filename: &Path, format: &str, info: ExtentInfo| VmdkExtentInfo {
        compressed: info.is_packed.then_some(true),
        virtual_size: info.bytes,
        filename: filename.to_string_lossy().into_owned(),
        cluster_size: Some(info.grain_bytes),
        format: format.to_owned(),
    };
    if let Some(own) = description.own() {
        return Ok(vec![of(shown, "", own)]);
    }
    let (mut extents, mut files) = (Vec::new(), files.iter());
    for line in description.extents() {
        let file = if line.file.is_empty() { None } else { files.next() };
        let name = file.map_or(shown, |file| &file.name);
        extents.push(match file.and_then(ExtentFile::storage).filter(|_| !line.kind.is_flat()) {
            Some(storage) => {
                let info = describe_extent(&**storage).await.map_err(|error| cannot_open(shown, &error))?;
                of(name, line.kind.name(), info)
            }
            None => VmdkExtentInfo {
                compressed: None,
                virtual_size: line.sectors * block::SECTOR_BYTES,
                filename: name.to_string_lossy().into_owned(),
                cluster_size: None,
                format: line.kind.name().to_owned(),
            },
        });
    }
    Ok(extents)
}

/// The grain of all extents, if they have the same.
fn common_cluster(extents: &[VmdkExtentInfo]) -> Option<u64> {
    let first = extents.first()?;
    let is_same = |extent: &VmdkExtentInfo| {
        (extent.cluster_size, extent.compressed) == (first.cluster_size, first.compressed)
    };
    extents.iter().all(is_same).then_some(first.cluster_size).flatten()
}

fn extent_child(name: String, extent: &ExtentFile, length: u64, space: u64) -> Child {
    if let Some(storage) = extent.storage() {
        return child(&name, storage, extent.driver(), &extent.name);
    }
    let info = ImageInfo {
        filename: extent.name.to_string_lossy().into_owned(),
        format: extent.driver().into(),
        virtual_size: length.next_multiple_of(block::SECTOR_BYTES),
        actual_size: Some(space),
        dirty_flag: Some(false),
        format_specific: Some(FormatSpecific::File(FileInfo {})),
        ..ImageInfo::default()
    };
    Child { name, info }
}
