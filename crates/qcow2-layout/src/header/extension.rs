//! Header extensions: type, length, data, padded to 8, between the header and the backing file's name.

use super::{BACKING_FORMAT_BYTES_MAX, HeaderError};
use crate::bitmap::{BITMAP_DIRECTORY_BYTES_MAX, BITMAPS_MAX};
use crate::bytes::{be32, be64, pad8, part};
use crate::feature::FeatureName;
use crate::{Autoclear, HostOffset};

const END: u32 = 0;
const BACKING_FORMAT: u32 = 0xe279_2aca;
const FEATURE_NAMES: u32 = 0x6803_f857;
const BITMAPS: u32 = 0x2385_2875;
const CRYPTO: u32 = 0x0537_be77;
const DATA_FILE: u32 = 0x4441_5441;
/// Cowhand's own: "cowb". QEMU keeps extensions that it does not know.
const RECORD: u32 = 0x636f_7762;

const BITMAPS_BYTES: usize = 24;
/// Where in the extension the place of the directory is.
const DIRECTORY_OFFSET_AT: usize = 16;
const RECORD_BYTES: usize = 24;
/// log2 of the guest bytes that one bit of a record stands for.
const RECORD_REGION_BITS: std::ops::RangeInclusive<u32> = 9..=62;
/// Most bytes of a record: what is covered of 65,535 bitmaps, and 2^27 regions.
const RECORD_BYTES_MAX: u64 = 16 << 20;
/// Where a version 3 header says how long it is.
const HEADER_LENGTH_AT: usize = 100;
const CRYPTO_BYTES: usize = 16;

/// What the header extensions say.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Extensions {
    /// Format of the backing file ("qcow2", "raw", ..).
    pub backing_format: Option<String>,
    /// Name of the external data file.
    pub data_file: Option<String>,
    /// Where the LUKS header is.
    pub crypto: Option<CryptoExtension>,
    /// Names for feature bits.
    pub features: Vec<FeatureName>,
    /// Persistent bitmaps. Only there while the autoclear bit vouches for them; without the bit the
    /// extension is outdated, and is dropped when the header is written again.
    pub bitmaps: Option<BitmapsExtension>,
    /// What was changed since the bitmaps were stored. Only there while its autoclear bit vouches for it, and dropped as `bitmaps` is.
    pub record: Option<RecordExtension>,
    /// Type and data of every extension that is not known here, in order.
    pub unknown: Vec<(u32, Vec<u8>)>,
}

/// Where the bitmap directory is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BitmapsExtension {
    /// Bitmaps in the directory, 1 to 65535.
    pub count: u32,
    /// Bytes of the directory.
    pub directory_size: u64,
    /// Start of the directory, cluster aligned.
    pub directory_offset: HostOffset,
}

/// Where the record of changes is: what bitmaps that are "in use" miss.
///
/// First a bit for each bitmap of the directory (the lowest of the first byte is the first bitmap's), set if the record is of it; then,
/// from the next multiple of 512 bytes on, a bit for each region of the disk, set before anything in it is changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RecordExtension {
    /// First byte, cluster aligned.
    pub offset: HostOffset,
    /// Bytes, both parts together; a multiple of 512.
    pub len: u64,
    /// log2 of the guest bytes in a region.
    pub region_bits: u32,
}

/// Where the LUKS header is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CryptoExtension {
    /// First byte.
    pub offset: HostOffset,
    /// Bytes.
    pub len: u64,
}

/// What of the rest of the header the extensions depend on.
#[derive(Clone, Copy)]
pub(super) struct Context {
    /// Where the first extension starts and where the area ends.
    pub(super) start: usize,
    pub(super) end: usize,
    pub(super) cluster_size: u64,
    pub(super) autoclear: Autoclear,
}

impl Extensions {
    /// Reads the extensions in `first` from `context.start` to `context.end`.
    pub(super) fn decode(first: &[u8], context: Context) -> Result<Self, HeaderError> {
        let mut found = Extensions::default();
        let mut seen = Vec::new();
        for_each(first, context, |kind, data| {
            if is_unique(kind) {
                if seen.contains(&kind) {
                    return Err(HeaderError::DuplicateExtension { kind });
                }
                seen.push(kind);
            }
            found.take(kind, data, context)
        })?;
        Ok(found)
    }

    /// The feature names alone, for naming unknown features before anything else can be judged.
    pub(super) fn feature_names(first: &[u8], context: Context) -> Vec<FeatureName> {
        let mut names = Vec::new();
        // What is wrong with the other extensions does not matter while the image cannot be opened anyway.
        let _ = for_each(first, context, |kind, data| {
            if kind == FEATURE_NAMES {
                names = FeatureName::decode_table(data);
            }
            Ok(())
        });
        names
    }

