//! Reads an image's metadata into what `info` shows.
//!
//! Costs a bounded number of reads and bytes, whatever the image says: each length is checked
//! against the format's limits and the file's real length before anything is allocated.

use std::fs::File;
use std::io;
use std::os::unix::fs::{FileExt, FileTypeExt, MetadataExt};
use std::path::Path;
use std::sync::Arc;

use image::names::Located;
use image::options::{DiskOptions, LayerOptions};
use image::probe::{self, Access, Format, PROBE_BYTES};
use qcow2_layout::{
    Autoclear, BITMAP_DIRECTORY_BYTES_MAX, BitmapEntry, BitmapFlags, CLUSTER_BITS_MAX, Compatible,
    CryptMethod, DecodedSnapshot, Header, Incompatible, SNAPSHOT_TABLE_BYTES_MAX, SnapshotEntry,
    SnapshotError, Version, decode_bitmap_directory, decode_snapshots,
};

use storage::{FileLock, Role as LockRole};

use super::model::{
    BitmapInfo, Child, EncryptInfo, FileInfo, FormatSpecific, ImageInfo, Qcow2Info, SnapshotInfo,
};
use crate::failure::Failure;

/// What the first guess at the length of a snapshot table is: some hundred snapshots.
const SNAPSHOT_BYTES_GUESS: u64 = 64 << 10;

/// Sizes of disks are multiples of this; a raw file that is not has its last sector filled with zeroes.
const SECTOR_BYTES: u64 = 512;

/// An open image file.
pub struct Source {
    file: File,
    /// Keeps writers out while the metadata is read, as QEMU's tools do.
    _lock: Option<FileLock>,
    length: u64,
    /// Path for messages and for `filename`.
    shown: String,
    actual_size: Option<u64>,
    driver: &'static str,
}

/// An image with its header, if it has one.
pub struct Opened {
    /// What is shown.
    pub info: ImageInfo,
    /// The header of a qcow2 image.
    pub header: Option<Header>,
}

/// Reads the image that `options` name.
pub fn read_image(options: &DiskOptions) -> Result<ImageInfo, Failure> {
    let path = &options.filename;
    let located = Located::by_user(path).map_err(|error| cannot_open(path, &error))?;
    let opened = open(&located, path, &options.layer)?;
    if let Some(format) = Format::of_name(&opened.info.format) {
        options.layer.check_format(format).map_err(|error| cannot_open(path, &error))?;
    }
    Ok(opened.info)
}

/// Reads the image at `located`, calling it `shown`.
pub fn open(located: &Located, shown: &Path, layer: &LayerOptions) -> Result<Opened, Failure> {
    let failed = |error: &dyn std::error::Error| cannot_open(shown, error);
    let source = Source::open(located, shown, layer)?;
    let start = source.read(0, PROBE_BYTES as u64).map_err(|error| failed(&error))?;
    let format =
        probe::decide(layer.format, probe::probe(&start), Access::Read).map_err(|error| failed(&error))?;
    match format {
        Format::Raw => Ok(Opened { info: source.raw_info(), header: None }),
        Format::Qcow2 => qcow2_info(&source, shown),
    }
}

/// "cannot open PATH", with what is known.
pub fn cannot_open(path: &Path, error: &dyn std::error::Error) -> Failure {
    Failure::because(format!("cannot open {}", path.display()), error)
}

impl Source {
    fn open(located: &Located, shown: &Path, layer: &LayerOptions) -> Result<Self, Failure> {
        let mut source = Self::open_unlocked(located, shown).map_err(|error| cannot_open(shown, &error))?;
        if layer.file.locking {
            let role = if layer.force_share { LockRole::ForceShare } else { LockRole::Reader };
            let descriptor = source.file.try_clone().map_err(|error| cannot_open(shown, &error))?;
            let lock = FileLock::acquire_role(&Arc::new(descriptor.into()), role);
            source._lock = Some(lock.map_err(|error| cannot_open(shown, &error))?);
        }
        Ok(source)
    }

