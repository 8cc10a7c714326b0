//! block-export-add, block-export-del, query-block-exports.

use std::path::PathBuf;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use control::{Answer, Arguments, List, QmpError};
use door_fuse::mount::AllowOther;
use door_ublk::Number;
use export::Removal;
use graph::Change;
use serde_json::{Value, json};

use super::active;
use super::chosen;
use super::query::job_filters;
use super::{checkpoints, dirty_bitmaps};
use crate::endpoint::Endpoint;
use crate::inventory::Inventory;
use crate::inventory::export_view::{LentBitmap, Shown};
use crate::inventory::exports::{NewExport, no_export};
use crate::inventory::fuse::NewFuseDoor;
use crate::inventory::vhost_user::{NewVhostDoor, VhostDoor};

/// Lets clients reach a node. QEMU's defaults: read-only, no bitmaps, no depths.
pub async fn add(
    inventory: &Rc<Inventory>,
    change: &Change<'_>,
    arguments: Arguments<'_>,
) -> Result<Value, QmpError> {
    if inventory.as_qemu {
        check_iothreads(inventory, arguments)?;
    }
    active::activate_for_export(inventory, change, arguments).await?;
    match arguments.text("type")? {
        "vhost-user-blk" => add_vhost_user_blk(inventory, arguments),
        "fuse" => add_fuse(inventory, arguments),
        "ublk" => add_ublk(inventory, arguments),
        _ => add_nbd(inventory, arguments).await,
    }
}

/// Refuses threads of that name that are not there, as QEMU does; the loops are the program's own in any case.
fn check_iothreads(inventory: &Inventory, arguments: Arguments<'_>) -> Result<(), QmpError> {
    let given = arguments.0.get("iothread");
    let ids =
        given.into_iter().flat_map(|given| given.as_array().map_or(std::slice::from_ref(given), |ids| ids));
    ids.filter_map(Value::as_str).try_for_each(|id| {
        let is_there = inventory.objects.find(id).is_ok_and(|object| object.kind.type_name() == "iothread");
        is_there.then_some(()).ok_or_else(|| QmpError::generic(format!("there is no iothread {id:?}")))
    })
}

/// QEMU's defaults, too: one queue, blocks of 512 bytes.
fn add_vhost_user_blk(inventory: &Inventory, arguments: Arguments<'_>) -> Result<Value, QmpError> {
    let (names, shown) = without_contexts(inventory, arguments)?;
    let missing = || QmpError::generic("argument 'addr.path' is missing");
    let socket = Endpoint::unix(arguments.maybe_object("addr").ok_or_else(missing)?)?;
    // The schema has their bounds.
    let door = NewVhostDoor {
        socket,
        queues: arguments.maybe_whole("num-queues").and_then(|n| u16::try_from(n).ok()).unwrap_or(1),
        logical_block_size: arguments
            .maybe_whole("logical-block-size")
            .map_or(512, |n| u32::try_from(n).unwrap_or(u32::MAX)),
        serial: arguments.maybe_text("serial").map(str::to_owned),
        merge: arguments.maybe_switch("request-merging").unwrap_or(true),
    };
    inventory.add_vhost_export(names, shown, door)?;
    inventory.accept_front_ends();
    Ok(json!({}))
}

/// Of an export whose clients ask for no metadata contexts: its id and its disk, which is there, and how it is shown.
fn without_contexts(
    inventory: &Inventory,
    arguments: Arguments<'_>,
) -> Result<((String, String), Shown), QmpError> {
    let (id, node) = (arguments.text("id")?.to_owned(), arguments.text("node-name")?.to_owned());
    // Not the id of another export.
    inventory.graph.disk(&node).map_err(|error| inventory.refused(&error))?;
    let shown = Shown {
        writable: arguments.is_on("writable"),
        bitmaps: Vec::new(),
        since: Vec::new(),
        allocation_depth: false,
        writethrough: arguments.is_on("writethrough"),
        allows_inactive: arguments.is_on("allow-inactive"),
    };
    Ok(((id, node), shown))
}

