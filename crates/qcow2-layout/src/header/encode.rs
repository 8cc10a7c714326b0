//! Header -> start of the first cluster.

use super::extension::name;
use super::{
    BACKING_FORMAT_BYTES_MAX, BACKING_NAME_BYTES_MAX, HEADER_BYTES_V2, HEADER_BYTES_V3, Header, HeaderError,
    MAGIC,
};
use crate::{Incompatible, Version};

/// Where the fields behind the backing file's place start.
const CLUSTER_BITS_AT: usize = 20;
/// Where the feature bits of version 3 end.
const FEATURES_END: usize = 96;

impl Header {
    /// The bytes of the header, its extensions and the backing file's name. The rest of the first
    /// cluster is zeroes, and the caller's to write.
    ///
    /// The feature name table is left out when the first cluster has no room for it, as QEMU does.
    ///
    /// # Errors
    /// The rest does not fit in the first cluster, or a field is outside the limits of the format.
    pub fn encode(&self) -> Result<Vec<u8>, HeaderError> {
        self.check()?;
        self.check_names()?;
        let coded = self.compression.code();
        let bit = self.incompatible.contains(Incompatible::COMPRESSION);
        if bit != (coded != 0) {
            return Err(HeaderError::CompressionBit { found: coded, bit });
        }
        match self.encode_with(true) {
            Err(HeaderError::TooLarge { .. }) => self.encode_with(false),
            done => done,
        }
    }

    /// Overwrites the fields that do not depend on names and extensions - size, tables, feature bits - in
    /// the first bytes of an image (at least 104, 72 in version 2). They all lie in the first 512 bytes,
    /// so one sector written in place changes them at once or not at all.
    ///
    /// # Errors
    /// Too few bytes.
    pub fn patch(&self, first: &mut [u8]) -> Result<(), HeaderError> {
        let mut fixed = Vec::with_capacity(HEADER_BYTES_V3);
        self.encode_version_2(&mut fixed, 0, 0);
        let mut end = HEADER_BYTES_V2;
        if self.version == Version::V3 {
            self.encode_version_3(&mut fixed, 0);
            end = FEATURES_END;
        }
        let truncated = HeaderError::Truncated { len: first.len(), needed: end };
        let target = first.get_mut(CLUSTER_BITS_AT..end).ok_or(truncated.clone())?;
        target.copy_from_slice(fixed.get(CLUSTER_BITS_AT..end).ok_or(truncated)?);
        Ok(())
    }

    fn check_names(&self) -> Result<(), HeaderError> {
        let names = [
            ("backing file name", &self.backing, BACKING_NAME_BYTES_MAX),
            ("backing file format", &self.extensions.backing_format, BACKING_FORMAT_BYTES_MAX),
            ("data file name", &self.extensions.data_file, usize::MAX),
        ];
        for (what, text, max) in names {
            let Some(text) = text else { continue };
            name(what, text.as_bytes())?;
            if text.len() > max {
                return Err(HeaderError::NameTooLong { what, len: text.len(), max });
            }
        }
        Ok(())
    }

    fn encode_with(&self, features: bool) -> Result<Vec<u8>, HeaderError> {
        let extensions = self.extensions.encode(features);
        let extra = if self.version == Version::V3 { self.extra.len().next_multiple_of(8) } else { 0 };
        let header_length = self.known_bytes() + extra;
        let backing = self.backing.as_deref().unwrap_or_default().as_bytes();
        let backing_offset = header_length + extensions.len();
        let needed = backing_offset + backing.len();
        let cluster_size = self.cluster_size();
        if needed as u64 > cluster_size {
            return Err(HeaderError::TooLarge { needed, cluster_size });
        }
        let mut out = Vec::with_capacity(needed);
        self.encode_version_2(&mut out, if backing.is_empty() { 0 } else { backing_offset }, backing.len());
        if self.version == Version::V3 {
            self.encode_version_3(&mut out, header_length);
        }
        out.resize(header_length, 0);
        out.extend(extensions);
        out.extend(backing);
        Ok(out)
    }

    fn known_bytes(&self) -> usize {
        match self.version {
            Version::V2 => HEADER_BYTES_V2,
            Version::V3 => HEADER_BYTES_V3,
        }
    }

    /// The fields that both versions have. Offsets and lengths inside a cluster fit any integer here.
    fn encode_version_2(&self, out: &mut Vec<u8>, backing_offset: usize, backing_len: usize) {
        out.extend(MAGIC.to_be_bytes());
        out.extend(self.version.number().to_be_bytes());
        out.extend((backing_offset as u64).to_be_bytes());
        out.extend(u32::try_from(backing_len).unwrap_or(u32::MAX).to_be_bytes());
        out.extend(self.cluster_bits.to_be_bytes());
        out.extend(self.size.to_be_bytes());
        out.extend(self.crypt.code().to_be_bytes());
        out.extend(self.l1_size.to_be_bytes());
        out.extend(self.l1_table_offset.0.to_be_bytes());
        out.extend(self.refcount_table_offset.0.to_be_bytes());
        out.extend(self.refcount_table_clusters.to_be_bytes());
        out.extend(self.snapshots.to_be_bytes());
        out.extend(self.snapshots_offset.0.to_be_bytes());
    }

    fn encode_version_3(&self, out: &mut Vec<u8>, header_length: usize) {
        out.extend(self.incompatible.0.to_be_bytes());
        out.extend(self.compatible.0.to_be_bytes());
        out.extend(self.autoclear.0.to_be_bytes());
        out.extend(self.refcount_order.to_be_bytes());
        out.extend(u32::try_from(header_length).unwrap_or(u32::MAX).to_be_bytes());
        out.push(self.compression.code());
        out.resize(HEADER_BYTES_V3, 0);
        out.extend(&self.extra);
    }
}
