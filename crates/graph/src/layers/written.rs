//! What is written when a layer is.

use std::sync::Arc;

use storage::Storage;

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