/// QEMU's defaults, too: the size is fixed, and other users may use the file if fuse.conf permits the option.
fn add_fuse(inventory: &Rc<Inventory>, arguments: Arguments<'_>) -> Result<Value, QmpError> {
    let (names, shown) = without_contexts(inventory, arguments)?;
    let door = NewFuseDoor {
        mountpoint: PathBuf::from(arguments.text("mountpoint")?),
        growable: arguments.is_on("growable"),
        allow_other: match arguments.maybe_text("allow-other") {
            Some("on") => AllowOther::On,
            Some("off") => AllowOther::Off,
            _ => AllowOther::Auto,
        },
    };
    inventory.add_fuse_export(names, shown, door)?;
    inventory.watch_mounts();
    Ok(json!({}))
}

/// Ours; as the others, read-only if nothing else is said.
fn add_ublk(inventory: &Rc<Inventory>, arguments: Arguments<'_>) -> Result<Value, QmpError> {
    let (names, shown) = without_contexts(inventory, arguments)?;
    // The schema has its bound.
    let number = arguments.maybe_whole("number").and_then(|number| u32::try_from(number).ok());
    inventory.add_ublk_export(names, shown, number.map_or(Number::Auto, Number::Given))?;
    inventory.watch_devices();
    Ok(json!({}))
}

async fn add_nbd(inventory: &Inventory, arguments: Arguments<'_>) -> Result<Value, QmpError> {
    if inventory.as_qemu && !inventory.doors.is_open() {
        return Err(QmpError::generic("the NBD server does not listen: start it first (nbd-server-start)"));
    }
    let node_name = arguments.text("node-name")?;
    // Not the id of another export.
    let disk = inventory.graph.disk(node_name).map_err(|error| inventory.refused(&error))?;
    let (mut bitmaps, mut lent) = (Vec::new(), Vec::new());
    for bitmap in arguments.list("bitmaps") {
        let name = bitmap.as_str().or_else(|| bitmap["name"].as_str()).unwrap_or_default().to_owned();
        let of = match bitmap["node"].as_str() {
            Some(node) => inventory.disk(node)?,
            None => Arc::clone(&disk),
        };
        let found = dirty_bitmaps::find(&of, &name)?;
        dirty_bitmaps::check_free_of_jobs(inventory, &of, &name)?;
        let is_read = !arguments.is_on("writable") && !disk.disk.read_only();
        if inventory.as_qemu && is_read && bitmap["node"].is_null() && found.is_recording() {
            return Err(QmpError::generic(format!(
                "bitmap {name:?} records changes, and clients of an export that is only read would see it change: disable it, or export a node that is read-only"
            )));
        }
        let (size, needed) = (found.size(), disk.disk.size());
        if size != needed {
            return Err(QmpError::generic(format!(
                "bitmap {name:?} is of a disk of {size} bytes; node {node_name:?} has {needed}"
            )));
        }
        if bitmaps.contains(&name) {
            return Err(QmpError::generic(format!("there are two bitmaps {name:?}: clients ask by name")));
        }
        if !Arc::ptr_eq(&of, &disk) {
            lent.push(LentBitmap { name: name.clone(), of });
        }
        bitmaps.push(name);
    }
    let mut since = Vec::new();
    for checkpoint in arguments.list("since").iter().filter_map(Value::as_str) {
        let found = checkpoints::since(inventory, &disk, checkpoint).await?;
        if bitmaps.contains(&found.bitmap) || since.contains(&found) {
            let bitmap = &found.bitmap;
            return Err(QmpError::generic(format!("there are two bitmaps {bitmap:?}: clients ask by name")));
        }
        since.push(found);
    }
    let shown = Shown {
        writable: arguments.is_on("writable"),
        bitmaps,
        since,
        allocation_depth: arguments.is_on("allocation-depth"),
        writethrough: arguments.is_on("writethrough"),
        allows_inactive: arguments.is_on("allow-inactive"),
    };
    inventory.add_export(NewExport {
        id: arguments.text("id")?.to_owned(),
        node: node_name.to_owned(),
        name: arguments.maybe_text("name").unwrap_or(node_name).to_owned(),
        description: arguments.maybe_text("description").unwrap_or_default().to_owned(),
        shown,
        lent,
    })?;
    Ok(json!({}))
}

