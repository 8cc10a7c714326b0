//! What both programs are asked to do.

use std::path::PathBuf;

use serde_json::Value;

/// A load on one image.
#[derive(Clone, Debug)]
pub struct Load {
    /// The image.
    pub image: PathBuf,
    /// `qcow2` or `raw`.
    pub format: &'static str,
    /// Bytes of its disk.
    pub disk_bytes: u64,
    /// Options of the format that both know.
    pub options: Vec<(&'static str, Value)>,
    /// Options of the format that only we know.
    pub own_options: Vec<(&'static str, &'static str)>,
    /// Cache mode.
    pub mode: &'static str,
    /// Requests in flight.
    pub depth: u32,
    /// Bytes of a request.
    pub size: u64,
    /// Order of offsets.
    pub access: Access,
    /// Write instead of reading.
    pub write: bool,
    /// A flush after so many writes; 0 is never.
    pub flush_interval: u32,
    /// Requests before those that count.
    pub warm_up: u64,
    /// Requests that count, at most.
    pub count_max: u64,
    /// A raw file on which fio does the same, as the limit.
    pub limit: Option<PathBuf>,
}

/// The order of offsets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// Steps of so many bytes from an offset, the same for both.
    Steps {
        /// First offset.
        offset: u64,
        /// Distance.
        step: u64,
    },
    /// Random. QEMU reads through a shuffled disk, whose head the image begins with.
    Random,
    /// Anywhere, where a cache covers the disk: wide steps, the same for both, without the shuffled disk's cost.
    RandomCovered,
    /// Each cluster of this size once in random order, behind the head of a shuffled disk.
    Allocating {
        /// Bytes of a cluster.
        cluster_bytes: u64,
    },
}

impl Load {
    /// 4 KiB random reads with O_DIRECT, one at a time.
    pub fn random_reads(image: PathBuf, disk_bytes: u64) -> Self {
        Self {
            image,
            format: "qcow2",
            disk_bytes,
            options: Vec::new(),
            own_options: Vec::new(),
            mode: "none",
            depth: 1,
            size: 4096,
            access: Access::Random,
            write: false,
            flush_interval: 0,
            warm_up: 0,
            count_max: u64::MAX,
            limit: None,
        }
    }

    /// The same with a map cache of `cache_bytes` in slices of `slice_bytes`, warm.
    #[must_use]
    pub fn with_cache(mut self, cache_bytes: u64, slice_bytes: u64, cluster_bytes: u64) -> Self {
        let entry_bytes = 8;
        let map_bytes = self.disk_bytes / cluster_bytes * entry_bytes;
        let covers = cache_bytes >= map_bytes;
        self.options =
            vec![("l2-cache-size", cache_bytes.into()), ("l2-cache-entry-size", slice_bytes.into())];
        // Random access has seen all but e^-4 of the map's slices after four times their number, whether a cache
        // holds them all or not.
        self.warm_up = 4 * map_bytes / slice_bytes;
        self.access = if covers { Access::RandomCovered } else { Access::Random };
        self
    }

    /// The same at another depth.
    #[must_use]
    pub fn at_depth(self, depth: u32) -> Self {
        Self { depth, ..self }
    }
}
