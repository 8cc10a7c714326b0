//! Layers that nothing needs by themselves become one, while disks that are backed by them are at work.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use block::Block;
use graph::options::{Discard, DiskOptions};
use graph::probe::Format;
use graph::{Change, Disk, DiskNode, Edge, Graph, OpenRules, Put};
use job::{Life, Says, Scope};
use lineage::{Change as LineageChange, DiskPlace, LayerId, Merge, MergedLayer, PATIENCE, Place, Survey};

use crate::error::{Error, with_disk};
use crate::live::open_layer;
use crate::new_image::make_filled;
use crate::sealable::free_of_jobs;
use crate::sealed::options_of;

/// All merges of a lineage, one after the other.
pub struct LayerMerge {
    /// Which.
    pub place: Place,
    /// Layers of which less, in percent, is not needed stay as they are.
    pub waste_max: Option<u8>,
}

impl LayerMerge {
    /// Merges until there is nothing to be merged. Disks of the graph use the merged layers afterwards; files of layers that were merged are removed.
    ///
    /// # Errors
    /// When a layer cannot be read or made; [`Error::Cancelled`].
    ///
    /// # After a crash
    /// Every disk reads the same; the next merge does the rest.
    pub async fn run(&self, graph: &Graph, life: &Life) -> Result<(), Error> {
        loop {
            self.leave_merged(graph).await?;
            let rules = graph.rules();
            let merges = self.with_lineage(LineageChange::merges).await?;
            let next = first_worth(merges, (&self.place, rules), self.waste_max).await;
            let Some(next) = next? else { return Ok(()) };
            let Some(merging) = self.with_lineage(move |change| change.begin_merge(&next)).await? else {
                continue;
            };
            let copy = async |top: &_, layers, base: &_| job::merge_into(top, layers, base, life).await;
            let made = make(&merging.at(), merging.merged(), rules, copy).await;
            let made = if life.is_given_up() { Err(Error::Cancelled) } else { made };
            let is_made = made.is_ok();
            let placed = reactor::blocking(move || {
                let placed = if is_made { merging.put_in_place(PATIENCE) } else { Ok(false) };
                merging.abandon();
                placed
            });
            let placed = placed.await;
            made?;
            placed?;
        }
    }

    /// Has the disks of the graph use layers that took the place of others, whichever process merged them, and removes what nothing uses then. A disk that
    /// cannot keeps the old ones, which read the same.
    async fn leave_merged(&self, graph: &Graph) -> Result<(), Error> {
        let survey = self.with_lineage(LineageChange::survey).await?;
        for disk in graph.disks() {
            let change = graph.change().await;
            let Some(stale) = self.stale(graph, &survey, &disk) else { continue };
            if let Err(error) = exchange(graph, &change, &disk, &stale).await {
                tracing::warn!(
                    node = disk.name(),
                    error = error.in_one_line(),
                    "a disk stays on layers that were merged"
                );
            }
        }
        self.with_lineage(|change| change.apply(&change.collect(false, usize::MAX)?.0)).await
    }

    /// The first layer of a disk whose file was replaced since it was opened, if there is one: its header leads to another one than the open image.
    fn stale(&self, graph: &Graph, survey: &Survey, disk: &DiskNode) -> Option<Stale> {
        let path = graph.path_of_image(&disk.name()).ok()??;
        let found = DiskPlace::of(&path).ok().filter(|found| found.place == self.place)?;
        let wanted = survey.chain_of_disk(&found.name).ok()?;
        let layers: Vec<(usize, LayerId)> = block::layers(disk.disk.root())
            .enumerate()
            .filter_map(|(at, layer)| {
                Some((at, LayerId::of_file_name(Path::new(layer.name()).file_name()?.to_str()?)?))
            })
            .collect();
        // A checkpoint may have been taken since the lineage was looked at.
        let begins = layers.iter().position(|(_, id)| wanted.first() == Some(id))?;
        let alike =
            layers[begins..].iter().zip(&wanted).take_while(|((_, id), wanted)| id == *wanted).count();
        let is_stale = begins + alike < layers.len();
        let (at, id) = layers.get(begins + alike.checked_sub(1)?).filter(|_| is_stale)?;
        Some(Stale { above: at.checked_sub(1)?, path: self.place.layer(*id) })
    }

    /// On a thread that may wait: another command may be at work.
    async fn with_lineage<T: Send + 'static>(
        &self,
        work: impl FnOnce(&LineageChange) -> Result<T, lineage::Error> + Send + 'static,
    ) -> Result<T, Error> {
        let place = self.place.clone();
        let done = reactor::blocking(move || work(&LineageChange::begin(&place, PATIENCE)?));
        Ok(done.await?)
    }
}

