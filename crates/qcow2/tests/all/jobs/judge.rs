//! What must be true of the images at any moment.

use std::sync::Arc;

use block::Block;
use qcow2::{Options, Progress, Qcow2, Repair, check};
use sim::{CrashState, World};
use storage::{Hints, IoBuf};

use super::images::{BASE, COPY, FILES, OVERLAY, SIZE, TOP, at_the_start};
use super::note::{Note, hash};
use super::target::{JobTarget, open_alone, open_chain};
use crate::harness;

const SECTOR: usize = 512;

/// All that `image` reads as.
pub async fn read_all(image: &dyn Block) -> Result<IoBuf, String> {
    let (read, bytes) = image.read(0, IoBuf::zeroed(SIZE as usize), Hints::NONE).await;
    // What reads as zeroes need not be in the buffer.
    let kind = read.map_err(|error| error.to_string())?;
    Ok(if kind == block::ReadKind::Zeroes { IoBuf::zeroed(SIZE as usize) } else { bytes })
}

/// No image is worse than leaky, by two opinions; gives the leaks.
pub async fn images_are_sound(world: &World) -> Result<u64, String> {
    let mut leaks = 0;
    let stands_on_overlay = Note::of(world).stands_on == OVERLAY;
    for disk in (0..FILES.len()).filter(|disk| *disk != OVERLAY || stands_on_overlay) {
        let name = FILES[disk];
        let mut found = Vec::new();
        let mut listen = |seen: Progress<'_>| {
            if let Progress::Found(finding) = seen {
                found.push(finding.to_string());
            }
        };
        let report = check(&world.open(disk), Repair::None, &mut listen).await;
        let report = report.map_err(|error| format!("{name}: {error}"))?;
        if report.corruptions + report.check_errors > 0 {
            return Err(format!("{name}: {report:?}: {}", found.join("; ")));
        }
        harness::judge::check(&world.current(disk), &[]).map_err(|error| format!("{name}: {error}"))?;
        leaks += report.leaks;
    }
    Ok(leaks)
}

/// Each bitmap that is to be trusted has as dirty what differs from the start, in the view of its image; gives how many those are.
pub async fn bitmaps_are_true(world: &World) -> Result<usize, String> {
    let mut count = 0;
    // What lies below an image that no longer backs the disk has changed.
    let top = matches!(Note::of(world).stands_on, TOP | OVERLAY).then_some(TOP);
    for disk in top.into_iter().chain([BASE]) {
        let options = |_| Options { writable: false, ..Options::default() };
        let layers = open_chain(world, disk, options, &Arc::default()).await?;
        let Some((_, image)) = layers.first() else { continue };
        let (now, before) = (read_all(image).await?, at_the_start(disk));
        for bitmap in image.bitmaps() {
            count += 1;
            for at in (0..SIZE as usize).step_by(SECTOR) {
                if now[at..at + SECTOR] == before[at..at + SECTOR] {
                    continue;
                }
                let said =
                    bitmap.status(at as u64, SECTOR as u64).await.map_err(|error| error.to_string())?;
                if !said.dirty {
                    return Err(format!("{}: {at:#x} changed, and its bitmap says clean", FILES[disk]));
                }
            }
        }
    }
    Ok(count)
}

/// A copy of which the platform was informed that it is whole is what it was then.
pub async fn whole_copy_is_whole(world: &World) -> Result<(), String> {
    let Some(expected) = Note::of(world).whole else { return Ok(()) };
    let options = Options { writable: false, ..Options::default() };
    let image: Qcow2 = open_alone(world, COPY, options, Arc::default()).await?;
    match hash(&read_all(&image).await?) == expected {
        true => Ok(()),
        false => Err("the copy is called whole and is not what the disk was".into()),
    }
}

impl JobTarget {
    /// No crash loses a bitmap.
    pub fn keeps_its_bitmaps(&self, state: &CrashState) -> Result<(), String> {
        let (world, _disks) = state.boot(1);
        let expected = if matches!(Note::of(&world).stands_on, TOP | OVERLAY) { 2 } else { 1 };
        let found = sim::run(&world, 1, async |sim| bitmaps_are_true(sim.world()).await);
        match found.map_err(|stuck| stuck.to_string())?? {
            found if found == expected => Ok(()),
            found => Err(format!("of {expected} bitmaps {found} can be trusted")),
        }
    }
}
