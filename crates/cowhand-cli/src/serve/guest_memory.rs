//! `--guest-memory`: which files the memory of virtual machines may lie in.

use door_vhost_user_blk::FilePolicy;
use serde::Deserialize;

/// Which files front-ends may give.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum GuestMemory {
    /// Those that always answer: memory files, tmpfs, hugetlbfs, local file systems.
    #[default]
    Local,
    /// All, also of FUSE and network file systems.
    Any,
}

impl From<GuestMemory> for FilePolicy {
    fn from(memory: GuestMemory) -> Self {
        match memory {
            GuestMemory::Local => Self::Local,
            GuestMemory::Any => Self::Any,
        }
    }
}
