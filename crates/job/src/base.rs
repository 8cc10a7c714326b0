//! What lies below the layers that an image takes over.
//!
//! It is no job's own: a commit further down may take it out, and another stream may open it for writing. What it reads as stays the same. So it is
//! found anew for each request ([`block::MovingBlock`]).

use std::sync::Arc;

use block::{Blame, Block, Error, FindBlock};

/// The layer below the layers of an image.
#[derive(Debug)]
pub(crate) struct Base {
    image: Arc<dyn Block>,
    layers: u32,
    name: String,
}

impl Base {
    /// What is below `layers` layers, `image` included. These stay where they are.
    pub(crate) fn new(image: Arc<dyn Block>, layers: u32) -> Self {
        let base = Self { name: image.name().to_owned(), image, layers };
        let name = base.layer().map_or_else(String::new, |layer| layer.name().to_owned());
        Self { name, ..base }
    }

    /// How many layers are above it.
    pub(crate) fn layers(&self) -> u32 {
        self.layers
    }

    /// The layer that is there now.
    pub(crate) fn layer(&self) -> Option<Arc<dyn Block>> {
        block::layers(Arc::clone(&self.image)).nth(self.layers as usize)
    }
}

impl FindBlock for Base {
    fn now(&self) -> Result<Arc<dyn Block>, Error> {
        self.layer().ok_or_else(|| Blame::new(&self.name).refused("it is no layer of the disk any more"))
    }

    fn name(&self) -> &str {
        &self.name
    }

    fn refusal(&self) -> &'static str {
        "it is read by the job, not written"
    }
}
