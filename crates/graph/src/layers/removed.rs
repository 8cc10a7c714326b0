//! Layers that a disk does not have any more.

use std::sync::Arc;

use block::Error;

use super::Layer;

/// Layers that were taken out of a disk. Their files stay locked until this is dropped.
#[derive(Debug)]
#[must_use = "what was not closed is as after a crash"]
pub struct RemovedLayers(Vec<Arc<Layer>>);

impl RemovedLayers {
    pub(crate) fn of(list: Vec<Arc<Layer>>) -> Self {
        Self(list)
    }

    pub(crate) fn layers(&self) -> &[Arc<Layer>] {
        &self.0
    }

    /// What they are called, from the upper to the lower.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.0.iter().map(|layer| layer.block.name())
    }

    /// Waits for the work that they left behind, writes what is in memory of them and releases their locks.
    /// All are closed, also after one has failed.
    ///
    /// # Errors
    /// The first failure.
    pub async fn close(self) -> Result<(), Error> {
        for layer in &self.0 {
            layer.tasks.idle().await;
        }
        close(&self.0).await
    }
}

pub(super) async fn close(layers: &[Arc<Layer>]) -> Result<(), Error> {
    let mut result = Ok(());
    for (at, layer) in layers.iter().enumerate() {
        let is_written = at == 0 || !layer.block.capabilities().read_only;
        if is_written && !layer.closes_below {
            result = result.and(layer.close().await);
        }
    }
    result
}
