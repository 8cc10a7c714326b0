//! query-block, query-named-block-nodes: what is open.

use std::collections::HashMap;
use std::sync::Arc;

use block::Block;
use control::{Answer, List, QmpError, arguments};
use graph::drivers::options_of_name;
use graph::options::{DetectZeroes, Discard};
use graph::{DiskNode, LayerView, Node, NodeKind, OpenedAs, raw_of};
use qcow2::Qcow2;
use serde_json::{Map, Value, json};
use throttle::{Dialect, Limits, Parameter, Part, Setting};
use tool::info::name::json_name;

use super::bitmaps;
use super::chosen::{self, Names, Nodes, object};
use super::dirty_bitmaps;
use super::image_info::{self, Images};
use super::job_maps;
use super::limits::limits_shown;
use super::snapshots::snapshot_value;
use crate::inventory::Inventory;
use crate::turns::Turn;

arguments! {
    /// Without what lies below, and of which nodes.
    pub struct Flat { flat: Option<bool>, ..chosen: Names }
}

/// Every disk as a device; `flat`: without backing images.
///
/// # Errors
/// When a disk is named that is none.
pub async fn devices(inventory: &Inventory, of: &Flat) -> Result<Answer, QmpError> {
    let (mut devices, mut turn) = (List::default(), Turn::begin());
    let images = Images::new(of.flat == Some(true), inventory.as_qemu, filtered_images(inventory));
    let filters = job_filters(inventory);
    for node in chosen::disks(inventory, &of.chosen)? {
        turn.pass().await;
        // It may be gone by now.
        let Some(node) = node.upgrade() else { continue };
        let mut inserted = disk_value(&images, &node.name(), &node, &snapshots(&node).await).await;
        add_bitmaps(inventory, &node, &mut inserted).await;
        if let Some((name, driver)) = filters.get(&node.name()) {
            (inserted["node-name"], inserted["drv"]) = (json!(name), json!(driver));
        }
        devices.push(&object([
            ("device", json!(node.name())),
            ("qdev", json!(node.name())),
            ("type", json!("unknown")),
            ("locked", json!(false)),
            ("removable", json!(false)),
            ("inserted", inserted),
        ]));
    }
    Ok(Answer::List(devices))
}

/// The filters of jobs that have names and are over a disk as a whole, and their drivers, by their disks.
pub(super) fn job_filters(inventory: &Inventory) -> HashMap<String, (String, &'static str)> {
    let nodes = inventory.graph.nodes();
    let of = |node: &Arc<Node>| match &node.kind {
        NodeKind::JobFilter { driver, disk, image: None, .. } => Some((disk.get(), (node.name(), *driver))),
        _ => None,
    };
    nodes.iter().filter_map(of).collect()
}

/// Backing files of disks that filters of jobs with names are over, each with the driver of its filter.
fn filtered_images(inventory: &Inventory) -> Vec<(Arc<dyn Block>, &'static str)> {
    let nodes = inventory.graph.nodes();
    let of = |node: &Arc<Node>| match &node.kind {
        NodeKind::JobFilter { driver, disk, image: Some(image), .. } => {
            Some((image_called(inventory, &disk.get(), image)?, *driver))
        }
        _ => None,
    };
    nodes.iter().filter_map(of).collect()
}

fn image_called(inventory: &Inventory, disk: &str, image: &str) -> Option<Arc<dyn Block>> {
    let layers = inventory.graph.layers(disk).ok()?;
    layers.into_iter().find(|layer| layer.name.as_deref() == Some(image)).map(|layer| layer.block)
}

