//! A checkpoint at the store that the lineage knows, too: what differs from it by the maps alone is read, and nothing else.

use std::sync::Arc;

use block::Block;
use graph::{Disk, OpenRules};
use job::{Above, Dirty, Says};
use lineage::LayerId;
use remote::chunked::{Error, Of, Place, Published};

use super::deltas::marks;
use crate::difference::Differences;
use crate::error::{Error as Refused, with_disk};
use crate::sealed::{Sealed, options_of};

/// Images that are read at most until one is a parent: the first one is, unless it is not what it is called.
const READ_MAX: usize = 32;

/// The checkpoint that is published, among those of its lineage.
#[derive(Clone, Copy)]
pub struct Search<'a> {
    /// The checkpoint.
    pub sealed: &'a Sealed,
    /// Its layers from the upper to the lower.
    pub chain: &'a [LayerId],
    /// The image that the lowest layer is backed by, if that is a published checkpoint.
    pub base: Option<&'a Candidate>,
}

/// An image at the store.
pub struct Candidate {
    /// Where it is.
    pub place: Arc<Place>,
    /// What it says.
    pub image: Published,
}

/// The image of which chunks are taken.
pub struct Parent {
    /// What messages call it.
    pub image_name: String,
    /// What it says.
    pub image: Published,
    way: Way,
}

/// Where the lineage has the parent.
#[derive(Clone, Copy)]
enum Way {
    /// Below so many layers of the checkpoint.
    Below(usize),
    /// In another branch.
    Beside(LayerId),
}

impl Search<'_> {
    /// The checkpoint that `candidate` is, if the lineage has it.
    pub fn parent(self, candidate: &Candidate) -> Option<Parent> {
        let Candidate { place, image } = candidate;
        let id = &image.manifest.checkpoints().first()?.id;
        let (_, way) = self.way(&place.of_checkpoint(id), id)?;
        Some(Parent { image_name: place.of_checkpoint(id).image(), image: image.clone(), way })
    }

    /// The nearest checkpoint of the lineage that stays at the store, of the image at `place` or of its folder. Those with the fewest layers that only one of the two is backed by are the nearest. `fits` says whether chunks of an image can be taken.
    ///
    /// # Errors
    /// When the store does not answer, or an image there cannot be read.
    pub async fn nearest(
        self,
        place: &Place,
        of: Of,
        fits: impl Fn(&Published) -> bool,
        warn: impl Fn(&str),
    ) -> Result<Option<Parent>, Error> {
        let base = self.base.filter(|_| of == Of::Folder).map(|base| Arc::clone(&base.place));
        let places = self.listed(place, of, warn).await?.into_iter().map(Arc::new).chain(base);
        let ranked = places.filter_map(|place| {
            let (distance, way) = self.way(&place, place.checkpoint()?)?;
            Some((distance, way, place))
        });
        let mut ranked: Vec<_> = ranked.collect();
        ranked.sort_by_key(|(distance, ..)| *distance);
        for (_, way, place) in ranked.into_iter().take(READ_MAX) {
            // What it is of is what it says, not what it is called.
            let is_it = |image: &Published| {
                let first = image.manifest.checkpoints().first();
                first.is_some_and(|first| place.checkpoint() == Some(&first.id))
            };
            let found = match place.find().await {
                // Its chunks are encrypted otherwise.
                Err(error) if error.is_of_another_key() => None,
                found => found?,
            };
            if let Some(image) = found.filter(|image| is_it(image) && fits(image)) {
                return Ok(Some(Parent { image_name: place.image(), image, way }));
            }
        }
        Ok(None)
    }

    /// Where checkpoints of the lineage stay. A folder that may not be listed has none.
    async fn listed(self, place: &Place, of: Of, warn: impl Fn(&str)) -> Result<Vec<Place>, Error> {
        let layers = &self.sealed.survey.layers;
        let is_known = |id: &str| LayerId::parse(id).is_some_and(|id| layers.contains_key(&id));
        let listed = async {
            // A folder may have more names than are looked at.
            let mut places = place.checkpoints(Of::Image, is_known).await?;
            if of == Of::Folder {
                places.extend(place.checkpoints(of, is_known).await?);
            }
            Ok(places)
        };
        match listed.await {
            Err(error) if Error::is_forbidden(&error) => {
                warn(&format!("no parent is looked for among other checkpoints of the folder: {error}"));
                Ok(Vec::new())
            }
            listed => listed,
        }
    }

    /// Where the lineage has the checkpoint `id`, which stays at `place`, and how many layers are of only one of both; `None` if it has not, or not as it was sealed.
    fn way(self, place: &Place, id: &str) -> Option<(usize, Way)> {
        let Self { sealed, chain, base } = self;
        if base.is_some_and(|base| base.place.image() == place.image()) {
            return Some((chain.len(), Way::Below(chain.len())));
        }
        let id = LayerId::parse(id)?;
        if let Some(layers) = chain.iter().position(|layer| *layer == id) {
            return Some((layers, Way::Below(layers)));
        }
        let (other, _) = sealed.survey.sealed_chain(id).ok()?;
        let common =
            chain.iter().rev().zip(other.iter().rev()).take_while(|(own, other)| own == other).count();
        Some((chain.len() + other.len() - 2 * common, Way::Beside(id)))
    }
}

impl Parent {
    /// What of the disk may differ from the parent, by the maps of both.
    ///
    /// # Errors
    /// When a map cannot be read.
    pub async fn changed(&self, disk: &Disk, sealed: &Sealed, rules: &OpenRules) -> Result<Dirty, Refused> {
        let marks = marks(disk.size());
        match self.way {
            Way::Below(layers) => {
                let marked = mark_above(disk.root(), layers, &marks).await;
                marked.map_err(Refused::image("read the map of", disk.name().as_ref()))?;
            }
            Way::Beside(id) => {
                let options = options_of(&sealed.survey.place.layer(id));
                let mark = async |other: &Disk| {
                    let marked = mark_differences(disk, other, &marks).await;
                    marked.map_err(Refused::image("read the map of", disk.name().as_ref()))
                };
                with_disk(&options, rules, "read", mark).await?;
            }
        }
        Ok(marks)
    }
}

/// Marks what the upper `layers` of a disk say something about, and what lies behind the end of those below.
async fn mark_above(disk: Arc<dyn Block>, layers: usize, marks: &Dirty) -> Result<(), block::Error> {
    let below = block::layers(Arc::clone(&disk)).nth(layers).map_or(0, |below| below.size());
    let above = Above { layers: u32::try_from(layers).unwrap_or(u32::MAX), end: below };
    let (mut at, end) = (0, disk.size());
    while at < end {
        let (scope, length) = above.at(at, end - at);
        let status = disk.block_status(at, length).await?;
        if scope.says(&status) != Says::Nothing {
            marks.mark(at..at + status.len);
        }
        at += status.len;
    }
    Ok(())
}

/// Marks what a layer of only one of two disks says something about.
async fn mark_differences(disk: &Disk, other: &Disk, marks: &Dirty) -> Result<(), block::Error> {
    let (mut differences, end) = (Differences::of(disk.root(), other.root(), 0), disk.size());
    while let Some(part) = differences.next().await? {
        marks.mark(part.start.min(end)..(part.start + part.length).min(end));
    }
    Ok(())
}