    fn open_unlocked(located: &Located, shown: &Path) -> io::Result<Self> {
        let path = located.open_path();
        let kind = std::fs::metadata(&path)?.file_type();
        // Asked before opening: opening a FIFO would wait for its other end.
        let driver = match kind {
            kind if kind.is_file() => "file",
            kind if kind.is_block_device() => "host_device",
            _ => {
                return Err(io::Error::new(
                    io::ErrorKind::InvalidInput,
                    "not a regular file or a block device",
                ));
            }
        };
        let file = File::open(&path)?;
        let metadata = file.metadata()?;
        let length = match driver {
            "file" => metadata.len(),
            _ => io::Seek::seek(&mut &file, io::SeekFrom::End(0))?,
        };
        let shown = shown.to_string_lossy().into_owned();
        Ok(Self { file, _lock: None, length, shown, actual_size: Some(metadata.blocks() * 512), driver })
    }

    /// `bytes` from `offset` on, or fewer where the file ends. The caller has bounded `bytes`.
    fn read(&self, offset: u64, bytes: u64) -> io::Result<Vec<u8>> {
        let bytes = bytes.min(self.length.saturating_sub(offset));
        let mut buffer = vec![0; usize::try_from(bytes).map_err(io::Error::other)?];
        self.file.read_exact_at(&mut buffer, offset)?;
        Ok(buffer)
    }

    /// The file itself, as the child of an image.
    fn child(&self) -> Child {
        let info = ImageInfo {
            format: self.driver.into(),
            format_specific: Some(FormatSpecific::File(FileInfo {})),
            children: Vec::new(),
            ..self.raw_info_alone()
        };
        Child { name: "file".into(), info }
    }

    fn raw_info(&self) -> ImageInfo {
        ImageInfo { children: vec![self.child()], ..self.raw_info_alone() }
    }

    fn raw_info_alone(&self) -> ImageInfo {
        ImageInfo {
            filename: self.shown.clone(),
            format: Format::Raw.name().into(),
            virtual_size: self.length.next_multiple_of(SECTOR_BYTES),
            actual_size: self.actual_size,
            dirty_flag: false,
            cluster_size: None,
            encrypted: None,
            backing_filename: None,
            full_backing_filename: None,
            backing_filename_format: None,
            snapshots: Vec::new(),
            format_specific: None,
            children: Vec::new(),
        }
    }
}

fn qcow2_info(source: &Source, shown: &Path) -> Result<Opened, Failure> {
    let failed = |error: &dyn std::error::Error| cannot_open(shown, error);
    let first = source.read(0, 1 << CLUSTER_BITS_MAX).map_err(|error| failed(&error))?;
    let header = Header::decode(&first).map_err(|error| failed(&error))?;
    let snapshots = read_snapshots(source, &header).map_err(|error| error.named(shown))?;
    let bitmaps = read_bitmaps(source, &header).map_err(|error| error.named(shown))?;
    let full_backing_filename = header.backing.as_ref().map(|name| full_name(shown, name));
    let info = ImageInfo {
        format: Format::Qcow2.name().into(),
        virtual_size: header.guest_size(),
        dirty_flag: header.incompatible.contains(Incompatible::DIRTY),
        cluster_size: Some(1 << header.cluster_bits),
        encrypted: (header.crypt != CryptMethod::None).then_some(true),
        backing_filename: header.backing.clone(),
        full_backing_filename,
        backing_filename_format: header.extensions.backing_format.clone(),
        snapshots: snapshots.iter().map(|snapshot| snapshot_info(&snapshot.entry)).collect(),
        format_specific: Some(FormatSpecific::Qcow2(specific(&header, &bitmaps))),
        ..source.raw_info()
    };
    Ok(Opened { info, header: Some(header) })
}

