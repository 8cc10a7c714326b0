//! How many images a chain has, those outside the lineage included.

use std::path::{Path, PathBuf};

use crate::error::Error;
use crate::image::{Backing, ImageFacts, backing_in_base};
use crate::layer_id::LayerId;
use crate::place::Place;
use crate::plan::CHAIN_MAX;

/// Backing files of an image of the lineage: the layers of `chain`, from the upper to the lower, and those outside. Costs a header of the lowest layer and of each
/// image outside. What is not there, or names files in a way of its own, is one image.
pub(crate) fn images_below(place: &Place, of: &ImageFacts, chain: &[LayerId]) -> usize {
    let lowest = chain.last().map(|id| ImageFacts::read(place, &place.layer(*id)));
    let lowest = match &lowest {
        None => Some(of),
        Some(read) => read.as_ref().ok().and_then(Option::as_ref),
    };
    let outside = lowest.map_or(0, |lowest| match &lowest.backing {
        Backing::Outside(name) => images_from(&lowest.path, name),
        Backing::None | Backing::Layer(_) => 0,
    });
    chain.len() + outside
}

/// The image that the one at `of` calls `name`, and those below it.
pub(crate) fn images_from(of: &Path, name: &str) -> usize {
    let (mut of, mut name, mut found) = (of.to_owned(), name.to_owned(), 0);
    while found < CHAIN_MAX {
        found += 1;
        let path: PathBuf = of.parent().unwrap_or(Path::new("")).join(&name);
        let Some(next) = backing_in_base(&path) else { break };
        (of, name) = (path, next);
    }
    found
}

/// Refuses a chain that would not open. `more` images come over the `below` that `path` has.
pub(crate) fn check_length(path: PathBuf, below: usize, more: usize) -> Result<(), Error> {
    match below + more > CHAIN_MAX {
        true => Err(Error::TooLong { disk: path, found: below, max: CHAIN_MAX }),
        false => Ok(()),
    }
}
