//! The length of a file that another process changes.
//!
//! A file's length was taken when it was opened, and growing set it: from a stale length that cut off what another
//! process had written and flushed since.

#![expect(clippy::unwrap_used, reason = "a test that fails to set up has failed")]

use std::path::Path;
use std::time::Duration;

use reactor::{Backend, Reactor};
use storage::{
    FileLock, FileOptions, FileStorage, Hints, IoBytes, LockClock, LockedOpenError, Role, Storage,
    UnlockedFile, Zeroing, open_locked,
};
use tempfile::TempDir;

const MIB: u64 = 1 << 20;

fn write(path: &Path, offset: u64, bytes: &[u8]) {
    let file = std::fs::OpenOptions::new().write(true).create(true).truncate(false).open(path).unwrap();
    std::os::unix::fs::FileExt::write_all_at(&file, bytes, offset).unwrap();
}

fn length(path: &Path) -> u64 {
    std::fs::metadata(path).unwrap().len()
}

/// A file of 1 MiB as one process has it that opened it before another made it 40 MiB long.
fn stale(dir: &TempDir, direct: bool) -> (std::path::PathBuf, FileStorage) {
    let path = dir.path().join("image");
    write(&path, 0, &[1; MIB as usize]);
    let stale = FileStorage::open(&path, &FileOptions { direct, ..FileOptions::default() }).unwrap();
    write(&path, 39 * MIB, &[2; MIB as usize]);
    assert_eq!(stale.length(), MIB);
    (path, stale)
}

/// Directories on a file system with O_DIRECT and on one in memory.
fn places() -> [TempDir; 2] {
    [TempDir::new_in(env!("CARGO_TARGET_TMPDIR")).unwrap(), TempDir::new_in("/dev/shm").unwrap()]
}

#[test]
fn growing_never_shortens_a_file_that_somebody_else_has_made_longer() {
    for dir in places() {
        let (path, stale) = stale(&dir, false);
        Reactor::new(Backend::Ring).unwrap().run(async {
            stale.grow_to(10 * MIB).await.unwrap();
            stale.zero(11 * MIB, MIB, Zeroing::Unmap).await.unwrap();
            stale.zero(12 * MIB, MIB, Zeroing::Keep).await.unwrap();
        });
        assert_eq!((length(&path), stale.length()), (40 * MIB, 13 * MIB));
        let bytes = std::fs::read(&path).unwrap();
        assert!(bytes[..MIB as usize].iter().all(|&byte| byte == 1));
        assert!(bytes[39 * MIB as usize..].iter().all(|&byte| byte == 2));
        Reactor::new(Backend::Ring).unwrap().run(stale.grow_to(41 * MIB)).unwrap();
        assert_eq!((length(&path), stale.length()), (41 * MIB, 41 * MIB));
    }
}

#[test]
fn an_unaligned_direct_write_beyond_a_stale_end_cuts_nothing_off() {
    for dir in places() {
        let (path, stale) = stale(&dir, true);
        Reactor::new(Backend::Ring).unwrap().run(async {
            stale.write(2 * MIB + 5, IoBytes::copy_from(&[7; 100]).into(), Hints::NONE).await.unwrap();
        });
        assert_eq!(length(&path), 40 * MIB);
        let bytes = std::fs::read(&path).unwrap();
        assert!(bytes[39 * MIB as usize..].iter().all(|&byte| byte == 2));
        assert_eq!(bytes[2 * MIB as usize..][..106], [&[0; 5][..], &[7; 100], &[0]].concat()[..]);
    }
}

/// Time in which a holder does its work at the first wait, and lets go at the second.
struct Holder<'a>(std::cell::RefCell<Vec<Box<dyn FnOnce() + 'a>>>);

impl LockClock for Holder<'_> {
    fn now(&self) -> Duration {
        Duration::ZERO
    }

    async fn sleep(&self, _: Duration) {
        let step = self.0.borrow_mut().pop();
        step.expect("it is waited for no longer than the lock is held")();
    }
}

/// A lock whose holder is not seen: this process holds it, and /proc is asked for others only.
struct Unseen(UnlockedFile);

impl storage::Unlocked for Unseen {
    type Lock = FileLock;
    type Storage = FileStorage;

