//! Bytes that were fetched because of the read before.

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::Arc;

use async_lock::OnceCell;
use memory::IoBytes;
use parking_lot::Mutex;

/// Windows that are kept: so many readers one after the other are followed.
const WINDOWS_MAX: usize = 8;
/// Ends of reads that are remembered.
const ENDS_MAX: usize = 16;
/// A window has at least so much of the most: one of four. A guest that boots reads many files of some 100 KB; windows of 256 KiB from the
/// start fetched 1.6 times what it read, those of 64 KiB 1.1 times, in the same time.
const LEAST: u64 = 4;

/// A range of the file that is fetched once, by the first who wants it.
#[derive(Debug)]
pub(crate) struct Window {
    pub(crate) range: Range<u64>,
    pub(crate) bytes: OnceCell<IoBytes>,
    /// Bytes that were read one after the other, up to the start of the range.
    read_before: u64,
}

/// Where a read ended, or several one after the other.
#[derive(Debug)]
struct End {
    at: u64,
    /// What they read together.
    read_before: u64,
}

/// The windows of a file. Its bytes do not change while it is open, so they stay true.
#[derive(Debug)]
pub(crate) struct Readahead {
    /// Bytes that are fetched at most; 0: as many as are read.
    bytes_max: u64,
    known: Mutex<ReadAheadState>,
}

#[derive(Debug, Default)]
struct ReadAheadState {
    windows: VecDeque<Arc<Window>>,
    ends: VecDeque<End>,
}

impl Readahead {
    /// With a first window that is there already, from the start of the file.
    pub(crate) fn new(bytes_max: u64, start: IoBytes) -> Self {
        let range = 0..start.len() as u64;
        let mut known = ReadAheadState::default();
        known.windows.push_back(Arc::new(Window { range, bytes: OnceCell::from(start), read_before: 0 }));
        Self { bytes_max, known: Mutex::new(known) }
    }

    /// The window in which a read of `wanted` lies: one that is there, or a new one if it goes on where others ended. A new one has a quarter
    /// of what was read there in order, at least [`LEAST`] of the most. `None` of reads that are better fetched by themselves. `length` is
    /// the file's.
    pub(crate) fn window(&self, wanted: &Range<u64>, length: u64) -> Option<Arc<Window>> {
        let mut known = self.known.lock();
        let (before, len) = (known.read_before(wanted.start), wanted.end - wanted.start);
        known.note_end(wanted, before + len);
        let holds =
            |window: &&Arc<Window>| window.range.start <= wanted.start && wanted.end <= window.range.end;
        if let Some(window) = known.windows.iter().find(holds) {
            return Some(Arc::clone(window));
        }
        let ahead = (before / 4).clamp(self.bytes_max / LEAST, self.bytes_max);
        if before == 0 || len >= ahead {
            return None;
        }
        let range = wanted.start..(wanted.start + ahead).min(length);
        let window = Arc::new(Window { range, bytes: OnceCell::new(), read_before: before });
        known.windows.push_back(Arc::clone(&window));
        if known.windows.len() > WINDOWS_MAX {
            known.windows.pop_front();
        }
        Some(window)
    }
}

impl ReadAheadState {
    /// Bytes that were read one after the other up to `offset`, or nearly: in a window that is there.
    fn read_before(&self, offset: u64) -> u64 {
        let in_window = |window: &&Arc<Window>| window.range.start <= offset && offset <= window.range.end;
        let of_window = || {
            let window = self.windows.iter().rev().find(in_window)?;
            Some(window.read_before + (offset - window.range.start))
        };
        let ended = self.ends.iter().find(|end| end.at == offset);
        ended.map(|end| end.read_before).or_else(of_window).unwrap_or(0)
    }

    /// `read` bytes in order end where `wanted` does.
    fn note_end(&mut self, wanted: &Range<u64>, read: u64) {
        self.ends.retain(|end| end.at != wanted.start && end.at != wanted.end);
        self.ends.push_back(End { at: wanted.end, read_before: read });
        if self.ends.len() > ENDS_MAX {
            self.ends.pop_front();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn readahead() -> Readahead {
        Readahead::new(4096, IoBytes::zeroed(1024))
    }

    fn range(readahead: &Readahead, wanted: Range<u64>) -> Option<Range<u64>> {
        readahead.window(&wanted, 1 << 20).map(|window| window.range.clone())
    }

    #[test]
    fn reads_one_after_the_other_share_what_the_first_of_them_fetched() {
        let ahead = readahead();
        assert_eq!(range(&ahead, 0..512), Some(0..1024));
        assert_eq!(range(&ahead, 1024..1536), Some(1024..2048));
        assert_eq!(range(&ahead, 1536..2048), Some(1024..2048));
        // Across the end: the next window begins there.
        assert_eq!(range(&ahead, 2000..2500), Some(2000..3024));
    }

    #[test]
    fn a_long_reader_gets_longer_windows() {
        let ahead = readahead();
        let mut windows = Vec::new();
        for at in (100_000..150_000).step_by(500) {
            windows.extend(range(&ahead, at..at + 500).map(|window| window.end - window.start));
        }
        assert!(windows.is_sorted());
        assert_eq!((windows.first(), windows.last()), (Some(&1024), Some(&4096)));
    }

    #[test]
    fn reads_here_and_there_and_long_ones_are_fetched_by_themselves() {
        let ahead = readahead();
        assert_eq!(range(&ahead, 100_000..100_512), None);
        assert_eq!(range(&ahead, 200_000..200_512), None);
        assert_eq!(range(&ahead, 100_512..108_704), None);
        assert_eq!(range(&ahead, 108_704..108_705), Some(108_704..110_880));
        assert_eq!(range(&ahead, 110_880..114_976), None);
    }

    #[test]
    fn what_is_kept_is_bounded_and_ends_with_the_file() {
        let ahead = readahead();
        for stream in 0..100_u64 {
            range(&ahead, stream * 10_000 + 5000..stream * 10_000 + 5001);
            range(&ahead, stream * 10_000 + 5001..stream * 10_000 + 5002);
        }
        let known = ahead.known.lock();
        assert!(known.windows.len() == WINDOWS_MAX && known.ends.len() == ENDS_MAX);
        drop(known);
        let at_the_end = ahead.window(&(995_002..995_003), 995_010).unwrap();
        assert!(at_the_end.range.end <= 1 << 20);
    }
}
