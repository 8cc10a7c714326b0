//! The jobs of the simulated machine. What they do is in crate `job`.

use std::sync::Arc;

use block::Block;
use job::{
    Backup, BackupPace, BeforeWrite, Guarded, Merge, Mirror, MirrorJob, Over, Pivot, Stream, StreamJob, Task,
    Tracked, What,
};

use super::disk::Parts;
use super::images::{CLUSTER, COPY, FILES};
use super::judge::read_all;
use super::note::hash;
use super::target::Kind;

/// The job of a disk that is not in use yet, unless it is a snapshot; with what guests are to write through.
pub async fn task_of(parts: &Parts) -> Result<(Option<Task>, Arc<dyn Block>), String> {
    // The layers themselves: a copy into one of them is recognised by that.
    let disk = Arc::new(parts.layers[0].1.clone()) as Arc<dyn Block>;
    let block = |at: usize| block::layers(Arc::clone(&disk)).nth(at).expect("a layer");
    let copy = || parts.copy.clone().map(|copy| Arc::new(copy) as Arc<dyn Block>).ok_or("no copy");
    let (top, lowest) = (block(0), parts.layers.len() - 1);
    let mirror = async |target, what, pivot| {
        let is_synchronous = parts.kind == Kind::MirrorBlocking;
        let tracked = Tracked::new("mirror_top", Arc::clone(&top), target, CLUSTER, is_synchronous);
        let mirror = Mirror::new(Arc::clone(&tracked));
        mirror.mark(what).await.map_err(|error| error.to_string())?;
        Ok::<_, String>((Task::Mirror(MirrorJob { mirror, pivot }), tracked as Arc<dyn Block>))
    };
    let (task, over) = match parts.kind {
        Kind::Snapshot => return Ok((None, top)),
        Kind::Stream | Kind::StreamToBase | Kind::StreamMiddle => {
            let at = usize::from(parts.kind == Kind::StreamMiddle);
            let base = (parts.kind == Kind::StreamToBase).then_some(2);
            let guarded = Guarded::new(block(at));
            let over = if at == 0 { Arc::clone(&guarded) as Arc<dyn Block> } else { top };
            let image = block(at);
            let stream = match base {
                Some(base) => Stream::of_layers(guarded, &image, (base - at) as u32),
                None => Stream::of_everything(guarded),
            };
            (Task::Stream(StreamJob { stream, image, is_uppermost: at == 0, backing: None }), over)
        }
        Kind::CommitMiddle => {
            let (over, size_above) = (Arc::clone(&top), top.size());
            let merge = Merge { top: block(1), layers: 1, base: block(2), over, size_above, backing: None };
            (Task::Commit(merge), top)
        }
        Kind::CommitTop => {
            mirror(block(lowest), What::Layers(lowest as u32), Pivot::Layer(block(lowest))).await?
        }
        Kind::Mirror | Kind::MirrorBlocking => {
            let pivot = Pivot::Target { name: FILES[COPY].to_owned(), over: Over::Own, replaces: None };
            mirror(copy()?, What::Everything, pivot).await?
        }
        Kind::Backup => {
            let filter = BeforeWrite::new(Arc::clone(&top), copy()?, CLUSTER, None, false);
            filter.mark(What::Everything).await.map_err(|error| error.to_string())?;
            parts.whole.set(Some(hash(&read_all(&*top).await?)));
            let (what, pace) = (What::Everything, BackupPace::default());
            (Task::Backup(Backup { filter: Arc::clone(&filter), what, pace }), filter as Arc<dyn Block>)
        }
    };
    Ok((Some(task), over))
}
