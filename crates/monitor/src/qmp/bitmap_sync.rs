//! What a job copies, by its arguments `sync`, `bitmap` and `bitmap-mode`.

use std::sync::Arc;

use control::{Arguments, QmpError};
use graph::DiskNode;
use job::What;

use super::dirty_bitmaps;
use crate::inventory::Inventory;
use crate::jobs::{BitmapMode, BitmapSync};

/// What is copied first, and the bitmap that says so or follows.
///
/// # Errors
/// Arguments that QEMU refuses, too; a bitmap that is not there, inconsistent, or in use.
pub fn of(
    inventory: &Inventory,
    disk: &Arc<DiskNode>,
    arguments: Arguments<'_>,
) -> Result<(What, Option<BitmapSync>), QmpError> {
    let sync = arguments.text("sync")?;
    let what = match sync {
        // A raw disk over an image has no backing file of its own, and a copy of it gets none.
        "top" if disk.disk.top_image().below().is_some() => What::Layers(1),
        "full" | "top" => What::Everything,
        "none" => What::Nothing,
        _ => What::Marked,
    };
    let mode = mode(arguments)?;
    let Some(name) = arguments.maybe_text("bitmap") else {
        return match (what, mode) {
            (What::Marked, _) => Err(QmpError::generic(format!("sync {sync:?} needs argument 'bitmap'"))),
            (_, Some(_)) => {
                Err(QmpError::generic("argument 'bitmap-mode' means nothing without argument 'bitmap'"))
            }
            (_, None) => Ok((what, None)),
        };
    };
    let mode = match (sync, mode) {
        ("incremental", None | Some(BitmapMode::OnSuccess)) => BitmapMode::OnSuccess,
        ("incremental", Some(_)) => {
            return Err(QmpError::generic(
                "sync \"incremental\" goes with bitmap-mode on-success only; give sync bitmap for another one",
            ));
        }
        ("none", _) => {
            return Err(QmpError::generic("sync \"none\" has no use for argument 'bitmap'"));
        }
        (_, None) => return Err(QmpError::generic("argument 'bitmap' needs argument 'bitmap-mode'")),
        ("full" | "top", Some(BitmapMode::Never)) => {
            return Err(QmpError::generic(format!(
                "bitmap-mode \"never\" means nothing with sync {sync:?}: the bitmap would be neither read nor changed"
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

fn mode(arguments: Arguments<'_>) -> Result<Option<BitmapMode>, QmpError> {
    Ok(match arguments.maybe_text("bitmap-mode") {
        None => None,
        Some("on-success") => Some(BitmapMode::OnSuccess),
        Some("never") => Some(BitmapMode::Never),
        Some(_) => Some(BitmapMode::Always),
    })
}
