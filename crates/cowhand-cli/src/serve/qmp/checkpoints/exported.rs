//! Forks that clients reach at once: each is opened as a node and exported, all of them or none.

use std::path::{Path, PathBuf};
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
    commands: [Command; 2],
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
        match export_one(inventory, change, disk, serve).await {
            Ok(exported) => done.push(exported),
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

async fn export_one(
    inventory: &Rc<Inventory>,
    change: &Change<'_>,
    disk: &Path,
    serve: &Map<String, Value>,
) -> Result<Exported, QmpError> {
    let name = disk.file_stem().unwrap_or_default().to_string_lossy().into_owned();
    let node =
        json!({ "driver": "qcow2", "node-name": name, "file": { "driver": "file", "filename": disk } });
    let node = command("blockdev-add", node, Map::new());
    // A fork is there to be written.
    let export = json!({ "id": name, "node-name": name, "writable": true });
    let export = command("block-export-add", export, serve.clone());
    inventory.add_node(change, &node.arguments).await?;
    match exports::add(inventory, change, Arguments(&export.arguments)).await {
        Ok(_) => Ok(Exported { name, commands: [node, export] }),
        Err(mut error) => {
            remove_node(inventory, change, &name, &mut error).await;
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

async fn take_back(inventory: &Rc<Inventory>, change: &Change<'_>, name: &str, error: &mut QmpError) {
    let record = inventory.export(name);
    if let Err(stays) = inventory.remove_export(name, Removal::Hard) {
        note(error, &stays);
    }
    if let Some(record) = record {
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
    tracing::error!("forks that cannot be served are not undone: {stays}");
    error.desc.push_str(&format!("; not undone: {}", stays.desc));
}
