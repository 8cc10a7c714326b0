//! Changes of clients that are gone while these were at work. They are carried out; what others ask for in the same places comes after them.
//!
//! A client whose connection is lost asks for the same again on another one, has its answer, and writes something newer. Without this the
//! change that was left behind could land on top of that.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};

use parking_lot::Mutex;

use crate::exports::ExportEntry;
use crate::latch::Latch;

/// What is at work at one export for clients that are gone.
#[derive(Debug, Default)]
pub(crate) struct LeftBehind {
    /// As many as are in `all`: most of the time nothing is.
    count: AtomicUsize,
    all: Mutex<Vec<Arc<Remains>>>,
}

/// What one client left behind.
#[derive(Debug)]
struct Remains {
    ranges: Vec<Range<u64>>,
    landed: Latch,
}

impl Remains {
    fn touch(&self, range: &Range<u64>) -> bool {
        self.ranges.iter().any(|left| left.start < range.end && range.start < left.end)
    }
}

/// Keeps others behind what a client left; dropped once all of it has ended.
#[derive(Debug)]
pub struct Landing {
    entry: Arc<ExportEntry>,
    remains: Arc<Remains>,
}

impl Drop for Landing {
    fn drop(&mut self) {
        let left = self.entry.left_behind();
        {
            let mut all = left.all.lock();
            all.retain(|remains| !Arc::ptr_eq(remains, &self.remains));
            left.count.store(all.len(), SeqCst);
        }
        self.remains.landed.set();
    }
}

impl ExportEntry {
    /// A client is gone, and its changes of these `ranges` of bytes are at work. From now on requests that touch one of them wait
    /// ([`ExportEntry::after_those_left_behind`]) until what is given here is dropped. Nothing for no ranges.
    pub fn leave_behind(self: &Arc<Self>, ranges: Vec<Range<u64>>) -> Option<Landing> {
        if ranges.is_empty() {
            return None;
        }
        let remains = Arc::new(Remains { ranges, landed: Latch::default() });
        let left = self.left_behind();
        let mut all = left.all.lock();
        all.push(Arc::clone(&remains));
        left.count.store(all.len(), SeqCst);
        drop(all);
        Some(Landing { entry: Arc::clone(self), remains })
    }

    /// Whether any client that is gone left a change behind that is still at work. Costs a load.
    #[inline]
    pub fn has_left_behind(&self) -> bool {
        self.left_behind().count.load(SeqCst) > 0
    }

    /// Waits for the changes in these bytes that clients left behind before this call. Later ones may have waited for the caller: a request
    /// waits for those before it alone, so no two wait for each other.
    pub async fn after_those_left_behind(&self, offset: u64, len: u64) {
        if !self.has_left_behind() {
            return;
        }
        let range = offset..offset.saturating_add(len);
        let before: Vec<Arc<Remains>> =
            self.left_behind().all.lock().iter().filter(|remains| remains.touch(&range)).cloned().collect();
        for remains in before {
            remains.landed.wait().await;
        }
    }
}