/// A layer whose file was replaced.
struct Stale {
    /// Where the image that is backed by it is in the disk.
    above: usize,
    path: PathBuf,
}

async fn exchange(
    graph: &Graph,
    change: &Change<'_>,
    disk: &Arc<DiskNode>,
    stale: &Stale,
) -> Result<(), Error> {
    // A job counts the layers of its disk.
    free_of_jobs(graph, disk)?;
    let put = Put::Opened(open_layer(graph, change, disk, &stale.path).await?);
    let edge = Edge::Backing { of: stale.above };
    let replaced = graph.replace(change, &disk.name(), edge, put, async || Ok(())).await;
    let replaced = replaced.map_err(|source| Error::Switch { disk: disk.name(), source })?;
    replaced.removed.close().await.map_err(Error::image("close", &stale.path))
}

/// Makes one at `at`, where nothing is, and has `copy` bring to it what so many layers have, from the uppermost of them: durable when this returns, and from the
/// first byte no more open than the layers.
///
/// # Errors
/// When it cannot be made or copied. Then nothing is there.
pub async fn make(
    at: &Path,
    merged: &MergedLayer,
    rules: &OpenRules,
    copy: impl AsyncFnOnce(&dyn Block, u32, &dyn Block) -> Result<(), job::Error>,
) -> Result<(), Error> {
    let filled = async || fill(at, merged, rules, copy).await;
    make_filled(at, merged.backing.clone(), (&merged.shape, merged.access), filled).await
}

/// The first of `merges` that `is_worth` its copy.
///
/// # Errors
/// As there.
pub async fn first_worth(
    merges: Vec<Merge>,
    at: (&Place, &OpenRules),
    waste_max: Option<u8>,
) -> Result<Option<Merge>, Error> {
    for merge in merges {
        if is_worth(&merge, at, waste_max).await? {
            return Ok(Some(merge));
        }
    }
    Ok(None)
}

/// Those of a list that are.
///
/// # Errors
/// As `is_worth`.
pub async fn worth(
    merges: Vec<Merge>,
    at: (&Place, &OpenRules),
    waste_max: Option<u8>,
) -> Result<Vec<Merge>, Error> {
    let mut found = Vec::new();
    for merge in merges {
        if is_worth(&merge, at, waste_max).await? {
            found.push(merge);
        }
    }
    Ok(found)
}

/// Whether more than `waste_max` percent of the bytes that the layers take are not needed; always without a bound. Reads maps alone.
///
/// # Errors
/// When a layer cannot be read.
async fn is_worth(
    merge: &Merge,
    (place, rules): (&Place, &OpenRules),
    waste_max: Option<u8>,
) -> Result<bool, Error> {
    let Some(max) = waste_max else { return Ok(true) };
    let wasted = merge.bytes.saturating_sub(needed_bytes(merge, place, rules).await?);
    Ok(u128::from(wasted) * 100 > u128::from(merge.bytes) * u128::from(max))
}

/// Bytes of data that the layers have and that none of them hides.
async fn needed_bytes(merge: &Merge, place: &Place, rules: &OpenRules) -> Result<u64, Error> {
    let options = options_of(&place.layer(merge.into));
    let count = async |top: &Disk| {
        let (mut at, mut needed) = (0, 0);
        let scope = Scope::Layers(u32::try_from(merge.layers()).unwrap_or(u32::MAX));
        while at < top.size() {
            let status = top.block_status(at, top.size() - at).await;
            let status = status.map_err(Error::image("read the map of", &options.filename))?;
            needed += if scope.says(&status) == Says::Data { status.len } else { 0 };
            at += status.len;
        }
        Ok(needed)
    };
    with_disk(&options, rules, "read", count).await
}

async fn fill(
    at: &Path,
    merged: &MergedLayer,
    rules: &OpenRules,
    copy: impl AsyncFnOnce(&dyn Block, u32, &dyn Block) -> Result<(), job::Error>,
) -> Result<(), Error> {
    let (from, mut to) = (options_of(&merged.top), DiskOptions::of_path(at));
    to.layer.format = Some(Format::Qcow2);
    to.layer.discard = Discard::Unmap;
    let layers = u32::try_from(merged.layers).unwrap_or(u32::MAX);
    let into = async |source: &Disk| {
        let copy = async |target: &Disk| {
            let copied = copy(source, layers, target).await;
            copied.map_err(Error::image("merge", &merged.top))
        };
        with_disk(&to, rules, "write", copy).await
    };
    with_disk(&from, rules, "read", into).await
}
