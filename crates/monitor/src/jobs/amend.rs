//! What x-blockdev-amend does: keys of an encrypted disk are added and removed while it is used.

use std::sync::Arc;

use control::{Arguments, QmpError};
use graph::OnLoop;
use graph::{DiskNode, Secrets};
use job::{Error, Life};
use luks::unlock;
use serde_json::{Map, Value};
use tool::amend::keys::{Change, ENCRYPT, KeyOptions};

use super::failed::Failed;
use crate::inventory::nodes::Nodes;

/// A change of a disk's key slots.
pub struct Amendment {
    disk: Arc<DiskNode>,
    change: Option<Change>,
    /// The password that opens the disk, if it is not the one that it was opened with.
    secret: Option<String>,
    forced: bool,
}

impl Amendment {
    /// What `options` (x-blockdev-amend's) ask for, of `disk`; the last key is removed only if that is `forced`.
    ///
    /// # Errors
    /// When parts are missing, or contradict each other.
    pub fn new(disk: Arc<DiskNode>, options: &Map<String, Value>, forced: bool) -> Result<Self, QmpError> {
        let is_qcow2 = options.get("driver").is_some_and(|driver| driver == "qcow2");
        let (keys, prefix) = match is_qcow2 {
            true => (options.get("encrypt").and_then(Value::as_object), ENCRYPT),
            false => (Some(options), ""),
        };
        let (mut change, mut secret) = (None, None);
        if let Some(keys) = keys {
            let keys = Arguments(keys);
            let text = |name: &str| keys.maybe_text(name).map(str::to_owned);
            let whole = |name: &str| keys.maybe_whole(name);
            let iter_time_ms = match whole("iter-time") {
                Some(ms) => Some(u32::try_from(ms).ok().filter(|ms| *ms > 0).ok_or_else(|| {
                    let allowed = format!("allowed: 1 to {}", u32::MAX);
                    QmpError::generic(format!("argument 'iter-time' is {ms} milliseconds; {allowed}"))
                })?),
                None => None,
            };
            let wanted = KeyOptions {
                active: Some(keys.text("state")? == "active"),
                new_secret: text("new-secret"),
                old_secret: text("old-secret"),
                slot: whole("keyslot").map(|slot| usize::try_from(slot).unwrap_or(usize::MAX)),
                iter_time_ms,
            };
            let read = wanted.change(prefix);
            change = read.map_err(|error| QmpError::generic(error.0.trim_start_matches("-o ")))?;
            secret = text("secret");
        }
        Ok(Self { disk, change, secret, forced })
    }

    /// Makes the change; it is durable afterwards. A job that is cancelled meanwhile ends when it is made, and not before.
    ///
    /// # After a crash
    /// The old key slots or the new ones.
    pub(super) async fn run(&self, nodes: &Nodes, life: &Life) -> Result<(), Failed> {
        life.set_progress(0, 1);
        let made = self.make(nodes).await;
        life.set_progress(1, 1);
        made.map_err(|error| Failed::Because(nodes.hinted(error).desc))?;
        match life.is_given_up() {
            true => Err(Error::Cancelled.into()),
            false => Ok(()),
        }
    }

    async fn make(&self, nodes: &Nodes) -> Result<(), QmpError> {
        let Some(wanted) = &self.change else { return Ok(()) };
        let failed = |error: &(dyn std::error::Error + 'static)| {
            QmpError::because(format!("cannot change the keys of {}", self.disk.name()), error)
        };
        // The disk stays on this image, and no other command changes its keys.
        let _change = nodes.graph.change().await;
        let slots = self.disk.key_slots().await.map_err(|error| failed(&error))?;
        let id = self.secret.as_deref().or(slots.key_secret.as_deref());
        let password = Secrets::default().password(slots.file.name(), id).map_err(|error| failed(&error))?;
        let password = password.ok_or_else(|| QmpError::generic("argument 'secret' is missing"))?;
        // Keys are changed only with a password that opens the disk.
        unlock(&*slots.file, slots.area, &password, &OnLoop).await.map_err(|error| failed(&error))?;
        wanted.make(&*slots.file, slots.area, id, self.forced).await.map_err(|error| failed(&*error))
    }
}
