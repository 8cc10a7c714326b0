//! What an image stands on: its files, the program around it, and the places that are not for data.

use std::sync::Arc;

use block::Blame;
use qcow2_layout::Geometry;
use storage::Storage;

use crate::health::Health;
use crate::host::Host;
use crate::overlap::MetadataMap;

/// What an image stands on. Nothing here but [`MetadataMap`] and [`Health`] changes while the image is open.
#[derive(Debug)]
pub(crate) struct Medium {
    pub(crate) blame: Blame,
    pub(crate) host: Arc<dyn Host>,
    pub(crate) file: Arc<dyn Storage>,
    /// Where guest data lies: the image file itself or the external data file.
    pub(crate) data: Arc<dyn Storage>,
    /// The external data file can be read on its own: what reads as zeroes must be zeroes there.
    pub(crate) raw_data: bool,
    pub(crate) geometry: Geometry,
    /// Where metadata lies in the file.
    pub(crate) overlap: MetadataMap,
    pub(crate) health: Health,
}
