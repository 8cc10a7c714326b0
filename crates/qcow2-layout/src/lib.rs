//! Bytes of a qcow2 file <-> checked values.
//!
//! Everything here is pure: no I/O, no clock, nothing allocated in proportion to a field that was
//! not yet checked. `decode` takes bytes (or words already in host order) that anybody may have
//! written and gives a value that cannot be wrong, or an error that names the field, what it held
//! and what is allowed. `encode` gives the bytes back, so that `decode(encode(x)) == x`.

#![warn(missing_docs)]
#![forbid(unsafe_code)]
#![cfg_attr(not(test), deny(clippy::indexing_slicing, clippy::cast_possible_truncation))]

mod bitmap;
mod bytes;
mod feature;
mod geometry;
mod header;
mod l1;
mod l2;
mod offset;
mod refcount;
mod snapshot;

pub use bitmap::{
    BITMAP_BYTES_MAX, BITMAP_DIRECTORY_BYTES_MAX, BITMAP_GRANULARITY_BITS, BITMAP_NAME_BYTES_MAX,
    BITMAP_TABLE_ENTRIES_MAX, BITMAPS_MAX, BitmapEntry, BitmapError, BitmapFlags, BitmapTableEntry,
    decode_bitmap_directory, encode_bitmap_directory,
};
pub use feature::{Autoclear, Compatible, FeatureKind, FeatureName, Incompatible, UnknownFeatures};
pub use geometry::{
    CLUSTER_BITS_MAX, CLUSTER_BITS_MIN, EXTENDED_L2_CLUSTER_BITS_MIN, Geometry, GeometryError,
    REFCOUNT_ORDER_MAX, Version,
};
pub use header::{
    BACKING_FORMAT_BYTES_MAX, BACKING_NAME_BYTES_MAX, BitmapsExtension, Compression, CryptMethod,
    CryptoExtension, Extensions, HEADER_BYTES_V2, HEADER_BYTES_V3, HEADER_BYTES_V3_MIN, Header, HeaderError,
    L1_BYTES_MAX, MAGIC, REFCOUNT_TABLE_BYTES_MAX, RecordExtension, SNAPSHOTS_MAX,
};
pub use l1::L1Entry;
pub use l2::{Cluster, CompressedCluster, L2Entry, Subcluster, compressed_end_max};
pub use offset::{EntryError, GuestOffset, HOST_OFFSET_LIMIT, HostOffset};
pub use refcount::{RefcountError, RefcountTableEntry, refcount_find_zero, refcount_get, refcount_set};
pub use snapshot::{
    DecodedSnapshot, SNAPSHOT_ENTRY_BYTES_MAX, SNAPSHOT_EXTRA_BYTES_MAX, SNAPSHOT_EXTRA_BYTES_V3,
    SNAPSHOT_FIXED_BYTES, SNAPSHOT_TABLE_BYTES_MAX, SnapshotEntry, SnapshotError, decode_snapshot,
    decode_snapshots, decode_snapshots_dropping_extra, encode_snapshots,
};
