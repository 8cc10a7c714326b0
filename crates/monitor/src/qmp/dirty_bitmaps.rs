//! block-dirty-bitmap-add, -remove, -clear, -enable, -disable and -merge, x-debug-block-dirty-bitmap-sha256, and what queries tell of them.

use std::fmt::Write as _;
use std::rc::Rc;
use std::sync::Arc;

use control::{Kind, QmpError, Takes, arguments};
use graph::{Change, DiskNode};
use qcow2::bitmap::{Bitmap, BitmapChange, NewBitmap};
use qcow2_layout::BitmapEntry;
use serde_json::{Value, json};
use sha2::{Digest, Sha256};

use super::job_maps;
use crate::inventory::Inventory;
use crate::jobs::Work;

/// Bitmaps in one answer; an image may have 65,535.
const TOLD_MAX: usize = 1024;

arguments! {
    /// Which bitmap is meant.
    pub struct Which { node: String, name: String }

    /// A bitmap to be.
    pub struct Add {
        node: String, name: String, granularity: Option<u64>, persistent: Option<bool>,
        disabled: Option<bool>,
    }

    /// Whose bits go into which.
    pub struct Merge { node: String, target: String, bitmaps: Vec<Named> }
}

/// A bitmap: of the node that is meant anyway, or of another one.
#[derive(serde::Deserialize)]
#[serde(untagged)]
pub enum Named {
    /// Its name.
    Here(String),
    /// Its node, too.
    Of(Which),
}

impl Takes for Named {
    const KIND: Kind = Kind::Either(&[&Kind::Text, &Which::KIND]);
}

impl Named {
    /// The node, if one is given, and the name.
    pub fn parts(&self) -> (Option<&str>, &str) {
        match self {
            Self::Here(name) => (None, name),
            Self::Of(Which { node, name }) => (Some(node), name),
        }
    }
}

/// Makes one.
///
/// # Errors
/// When it cannot be made.
pub async fn add(inventory: &Inventory, layers: &Change<'_>, given: &Add) -> Result<(), QmpError> {
    let (node, name) = (inventory.disk(&given.node)?, given.name.as_str());
    let new = NewBitmap {
        granularity_bytes: given.granularity,
        recording: given.disabled != Some(true),
        persistent: given.persistent == Some(true),
    };
    if !new.persistent {
        // Any disk may have bitmaps that go with it.
        let taken = inventory.graph.take_bitmaps_in_memory(layers, &node).await;
        taken.map_err(|error| {
            QmpError::because(format!("cannot make bitmap {name:?} of node {:?}", node.name()), &error)
        })?;
    }
    done(&node, name, "make", BitmapChange::Add(new)).await
}

/// Changes one in another way.
///
/// # Errors
/// When there is no such bitmap, it is in use, or it is inconsistent and does not go.
pub async fn change(
    inventory: &Inventory,
    Which { node, name }: &Which,
    change: BitmapChange,
) -> Result<(), QmpError> {
    let node = inventory.disk(node)?;
    check_idle(inventory, &node, name)?;
    if !matches!(change, BitmapChange::Remove) {
        find(&node, name)?;
    }
    done(&node, name, "change", change).await
}

/// Sets the bits that others have. Everything is checked before the first bitmap is merged: what can be known to fail fails before anything has
/// changed.
///
/// # Errors
/// When a bitmap is not there, in use, or of another size.
pub async fn merge(inventory: &Inventory, Merge { node, target, bitmaps }: &Merge) -> Result<(), QmpError> {
    let node = inventory.disk(node)?;
    check_idle(inventory, &node, target)?;
    let size = find(&node, target)?.size();
    let mut sources = Vec::new();
    for (of, name) in bitmaps.iter().map(Named::parts) {
        let from = of.map_or_else(|| Ok(Arc::clone(&node)), |of| inventory.disk(of))?;
        check_idle(inventory, &from, name)?;
        let found = find(&from, name)?;
        if found.size() != size {
            let (found, name) = (found.size(), found.name());
            return Err(QmpError::generic(format!(
                "bitmap {name:?} is of a disk of {found} bytes; the target's has {size}"
            )));
        }
        sources.push(found);
    }
    let mut merged: Vec<String> = Vec::new();
    for source in sources {
        let name = source.name().to_owned();
        if let Err(mut error) = done(&node, target, "merge into", BitmapChange::Merge(source)).await {
            if !merged.is_empty() {
                error.desc.push_str(&format!("; these are merged: {}", merged.join(", ")));
            }
            return Err(error);
        }
        merged.push(name);
    }
    Ok(())
}

