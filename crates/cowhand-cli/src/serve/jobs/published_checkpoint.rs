//! What cowhand-publish does: a sealed layer of a disk that is served is uploaded to an object store.

use std::pin::pin;

use checkpoints::Sealed;
use futures_util::future::{Either, select};
use job::{Error, Life};

use super::task::Failed;
use crate::copying;
use crate::failure::Failure;
use crate::publish::publication::{Outcome, Publication};
use crate::push::session::{Followed, Session, TargetArgs};
use crate::push::upload::Pace;
use crate::serve::inventory::Inventory;

/// A checkpoint that is to be published.
pub struct PublishedCheckpoint {
    /// The checkpoint.
    pub sealed: Sealed,
    /// Where it goes.
    pub target: TargetArgs,
    /// The image of which chunks are taken.
    pub parent: Option<String>,
}

impl PublishedCheckpoint {
    /// Publishes it. Sealed layers are not written: guests wait for nothing.
    ///
    /// # After a crash
    /// What was at the store is there. Chunks that were sent are found by the next publish.
    pub(super) async fn run(&self, inventory: &Inventory, life: &Life) -> Result<(), Failed> {
        let published = self.publish(inventory, life).await;
        match published {
            Ok(Outcome { image, parent, sent, .. }) => {
                tracing::info!(image, parent, ?sent, "a checkpoint is published");
                Ok(())
            }
            Err(_) if life.is_given_up() => Err(Error::Cancelled.into()),
            Err(failure) => Err(Failed::Because(failure.in_one_line())),
        }
    }

    async fn publish(&self, inventory: &Inventory, life: &Life) -> Result<Outcome, Failure> {
        let (rules, options) = (inventory.graph.rules(), self.sealed.options());
        let chain = self.sealed.chain()?;
        let session = Session::begin("publish to", &self.target, Followed::Job(life)).await?;
        let disk = copying::open(&options, rules, "publish").await?;
        let published = {
            let publication = Publication {
                session: &session,
                sealed: &self.sealed,
                chain,
                rules,
                parent: self.parent.as_deref(),
                pace: Pace::Job(life),
                is_dry: false,
            };
            // A store that does not answer is not waited for then.
            match select(pin!(publication.run(&disk)), pin!(life.forced())).await {
                Either::Left((published, _)) => published,
                Either::Right(((), _)) => Err(Failure::new("cancelled")),
            }
        };
        session.end().await;
        copying::finish(&disk, published, |error| copying::because("publish", &options, error)).await
    }
}