/// nbd-server-add, the older form of block-export-add: the name is the id, too.
pub async fn add_older(
    inventory: &Inventory,
    change: &Change<'_>,
    arguments: Arguments<'_>,
) -> Result<Value, QmpError> {
    active::activate_for_export(inventory, change, arguments).await?;
    let device = arguments.text("device")?;
    let name = arguments.maybe_text("name").unwrap_or(device);
    let node = inventory.disk(device)?.name();
    let mut options = json!({
        "id": name,
        "node-name": node,
        "name": name,
        "writable": arguments.is_on("writable"),
        "description": arguments.maybe_text("description").unwrap_or_default(),
    });
    if let Some(bitmap) = arguments.maybe_text("bitmap") {
        options["bitmaps"] = json!([bitmap]);
    }
    match &options {
        Value::Object(options) => add_nbd(inventory, Arguments(options)).await,
        _ => Err(QmpError::generic("options are an object")),
    }
}

/// nbd-server-remove: an export of the NBD server, by its name.
pub fn del_older(inventory: &Rc<Inventory>, arguments: Arguments<'_>) -> Result<Value, QmpError> {
    let name = arguments.text("name")?;
    let exports = inventory.exports();
    let found = exports.iter().find(|export| export.is_nbd() && export.entry.name() == name);
    let found = found.ok_or_else(|| {
        QmpError::generic(format!("the NBD server has no export {name:?} (query-block-exports)"))
    })?;
    inventory.remove_export(&found.id, removal(arguments))?;
    Ok(json!({}))
}

fn removal(arguments: Arguments<'_>) -> Removal {
    match arguments.maybe_text("mode") {
        Some("hard") => Removal::Hard,
        _ => Removal::Safe,
    }
}

/// How long a client waits for the end of an export that no client uses any more: a later request for its file or device finds it gone.
const GONE_PATIENCE: Duration = Duration::from_millis(100);

/// Takes an export from its clients. As in QEMU one that nothing holds up is gone before the answer.
pub async fn del(
    inventory: &Rc<Inventory>,
    change: Change<'_>,
    arguments: Arguments<'_>,
) -> Result<Value, QmpError> {
    let id = arguments.text("id")?;
    let record = inventory.export(id);
    inventory.remove_export(id, removal(arguments))?;
    drop(change);
    if let Some(record) = record {
        reactor::within(GONE_PATIENCE, inventory.export_gone(&record)).await;
    }
    Ok(json!({}))
}

/// What [`query`] gives.
pub const JSON: &str = "\
Of each export:
  id, node-name, name     text
  type                    text: nbd, vhost-user-blk, fuse or ublk
  shutting-down           bool: it is being removed
  writable                bool
  connections             number of clients
  socket?, mountpoint?, device?  text: path, of vhost-user-blk, fuse and ublk";

/// All exports, each with its disk, or the filter of a job over that if a user named it. `connections`, `name`, `writable`, `socket`, `mountpoint` and `device` are ours.
///
/// # Errors
/// When an export is named that is none.
pub fn query(inventory: &Inventory, arguments: Arguments<'_>) -> Result<Answer, QmpError> {
    let find = |id| inventory.export(id).ok_or_else(|| no_export(id));
    let exports = match chosen::names(arguments) {
        Some(ids) => ids.map(find).collect::<Result<Vec<_>, _>>()?,
        None => inventory.exports(),
    };
    let filters = job_filters(inventory);
    let export = |record: &Rc<crate::inventory::exports::ExportRecord>| {
        let node = record.node_name();
        let node = filters.get(&node).map_or(node, |(filter, _)| filter.clone());
        let mut shown = json!({
            "id": record.id,
            "type": record.door.name(),
            "node-name": node,
            "shutting-down": record.shutting_down.get(),
            "name": record.entry.name(),
            "writable": !record.entry.disk().read_only(),
            "connections": record.entry.connections(),
        });
        if let Some(path) = record.vhost_door().and_then(VhostDoor::path) {
            shown["socket"] = json!(path.to_string_lossy());
        }
        if let Some(door) = record.fuse_door() {
            shown["mountpoint"] = json!(door.path().to_string_lossy());
        }
        if let Some(door) = record.ublk_door() {
            shown["device"] = json!(door.path().to_string_lossy());
        }
        shown
    };
    let mut list = List::default();
    exports.iter().for_each(|record| list.push(&export(record)));
    Ok(Answer::List(list))
}