    fn take(&mut self, kind: u32, data: &[u8], context: Context) -> Result<(), HeaderError> {
        match kind {
            BACKING_FORMAT => {
                let (len, max) = (data.len(), BACKING_FORMAT_BYTES_MAX);
                if len > max {
                    return Err(HeaderError::NameTooLong { what: "backing file format", len, max });
                }
                self.backing_format = name("backing file format", data)?;
            }
            DATA_FILE => self.data_file = name("data file name", data)?,
            CRYPTO => self.crypto = Some(CryptoExtension::decode(data)?),
            FEATURE_NAMES => self.features = FeatureName::decode_table(data),
            BITMAPS => self.bitmaps = BitmapsExtension::decode(data, context)?,
            RECORD => self.record = RecordExtension::decode(data, context),
            _ => self.unknown.push((kind, data.to_vec())),
        }
        Ok(())
    }

    /// All extensions with the end mark, in the order that QEMU writes; the feature names only if wanted.
    pub(super) fn encode(&self, with_features: bool) -> Vec<u8> {
        let mut out = Vec::new();
        if let Some(format) = &self.backing_format {
            append(&mut out, BACKING_FORMAT, format.as_bytes());
        }
        if let Some(data_file) = &self.data_file {
            append(&mut out, DATA_FILE, data_file.as_bytes());
        }
        if let Some(crypto) = &self.crypto {
            append(&mut out, CRYPTO, &crypto.encode());
        }
        if with_features && !self.features.is_empty() {
            append(&mut out, FEATURE_NAMES, &FeatureName::encode_table(&self.features));
        }
        if let Some(bitmaps) = &self.bitmaps {
            append(&mut out, BITMAPS, &bitmaps.encode());
        }
        if let Some(record) = &self.record {
            append(&mut out, RECORD, &record.encode());
        }
        for (kind, data) in &self.unknown {
            append(&mut out, *kind, data);
        }
        append(&mut out, END, &[]);
        out
    }
}

impl BitmapsExtension {
    /// Where in the first cluster, `first`, of a version 3 image the eight bytes are that say where the bitmap directory is.
    pub fn directory_offset_at(first: &[u8]) -> Option<u64> {
        data_at(first, BITMAPS, BITMAPS_BYTES).map(|at| (at + DIRECTORY_OFFSET_AT) as u64)
    }

    fn decode(data: &[u8], context: Context) -> Result<Option<Self>, HeaderError> {
        let wrong_size =
            HeaderError::ExtensionSize { kind: BITMAPS, len: data.len(), expected: BITMAPS_BYTES };
        let fields = (be32(data, 0), be32(data, 4), be64(data, 8), be64(data, 16));
        let (Some(count), Some(reserved), Some(directory_size), Some(offset)) = fields else {
            return Err(wrong_size);
        };
        if data.len() != BITMAPS_BYTES {
            return Err(wrong_size);
        }
        if !context.autoclear.contains(Autoclear::BITMAPS) {
            return Ok(None);
        }
        if reserved != 0 {
            let found = u64::from(reserved);
            return Err(HeaderError::Reserved { field: "reserved field of the bitmaps extension", found });
        }
        let found = Self { count, directory_size, directory_offset: HostOffset(offset) };
        found.check(context.cluster_size)?;
        Ok(Some(found))
    }

    pub(super) fn check(&self, cluster_size: u64) -> Result<(), HeaderError> {
        let size_ok = (1..=BITMAP_DIRECTORY_BYTES_MAX).contains(&self.directory_size);
        if !(1..=BITMAPS_MAX).contains(&self.count) || !size_ok {
            return Err(HeaderError::Bitmaps { count: self.count, size: self.directory_size });
        }
        super::decode::check_table(
            "the bitmap directory",
            self.directory_offset,
            self.directory_size,
            cluster_size,
        )
    }

    fn encode(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(BITMAPS_BYTES);
        out.extend(self.count.to_be_bytes());
        out.extend(0u32.to_be_bytes());
        out.extend(self.directory_size.to_be_bytes());
        out.extend(self.directory_offset.0.to_be_bytes());
        out
    }
}

impl RecordExtension {
    /// Where in the first cluster, `first`, of a version 3 image the eight bytes are that say where the record is.
    pub fn offset_at(first: &[u8]) -> Option<u64> {
        data_at(first, RECORD, RECORD_BYTES).map(|at| at as u64)
    }