async fn done(node: &DiskNode, name: &str, doing: &str, change: BitmapChange) -> Result<(), QmpError> {
    let changed = node.disk.change_bitmap(name, change).await;
    changed.map_err(|error| {
        QmpError::because(format!("cannot {doing} bitmap {name:?} of node {:?}", node.name()), &error)
    })
}

/// The SHA-256 of all bits, 64 a word, as QEMU calculates it.
///
/// # Errors
/// When there is no such bitmap, or it cannot be read.
pub async fn sha256(inventory: &Inventory, Which { node, name }: &Which) -> Result<Value, QmpError> {
    let mut digest = Sha256::new();
    let bitmap = find(&*inventory.disk(node)?, name)?;
    let read = bitmap.each_word(|word| digest.update(word.to_le_bytes())).await;
    read.map_err(|error| QmpError::because(format!("cannot read bitmap {name:?}"), &error))?;
    let mut text = String::new();
    for byte in digest.finalize() {
        // Writing to a string does not fail.
        let _ = write!(text, "{byte:02x}");
    }
    Ok(json!({ "sha256": text }))
}

/// The bitmap called `name`, whose content can be trusted.
///
/// # Errors
/// When there is none, or it is inconsistent.
pub fn find(node: &DiskNode, name: &str) -> Result<Arc<Bitmap>, QmpError> {
    if let Some(found) = node.disk.bitmaps().into_iter().find(|bitmap| bitmap.name() == name) {
        return Ok(found);
    }
    let inconsistent = node.disk.inconsistent_bitmaps().iter().any(|entry| entry.name == name);
    Err(QmpError::generic(match inconsistent {
        true => format!(
            "bitmap {name:?} of node {:?} is inconsistent: it missed changes, and can only be removed",
            node.name()
        ),
        false => format!("node {:?} has no bitmap {name:?}", node.name()),
    }))
}

/// Refuses to change what clients of an export are reading, or what a job uses.
///
/// # Errors
/// Names the export or the job.
pub fn check_idle(inventory: &Inventory, node: &Arc<DiskNode>, name: &str) -> Result<(), QmpError> {
    if let Some(export) = exported_by(inventory, node, name) {
        return Err(QmpError::generic(format!(
            "bitmap {name:?} of node {:?} is shown by export {export:?}: remove that first",
            node.name()
        )));
    }
    check_free_of_jobs(inventory, node, name)
}

/// Refuses what a job uses.
///
/// # Errors
/// Names the job.
pub fn check_free_of_jobs(inventory: &Inventory, node: &Arc<DiskNode>, name: &str) -> Result<(), QmpError> {
    match used_by_job(inventory, node, name) {
        Some((job, _)) => Err(QmpError::generic(format!(
            "bitmap {name:?} of node {:?} is in use by job {job:?}",
            node.name()
        ))),
        None => Ok(()),
    }
}

/// The job that uses a bitmap: its id, and its work.
fn used_by_job(inventory: &Inventory, node: &Arc<DiskNode>, name: &str) -> Option<(String, Rc<Work>)> {
    inventory.jobs.all().iter().find_map(|job| {
        let work = job.work()?;
        let uses = work.bitmap().is_some_and(|bitmap| Arc::ptr_eq(&bitmap.disk, node) && bitmap.name == name);
        uses.then(|| (job.life.terms().id.clone(), work))
    })
}

fn exported_by(inventory: &Inventory, node: &Arc<DiskNode>, name: &str) -> Option<String> {
    inventory.find_export(|export| export.shows(node, name)).map(|export| export.id.clone())
}

