//! blockdev-add, blockdev-del, blockdev-reopen, block_resize.

use std::rc::Rc;

use control::{Command, Kind, QmpError, Takes, arguments};
use graph::Change;
use qcow2::ResizeOptions;
use serde_json::{Map, Value, json};

use super::chain::free_of_jobs;
use super::node_schema::BLOCKDEV;
use crate::inventory::Inventory;

/// What blockdev-add describes: the graph reads it.
#[derive(serde::Deserialize)]
#[serde(transparent)]
pub struct Node(pub Map<String, Value>);

impl Takes for Node {
    const KIND: Kind = Kind::Ref(&BLOCKDEV);
}

arguments! {
    /// The node that goes.
    pub struct Del { node_name: String }

    /// Nodes with their new options.
    pub struct Reopen { options: Vec<Node> = Kind::List(&BLOCKDEV) }

    /// Options of a drive.
    pub struct SetOptions { node_name: String, options: String }

    /// A new size.
    pub struct Resize {
        device: Option<String>, node_name: Option<String>, size: u64, x_shrink: Option<bool>,
    }
}

/// Opens a disk, or puts a filter over one.
pub async fn add(
    inventory: &Rc<Inventory>,
    change: &Change<'_>,
    Node(options): &Node,
) -> Result<(), QmpError> {
    inventory.add_node(change, options).await
}

/// Arguments by which commands name disks.
const NAMES_OF_DISKS: [&str; 7] =
    ["node-name", "device", "node", "target", "overlay", "top-node", "base-node"];

/// Makes disks of the bare files that `command` names, or an action of it.
pub async fn open_bare_files(
    inventory: &Inventory,
    change: &Change<'_>,
    command: &Command,
) -> Result<(), QmpError> {
    let actions = command.arguments.get("actions").and_then(Value::as_array).into_iter().flatten();
    let of_actions = actions.filter_map(|action| action.get("data").and_then(Value::as_object));
    for arguments in of_actions.chain([&command.arguments]) {
        for name in NAMES_OF_DISKS.iter().filter_map(|name| arguments.get(*name).and_then(Value::as_str)) {
            let opened = inventory.graph.open_if_bare(change, name).await;
            opened.map_err(|error| inventory.refused(&error))?;
        }
    }
    Ok(())
}

/// Closes a disk, or takes a filter away. As in QEMU that succeeds also where the disk does not take what was not flushed: its node is gone. Then
/// the answer says so: `x-close-error`, which QEMU does not have.
pub async fn del(inventory: &Rc<Inventory>, change: &Change<'_>, given: &Del) -> Result<Value, QmpError> {
    match inventory.remove_node(change, &given.node_name).await? {
        None => Ok(json!({})),
        Some(error) => Ok(json!({ "x-close-error": error.desc })),
    }
}

/// Puts other options in force, node after node; the first that fails ends it, those before stay changed, and the error names them.
pub async fn reopen(inventory: &Rc<Inventory>, change: &Change<'_>, given: &Reopen) -> Result<(), QmpError> {
    let mut changed: Vec<&str> = Vec::new();
    for Node(options) in &given.options {
        let reopened = async {
            check_backing_given(inventory, options).await?;
            inventory.reopen_node(change, options).await
        };
        if let Err(mut error) = reopened.await {
            if !changed.is_empty() {
                error.desc.push_str(&format!("; these nodes have their new options: {}", changed.join(", ")));
            }
            return Err(error);
        }
        changed.extend(options.get("node-name").and_then(Value::as_str));
    }
    Ok(())
}

/// QEMU takes no options of an image that leave open what is below it, where something is or the header names something. Under its names neither do we.
async fn check_backing_given(inventory: &Inventory, options: &Map<String, Value>) -> Result<(), QmpError> {
    let name = options.get("node-name").and_then(Value::as_str).unwrap_or_default();
    if !inventory.as_qemu || options.contains_key("backing") {
        return Ok(());
    }
    let Some(image) = inventory.graph.disk(name).ok().and_then(|disk| disk.disk.image()) else {
        return Ok(());
    };
    match block::Block::below(&image).is_some() || image.header().await.backing.is_some() {
        true => Err(QmpError::generic(format!(
            "argument 'backing' is missing for node {name:?}, which has a backing file or names one: give its node name, or null for none"
        ))),
        false => Ok(()),
    }
}

/// Changes single options, written as on a drive line; what is not named stays.
pub async fn change(
    inventory: &Rc<Inventory>,
    change: &Change<'_>,
    given: &SetOptions,
) -> Result<(), QmpError> {
    let node = inventory.disk(&given.node_name)?;
    let changed = node.change_options(change, &given.options).await;
    changed.map_err(|error| inventory.refused(&error))
}

/// Changes the size of a disk. A smaller one must be meant: `x-shrink`, which QEMU does not have.
pub async fn resize(inventory: &Rc<Inventory>, change: &Change<'_>, given: &Resize) -> Result<(), QmpError> {
    let name = match (&given.node_name, &given.device) {
        (Some(name), None) | (None, Some(name)) => name,
        _ => return Err(QmpError::generic("give one of the arguments 'node-name' and 'device'")),
    };
    let node = inventory.disk(name)?;
    free_of_jobs(inventory, &node)?;
    inventory.graph.check_no_filter_over(change, &node).map_err(|error| inventory.refused(&error))?;
    let options = ResizeOptions {
        shrink: inventory.as_qemu || given.x_shrink == Some(true),
        bitmaps: true,
        ..ResizeOptions::default()
    };
    let before = node.disk.size();
    let resized = node.disk.resize(given.size, options).await;
    // Also after a failure half-way: guests get the size that the disk has.
    inventory.tell_resized(&node);
    resized.map_err(|error| {
        let mut refused = QmpError::because(format!("cannot resize {name}"), &error);
        let now = node.disk.size();
        if now != before {
            refused.desc.push_str(&format!("; its size is {now} bytes now"));
        }
        refused
    })
}
