//! Exports: nodes that NBD clients can reach.

use std::cell::Cell;
use std::rc::Rc;
use std::sync::Arc;

use control::QmpError;
use door_nbd::{ExportEntry, NotRemoved, Removal};
use serde_json::json;

use super::Inventory;
use super::export_view::{ExportView, Shown};
use super::nodes::Node;
use crate::serve::exports::check_name;

/// An export, and what it shows.
#[derive(Debug)]
pub struct ExportRecord {
    /// What it is called here.
    pub id: String,
    /// The node that was asked for.
    pub node: String,
    /// The node of the disk itself, if the one asked for is a filter.
    pub disk_node: Rc<Node>,
    /// What clients call it, and what they do with it.
    pub entry: Arc<ExportEntry>,
    /// Clients are on their way out.
    pub shutting_down: Cell<bool>,
}

/// An export to be.
#[derive(Debug)]
pub struct NewExport {
    /// What it is called here.
    pub id: String,
    /// What is exported.
    pub node: Rc<Node>,
    /// What clients call it.
    pub name: String,
    /// For people.
    pub description: String,
    /// What clients may see and do.
    pub shown: Shown,
}

impl Inventory {
    /// Lets clients reach a disk.
    ///
    /// # Errors
    /// When the id or the name is in use, or the name cannot be one.
    pub fn add_export(&self, export: NewExport) -> Result<(), QmpError> {
        let NewExport { id, node, name, description, shown } = export;
        if self.export(&id).is_some() {
            return Err(QmpError::generic(format!("there is an export with id {id:?} already")));
        }
        check_name(&name).map_err(|failure| QmpError::generic(failure.to_string()))?;
        let disk_node = self.disk_node(&node.name)?;
        let disk = Arc::clone(&disk_node.disk()?.disk);
        if shown.writable && disk.read_only() {
            return Err(QmpError::generic(format!(
                "node {:?} is read-only and cannot be exported writable",
                node.name
            )));
        }
        let view = Arc::new(ExportView::new(disk, shown));
        let added = self.server.exports().add(name, description, view);
        let entry = added.map_err(|error| QmpError::generic(error.to_string()))?;
        let shutting_down = Cell::new(false);
        let record = ExportRecord { id, node: node.name.clone(), disk_node, entry, shutting_down };
        self.exports.borrow_mut().push(Rc::new(record));
        Ok(())
    }

    /// Takes an export from its clients. It is gone, and the event sent, when the last request of the last client has
    /// ended; until then it is shutting down.
    ///
    /// # Errors
    /// When there is none of that id; with [`Removal::Safe`], when clients use it.
    pub fn remove_export(self: &Rc<Self>, id: &str, how: Removal) -> Result<(), QmpError> {
        let record =
            self.export(id).ok_or_else(|| QmpError::generic(format!("there is no export with id {id:?}")))?;
        if record.shutting_down.get() {
            return Err(QmpError::generic(format!("export {id:?} is shutting down already")));
        }
        match self.server.exports().remove(record.entry.name(), how) {
            Ok(_) => {}
            Err(error @ NotRemoved::InUse { .. }) => {
                let text = format!("{error}; mode hard disconnects them");
                return Err(QmpError::generic(text));
            }
            Err(error) => return Err(QmpError::generic(error.to_string())),
        }
        record.shutting_down.set(true);
        if record.entry.connections() == 0 {
            self.forget_export(&record);
            return Ok(());
        }
        let inventory = Rc::clone(self);
        reactor::spawn(async move {
            record.entry.unused().await;
            inventory.forget_export(&record);
        })
        .detach();
        Ok(())
    }

    fn forget_export(&self, record: &Rc<ExportRecord>) {
        self.exports.borrow_mut().retain(|other| !Rc::ptr_eq(other, record));
        self.events.emit("BLOCK_EXPORT_DELETED", &json!({ "id": record.id }));
    }

    /// The export called `id` here.
    pub fn export(&self, id: &str) -> Option<Rc<ExportRecord>> {
        self.exports.borrow().iter().find(|record| record.id == id).cloned()
    }

    /// All exports, in the order of their making.
    pub fn exports(&self) -> Vec<Rc<ExportRecord>> {
        self.exports.borrow().clone()
    }
}
