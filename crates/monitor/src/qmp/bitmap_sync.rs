//! What a job copies, by its arguments `sync`, `bitmap` and `bitmap-mode`.

use std::sync::Arc;

use control::{QmpError, arguments, choice};
use graph::DiskNode;
use job::What;

use super::dirty_bitmaps;
use crate::inventory::Inventory;
use crate::jobs::{BitmapMode, BitmapSync};

arguments! {
    /// What a job copies.
    #[derive(Clone)]
    pub struct Copied { sync: Sync, bitmap: Option<String>, bitmap_mode: Option<BitmapMode> }
}

choice! {
    /// What of a disk is copied.
    pub enum Sync { Top, Full, None, Incremental, Bitmap }
}

/// What is copied first, and the bitmap that says so or follows.
///
/// # Errors
/// Arguments that QEMU refuses, too; a bitmap that is not there, inconsistent, or in use.
pub fn of(
    inventory: &Inventory,
    disk: &Arc<DiskNode>,
    Copied { sync, bitmap, bitmap_mode }: &Copied,
) -> Result<(What, Option<BitmapSync>), QmpError> {
    let (mode, said) = (*bitmap_mode, sync.name());
    let what = match sync {
        // A raw disk over an image has no backing file of its own, and a copy of it gets none.
        Sync::Top if disk.disk.top_image().below().is_some() => What::Layers(1),
        Sync::Full | Sync::Top => What::Everything,
        Sync::None => What::Nothing,
        Sync::Incremental | Sync::Bitmap => What::Marked,
    };
    let Some(name) = bitmap else {
        return match (what, mode) {
            (What::Marked, _) => Err(QmpError::generic(format!("sync {said:?} needs argument 'bitmap'"))),
            (_, Some(_)) => {
                Err(QmpError::generic("argument 'bitmap-mode' means nothing without argument 'bitmap'"))
            }
            (_, None) => Ok((what, None)),
        };
    };
    let mode = match (sync, mode) {
        (Sync::Incremental, None | Some(BitmapMode::OnSuccess)) => BitmapMode::OnSuccess,
        (Sync::Incremental, Some(_)) => {
            return Err(QmpError::generic(
                "sync \"incremental\" goes with bitmap-mode on-success only; give sync bitmap for another one",
            ));
        }
        (Sync::None, _) => {
            return Err(QmpError::generic("sync \"none\" has no use for argument 'bitmap'"));
        }
        (_, None) => return Err(QmpError::generic("argument 'bitmap' needs argument 'bitmap-mode'")),
        (Sync::Full | Sync::Top, Some(BitmapMode::Never)) => {
            return Err(QmpError::generic(format!(
                "bitmap-mode \"never\" means nothing with sync {said:?}: the bitmap would be neither read nor changed"
            )));
        }
        (_, Some(mode)) => mode,
    };
    dirty_bitmaps::check_idle(inventory, disk, name)?;
    let bitmap = dirty_bitmaps::find(disk, name)?;
    if mode != BitmapMode::Never && disk.disk.read_only() {
        return Err(QmpError::generic(format!(
            "node {:?} is read-only: its bitmap {name:?} cannot change; give sync bitmap with bitmap-mode never",
            disk.name()
        )));
    }
    Ok((what, Some(BitmapSync::new(Arc::clone(disk), &bitmap, mode))))
}