/// Every node; `flat`: likewise.
///
/// # Errors
/// When a node is named that is none.
pub async fn nodes(inventory: &Inventory, of: &Flat) -> Result<Answer, QmpError> {
    let (mut list, mut turn) = (List::default(), Turn::begin());
    let images = Images::new(of.flat == Some(true), inventory.as_qemu, filtered_images(inventory));
    let nodes = Nodes::of(inventory, &of.chosen)?;
    // Each is looked up in all that there is: found in one look, since there may be thousands.
    let reaches = inventory.graph.write_reaches();
    for node in &nodes.all {
        turn.pass().await;
        // It may be gone by now.
        let Some(node) = node.upgrade() else { continue };
        let mut values = Vec::new();
        node_values(inventory, &images, &node, &mut values).await;
        values.retain(|value| value["node-name"].as_str().is_some_and(|name| nodes.has(name)));
        for mut value in values {
            let name = value["node-name"].as_str().unwrap_or_default();
            let whole = value["part-of"].as_str().unwrap_or(name);
            let disk = inventory.graph.disk(whole).ok();
            let reach = reaches.get(name);
            let below = || reaches.get(&disk.as_ref().filter(|_| whole == name)?.name());
            if let Some(reach) = reach.or_else(below) {
                value["write_threshold"] = json!(reach.threshold());
            }
            value["active"] = json!(disk.is_none_or(|disk| disk.disk.is_active()));
            list.push(&value);
        }
    }
    Ok(Answer::List(list))
}

/// The snapshots of a disk, as ImageInfo has them. None if the table cannot be read, which is logged.
async fn snapshots(node: &DiskNode) -> Value {
    let Some(image) = node.disk.image() else { return Value::Null };
    match image.snapshots().await {
        Ok(entries) => entries.iter().map(snapshot_value).collect(),
        Err(error) => {
            tracing::warn!("{error}");
            Value::Null
        }
    }
}

async fn node_values(inventory: &Inventory, images: &Images, node: &Node, values: &mut Vec<Value>) {
    match &node.kind {
        NodeKind::Disk(disk) => {
            let snapshots = snapshots(disk).await;
            let mut value = disk_value(images, &node.name(), disk, &snapshots).await;
            add_bitmaps(inventory, disk, &mut value).await;
            let layers = inventory.graph.layers(&node.name()).unwrap_or_default();
            match &node.filter {
                Some(filter) => {
                    value["children"] = children(filter.below());
                    tell_image_below(inventory, images, node, &mut value).await;
                }
                None => value["children"] = children_of(inventory, node, &layers, &node.name()),
            }
            values.push(value);
            let has_jobs = !inventory.jobs.all().is_empty();
            for part in node.parts() {
                let mut value = part_value(images, &part, disk, &layers).await;
                value["children"] = children_of(inventory, node, &layers, &part);
                value["part-of"] = json!(node.name());
                // A layer by itself is made into a disk: not for a thousand that have nothing to be shown.
                if (has_jobs || may_have_bitmaps(&layers, &part))
                    && let Ok(layer) = inventory.graph.disk(&part)
                {
                    add_dirty_bitmaps(inventory, &layer, &mut value).await;
                }
                values.push(value);
            }
        }
        NodeKind::Throttle { group, child } => {
            let Ok(disk) = inventory.graph.disk(&child.get()) else { return };
            let mut value = disk_value(images, &node.name(), &disk, &Value::Null).await;
            value["drv"] = json!("throttle");
            value["throttle-group"] = json!(*group.lock());
            value["children"] = children(vec![("file", child.get())]);
            values.push(value);
        }
        NodeKind::JobFilter { driver, disk: name, image, job } => {
            let Ok(disk) = inventory.graph.disk(&name.get()) else { return };
            let mut value = disk_value(images, &node.name(), &disk, &Value::Null).await;
            value["drv"] = json!(driver);
            value["children"] = match image {
                None => children(vec![("file", name.get())]),
                Some(image) => children(vec![("backing", image.clone())]),
            };
            if let Some(block) = image.as_ref().and_then(|image| image_called(inventory, &name.get(), image))
            {
                value["file"] = json!(block.name());
                merge(&mut value, images.chain(&block).await);
            }
            value["job"] = json!(job.name);
            let maps = job_maps::of_filter(inventory, &disk, &job.name);
            if !maps.is_empty() {
                value["dirty-bitmaps"] = Value::Array(maps);
            }
            values.push(value);
        }
        NodeKind::File(options) => {
            let mut value = image_info::bare_file(&node.name(), options);
            merge(&mut value, legacy_limits(&Limits::default()));
            values.push(value);
        }
        NodeKind::TakenOut => values.push(json!({ "node-name": node.name(), "drv": "closed", "ro": true })),
    }
}

