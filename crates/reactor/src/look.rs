//! Waiting for what another process writes into memory, without a system call on either side.
//!
//! Who waits for it registers a [`Look`]. The loop asks it in each turn, and again and again before it would sleep, while that mostly succeeds
//! (`spin`). Then it says that it is about to sleep: now the other process has to be asked to wake this one.

use std::cell::Cell;
use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};

use crate::inner::Inner;

/// Looks into memory. It is asked often: it costs a few loads, uses nothing of the loop and wakes nothing.
pub trait Look {
    /// Whether there is something to do.
    fn is_there(&self) -> bool;
}

/// What came of waiting.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Seen {
    /// There is something to do.
    Something,
    /// Nothing; the loop is about to sleep. Who has to be woken says so now, and looks once more after that.
    AboutToSleep,
}

/// Ends when `look` has found something, or the loop is about to sleep.
pub fn watch(look: Rc<dyn Look>) -> Watch {
    Watch { look, entry: None }
}

/// See [`watch`]. Bound to the loop that first polls it.
#[must_use = "futures do nothing unless awaited"]
pub struct Watch {
    look: Rc<dyn Look>,
    entry: Option<(Rc<Inner>, Rc<Entry>)>,
}

/// One that waits.
struct Entry {
    look: Rc<dyn Look>,
    seen: Cell<Option<Seen>>,
    waker: Cell<Option<Waker>>,
}

/// All that wait on one loop.
#[derive(Default)]
pub(crate) struct Watching {
    entries: Vec<Rc<Entry>>,
}

impl Watching {
    pub(crate) fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Whether one of them has found something.
    pub(crate) fn is_there(&self) -> bool {
        self.entries.iter().any(|entry| entry.look.is_there())
    }

    /// Takes out those that have found something, and with `all` the others, too; gives their wakers.
    pub(crate) fn take(&mut self, all: bool) -> Vec<Waker> {
        let mut wakers = Vec::new();
        self.entries.retain(|entry| {
            let is_there = entry.look.is_there();
            if is_there || all {
                entry.seen.set(Some(if is_there { Seen::Something } else { Seen::AboutToSleep }));
                wakers.extend(entry.waker.take());
            }
            !is_there && !all
        });
        wakers
    }
}

impl Future for Watch {
    type Output = Seen;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Seen> {
        if let Some((_, entry)) = &self.entry {
            entry.waker.set(Some(cx.waker().clone()));
            return entry.seen.get().map_or(Poll::Pending, Poll::Ready);
        }
        if self.look.is_there() {
            return Poll::Ready(Seen::Something);
        }
        let waker = Cell::new(Some(cx.waker().clone()));
        let entry = Rc::new(Entry { look: Rc::clone(&self.look), seen: Cell::new(None), waker });
        let inner = Inner::current();
        inner.watching.borrow_mut().entries.push(Rc::clone(&entry));
        self.entry = Some((inner, entry));
        Poll::Pending
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        // One that was notified has been taken out already.
        if let Some((inner, entry)) = &self.entry
            && entry.seen.get().is_none()
        {
            inner.watching.borrow_mut().entries.retain(|other| !Rc::ptr_eq(other, entry));
        }
    }
}

impl std::fmt::Debug for Watch {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Watch").field("waits", &self.entry.is_some()).finish()
    }
}
