//! What a file or a device does beyond reading and writing, as the kernel answers for it.
//!
//! [`Capabilities`](crate::Capabilities) are what the driver promises whatever lies below it. A [`Medium`] says what it can rely on there:
//! where a file system has no holes to punch the driver writes zeroes, and a user wants to know why that is slow.

/// What was answered to a question about a medium.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Answer {
    /// It can.
    Yes,
    /// It cannot.
    No,
    /// Only trying would tell, and nothing has tried yet.
    #[default]
    NotTried,
}

impl Answer {
    /// The answer of one that can be asked without trying.
    pub fn of(yes: bool) -> Self {
        if yes { Answer::Yes } else { Answer::No }
    }
}

/// Requests beside the page cache (O_DIRECT).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum DirectRequests {
    /// They are taken with these alignments, powers of two.
    Aligned {
        /// Of offsets and lengths, in bytes.
        offset_bytes: u32,
        /// Of addresses, in bytes.
        memory_bytes: u32,
    },
    /// They are refused.
    Refused,
    /// The kernel does not say, and the file is not opened for them.
    #[default]
    NotTried,
}

/// Whether overwriting what was written takes new space: then a full file system can refuse even that, and what was
/// acknowledged may not reach the disk (docs/internals/write-order.md, "Room").
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum OverwriteRoom {
    /// Bytes are overwritten in place.
    Never,
    /// Only where another file shares them: copies made by reflink, snapshots.
    Shared,
    /// Always: every write goes to a new place.
    Always,
    /// Unknown: the device is behind a network, another file system, or a device.
    #[default]
    Unknown,
}

/// What is known of a medium.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Medium {
    /// The type of the file system (`f_type` of statfs); `None` for what is in none: devices, memory.
    pub file_system: Option<u64>,
    /// It tells holes from data (SEEK_HOLE).
    pub tells_holes: Answer,
    /// Ranges can become holes (FALLOC_FL_PUNCH_HOLE): space comes back.
    pub punches_holes: Answer,
    /// Ranges can be zeroed without writing zeroes (FALLOC_FL_ZERO_RANGE).
    pub zeroes_ranges: Answer,
    /// Reads can be asked not to wait for the disk (RWF_NOWAIT). Not tried of a file that is opened for direct requests.
    pub reads_without_waiting: Answer,
    /// Files can share bytes on the disk (FICLONE).
    pub shares_extents: Answer,
    /// What O_DIRECT demands.
    pub direct: DirectRequests,
    /// Bytes of a sector, as a device counts (BLKSSZGET).
    pub logical_block_bytes: Option<u32>,
    /// The unit in which a device takes discards, in bytes; 0 if it takes none.
    pub discard_granularity_bytes: Option<u32>,
    /// Whether overwriting takes room.
    pub overwrite_room: OverwriteRoom,
}

/// A file system that is known by its type.
struct FileSystem {
    magic: u64,
    name: &'static str,
    /// Of a file that shares no bytes with another one.
    overwrites: OverwriteRoom,
}

const fn known(magic: u64, name: &'static str, overwrites: OverwriteRoom) -> FileSystem {
    FileSystem { magic, name, overwrites }
}

/// Numbers are those of linux/magic.h and of the file systems' own headers. What is not listed is unknown.
const FILE_SYSTEMS: [FileSystem; 12] = [
    known(TMPFS, "tmpfs", OverwriteRoom::Never),
    known(RAMFS, "ramfs", OverwriteRoom::Never),
    known(0xef53, "ext4", OverwriteRoom::Never),
    known(0x5846_5342, "xfs", OverwriteRoom::Never),
    known(0x7461_636f, "ocfs2", OverwriteRoom::Never),
    known(0x9123_683e, "btrfs", OverwriteRoom::Always),
    known(0xca45_1a4e, "bcachefs", OverwriteRoom::Always),
    known(0x2fc1_2fc1, "zfs", OverwriteRoom::Always),
    known(0xf2f5_2010, "f2fs", OverwriteRoom::Always),
    known(0x6969, "nfs", OverwriteRoom::Unknown),
    known(0x794c_7630, "overlay", OverwriteRoom::Unknown),
    known(0x6573_5546, "fuse", OverwriteRoom::Unknown),
];

/// File systems whose files are nowhere but in memory.
const TMPFS: u64 = 0x0102_1994;
const RAMFS: u64 = 0x8584_58f6;

/// XFS, of which a question of its own is asked.
pub(crate) const XFS: u64 = 0x5846_5342;

impl Medium {
    /// The name of the file system, where its type is known.
    pub fn file_system_name(&self) -> Option<&'static str> {
        Some(listed(self.file_system?)?.name)
    }

    /// Reading is copying: the bytes are in memory, in a file system that cannot be asked not to wait and never does.
    pub(crate) fn is_memory(&self) -> bool {
        matches!(self.file_system, Some(TMPFS | RAMFS))
    }

    /// What is concluded for overwriting, from the file system's type and from what was asked. `in_place`: this file is
    /// marked as one that is overwritten in place where it can be (btrfs' `nodatacow`).
    pub(crate) fn overwrite_room(&self, in_place: bool) -> OverwriteRoom {
        let Some(file_system) = self.file_system.and_then(listed) else { return OverwriteRoom::Unknown };
        match (file_system.overwrites, self.shares_extents) {
            (OverwriteRoom::Always, _) if in_place => OverwriteRoom::Shared,
            (OverwriteRoom::Never, Answer::Yes) => OverwriteRoom::Shared,
            (OverwriteRoom::Never, Answer::NotTried) => OverwriteRoom::Unknown,
            (overwrites, _) => overwrites,
        }
    }
}

fn listed(magic: u64) -> Option<&'static FileSystem> {
    FILE_SYSTEMS.iter().find(|known| known.magic == magic)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn overwriting_takes_room_where_files_share_bytes_or_every_write_moves() {
        let room = |magic, shares_extents, in_place| {
            let medium = Medium { file_system: Some(magic), shares_extents, ..Medium::default() };
            medium.overwrite_room(in_place)
        };
        assert_eq!(room(0xef53, Answer::No, false), OverwriteRoom::Never);
        assert_eq!(room(XFS, Answer::No, false), OverwriteRoom::Never);
        assert_eq!(room(XFS, Answer::Yes, false), OverwriteRoom::Shared);
        assert_eq!(room(XFS, Answer::NotTried, false), OverwriteRoom::Unknown);
        assert_eq!(room(0x9123_683e, Answer::Yes, false), OverwriteRoom::Always);
        assert_eq!(room(0x9123_683e, Answer::Yes, true), OverwriteRoom::Shared);
        assert_eq!(room(0x6969, Answer::No, false), OverwriteRoom::Unknown);
        assert_eq!(room(0x1234, Answer::No, false), OverwriteRoom::Unknown);
        assert_eq!(Medium::default().overwrite_room(false), OverwriteRoom::Unknown);
    }
}
