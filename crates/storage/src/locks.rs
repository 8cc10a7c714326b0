//! File locks that QEMU understands: who uses an image how, and what they put up with from others.
//!
//! Every permission has two bytes of the file (which need not exist): one says "I use it", the other
//! "I do not share it". Both are locked shared, so that many can say the same; a conflict is found
//! by asking whether the opposite byte could be locked exclusively. The locks belong to the open
//! file description: they end with its last descriptor, not with a process or a thread.

use std::fmt;
use std::fs;
use std::io;
use std::ops::BitOr;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::sync::Arc;

use rustix::fs::{Mode, OFlags};

/// First byte of "I use permission i".
const USED: u64 = 100;
/// First byte of "I do not share permission i".
const UNSHARED: u64 = 200;
/// Locked exclusively by one who tries to get a file that many wait for. QEMU does not know it.
const TURN: u64 = 300;

/// A set of ways to use an image.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Permissions(u8);

impl Permissions {
    /// No way at all.
    pub const NONE: Self = Self(0);
    /// Read, and see only what was there or what one wrote oneself.
    pub const CONSISTENT_READ: Self = Self(1);
    /// Write.
    pub const WRITE: Self = Self(1 << 1);
    /// Write what is there already: visible data does not change.
    pub const WRITE_UNCHANGED: Self = Self(1 << 2);
    /// Change the length.
    pub const RESIZE: Self = Self(1 << 3);
    /// All of them.
    pub const ALL: Self = Self(0xf);

    fn numbers(self) -> impl Iterator<Item = u64> {
        (0..4).filter(move |number| self.0 & 1 << number != 0)
    }

    /// Those of `self` that are not in `other`.
    #[must_use]
    pub fn without(self, other: Self) -> Self {
        Self(self.0 & !other.0)
    }

    /// Whether all of `other` is in `self`.
    pub fn contains(self, other: Self) -> bool {
        other.without(self) == Self::NONE
    }
}

impl BitOr for Permissions {
    type Output = Self;

    fn bitor(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }
}

/// The usual ways to open an image.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// Reads, writes and resizes; suffers no other writer.
    Writer,
    /// Reads, or is the backing file of another process's overlay; suffers other readers.
    Reader,
    /// Reads although a process may be writing (`-U`, force-share).
    ForceShare,
}

impl Role {
    /// What it uses.
    pub fn wanted(self) -> Permissions {
        match self {
            Role::Writer => Permissions::CONSISTENT_READ | Permissions::WRITE | Permissions::RESIZE,
            Role::Reader | Role::ForceShare => Permissions::CONSISTENT_READ,
        }
    }

    /// What it lets others use.
    pub fn shared(self) -> Permissions {
        match self {
            Role::Writer | Role::Reader => Permissions::CONSISTENT_READ | Permissions::WRITE_UNCHANGED,
            Role::ForceShare => Permissions::ALL,
        }
    }
}

/// Why a lock was not given.
#[derive(Debug, thiserror::Error)]
pub enum LockError {
    /// Another process uses the file in a way that does not go together with ours. Programs that call QEMU's tools look for QEMU's words.
    #[error("the file is in use by {}, which {conflict} ({})", list(.holders), .conflict.in_qemu())]
    Busy {
        /// What it does.
        conflict: Conflict,
        /// Which processes, as far as could be found out; of other users' processes we see nothing.
        holders: Vec<Holder>,
    },
    /// The file system refuses locks.
    #[error("cannot lock the file: {0}")]
    Io(#[from] io::Error),
}

/// What stands against us.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Conflict {
    /// It does not let others do what we want.
    Unshared(Permissions),
    /// It does what we cannot let others do.
    Used(Permissions),
}

impl Conflict {
    /// What QEMU calls the lock that was not given.
    fn in_qemu(&self) -> String {
        const NAMES: [&str; 4] = ["consistent read", "write", "write unchanged", "resize"];
        let (kind, permissions) = match self {
            Conflict::Unshared(permissions) => ("", permissions),
            Conflict::Used(permissions) => ("shared ", permissions),
        };
        format!("Failed to get {kind}\"{}\" lock", permissions.named(NAMES))
    }
}

impl fmt::Display for Conflict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Conflict::Unshared(permission) => write!(f, "does not let others {permission}"),
            Conflict::Used(permission) => write!(f, "may {permission}"),
        }
    }
}