/// Whether the image called `name` has bitmaps, if one of `layers` is called so.
fn may_have_bitmaps(layers: &[LayerView], name: &str) -> bool {
    let layer = layers.iter().find(|layer| layer.name.as_deref() == Some(name));
    let image = layer.and_then(|layer| layer.block.downcast_ref::<Qcow2>());
    image.is_some_and(|image| !image.bitmaps().is_empty() || !image.inconsistent_bitmaps().is_empty())
}

/// What is named below a disk and goes with it: an image of its chain, or a file of one.
async fn part_value(images: &Images, name: &str, node: &DiskNode, layers: &[LayerView]) -> Value {
    let mut value = disk_members(name, node);
    let image = layers.iter().find(|layer| layer.name.as_deref() == Some(name));
    let file = || layers.iter().find(|layer| layer.files.iter().any(|(_, file)| file == name));
    if let Some(layer) = image {
        let block = &*layer.block;
        value["drv"] = json!(block.driver());
        value["file"] = json!(block.name());
        value["ro"] = json!(block.capabilities().read_only);
        if let Some(opened) = layer.opened {
            merge(&mut value, opened_as(opened));
        }
        merge(&mut value, images.chain(&layer.block).await);
        return value;
    }
    value["drv"] = json!("file");
    value["backing_file_depth"] = json!(0);
    if let Some(layer) = file() {
        let (block, is_main) = (&*layer.block, layer.files.contains(&("file", name.to_owned())));
        let path = if is_main { block.name().to_owned() } else { name.to_owned() };
        value["ro"] = json!(block.capabilities().read_only);
        value["file"] = json!(path);
        let own = block.downcast_ref::<Qcow2>().map(Qcow2::file);
        let own = own.or_else(|| raw_of(block).map(|raw| &raw.storage)).filter(|_| is_main);
        let options = options_of_name(&path).unwrap_or_default();
        let driver = options.get("driver").and_then(Value::as_str).filter(|_| is_main).unwrap_or("file");
        value["drv"] = json!(driver);
        value["image"] = match own {
            Some(file) => image_info::of_file(driver, &**file, &path),
            None => json!({ "filename": path, "format": "file" }),
        };
    }
    value
}

