//! What earlier starts read of remote files is fetched into their caches before guests ask for it.
//!
//! A trace has offsets of the drive. What they mean in the remote file only the format on it knows, so the layer is opened once more, over
//! a view of the cache whose reads go behind those of guests, and read where the drive was read: its metadata and compressed clusters come
//! with it. The layers below stay out of it; they have caches and traces of their own.

use std::path::PathBuf;
use std::pin::pin;
use std::sync::{Arc, Weak};

use block::{Block, Error};
use futures_util::future::{select, try_join_all};
use parking_lot::Mutex;
use qcow2::Budget;
use storage::{Hints, IoBuf};
use thiserror::Error as ThisError;

use crate::background::BackgroundTasks;
use crate::disk::Disk;
use crate::drivers::{Hint, Opening, TraceFile};
use crate::error::OpenError;
use crate::extents::VmdkOrigins;
use crate::layers::LayerFiles;
use crate::options::LayerOptions;
use crate::probe::Format;
use crate::runtime::Runtime;
use crate::secrets::Secrets;
use crate::trace::{Plan, PlanRequest, RANGE_BYTES_MAX, ReadError, plan};

/// What may be on its way at a time: what a guest's miss waits for at most, beside its own. One piece always may.
const ON_THEIR_WAY_BYTES_MAX: u64 = 2 << 20;

/// A layer that is read ahead.
struct Ahead {
    hint: Hint,
    format: Format,
    options: LayerOptions,
    drive: PathBuf,
    /// What its messages begin with.
    what: String,
}

/// Why nothing, or nothing more, is read ahead.
#[derive(Debug, ThisError)]
enum AheadError {
    #[error(transparent)]
    Trace(#[from] ReadError),
    #[error("the trace is of other disks")]
    OtherDisks,
    #[error("an image with a data file, extents or a LUKS header of its own is not read ahead")]
    TwoFiles,
    #[error(transparent)]
    Open(#[from] OpenError),
    #[error(transparent)]
    Image(#[from] Error),
}

impl Disk {
    /// Starts to fetch what the traces of its layers' caches name, on the loop of this thread, until the disk goes.
    pub(crate) fn start_reading_ahead(self: &Arc<Self>) {
        for layer in &self.layers().list {
            let Some(files) = &layer.files else { continue };
            let Some(hint) = files.hint.lock().take() else { continue };
            let ahead = Ahead::new(hint, files, self.name().into());
            let has_extents = files.vmdk.as_ref().is_some_and(VmdkOrigins::has_extents);
            let has_one_file = files.data.is_none() && files.luks_header.is_none() && !has_extents;
            let gone = gone(Arc::downgrade(self), Arc::clone(&self.runtime));
            reactor::spawn(async move {
                select(pin!(ahead.run(has_one_file)), pin!(gone)).await;
            })
            .detach();
        }
    }
}

/// Waits until the disk is gone.
async fn gone(disk: Weak<Disk>, runtime: Arc<Runtime>) {
    loop {
        let changed = runtime.changed();
        if disk.strong_count() == 0 {
            return;
        }
        changed.await;
    }
}

impl Ahead {
    fn new(hint: Hint, files: &LayerFiles, drive: PathBuf) -> Self {
        let what = format!("prefetch-trace {} of {}", hint.trace.path.display(), files.file.name());
        Self { hint, format: files.format, options: files.options.clone(), drive, what }
    }

    async fn run(self, has_one_file: bool) {
        let what = self.what.clone();
        let ended = if has_one_file { self.read().await } else { Err(AheadError::TwoFiles) };
        match ended {
            Ok((bytes, plan)) => {
                let cut = if plan.is_cut { "; the cache, or the plan, holds no more of it" } else { "" };
                let beyond = match plan.beyond {
                    0 => String::new(),
                    beyond => format!("; {beyond} reads in it end beyond the disk, and are cut off there"),
                };
                tracing::info!("{what}: {bytes} bytes were read ahead{cut}{beyond}");
            }
            Err(error) => tracing::warn!("{what}: {error}; nothing more is read ahead"),
        }
    }

    /// Reads what the trace names. Gives how much that was, and what was planned.
    async fn read(self) -> Result<(u64, Plan), AheadError> {
        let tasks = BackgroundTasks::new(Budget::unlimited());
        let block = self.open(&tasks).await?;
        let Hint { bytes_max, piece_bytes, trace: TraceFile { file, path: _ }, file: _ } = self.hint;
        let in_flight = (ON_THEIR_WAY_BYTES_MAX / piece_bytes.max(RANGE_BYTES_MAX)).max(1);
        let wanted = PlanRequest { drive: self.drive, size: block.size(), bytes_max };
        let mut plan = reactor::blocking(move || plan(file, &wanted)).await?.ok_or(AheadError::OtherDisks)?;
        let bytes = plan.ranges.iter().map(|range| range.end - range.start).sum();
        let ranges = Mutex::new(std::mem::take(&mut plan.ranges).into_iter());
        let worker = async || {
            loop {
                let next = ranges.lock().next();
                let Some(range) = next else { return Ok::<(), Error>(()) };
                // At most RANGE_BYTES_MAX.
                let buf = IoBuf::uninit((range.end - range.start) as usize);
                block.read(range.start, buf, Hints::NONE).await.0?;
            }
        };
        try_join_all((0..in_flight).map(|_| worker())).await?;
        Ok((bytes, plan))
    }

    /// The layer by itself, once more.
    async fn open(&self, tasks: &BackgroundTasks) -> Result<Arc<dyn Block>, AheadError> {
        let file = Arc::clone(&self.hint.file);
        let header = match self.format {
            Format::Qcow2 => Some(qcow2::read_header(&*file).await?),
            _ => None,
        };
        let opening = Opening {
            file,
            data: None,
            luks_header: None,
            vmdk: None,
            backing: None,
            options: &self.options,
            header: header.as_ref(),
            writable: false,
            secrets: &Secrets::default(),
            tasks,
        };
        Ok(opening.open(self.format).await?)
    }
}
