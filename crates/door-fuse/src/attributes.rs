//! What the file looks like, beside its bytes.

use std::time::{SystemTime, UNIX_EPOCH};

use rustix::io::Errno;

use crate::abi::{Attributes, Moment, NewTime, SetAttr};

/// Bits that let a process write.
const WRITE_BITS: u32 = 0o222;

/// Attributes that the mount itself keeps: they are forgotten with it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Retained {
    mode: u32,
    uid: u32,
    gid: u32,
    accessed: Moment,
    modified: Moment,
    /// Users other than this process's may use the file.
    for_others: bool,
}

/// Bits that say what users other than the owner may do.
const BITS_OF_OTHERS: u32 = 0o077;

impl Retained {
    /// Of a file of this process's user, that other users may be permitted to use where `for_others` says so.
    pub(crate) fn new(read_only: bool, for_others: bool) -> Self {
        let now = now();
        let (uid, gid) = (rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw());
        let mode = if read_only { 0o400 } else { 0o600 };
        Self { mode, uid, gid, accessed: now, modified: now, for_others }
    }

    /// The bytes were changed.
    pub(crate) fn was_written(&mut self) {
        self.modified = now();
    }

    /// Changes all of `set` but the size.
    ///
    /// # Errors
    /// With EROFS, where a file that cannot be written were to look as if it could; with EPERM, where one that the kernel shows to its owner alone were
    /// to look as if others could use it.
    pub(crate) fn set(&mut self, set: &SetAttr, read_only: bool) -> Result<(), Errno> {
        if read_only && set.mode.is_some_and(|mode| mode & WRITE_BITS != 0) {
            return Err(Errno::ROFS);
        }
        let is_for_others = set.mode.is_some_and(|mode| mode & BITS_OF_OTHERS != 0);
        if !self.for_others && (is_for_others || set.uid.is_some() || set.gid.is_some()) {
            return Err(Errno::PERM);
        }
        self.mode = set.mode.unwrap_or(self.mode);
        self.uid = set.uid.unwrap_or(self.uid);
        self.gid = set.gid.unwrap_or(self.gid);
        self.accessed = set.accessed.map_or(self.accessed, moment);
        self.modified = set.modified.map_or(self.modified, moment);
        Ok(())
    }

    /// With what the disk says.
    pub(crate) fn of_disk(&self, size: u64, allocated: u64) -> Attributes {
        let Self { mode, uid, gid, accessed, modified, for_others: _ } = *self;
        Attributes { size, allocated, mode, uid, gid, accessed, modified }
    }
}

fn moment(time: NewTime) -> Moment {
    match time {
        NewTime::At(moment) => moment,
        NewTime::Now => now(),
    }
}

fn now() -> Moment {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    Moment { seconds: since.as_secs(), nanos: since.subsec_nanos() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_cannot_be_written_does_not_look_as_if_it_could() {
        let mut kept = Retained::new(true, true);
        assert_eq!(kept.of_disk(1, 1).mode, 0o400);
        let set = |mode| SetAttr { mode: Some(mode), ..SetAttr::default() };
        assert_eq!(kept.set(&set(0o644), true), Err(Errno::ROFS));
        assert_eq!(kept.set(&set(0o444), true), Ok(()));
        assert_eq!(kept.of_disk(1, 1).mode, 0o444);
    }

    #[test]
    fn what_others_cannot_reach_does_not_look_as_if_they_could() {
        let mut kept = Retained::new(false, false);
        let set = |mode| SetAttr { mode: Some(mode), ..SetAttr::default() };
        assert_eq!(kept.set(&set(0o604), false), Err(Errno::PERM));
        assert_eq!(kept.set(&SetAttr { uid: Some(1), ..SetAttr::default() }, false), Err(Errno::PERM));
        assert_eq!(kept.of_disk(1, 1).mode, 0o600);
        assert_eq!(kept.set(&set(0o700), false), Ok(()));
        assert_eq!(kept.of_disk(1, 1).mode, 0o700);
    }
}
