//! Where everything in a new image goes.

use block::SECTOR_BYTES;
use luks::area_bytes;
use qcow2_layout::{
    Autoclear, Compatible, Compression, CryptMethod, CryptoExtension, Extensions, FeatureName, Geometry,
    HOST_OFFSET_LIMIT, Header, HostOffset, Incompatible, L1_BYTES_MAX, REFCOUNT_TABLE_BYTES_MAX, Version,
};
use storage::Storage;

use super::{CreateError, CreateOptions, Preallocation};

/// The image in clusters, in this order: header, refcount table, refcount blocks, L1 table, LUKS header, L2 tables, data.
/// Nothing lies between them, so each part is one array.
#[derive(Clone, Debug)]
pub(super) struct Plan {
    pub(super) geometry: Geometry,
    pub(super) preallocation: Preallocation,
    /// Guest bytes, whole sectors.
    pub(super) size: u64,
    pub(super) refcount_table_clusters: u64,
    pub(super) refcount_blocks: u64,
    pub(super) l1_entries: u64,
    /// The LUKS header with its key material, where data is ciphered.
    pub(super) luks_clusters: u64,
    pub(super) l2_tables: u64,
    /// Data clusters in the image itself.
    pub(super) data_clusters: u64,
}

impl CreateOptions {
    /// Checks the options and lays the image out.
    pub(super) fn plan(&self) -> Result<Plan, CreateError> {
        let geometry = self.geometry()?;
        let size = self.size.next_multiple_of(SECTOR_BYTES);
        let l1_entries = geometry.l1_entries_for(size);
        let mut plan = Plan::begin(geometry, self.effective_preallocation(), size, l1_entries);
        plan.luks_clusters = self.encrypt.map_or(0, |cipher| plan.geometry.clusters_for(area_bytes(cipher)));
        plan.limit("the L1 table", plan.l1_entries.saturating_mul(8), L1_BYTES_MAX)?;
        if geometry.external_data {
            plan.limit("the data file", size, HOST_OFFSET_LIMIT)?;
        }
        plan.limit(
            "the data",
            plan.data_clusters.saturating_mul(plan.cluster_size()),
            HOST_OFFSET_LIMIT / 2,
        )?;
        plan.place_refcounts();
        let table = plan.refcount_table_clusters * plan.cluster_size();
        plan.limit("the refcount table", table, REFCOUNT_TABLE_BYTES_MAX)?;
        Ok(plan)
    }
}

impl Plan {
    /// Everything but refcounts.
    pub(super) fn begin(
        geometry: Geometry,
        preallocation: Preallocation,
        size: u64,
        l1_entries: u64,
    ) -> Self {
        let mapped = preallocation != Preallocation::Off;
        let in_image = mapped && !geometry.external_data;
        Self {
            geometry,
            preallocation,
            size,
            refcount_table_clusters: 0,
            refcount_blocks: 0,
            l1_entries,
            luks_clusters: 0,
            l2_tables: if mapped { geometry.l1_entries_for(size) } else { 0 },
            data_clusters: if in_image { geometry.clusters_for(size) } else { 0 },
        }
    }

    fn limit(&self, what: &'static str, needed: u64, allowed: u64) -> Result<(), CreateError> {
        if needed > allowed {
            let (size, cluster_size) = (self.size, self.cluster_size());
            return Err(CreateError::TooLarge { size, cluster_size, what, needed, allowed });
        }
        Ok(())
    }

    /// The refcount structure counts itself: grow it until it covers everything. Each round covers what the
    /// round before added; a block counts at least 64 clusters, so this ends quickly.
    pub(super) fn place_refcounts(&mut self) {
        loop {
            let blocks = self.total_clusters().div_ceil(self.geometry.refcount_block_entries());
            let table = self.geometry.clusters_for(blocks * 8);
            if (blocks, table) == (self.refcount_blocks, self.refcount_table_clusters) {
                return;
            }
            (self.refcount_blocks, self.refcount_table_clusters) = (blocks, table);
        }
    }

    pub(super) fn cluster_size(&self) -> u64 {
        self.geometry.cluster_size()
    }

    pub(super) fn guest_clusters(&self) -> u64 {
        self.geometry.clusters_for(self.size)
    }

    pub(super) fn refcount_blocks_start(&self) -> u64 {
        1 + self.refcount_table_clusters
    }

    pub(super) fn l1_start(&self) -> u64 {
        self.refcount_blocks_start() + self.refcount_blocks
    }

    pub(super) fn luks_start(&self) -> u64 {
        self.l1_start() + self.geometry.clusters_for(self.l1_entries * 8)
    }

    pub(super) fn l2_start(&self) -> u64 {
        self.luks_start() + self.luks_clusters
    }

