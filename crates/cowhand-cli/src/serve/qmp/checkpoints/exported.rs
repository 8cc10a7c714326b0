//! Forks that clients reach at once: each is opened as a node and exported, all of them or none.

use std::path::PathBuf;
use std::rc::Rc;

use control::{Arguments, Command, QmpError};
use export::Removal;
use graph::Change;
use serde_json::{Map, Value, json};

use super::super::exports;
use crate::serve::inventory::Inventory;

/// What was opened for one fork.
struct Exported {
    /// The node, and the id of its export.
    name: String,
    /// How it is opened, and exported: another process repeats it.
    commands: Vec<Command>,
}

/// Opens disks and exports each as `serve` says, as blockdev-add and block-export-add do. A node, its export and that's NBD name are called as the file is,
/// without its extension.
///
/// # Errors
/// When one cannot be opened or exported. Then none is.
pub async fn export_all(
    inventory: &Rc<Inventory>,
    change: &Change<'_>,
    disks: &[PathBuf],
    serve: &Map<String, Value>,
) -> Result<(), QmpError> {
    let is_one_of_a_kind = ["addr", "mountpoint"].iter().any(|place| serve.contains_key(*place));
    if disks.len() > 1 && is_one_of_a_kind {
        return Err(QmpError::generic(
            "several forks cannot be served at one socket or file: serve them as nbd, or fork them one by one",
        ));
    }
    let mut done: Vec<Exported> = Vec::new();
    for disk in disks {
        let name = disk.file_stem().unwrap_or_default().to_string_lossy().into_owned();
        let file = json!({ "driver": "file", "filename": disk });
        let node = json!({ "driver": "qcow2", "node-name": name, "file": file });
        match open(inventory, change, &name, (node, Some(serve))).await {
            Ok(commands) => done.push(Exported { name, commands }),
            Err(mut error) => {
                for Exported { name, .. } in done.iter().rev() {
                    take_back(inventory, change, name, &mut error).await;
                }
                return Err(error);
            }
        }
    }
    done.iter().flat_map(|exported| &exported.commands).for_each(|command| inventory.journal.note(command));
    Ok(())
}

/// Opens `node`, which is called `name`, and exports it under that name as `serve` says, if it does. Gives the commands that lead there.
///
/// # Errors
/// When it cannot be opened or exported. Then it is neither.
pub async fn open(
    inventory: &Rc<Inventory>,
    change: &Change<'_>,
    name: &str,
    (node, serve): (Value, Option<&Map<String, Value>>),
) -> Result<Vec<Command>, QmpError> {
    let node = command("blockdev-add", node, Map::new());
    inventory.add_node(change, &node.arguments).await?;
    let Some(serve) = serve else { return Ok(vec![node]) };
    // A new disk is there to be written.
    let export = json!({ "id": name, "node-name": name, "writable": true });
    let export = command("block-export-add", export, serve.clone());
    match exports::add(inventory, change, Arguments(&export.arguments)).await {
        Ok(_) => Ok(vec![node, export]),
        Err(mut error) => {
            remove_node(inventory, change, name, &mut error).await;
            Err(error)
        }
    }
}

/// `more` comes last: it says otherwise.
fn command(name: &str, arguments: Value, more: Map<String, Value>) -> Command {
    let mut all = match arguments {
        Value::Object(arguments) => arguments,
        _ => Map::new(),
    };
    all.extend(more);
    Command { name: name.to_owned(), arguments: all, id: None }
}

/// Undoes [`open`] of what `error` made useless. What stays is added to that.
pub async fn take_back(inventory: &Rc<Inventory>, change: &Change<'_>, name: &str, error: &mut QmpError) {
    if let Some(record) = inventory.export(name) {
        if let Err(stays) = inventory.remove_export(name, Removal::Hard) {
            note(error, &stays);
        }
        inventory.export_gone(&record).await;
    }
    remove_node(inventory, change, name, error).await;
}

async fn remove_node(inventory: &Inventory, change: &Change<'_>, name: &str, error: &mut QmpError) {
    if let Err(stays) = inventory.remove_node(change, name).await {
        note(error, &stays);
    }
}

fn note(error: &mut QmpError, stays: &QmpError) {
    tracing::error!("disks that cannot be served are not undone: {stays}");
    error.desc.push_str(&format!("; not undone: {}", stays.desc));
}
