//! Bytes that were fetched because of the read before.

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::Arc;

use async_lock::OnceCell;
use buffer::IoBytes;
use parking_lot::Mutex;

/// Windows that are kept: so many readers one after the other are followed.
const WINDOWS_MAX: usize = 8;
/// Ends of reads that are remembered.
const ENDS_MAX: usize = 16;

/// A range of the file that is fetched once, by the first who wants it.
#[derive(Debug)]
pub(crate) struct Window {
    pub(crate) range: Range<u64>,
    pub(crate) bytes: OnceCell<IoBytes>,
}

/// The windows of a file. Its bytes do not change while it is open, so they stay true.
#[derive(Debug)]
pub(crate) struct Readahead {
    /// Bytes that are fetched; 0: as many as are read.
    bytes: u64,
    known: Mutex<Known>,
}

#[derive(Debug, Default)]
struct Known {
    windows: VecDeque<Arc<Window>>,
    ends: VecDeque<u64>,
}

impl Readahead {
    /// With a first window that is there already, from the start of the file.
    pub(crate) fn new(bytes: u64, start: IoBytes) -> Self {
        let range = 0..start.len() as u64;
        let mut known = Known::default();
        known.ends.push_back(range.end);
        known.windows.push_back(Arc::new(Window { range, bytes: OnceCell::from(start) }));
        Self { bytes, known: Mutex::new(known) }
    }

    /// The window in which a read of `wanted` lies: one that is there, or a new one if it goes on where another read ended. `None` of
    /// reads that are better fetched by themselves. `length` is the file's.
    pub(crate) fn window(&self, wanted: &Range<u64>, length: u64) -> Option<Arc<Window>> {
        let mut known = self.known.lock();
        let Known { windows, ends } = &mut *known;
        let goes_on = ends.contains(&wanted.start)
            || windows
                .iter()
                .any(|window| window.range.contains(&wanted.start) || window.range.end == wanted.start);
        ends.retain(|end| *end != wanted.start && *end != wanted.end);
        ends.push_back(wanted.end);
        if ends.len() > ENDS_MAX {
            ends.pop_front();
        }
        let holds =
            |window: &&Arc<Window>| window.range.start <= wanted.start && wanted.end <= window.range.end;
        if let Some(window) = windows.iter().find(holds) {
            return Some(Arc::clone(window));
        }
        if !goes_on || wanted.end - wanted.start >= self.bytes {
            return None;
        }
        let range = wanted.start..(wanted.start + self.bytes).min(length);
        let window = Arc::new(Window { range, bytes: OnceCell::new() });
        windows.push_back(Arc::clone(&window));
        if windows.len() > WINDOWS_MAX {
            windows.pop_front();
        }
        Some(window)
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
        assert_eq!(range(&ahead, 1024..1536), Some(1024..5120));
        assert_eq!(range(&ahead, 1536..2048), Some(1024..5120));
        // Across the end: the next window begins there.
        assert_eq!(range(&ahead, 5000..5500), Some(5000..9096));
    }

    #[test]
    fn reads_here_and_there_and_long_ones_are_fetched_by_themselves() {
        let ahead = readahead();
        assert_eq!(range(&ahead, 100_000..100_512), None);
        assert_eq!(range(&ahead, 200_000..200_512), None);
        assert_eq!(range(&ahead, 100_512..108_704), None);
        assert_eq!(range(&ahead, 108_704..108_705), Some(108_704..112_800));
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
