//! A target that comes with a job, and goes with it.

use std::path::PathBuf;

use graph::Change;

use crate::serve::inventory::Inventory;

/// The node of a target that drive-mirror or drive-backup opened: nobody else has named it.
#[derive(Clone, Debug)]
pub struct OwnTarget {
    /// Its name.
    pub node: String,
    /// The file, if it was made for the job.
    pub made: Option<PathBuf>,
}

impl OwnTarget {
    /// Closes the node, unless somebody has come to use it. What was made for a job that has not begun goes, too.
    pub async fn close(self, inventory: &Inventory, change: &Change<'_>, has_begun: bool) {
        match inventory.remove_node(change, &self.node).await {
            // What a job wrote was flushed before it ended.
            Ok(_) if has_begun => {}
            Ok(_) => self.remove_file(),
            Err(error) => tracing::warn!(%error, "the target of a job that has ended stays open"),
        }
    }

    /// Removes the file, if it was made for the job.
    pub fn remove_file(&self) {
        let Some(file) = &self.made else { return };
        if let Err(error) = std::fs::remove_file(file) {
            tracing::warn!(?file, %error, "a target that was made for nothing stays");
        }
    }
}
