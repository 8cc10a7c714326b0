//! Forks that clients reach at once: each is opened as a node and exported, all of them or none.

use std::path::{Path, PathBuf};
use std::rc::Rc;

use control::{Command, QmpError, taken};
use export::Removal;
use graph::{Change, NodeError};
use lineage::LayerId;
use serde_json::{Map, Value, json};

use super::super::exports;
use crate::inventory::Inventory;

/// What a disk that is opened by a command is called.
pub struct Names {
    node: String,
    /// The id of its export, and what NBD clients call that.
    export: String,
}

/// What was opened for one fork.
struct Exported {
    names: Names,
    /// How it is opened, and exported: another process repeats it.
    commands: Vec<Command>,
}

impl Names {
    /// One name for all.
    pub fn of(name: &str) -> Self {
        Self { node: name.to_owned(), export: name.to_owned() }
    }

    /// As the file at `disk` is called, without its extension. Where no command may call a node so (`serve` may), that has a name that is made.
    fn of_file(inventory: &Inventory, disk: &Path) -> Result<Self, QmpError> {
        let mut names = Self::of(&disk.file_stem().unwrap_or_default().to_string_lossy());
        if let Err(NodeError::BadName { .. }) = inventory.graph.check_new_name(&names.node) {
            let id = LayerId::new()
                .map_err(|error| QmpError::because("there is no name for a node".to_owned(), &error))?;
            names.node = format!("fork-{id}");
        }
        Ok(names)
    }
}

/// Opens disks and exports each as `serve` says, as blockdev-add and block-export-add do. What each is called: [`Names::of_file`].
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
        let opened = async {
            let names = Names::of_file(inventory, disk)?;
            let file = json!({ "driver": "file", "filename": disk });
            let node = json!({ "driver": "qcow2", "node-name": names.node, "file": file });
            let commands = open(inventory, change, &names, (node, Some(serve))).await?;
            Ok(Exported { names, commands })
        };
        match opened.await {
            Ok(exported) => done.push(exported),
            Err(mut error) => {
                for Exported { names, .. } in done.iter().rev() {
                    take_back(inventory, change, names, &mut error).await;
                }
                return Err(error);
            }
        }
    }
    done.iter().flat_map(|exported| &exported.commands).for_each(|command| inventory.journal.note(command));
    Ok(())
}

/// Opens `node`, which is called as `names` says, and exports it as `serve` says, if it does. Gives the commands that lead there.
///
/// # Errors
/// When it cannot be opened or exported. Then it is neither.
pub async fn open(
    inventory: &Rc<Inventory>,
    change: &Change<'_>,
    names: &Names,
    (node, serve): (Value, Option<&Map<String, Value>>),
) -> Result<Vec<Command>, QmpError> {
    let node = command("blockdev-add", node, Map::new());
    inventory.add_node(change, &node.arguments).await?;
    let Some(serve) = serve else { return Ok(vec![node]) };
    // A new disk is there to be written.
    let Names { node: node_name, export: id } = names;
    let mut export = json!({ "id": id, "node-name": node_name, "writable": true });
    if id != node_name && serve.get("type").is_some_and(|door| door == "nbd") {
        export["name"] = json!(id);
    }
    let export = command("block-export-add", export, serve.clone());
    match exports::add(inventory, change, &taken(&export.arguments)?).await {
        Ok(()) => Ok(vec![node, export]),
        Err(mut error) => {
            remove_node(inventory, change, node_name, &mut error).await;
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
pub async fn take_back(inventory: &Rc<Inventory>, change: &Change<'_>, names: &Names, error: &mut QmpError) {
    if let Some(record) = inventory.export(&names.export) {
        if let Err(stays) = inventory.remove_export(&names.export, Removal::Hard) {
            note(error, &stays);
        }
        inventory.export_gone(&record).await;
    }
    remove_node(inventory, change, &names.node, error).await;
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
