//! What x-blockdev-amend does: keys of an encrypted disk are added and removed while it is used.

use std::sync::Arc;

use control::{QmpError, arguments, choice};
use graph::OnLoop;
use graph::{DiskNode, Secrets};
use job::{Error, Life};
use luks::unlock;
use tool::amend::keys::{Change, KeyOptions};

use super::failed::Failed;
use crate::inventory::nodes::Nodes;

arguments! {
    /// What a change of keys is about.
    pub struct Keys {
        state: State, new_secret: Option<String>, old_secret: Option<String>, keyslot: Option<u64>,
        iter_time: Option<u64>, secret: Option<String>,
    }
}

choice! {
    /// Whether a key is to be there.
    pub enum State { Active, Inactive }
}

/// A change of a disk's key slots.
pub struct Amendment {
    disk: Arc<DiskNode>,
    change: Option<Change>,
    /// The password that opens the disk, if it is not the one that it was opened with.
    secret: Option<String>,
    forced: bool,
}

impl Amendment {
    /// What `keys` ask for, whose names stand behind `prefix` on the command line, of `disk`; the last key is removed only if that is `forced`.
    ///
    /// # Errors
    /// When parts are missing, or contradict each other.
    pub fn new(
        disk: Arc<DiskNode>,
        (keys, prefix): (Option<&Keys>, &str),
        forced: bool,
    ) -> Result<Self, QmpError> {
        let (mut change, mut secret) = (None, None);
        if let Some(keys) = keys {
            let iter_time_ms = match keys.iter_time {
                Some(ms) => Some(u32::try_from(ms).ok().filter(|ms| *ms > 0).ok_or_else(|| {
                    let allowed = format!("allowed: 1 to {}", u32::MAX);
                    QmpError::generic(format!("argument 'iter-time' is {ms} milliseconds; {allowed}"))
                })?),
                None => None,
            };
            let wanted = KeyOptions {
                active: Some(keys.state == State::Active),
                new_secret: keys.new_secret.clone(),
                old_secret: keys.old_secret.clone(),
                slot: keys.keyslot.map(|slot| usize::try_from(slot).unwrap_or(usize::MAX)),
                iter_time_ms,
            };
            let read = wanted.change(prefix);
            change = read.map_err(|error| QmpError::generic(error.0.trim_start_matches("-o ")))?;
            secret = keys.secret.clone();
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
