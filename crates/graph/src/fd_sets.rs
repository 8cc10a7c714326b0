//! Files that another process opened: descriptors in numbered sets, used under the name `/dev/fdset/NUMBER`.
//!
//! A management program opens files that this process may not, and hands over the descriptors. A set holds those of one
//! file, each opened in another way; which one serves depends on what the file is opened for, as in QEMU.
//!
//! File locks belong to an open file, not to a descriptor. Two disks over copies of one descriptor would share their
//! locks: neither would see the other, and the first that closes would give back the other's. So each open file serves
//! one disk at a time.

use std::collections::BTreeMap;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::path::Path;
use std::sync::{Arc, Weak};

use parking_lot::Mutex;
use rustix::fs::OFlags;
use storage::is_same_description;
use thiserror::Error;

/// Descriptors in all sets at most: one for each image of the longest chain.
pub const DESCRIPTORS_MAX: usize = 1000;

/// Bytes of the text that a client may attach to a descriptor.
pub const OPAQUE_BYTES_MAX: usize = 1024;

/// What names of sets begin with.
pub(crate) const PREFIX: &str = "/dev/fdset/";

/// The sets of a process. Clones are handles of the same.
#[derive(Clone, Debug, Default)]
pub struct FdSets {
    state: Arc<Mutex<State>>,
}

#[derive(Debug, Default)]
struct State {
    sets: BTreeMap<u32, Vec<Entry>>,
    /// Descriptors of open disks that came from here, also after their sets are gone. A disk's files drop them.
    in_use: Vec<Weak<OwnedFd>>,
}

#[derive(Debug)]
struct Entry {
    fd: OwnedFd,
    opaque: Option<String>,
}

/// A descriptor, as it is shown.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Shown {
    /// Its number in this process.
    pub fd: RawFd,
    /// What the client attached to it.
    pub opaque: Option<String>,
}

/// Why a set does not take or give a descriptor.
#[derive(Debug, Error)]
pub enum FdSetError {
    /// More than are ever needed.
    #[error("the sets hold {DESCRIPTORS_MAX} descriptors, which is the most; remove some with remove-fd")]
    Full,
    /// The text is too long.
    #[error("opaque has {found} bytes; allowed: {OPAQUE_BYTES_MAX} at most")]
    Opaque {
        /// Its length.
        found: usize,
    },
    /// `/dev/fdset/x`
    #[error("{name} names no set of descriptors: a number follows {PREFIX}")]
    Name {
        /// As given.
        name: String,
    },
    /// There is no such set.
    #[error("there is no set of descriptors {set}; add-fd over QMP makes one")]
    NoSet {
        /// Its number.
        set: u32,
    },
    /// There is no such descriptor in it.
    #[error("there is no descriptor {fd} in set {set}")]
    NoFd {
        /// The set's number.
        set: u32,
        /// The descriptor's.
        fd: RawFd,
    },
    /// None was opened in the way that is needed.
    #[error("set {set} has no descriptor opened for {needed}; it has {found}")]
    Access {
        /// The set's number.
        set: u32,
        /// "reading".
        needed: &'static str,
        /// What there is instead.
        found: String,
    },
    /// The right one serves a disk.
    #[error(
        "descriptor {fd} of set {set} is in use by an open disk, or is a copy of one that is: they would share file locks; \
         open the file anew and add that descriptor to the set"
    )]
    InUse {
        /// The set's number.
        set: u32,
        /// The descriptor's.
        fd: RawFd,
    },
    /// The system refuses to copy it.
    #[error("cannot copy the descriptor: {0}")]
    Copy(#[source] io::Error),
}

impl FdSets {
    /// The name of a set.
    pub(crate) fn name(set: u32) -> String {
        format!("{PREFIX}{set}")
    }

    /// The set that `path` names, if it has the form of such a name.
    ///
    /// # Errors
    /// When no number follows.
    pub fn number(path: &Path) -> Option<Result<u32, FdSetError>> {
        let number = path.to_str()?.strip_prefix(PREFIX)?;
        let is_plain = number.bytes().all(|byte| byte.is_ascii_digit());
        let parsed = number.parse().ok().filter(|_| is_plain);
        Some(parsed.ok_or_else(|| FdSetError::Name { name: path.display().to_string() }))
    }

    /// Whether there is a set of that number.
    pub fn contains(&self, set: u32) -> bool {
        self.state.lock().sets.contains_key(&set)
    }