    pub(super) fn data_start(&self) -> u64 {
        self.l2_start() + self.l2_tables
    }

    pub(super) fn total_clusters(&self) -> u64 {
        self.data_start() + self.data_clusters
    }

    /// Length that the image file begins with: behind the L1 table, where that is the last part, QEMU leaves the rest of its cluster out too.
    pub(super) fn length(&self) -> u64 {
        match self.luks_start() == self.total_clusters() && self.preallocation == Preallocation::Off {
            true => self.l1_start() * self.cluster_size() + self.l1_entries * 8,
            false => self.bytes(),
        }
    }

    /// Bytes of all clusters of the image file.
    pub(super) fn bytes(&self) -> u64 {
        self.total_clusters() * self.cluster_size()
    }

    /// Whether preallocated clusters must be marked as zeroes, because the file may hold old bytes there, or they are not the cipher
    /// text of zeroes.
    pub(super) fn zero_flag(&self, file: &dyn Storage) -> bool {
        let written = self.preallocation == Preallocation::Full;
        let stale = !file.capabilities().grows_zeroed && self.data_clusters > 0 && !written;
        (stale || self.luks_clusters > 0)
            && !self.geometry.extended_l2
            && self.geometry.version == Version::V3
    }

    pub(super) fn header(&self, options: &CreateOptions) -> Header {
        let mut incompatible = Incompatible::default();
        incompatible.set(Incompatible::EXTERNAL_DATA, self.geometry.external_data);
        incompatible.set(Incompatible::EXTENDED_L2, self.geometry.extended_l2);
        incompatible.set(Incompatible::COMPRESSION, options.compression != Compression::Deflate);
        let mut compatible = Compatible::default();
        compatible.set(Compatible::LAZY_REFCOUNTS, options.lazy_refcounts);
        let mut autoclear = Autoclear::default();
        autoclear.set(Autoclear::RAW_EXTERNAL_DATA, options.data_file_raw);
        Header {
            version: self.geometry.version,
            cluster_bits: self.geometry.cluster_bits,
            refcount_order: self.geometry.refcount_order,
            size: self.size,
            backing: options.backing_file.clone(),
            crypt: if options.encrypt.is_some() { CryptMethod::Luks } else { CryptMethod::None },
            l1_size: count(self.l1_entries),
            l1_table_offset: HostOffset(self.l1_start() * self.cluster_size()),
            refcount_table_offset: HostOffset(self.cluster_size()),
            refcount_table_clusters: count(self.refcount_table_clusters),
            snapshots: 0,
            snapshots_offset: HostOffset(0),
            incompatible,
            compatible,
            autoclear,
            compression: options.compression,
            extra: Vec::new(),
            extensions: Extensions {
                crypto: options.encrypt.map(|cipher| CryptoExtension {
                    offset: HostOffset(self.luks_start() * self.cluster_size()),
                    len: area_bytes(cipher),
                }),
                backing_format: options.backing_format.clone(),
                data_file: options.data_file.clone(),
                features: match self.geometry.version {
                    Version::V2 => Vec::new(),
                    Version::V3 => FeatureName::defaults(),
                },
                unknown: options.extensions.clone(),
                ..Extensions::default()
            },
        }
    }
}

/// A count that its limit keeps below 2^32; were it not, the header's own checks would refuse it.
fn count(value: u64) -> u32 {
    u32::try_from(value).unwrap_or(u32::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_default_image_has_qemus_layout() {
        let plan = CreateOptions { size: 1 << 30, ..CreateOptions::default() }.plan().unwrap();
        let places = (plan.refcount_blocks_start(), plan.l1_start(), plan.l2_start(), plan.total_clusters());
        assert_eq!(places, (2, 3, 4, 4));
    }

    #[test]
    fn refcounts_cover_the_whole_image_at_every_width_and_never_more_than_needed() {
        for cluster_size in [512, 4096, 65536, 2 << 20] {
            for refcount_bits in [1, 2, 4, 8, 16, 32, 64] {
                for size in [0, 512, 1 << 20, 5 << 30] {
                    let options = CreateOptions {
                        size,
                        cluster_size,
                        refcount_bits,
                        preallocation: Preallocation::Metadata,
                        ..CreateOptions::default()
                    };
                    let plan = options.plan().unwrap();
                    let per_block = plan.geometry.refcount_block_entries();
                    let covered = plan.refcount_blocks * per_block;
                    assert!(covered >= plan.total_clusters() && covered < plan.total_clusters() + per_block);
                    let table = plan.refcount_table_clusters * cluster_size;
                    assert!(
                        table >= plan.refcount_blocks * 8 && table < plan.refcount_blocks * 8 + cluster_size
                    );
                }
            }
        }
    }
}
