//! First cluster -> header.

use super::extension::{Context, name};
use super::{
    BACKING_NAME_BYTES_MAX, Compression, CryptMethod, Extensions, HEADER_BYTES_V2, HEADER_BYTES_V3,
    HEADER_BYTES_V3_MIN, Header, HeaderError, L1_BYTES_MAX, MAGIC, REFCOUNT_TABLE_BYTES_MAX, SNAPSHOTS_MAX,
};
use crate::bytes::{be32, be64, part};
use crate::feature::UnknownFeatures;
use crate::snapshot::SNAPSHOT_FIXED_BYTES;
use crate::{Autoclear, CLUSTER_BITS_MAX, CLUSTER_BITS_MIN, Compatible, HostOffset, Incompatible, Version};

/// Refcount width of version 2, which has no field for it.
const REFCOUNT_ORDER_V2: u32 = 4;

impl Header {
    /// log2 of the cluster size, from the first 24 bytes or more: the size of the header's cluster.
    pub fn cluster_bits_of(first: &[u8]) -> Result<u32, HeaderError> {
        version_of(first)?;
        match need32(first, 20)? {
            bits if (CLUSTER_BITS_MIN..=CLUSTER_BITS_MAX).contains(&bits) => Ok(bits),
            found => Err(HeaderError::ClusterBits { found }),
        }
    }

    /// Reads the header in the first cluster. `first` may be longer than a cluster, or shorter when the file
    /// is; what an image may say is checked against every limit of the format, except against the length of
    /// the file.
    pub fn decode(first: &[u8]) -> Result<Header, HeaderError> {
        let header = Self::decode_for_check(first)?;
        if header.refcount_table_clusters == 0 {
            return Err(HeaderError::RefcountTableMissing);
        }
        Ok(header)
    }

    /// As [`Header::decode`], but an image without a refcount table passes: a checker can rebuild it.
    pub fn decode_for_check(first: &[u8]) -> Result<Header, HeaderError> {
        let cluster_bits = Self::cluster_bits_of(first)?;
        let version = version_of(first)?;
        let cluster_size = 1usize << cluster_bits;
        let first = part(first, 0, cluster_size).unwrap_or(first);
        let fixed = Fixed::decode(first, version, cluster_bits)?;
        let (backing, extensions_end) = fixed.backing(first)?;
        let context = Context {
            start: fixed.header_length,
            end: extensions_end,
            cluster_size: 1 << cluster_bits,
            autoclear: fixed.autoclear,
        };
        if !fixed.incompatible.unknown().is_empty() {
            let names = Extensions::feature_names(first, context);
            let unknown = UnknownFeatures::of(fixed.incompatible.unknown(), &names);
            return Err(HeaderError::UnknownFeatures(unknown));
        }
        let header = Header {
            version,
            cluster_bits,
            refcount_order: fixed.refcount_order,
            size: need64(first, 24)?,
            backing,
            crypt: fixed.crypt()?,
            l1_size: need32(first, 36)?,
            l1_table_offset: HostOffset(need64(first, 40)?),
            refcount_table_offset: HostOffset(need64(first, 48)?),
            refcount_table_clusters: need32(first, 56)?,
            snapshots: need32(first, 60)?,
            snapshots_offset: HostOffset(need64(first, 64)?),
            incompatible: fixed.incompatible,
            compatible: fixed.compatible,
            autoclear: fixed.autoclear,
            compression: fixed.compression()?,
            extra: fixed.extra(first),
            extensions: Extensions::decode(first, context)?,
        };
        header.check()?;
        Ok(header)
    }

    /// What must hold between the fields, whether they were read or are about to be written.
    pub(super) fn check(&self) -> Result<(), HeaderError> {
        let geometry = self.geometry()?;
        let cluster_size = geometry.cluster_size();
        self.check_l1(geometry.l1_entries_for(self.guest_size()), cluster_size)?;
        self.check_refcount_table(cluster_size)?;
        self.check_snapshots(cluster_size)?;
        let luks = self.crypt == CryptMethod::Luks;
        if luks != self.extensions.crypto.is_some() {
            let present = self.extensions.crypto.is_some();
            return Err(HeaderError::CryptoExtension { present, method: self.crypt.code() });
        }
        if let Some(crypto) = self.extensions.crypto {
            check_table("the LUKS header", crypto.offset, crypto.len, cluster_size)?;
        }
        if let Some(record) = self.extensions.record {
            record.check(cluster_size)?;
        }
        match self.extensions.bitmaps {
            Some(bitmaps) => bitmaps.check(cluster_size),
            None => Ok(()),
        }
    }

    fn check_l1(&self, needed: u64, cluster_size: u64) -> Result<(), HeaderError> {
        let entries = u64::from(self.l1_size);
        if entries.saturating_mul(8) > L1_BYTES_MAX {
            return Err(HeaderError::L1TooLarge { entries });
        }
        if entries < needed {
            return Err(HeaderError::L1TooSmall { entries: self.l1_size, needed, size: self.size });
        }
        check_table("the L1 table", self.l1_table_offset, entries * 8, cluster_size)
    }

    fn check_refcount_table(&self, cluster_size: u64) -> Result<(), HeaderError> {
        let len = u64::from(self.refcount_table_clusters) * cluster_size;
        if len > REFCOUNT_TABLE_BYTES_MAX {
            return Err(HeaderError::RefcountTableTooLarge { clusters: self.refcount_table_clusters });
        }
        check_table("the refcount table", self.refcount_table_offset, len, cluster_size)
    }

