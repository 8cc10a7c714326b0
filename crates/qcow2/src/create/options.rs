//! What a new image shall be, and which wishes contradict each other.

use qcow2_layout::{Compression, Geometry, Version};

use luks::Cipher;

use super::CreateError;

/// What of a new image is allocated at once.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Preallocation {
    /// Nothing: the image grows as it is written.
    #[default]
    Off,
    /// All tables; the data is a hole in the file.
    Metadata,
    /// All tables, and space for the data reserved in the file system.
    Falloc,
    /// All tables, and the data written with zeroes.
    Full,
}

impl Preallocation {
    /// QEMU's name for it.
    pub fn name(self) -> &'static str {
        match self {
            Preallocation::Off => "off",
            Preallocation::Metadata => "metadata",
            Preallocation::Falloc => "falloc",
            Preallocation::Full => "full",
        }
    }
}

/// What a new image shall be. Field by field QEMU's creation options of the same names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CreateOptions {
    /// Size of the guest's disk in bytes; rounded up to whole sectors of 512 bytes.
    pub size: u64,
    /// `compat`: 0.10 is version 2, 1.1 is version 3.
    pub version: Version,
    /// `cluster_size` in bytes: a power of two from 512 to 2 MiB.
    pub cluster_size: u64,
    /// `refcount_bits`: a power of two up to 64.
    pub refcount_bits: u32,
    /// `backing_file`: the name to store. Whether such a file exists is the caller's business.
    pub backing_file: Option<String>,
    /// `backing_fmt`: the format to store.
    pub backing_format: Option<String>,
    /// `preallocation`.
    pub preallocation: Preallocation,
    /// `lazy_refcounts`.
    pub lazy_refcounts: bool,
    /// `data_file`: the name to store.
    pub data_file: Option<String>,
    /// What the data file holds stays, and it is made longer where that is needed: a raw disk gets an image in front of it. Nothing is
    /// written there whatever `preallocation` says.
    pub keeps_data_file: bool,
    /// `data_file_raw`: the data file can be read as a raw image.
    pub data_file_raw: bool,
    /// `extended_l2`: subclusters.
    pub extended_l2: bool,
    /// `compression_type`.
    pub compression: Compression,
    /// `encrypt.format=luks`: how data is ciphered. Made by [`super::create_encrypted`].
    pub encrypt: Option<Cipher>,
    /// Header extensions of other programs, by type and data: the engine and QEMU keep them, and do not look inside.
    pub extensions: Vec<(u32, Vec<u8>)>,
}

impl Default for CreateOptions {
    fn default() -> Self {
        Self {
            size: 0,
            version: Version::V3,
            cluster_size: 65536,
            refcount_bits: 16,
            backing_file: None,
            backing_format: None,
            preallocation: Preallocation::Off,
            lazy_refcounts: false,
            data_file: None,
            keeps_data_file: false,
            data_file_raw: false,
            extended_l2: false,
            compression: Compression::Deflate,
            encrypt: None,
            extensions: Vec::new(),
        }
    }
}

impl CreateOptions {
    /// Checks every option and every pair, and gives the geometry.
    pub(super) fn geometry(&self) -> Result<Geometry, CreateError> {
        self.check_values()?;
        self.check_version()?;
        self.check_backing()?;
        self.check_data_file()?;
        self.check_encryption()?;
        let cluster_bits = self.cluster_size.trailing_zeros();
        let refcount_order = self.refcount_bits.trailing_zeros();
        let mut geometry = Geometry::new(self.version, cluster_bits, refcount_order)
            .map_err(qcow2_layout::HeaderError::from)?;
        if self.extended_l2 {
            geometry = geometry.with_extended_l2().map_err(qcow2_layout::HeaderError::from)?;
        }
        if self.data_file.is_some() {
            geometry = geometry.with_external_data().map_err(qcow2_layout::HeaderError::from)?;
        }
        Ok(geometry)
    }

