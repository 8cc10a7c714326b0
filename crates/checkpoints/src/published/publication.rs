//! The upload of a checkpoint: its parent, what differs from that, and the moment at which it counts.

use std::sync::Arc;

use graph::{Disk, OpenRules};
use lineage::LayerId;
use remote::chunked::{CHECKPOINTS_MAX, Checkpoint, Error, Manifest, Of, Place, Published};
use remote::s3::StoreError;
use serde::Serialize;

use super::error::{NoParent, PublishError};
use super::follow::Follow;
use super::parent::{Candidate, Parent, Search};
use super::session::{Sent, Session, Target};
use super::upload::{Figures, Upload};
use crate::error::Error as Refused;
use crate::sealed::Sealed;

/// In place of a parent: everything is read.
const NO_PARENT: &str = "none";

/// A checkpoint that is to be published.
pub struct Publication {
    /// The checkpoint.
    pub sealed: Sealed,
    /// Where it goes.
    pub target: Target,
    /// The image of which chunks are taken, or `none`; else one is looked for.
    pub parent: Option<String>,
    /// Nothing is written: only how much would be read is counted.
    pub is_dry: bool,
}

/// What was done.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub struct Outcome {
    /// Of its layer.
    pub id: String,
    /// The name that stays this checkpoint's.
    pub image: String,
    /// The checkpoint at the store of which unchanged chunks were taken.
    pub parent: Option<String>,
    /// What was sent.
    #[serde(flatten)]
    pub sent: Sent,
    /// Something was written.
    pub changed: bool,
}

/// A publication at work.
struct Work<'a, F> {
    session: Session<'a, F>,
    sealed: &'a Sealed,
    /// Its layers from the upper to the lower.
    chain: Vec<LayerId>,
    /// The backing file of the last one outside the lineage.
    base: Option<String>,
    /// How layers are opened.
    rules: &'a OpenRules,
    parent: Option<&'a str>,
}

impl Publication {
    /// Publishes what the checkpoint reads as, also while its disk is in use: sealed layers are not written. What was at the store stays until the last step.
    ///
    /// # Errors
    /// Of the disk and the store, and when it is ended. Chunks that were sent are found by the next one.
    ///
    /// # After a crash
    /// What was at the store is there.
    pub async fn run<F: Follow>(&self, rules: &OpenRules, follow: &F) -> Result<Outcome, PublishError> {
        // Also refuses a chain with a layer that was written.
        let (chain, base) = self.sealed.chain()?;
        let session = Session::begin("publish to", &self.target, follow).await?;
        let (sealed, parent) = (&self.sealed, self.parent.as_deref());
        let work = Work { session, sealed, chain, base, rules, parent };
        let options = self.sealed.options();
        let opened = graph::open(&options, rules).await;
        let disk = Arc::new(opened.map_err(Refused::image("publish", &options.filename))?);
        disk.start_upkeep();
        let done = work.session.until_forced(work.run(&disk, self.is_dry)).await;
        work.session.end().await;
        let closed = disk.close().await.map_err(Refused::image("close", &options.filename));
        disk.idle().await;
        done.and_then(|done| Ok(closed.map(|()| done)?))
    }
}

