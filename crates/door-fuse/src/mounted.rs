//! One mount as the sessions of all its loops share it: what one of them begins another may end.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use event_listener::{Event, EventListener};
use export::Place;
use parking_lot::Mutex;
use rustix::io::Errno;

use crate::limits::OPEN_FILES_MAX;
use crate::server::FuseExport;

/// A mount that is served. When its last session is gone, it has ended.
#[derive(Debug)]
pub(crate) struct Mounted {
    pub(crate) export: Arc<FuseExport>,
    /// Files that programs have open. Each is a client of the export.
    files: Mutex<HashMap<u64, Place>>,
    next_file: AtomicU64,
    /// Requests in flight that can be interrupted, and whether they are.
    interruptible: Mutex<HashMap<u64, Arc<AtomicBool>>>,
    help: Event,
}

impl Mounted {
    pub(crate) fn new(export: &Arc<FuseExport>) -> Self {
        Self {
            export: Arc::clone(export),
            files: Mutex::default(),
            next_file: AtomicU64::new(1),
            interruptible: Mutex::default(),
            help: Event::new(),
        }
    }

    /// More requests come than one loop takes: one more of the others is to look.
    pub(crate) fn call_for_help(&self) {
        self.help.notify(1);
    }

    /// Ends at the next call for help.
    pub(crate) fn called_for_help(&self) -> EventListener {
        self.help.listen()
    }

    /// A program opens the file: its handle. O_TRUNC changes nothing: as of a block device, bytes are overwritten, not cut off.
    pub(crate) fn open(&self, writes: bool) -> Result<u64, Errno> {
        let entry = self.export.entry();
        if writes && entry.disk().read_only() {
            return Err(Errno::ACCESS);
        }
        let place = Place::take(Arc::clone(entry), OPEN_FILES_MAX).map_err(|_| Errno::NFILE)?;
        let handle = self.next_file.fetch_add(1, Ordering::Relaxed);
        self.files.lock().insert(handle, place);
        Ok(handle)
    }

    /// The last of its programs has closed the file that it knows by `handle`.
    pub(crate) fn close(&self, handle: u64) {
        let place = self.files.lock().remove(&handle);
        drop(place);
    }

    /// Lets a request be interrupted while what this gives is kept.
    pub(crate) fn interruptible(self: &Arc<Self>, unique: u64) -> Interruptible {
        let is_interrupted = Arc::<AtomicBool>::default();
        self.interruptible.lock().insert(unique, Arc::clone(&is_interrupted));
        Interruptible { mounted: Arc::clone(self), unique, is_interrupted }
    }

    /// What cannot be interrupted goes on: programs do not expect reads and writes of a file to fail because of a signal.
    pub(crate) fn interrupt(&self, unique: u64) {
        if let Some(is_interrupted) = self.interruptible.lock().get(&unique) {
            is_interrupted.store(true, Ordering::Relaxed);
        }
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        self.files.get_mut().clear();
        self.export.ended.trigger();
    }
}

/// A request that can be interrupted.
pub(crate) struct Interruptible {
    mounted: Arc<Mounted>,
    unique: u64,
    is_interrupted: Arc<AtomicBool>,
}

impl Interruptible {
    pub(crate) fn is_interrupted(&self) -> bool {
        self.is_interrupted.load(Ordering::Relaxed)
    }
}

impl Drop for Interruptible {
    fn drop(&mut self) {
        self.mounted.interruptible.lock().remove(&self.unique);
    }
}
