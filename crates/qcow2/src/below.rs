//! What lies below an image: a list of layers, which never changes. Another backing layer is another list, put in the place of
//! the first while no request is in flight ([`crate::HeldStill`]).

use std::cell::OnceCell;
use std::sync::Arc;

use block::Block;
use sync::OnceLock;
use sync::atomic::Ordering;

use crate::Qcow2;
use crate::chain::Chain;
use crate::image::Inner;

/// A layer: an image, whose map the engine knows, or any other block, which maps every byte to itself.
#[derive(Clone, Debug)]
pub(crate) enum Below {
    Image(Qcow2),
    Block(Arc<dyn Block>),
}

impl Below {
    fn new(block: &Arc<dyn Block>) -> Self {
        match block.downcast_ref::<Qcow2>() {
            Some(image) => Self::Image(image.clone()),
            None => Self::Block(Arc::clone(block)),
        }
    }

    pub(crate) fn size(&self) -> u64 {
        match self {
            Self::Image(image) => image.size(),
            Self::Block(block) => block.size(),
        }
    }
}

/// A layer below an image, with all layers below that one.
#[derive(Debug)]
pub(crate) struct Lower {
    layer: Below,
    /// The layer as it was given.
    block: Arc<dyn Block>,
    next: Option<Arc<Lower>>,
    /// The map from here on, made at the first question.
    chain: OnceLock<Option<Box<Chain>>>,
}

impl Lower {
    /// `block`, and what lies below it now.
    pub(crate) fn new(block: Arc<dyn Block>) -> Arc<Self> {
        let layer = Below::new(&block);
        let next = match &layer {
            Below::Image(image) => image.inner.below.load_full(),
            Below::Block(_) => None,
        };
        Arc::new(Self { layer, block, next, chain: OnceLock::new() })
    }

    #[inline]
    pub(crate) fn layer(&self) -> &Below {
        &self.layer
    }

    pub(crate) fn block(&self) -> &Arc<dyn Block> {
        &self.block
    }

    #[inline]
    pub(crate) fn size(&self) -> u64 {
        self.layer.size()
    }

    /// The layer below this one, as far as the engine knows it.
    #[inline]
    pub(crate) fn next(&self) -> Option<&Arc<Lower>> {
        self.next.as_ref()
    }

    /// The map from this layer on, for `above`, the image over it; `None` if there is too little for one.
    #[inline]
    pub(crate) fn chain(&self, above: &Inner) -> Option<&Chain> {
        let make = || Some(Box::new(Chain::of(self, above.map.cache.bytes_max(), &above.map.budget)?));
        self.chain.get_or_init(make).as_deref()
    }

    /// Likewise, if a request has needed it yet.
    pub(crate) fn chain_if_made(&self) -> Option<&Chain> {
        self.chain.get()?.as_deref()
    }
}

/// What lies below an image as one request sees it: looked at when it is first needed, and kept for the request's life.
#[derive(Debug, Default)]
pub(crate) struct BelowHeld(OnceCell<Option<Arc<Lower>>>);

impl BelowHeld {
    #[inline]
    pub(crate) fn of(&self, image: &Inner) -> Option<&Lower> {
        self.0.get_or_init(|| image.below.load_full()).as_deref()
    }
}

impl Qcow2 {
    /// Something is to be put below that is not there now: zeroes that are written from now on are stored, also where nothing is. What
    /// an image of version 2 is to hide becomes data.
    pub fn await_backing(&self) {
        self.inner.awaits_backing.store(true, Ordering::Relaxed);
    }
}

impl Inner {
    pub(crate) fn has_backing(&self) -> bool {
        self.below.load().is_some()
    }

    /// Whether something may lie below later that does not now: zeroes are said explicitly, so that they hide it. Kept true from the opening of an
    /// image whose header names a backing file that was not opened, or from [`Qcow2::await_backing`].
    pub(crate) fn awaits_backing(&self) -> bool {
        self.awaits_backing.load(Ordering::Relaxed)
    }

    /// Bytes of the backing layer; 0 without one.
    pub(crate) fn backing_size(&self) -> u64 {
        self.below.load().as_ref().map_or(0, |lower| lower.size())
    }

    /// Data of this image, or of a block below, may be in memory.
    pub(crate) fn has_cached_data(&self) -> bool {
        let cached_below =
            || self.below.load().as_ref().is_some_and(|lower| lower.block.capabilities().cached);
        self.medium.data.capabilities().cached || cached_below()
    }

    /// What `asked` says of the map of what lies below, if that was made.
    pub(crate) fn ask_chain<T>(&self, asked: impl FnOnce(&Chain) -> T) -> Option<T> {
        self.below.load().as_ref().and_then(|lower| lower.chain_if_made().map(asked))
    }
}
