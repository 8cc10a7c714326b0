//! What `info` shows of an image that was found and opened.
//!
//! Costs a bounded number of reads and bytes, whatever the image says: each length is checked
//! against the format's limits and the file's real length before anything is allocated.

use std::path::Path;
use std::sync::Arc;

use block::{Block, SECTOR_BYTES};
use formats::Kind;
use graph::FoundImage;
use graph::drivers::{StorageDriver, StorageKind, storage_drivers};
use graph::probe::Format;
use qcow2::Qcow2;
use qcow2_layout::{
    Autoclear, BitmapEntry, BitmapFlags, Compatible, CryptMethod, Header, Incompatible, SnapshotEntry,
    Version,
};
use storage::Storage;

use super::luks;
use super::model::{
    BitmapInfo, Child, EncryptInfo, FileInfo, FormatSpecific, ImageInfo, Limits, Qcow2Info, SnapshotInfo,
};
use super::vmdk;
use crate::failure::Failure;
use crate::medium::medium_value;
use crate::voice;

/// Parts of memory that one system call takes (IOV_MAX of Linux).
const IOV_MAX: u64 = 1024;
/// Buffers that begin at a page are read and written directly.
const PAGE_BYTES: u64 = 4096;

/// What is shown of `image`, which the user knows as `shown`.
pub async fn image_info(image: &FoundImage, shown: &Path) -> Result<ImageInfo, Failure> {
    match &image.header {
        Some(header) => qcow2_info(image, header, shown).await,
        None if image.format() == Format::Luks => luks::file_info(image, shown).await,
        None if let Some(files) = &image.vmdk => vmdk::file_info(image, files, shown).await,
        None if let Some(qcow1) = &image.qcow1 => Ok(ImageInfo {
            format: image.format().name().into(),
            virtual_size: qcow1.size,
            cluster_size: Some(qcow1.cluster_bytes),
            dirty_flag: Some(false),
            full_backing_filename: qcow1.backing.as_ref().map(|name| full_name(shown, name)),
            backing_filename: qcow1.backing.clone(),
            ..file_info(image, shown)
        }),
        None if let Some(kind) = Kind::of_name(image.format().name()) => {
            let opened = formats::open(kind, Arc::clone(image.storage())).await;
            let opened = opened.map_err(|error| cannot_open(shown, &error))?;
            Ok(ImageInfo {
                format: kind.name().into(),
                virtual_size: opened.size(),
                cluster_size: opened.capabilities().cluster_bytes,
                dirty_flag: Some(false),
                ..file_info(image, shown)
            })
        }
        None => {
            let window = image.options.raw.window(image.storage().length());
            let window = window.map_err(|error| cannot_open(shown, &error))?;
            Ok(ImageInfo { virtual_size: window.size, ..file_info(image, shown) })
        }
    }
}

/// "cannot open PATH", with what is known.
pub fn cannot_open(path: &Path, error: &dyn std::error::Error) -> Failure {
    Failure::because(format!("cannot open {}", path.display()), error)
}

/// The file by itself, and as the child of an image.
pub(super) fn file_info(image: &FoundImage, shown: &Path) -> ImageInfo {
    let child = child("file", image.storage(), image.file_driver(), shown);
    ImageInfo {
        filename: shown.to_string_lossy().into_owned(),
        format: Format::Raw.name().into(),
        virtual_size: image.storage().length().next_multiple_of(SECTOR_BYTES),
        actual_size: image.storage().allocated_bytes(),
        limits: Some(limits(&**image.storage())),
        medium: Some(medium_value(&image.storage().medium())),
        dirty_flag: child.info.dirty_flag,
        children: vec![child],
        ..ImageInfo::default()
    }
}

/// A file below an image, as its child called `name`.
pub(super) fn child(name: &str, file: &Arc<dyn Storage>, driver: &str, shown: &Path) -> Child {
    let info = ImageInfo {
        filename: shown.to_string_lossy().into_owned(),
        format: driver.into(),
        virtual_size: file.length().next_multiple_of(SECTOR_BYTES),
        actual_size: file.allocated_bytes(),
        dirty_flag: is_file(driver).then_some(false),
        format_specific: is_file(driver).then_some(FormatSpecific::File(FileInfo {})),
        limits: Some(child_limits(&**file, driver)),
        ..ImageInfo::default()
    };
    Child { name: name.into(), info }
}

