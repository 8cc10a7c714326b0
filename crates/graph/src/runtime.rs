//! Options of an open disk that can be changed while it is open.

use std::sync::Arc;

use event_listener::{Event, EventListener};
use parking_lot::RwLock;
use qcow2::DiscardOptions;
use thiserror::Error;

use crate::cache_mode::CacheMode;
use crate::options::{DetectZeroes, Discard, LayerOptions, Qcow2Options};

/// What can be changed without closing anything.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RuntimeOptions {
    /// Writes are refused.
    pub read_only: bool,
    /// A write ends when it is durable.
    pub writethrough: bool,
    /// What a guest's discard does.
    pub discard: Discard,
    /// What a write of zeroes does.
    pub detect_zeroes: DetectZeroes,
    /// Options of a qcow2 image. Those that are fixed are as they were when it was opened.
    pub qcow2: Qcow2Options,
}

impl RuntimeOptions {
    /// Those among the options of a disk's active layer.
    pub fn of(layer: &LayerOptions) -> Self {
        Self {
            read_only: layer.read_only,
            writethrough: layer.cache.writethrough,
            discard: layer.discard,
            detect_zeroes: layer.detect_zeroes,
            qcow2: layer.qcow2,
        }
    }

    pub(crate) fn discards(&self) -> DiscardOptions {
        self.qcow2.for_engine(!self.read_only, self.discard == Discard::Unmap).discards()
    }
}

/// How an image is opened.
#[derive(Clone, Copy, Debug)]
pub struct OpenedAs {
    /// `cache`.
    pub cache: CacheMode,
    /// `discard`.
    pub discard: Discard,
    /// `detect-zeroes`.
    pub detect_zeroes: DetectZeroes,
}

impl OpenedAs {
    /// What `options` say.
    pub fn of(options: &LayerOptions) -> Self {
        let (discard, detect_zeroes) = (options.discard, options.detect_zeroes);
        Self { cache: options.cache(), discard, detect_zeroes }
    }
}

/// Why options stay as they are.
#[derive(Debug, Error)]
pub enum ReopenError {
    /// Descriptor and locks are those of a reader.
    #[error("read-only is off, but the image was opened for reading; open it anew with read-only=off")]
    OpenedReadOnly,
    /// What was written before cannot be made durable.
    #[error("the disk cannot be made read-only, because what was written cannot be made durable")]
    Flush(#[source] qcow2::Error),
    /// The image does not take them.
    #[error("the image does not take these options")]
    Image(#[source] qcow2::Error),
}

/// The options in force, and a notice when they change.
#[derive(Debug)]
pub(crate) struct Runtime {
    options: RwLock<RuntimeOptions>,
    changed: Event,
}

impl Runtime {
    pub(crate) fn new(options: RuntimeOptions) -> Arc<Self> {
        Arc::new(Self { options: RwLock::new(options), changed: Event::new() })
    }

    pub(crate) fn get(&self) -> RuntimeOptions {
        *self.options.read()
    }

    /// The next change, or the end of the disk.
    pub(crate) fn changed(&self) -> EventListener {
        self.changed.listen()
    }

    /// Puts others in force, and wakes the tasks that wait for a change.
    pub(crate) fn set(&self, options: RuntimeOptions) {
        *self.options.write() = options;
        self.tell();
    }

    /// Wakes the tasks that wait for a change.
    pub(crate) fn tell(&self) {
        self.changed.notify(usize::MAX);
    }
}