impl Permissions {
    /// All of them, by `names`.
    fn named(self, names: [&str; 4]) -> String {
        let names: Vec<&str> = self.numbers().map(|number| names[number as usize]).collect();
        names.join(", ")
    }
}

impl fmt::Display for Permissions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const NAMES: [&str; 4] = ["read", "write", "rewrite unchanged data", "resize"];
        f.write_str(&self.named(NAMES))
    }
}

fn list(holders: &[Holder]) -> String {
    match holders {
        [] => "another process".to_owned(),
        some => some.iter().map(Holder::to_string).collect::<Vec<_>>().join(", "),
    }
}

/// Locks held on one open file. Dropping it gives them back.
#[derive(Debug)]
pub struct FileLock {
    fd: Arc<OwnedFd>,
    wanted: Permissions,
    shared: Permissions,
    has_turn: bool,
}

impl FileLock {
    /// Announces that `fd` (open for reading at least) is used as `wanted`, with only `shared` left
    /// to others, and makes sure that no other process's announcement stands against it.
    ///
    /// # Errors
    /// `Busy`, with nothing held, if another process's does.
    pub fn acquire(fd: &Arc<OwnedFd>, wanted: Permissions, shared: Permissions) -> Result<Self, LockError> {
        let mut lock =
            Self { fd: Arc::clone(fd), wanted: Permissions::NONE, shared: Permissions::ALL, has_turn: false };
        lock.change(wanted, shared)?;
        Ok(lock)
    }

    /// As [`FileLock::acquire`], for one of the usual ways.
    pub fn acquire_role(fd: &Arc<OwnedFd>, role: Role) -> Result<Self, LockError> {
        Self::acquire(fd, role.wanted(), role.shared())
    }

    /// As [`FileLock::acquire_role`] of a writer, for a file that many try for at once: of those one gets it. By the other way each holds a moment what stands
    /// against the others, and none may get it. `fd` is open for writing.
    ///
    /// # Errors
    /// As there.
    pub fn acquire_in_turn(fd: &Arc<OwnedFd>) -> Result<Self, LockError> {
        let role = Role::Writer;
        match fcntl_lock(fd, libc::F_OFD_SETLK, libc::F_WRLCK, TURN) {
            Ok(_) => {}
            Err(error) if matches!(error.raw_os_error(), Some(libc::EAGAIN | libc::EACCES)) => {
                // The one that has the file, rather than who tries as this one does.
                test(fd, role.wanted(), role.shared())?;
                let conflict = Conflict::Used(Permissions::WRITE);
                return Err(LockError::Busy { conflict, holders: holders(fd, TURN) });
            }
            Err(error) => return Err(error.into()),
        }
        match Self::acquire_role(fd, role) {
            Ok(mut lock) => {
                lock.has_turn = true;
                Ok(lock)
            }
            Err(error) => {
                unlock(fd, TURN);
                Err(error)
            }
        }
    }

    /// Whether `fd` could be locked as `role`. Nothing is locked, not for a moment: no other process is refused because of it.
    ///
    /// # Errors
    /// `Busy` if not.
    pub fn test_role(fd: &OwnedFd, role: Role) -> Result<(), LockError> {
        test(fd, role.wanted(), role.shared())
    }

    /// Upgrades or downgrades. There is no moment in which less is held than both before and after.
    ///
    /// # Errors
    /// `Busy`, with what was held before, if another process's announcement stands against it; never for less than before.
    pub fn change(&mut self, wanted: Permissions, shared: Permissions) -> Result<(), LockError> {
        let before = Bytes::of(self.wanted, self.shared);
        let after = Bytes::of(wanted, shared);
        let more = after.without(before);
        // What was held before was tested then. Another process that tries for a lock now must not stand against less.
        let is_less = more.offsets().next().is_none();
        if !is_less && let Err(error) = announce(&self.fd, more).and_then(|()| test(&self.fd, wanted, shared))
        {
            withdraw(&self.fd, more);
            return Err(error);
        }
        withdraw(&self.fd, before.without(after));
        (self.wanted, self.shared) = (wanted, shared);
        Ok(())
    }

