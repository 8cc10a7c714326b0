//! Clusters that the file no longer refers to, on their way to the allocator.

use std::sync::Arc;

use crate::deliberate::{self, Bug};
use crate::free::Free;
use crate::image::Inner;

/// Reclaiming under way. Should the host drop it half-way, what it had in hand is leaked, what is
/// settled later is taken up by another, and no task awaits it.
struct Reclaiming {
    image: Arc<Inner>,
    /// Another may have begun by now.
    ended: bool,
}

impl Reclaiming {
    /// Nothing was left to do.
    fn end(mut self) {
        self.ended = true;
    }
}

impl Drop for Reclaiming {
    fn drop(&mut self) {
        self.image.space.frees.ended(!self.ended);
    }
}

impl Inner {
    /// The file no longer refers to `frees`: reclaims them in the background, after the requests
    /// that may still use them.
    pub(crate) fn reclaim(self: &Arc<Self>, frees: Vec<Free>) {
        if self.space.frees.settle(frees) {
            let reclaiming = Reclaiming { image: Arc::clone(self), ended: false };
            self.medium.host.spawn(Box::pin(async move {
                let image = &reclaiming.image;
                while let Some(settled) = image.space.frees.take_settled() {
                    if !deliberate::has(Bug::GraceSkipped) {
                        image.turns.gate.grace().await;
                    }
                    image.decompressed.clear();
                    image.space.release(&image.medium, settled).await;
                }
                reclaiming.end();
            }));
        }
    }
}
