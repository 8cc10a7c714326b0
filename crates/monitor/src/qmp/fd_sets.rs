//! add-fd, remove-fd, query-fdsets: files that the client opened and handed over. getfd, closefd: connections.

use std::os::fd::OwnedFd;

use control::{Kind, Passed, QmpError, arguments};
use graph::fd_sets::FdSetError;
use serde_json::{Value, json};

use crate::inventory::Inventory;

/// Bytes of the name of a connection.
const NAME_BYTES_MAX: usize = 255;

/// Numbers of descriptors and of their sets.
const DESCRIPTOR: Kind = Kind::Whole(i32::MAX as u64);

arguments! {
    /// A set, which is made if there is none.
    pub struct Add { fdset_id: Option<u32> = DESCRIPTOR, opaque: Option<String> }

    /// A descriptor of a set, or all.
    pub struct Remove { fdset_id: u32 = DESCRIPTOR, fd: Option<i32> }

    /// A connection.
    pub struct Named { fdname: String }
}

/// Puts the descriptor that came with the command, or before it, into a set.
pub fn add(inventory: &Inventory, given: &Add, passed: &Passed) -> Result<Value, QmpError> {
    let (set, opaque) = (given.fdset_id, given.opaque.clone());
    let (set, fd) = inventory.graph.rules().fd_sets.add(set, taken(passed)?, opaque).map_err(refused)?;
    Ok(json!({ "fdset-id": set, "fd": fd }))
}

fn taken(passed: &Passed) -> Result<OwnedFd, QmpError> {
    passed.take().ok_or_else(|| {
        QmpError::generic("no descriptor came with the command or before it (SCM_RIGHTS, on the unix socket)")
    })
}

/// Keeps the descriptor of a connection under a name, for the disk that is opened with it (`server.str`).
pub fn get(Named { fdname: name }: &Named, passed: &Passed) -> Result<(), QmpError> {
    // QEMU takes such a name for the number of a descriptor.
    if name.is_empty()
        || name.starts_with(|first: char| first.is_ascii_digit())
        || name.len() > NAME_BYTES_MAX
    {
        return Err(QmpError::generic(format!(
            "argument 'fdname' is {name:?}; allowed: 1 to {NAME_BYTES_MAX} bytes, the first one no digit"
        )));
    }
    net::dial::pass(name, taken(passed)?).map_err(|error| QmpError::generic(error.to_string()))
}

/// Closes a connection that no disk uses yet.
pub fn close(Named { fdname: name }: &Named) -> Result<(), QmpError> {
    match net::dial::forget_passed(name) {
        true => Ok(()),
        false => Err(QmpError::generic(format!("there is no descriptor {name:?} that waits to be used"))),
    }
}

/// Takes a descriptor, or all of them, out of a set.
pub fn remove(inventory: &Inventory, given: &Remove) -> Result<(), QmpError> {
    inventory.graph.rules().fd_sets.remove(given.fdset_id, given.fd).map_err(refused)
}

/// All sets.
pub fn query(inventory: &Inventory) -> Value {
    let shown = |shown: &graph::fd_sets::Shown| match &shown.opaque {
        Some(opaque) => json!({ "fd": shown.fd, "opaque": opaque }),
        None => json!({ "fd": shown.fd }),
    };
    let sets = inventory.graph.rules().fd_sets.list().into_iter();
    sets.map(|(set, fds)| json!({ "fdset-id": set, "fds": fds.iter().map(shown).collect::<Vec<_>>() }))
        .collect()
}

fn refused(error: FdSetError) -> QmpError {
    QmpError::generic(error.to_string())
}
