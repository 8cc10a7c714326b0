//! The job of a case. What it does is in crate `job`.

use std::rc::Rc;
use std::sync::Arc;

use block::Block;
use job::{
    Backup, BackupPace, BeforeWrite, Guarded, Merge, Mirror, MirrorJob, Over, Pivot, Stream, StreamJob, Task,
    Tracked, What,
};

use super::disk::Parts;
use super::guest::read_all;
use super::images::{BITMAP, Layer};
use super::note::hash;
use super::shape::{Kind, Mode};
use super::tools::grow;

fn reported(error: impl std::fmt::Display) -> String {
    error.to_string()
}

/// A disk below an image that is given what clients overwrite before they do.
#[derive(Debug)]
pub struct Changing(pub Arc<dyn Block>);

impl Block for Changing {
    fn driver(&self) -> &'static str {
        "changing"
    }

    fn over(&self) -> Option<&Arc<dyn Block>> {
        Some(&self.0)
    }

    fn changes(&self) -> bool {
        true
    }
}

/// The unit in which changes of a copy in `target` are tracked, unless set otherwise: the server's.
fn unit(target: &dyn Block) -> u64 {
    target.capabilities().cluster_bytes.unwrap_or(0).max(64 << 10)
}

/// A target that does not get all of a disk is read over another image later, whether its header names one yet or not.
fn await_backing(target: &Layer, what: What) {
    if let Some(image) = target.qcow2.as_ref().filter(|_| what != What::Everything) {
        image.await_backing();
    }
}

/// The job of a disk that is not in use yet, with what guests are to write through.
pub async fn task_of(parts: &Parts) -> Result<(Task, Arc<dyn Block>), String> {
    let kind = parts.kind();
    let block = |at: usize| Arc::clone(&parts.layers[at].block);
    let (top, lowest) = (block(0), parts.layers.len() - 1);
    Ok(match kind {
        Kind::CommitTop | Kind::CommitSeveral => {
            let base = if kind == Kind::CommitTop { 1 } else { lowest };
            grow(&parts.layers[base], top.size()).await?;
            let (target, what) = (block(base), What::Layers(base as u32));
            let unit = unit(&*target);
            mirror(parts, "commit_top", (&target, unit), what, Pivot::Layer(Arc::clone(&target))).await?
        }
        Kind::CommitMiddle | Kind::CommitSeveralMiddle => {
            let base = if kind == Kind::CommitMiddle { 2 } else { 3 };
            grow(&parts.layers[base], block(1).size()).await?;
            let (over, size_above, layers) = (Arc::clone(&top), top.size(), base as u32 - 1);
            let merge = Merge { top: block(1), layers, base: block(base), over, size_above, backing: None };
            (Task::Commit(merge), top)
        }
        Kind::Stream | Kind::StreamToBase | Kind::StreamMiddle | Kind::StreamMiddleToBase => {
            let at = usize::from(matches!(kind, Kind::StreamMiddle | Kind::StreamMiddleToBase));
            let base = matches!(kind, Kind::StreamToBase | Kind::StreamMiddleToBase).then_some(lowest);
            let guarded = Guarded::new(block(at));
            let over = if at == 0 { Arc::clone(&guarded) as Arc<dyn Block> } else { top };
            let image = block(at);
            let stream = match base {
                Some(base) => Stream::of_layers(guarded, &image, (base - at) as u32),
                None => Stream::of_everything(guarded),
            };
            (Task::Stream(StreamJob { stream, image, is_uppermost: at == 0, backing: None }), over)
        }
        Kind::MirrorFull | Kind::MirrorTop | Kind::MirrorNone => {
            let what = match kind {
                Kind::MirrorFull => What::Everything,
                Kind::MirrorTop => What::Layers(1),
                _ => What::Nothing,
            };
            let target = parts.target.as_ref().ok_or("no target")?;
            let over = Over::of(what, &*top, &*target.block);
            await_backing(target, what);
            let name = parts.images.list[target.image].name.clone();
            let pivot = Pivot::Target { name, over, replaces: None };
            let case = parts.images.case;
            let written =
                if case.compresses_copy() { target.compressing() } else { Arc::clone(&target.block) };
            mirror(parts, "mirror_top", (&written, case.granularity()), what, pivot).await?
        }
        _ => backup(parts).await?,
    })
}

async fn mirror(
    parts: &Parts,
    driver: &'static str,
    (target, unit): (&Arc<dyn Block>, u64),
    what: What,
    pivot: Pivot,
) -> Result<(Task, Arc<dyn Block>), String> {
    let is_blocking = parts.images.case.mode() == Mode::Blocking;
    let top = Arc::clone(&parts.top().block);
    let tracked = Tracked::new(driver, top, Arc::clone(target), unit, is_blocking);
    let mirror = Mirror::new(Arc::clone(&tracked));
    mirror.mark(what).await.map_err(reported)?;
    let switched = Arc::clone(&tracked);
    *parts.switch.borrow_mut() = Some(Rc::new(move || switched.be_synchronous()));
    Ok((Task::Mirror(MirrorJob { mirror, pivot }), tracked))
}

async fn backup(parts: &Parts) -> Result<(Task, Arc<dyn Block>), String> {
    let target = parts.target.as_ref().ok_or("no target")?;
    let unit = unit(&*target.block).max(parts.images.case.granularity());
    let top = Arc::clone(&parts.top().block);
    let what = match parts.kind() {
        Kind::BackupFull => What::Everything,
        Kind::BackupTop => What::Layers(1),
        Kind::BackupNone => What::Nothing,
        _ => What::Marked,
    };
    let moment = read_all(&*top).await?;
    await_backing(target, what);
    if what == What::Nothing {
        let image = target.qcow2.as_ref().ok_or("a raw target has no backing file")?;
        let below: Arc<dyn Block> = Arc::new(Changing(Arc::clone(&top)));
        image.hold_still().await.and_then(|still| still.set_backing(Some(below))).map_err(reported)?;
    }
    let written: Arc<dyn Block> = match parts.images.case.compresses_copy() {
        true => Arc::new(target.packer()?),
        false => Arc::clone(&target.block),
    };
    let filter = BeforeWrite::new(top, written, unit, None, false);
    filter.mark(what).await.map_err(reported)?;
    if what == What::Marked {
        let image = parts.top().qcow2.as_ref().ok_or("a raw disk has no bitmap")?;
        let bitmaps = image.bitmaps();
        let bitmap = bitmaps.iter().find(|bitmap| bitmap.name() == BITMAP).ok_or("the bitmap is gone")?;
        let ranges = bitmap.dirty_ranges().await.map_err(reported)?;
        ranges.into_iter().for_each(|range| filter.left().mark(range));
    }
    parts.whole.set(Some(hash(&moment)));
    *parts.moment.borrow_mut() = (what == What::Nothing).then_some(moment);
    let pace = BackupPace::default();
    Ok((Task::Backup(Backup { filter: Arc::clone(&filter), what, pace }), filter))
}