/// The bitmaps of a disk, as BlockDirtyInfo, the newest first; one that a backup uses as it was when that began. Costs reading the bits that are not in memory.
pub async fn infos(inventory: &Inventory, node: &Arc<DiskNode>) -> Vec<Value> {
    let mut infos = job_maps::of_disk(inventory, node);
    for bitmap in node.disk.bitmaps().iter().rev().take(TOLD_MAX) {
        let user = used_by_job(inventory, node, bitmap.name());
        let at_begin = user.as_ref().and_then(|(_, work)| work.bitmap()?.count_at_begin());
        let count = match at_begin {
            Some(count) => count,
            None => bitmap.dirty_bytes().await.unwrap_or_else(|error| {
                tracing::warn!("{error}");
                0
            }),
        };
        infos.push(json!({
            "name": bitmap.name(),
            "count": count,
            "granularity": bitmap.granularity_bytes(),
            "recording": bitmap.is_recording(),
            "busy": user.is_some() || exported_by(inventory, node, bitmap.name()).is_some(),
            "persistent": bitmap.is_persistent(),
        }));
    }
    let inconsistent = |entry: &BitmapEntry| {
        json!({
            "name": entry.name,
            "count": 0,
            "granularity": 1u64 << entry.granularity_bits,
            "recording": false,
            "busy": false,
            "persistent": true,
            "inconsistent": true,
        })
    };
    let left = TOLD_MAX.saturating_sub(infos.len());
    infos.extend(node.disk.inconsistent_bitmaps().iter().rev().take(left).map(inconsistent));
    infos
}

/// What a bitmap was before a transaction changed it.
pub struct Before {
    node: Arc<DiskNode>,
    name: String,
    /// None: there was none.
    was: Option<(NewBitmap, Arc<Bitmap>)>,
}

/// Does `change`, a command about `bitmap` of `node`, as a part of a transaction; `is_there`: the bitmap is not made by it. Costs a copy of the bits in
/// memory.
///
/// # Errors
/// As the command alone; when the bitmap is inconsistent: what cannot be read cannot be put back.
pub async fn undoably(
    inventory: &Inventory,
    (node, bitmap): (&str, &str),
    is_there: bool,
    change: impl Future<Output = Result<(), QmpError>>,
) -> Result<Before, QmpError> {
    let node = inventory.disk(node)?;
    let was = match is_there {
        false => None,
        true => {
            let found = find(&node, bitmap)?;
            let cannot = |error| QmpError::because(format!("cannot read bitmap {bitmap:?}"), &error);
            let ranges = found.dirty_ranges().await.map_err(cannot)?;
            let bits = Bitmap::of_ranges(found.size(), found.granularity_bytes(), ranges).map_err(cannot)?;
            let spec = NewBitmap {
                granularity_bytes: Some(found.granularity_bytes()),
                recording: found.is_recording(),
                persistent: found.is_persistent(),
            };
            Some((spec, bits))
        }
    };
    change.await?;
    Ok(Before { node, name: bitmap.to_owned(), was })
}

impl Before {
    /// Puts it back. The disk has been drained since.
    ///
    /// # Errors
    /// Says that the bitmap stays changed, and why.
    pub async fn undo(self) -> Result<(), String> {
        let Self { node, name, was } = self;
        let put_back = async {
            let Some((spec, bits)) = was else {
                return node.disk.change_bitmap(&name, BitmapChange::Remove).await;
            };
            match node.disk.bitmaps().iter().any(|bitmap| bitmap.name() == name) {
                true => node.disk.change_bitmap(&name, BitmapChange::Record(spec.recording)).await?,
                false => node.disk.change_bitmap(&name, BitmapChange::Add(spec)).await?,
            }
            node.disk.change_bitmap(&name, BitmapChange::Become(bits)).await
        };
        put_back.await.map_err(|error| format!("bitmap {name:?} of {:?} is changed ({error})", node.name()))
    }
}
