//! What is written when a layer is.

use std::sync::Arc;

use qcow2_layout::Header;
use storage::Storage;

use crate::error::OpenError;

/// The files that writes of a layer reach.
#[derive(Clone, Debug)]
pub(crate) struct Written {
    pub(crate) file: Arc<dyn Storage>,
    pub(crate) data: Option<Arc<dyn Storage>>,
    pub(crate) bitmaps: Option<Arc<dyn Storage>>,
}

impl Written {
    pub(super) fn all(&self) -> impl Iterator<Item = &Arc<dyn Storage>> {
        [Some(&self.file), self.data.as_ref(), self.bitmaps.as_ref()].into_iter().flatten()
    }
}

/// Refuses an image whose refcounts must be repaired before it is written: not while it is in use.
pub(super) fn check_repaired(header: Option<&Header>, name: &str) -> Result<(), OpenError> {
    if !header.is_some_and(qcow2::is_dirty) {
        return Ok(());
    }
    let reason = "it is in use; take it out of use and run `cowhand check -r all`".to_owned();
    Err(OpenError::Repair { path: name.into(), reason })
}
