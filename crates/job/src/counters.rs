//! How far a copy is, what it reports on its way, and the way to end it early.

use std::fmt;
use std::sync::OnceLock;

use sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// Shared by a copy and its watchers, on any thread.
#[derive(Debug, Default)]
pub struct Counters {
    done: AtomicU64,
    data: AtomicU64,
    read: AtomicU64,
    written: AtomicU64,
    zeroed: AtomicU64,
    unreadable: AtomicU64,
    cancelled: AtomicBool,
    reporter: OnceLock<Reporter>,
}

/// What a copy reports at once.
#[derive(Clone, Copy, Debug)]
pub enum Report<'a> {
    /// So many bytes of data are settled by now: [`Progress::data`].
    Data(u64),
    /// The map of the source could not be read at this offset: the bytes count as data.
    NoStatus(u64, &'a block::Error),
    /// The source could not be read at this offset: the bytes become zeroes.
    Unreadable(u64, &'a block::Error),
}

struct Reporter(Box<dyn Fn(Report<'_>) + Send + Sync>);

impl fmt::Debug for Reporter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Reporter")
    }
}

/// A reading of [`Counters`], in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Progress {
    /// Settled: copied, zeroed, or found to need nothing. The size of the range at the end.
    pub done: u64,
    /// Settled, of what the map calls data: [`crate::Copy::data_bytes`] at the end.
    pub data: u64,
    /// Read from the source.
    pub read: u64,
    /// Written to the target as data.
    pub written: u64,
    /// Made zeroes in the target by a request.
    pub zeroed: u64,
    /// Could not be read and became zeroes.
    pub unreadable: u64,
}

impl Counters {
    /// How far it is. The parts are read one after the other.
    pub fn progress(&self) -> Progress {
        let get = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        Progress {
            done: get(&self.done),
            data: get(&self.data),
            read: get(&self.read),
            written: get(&self.written),
            zeroed: get(&self.zeroed),
            unreadable: get(&self.unreadable),
        }
    }

    /// Ends the copy with [`crate::Error::Cancelled`] before its next piece.
    pub fn cancel(&self) {
        self.cancelled.store(true, Ordering::Relaxed);
    }

    /// Has the copy call `reporter`, which must not block, from now on. A second call changes nothing.
    pub fn report_to(&self, reporter: impl Fn(Report<'_>) + Send + Sync + 'static) {
        let _ = self.reporter.set(Reporter(Box::new(reporter)));
    }

    pub(crate) fn report(&self, report: Report<'_>) {
        if let Some(Reporter(reporter)) = self.reporter.get() {
            reporter(report);
        }
    }

    pub(crate) fn is_cancelled(&self) -> bool {
        self.cancelled.load(Ordering::Relaxed)
    }

    pub(crate) fn add_done(&self, bytes: u64) {
        self.done.fetch_add(bytes, Ordering::Relaxed);
    }

    pub(crate) fn add_data(&self, bytes: u64) {
        let before = self.data.fetch_add(bytes, Ordering::Relaxed);
        self.report(Report::Data(before + bytes));
    }

    pub(crate) fn add_read(&self, bytes: u64) {
        self.read.fetch_add(bytes, Ordering::Relaxed);
    }

    pub(crate) fn add_written(&self, bytes: u64) {
        self.written.fetch_add(bytes, Ordering::Relaxed);
    }

    pub(crate) fn add_zeroed(&self, bytes: u64) {
        self.zeroed.fetch_add(bytes, Ordering::Relaxed);
    }

    pub(crate) fn add_unreadable(&self, bytes: u64) {
        self.unreadable.fetch_add(bytes, Ordering::Relaxed);
    }
}