/// Children as QEMU lists them.
fn children(below: Vec<(&'static str, String)>) -> Value {
    below.into_iter().map(|(role, name)| json!({ "child": role, "node-name": name })).collect()
}

/// The files of the image called `name`, and its backing image, as far as they are nodes.
fn children_of(inventory: &Inventory, node: &Node, layers: &[LayerView], name: &str) -> Value {
    let parts = node.parts();
    let is_node = |name: &String| parts.contains(name) || inventory.graph.node(name).is_ok();
    let mut images = layers.iter().filter(|layer| !layer.is_filter);
    let image = match parts.iter().any(|part| part == name) {
        true => images.find(|layer| layer.name.as_deref() == Some(name)),
        false => images.next(),
    };
    let files = image.map(|image| image.files.clone()).unwrap_or_default();
    let backing = image.and(images.next()).and_then(|below| below.name.clone());
    let below = backing.map(|name| ("backing", name)).into_iter().chain(files);
    children(below.filter(|(_, name)| is_node(name)).collect())
}

/// A filter is described by the image of its main disk.
async fn tell_image_below(inventory: &Inventory, images: &Images, filter: &Node, value: &mut Value) {
    let first = |filter: &graph::FilterNode| inventory.graph.node(&filter.below().first()?.1).ok();
    let mut below = filter.filter.as_ref().and_then(first);
    while let Some(next) = below.as_ref().and_then(|node| first(node.filter.as_ref()?)) {
        below = Some(next);
    }
    let Some(disk) = below.and_then(|node| inventory.graph.disk(&node.name()).ok()) else { return };
    let reported = disk_value(images, &disk.name(), &disk, &Value::Null).await;
    if let Some(object) = value.as_object_mut() {
        object.remove("backing_file");
        let names = ["image", "backing_file_depth", "backing_file"];
        object.extend(
            names.into_iter().filter_map(|name| Some((name.to_owned(), reported.get(name)?.clone()))),
        );
    }
}

/// The bitmaps as QEMU reports them: no member if there are none.
async fn add_dirty_bitmaps(inventory: &Inventory, node: &Arc<DiskNode>, value: &mut Value) {
    let infos = dirty_bitmaps::infos(inventory, node).await;
    if !infos.is_empty() {
        value["dirty-bitmaps"] = Value::Array(infos);
    }
}

/// The bitmaps of a disk, and the file that they are in, if it is another one.
async fn add_bitmaps(inventory: &Inventory, node: &Arc<DiskNode>, value: &mut Value) {
    add_dirty_bitmaps(inventory, node, value).await;
    if node.disk.image().is_none()
        && let Some(image) = node.disk.bitmap_image()
    {
        value["x-bitmaps-file"] = json!(image.file().name());
    }
}

async fn disk_value(images: &Images, name: &str, node: &DiskNode, snapshots: &Value) -> Value {
    let mut value = disk_members(name, node);
    merge(&mut value, images.chain(&node.disk.top_image()).await);
    if snapshots.as_array().is_some_and(|snapshots| !snapshots.is_empty()) {
        value["image"]["snapshots"] = snapshots.clone();
    }
    // The description of an image has its own.
    let beside = node.disk.bitmap_image().filter(|_| node.disk.image().is_none());
    let bitmaps = beside.map_or_else(|| json!([]), |image| bitmaps::values_of(&image));
    if bitmaps.as_array().is_some_and(|bitmaps| !bitmaps.is_empty()) {
        value["image"]["format-specific"]["data"]["bitmaps"] = bitmaps;
    }
    if let Some(options) = node.options()
        && let Some(file) = options.layer.file.beyond_name()
    {
        let name = json_name(Map::from_iter([
            ("driver".into(), json!(node.driver())),
            ("file".into(), file.into()),
        ]));
        value["image"]["filename"] = json!(name);
        value["file"] = json!(name);
    }
    value
}

/// What is said of a disk, and of all that is part of it, but for the images.
fn disk_members(name: &str, node: &DiskNode) -> Value {
    let mut value = Value::Object(object([
        ("node-name", json!(name)),
        ("drv", json!(node.driver())),
        ("file", json!(node.path().to_string_lossy())),
        ("ro", json!(node.disk.read_only())),
        ("encrypted", json!(false)),
        ("detect_zeroes", json!("off")),
        ("write_threshold", json!(0)),
    ]));
    if let Some(options) = node.options() {
        merge(&mut value, opened_as(OpenedAs::of(&options.layer)));
    }
    merge(&mut value, legacy_limits(&node.disk.limits()));
    if let Some(group) = node.disk.throttle_group().name() {
        value["group"] = json!(group);
    }
    value
}

/// The limits under the names that devices have them: the six averages always, the rest if set.
fn legacy_limits(limits: &Limits) -> Value {
    let options = limits.options();
    let is_shown = |setting| match setting {
        Setting::Limit(Parameter::Rate(_, Part::Average)) => true,
        Setting::Limit(parameter) => options.get(parameter).is_some(),
        _ => false,
    };
    limits_shown(limits, Dialect::Legacy, is_shown)
}

fn merge(into: &mut Value, from: Value) {
    if let (Some(into), Value::Object(from)) = (into.as_object_mut(), from) {
        into.extend(from);
    }
}

/// How an image is opened, as QEMU reports it.
fn opened_as(opened: OpenedAs) -> Value {
    let OpenedAs { cache, discard, detect_zeroes } = opened;
    json!({
        "cache": { "writeback": !cache.writethrough, "direct": cache.direct, "no-flush": cache.no_flush },
        "discard": match discard {
            Discard::Ignore => "ignore",
            Discard::Unmap => "unmap",
        },
        "detect_zeroes": match detect_zeroes {
            DetectZeroes::Off => "off",
            DetectZeroes::On => "on",
            DetectZeroes::Unmap => "unmap",
        },
    })
}
