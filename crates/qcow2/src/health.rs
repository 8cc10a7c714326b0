//! Whether what memory holds can be trusted, and so be written.

use sync::Mutex;
use sync::atomic::{AtomicBool, Ordering};

/// What an image contradicts itself in. docs/internals/on-disk.md ("What sets the corrupt bit") has the same list, with reasons.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Contradiction {
    /// Data or a table lies, or would be written, where metadata of another kind lies.
    Overlap,
    /// An entry of an L1 or L2 table that no image can have.
    MapEntry,
    /// An entry leads to an L2 table past the end of the file.
    TablePastEnd,
    /// A cluster is in use or freed whose refcount is 0, or a refcount block is where none can be.
    Refcount,
    /// A compressed cluster does not unpack to one cluster.
    Compressed,
}

impl Contradiction {
    /// Whether writing on could destroy what is still whole: the image takes no more writes, and its header says so.
    pub(crate) fn stops_writes(self) -> bool {
        match self {
            Self::Overlap | Self::MapEntry | Self::TablePastEnd | Self::Refcount => true,
            // It is the content of one cluster that is lost. No write depends on it, and no place in the file follows from it.
            Self::Compressed => false,
        }
    }
}

/// What an image was found to contradict itself in.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Corruption {
    /// In words.
    pub message: String,
    /// The bytes of the file that are two things at once, if that is it: offset and length.
    pub place: Option<(u64, u64)>,
}

/// Reasons to write no more. Each is noticed once and stays for as long as the image is open.
#[derive(Debug, Default)]
pub(crate) struct Health {
    /// Metadata was caught lying.
    corrupt: AtomicBool,
    /// What was found first, until it was reported.
    news: Mutex<Option<Corruption>>,
    /// The file may have another header than memory.
    stopped: AtomicBool,
}

impl Health {
    /// Whether metadata was caught lying.
    pub(crate) fn is_corrupt(&self) -> bool {
        self.corrupt.load(Ordering::Relaxed)
    }

    /// Metadata was caught lying; `what` says how.
    pub(crate) fn set_corrupt(&self, what: impl FnOnce() -> Corruption) {
        if !self.corrupt.swap(true, Ordering::Relaxed) {
            *self.news.lock() = Some(what());
        }
    }

    /// Whether [`Self::take_news`] gives something.
    pub(crate) fn has_news(&self) -> bool {
        self.is_corrupt() && self.news.lock().is_some()
    }

    /// What was found first. Given once.
    pub(crate) fn take_news(&self) -> Option<Corruption> {
        if self.is_corrupt() { self.news.lock().take() } else { None }
    }

    /// Whether the file may have another header than memory.
    pub(crate) fn is_stopped(&self) -> bool {
        self.stopped.load(Ordering::Acquire)
    }

    pub(crate) fn set_stopped(&self) {
        self.stopped.store(true, Ordering::Release);
    }
}