/// Why a table cannot be read.
enum Unreadable {
    Io(&'static str, io::Error),
    Wrong(&'static str, Box<dyn std::error::Error>),
    PastTheEnd { table: &'static str, offset: u64, length: u64 },
}

impl Unreadable {
    fn named(self, shown: &Path) -> Failure {
        let what = |table: &str| format!("cannot read the {table} of {}", shown.display());
        match self {
            Self::Io(table, error) => Failure::because(what(table), &error),
            Self::Wrong(table, error) => Failure::because(what(table), error.as_ref()),
            Self::PastTheEnd { table, offset, length } => Failure::new(format!(
                "{}\n  because: it begins at or ends past the end of the file: offset {offset}, file length {length}",
                what(table)
            )),
        }
    }
}

fn read_snapshots(source: &Source, header: &Header) -> Result<Vec<DecodedSnapshot>, Unreadable> {
    const TABLE: &str = "snapshot table";
    if header.snapshots == 0 {
        return Ok(Vec::new());
    }
    let offset = header.snapshots_offset.0;
    let past_the_end = || Unreadable::PastTheEnd { table: TABLE, offset, length: source.length };
    let available = source.length.checked_sub(offset).ok_or_else(past_the_end)?.min(SNAPSHOT_TABLE_BYTES_MAX);
    let geometry = header.geometry().map_err(|error| Unreadable::Wrong(TABLE, error.into()))?;
    // The table's length stands nowhere: each try at least doubles what is read.
    let mut bytes = available.min(SNAPSHOT_BYTES_GUESS);
    let snapshots = loop {
        let table = source.read(offset, bytes).map_err(|error| Unreadable::Io(TABLE, error))?;
        match decode_snapshots(&table, header.snapshots) {
            Ok(snapshots) => break snapshots,
            Err(SnapshotError::Truncated { needed, .. }) if bytes < available => {
                bytes = needed.max(bytes * 2).min(available);
            }
            Err(SnapshotError::Truncated { .. }) => return Err(past_the_end()),
            Err(error) => return Err(Unreadable::Wrong(TABLE, error.into())),
        }
    };
    for snapshot in &snapshots {
        snapshot.entry.check(&geometry).map_err(|error| Unreadable::Wrong(TABLE, error.into()))?;
    }
    Ok(snapshots)
}

fn read_bitmaps(source: &Source, header: &Header) -> Result<Vec<BitmapEntry>, Unreadable> {
    const TABLE: &str = "bitmap directory";
    let consistent = header.autoclear.contains(Autoclear::BITMAPS);
    let Some(extension) = header.extensions.bitmaps.as_ref().filter(|_| consistent) else {
        return Ok(Vec::new());
    };
    let (offset, bytes) = (extension.directory_offset.0, extension.directory_size);
    let end = offset.checked_add(bytes);
    if bytes > BITMAP_DIRECTORY_BYTES_MAX || end.is_none_or(|end| end > source.length) {
        return Err(Unreadable::PastTheEnd { table: TABLE, offset, length: source.length });
    }
    let geometry = header.geometry().map_err(|error| Unreadable::Wrong(TABLE, error.into()))?;
    let directory = source.read(offset, bytes).map_err(|error| Unreadable::Io(TABLE, error))?;
    decode_bitmap_directory(&directory, extension.count, &geometry)
        .map_err(|error| Unreadable::Wrong(TABLE, error.into()))
}

/// What is shown of a snapshot.
pub fn snapshot_info(entry: &SnapshotEntry) -> SnapshotInfo {
    const NANOSECONDS: u64 = 1_000_000_000;
    SnapshotInfo {
        id: entry.id_text().into_owned(),
        name: entry.name_text().into_owned(),
        vm_state_size: entry.vm_state_size,
        date_sec: entry.date_sec.into(),
        date_nsec: entry.date_nsec.into(),
        vm_clock_sec: entry.vm_clock_nsec / NANOSECONDS,
        vm_clock_nsec: entry.vm_clock_nsec % NANOSECONDS,
        icount: entry.icount,
    }
}

fn specific(header: &Header, bitmaps: &[BitmapEntry]) -> Qcow2Info {
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
            CryptMethod::Aes => Some(EncryptInfo { format: "aes".into() }),
            CryptMethod::Luks => Some(EncryptInfo { format: "luks".into() }),
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
fn full_name(image: &Path, name: &str) -> String {
    let before_slash = name.split('/').next().unwrap_or(name);
    if name.starts_with('/') || before_slash.contains(':') {
        return name.to_owned();
    }
    let directory = image.parent().unwrap_or(Path::new(""));
    directory.join(name).to_string_lossy().into_owned()
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
