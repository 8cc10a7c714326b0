//! The upload of a checkpoint: its parent, what differs from that, and the moment at which it counts.

use std::sync::Arc;

use checkpoints::Sealed;
use graph::{Disk, OpenRules};
use lineage::LayerId;
use serde::Serialize;
use storage_chunked::{CHECKPOINTS_MAX, Checkpoint, Error, Manifest, Of, Place, Published};
use storage_s3::StoreError;

use super::parent::{Candidate, Parent, Search};
use crate::failure::Failure;
use crate::output::printable;
use crate::push::session::{Sent, Session};
use crate::push::upload::{Figures, Pace, Upload};

/// In place of a parent: everything is read.
const NO_PARENT: &str = "none";

/// A checkpoint on its way.
pub struct Publication<'a> {
    /// Where it goes.
    pub session: &'a Session<'a>,
    /// The checkpoint.
    pub sealed: &'a Sealed,
    /// Its layers from the upper to the lower, and the backing file of the last one outside the lineage.
    pub chain: (Vec<LayerId>, Option<String>),
    /// How layers are opened.
    pub rules: &'a OpenRules,
    /// The image of which chunks are taken, or `none`; else one is looked for.
    pub parent: Option<&'a str>,
    /// How fast the disk is read.
    pub pace: Pace<'a>,
    /// Nothing is written: it is said how much would be read.
    pub is_dry: bool,
}

/// What [`Outcome`] prints beside [`Sent`].
pub const OUTCOME_JSON: &str = "  id                      text: id of the checkpoint's layer
  image                   text: the name in the store that stays this checkpoint's
  parent                  text: the published checkpoint of which unchanged chunks were taken, or
                          null
  changed                 bool: something was written";

/// What was done.
#[derive(Debug, Serialize)]
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