    fn try_lock(&self, role: Role) -> Result<FileLock, storage::LockError> {
        FileLock::acquire_role(self.0.fd(), role).map_err(|error| match error {
            storage::LockError::Busy { conflict, .. } => {
                storage::LockError::Busy { conflict, holders: Vec::new() }
            }
            other => other,
        })
    }

    fn measured(&self, lock: Option<&FileLock>) -> Result<FileStorage, storage::OpenError> {
        self.0.measured(lock)
    }
}

#[test]
fn the_length_is_the_one_that_the_holder_of_the_lock_left() {
    for end in [40 * MIB, 4096] {
        let dir = TempDir::new().unwrap();
        let path = dir.path().join("image");
        write(&path, 0, &[1; MIB as usize]);
        let other = UnlockedFile::open(&path, &FileOptions::default()).unwrap();
        let held = FileLock::acquire_role(other.fd(), Role::Writer).unwrap();
        let ours = Unseen(UnlockedFile::open(&path, &FileOptions::default()).unwrap());
        let changes = || {
            let file = std::fs::OpenOptions::new().write(true).open(&path).unwrap();
            file.set_len(end).unwrap();
        };
        let steps: Vec<Box<dyn FnOnce()>> = vec![Box::new(move || drop(held)), Box::new(changes)];
        let holder = Holder(steps.into());
        let opened = Reactor::new(Backend::Ring).unwrap().run(open_locked(&ours, Role::Writer, &holder));
        let (storage, lock) = opened.unwrap();
        assert_eq!(storage.length(), end);
        assert!(storage.capabilities().grows_zeroed && lock.keeps_length());
    }
}

#[test]
fn a_holder_that_is_seen_is_not_waited_for() {
    let dir = TempDir::new().unwrap();
    let path = dir.path().join("image");
    write(&path, 0, &[1]);
    let other = UnlockedFile::open(&path, &FileOptions::default()).unwrap();
    let _held = FileLock::acquire_role(other.fd(), Role::Writer).unwrap();
    let ours = UnlockedFile::open(&path, &FileOptions::default()).unwrap();
    let holder = Holder(Vec::new().into());
    let opened = Reactor::new(Backend::Ring).unwrap().run(open_locked(&ours, Role::Writer, &holder));
    assert!(matches!(opened, Err(LockedOpenError::Lock(_))));
}

/// With `locking=off` bytes that another process had put behind the end were taken for zeroes and shown to the guest.
#[test]
fn without_a_lock_nothing_beyond_the_end_is_taken_for_zeroes() {
    let dir = TempDir::new().unwrap();
    let path = dir.path().join("image");
    write(&path, 0, &[1]);
    let file = UnlockedFile::open(&path, &FileOptions::default()).unwrap();
    assert!(!file.measured(None).unwrap().capabilities().grows_zeroed);
    let shared = FileLock::acquire_role(file.fd(), Role::ForceShare).unwrap();
    assert!(!file.measured(Some(&shared)).unwrap().capabilities().grows_zeroed);
    drop(shared);
    for role in [Role::Reader, Role::Writer] {
        let lock = FileLock::acquire_role(file.fd(), role).unwrap();
        assert!(file.measured(Some(&lock)).unwrap().capabilities().grows_zeroed);
    }
}

/// A read that met the end of what the page cache had took it for the end of the file, as it was known, and filled up
/// with zeroes what another process had written there.
#[test]
fn without_a_lock_a_read_at_the_end_as_it_was_finds_what_is_there_now() {
    let dir = TempDir::new_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let path = dir.path().join("image");
    write(&path, 0, &[1; MIB as usize]);
    let stale = UnlockedFile::open(&path, &FileOptions::default()).unwrap().measured(None).unwrap();
    write(&path, MIB, &[2; MIB as usize]);
    let file = std::fs::File::open(&path).unwrap();
    file.sync_all().unwrap();
    let advice = rustix::fs::Advice::DontNeed;
    rustix::fs::fadvise(&file, MIB, std::num::NonZeroU64::new(MIB), advice).unwrap();
    let mut buf = [0xee; 8192];
    if stale.try_read(MIB - 4096, &mut buf, Hints::NONE) {
        assert!(buf[..4096].iter().all(|&byte| byte == 1) && buf[4096..].iter().all(|&byte| byte == 2));
    }
}
