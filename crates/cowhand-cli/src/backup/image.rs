//! A backup of an image that is not in use, by its persistent bitmap.
//!
//! The bitmap of the next point is made first, and that of the last one is removed when the list of points has the next: whatever ends
//! the program meanwhile, the last point's bitmap has all that changed since.

use std::sync::Arc;

use block::Block;
use graph::options::{Backing, DiskOptions};
use graph::probe::Format;
use graph::{Disk, OpenRules};
use job::{Content, CopyOptions, Counters, Dirty, Marked};
use qcow2::bitmap::{Bitmap, BitmapChange, NewBitmap};
use reactor::Reactor;
use tool::failure::{Failure, warn};

use super::full::{FullBecause, why_full};
use super::manifest::{Kind, Point, Store};
use super::new_point::NewPoint;
use crate::copying::watch::Watch;
use crate::copying::{self, Memory, WAITING_BYTES_MAX};

/// What is copied as a whole: a cluster of the new image.
const UNIT_BYTES: u64 = 64 << 10;

/// Takes the next point of the disk of `options`.
///
/// # Errors
/// When something cannot be read or written, or a signal ends it: then no point is added.
pub fn take(
    store: &mut Store,
    mut options: DiskOptions,
    rules: &OpenRules,
    full: bool,
    watch: &Watch,
) -> Result<(Point, Option<FullBecause>), Failure> {
    let reactor = copying::reactor()?;
    let format = format(&options, &reactor)?;
    // A disk that is only read, as one on a web server, keeps no bitmap for the next point: that will be a
    // full one.
    options.layer.read_only |= format != Format::Qcow2 && !options.layer.bitmaps.is_named();
    let keeps_bitmaps = !options.layer.read_only;
    let disk = reactor.run(copying::open(&options, rules, "back up"))?;
    let taken = taken(store, (&disk, keeps_bitmaps), rules, full, watch, &reactor);
    let failed = |error: &dyn std::error::Error| copying::because("back up", &options, error);
    reactor.run(copying::finish(&disk, taken, failed))
}

/// Only an image that has bitmaps is opened for writing.
fn format(options: &DiskOptions, reactor: &Reactor) -> Result<Format, Failure> {
    let mut bare = options.clone();
    bare.layer.read_only = true;
    let opened = reactor.run(graph::open_bare(&bare));
    opened.map(|image| image.format).map_err(|error| copying::because("back up", options, &error))
}

fn taken(
    store: &mut Store,
    (disk, keeps_bitmaps): (&Arc<Disk>, bool),
    rules: &OpenRules,
    full: bool,
    watch: &Watch,
    reactor: &Reactor,
) -> Result<(Point, Option<FullBecause>), Failure> {
    let next = store.bitmap(store.next());
    let old = store.points().last().map(|last| store.bitmap(last.point));
    let bitmap = disk.bitmaps().into_iter().find(|bitmap| Some(bitmap.name()) == old.as_deref());
    let is_broken = disk.inconsistent_bitmaps().iter().any(|entry| Some(&entry.name) == old.as_ref());
    let recording = bitmap.as_ref().map(|bitmap| bitmap.is_recording()).or(is_broken.then_some(false));
    let full_because = why_full(store, full, recording);
    let kind = if full_because.is_some() { Kind::Full } else { Kind::Incremental };
    let tracks = keeps_bitmaps && disk.bitmap_image().is_some();
    if tracks {
        reactor.run(make_bitmap(disk, &next))?;
    }
    let copied = || {
        let new = NewPoint::make(store, kind, disk.size(), reactor)?;
        let bitmap = bitmap.filter(|_| kind == Kind::Incremental);
        reactor.run(copy(disk, bitmap.as_deref(), &new, rules, watch))?;
        new.keep(store, reactor, watch)
    };
    let point = copied();
    if tracks {
        // Of all bitmaps of these backups, one is needed: the next point's, or the last one's where there is no next.
        let kept = if point.is_ok() { Some(next) } else { old };
        let prefix = store.bitmaps();
        reactor.run(remove_bitmaps(disk, |name| name.starts_with(&prefix) && Some(name) != kept.as_deref()));
    }
    point.map(|point| (point, full_because))
}

async fn make_bitmap(disk: &Disk, name: &str) -> Result<(), Failure> {
    // Left by an interrupted run, or by points that were deleted.
    remove_bitmaps(disk, |found| found == name).await;
    let new = NewBitmap { granularity_bytes: None, recording: true, persistent: true };
    disk.change_bitmap(name, BitmapChange::Add(new))
        .await
        .map_err(|error| Failure::because("cannot make the bitmap of the next backup", &error))
}

async fn remove_bitmaps(disk: &Disk, goes: impl Fn(&str) -> bool) {
    let broken = disk.inconsistent_bitmaps().into_iter().map(|entry| entry.name);
    let names: Vec<String> =
        disk.bitmap_names().into_iter().chain(broken).filter(|name| goes(name)).collect();
    for name in names {
        if let Err(error) = disk.change_bitmap(&name, BitmapChange::Remove).await {
            warn(&format!("bitmap {name} stays: {error}"));
        }
    }
}

async fn copy(
    disk: &Arc<Disk>,
    bitmap: Option<&Bitmap>,
    new: &NewPoint,
    rules: &OpenRules,
    watch: &Watch,
) -> Result<(), Failure> {
    let mut options = DiskOptions::of_path(new.path());
    options.layer.format = Some(Format::Qcow2);
    options.layer.backing = Backing::None;
    let target = copying::open(&options, rules, "write").await?;
    let filled = fill(disk, bitmap, &target, watch).await;
    copying::finish(&target, filled, |error| copying::because("write", &options, error)).await
}

async fn fill(
    disk: &Arc<Disk>,
    bitmap: Option<&Bitmap>,
    target: &Arc<Disk>,
    watch: &Watch,
) -> Result<(), Failure> {
    let failed = |error: &dyn std::error::Error| Failure::because("cannot copy the disk", error);
    let over = Arc::clone(disk) as Arc<dyn Block>;
    let options = CopyOptions {
        memory_bytes: Memory::default().copy_bytes,
        flush_bytes: Some(WAITING_BYTES_MAX),
        ..CopyOptions::default()
    };
    let marked = match bitmap {
        None => None,
        Some(bitmap) => {
            let marks = Dirty::new(disk.size(), UNIT_BYTES);
            let ranges = bitmap.dirty_ranges().await.map_err(|error| failed(&error))?;
            ranges.into_iter().for_each(|range| marks.mark(range));
            Some(Marked { over, marks })
        }
    };
    let copy = match &marked {
        None => job::copies::whole(&**disk, &**target, Content::Zeroes, options),
        Some(marked) => job::copies::incremental(marked, &**target, options),
    };
    watch.run(&copy, &Counters::default()).await.map(drop).map_err(|error| failed(&error))
}
