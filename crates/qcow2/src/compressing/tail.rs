//! Where the next compressed cluster goes: behind the last one.

use storage::Step;

use crate::image::Inner;
use crate::{Error, ErrorKind};

/// The cluster of the file that was begun and has room left.
///
/// It holds a reference to that cluster of its own. So the cluster stays when what is in it is freed, and no other request is
/// given it while more is put in.
#[derive(Debug, Default)]
pub(super) struct Tail {
    begun: Option<StartedCluster>,
}

#[derive(Clone, Copy, Debug)]
struct StartedCluster {
    cluster: u64,
    /// The first byte of the file that is free.
    at: u64,
}

impl Tail {
    /// A place for `len` bytes, less than a cluster, with a reference to each cluster that it touches.
    pub(super) async fn place(&mut self, image: &Inner, len: u64) -> Result<u64, Error> {
        let bits = image.medium.geometry.cluster_bits;
        debug_assert!(0 < len && len < image.medium.geometry.cluster_size());
        image.medium.about_to(Step::ClusterAllocBytes);
        if let Some(StartedCluster { cluster, at }) = self.begun
            && at + len <= (cluster + 1) << bits
        {
            self.refer(image, cluster, at + len).await?;
            return Ok(at);
        }
        let run = image.space.allocate(&image.medium, 1).await?;
        let host = match self.begun.take() {
            // It goes across: the reference of the one that is left is its own.
            Some(StartedCluster { cluster, at }) if cluster + 1 == run.start => at,
            Some(StartedCluster { cluster, .. }) => {
                image.space.lower_and_give(&image.medium, cluster..cluster + 1).await;
                run.start << bits
            }
            None => run.start << bits,
        };
        self.refer(image, run.start, host + len).await?;
        Ok(host)
    }

    /// Takes a reference to `cluster`, to which the caller has one, for what ends at `end` in it; the rest is free. Where the
    /// refcount is at its highest the caller's becomes that reference.
    async fn refer(&mut self, image: &Inner, cluster: u64, end: u64) -> Result<(), Error> {
        self.begun = None;
        match image.space.refcounts.raise(cluster..cluster + 1).await {
            Ok(()) => self.begun = Some(StartedCluster { cluster, at: end }),
            Err(error) if error.kind() == ErrorKind::Unsupported => {}
            Err(error) => return Err(error),
        }
        if end == (cluster + 1) << image.medium.geometry.cluster_bits {
            self.leave(image).await;
        }
        Ok(())
    }

    /// Nothing more is put into the cluster that was begun.
    pub(super) async fn leave(&mut self, image: &Inner) {
        if let Some(StartedCluster { cluster, .. }) = self.begun.take() {
            image.space.lower_and_give(&image.medium, cluster..cluster + 1).await;
        }
    }
}
