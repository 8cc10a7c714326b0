//! A target that comes with a job, and goes with it.

use graph::Change;

use crate::inventory::nodes::Nodes;
use crate::made_file::MadeFile;

/// The node of a target that drive-mirror or drive-backup opened: no user has named it.
#[derive(Clone, Debug)]
pub struct OwnTarget {
    /// Its name.
    pub node: String,
    /// The file, if it was made for the job.
    pub made: Option<MadeFile>,
}

impl OwnTarget {
    /// Closes the node, unless it is in use by now. A file that was made for a job that has not begun is
    /// removed.
    pub async fn close(self, nodes: &Nodes, change: &Change<'_>, has_begun: bool) {
        match nodes.remove_node(change, &self.node).await {
            // What a job wrote was flushed before it ended.
            Ok(_) if has_begun => {}
            Ok(_) => self.made.iter().for_each(MadeFile::remove),
            Err(error) => tracing::info!(%error, "the target of a job that has ended stays open"),
        }
    }
}
