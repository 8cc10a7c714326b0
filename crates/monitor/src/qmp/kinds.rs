//! What several commands take.

use control::{Kind, required};

/// Numbers of bytes and operations, as JSON programs can hold them in 64 signed bits.
pub const NUMBER_MAX: u64 = i64::MAX as u64;

/// A number of something.
pub const NUMBER: Kind = Kind::Whole(NUMBER_MAX);

/// A size that a job looks at: what no image can have is its failure, as in QEMU.
pub const SIZE: Kind = Kind::Whole(u64::MAX);

/// A bitmap of a node.
pub const NODE_BITMAP: Kind = Kind::Object(&[required("node", Kind::Text), required("name", Kind::Text)]);

/// A bitmap: of the node that is meant anyway, or of another one.
pub const BITMAP: Kind = Kind::Either(&[&Kind::Text, &NODE_BITMAP]);