/// Whether a driver keeps its bytes in files of this machine; of others QEMU reports no figures of files.
fn is_file(driver: &str) -> bool {
    let is_elsewhere =
        |known: &StorageDriver| known.name == driver && matches!(known.kind, StorageKind::Elsewhere(_));
    !storage_drivers().iter().any(|known| is_elsewhere(known))
}

/// Limits of a file's driver. As in QEMU one that keeps nothing wants memory as devices do.
fn child_limits(file: &dyn Storage, driver: &str) -> Limits {
    let limits = limits(file);
    let min_mem_alignment = if driver.starts_with("null-") { SECTOR_BYTES } else { limits.min_mem_alignment };
    Limits { min_mem_alignment, ..limits }
}

/// Limits of requests that reach `file`.
pub fn limits(file: &dyn Storage) -> Limits {
    let alignment = u64::from(file.capabilities().alignment);
    Limits {
        request_alignment: alignment,
        max_iov: IOV_MAX,
        min_mem_alignment: alignment,
        opt_mem_alignment: alignment.max(PAGE_BYTES),
        ..Limits::default()
    }
}

async fn qcow2_info(image: &FoundImage, header: &Header, shown: &Path) -> Result<ImageInfo, Failure> {
    let unreadable = |table: &str, error: &dyn std::error::Error| {
        Failure::because(format!("cannot read the {table} of {}", shown.display()), error)
    };
    let snapshots = snapshots(image, header).await.map_err(|error| unreadable("snapshot table", &*error))?;
    let bitmaps = qcow2::bitmap::list(&**image.storage(), header).await;
    let bitmaps = bitmaps.map_err(|error| unreadable("bitmap directory", &error))?;
    let mut specific = specific(header, &bitmaps);
    if let (Some(encrypt), Some(area)) = (&mut specific.encrypt, qcow2::luks_area(header)) {
        // No key is looked for.
        let luks = ::luks::read_header(&**image.storage(), area).await;
        let luks = luks.map_err(|error| unreadable("LUKS header", &error))?;
        encrypt.luks = Some(luks::luks1(luks, false));
    }
    let full_backing_filename = header.backing.as_ref().map(|name| full_name(shown, name));
    Ok(ImageInfo {
        format: Format::Qcow2.name().into(),
        virtual_size: header.guest_size(),
        dirty_flag: Some(header.incompatible.contains(Incompatible::DIRTY)),
        cluster_size: Some(1 << header.cluster_bits),
        encrypted: (header.crypt != CryptMethod::None).then_some(true),
        backing_filename: header.backing.clone(),
        full_backing_filename,
        backing_filename_format: header.extensions.backing_format.clone(),
        snapshots: snapshots.into_iter().map(snapshot_info).collect(),
        format_specific: Some(FormatSpecific::Qcow2(specific)),
        limits: Some(Limits {
            discard_alignment: Some(1 << header.cluster_bits),
            write_zeroes_alignment: Some(
                header.geometry().map_or(1 << header.cluster_bits, |geometry| geometry.subcluster_size()),
            ),
            // Requests to clusters are cut as the file needs it; a cipher has whole sectors.
            request_alignment: if header.crypt == CryptMethod::None { 1 } else { SECTOR_BYTES },
            ..limits(&**image.storage())
        }),
        ..file_info(image, shown)
    })
}

async fn snapshots(
    image: &FoundImage,
    header: &Header,
) -> Result<Vec<SnapshotEntry>, Box<dyn std::error::Error>> {
    let snapshots = qcow2::snapshot::list(&**image.storage(), header).await?;
    let geometry = header.geometry()?;
    snapshots.iter().try_for_each(|snapshot| snapshot.check(&geometry))?;
    Ok(snapshots)
}

/// The bytes themselves, where they are text: a table of snapshots can have 64 MiB. To QEMU's programs a name ends at its first zero byte.
fn text(mut bytes: Vec<u8>) -> String {
    if voice::is_qemu()
        && let Some(end) = bytes.iter().position(|byte| *byte == 0)
    {
        bytes.truncate(end);
    }
    String::from_utf8(bytes).unwrap_or_else(|error| String::from_utf8_lossy(error.as_bytes()).into_owned())
}