impl Publication<'_> {
    /// Publishes what `disk`, the checkpoint, reads as. What was there stays until the last step; [`Session::end`] follows in any case.
    ///
    /// # Errors
    /// Of the disk and the store, and when it is ended. Chunks that were sent are found by the next one.
    pub async fn run(self, disk: &Arc<Disk>) -> Result<Outcome, Failure> {
        let session = self.session;
        if !self.is_dry {
            // From here on nothing is removed that a parent leads to.
            session.place.begin_push().await.map_err(|error| session.hinted(&error))?;
        }
        let published = session.find().await?;
        let base = self.base().await?;
        let below = base.as_ref().map_or(&[][..], |base| base.image.manifest.checkpoints());
        let parent = self.parent(published.as_ref(), base.as_ref()).await?;
        let like = published.as_ref().or(parent.as_ref().map(|parent| &parent.image));
        let manifest =
            session.new_manifest(block::Block::size(&**disk), like.map(|image| &image.manifest))?;
        let mut manifest = manifest.of_checkpoints(self.checkpoints(below));
        let changed = match &parent {
            Some(parent) => Some(parent.changed(disk, self.sealed, self.rules).await?),
            None => None,
        };
        let figures = Figures::default();
        let upload = Upload {
            disk: &**disk,
            place: &session.place,
            old: parent.as_ref().map(|parent| &parent.image),
            changed: changed.as_ref(),
            figures: &figures,
            how: session.writing(&manifest, published.is_some()),
            pace: &self.pace,
        };
        let id = self.sealed.id.to_string();
        let lasting = session.place.of_checkpoint(&id);
        let is_changed = match self.is_dry {
            true => {
                upload.measure(&manifest).await.map_err(|error| session.of_upload(&upload, &error))?;
                false
            }
            false => {
                session.upload(&upload, &mut manifest).await?;
                let is_new = self.keep(&lasting, &manifest).await?;
                let is_changed = published.as_ref().is_none_or(|old| old.manifest != manifest);
                if is_changed {
                    session.publish(&manifest, published.as_ref()).await?;
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
    ) -> Result<Option<Parent>, Failure> {
        let Self { session, sealed, chain: (chain, _), .. } = self;
        let search = Search { sealed, chain, base };
        let fits = |image: &Published| {
            let like = published.unwrap_or(image);
            // Of no bytes: what is compared is how chunks are made.
            let new = session.new_manifest(0, Some(&like.manifest));
            new.is_ok_and(|new| image.manifest.has_objects_for(&new))
        };
        let failed = |error| {
            let failure = session.failed(&error);
            match error {
                Error::Encrypted { .. } => failure.with_hint(
                    "this lineage is encrypted in the folder; --parent none publishes the checkpoint without a key",
                ),
                _ => failure,
            }
        };
        match self.parent {
            Some(NO_PARENT) => Ok(None),
            Some(name) => {
                let candidate = self.named_parent(name).await?;
                let image = candidate.place.image();
                if !fits(&candidate.image) {
                    let what =
                        "have another size or key, or are compressed and those of the new image are not";
                    return Err(Failure::new(format!("parent: chunks of {image} {what}")));
                }
                let parent = match search.parent(&candidate) {
                    None => search.nearest(&candidate.place, Of::Image, fits).await.map_err(failed)?,
                    parent => parent,
                };
                let none = || Failure::new(format!("parent: the lineage has no checkpoint of {image}"));
                parent.ok_or_else(none).map(Some)
            }
            None => {
                let image = published.filter(|image| fits(image)).cloned();
                let own = image.map(|image| Candidate { place: Arc::clone(&session.place), image });
                match own.and_then(|own| search.parent(&own)) {
                    Some(parent) => Ok(Some(parent)),
                    None => search.nearest(&session.place, Of::Folder, fits).await.map_err(failed),
                }
            }
        }
    }

    /// The image that was named as the parent.
    async fn named_parent(&self, name: &str) -> Result<Candidate, Failure> {
        let own = &self.session.place;
        let place = own.beside(name).ok_or_else(|| {
            let (name, own) = (printable(name), own.image());
            Failure::new(format!("parent is {name}; allowed: {NO_PARENT}, or a name in the folder of {own}"))
        })?;
        let image = place.read().await.map_err(|error| self.session.failed(&error))?;
        if image.manifest.checkpoints().is_empty() {
            let what = format!("parent: {} is no published checkpoint: it was pushed", place.image());
            return Err(Failure::new(what));
        }
        Ok(Candidate { place: Arc::new(place), image })
    }

    /// The image that the lowest layer is backed by, if that is a published checkpoint of the same folder: one that stays what it is.
    async fn base(&self) -> Result<Option<Candidate>, Failure> {
        let place = self.chain.1.as_deref().and_then(|base| self.session.place.beside(base));
        let Some(place) = place.filter(|place| place.checkpoint().is_some()) else { return Ok(None) };
        match place.read().await {
            Ok(image) => Ok(Some(Candidate { place: Arc::new(place), image })),
            // What was plain is encrypted from here on.
            Err(Error::NotEncrypted { .. }) => Ok(None),
            Err(error) => Err(self.session.failed(&error)),
        }
    }

    /// This checkpoint and all below it; `below` are those that another lineage had.
    fn checkpoints(&self, below: &[Checkpoint]) -> Vec<Checkpoint> {
        let named = |id: &LayerId| {
            let entry = self.sealed.survey.layers.get(id).and_then(|layer| layer.entry.as_ref());
            let name = entry.filter(|entry| !entry.deleted).and_then(|entry| entry.name.as_ref());
            Checkpoint { id: id.to_string(), name: name.map(ToString::to_string) }
        };
        self.chain.0.iter().map(named).chain(below.iter().cloned()).take(CHECKPOINTS_MAX).collect()
    }

    /// Makes the manifest that stays, unless it is there.
    async fn keep(&self, lasting: &Place, manifest: &Manifest) -> Result<bool, Failure> {
        let there = lasting.find().await.map_err(|error| self.session.failed(&error))?;
        if there.is_some() {
            return Ok(false);
        }
        match self.session.publish_at(lasting, manifest, None).await {
            Ok(()) => Ok(true),
            // The process that published the same checkpoint meanwhile made the same disk.
            Err(Error::Store(StoreError::Exists { .. })) => Ok(false),
            Err(error) => Err(self.session.hinted(&error)),
        }
    }
}