    /// Whether another open of the file could be locked as `role` beside this lock and those of other processes. Nothing is locked.
    ///
    /// # Errors
    /// `Busy` if not.
    pub fn test_beside(&self, role: Role) -> Result<(), LockError> {
        let path = format!("/proc/self/fd/{}", self.fd.as_raw_fd());
        let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK;
        let other = rustix::fs::open(path, flags, Mode::empty()).map_err(io::Error::from)?;
        test(&other, role.wanted(), role.shared())
    }

    /// The descriptor that it was taken by.
    pub fn fd(&self) -> &Arc<OwnedFd> {
        &self.fd
    }

    /// Whether it is on the file behind `fd`, by this descriptor or another one.
    pub fn is_on(&self, fd: &Arc<OwnedFd>) -> bool {
        let inode = |fd: &OwnedFd| rustix::fs::fstat(fd).map(|stat| (stat.st_dev, stat.st_ino)).ok();
        Arc::ptr_eq(&self.fd, fd) || inode(&self.fd) == inode(fd)
    }

    /// Whether no other process that heeds locks can change the length, nor what lies beyond it.
    pub fn keeps_length(&self) -> bool {
        !self.shared.contains(Permissions::WRITE) && !self.shared.contains(Permissions::RESIZE)
    }

    /// What is used, and what is left to others.
    pub fn held(&self) -> (Permissions, Permissions) {
        (self.wanted, self.shared)
    }
}

impl Drop for FileLock {
    fn drop(&mut self) {
        withdraw(&self.fd, Bytes::of(self.wanted, self.shared));
        if self.has_turn {
            unlock(&self.fd, TURN);
        }
    }
}

/// The bytes to lock for a pair of sets.
#[derive(Clone, Copy)]
struct Bytes {
    used: Permissions,
    unshared: Permissions,
}

impl Bytes {
    fn of(wanted: Permissions, shared: Permissions) -> Self {
        Self { used: wanted, unshared: Permissions::ALL.without(shared) }
    }

    fn without(self, other: Self) -> Self {
        Self { used: self.used.without(other.used), unshared: self.unshared.without(other.unshared) }
    }

    fn offsets(self) -> impl Iterator<Item = u64> {
        let used = self.used.numbers().map(|number| USED + number);
        used.chain(self.unshared.numbers().map(|number| UNSHARED + number))
    }
}

fn announce(fd: &OwnedFd, bytes: Bytes) -> Result<(), LockError> {
    for byte in bytes.offsets() {
        fcntl_lock(fd, libc::F_OFD_SETLK, libc::F_RDLCK, byte)?;
    }
    Ok(())
}

fn withdraw(fd: &OwnedFd, bytes: Bytes) {
    bytes.offsets().for_each(|byte| unlock(fd, byte));
}

fn unlock(fd: &OwnedFd, byte: u64) {
    if let Err(error) = fcntl_lock(fd, libc::F_OFD_SETLK, libc::F_UNLCK, byte) {
        tracing::warn!(byte, %error, "a file lock could not be given back");
    }
}

/// Asks, byte by byte, whether another process holds a lock that conflicts with ours.
fn test(fd: &OwnedFd, wanted: Permissions, shared: Permissions) -> Result<(), LockError> {
    let unshared = Permissions::ALL.without(shared);
    let against_wanted =
        wanted.numbers().map(|number| (UNSHARED + number, Conflict::Unshared(Permissions(1 << number))));
    let against_unshared =
        unshared.numbers().map(|number| (USED + number, Conflict::Used(Permissions(1 << number))));
    for (byte, conflict) in against_wanted.chain(against_unshared) {
        if fcntl_lock(fd, libc::F_OFD_GETLK, libc::F_WRLCK, byte)? != libc::F_UNLCK as libc::c_short {
            return Err(LockError::Busy { conflict, holders: holders(fd, byte) });
        }
    }
    Ok(())
}

/// One lock call for one byte. Gives the lock's kind as the kernel left it: after a test,
/// `F_UNLCK` says that nothing is in the way.
fn fcntl_lock(fd: &OwnedFd, command: libc::c_int, kind: libc::c_int, byte: u64) -> io::Result<libc::c_short> {
    // SAFETY: flock is plain data for which all zeroes is valid (l_pid must be 0 for these commands).
    let mut lock: libc::flock = unsafe { std::mem::zeroed() };
    lock.l_type = kind as libc::c_short;
    lock.l_whence = libc::SEEK_SET as libc::c_short;
    lock.l_start = byte as libc::off_t;
    lock.l_len = 1;
    // SAFETY: the descriptor is open, and `lock` outlives the call.
    let result = unsafe { libc::fcntl(fd.as_fd().as_raw_fd(), command, &raw mut lock) };
    match result {
        0.. => Ok(lock.l_type),
        _ => Err(io::Error::last_os_error()),
    }
}

