//! Which files a front-end may give, and which of its descriptors can be closed without waiting.
//!
//! A file of a FUSE or network file system answers when its server does. If that is never, the thread that touches a mapped page, asks for
//! the file's length or closes it never goes on, and with it all that lives on its loop. So the kind of a file is found out by questions
//! that no file system is asked: seals (memory files, tmpfs and hugetlbfs have them), `statx` without a synchronization, the mount table.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::fs::FileExt;
use std::sync::OnceLock;

use rustix::fs::{AtFlags, CWD, FileType, StatxFlags, fcntl_get_seals, fstatfs, readlinkat, statx};
use rustix::net::AddressFamily;
use rustix::net::sockopt::socket_domain;

/// File systems of block devices of this machine, by the kernel's numbers (statfs(2)): ext2 to ext4, XFS, F2FS, JFS, ReiserFS, NILFS2,
/// bcachefs, NTFS, FAT, exFAT.
const LOCAL_MAGICS: [u64; 10] = [
    0xef53,
    0x5846_5342,
    0xf2f5_2010,
    0x3153_464a,
    0x5265_4973,
    0x3434,
    0xca45_1a4e,
    0x7366_746e,
    0x4d44,
    0x2011_bab0,
];

/// Local file systems whose files belong to no single block device, by their names in the mount table.
const LOCAL_NAMES: [&str; 4] = ["btrfs", "zfs", "bcachefs", "ramfs"];

/// The longest mount table that is looked at.
const MOUNT_TABLE_BYTES_MAX: usize = 16 << 20;

/// Which files may be mapped.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum FilePolicy {
    /// Memory files and files of tmpfs, hugetlbfs and local file systems.
    #[default]
    Local,
    /// All: the front-ends' files are trusted to answer.
    Any,
}

/// A file that may not be mapped.
#[derive(Debug, thiserror::Error)]
pub enum WrongFile {
    /// Its file system is not one of this machine's own, or not known.
    #[error(
        "its file lies on {0}, which may never answer; use a memory file, tmpfs, hugetlbfs or a local file system, or serve with --guest-memory any"
    )]
    FileSystem(String),
    /// It is something else than a regular file.
    #[error("it is no regular file and no memory file")]
    NoFile,
    /// The kernel does not tell.
    #[error("the kind of its file cannot be found out: {0}")]
    Unknown(io::Error),
}

impl FilePolicy {
    /// Whether the file may be mapped. Waits for no file system.
    ///
    /// # Errors
    /// When it may not.
    pub(crate) fn check(self, fd: impl AsFd) -> Result<(), WrongFile> {
        if self == Self::Any || is_memory(&fd) {
            return Ok(());
        }
        let unknown = |error: rustix::io::Errno| WrongFile::Unknown(error.into());
        let asked = AtFlags::EMPTY_PATH | AtFlags::STATX_DONT_SYNC;
        let found = statx(&fd, c"", asked, StatxFlags::TYPE | StatxFlags::MNT_ID).map_err(unknown)?;
        if FileType::from_raw_mode(found.stx_mode.into()) != FileType::RegularFile {
            return Err(WrongFile::NoFile);
        }
        if found.stx_dev_major != 0 {
            // A block device's: who mounted that is root of this machine.
            let magic = fstatfs(&fd).map_err(unknown)?.f_type;
            let is_local = u64::try_from(magic).is_ok_and(|magic| LOCAL_MAGICS.contains(&magic));
            return if is_local {
                Ok(())
            } else {
                Err(WrongFile::FileSystem(format!("a file system of type {magic:#x}")))
            };
        }
        match mounted(found.stx_mnt_id) {
            Some(name) if LOCAL_NAMES.contains(&name.as_str()) => Ok(()),
            Some(name) => Err(WrongFile::FileSystem(name)),
            None => Err(WrongFile::FileSystem("a file system that is not mounted here".to_owned())),
        }
    }
}

/// Whether it is a memory file, or one of tmpfs or hugetlbfs: no other has seals.
fn is_memory(fd: impl AsFd) -> bool {
    fcntl_get_seals(fd).is_ok()
}

/// Whether closing the descriptor waits for nothing: a file may ask its file system, a pipe waits for its readers, a TCP connection lingers.
pub(crate) fn closes_at_once(fd: impl AsFd) -> bool {
    if is_memory(&fd) {
        return true;
    }
    is_eventfd(&fd) || is_unix_socket(&fd)
}

