//! blockdev-add, blockdev-del.

use std::rc::Rc;

use control::{Arguments, QmpError};
use serde_json::{Map, Value, json};

use crate::serve::inventory::Inventory;

/// Opens a disk, or puts a filter over one.
pub async fn add(inventory: &Rc<Inventory>, options: &Map<String, Value>) -> Result<Value, QmpError> {
    inventory.add_node(options).await?;
    Ok(json!({}))
}

/// Closes a disk, or takes a filter away.
pub async fn del(inventory: &Rc<Inventory>, arguments: Arguments<'_>) -> Result<Value, QmpError> {
    inventory.remove_node(arguments.text("node-name")?).await?;
    Ok(json!({}))
}
