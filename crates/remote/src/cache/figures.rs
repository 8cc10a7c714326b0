//! What a cache has done.

use std::sync::atomic::{AtomicU64, Ordering};

/// What a cache has done since it was opened, and what it holds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Figures {
    /// Reads that needed nothing of the server.
    pub hits: u64,
    /// Reads that did.
    pub misses: u64,
    /// Bytes that reads asked for.
    pub served_bytes: u64,
    /// Bytes that came from the server.
    pub fetched_bytes: u64,
    /// Bytes that came from the server before anybody asked for them: a part of `fetched_bytes`.
    pub prefetched_bytes: u64,
    /// Bytes of clusters among those that a task asked for afterwards.
    pub prefetched_used_bytes: u64,
    /// Bytes of clusters in the image.
    pub cached_bytes: u64,
    /// Clusters that were given up for others.
    pub evictions: u64,
    /// Fetched clusters that were not kept: too many waited, or the image takes no more.
    pub not_kept: u64,
    /// How often the image failed. From the first time on it is not changed any more.
    pub failures: u64,
}

/// The figures, counted.
#[derive(Debug, Default)]
pub(crate) struct Counts {
    pub(crate) hits: Count,
    pub(crate) misses: Count,
    pub(crate) served_bytes: Count,
    pub(crate) fetched_bytes: Count,
    pub(crate) prefetched_bytes: Count,
    pub(crate) prefetched_used_bytes: Count,
    pub(crate) evictions: Count,
    pub(crate) not_kept: Count,
    pub(crate) failures: Count,
}

/// One of them.
#[derive(Debug, Default)]
pub(crate) struct Count(AtomicU64);

impl Count {
    pub(crate) fn add(&self, more: u64) {
        self.0.fetch_add(more, Ordering::Relaxed);
    }

    fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

impl Counts {
    pub(crate) fn figures(&self, cached_bytes: u64) -> Figures {
        Figures {
            hits: self.hits.get(),
            misses: self.misses.get(),
            served_bytes: self.served_bytes.get(),
            fetched_bytes: self.fetched_bytes.get(),
            prefetched_bytes: self.prefetched_bytes.get(),
            prefetched_used_bytes: self.prefetched_used_bytes.get(),
            cached_bytes,
            evictions: self.evictions.get(),
            not_kept: self.not_kept.get(),
            failures: self.failures.get(),
        }
    }
}
