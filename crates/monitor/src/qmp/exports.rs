//! block-export-add, block-export-del, query-block-exports.

use std::path::PathBuf;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use control::{Answer, Kind, List, Members, QmpError, Takes, Variant, arguments, choice, optional, variants};
use door_fuse::mount::AllowOther;
use door_ublk::Number;
use export::Removal;
use graph::Change;
use serde_json::json;

use super::active;
use super::chosen::Names;
use super::dirty_bitmaps::Named;
use super::query::job_filters;
use super::{checkpoints, dirty_bitmaps};
use crate::endpoint::{Endpoint, UnixAddress};
use crate::inventory::Inventory;
use crate::inventory::export_view::{LentBitmap, Shown};
use crate::inventory::exports::{NewExport, no_export};
use crate::inventory::fuse::NewFuseDoor;
use crate::inventory::vhost_user::{NewVhostDoor, VhostDoor};

arguments! {
    /// How clients reach a node.
    pub struct Add {
        id: String, node_name: String, writable: Option<bool>, writethrough: Option<bool>,
        iothread: Option<Threads>, "fixed-iothread": Option<bool>, allow_inactive: Option<bool>,
    } with r#type: Door

    /// Over NBD. Ours: checkpoints from which clients may ask what differs.
    #[derive(Default)]
    pub struct Nbd {
        name: Option<String>, description: Option<String>, bitmaps: Option<Vec<Named>>,
        allocation_depth: Option<bool>, since: Option<Vec<String>>,
    }

    /// To virtual machines.
    pub struct VhostUserBlk {
        addr: Socket, logical_block_size: Option<u32> = Kind::Whole(32768),
        num_queues: Option<u16> = Kind::Whole(door_vhost_user_blk::limits::QUEUES_MAX as u64),
        serial: Option<String>, request_merging: Option<bool>,
    }

    /// As a file.
    pub struct Fuse { mountpoint: String, growable: Option<bool>, allow_other: Option<Others> }

    /// As a block device.
    pub struct Ublk { number: Option<u32> = Kind::Whole(door_ublk::limits::NUMBER_MAX as u64) }

    /// The older form, of NBD alone: the name is the id, too.
    pub struct AddOlder {
        device: String, name: Option<String>, description: Option<String>, writable: Option<bool>,
        bitmap: Option<String>,
    }

    /// The export that goes.
    pub struct Del { id: String, mode: Option<Mode> }

    /// Likewise, by its name.
    pub struct DelOlder { name: String, mode: Option<Mode> }
}

variants! {
    /// By which way clients come.
    pub enum Door by "type" { Nbd(Nbd), VhostUserBlk(VhostUserBlk), Fuse(Fuse), Ublk(Ublk) }

    /// Where virtual machines connect.
    pub enum Socket by "type" { Unix(UnixAddress) }
}

choice! {
    /// Whether clients are asked.
    pub enum Mode { Safe, Hard }

    /// Whether other users may use the file.
    pub enum Others { On, Off, Auto }
}

/// Threads of an export.
#[derive(serde::Deserialize)]
#[serde(untagged)]
pub enum Threads {
    /// One.
    One(String),
    /// Some.
    All(Vec<String>),
}

impl Takes for Threads {
    const KIND: Kind = Kind::Either(&[&Kind::Text, &Kind::List(&Kind::Text)]);
}

/// How forks are exported: what block-export-add describes, without what follows from the name of each.
pub static SERVE: Kind = Kind::Union {
    tag: "type",
    common: &[optional("writable", Kind::Switch), optional("writethrough", Kind::Switch)],
    variants: &[
        Variant {
            tag: "nbd",
            members: &[
                optional("allocation-depth", Kind::Switch),
                optional("since", Kind::List(&Kind::Text)),
            ],
        },
        Variant { tag: "vhost-user-blk", members: VhostUserBlk::MEMBERS },
        Variant { tag: "ublk", members: &[] },
    ],
};

