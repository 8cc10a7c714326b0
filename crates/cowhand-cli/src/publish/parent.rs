//! A checkpoint at the store that the lineage knows, too: what differs from it by the maps alone is read, and nothing else.

use std::sync::Arc;

use block::Block;
use graph::{Disk, OpenRules};
use job::Dirty;
use lineage::LayerId;
use storage_chunked::{CHUNK_BYTES_MIN, Error, Manifest, Place, Published};

use crate::copying;
use crate::failure::Failure;
use crate::lineages::difference::Differences;
use crate::lineages::sealed::{Sealed, chain_of, options_of};

/// Images that are asked for at most: each is one request, and most are there or none is.
const ASKED_MAX: usize = 32;

/// An image at the store, with the checkpoints that it names.
pub struct Candidate {
    /// Where it is.
    pub place: Arc<Place>,
    /// What it says.
    pub image: Published,
    /// The lowest layer is backed by it.
    pub is_base: bool,
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

impl Parent {
    /// The first checkpoint of the candidates that the lineage has, with its image at the store: `chain` are the layers of `sealed`.
    ///
    /// # Errors
    /// When the store does not answer, or an image there cannot be read.
    pub async fn find(
        sealed: &Sealed,
        chain: &[LayerId],
        candidates: &[Candidate],
        new: &Manifest,
    ) -> Result<Option<Self>, Error> {
        let mut asked = 0;
        for candidate in candidates {
            for (at, checkpoint) in candidate.image.manifest.checkpoints().iter().enumerate() {
                let way = match candidate.is_base && at == 0 {
                    true => Some(Way::Below(chain.len())),
                    false => way(sealed, chain, &checkpoint.id),
                };
                let Some(way) = way else { continue };
                let lasting = candidate.place.of_checkpoint(&checkpoint.id);
                let image = match at {
                    0 => Some(candidate.image.clone()),
                    _ if asked == ASKED_MAX => return Ok(None),
                    _ => {
                        asked += 1;
                        lasting.find().await?
                    }
                };
                // What it is of is what it says, not what it is called.
                let is_it = |image: &Published| {
                    image.manifest.checkpoints().first().is_some_and(|first| first.id == checkpoint.id)
                };
                if let Some(image) = image.filter(|image| is_it(image) && image.manifest.has_objects_for(new))
                {
                    return Ok(Some(Self { image_name: lasting.image(), image, way }));
                }
            }
        }
        Ok(None)
    }

    /// What of the disk may differ from the parent, by the maps of both.
    ///
    /// # Errors
    /// When a map cannot be read.
    pub async fn changed(&self, disk: &Disk, sealed: &Sealed, rules: &OpenRules) -> Result<Dirty, Failure> {
        let marks = Dirty::new(disk.size(), CHUNK_BYTES_MIN);
        match self.way {
            Way::Below(layers) => {
                let marked = mark_above(&*disk.root(), layers, &marks).await;
                marked.map_err(|error| Failure::because("cannot read a map", &error))?;
            }
            Way::Beside(id) => {
                let options = options_of(&sealed.survey.place.layer(id));
                let other = copying::open(&options, rules, "read").await?;
                let marked = mark_differences(disk, &other, &marks).await;
                let marked = marked.map_err(|error| Failure::because("cannot read a map", &error));
                copying::finish(&other, marked, |error| copying::because("close", &options, error)).await?;
            }
        }
        Ok(marks)
    }
}

/// Where the lineage has the checkpoint of this id; `None` if it has not, or not as it was sealed.
fn way(sealed: &Sealed, chain: &[LayerId], id: &str) -> Option<Way> {
    let id = LayerId::parse(id)?;
    match chain.iter().position(|layer| *layer == id) {
        Some(layers) => Some(Way::Below(layers)),
        None => chain_of(&sealed.survey, id).is_ok().then_some(Way::Beside(id)),
    }
}

/// Marks what the upper `layers` of a disk say something about.
async fn mark_above(disk: &dyn Block, layers: usize, marks: &Dirty) -> Result<(), block::Error> {
    let (mut at, end) = (0, if layers == 0 { 0 } else { disk.size() });
    while at < end {
        let status = disk.block_status(at, end - at).await?;
        if (status.depth as usize) < layers {
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