/// A process that holds a conflicting lock.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Holder {
    /// Its process id, in our namespace.
    pub pid: u32,
    /// Its name (`comm`), or empty if it ended meanwhile.
    pub name: String,
}

impl fmt::Display for Holder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.name.as_str() {
            _ if self.pid == std::process::id() => f.write_str("this process itself"),
            "" => write!(f, "process {}", self.pid),
            name => write!(f, "{name} (process {})", self.pid),
        }
    }
}

/// A lock line names this many fields at least: `N: OFDLCK ADVISORY READ -1 MAJOR:MINOR:INODE START END`.
const FIELDS: usize = 8;

/// Processes with a lock on byte `byte` of the file behind `fd`, as far as we may look: others, or,
/// if there are none, this one through another descriptor.
///
/// `/proc/locks` names no process for locks of this kind (they belong to an open file, not to a
/// process), so the open files of every process are asked. For error paths only: costs a read of
/// every `/proc/PID/fdinfo`.
pub(crate) fn holders(fd: impl AsFd, byte: u64) -> Vec<Holder> {
    let Ok(stat) = rustix::fs::fstat(&fd) else { return Vec::new() };
    let Ok(processes) = fs::read_dir("/proc") else { return Vec::new() };
    let raw = fd.as_fd().as_raw_fd().to_string();
    let own = std::process::id();
    let holds =
        |pid: u32, except: Option<&str>| holds(&format!("/proc/{pid}/fdinfo"), except, stat.st_ino, byte);
    let pids = processes.flatten().filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    let mut found: Vec<u32> = pids.filter(|&pid| pid != own && holds(pid, None)).collect();
    if found.is_empty() && holds(own, Some(&raw)) {
        found.push(own);
    }
    found.into_iter().map(|pid| Holder { pid, name: name_of(pid) }).collect()
}

/// Whether one of a process's descriptors, but not `except`, holds the lock.
fn holds(fdinfo: &str, except: Option<&str>, inode: u64, byte: u64) -> bool {
    let Ok(entries) = fs::read_dir(fdinfo) else { return false };
    let others = entries.flatten().filter(|entry| entry.file_name().to_str() != except);
    let texts = others.filter_map(|entry| fs::read_to_string(entry.path()).ok());
    texts.into_iter().any(|text| text.lines().any(|line| covers(line, inode, byte)))
}

/// Whether a line of an fdinfo file says that the inode is locked at `byte`. The device is not
/// compared: file systems with many devices behind one mount show another one here than in `stat`.
fn covers(line: &str, inode: u64, byte: u64) -> bool {
    let Some(lock) = line.strip_prefix("lock:") else { return false };
    let fields: Vec<&str> = lock.split_whitespace().collect();
    if fields.len() < FIELDS || fields[1] != "OFDLCK" {
        return false;
    }
    let same_inode = fields[5].rsplit(':').next().and_then(|text| text.parse().ok()) == Some(inode);
    let start = fields[6].parse::<u64>();
    let end = if fields[7] == "EOF" { Ok(u64::MAX) } else { fields[7].parse::<u64>() };
    same_inode && start.is_ok_and(|start| start <= byte) && end.is_ok_and(|end| byte <= end)
}

fn name_of(pid: u32) -> String {
    fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default().trim_end().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lock_line_is_understood_and_anything_else_is_not_a_lock() {
        let line = "lock:\t1: OFDLCK ADVISORY  READ -1 fe:00:1234 100 101";
        assert!(covers(line, 1234, 100) && covers(line, 1234, 101));
        assert!(!covers(line, 1234, 102) && !covers(line, 1235, 100));
        assert!(covers("lock:\t1: OFDLCK ADVISORY  WRITE -1 fe:00:7 0 EOF", 7, 1 << 40));
        for junk in
            ["", "lock:", "pos:\t0", "lock: a b c d e f g h", "lock:\t1: POSIX ADVISORY READ 9 fe:00:7 0 EOF"]
        {
            assert!(!covers(junk, 7, 0), "{junk}");
        }
    }
}
