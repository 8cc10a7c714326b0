//! What the commands on checkpoints share: how disks and checkpoints are named, and a lineage changed without a server.

pub mod args;
pub mod offline;
