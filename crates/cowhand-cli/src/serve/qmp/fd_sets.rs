//! add-fd, remove-fd, query-fdsets: files that the client opened and handed over.

use control::{Arguments, Passed, QmpError};
use graph::fd_sets::FdSetError;
use serde_json::{Value, json};

use crate::serve::inventory::Inventory;

/// Puts the descriptor that came with the command, or before it, into a set.
pub fn add(inventory: &Inventory, arguments: Arguments<'_>, passed: &Passed) -> Result<Value, QmpError> {
    let fd = passed.take().ok_or_else(|| {
        QmpError::generic("no descriptor came with the command or before it (SCM_RIGHTS, on the unix socket)")
    })?;
    let set = number(arguments, "fdset-id")?;
    let opaque = arguments.maybe_text("opaque").map(str::to_owned);
    let (set, fd) = inventory.graph.rules().fd_sets.add(set, fd, opaque).map_err(refused)?;
    Ok(json!({ "fdset-id": set, "fd": fd }))
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
