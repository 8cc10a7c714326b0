//! query-block, query-named-block-nodes: what is open.

use std::rc::Rc;

use image::options::{DetectZeroes, DiskOptions};
use qcow2::Layer;
use serde_json::{Map, Value, json};
use throttle::{Dialect, Flow, Limits, PARAMETERS, Setting};

use super::limits::limits_value;
use crate::serve::inventory::Inventory;
use crate::serve::inventory::disk_node::{DiskNode, driver, file_name};
use crate::serve::inventory::nodes::{Node, NodeKind};

/// Layers that are described one inside another; chains may be a thousand deep, and programs that read this recurse.
const LAYERS_SHOWN_MAX: usize = 32;

/// Every disk as a device.
pub fn devices(inventory: &Inventory) -> Value {
    let device = |node: &Rc<Node>| {
        let disk = node.disk().ok()?;
        Some(json!({
            "device": node.name,
            "qdev": node.name,
            "type": "unknown",
            "locked": false,
            "removable": false,
            "inserted": disk_value(&node.name, disk),
        }))
    };
    inventory.disks().iter().filter_map(device).collect()
}

/// Every node.
pub fn nodes(inventory: &Inventory) -> Value {
    inventory.nodes().iter().flat_map(|node| node_values(inventory, node)).collect()
}

fn node_values(inventory: &Inventory, node: &Rc<Node>) -> Vec<Value> {
    match &node.kind {
        NodeKind::Disk(disk) => {
            let mut values = vec![disk_value(&node.name, disk)];
            values.extend(node.parts.iter().map(|part| {
                let mut value = disk_value(part, disk);
                (value["drv"], value["part-of"]) = (json!("file"), json!(node.name));
                value
            }));
            values
        }
        NodeKind::Throttle { group, child } => {
            let Ok(disk_node) = inventory.disk_node(child) else { return Vec::new() };
            let Ok(disk) = disk_node.disk() else { return Vec::new() };
            let mut value = disk_value(&node.name, disk);
            value["drv"] = json!("throttle");
            value["throttle-group"] = json!(*group.borrow());
            value["child"] = json!(child);
            vec![value]
        }
        NodeKind::File(options) => vec![json!({
            "node-name": node.name,
            "drv": "file",
            "file": options.get("filename"),
            "ro": false,
            "encrypted": false,
            "detect_zeroes": "off",
            "backing_file_depth": 0,
            "write_threshold": 0,
            "cache": { "writeback": true, "direct": false, "no-flush": false },
        })],
    }
}

fn disk_value(name: &str, node: &DiskNode) -> Value {
    let layer = node.disk.layer();
    let options = node.options();
    let mut value = json!({
        "node-name": name,
        "drv": node.driver(),
        "file": node.path.to_string_lossy(),
        "ro": node.disk.read_only(),
        "encrypted": false,
        "detect_zeroes": options.as_ref().map_or("off", detect_zeroes),
        "backing_file_depth": depth(layer),
        "write_threshold": 0,
        "image": image_value(layer, 0),
    });
    if let (Some(object), Some(below)) = (value.as_object_mut(), backing(layer)) {
        object.insert("backing_file".to_owned(), json!(file_name(below)));
    }
    if let Some(options) = options {
        let mode = options.layer.cache;
        value["cache"] =
            json!({ "writeback": !mode.writethrough, "direct": mode.direct, "no-flush": mode.no_flush });
        value["discard"] = json!(match options.layer.discard {
            image::options::Discard::Ignore => "ignore",
            image::options::Discard::Unmap => "unmap",
        });
    }
    merge(&mut value, legacy_limits(&node.disk.limits()));
    if let Some(group) = node.disk.throttle_group().name() {
        value["group"] = json!(group);
    }
    value
}

/// The limits under the names that devices have them: the six averages always, the rest if set.
fn legacy_limits(limits: &Limits) -> Value {
    let always: Vec<&str> = Flow::ALL
        .into_iter()
        .map(|flow| throttle::Parameter::Rate(flow, throttle::Part::Average).name(Dialect::Legacy))
        .collect();
    let Value::Object(mut all) = limits_value(limits, Dialect::Legacy) else { return json!({}) };
    let set: Vec<&str> = PARAMETERS
        .iter()
        .filter(|names| {
            matches!(names.setting, Setting::Limit(parameter) if limits.options().get(parameter).is_some())
        })
        .map(|names| names.in_dialect(Dialect::Legacy))
        .collect();
    all.retain(|name, _| always.contains(&name.as_str()) || set.contains(&name.as_str()));
    Value::Object(all)
}

fn merge(into: &mut Value, from: Value) {
    if let (Some(into), Value::Object(from)) = (into.as_object_mut(), from) {
        into.extend(from);
    }
}

fn detect_zeroes(options: &DiskOptions) -> &'static str {
    match options.layer.detect_zeroes {
        DetectZeroes::Off => "off",
        DetectZeroes::On => "on",
        DetectZeroes::Unmap => "unmap",
    }
}

fn backing(layer: &Layer) -> Option<&Layer> {
    match layer {
        Layer::Qcow2(image) => image.backing(),
        Layer::Raw(_) => None,
    }
}

fn depth(layer: &Layer) -> usize {
    std::iter::successors(backing(layer), |layer| backing(layer)).count()
}

fn image_value(layer: &Layer, level: usize) -> Value {
    let mut image = Map::new();
    image.insert("filename".to_owned(), json!(file_name(layer)));
    image.insert("format".to_owned(), json!(driver(layer)));
    image.insert("virtual-size".to_owned(), json!(layer.size()));
    if let Layer::Qcow2(qcow2) = layer {
        image.insert("cluster-size".to_owned(), json!(qcow2.geometry().cluster_size()));
        image.insert("format-specific".to_owned(), format_specific(qcow2));
    }
    if let Some(below) = backing(layer)
        && level < LAYERS_SHOWN_MAX
    {
        image.insert("full-backing-filename".to_owned(), json!(file_name(below)));
        image.insert("backing-image".to_owned(), image_value(below, level + 1));
    }
    Value::Object(image)
}

/// What can be told without looking into the file.
fn format_specific(image: &qcow2::Qcow2) -> Value {
    let geometry = image.geometry();
    json!({
        "type": "qcow2",
        "data": {
            "refcount-bits": 1_u32 << geometry.refcount_order,
            "extended-l2": geometry.extended_l2,
            "corrupt": image.status().corrupt,
        },
    })
}
