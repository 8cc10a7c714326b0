//! block-export-add, block-export-del, query-block-exports.

use std::rc::Rc;

use control::{Arguments, QmpError};
use export::Removal;
use serde_json::{Value, json};

use crate::serve::inventory::Inventory;
use crate::serve::inventory::export_view::Shown;
use crate::serve::inventory::exports::NewExport;

/// Lets clients reach a node. QEMU's defaults: read-only, no bitmaps, no depths.
pub fn add(inventory: &Inventory, arguments: Arguments<'_>) -> Result<Value, QmpError> {
    let node_name = arguments.text("node-name")?;
    // Not the id of another export.
    let disk = inventory.graph.disk(node_name).map_err(|error| inventory.refused(&error))?;
    let known = disk.disk.bitmap_names();
    let mut bitmaps = Vec::new();
    for bitmap in arguments.list("bitmaps") {
        let name = bitmap.as_str().or_else(|| bitmap["name"].as_str()).unwrap_or_default();
        if !known.iter().any(|known| known == name) {
            return Err(QmpError::generic(format!("node {node_name:?} has no bitmap {name:?}")));
        }
        bitmaps.push(name.to_owned());
    }
    let shown = Shown {
        writable: arguments.is_on("writable"),
        bitmaps,
        allocation_depth: arguments.is_on("allocation-depth"),
        writethrough: arguments.is_on("writethrough"),
    };
    inventory.add_export(NewExport {
        id: arguments.text("id")?.to_owned(),
        node: node_name.to_owned(),
        name: arguments.maybe_text("name").unwrap_or(node_name).to_owned(),
        description: arguments.maybe_text("description").unwrap_or_default().to_owned(),
        shown,
    })?;
    Ok(json!({}))
}

/// Takes an export from its clients.
pub fn del(inventory: &Rc<Inventory>, arguments: Arguments<'_>) -> Result<Value, QmpError> {
    let how = match arguments.maybe_text("mode") {
        Some("hard") => Removal::Hard,
        _ => Removal::Safe,
    };
    inventory.remove_export(arguments.text("id")?, how)?;
    Ok(json!({}))
}

/// All exports. `connections` and `name` are ours.
pub fn query(inventory: &Inventory) -> Value {
    let export = |record: &Rc<crate::serve::inventory::exports::ExportRecord>| {
        json!({
            "id": record.id,
            "type": "nbd",
            "node-name": record.node_name(),
            "shutting-down": record.shutting_down.get(),
            "name": record.entry.name(),
            "writable": !record.entry.disk().read_only(),
            "connections": record.entry.connections(),
        })
    };
    inventory.exports().iter().map(export).collect()
}
