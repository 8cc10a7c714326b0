//! Bytes of a qcow2 file <-> checked values.
//!
//! Everything here is pure: no I/O, no clock, nothing allocated in proportion to a field that was
//! not yet checked. `decode` takes bytes (or words already in host order) that anybody may have
//! written and gives a value that cannot be wrong, or an error that names the field, what it held
//! and what is allowed. `encode` gives the bytes back, so that `decode(encode(x)) == x`.

#![forbid(unsafe_code)]
#![deny(clippy::cast_possible_truncation)]
#![cfg_attr(not(test), deny(clippy::indexing_slicing))]

mod geometry;
mod kind;
mod l1;
mod l2;
mod offset;
mod refcount;

pub use geometry::{
    CLUSTER_BITS_MAX, CLUSTER_BITS_MIN, EXTENDED_L2_CLUSTER_BITS_MIN, Geometry, GeometryError,
    REFCOUNT_ORDER_MAX, Version,
};
pub use kind::ErrorKind;
pub use l1::L1Entry;
pub use l2::{Cluster, CompressedCluster, L2Entry, Subcluster};
pub use offset::{EntryError, GuestOffset, HOST_OFFSET_LIMIT, HostOffset};
pub use refcount::{RefcountError, RefcountTableEntry, refcount_get, refcount_set};
