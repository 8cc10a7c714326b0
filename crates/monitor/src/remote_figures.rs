//! The figures of caches of remote files, listed once: for QMP and Prometheus.

use remote::cache::Figures;

use crate::figure::CountsIn::{Bytes, Things};
use crate::figure::Figure;

type Of = Figure<Figures>;

/// Every figure of a cache.
#[rustfmt::skip]
pub const CACHE_FIGURES: [Of; 10] = [
    Of::counter(("hits", "cowhand_remote_cache_hits"), Things, |cache| cache.hits,
        "Reads of a remote file that needed nothing of its server"),
    Of::counter(("misses", "cowhand_remote_cache_misses"), Things, |cache| cache.misses,
        "Reads of a remote file that needed its server"),
    Of::counter(("served-bytes", "cowhand_remote_cache_served"), Bytes, |cache| cache.served_bytes,
        "Bytes that were read of a remote file"),
    Of::counter(("fetched-bytes", "cowhand_remote_cache_fetched"), Bytes, |cache| cache.fetched_bytes,
        "Bytes that came from the server of a remote file"),
    Of::counter(("prefetched-bytes", "cowhand_remote_cache_prefetched"), Bytes, |cache| cache.prefetched_bytes,
        "Bytes among them that came before a read asked for them (prefetch-trace)"),
    Of::counter(("prefetched-used-bytes", "cowhand_remote_cache_prefetched_used"), Bytes, |cache| cache.prefetched_used_bytes,
        "Bytes of clusters among these that a read asked for afterwards"),
    Of::gauge(("cached-bytes", "cowhand_remote_cache_size"), Bytes, |cache| cache.cached_bytes,
        "Bytes of a remote file in its cache"),
    Of::counter(("evictions", "cowhand_remote_cache_evictions"), Things, |cache| cache.evictions,
        "Clusters of a cache that were evicted for others"),
    Of::counter(("not-kept", "cowhand_remote_cache_not_kept"), Things, |cache| cache.not_kept,
        "Fetched clusters that a cache did not keep"),
    Of::counter(("failures", "cowhand_remote_cache_failures"), Things, |cache| cache.failures,
        "How often the file of a cache failed"),
];
