//! Files that several disks use through one node of the graph: each opens the file by itself, all are under one lock.
//!
//! `raw` shares its file, so that parts of a disk can be exported side by side. Other disks may read the file of an image.

use std::collections::HashMap;
use std::sync::{Arc, Weak};

use parking_lot::Mutex;
use storage::{FileLock, LockError, Role};

use crate::options::{FileOptions, LayerOptions, Locking};
use crate::probe::Format;
use crate::shared_files::FirstLock;

/// The files that are open through nodes, by the names of these.
#[derive(Clone, Debug, Default)]
pub struct NodeFiles(Arc<Mutex<HashMap<String, Weak<Common>>>>);

/// The lock of all disks over one node.
#[derive(Debug)]
pub(crate) struct Common {
    lock: FirstLock,
    users: Mutex<Vec<Weak<Mutex<Use>>>>,
}

/// What one disk does with the file.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Use {
    /// It is an image, whose bytes nothing else may change.
    pub(crate) is_image: bool,
    pub(crate) role: Role,
}

impl Use {
    /// Of the file that `options` name, by a disk of `layer`: the node's name too, if it may be shared.
    pub(crate) fn of<'a>(
        options: &'a FileOptions,
        layer: &LayerOptions,
        role: Role,
    ) -> Option<(&'a str, Self)> {
        let is_image = layer.format? != Format::Raw;
        let is_locked = !layer.force_share && options.locking != Locking::Off;
        let name = options.node_name.as_deref().filter(|_| is_locked)?;
        Some((name, Self { is_image, role }))
    }

    fn is_against(self, other: Self) -> bool {
        let changes = |user: Self| user.role == Role::Writer;
        self.is_image && changes(other) || other.is_image && changes(self)
    }
}

/// One disk's part of it. The lock is what the strictest of them needs.
#[derive(Debug)]
pub(crate) struct Part {
    of: Arc<Common>,
    user: Arc<Mutex<Use>>,
}

fn strictness(role: Role) -> u8 {
    match role {
        Role::ForceShare => 0,
        Role::Reader => 1,
        Role::Writer => 2,
    }
}

impl NodeFiles {
    /// What is open through the node `name`.
    pub(crate) fn find(&self, name: &str) -> Option<Arc<Common>> {
        self.0.lock().get(name)?.upgrade()
    }

    /// The first disk over the node `name`, which has locked the file for its `user`.
    pub(crate) fn begin(&self, name: &str, lock: FileLock, user: Use) -> Part {
        let user = Arc::new(Mutex::new(user));
        let users = Mutex::new(vec![Arc::downgrade(&user)]);
        let of = Arc::new(Common { lock: Arc::new(Mutex::new(lock)), users });
        let mut files = self.0.lock();
        files.retain(|_, common| common.strong_count() > 0);
        files.insert(name.to_owned(), Arc::downgrade(&of));
        Part { of, user }
    }
}

impl Common {
    /// The lock.
    pub(crate) fn lock(&self) -> &FirstLock {
        &self.lock
    }

    /// Another disk comes.
    ///
    /// # Errors
    /// When one of the others, or another process, uses the file in a way that does not go together with that.
    pub(crate) fn join(self: Arc<Self>, user: Use) -> Result<Part, LockError> {
        let role = user.role;
        let part = Part { of: self, user: Arc::new(Mutex::new(Use { role: Role::ForceShare, ..user })) };
        part.change(role)?;
        part.of.users.lock().push(Arc::downgrade(&part.user));
        Ok(part)
    }
}

impl Part {
    /// The lock.
    pub(crate) fn lock(&self) -> &FirstLock {
        &self.of.lock
    }

    /// Changes what this disk is open for.
    ///
    /// # Errors
    /// As [`Common::join`]; then all is as it was.
    pub(crate) fn change(&self, role: Role) -> Result<(), LockError> {
        let others = self.others();
        let new = Use { role, ..*self.user.lock() };
        let mut lock = self.of.lock.lock();
        if others.iter().any(|other| new.is_against(*other)) {
            // As if the other had opened the file by itself.
            lock.test_beside(role)?;
        }
        hold(&mut lock, others.iter().chain([&new]))?;
        drop(lock);
        self.user.lock().role = role;
        Ok(())
    }

    fn others(&self) -> Vec<Use> {
        let mut users = self.of.users.lock();
        users.retain(|user| user.strong_count() > 0);
        let others = users.iter().filter_map(Weak::upgrade).filter(|user| !Arc::ptr_eq(user, &self.user));
        others.map(|user| *user.lock()).collect()
    }
}

impl Drop for Part {
    fn drop(&mut self) {
        let others = self.others();
        if !others.is_empty() {
            // Less than before is never refused.
            let _ = hold(&mut self.of.lock.lock(), &others);
        }
    }
}

/// Makes the lock what the strictest of `users` needs.
fn hold<'a>(lock: &mut FileLock, users: impl IntoIterator<Item = &'a Use>) -> Result<(), LockError> {
    let strictest = users.into_iter().map(|user| user.role).max_by_key(|role| strictness(*role));
    strictest.map_or(Ok(()), |role| lock.change(role.wanted(), role.shared()))
}
