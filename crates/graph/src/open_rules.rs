//! What holds for all images of a process.

use std::sync::Arc;

use qcow2::Budget;

use crate::fd_sets::FdSets;
use crate::front::Groups;
use crate::locks_ahead::LocksAhead;
use crate::map_memory::default_map_memory;
use crate::names::Policy;
use crate::node_files::NodeFiles;
use crate::nodes::MadeNames;
use crate::options::LayerOptions;
use crate::secrets::Secrets;
use crate::shared_files::SharedFiles;
use crate::trace::Recorder;

/// Images in a chain at most, unless said otherwise.
pub const CHAIN_MAX_DEFAULT: usize = 1000;

/// What holds for all images of a process.
#[derive(Clone, Debug)]
pub struct OpenRules {
    /// Where names inside images may lead.
    pub policy: Policy,
    /// Images in a chain at most.
    pub chain_max: usize,
    /// Where throttle groups are found by name; unless said otherwise the process's.
    pub groups: Groups,
    /// Memory that the map and refcount caches of all images share.
    pub map_budget: Arc<Budget>,
    /// Files that other processes opened, found as `/dev/fdset/NUMBER`.
    pub fd_sets: FdSets,
    /// Files of layers that several disks read.
    pub shared_files: SharedFiles,
    /// Locks of files that get the paths of disks.
    pub locks_ahead: LocksAhead,
    /// Files that several disks use through one node.
    pub node_files: NodeFiles,
    /// Passwords of encrypted images; unless said otherwise the process's.
    pub secrets: Secrets,
    /// Where requests of all disks are recorded, if they are.
    pub trace: Option<Arc<Recorder>>,
    /// Names for nodes that have none.
    pub names: MadeNames,
    /// Every image and every file below a disk gets a name, as QEMU's do; otherwise those that are described with one have it.
    pub names_all: bool,
}

impl Default for OpenRules {
    fn default() -> Self {
        Self::within(Budget::new(default_map_memory()))
    }
}

impl OpenRules {
    /// The default, with `map_budget` for the maps: nothing asks how much memory there is.
    pub fn within(map_budget: Arc<Budget>) -> Self {
        Self {
            policy: Policy::default(),
            chain_max: CHAIN_MAX_DEFAULT,
            groups: Groups::default(),
            map_budget,
            fd_sets: FdSets::default(),
            shared_files: SharedFiles::default(),
            locks_ahead: LocksAhead::default(),
            node_files: NodeFiles::default(),
            secrets: Secrets::default(),
            trace: None,
            names: MadeNames::default(),
            names_all: false,
        }
    }

    /// Gives names to what has none of an image and its files.
    pub(crate) fn name(&self, options: &mut LayerOptions, is_top: bool, has_data: bool, has_header: bool) {
        if !self.names_all {
            return;
        }
        // The uppermost image has the disk's name.
        if !is_top {
            options.node_name.get_or_insert_with(|| self.names.next());
        }
        let data = has_data.then_some(&mut *options.data_file);
        let header = has_header.then_some(&mut *options.luks_header);
        for file in [&mut options.file].into_iter().chain(data).chain(header) {
            if file.node().is_none() {
                file.node_name.get_or_insert_with(|| self.names.next());
            }
        }
    }
}
