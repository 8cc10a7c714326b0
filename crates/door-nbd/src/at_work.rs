//! Where the changes are that a connection has at work.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::ops::Range;
use std::rc::Rc;

/// The changes of one connection that had to wait for the disk.
#[derive(Debug, Default)]
pub(crate) struct AtWork {
    ranges: RefCell<BTreeMap<u64, Range<u64>>>,
    next: Cell<u64>,
}

/// One of them, at work until this is dropped.
#[derive(Debug)]
pub(crate) struct Change {
    at_work: Rc<AtWork>,
    number: u64,
}

impl AtWork {
    /// A change of these bytes begins.
    pub(crate) fn begin(self: &Rc<Self>, range: Range<u64>) -> Change {
        let number = self.next.get();
        self.next.set(number + 1);
        self.ranges.borrow_mut().insert(number, range);
        Change { at_work: Rc::clone(self), number }
    }

    /// The bytes of those that are at work.
    pub(crate) fn ranges(&self) -> Vec<Range<u64>> {
        self.ranges.borrow().values().cloned().collect()
    }
}

impl Drop for Change {
    fn drop(&mut self) {
        self.at_work.ranges.borrow_mut().remove(&self.number);
    }
}
