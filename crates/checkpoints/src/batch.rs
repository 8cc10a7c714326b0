//! Checkpoints, rollbacks and forks of one moment.
//!
//! Actions are planned and their files made while guests write ([`Batch::prepare`]), the disks are switched ([`Batch::switch`]), and the rest is done while
//! guests write again ([`Batch::keep`]).

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;

use graph::{Change, DiskNode, Graph};
use lineage::{Action, Change as LineageChange, Host, PATIENCE, Plan, Prepared, check_sealable};

use crate::error::Error;
use crate::live::{Live, SealedDisk};

/// Refuses a rollback, and says why. It is asked when requests are kept out, just before the switch: who connects from then on finds what the disk is rolled
/// back to.
pub type LastLook<'a> = Box<dyn Fn() -> Result<(), String> + 'a>;

/// What is asked of one disk.
pub struct Request<'a> {
    /// The disk at work.
    pub disk: Arc<DiskNode>,
    /// What happens to its lineage.
    pub action: Action,
    /// Of a rollback.
    pub last_look: Option<LastLook<'a>>,
}

/// Actions whose files are there, and whose disks are not switched yet.
pub struct Batch<'a> {
    live: Live<'a>,
    lineages: Vec<Prepared>,
}

impl<'a> Batch<'a> {
    /// Plans all actions and makes their files: the paths of the disks lead to their new images. Guests continue to write.
    ///
    /// # Errors
    /// When one is refused. Then nothing is left of any.
    pub async fn prepare(
        graph: &'a Graph,
        change: &'a Change<'a>,
        requests: Vec<Request<'a>>,
    ) -> Result<Self, Error> {
        let mut batch = Self { live: Live::of(graph, change), lineages: Vec::new() };
        // In the order of their directories: two batches do not wait for each other.
        let mut lineages: BTreeMap<PathBuf, Vec<Action>> = BTreeMap::new();
        for request in requests {
            let action = request.action.clone();
            batch.live.disks.extend(SealedDisk::of(request));
            lineages.entry(action.disk().place.directory().to_owned()).or_default().push(action);
        }
        match batch.make(lineages).await {
            Ok(()) => Ok(batch),
            Err(error) => {
                batch.undo_files().await;
                Err(error)
            }
        }
    }

    async fn make(&mut self, lineages: BTreeMap<PathBuf, Vec<Action>>) -> Result<(), Error> {
        for actions in lineages.into_values() {
            let (begun, plan) = planned(actions).await?;
            self.lineages.push(begun.prepare(plan, &self.live).await?);
        }
        self.live.open().await
    }

    /// Switches all disks, or none.
    ///
    /// # Errors
    /// When one cannot be switched. [`Batch::undo_files`] does the rest.
    pub async fn switch(&self) -> Result<(), Error> {
        for (at, lineage) in self.lineages.iter().enumerate() {
            if let Err(mut error) = self.live.switch(lineage.switched()).await {
                for done in self.lineages[..at].iter().rev() {
                    error = self.live.switch_back(done.switched(), error).await;
                }
                return Err(error);
            }
        }
        Ok(())
    }

    /// Whether one of their lineages has a policy, as it was when it was locked.
    pub fn has_policy(&self) -> bool {
        self.lineages.iter().any(Prepared::has_policy)
    }

    /// Removes what was made, of disks that are not switched.
    pub async fn undo_files(self) {
        let lineages = self.lineages;
        reactor::blocking(move || lineages.into_iter().rev().for_each(Prepared::undo)).await;
        // The new images stay locked until no path leads to them: no other process comes to write one of them.
        drop(self.live);
    }

    /// Does what is left, of disks that are switched.
    ///
    /// # Errors
    /// Says what is left for the next command. The change has happened.
    pub async fn keep(self) -> Result<(), Error> {
        let mut kept = Ok(());
        for lineage in self.lineages {
            kept = kept.and(lineage.finish(&self.live).await.map(drop));
        }
        kept
    }

    /// All of it, or nothing.
    ///
    /// # Errors
    /// As [`Batch::prepare`], [`Batch::switch`] and [`Batch::keep`].
    ///
    /// # Crash
    /// Each disk reads as before or as after.
    pub async fn run(
        graph: &'a Graph,
        change: &'a Change<'a>,
        requests: Vec<Request<'a>>,
    ) -> Result<(), Error> {
        let batch = Self::prepare(graph, change, requests).await?;
        if let Err(error) = batch.switch().await {
            batch.undo_files().await;
            return Err(error);
        }
        batch.keep().await
    }
}

/// Locks the lineage of `actions` and plans them, on a thread that may wait: headers are read, and another command may be at work.
async fn planned(actions: Vec<Action>) -> Result<(LineageChange, Plan), lineage::Error> {
    reactor::blocking(move || {
        let Some(place) = actions.first().map(|action| action.disk().place.clone()) else {
            return Err(lineage::Error::Invalid("nothing is asked".to_owned()));
        };
        let is_first = actions.iter().any(|action| matches!(action, Action::Checkpoint { .. }));
        let begun = match is_first {
            true => {
                actions.iter().try_for_each(|action| check_sealable(action.disk()))?;
                LineageChange::begin_first(&place, PATIENCE)?
            }
            false => LineageChange::begin(&place, PATIENCE)?,
        };
        let plan = begun.plan(&actions)?;
        Ok((begun, plan))
    })
    .await
}