/// Lets clients reach a node. QEMU's defaults: read-only, no bitmaps, no depths.
pub async fn add(inventory: &Rc<Inventory>, change: &Change<'_>, given: &Add) -> Result<(), QmpError> {
    if inventory.as_qemu {
        check_iothreads(inventory, given.iothread.as_ref())?;
    }
    let allows_inactive = given.allow_inactive == Some(true);
    active::activate_for_export(inventory, change, (&given.node_name, allows_inactive)).await?;
    match &given.r#type {
        Door::Nbd(nbd) => {
            let names = (&given.id, &given.node_name, nbd.name.as_ref().unwrap_or(&given.node_name));
            add_nbd(inventory, names, shown(given), nbd).await
        }
        Door::VhostUserBlk(vhost) => add_vhost_user_blk(inventory, given, vhost),
        Door::Fuse(fuse) => add_fuse(inventory, given, fuse),
        Door::Ublk(ublk) => add_ublk(inventory, given, ublk),
    }
}

/// Refuses threads of that name that are not there, as QEMU does; the loops are the program's own in any case.
fn check_iothreads(inventory: &Inventory, given: Option<&Threads>) -> Result<(), QmpError> {
    let ids = match given {
        None => &[],
        Some(Threads::One(id)) => std::slice::from_ref(id),
        Some(Threads::All(ids)) => ids.as_slice(),
    };
    ids.iter().try_for_each(|id| {
        let is_there = inventory.objects.find(id).is_ok_and(|object| object.kind.type_name() == "iothread");
        is_there.then_some(()).ok_or_else(|| QmpError::generic(format!("there is no iothread {id:?}")))
    })
}

/// QEMU's defaults, too: one queue, blocks of 512 bytes.
fn add_vhost_user_blk(inventory: &Inventory, given: &Add, vhost: &VhostUserBlk) -> Result<(), QmpError> {
    let (names, shown) = without_contexts(inventory, given)?;
    let Socket::Unix(address) = &vhost.addr;
    let door = NewVhostDoor {
        socket: Endpoint::unix(address)?,
        queues: vhost.num_queues.unwrap_or(1),
        logical_block_size: vhost.logical_block_size.unwrap_or(512),
        serial: vhost.serial.clone(),
        merge: vhost.request_merging.unwrap_or(true),
    };
    inventory.add_vhost_export(names, shown, door)?;
    inventory.accept_front_ends();
    Ok(())
}

/// Of an export whose clients ask for no metadata contexts: its id and its disk, which is there, and how it is shown.
fn without_contexts(inventory: &Inventory, given: &Add) -> Result<((String, String), Shown), QmpError> {
    let (id, node) = (given.id.clone(), given.node_name.clone());
    // Not the id of another export.
    inventory.graph.disk(&node).map_err(|error| inventory.refused(&error))?;
    Ok(((id, node), shown(given)))
}

fn shown(given: &Add) -> Shown {
    Shown {
        writable: given.writable == Some(true),
        writethrough: given.writethrough == Some(true),
        allows_inactive: given.allow_inactive == Some(true),
        ..Shown::default()
    }
}

/// QEMU's defaults, too: the size is fixed, and other users may use the file if fuse.conf permits the option.
fn add_fuse(inventory: &Rc<Inventory>, given: &Add, fuse: &Fuse) -> Result<(), QmpError> {
    let (names, shown) = without_contexts(inventory, given)?;
    let door = NewFuseDoor {
        mountpoint: PathBuf::from(&fuse.mountpoint),
        growable: fuse.growable == Some(true),
        allow_other: match fuse.allow_other {
            Some(Others::On) => AllowOther::On,
            Some(Others::Off) => AllowOther::Off,
            Some(Others::Auto) | None => AllowOther::Auto,
        },
    };
    inventory.add_fuse_export(names, shown, door)?;
    inventory.watch_mounts();
    Ok(())
}

/// Ours; as the others, read-only if nothing else is said.
fn add_ublk(inventory: &Rc<Inventory>, given: &Add, ublk: &Ublk) -> Result<(), QmpError> {
    let (names, shown) = without_contexts(inventory, given)?;
    inventory.add_ublk_export(names, shown, ublk.number.map_or(Number::Auto, Number::Given))?;
    inventory.watch_devices();
    Ok(())
}