    /// Puts a descriptor into a set, or into a new one with the lowest number that is free. Gives the set's number and the
    /// descriptor's.
    ///
    /// # Errors
    /// When there are too many, or the text is too long.
    pub fn add(
        &self,
        set: Option<u32>,
        fd: OwnedFd,
        opaque: Option<String>,
    ) -> Result<(u32, RawFd), FdSetError> {
        if let Some(found) = opaque.as_ref().map(String::len).filter(|found| *found > OPAQUE_BYTES_MAX) {
            return Err(FdSetError::Opaque { found });
        }
        let mut state = self.state.lock();
        if state.sets.values().map(Vec::len).sum::<usize>() >= DESCRIPTORS_MAX {
            return Err(FdSetError::Full);
        }
        // There are fewer sets than numbers.
        let set = set.unwrap_or_else(|| (0..).find(|set| !state.sets.contains_key(set)).unwrap_or(u32::MAX));
        let number = fd.as_raw_fd();
        state.sets.entry(set).or_default().push(Entry { fd, opaque });
        Ok((set, number))
    }

    /// Takes a descriptor, or all of them, out of a set. Disks that were opened by it keep what they have.
    ///
    /// # Errors
    /// When there is none.
    pub fn remove(&self, set: u32, fd: Option<RawFd>) -> Result<(), FdSetError> {
        let mut state = self.state.lock();
        let entries = state.sets.get_mut(&set).ok_or(FdSetError::NoSet { set })?;
        if let Some(fd) = fd {
            let before = entries.len();
            entries.retain(|entry| entry.fd.as_raw_fd() != fd);
            if entries.len() == before {
                return Err(FdSetError::NoFd { set, fd });
            }
        } else {
            entries.clear();
        }
        if entries.is_empty() {
            state.sets.remove(&set);
        }
        Ok(())
    }

    /// All sets with their descriptors, by number.
    pub fn list(&self) -> Vec<(u32, Vec<Shown>)> {
        let shown = |entry: &Entry| Shown { fd: entry.fd.as_raw_fd(), opaque: entry.opaque.clone() };
        let state = self.state.lock();
        state.sets.iter().map(|(set, entries)| (*set, entries.iter().map(shown).collect())).collect()
    }

    /// A copy of the descriptor of `set` that fits. For reading one opened for reading alone is taken first.
    ///
    /// # Errors
    /// When there is none, or each of them serves a disk already.
    pub(crate) fn open(&self, set: u32, writable: bool) -> Result<OwnedFd, FdSetError> {
        let mut state = self.state.lock();
        state.in_use.retain(|fd| fd.strong_count() > 0);
        let entries = state.sets.get(&set).ok_or(FdSetError::NoSet { set })?;
        let fitting = if writable { &[Access::Both][..] } else { &[Access::Read, Access::Both] };
        let in_use: Vec<_> = state.in_use.iter().filter_map(Weak::upgrade).collect();
        let mut last = None;
        for entry in
            fitting.iter().flat_map(|access| entries.iter().filter(|entry| Access::of(&entry.fd) == *access))
        {
            if !in_use.iter().any(|used| is_same_description(used, &entry.fd)) {
                return entry.fd.try_clone().map_err(FdSetError::Copy);
            }
            last = Some(FdSetError::InUse { set, fd: entry.fd.as_raw_fd() });
        }
        let found =
            || entries.iter().map(|entry| Access::of(&entry.fd).words()).collect::<Vec<_>>().join(", ");
        let needed = if writable { Access::Both.words() } else { Access::Read.words() };
        Err(last.unwrap_or_else(|| FdSetError::Access { set, needed, found: found() }))
    }

    /// A disk uses this copy of a descriptor from now on, as long as it holds it.
    pub(crate) fn note_use(&self, fd: &Arc<OwnedFd>) {
        self.state.lock().in_use.push(Arc::downgrade(fd));
    }
}

/// How a descriptor was opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Access {
    Read,
    Write,
    Both,
    /// It only names the file.
    Name,
}

impl Access {
    fn of(fd: &OwnedFd) -> Self {
        // Asking an open descriptor for its flags does not fail.
        let flags = rustix::fs::fcntl_getfl(fd).unwrap_or(OFlags::PATH);
        match flags & OFlags::RWMODE {
            _ if flags.contains(OFlags::PATH) => Self::Name,
            OFlags::RDWR => Self::Both,
            OFlags::WRONLY => Self::Write,
            _ => Self::Read,
        }
    }