    fn check_snapshots(&self, cluster_size: u64) -> Result<(), HeaderError> {
        if self.snapshots > SNAPSHOTS_MAX {
            return Err(HeaderError::TooManySnapshots { found: self.snapshots });
        }
        let len_min = u64::from(self.snapshots) * SNAPSHOT_FIXED_BYTES as u64;
        check_table("the snapshot table", self.snapshots_offset, len_min, cluster_size)
    }
}

/// Checks where a table of `len` bytes is: starts at a cluster, not in the header's, and ends below 2^63.
/// An empty table may be anywhere on a cluster boundary.
pub(super) fn check_table(
    table: &'static str,
    offset: HostOffset,
    len: u64,
    cluster_size: u64,
) -> Result<(), HeaderError> {
    let end = offset.0.checked_add(len).filter(|&end| i64::try_from(end).is_ok());
    let on_header = offset.0 == 0 && len > 0;
    if offset.0 & (cluster_size - 1) != 0 || end.is_none() || on_header {
        return Err(HeaderError::TableOffset { table, offset: offset.0, len, cluster_size });
    }
    Ok(())
}

/// The fields that the rest is read by.
struct Fixed {
    header_length: usize,
    cluster_bits: u32,
    refcount_order: u32,
    incompatible: Incompatible,
    compatible: Compatible,
    autoclear: Autoclear,
    crypt_code: u32,
    compression_code: u8,
}

impl Fixed {
    fn decode(first: &[u8], version: Version, cluster_bits: u32) -> Result<Self, HeaderError> {
        let crypt_code = need32(first, 32)?;
        need64(first, 64)?;
        if version == Version::V2 {
            return Ok(Self {
                header_length: HEADER_BYTES_V2,
                cluster_bits,
                refcount_order: REFCOUNT_ORDER_V2,
                incompatible: Incompatible::default(),
                compatible: Compatible::default(),
                autoclear: Autoclear::default(),
                crypt_code,
                compression_code: 0,
            });
        }
        let header_length = header_length(first, cluster_bits)?;
        let has_compression = header_length > HEADER_BYTES_V3_MIN;
        Ok(Self {
            header_length,
            cluster_bits,
            refcount_order: need32(first, 96)?,
            incompatible: Incompatible(need64(first, 72)?),
            compatible: Compatible(need64(first, 80)?),
            autoclear: Autoclear(need64(first, 88)?),
            crypt_code,
            compression_code: first.get(104).copied().filter(|_| has_compression).unwrap_or(0),
        })
    }

    fn crypt(&self) -> Result<CryptMethod, HeaderError> {
        CryptMethod::of(self.crypt_code).ok_or(HeaderError::CryptMethod { found: self.crypt_code })
    }

    fn compression(&self) -> Result<Compression, HeaderError> {
        let found = self.compression_code;
        let bit = self.incompatible.contains(Incompatible::COMPRESSION);
        if bit != (found != 0) {
            return Err(HeaderError::CompressionBit { found, bit });
        }
        Compression::of(found).ok_or(HeaderError::CompressionType { found })
    }

    fn extra(&self, first: &[u8]) -> Vec<u8> {
        let extra = first.get(HEADER_BYTES_V3..self.header_length);
        extra.unwrap_or_default().to_vec()
    }

    /// The backing file's name, and where the area for extensions ends.
    fn backing(&self, first: &[u8]) -> Result<(Option<String>, usize), HeaderError> {
        let (offset, len) = (need64(first, 8)?, need32(first, 16)?);
        let cluster_size = 1usize << self.cluster_bits;
        if offset == 0 {
            return Ok((None, cluster_size));
        }
        let wrong = HeaderError::BackingName {
            offset,
            len,
            header_length: self.header_length,
            cluster_size: 1 << self.cluster_bits,
        };
        let place = usize::try_from(offset).ok().filter(|&at| at >= self.header_length && at <= cluster_size);
        let len = usize::try_from(len).ok().filter(|&len| len <= BACKING_NAME_BYTES_MAX);
        let (Some(at), Some(len)) = (place, len) else { return Err(wrong) };
        let bytes = part(first, at, len).ok_or(wrong)?;
        Ok((name("backing file name", bytes)?, at))
    }
}

fn header_length(first: &[u8], cluster_bits: u32) -> Result<usize, HeaderError> {
    let found = need32(first, 100)?;
    let wrong = HeaderError::HeaderLength { found, cluster_size: 1 << cluster_bits };
    let len = usize::try_from(found).map_err(|_| wrong.clone())?;
    if len < HEADER_BYTES_V3_MIN || len > 1usize << cluster_bits || !len.is_multiple_of(8) {
        return Err(wrong);
    }
    if first.len() < len {
        return Err(HeaderError::Truncated { len: first.len(), needed: len });
    }
    Ok(len)
}

fn version_of(first: &[u8]) -> Result<Version, HeaderError> {
    match need32(first, 0)? {
        MAGIC => {}
        found => return Err(HeaderError::Magic { found }),
    }
    match need32(first, 4)? {
        2 => Ok(Version::V2),
        3 => Ok(Version::V3),
        found => Err(HeaderError::Version { found }),
    }
}

fn need32(first: &[u8], at: usize) -> Result<u32, HeaderError> {
    be32(first, at).ok_or(HeaderError::Truncated { len: first.len(), needed: at + 4 })
}

fn need64(first: &[u8], at: usize) -> Result<u64, HeaderError> {
    be64(first, at).ok_or(HeaderError::Truncated { len: first.len(), needed: at + 8 })
}