impl<F: Follow> Work<'_, F> {
    async fn run(&self, disk: &Disk, is_dry: bool) -> Result<Outcome, PublishError> {
        let session = &self.session;
        if !is_dry {
            // From here on nothing is removed that a parent leads to.
            session.place.begin_push().await.map_err(|error| session.failed(error))?;
        }
        let published = session.find().await?;
        let base = self.base().await?;
        let below = base.as_ref().map_or(&[][..], |base| base.image.manifest.checkpoints());
        let parent = self.parent(published.as_ref(), base.as_ref()).await?;
        let like = published.as_ref().or(parent.as_ref().map(|parent| &parent.image));
        let manifest = session.new_manifest(disk.size(), like.map(|image| &image.manifest))?;
        let mut manifest = manifest.of_checkpoints(self.checkpoints(below));
        let changed = match &parent {
            Some(parent) => Some(parent.changed(disk, self.sealed, self.rules).await?),
            None => None,
        };
        let figures = Figures::default();
        let upload = Upload {
            disk,
            moment: None,
            place: &session.place,
            old: parent.as_ref().map(|parent| &parent.image),
            changed: changed.as_ref(),
            figures: &figures,
            how: session.writing(&manifest, published.is_some()),
            follow: session.follow,
        };
        let id = self.sealed.id.to_string();
        let lasting = session.place.of_checkpoint(&id);
        let is_changed = match is_dry {
            true => {
                upload.measure(&manifest).await.map_err(|error| session.of_upload(&upload, error))?;
                false
            }
            false => {
                session.upload(&upload, &mut manifest).await?;
                let is_new = self.keep(&lasting, &manifest).await?;
                let is_changed = published.as_ref().is_none_or(|old| old.manifest != manifest);
                if is_changed {
                    session.publish(&manifest, published.as_ref()).await?;
                }
                if let (None, Some(parent)) = (&published, &parent) {
                    self.take_start_list(&parent.image_name).await;
                }
                is_new || is_changed
            }
        };
        Ok(Outcome {
            id,
            image: lasting.image(),
            parent: parent.map(|parent| parent.image_name),
            sent: Sent::of(&manifest, &figures),
            changed: is_changed,
        })
    }

    /// The image at the store of which chunks are taken.
    async fn parent(
        &self,
        published: Option<&Published>,
        base: Option<&Candidate>,
    ) -> Result<Option<Parent>, PublishError> {
        let session = &self.session;
        let search = Search { sealed: self.sealed, chain: &self.chain, base };
        let warn = |what: &str| session.follow.warn(what);
        let failed = |error| session.not_searched(error);
        let fits = |image: &Published| {
            let like = published.unwrap_or(image);
            // Of no bytes: what is compared is how chunks are made.
            let new = session.new_manifest(0, Some(&like.manifest));
            new.is_ok_and(|new| image.manifest.has_objects_for(&new))
        };
        match self.parent {
            Some(NO_PARENT) => Ok(None),
            Some(name) => {
                let candidate = self.named_parent(name).await?;
                let image = candidate.place.image();
                if !fits(&candidate.image) {
                    return Err(NoParent::Unlike(image).into());
                }
                let parent = match search.parent(&candidate) {
                    None => search.nearest(&candidate.place, Of::Image, fits, warn).await,
                    parent => Ok(parent),
                };
                let parent = parent.map_err(failed)?;
                parent.ok_or_else(|| NoParent::OfAnotherLineage(image).into()).map(Some)
            }
            None => {
                let image = published.filter(|image| fits(image)).cloned();
                let own = image.map(|image| Candidate { place: Arc::clone(&session.place), image });
                match own.and_then(|own| search.parent(&own)) {
                    Some(parent) => Ok(Some(parent)),
                    None => {
                        let nearest = search.nearest(&session.place, Of::Folder, fits, warn).await;
                        nearest.map_err(failed)
                    }
                }
            }
        }
    }

    /// The image that was named as the parent.
    async fn named_parent(&self, name: &str) -> Result<Candidate, PublishError> {
        let own = &self.session.place;
        let elsewhere = || NoParent::OfAnotherFolder { name: name.to_owned(), image: own.image() };
        let place = own.beside(name).ok_or_else(elsewhere)?;
        let image = place.read().await.map_err(|error| self.session.failed(error))?;
        match image.manifest.checkpoints().is_empty() {
            true => Err(NoParent::Pushed(place.image()).into()),
            false => Ok(Candidate { place: Arc::new(place), image }),
        }
    }

    /// The image that the lowest layer is backed by, if that is a published checkpoint of the same folder: one that stays what it is.
    async fn base(&self) -> Result<Option<Candidate>, PublishError> {
        let place = self.base.as_deref().and_then(|base| self.session.place.beside(base));
        let Some(place) = place.filter(|place| place.checkpoint().is_some()) else { return Ok(None) };
        match place.read().await {
            Ok(image) => Ok(Some(Candidate { place: Arc::new(place), image })),
            // What was plain is encrypted from here on.
            Err(Error::NotEncrypted { .. }) => Ok(None),
            Err(error) => Err(self.session.failed(error)),
        }
    }

    /// This checkpoint and all below it; `below` are those that another lineage had.
    fn checkpoints(&self, below: &[Checkpoint]) -> Vec<Checkpoint> {
        let named = |id: &LayerId| {
            let entry = self.sealed.survey.layers.get(id).and_then(|layer| layer.entry.as_ref());
            let name = entry.filter(|entry| !entry.deleted).and_then(|entry| entry.name.as_ref());
            Checkpoint { id: id.to_string(), name: name.map(ToString::to_string) }
        };
        self.chain.iter().map(named).chain(below.iter().cloned()).take(CHECKPOINTS_MAX).collect()
    }

    /// A disk that began as another one starts as that does.
    async fn take_start_list(&self, parent: &str) {
        let session = &self.session;
        let Some(parent) = session.place.beside(parent) else { return };
        match session.place.take_start_list(&parent).await {
            // A store that may not be listed answers so if there is none.
            Err(error) if !error.is_forbidden() => {
                session
                    .follow
                    .warn(&format!("the start list of {} is not taken over: {error}", parent.image()));
            }
            _ => {}
        }
    }

    /// Makes the manifest that stays, unless it is there.
    async fn keep(&self, lasting: &Place, manifest: &Manifest) -> Result<bool, PublishError> {
        let there = lasting.find().await.map_err(|error| self.session.failed(error))?;
        if there.is_some() {
            return Ok(false);
        }
        match self.session.publish_at(lasting, manifest, None).await {
            Ok(()) => Ok(true),
            // The process that published the same checkpoint meanwhile made the same disk.
            Err(Error::Store(StoreError::Exists { .. })) => Ok(false),
            Err(error) => Err(self.session.failed(error)),
        }
    }
}