    /// What is preallocated in the end: a raw data file needs every cluster mapped in place.
    pub(super) fn effective_preallocation(&self) -> Preallocation {
        match self.preallocation {
            Preallocation::Off if self.data_file_raw => Preallocation::Metadata,
            asked => asked,
        }
    }

    fn check_values(&self) -> Result<(), CreateError> {
        if !self.cluster_size.is_power_of_two() || !(512..=2 << 20).contains(&self.cluster_size) {
            return Err(CreateError::OutOfRange {
                option: "cluster_size",
                found: self.cluster_size,
                allowed: "a power of two from 512 to 2097152 (2M)",
            });
        }
        if !self.refcount_bits.is_power_of_two() || self.refcount_bits > 64 {
            return Err(CreateError::OutOfRange {
                option: "refcount_bits",
                found: u64::from(self.refcount_bits),
                allowed: "1, 2, 4, 8, 16, 32, 64",
            });
        }
        if self.extended_l2 && self.cluster_size < 16384 {
            return Err(CreateError::Conflict {
                option: format!("cluster_size={}", self.cluster_size),
                other: "extended_l2=on",
                reason: "32 subclusters of at least 512 bytes need clusters of 16384 (16k) or more",
            });
        }
        if i64::try_from(self.size).is_err() {
            return Err(CreateError::OutOfRange { option: "size", found: self.size, allowed: "below 2^63" });
        }
        Ok(())
    }

    fn check_version(&self) -> Result<(), CreateError> {
        if self.version != Version::V2 {
            return Ok(());
        }
        let newer = [
            (self.lazy_refcounts, "lazy_refcounts=on".to_owned()),
            (self.refcount_bits != 16, format!("refcount_bits={}", self.refcount_bits)),
            (self.extended_l2, "extended_l2=on".to_owned()),
            (self.data_file.is_some(), "data_file".to_owned()),
            (self.data_file_raw, "data_file_raw=on".to_owned()),
            (self.compression != Compression::Deflate, format!("compression_type={}", self.compression)),
        ];
        match newer.into_iter().find(|(given, _)| *given) {
            Some((_, option)) => Err(CreateError::Conflict {
                option,
                other: "compat=0.10",
                reason: "it needs compat=1.1 (version 3)",
            }),
            None => Ok(()),
        }
    }

    fn check_backing(&self) -> Result<(), CreateError> {
        if self.backing_file.is_none() {
            return match self.backing_format {
                Some(_) => Err(CreateError::Needs { option: "backing_fmt", needs: "backing_file" }),
                None => Ok(()),
            };
        }
        if self.preallocation != Preallocation::Off && !self.extended_l2 {
            return Err(CreateError::Conflict {
                option: format!("preallocation={}", self.preallocation.name()),
                other: "backing_file",
                reason: "preallocated clusters would hide the backing file; only extended_l2=on can tell them apart",
            });
        }
        Ok(())
    }

    fn check_encryption(&self) -> Result<(), CreateError> {
        if self.encrypt.is_none() {
            return Ok(());
        }
        if self.data_file_raw {
            return Err(CreateError::Conflict {
                option: "encrypt.format=luks".to_owned(),
                other: "data_file_raw=on",
                reason: "an encrypted data file cannot be read as a raw disk",
            });
        }
        if self.version == Version::V2 && self.preallocation != Preallocation::Off {
            return Err(CreateError::Conflict {
                option: format!("preallocation={}", self.preallocation.name()),
                other: "compat=0.10 with encrypt.format=luks",
                reason: "only version 3 can say that preallocated clusters, which are not encrypted yet, read as zeroes",
            });
        }
        Ok(())
    }

    fn check_data_file(&self) -> Result<(), CreateError> {
        if !self.data_file_raw {
            return Ok(());
        }
        if self.data_file.is_none() {
            return Err(CreateError::Needs { option: "data_file_raw=on", needs: "data_file" });
        }
        if self.backing_file.is_some() {
            return Err(CreateError::Conflict {
                option: "data_file_raw=on".to_owned(),
                other: "backing_file",
                reason: "a raw data file holds the whole disk, a backing file could not show through",
            });
        }
        Ok(())
    }
}
