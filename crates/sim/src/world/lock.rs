//! Locks on disks, as processes of the simulated machine hold them, and a disk before its lock is held.

use std::time::Duration;

use storage::{Conflict, LockClock, LockError, OpenError, Permissions, Role, Storage, Unlocked};

use super::{SimStorage, World};
use crate::deliberate::{self, Bug};

/// Who holds a disk's lock.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Locked {
    #[default]
    Free,
    Readers(usize),
    Writer,
}

/// A disk as a process has it before its lock: nothing of it was read.
#[derive(Clone, Debug)]
pub struct UnlockedDisk {
    world: World,
    disk: usize,
    /// The length from before the lock, where that is the bug to be found.
    early: Option<u64>,
}

/// A lock on a disk, given back when dropped. Its holder is never seen: a refused opener waits.
#[derive(Debug)]
pub struct DiskLock {
    world: World,
    disk: usize,
}

impl World {
    /// The disk as one finds it who does not know whether others use it.
    pub fn find(&self, disk: usize) -> UnlockedDisk {
        let early = deliberate::has(Bug::LengthBeforeLock).then(|| self.open(disk).length());
        UnlockedDisk { world: self.clone(), disk, early }
    }
}

impl Unlocked for UnlockedDisk {
    type Lock = DiskLock;
    type Storage = SimStorage;

    fn try_lock(&self, role: Role) -> Result<DiskLock, LockError> {
        let mut machine = self.world.machine.lock();
        let lock = &mut machine.disk_mut(self.disk).lock;
        let refused = |used| LockError::Busy { conflict: Conflict::Used(used), holders: Vec::new() };
        *lock = match (role, *lock) {
            (Role::Writer, Locked::Free) => Locked::Writer,
            (Role::Reader, Locked::Free) => Locked::Readers(1),
            (Role::Reader, Locked::Readers(readers)) => Locked::Readers(readers + 1),
            (_, Locked::Writer) => return Err(refused(Permissions::WRITE)),
            (Role::Writer | Role::ForceShare, _) => return Err(refused(Permissions::CONSISTENT_READ)),
        };
        Ok(DiskLock { world: self.world.clone(), disk: self.disk })
    }

    fn measured(&self, _lock: Option<&DiskLock>) -> Result<SimStorage, OpenError> {
        let storage = self.world.open(self.disk);
        Ok(match self.early {
            Some(length) => storage.believing(length),
            None => storage,
        })
    }
}

impl Drop for DiskLock {
    fn drop(&mut self) {
        let mut machine = self.world.machine.lock();
        let lock = &mut machine.disk_mut(self.disk).lock;
        *lock = match *lock {
            Locked::Readers(readers) if readers > 1 => Locked::Readers(readers - 1),
            Locked::Readers(_) | Locked::Writer | Locked::Free => Locked::Free,
        };
    }
}

impl LockClock for World {
    fn now(&self) -> Duration {
        World::now(self)
    }

    fn sleep(&self, duration: Duration) -> impl Future<Output = ()> {
        World::sleep(self, duration)
    }
}
