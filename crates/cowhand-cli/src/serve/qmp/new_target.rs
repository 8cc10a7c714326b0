//! The target of drive-mirror and drive-backup: a file that is made or opened, and a node for it.

use std::rc::Rc;

use control::{Arguments, QmpError};
use graph::Change;
use serde_json::{Value, json};

use super::chain::Chain;
use super::overlay::make_overlay;
use crate::serve::inventory::Inventory;
use crate::serve::jobs::file_name;

/// Adds a node for the file `target`, which is made unless `mode` is `existing`, and has `begin` work with it. A failure leaves neither. With
/// sync `none` the file is an overlay of the layer `none_stands_on` of the source.
///
/// # Errors
/// When the file cannot be made or opened; what `begin` says.
pub async fn with(
    inventory: &Rc<Inventory>,
    change: &Change<'_>,
    arguments: Arguments<'_>,
    none_stands_on: usize,
    begin: impl AsyncFnOnce(&str) -> Result<Value, QmpError>,
) -> Result<Value, QmpError> {
    let device = arguments.text("device")?;
    let Chain { disk, layers } = Chain::of(inventory, device)?;
    let (file, sync) = (arguments.text("target")?, arguments.text("sync")?);
    let format = arguments.maybe_text("format").unwrap_or("qcow2");
    let is_made = arguments.maybe_text("mode") != Some("existing");
    if is_made {
        if format != "qcow2" {
            return Err(QmpError::generic(format!(
                "a new target of format {format:?} is not made here; make it, and give mode existing"
            )));
        }
        let below = match sync {
            "top" => layers.get(1),
            "none" => layers.get(none_stands_on),
            _ => None,
        };
        let below = below.map(|layer| &layer.block);
        let backing = below.map(|below| (file_name(&**below), below.driver().to_owned()));
        make_overlay(file, disk.disk.size(), backing).await?;
    }
    let name = arguments
        .maybe_text("node-name")
        .map_or_else(|| format!("target-{}", disk.name().replace('#', "")), str::to_owned);
    let mut options = json!({
        "driver": format,
        "node-name": name,
        "discard": "unmap",
        "file": { "driver": "file", "filename": file },
    });
    if format == "qcow2" && sync != "full" {
        options["backing"] = Value::Null;
    }
    let begun = async {
        let Value::Object(options) = options else { return Err(QmpError::generic("options are an object")) };
        inventory.add_node(change, &options).await?;
        let begun = begin(&name).await;
        if begun.is_err() {
            inventory.remove_node(change, &name).await?;
        }
        begun
    };
    let begun = begun.await;
    if begun.is_err()
        && is_made
        && let Err(error) = std::fs::remove_file(file)
    {
        tracing::warn!(file, %error, "a target that was made for nothing stays");
    }
    begun
}
