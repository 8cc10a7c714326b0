//! add-fd, remove-fd, query-fdsets: files that the client opened and handed over. getfd, closefd: connections.

use std::os::fd::OwnedFd;

use control::{Arguments, Passed, QmpError};
use graph::fd_sets::FdSetError;
use serde_json::{Value, json};

use crate::inventory::Inventory;

/// Bytes of the name of a connection.
const NAME_BYTES_MAX: usize = 255;

/// Puts the descriptor that came with the command, or before it, into a set.
pub fn add(inventory: &Inventory, arguments: Arguments<'_>, passed: &Passed) -> Result<Value, QmpError> {
    let fd = taken(passed)?;
    let set = number(arguments, "fdset-id")?;
    let opaque = arguments.maybe_text("opaque").map(str::to_owned);
    let (set, fd) = inventory.graph.rules().fd_sets.add(set, fd, opaque).map_err(refused)?;
    Ok(json!({ "fdset-id": set, "fd": fd }))
}

fn taken(passed: &Passed) -> Result<OwnedFd, QmpError> {
    passed.take().ok_or_else(|| {
        QmpError::generic("no descriptor came with the command or before it (SCM_RIGHTS, on the unix socket)")
    })
}

/// Keeps the descriptor of a connection under a name, for the disk that is opened with it (`server.str`).
pub fn get(arguments: Arguments<'_>, passed: &Passed) -> Result<Value, QmpError> {
    let name = arguments.text("fdname")?;
    // QEMU takes such a name for the number of a descriptor.
    if name.is_empty()
        || name.starts_with(|first: char| first.is_ascii_digit())
        || name.len() > NAME_BYTES_MAX
    {
        return Err(QmpError::generic(format!(
            "argument 'fdname' is {name:?}; allowed: 1 to {NAME_BYTES_MAX} bytes, the first one no digit"
        )));
    }
    net::dial::pass(name, taken(passed)?).map_err(|error| QmpError::generic(error.to_string()))?;
    Ok(json!({}))
}

/// Closes a connection that no disk uses yet.
pub fn close(arguments: Arguments<'_>) -> Result<Value, QmpError> {
    let name = arguments.text("fdname")?;
    match net::dial::forget_passed(name) {
        true => Ok(json!({})),
        false => Err(QmpError::generic(format!("there is no descriptor {name:?} that waits to be used"))),
    }
}

/// Takes a descriptor, or all of them, out of a set.
pub fn remove(inventory: &Inventory, arguments: Arguments<'_>) -> Result<Value, QmpError> {
    let set =
        number(arguments, "fdset-id")?.ok_or_else(|| QmpError::generic("argument 'fdset-id' is missing"))?;
    let fd = number(arguments, "fd")?;
    inventory.graph.rules().fd_sets.remove(set, fd).map_err(refused)?;
    Ok(json!({}))
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

fn number<T: TryFrom<u64>>(arguments: Arguments<'_>, name: &str) -> Result<Option<T>, QmpError> {
    let number = arguments.maybe_whole(name).map(T::try_from).transpose();
    number.map_err(|_| QmpError::generic(format!("argument '{name}' is too large a number")))
}

fn refused(error: FdSetError) -> QmpError {
    QmpError::generic(error.to_string())
}
