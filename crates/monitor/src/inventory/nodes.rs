//! The nodes, and their operations in the control socket's words: errors have QMP's classes, what happens to a node is an event.

use std::rc::Rc;
use std::sync::Arc;

use control::{Events, QmpError};
use graph::{Change, DiskNode, Graph, NodeError};
use serde_json::{Map, Value, json};

use crate::qmp::{bitmaps, corruption};
use crate::sandbox::Sandbox;

/// What commands and jobs work on.
pub struct Nodes {
    /// The nodes.
    pub graph: Graph,
    /// Clients that get events.
    pub events: Rc<Events>,
    /// What an error about a missing right is to mention.
    pub sandbox: Sandbox,
    /// Under a name of QEMU's: its callers are answered as by QEMU's daemon where ours would be answered otherwise (docs/reference/compat.md).
    pub as_qemu: bool,
}

/// What allows files.
const FILES: &str = "the sandbox lets files be opened and sockets be made only in directories given with --allow-path; give it at the start, or to a server that takes over from this one (docs/guide/upgrade.md), or --sandbox off";

/// Whether a file that `options` describe, or one below, has aio=native and goes through the page cache; `direct` is what it takes from the node above.
fn is_native_through_cache(options: &Map<String, Value>, direct: bool) -> bool {
    let own =
        options.get("cache").and_then(|cache| cache.get("direct")).or_else(|| options.get("cache.direct"));
    let direct = own.map_or(direct, |own| *own == Value::Bool(true) || own == "on");
    let is_native = options.get("aio").is_some_and(|aio| aio == "native");
    let mut below = options.values().filter_map(Value::as_object);
    is_native && !direct || below.any(|below| is_native_through_cache(below, direct))
}

impl Nodes {
    /// Adds what `options` describe; they fit the schema of blockdev-add.
    ///
    /// # Errors
    /// As [`graph::Graph::add`].
    pub async fn add_node(&self, change: &Change<'_>, options: &Map<String, Value>) -> Result<(), QmpError> {
        self.check_native(options)?;
        self.graph.add(change, options).await.map(drop).map_err(|error| self.refused(&error))
    }

    /// The same for a target of a job, whose name may be a generated one.
    ///
    /// # Errors
    /// As [`Nodes::add_node`].
    pub async fn add_target(
        &self,
        change: &Change<'_>,
        options: &Map<String, Value>,
    ) -> Result<(), QmpError> {
        self.check_native(options)?;
        self.graph.add_generated(change, options).await.map(drop).map_err(|error| self.refused(&error))
    }

    /// Takes a node away and closes what it opened. Gives what could not be written then, which is logged and sent as an event: the node is gone.
    ///
    /// # Errors
    /// As [`graph::Graph::remove`].
    pub async fn remove_node(&self, change: &Change<'_>, name: &str) -> Result<Option<QmpError>, QmpError> {
        self.tell_of(&self.graph.disks_under(name));
        let removed = self.graph.remove(change, name).await.map_err(|error| self.refused(&error))?;
        let not_written = removed.not_written.map(|error| self.refused(&error));
        if let Some(error) = &not_written {
            tracing::error!(node = name, %error, "a node is removed, and what it had not flushed is lost");
            self.tell_failed(name, "write", &error.desc);
        }
        Ok(not_written)
    }

    /// Under QEMU's names `aio=native` needs O_DIRECT, as there: a client learns from the error that the kernel would block.
    fn check_native(&self, options: &Map<String, Value>) -> Result<(), QmpError> {
        match self.as_qemu && is_native_through_cache(options, false) {
            true => Err(QmpError::generic("aio=native needs cache.direct=on; found: off")),
            false => Ok(()),
        }
    }

    /// Puts the options of blockdev-reopen in force.
    ///
    /// # Errors
    /// As [`graph::Graph::reopen`].
    pub async fn reopen_node(
        &self,
        change: &Change<'_>,
        options: &Map<String, Value>,
    ) -> Result<(), QmpError> {
        self.check_native(options)?;
        self.graph.reopen(change, options).await.map_err(|error| self.refused(&error))
    }

    /// Closes every disk, also after one has failed; logs all failures, returns the first.
    pub async fn close_all(&self) -> Result<(), QmpError> {
        let change = self.graph.change().await;
        self.tell_of(&self.graph.disks());
        let failed = self.graph.close_all(&change).await;
        let failed: Vec<_> = failed.iter().map(|error| self.refused(error)).collect();
        failed.iter().for_each(|error| tracing::error!("{error}"));
        failed.into_iter().next().map_or(Ok(()), Err)
    }

    /// The answer to a client for `error`.
    pub fn refused(&self, error: &NodeError) -> QmpError {
        let mut refused = self.hinted(QmpError::of(error));
        if let (true, NodeError::Unknown { name }) = (self.as_qemu, error) {
            // Proxmox and Incus know by QEMU's words that a node is gone already.
            refused.desc.push_str(&format!(" (Failed to find node with node-name='{name}')"));
        }
        refused
    }

    /// `error` with the option of the sandbox that allows what it was denied.
    pub fn hinted(&self, error: QmpError) -> QmpError {
        self.hinted_with(error, FILES)
    }

    /// `error` with `hint`, if the sandbox is on and an access was denied.
    pub fn hinted_with(&self, error: QmpError, hint: &str) -> QmpError {
        match self.sandbox {
            Sandbox::On => error.hinted_if_denied(hint),
            Sandbox::Off => error,
        }
    }

    /// Sends BLOCK_IO_ERROR for a node; `operation` is `read` or `write`.
    pub fn tell_failed(&self, node: &str, operation: &str, reason: &str) {
        let data = json!({
            // QEMU says the guest's device here; we do not know it.
            "qom-path": "",
            "device": node,
            "node-name": node,
            "operation": operation,
            "action": "report",
            "reason": reason,
        });
        self.events.emit("BLOCK_IO_ERROR", &data);
    }

    /// Emits the last events about bitmaps and corruption, for disks that are about to be closed.
    fn tell_of(&self, disks: &[Arc<DiskNode>]) {
        for disk in disks {
            bitmaps::tell(self, disk);
            corruption::report(self, disk);
        }
    }
}