    fn words(self) -> &'static str {
        match self {
            Self::Read => "reading",
            Self::Write => "writing alone",
            Self::Both => "reading and writing",
            Self::Name => "nothing (O_PATH)",
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs::{File, OpenOptions};

    use super::*;

    fn file(directory: &tempfile::TempDir, write: bool) -> OwnedFd {
        let path = directory.path().join("x");
        OpenOptions::new().read(true).write(write).create(write).truncate(false).open(path).unwrap().into()
    }

    #[test]
    fn a_set_gives_the_descriptor_that_was_opened_for_what_is_needed() {
        let (directory, sets) = (tempfile::tempdir().unwrap(), FdSets::default());
        let (set, both) = sets.add(None, file(&directory, true), None).unwrap();
        assert_eq!(set, 0);
        let (_, read) = sets.add(Some(0), file(&directory, false), Some("r".to_owned())).unwrap();
        let shown = |fd, opaque: Option<&str>| Shown { fd, opaque: opaque.map(str::to_owned) };
        assert_eq!(sets.list(), [(0, vec![shown(both, None), shown(read, Some("r"))])]);
        let access = |writable| Access::of(&sets.open(0, writable).unwrap());
        assert_eq!((access(true), access(false)), (Access::Both, Access::Read));
        sets.remove(0, Some(read)).unwrap();
        assert_eq!(access(false), Access::Both);
        sets.remove(0, None).unwrap();
        assert!(matches!(sets.open(0, false), Err(FdSetError::NoSet { set: 0 })));
        let (set, _) = sets.add(Some(7), file(&directory, false), None).unwrap();
        let refused = sets.open(set, true).unwrap_err().to_string();
        assert_eq!(refused, "set 7 has no descriptor opened for reading and writing; it has reading");
        let path = rustix::fs::open(directory.path(), OFlags::PATH, rustix::fs::Mode::empty()).unwrap();
        sets.add(Some(8), path, None).unwrap();
        assert!(sets.open(8, false).unwrap_err().to_string().ends_with("it has nothing (O_PATH)"));
    }

    #[test]
    fn an_open_file_serves_one_disk_at_a_time_whatever_number_it_has() {
        let (directory, sets) = (tempfile::tempdir().unwrap(), FdSets::default());
        let first = file(&directory, true);
        let copy = first.try_clone().unwrap();
        sets.add(Some(1), first, None).unwrap();
        sets.add(Some(2), copy, None).unwrap();
        let used = Arc::new(sets.open(1, true).unwrap());
        sets.note_use(&used);
        for set in [1, 2] {
            for writable in [true, false] {
                assert!(
                    matches!(sets.open(set, writable), Err(FdSetError::InUse { .. })),
                    "{set} {writable}"
                );
            }
        }
        sets.remove(1, None).unwrap();
        assert!(matches!(sets.open(2, true), Err(FdSetError::InUse { .. })), "the disk is still open");
        sets.add(Some(2), file(&directory, true), None).unwrap();
        drop(sets.open(2, true).unwrap());
        drop(used);
        sets.open(2, true).unwrap();
    }

    #[test]
    fn what_clients_add_is_bounded() {
        let sets = FdSets::default();
        let null = || -> OwnedFd { File::open("/dev/null").unwrap().into() };
        let long = "x".repeat(OPAQUE_BYTES_MAX + 1);
        assert!(matches!(sets.add(None, null(), Some(long)), Err(FdSetError::Opaque { .. })));
        let one = null();
        for _ in 0..DESCRIPTORS_MAX {
            match sets.add(None, one.try_clone().unwrap(), None) {
                Ok(_) => {}
                Err(error) => panic!("{error}"),
            }
        }
        assert!(matches!(sets.add(Some(0), one, None), Err(FdSetError::Full)));
    }

    #[test]
    fn a_name_is_the_prefix_and_a_number() {
        let number = |name: &str| FdSets::number(Path::new(name)).map(|number| number.ok());
        assert_eq!(number("/dev/fdset/12"), Some(Some(12)));
        for name in [
            "/dev/fdset/",
            "/dev/fdset/x",
            "/dev/fdset/-1",
            "/dev/fdset/+1",
            "/dev/fdset/4294967296",
            "/dev/fdset/1/2",
        ] {
            assert_eq!(number(name), Some(None), "{name}");
        }
        assert_eq!(number("/dev/fd/1"), None);
    }
}