/// What is shown of a snapshot.
pub fn snapshot_info(entry: SnapshotEntry) -> SnapshotInfo {
    const NANOSECONDS: u64 = 1_000_000_000;
    SnapshotInfo {
        id: text(entry.id),
        name: text(entry.name),
        vm_state_size: entry.vm_state_size,
        date_sec: entry.date_sec.into(),
        date_nsec: entry.date_nsec.into(),
        vm_clock_sec: entry.vm_clock_nsec / NANOSECONDS,
        vm_clock_nsec: entry.vm_clock_nsec % NANOSECONDS,
        icount: entry.icount,
    }
}

/// What only a qcow2 image has.
pub fn specific(header: &Header, bitmaps: &[BitmapEntry]) -> Qcow2Info {
    let version_3 = header.version == Version::V3;
    let has_data_file = header.incompatible.contains(Incompatible::EXTERNAL_DATA);
    Qcow2Info {
        compat: if version_3 { "1.1" } else { "0.10" }.into(),
        compression_type: header.compression.name().into(),
        lazy_refcounts: version_3.then(|| header.compatible.contains(Compatible::LAZY_REFCOUNTS)),
        bitmaps: bitmaps.iter().map(bitmap_info).collect(),
        refcount_bits: 1 << header.refcount_order,
        data_file: header.extensions.data_file.clone().filter(|_| has_data_file),
        data_file_raw: has_data_file.then(|| header.autoclear.contains(Autoclear::RAW_EXTERNAL_DATA)),
        corrupt: version_3.then(|| header.incompatible.contains(Incompatible::CORRUPT)),
        extended_l2: version_3.then(|| header.incompatible.contains(Incompatible::EXTENDED_L2)),
        encrypt: match header.crypt {
            CryptMethod::None => None,
            CryptMethod::Aes => Some(EncryptInfo { luks: None, format: "aes" }),
            CryptMethod::Luks => Some(EncryptInfo { luks: None, format: "luks" }),
        },
    }
}

fn bitmap_info(bitmap: &BitmapEntry) -> BitmapInfo {
    let named = [(BitmapFlags::IN_USE, "in-use"), (BitmapFlags::AUTO, "auto")];
    let flags = named.iter().filter(|(flag, _)| bitmap.flags.contains(*flag));
    BitmapInfo {
        flags: flags.map(|(_, name)| (*name).to_owned()).collect(),
        name: bitmap.name.clone(),
        granularity: 1 << bitmap.granularity_bits,
    }
}

/// The backing file's name as seen from where `image` was named: for people; nothing is opened by it.
pub fn full_name(image: &Path, name: &str) -> String {
    if !is_relative(name) {
        return name.to_owned();
    }
    let directory = image.parent().unwrap_or(Path::new(""));
    directory.join(name).to_string_lossy().into_owned()
}

/// The backing file that the header of `image` names, as seen from where that was named `shown`.
pub async fn named_in_header(image: &Arc<dyn Block>, shown: &Path) -> Option<String> {
    let named = image.downcast_ref::<Qcow2>()?.header().await.backing?;
    Some(full_name(shown, &named))
}

/// Whether a name in a header begins at the image: it is neither a whole path nor options or a URL.
pub(super) fn is_relative(name: &str) -> bool {
    let before_slash = name.split('/').next().unwrap_or(name);
    !name.starts_with('/') && !before_slash.contains(':')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_relative_backing_name_is_seen_from_the_images_directory() {
        let table = [
            ("top", "base", "base"),
            ("dir/top", "base", "dir/base"),
            ("dir/top", "../base", "dir/../base"),
            ("/a/top", "b/base", "/a/b/base"),
            ("/a/top", "/b/base", "/b/base"),
            ("/a/top", "json:{}", "json:{}"),
            ("/a/top", "nbd://x/y", "nbd://x/y"),
        ];
        for (image, name, full) in table {
            assert_eq!(full_name(Path::new(image), name), full);
        }
    }
}