/// Whether it is an eventfd: no other descriptor is read and written as one.
pub(crate) fn is_eventfd(fd: impl AsFd) -> bool {
    let name = readlinkat(CWD, format!("/proc/self/fd/{}", fd.as_fd().as_raw_fd()), Vec::new());
    name.is_ok_and(|name| name.as_bytes() == b"anon_inode:[eventfd]")
}

/// Whether it is a socket of this machine.
pub(crate) fn is_unix_socket(fd: impl AsFd) -> bool {
    socket_domain(fd).is_ok_and(|domain| domain == AddressFamily::UNIX)
}

/// Opens the mount table. To be called before the process gives up the right to open files.
pub(crate) fn open_mount_table() -> Option<&'static File> {
    static TABLE: OnceLock<Option<File>> = OnceLock::new();
    TABLE.get_or_init(|| File::open("/proc/self/mountinfo").ok()).as_ref()
}

/// The name of the file system that is mounted by this number, if it is mounted in our part of the machine.
fn mounted(id: u64) -> Option<String> {
    let table = open_mount_table()?;
    let (mut text, mut piece) = (Vec::new(), [0; 4096]);
    while text.len() < MOUNT_TABLE_BYTES_MAX {
        match table.read_at(&mut piece, text.len() as u64) {
            Ok(0) => break,
            Ok(count) => text.extend_from_slice(piece.get(..count)?),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(_) => return None,
        }
    }
    file_system(&String::from_utf8_lossy(&text), id)
}

/// The same in the text of the table: a line begins with the number; behind " - " stands the name (proc(5), mountinfo).
fn file_system(table: &str, id: u64) -> Option<String> {
    let id = id.to_string();
    let line = table.lines().find(|line| line.split(' ').next() == Some(&id))?;
    let (_, after) = line.split_once(" - ")?;
    after.split(' ').next().map(str::to_owned)
}

#[cfg(test)]
mod tests {
    use std::fs::OpenOptions;

    use rustix::fs::{MemfdFlags, memfd_create};

    use super::*;

    #[test]
    fn a_file_system_is_found_by_the_number_of_its_mount() {
        let table = "22 1 0:5 / /proc rw - proc proc rw\n\
            231 22 0:50 / /mnt/a\\040- rw,nosuid shared:1 - fuse.sshfs me@there:/ rw\n\
            31 22 0:51 / /b rw - btrfs /dev/x rw\n";
        assert_eq!(file_system(table, 231).as_deref(), Some("fuse.sshfs"));
        assert_eq!(file_system(table, 31).as_deref(), Some("btrfs"));
        assert_eq!((file_system(table, 1), file_system("", 1)), (None, None));
    }

    #[test]
    fn memory_and_local_files_may_be_mapped_and_others_only_where_all_may() {
        let memory = memfd_create("a", MemfdFlags::CLOEXEC).expect("a memory file");
        assert!(FilePolicy::Local.check(&memory).is_ok());
        // procfs is no file system of a disk.
        let odd = File::open("/proc/self/status").expect("a file");
        let refused = FilePolicy::Local.check(&odd).expect_err("it is refused").to_string();
        assert!(refused.contains("proc") && refused.contains("--guest-memory any"), "{refused}");
        assert!(FilePolicy::Any.check(&odd).is_ok());
    }

    #[test]
    fn what_may_wait_when_it_is_closed_is_known() {
        let memory = memfd_create("a", MemfdFlags::CLOEXEC).expect("a memory file");
        let (event, _) = (rustix::event::eventfd(0, rustix::event::EventfdFlags::CLOEXEC).expect("one"), ());
        let (near, _far) = std::os::unix::net::UnixStream::pair().expect("a pair");
        assert!(closes_at_once(&memory) && closes_at_once(&event) && closes_at_once(&near));
        let (from, _to) = rustix::pipe::pipe().expect("a pipe");
        let file = OpenOptions::new().read(true).open("/proc/self/status").expect("a file");
        let tcp = std::net::TcpListener::bind("127.0.0.1:0").expect("a socket");
        assert!(!closes_at_once(&from) && !closes_at_once(&file) && !closes_at_once(&tcp));
    }
}
