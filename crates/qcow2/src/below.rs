//! What lies below an image.

use std::sync::Arc;

use block::Block;

use crate::Qcow2;

/// The backing layer: an image, whose map the engine knows, or any other block, which maps every byte to itself.
#[derive(Clone, Debug)]
pub(crate) enum Below {
    Image(Qcow2),
    Block(Arc<dyn Block>),
}

impl Below {
    pub(crate) fn new(block: Arc<dyn Block>) -> Self {
        match block.downcast_ref::<Qcow2>() {
            Some(image) => Self::Image(image.clone()),
            None => Self::Block(block),
        }
    }

    pub(crate) fn size(&self) -> u64 {
        match self {
            Self::Image(image) => image.size(),
            Self::Block(block) => block.size(),
        }
    }

    /// The layer below this one, as far as the engine knows it.
    pub(crate) fn below(&self) -> Option<&Below> {
        match self {
            Self::Image(image) => image.inner.backing.as_ref(),
            Self::Block(_) => None,
        }
    }

    pub(crate) fn as_block(&self) -> &dyn Block {
        match self {
            Self::Image(image) => image,
            Self::Block(block) => &**block,
        }
    }
}