/// With the id of the export, the node, and what clients call it.
async fn add_nbd(
    inventory: &Inventory,
    (id, node_name, name): (&String, &String, &String),
    mut shown: Shown,
    nbd: &Nbd,
) -> Result<(), QmpError> {
    if inventory.as_qemu && !inventory.doors.is_open() {
        return Err(QmpError::generic("the NBD server does not listen: start it first (nbd-server-start)"));
    }
    // Not the id of another export.
    let disk = inventory.graph.disk(node_name).map_err(|error| inventory.refused(&error))?;
    let (mut bitmaps, mut lent) = (Vec::new(), Vec::new());
    for (node, name) in nbd.bitmaps.iter().flatten().map(Named::parts) {
        let name = name.to_owned();
        let of = node.map_or_else(|| Ok(Arc::clone(&disk)), |node| inventory.disk(node))?;
        let found = dirty_bitmaps::find(&of, &name)?;
        dirty_bitmaps::check_free_of_jobs(inventory, &of, &name)?;
        let is_read = !shown.writable && !disk.disk.read_only();
        if inventory.as_qemu && is_read && node.is_none() && found.is_recording() {
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
    for checkpoint in nbd.since.iter().flatten() {
        let found = checkpoints::since(inventory, &disk, checkpoint).await?;
        if bitmaps.contains(&found.bitmap) || since.contains(&found) {
            let bitmap = &found.bitmap;
            return Err(QmpError::generic(format!("there are two bitmaps {bitmap:?}: clients ask by name")));
        }
        since.push(found);
    }
    (shown.bitmaps, shown.since, shown.allocation_depth) =
        (bitmaps, since, nbd.allocation_depth == Some(true));
    inventory.add_export(NewExport {
        id: id.clone(),
        node: node_name.clone(),
        name: name.clone(),
        description: nbd.description.clone().unwrap_or_default(),
        shown,
        lent,
    })
}

/// nbd-server-add, the older form of block-export-add: the name is the id, too.
pub async fn add_older(inventory: &Inventory, change: &Change<'_>, given: &AddOlder) -> Result<(), QmpError> {
    let device = &given.device;
    active::activate_for_export(inventory, change, (device, false)).await?;
    let name = given.name.as_ref().unwrap_or(device);
    let nbd = Nbd {
        description: given.description.clone(),
        bitmaps: given.bitmap.clone().map(|bitmap| vec![Named::Here(bitmap)]),
        ..Nbd::default()
    };
    let shown = Shown { writable: given.writable == Some(true), ..Shown::default() };
    add_nbd(inventory, (name, &inventory.disk(device)?.name(), name), shown, &nbd).await
}

/// nbd-server-remove: an export of the NBD server, by its name.
pub fn del_older(inventory: &Rc<Inventory>, DelOlder { name, mode }: &DelOlder) -> Result<(), QmpError> {
    let exports = inventory.exports();
    let found = exports.iter().find(|export| export.is_nbd() && export.entry.name() == name);
    let found = found.ok_or_else(|| {
        QmpError::generic(format!("the NBD server has no export {name:?} (query-block-exports)"))
    })?;
    inventory.remove_export(&found.id, removal(*mode))
}

fn removal(mode: Option<Mode>) -> Removal {
    match mode {
        Some(Mode::Hard) => Removal::Hard,
        Some(Mode::Safe) | None => Removal::Safe,
    }
}

/// How long a client waits for the end of an export that no client uses any more: a later request for its file or device finds it gone.
const GONE_PATIENCE: Duration = Duration::from_millis(100);

/// Takes an export from its clients. As in QEMU one that nothing holds up is gone before the answer.
pub async fn del(
    inventory: &Rc<Inventory>,
    change: Change<'_>,
    Del { id, mode }: &Del,
) -> Result<(), QmpError> {
    let record = inventory.export(id);
    inventory.remove_export(id, removal(*mode))?;
    drop(change);
    if let Some(record) = record {
        reactor::within(GONE_PATIENCE, inventory.export_gone(&record)).await;
    }
    Ok(())
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
pub fn query(inventory: &Inventory, Names { names }: &Names) -> Result<Answer, QmpError> {
    let find = |id: &String| inventory.export(id).ok_or_else(|| no_export(id));
    let exports = match names {
        Some(ids) => ids.iter().map(find).collect::<Result<Vec<_>, _>>()?,
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