    /// A record that makes no sense is none: the bitmaps are inconsistent then, as for everybody else.
    fn decode(data: &[u8], context: Context) -> Option<Self> {
        let record =
            Self { offset: HostOffset(be64(data, 0)?), len: be64(data, 8)?, region_bits: be32(data, 16)? };
        let is_sound = data.len() == RECORD_BYTES
            && be32(data, 20)? == 0
            && context.autoclear.contains(Autoclear::BITMAP_RECORD)
            && context.autoclear.contains(Autoclear::BITMAPS)
            && record.check(context.cluster_size).is_ok();
        is_sound.then_some(record)
    }

    pub(super) fn check(&self, cluster_size: u64) -> Result<(), HeaderError> {
        let sound = self.offset.0 != 0
            && RECORD_REGION_BITS.contains(&self.region_bits)
            && (512..=RECORD_BYTES_MAX).contains(&self.len)
            && self.len.is_multiple_of(512);
        match sound {
            true => super::decode::check_table("the record of changes", self.offset, self.len, cluster_size),
            false => {
                Err(HeaderError::Reserved { field: "extension of the record of changes", found: self.len })
            }
        }
    }

    fn encode(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(RECORD_BYTES);
        out.extend(self.offset.0.to_be_bytes());
        out.extend(self.len.to_be_bytes());
        out.extend(self.region_bits.to_be_bytes());
        out.extend(0u32.to_be_bytes());
        out
    }
}

impl CryptoExtension {
    fn decode(data: &[u8]) -> Result<Self, HeaderError> {
        match (be64(data, 0), be64(data, 8), data.len()) {
            (Some(offset), Some(len), CRYPTO_BYTES) => Ok(Self { offset: HostOffset(offset), len }),
            (_, _, len) => Err(HeaderError::ExtensionSize { kind: CRYPTO, len, expected: CRYPTO_BYTES }),
        }
    }

    fn encode(&self) -> Vec<u8> {
        [self.offset.0.to_be_bytes(), self.len.to_be_bytes()].concat()
    }
}

/// Of the others the last one counts, as in QEMU.
fn is_unique(kind: u32) -> bool {
    matches!(kind, DATA_FILE | CRYPTO | BITMAPS | RECORD)
}

/// Where in the first cluster, `first`, of a version 3 image the data of an extension is that has `len` bytes.
fn data_at(first: &[u8], kind: u32, expected: usize) -> Option<usize> {
    let mut at = usize::try_from(be32(first, HEADER_LENGTH_AT)?).ok()?;
    loop {
        let len = usize::try_from(be32(first, at.checked_add(4)?)?).ok()?;
        match be32(first, at)? {
            END => return None,
            found if found == kind && len == expected => return Some(at + 8),
            _ => at = at.checked_add(8)?.checked_add(len.checked_next_multiple_of(8)?)?,
        }
    }
}

/// Calls `each` with type and data of every extension, up to the end mark or the end of the area.
fn for_each(
    first: &[u8],
    context: Context,
    mut each: impl FnMut(u32, &[u8]) -> Result<(), HeaderError>,
) -> Result<(), HeaderError> {
    let end = context.end.min(first.len());
    let area = first.get(..end).unwrap_or_default();
    let mut offset = context.start;
    // An extension that begins in the area and ends behind it is one that is too long, as in QEMU.
    while offset < end
        && let (Some(kind), Some(len)) = (be32(first, offset), be32(first, offset.saturating_add(4)))
    {
        if kind == END {
            return Ok(());
        }
        let data = usize::try_from(len).ok().and_then(|len| part(area, offset.checked_add(8)?, len));
        let Some(data) = data else {
            return Err(HeaderError::ExtensionLength { kind, offset, len, end });
        };
        each(kind, data)?;
        offset += 8 + data.len().next_multiple_of(8);
    }
    Ok(())
}

fn append(out: &mut Vec<u8>, kind: u32, data: &[u8]) {
    out.extend(kind.to_be_bytes());
    // A longer extension does not fit the first cluster, which `Header::encode` finds out.
    out.extend(u32::try_from(data.len()).unwrap_or(u32::MAX).to_be_bytes());
    out.extend(data);
    pad8(out);
}

/// A name as stored: not terminated, so a zero byte is a fault; nothing when empty.
pub(super) fn name(what: &'static str, bytes: &[u8]) -> Result<Option<String>, HeaderError> {
    let bad = || HeaderError::BadName { what, found: String::from_utf8_lossy(bytes).into_owned() };
    let text = str::from_utf8(bytes).map_err(|_| bad())?;
    if text.contains('\0') {
        return Err(bad());
    }
    Ok((!text.is_empty()).then(|| text.to_owned()))
}
