//! Queues: completions taken in batches, and the eventfd that announces them.

use std::ffi::{CString, c_char, c_int};
use std::os::fd::AsRawFd;
use std::sync::Arc;
use std::time::Duration;

use cowhand::{Completion, Queue};
use parking_lot::{Mutex, MutexGuard};

use crate::failure::{Failure, call};
use crate::handles::{Handle, Kind, Table};
use crate::pointers::OutArray;

/// A queue of requests, used by one thread at a time.
pub struct CowhandQueue {
    _private: (),
}

/// How a request ended.
#[repr(C)]
pub struct CowhandCompletion {
    /// The number that it was submitted with.
    pub user_data: u64,
    /// Null, or the words for a failure. They are valid until the next cowhand_do_io of the queue.
    pub message: *const c_char,
    /// 0, or a negative errno.
    pub ret: i32,
    /// 0.
    pub reserved: u32,
}

/// All queues that C holds.
pub(crate) static QUEUES: Table<QueueOfC> = Table::new(Kind::Queue);

/// A queue as C sees it.
pub(crate) struct QueueOfC {
    inner: Mutex<Inner>,
}

pub(crate) struct Inner {
    pub(crate) queue: Queue,
    /// What the buffers of requests name as their owner. C callers keep buffers mapped themselves.
    pub(crate) owner: Arc<()>,
    done: Vec<Completion>,
    /// The words of the completions that were given last.
    messages: Vec<CString>,
}

impl QueueOfC {
    pub(crate) fn new(queue: Queue) -> Self {
        let inner = Inner { queue, owner: Arc::new(()), done: Vec::new(), messages: Vec::new() };
        Self { inner: Mutex::new(inner) }
    }

    pub(crate) fn of(handle: *mut CowhandQueue) -> Result<Arc<Self>, Failure> {
        QUEUES.get(Handle::of(handle))
    }

    /// The queue for this thread alone.
    pub(crate) fn enter(&self) -> Result<MutexGuard<'_, Inner>, Failure> {
        let entered = self.inner.try_lock();
        entered.ok_or_else(|| Failure::new(libc::EBUSY, "another thread is using the queue"))
    }
}

impl Inner {
    /// Gives the completions that were taken, as C sees them.
    fn give(&mut self, completions: OutArray<CowhandCompletion>) -> c_int {
        let messages = &mut self.messages;
        messages.clear();
        let done = self.done.drain(..).map(|Completion { user_data, result, .. }| match result {
            Ok(()) => CowhandCompletion { user_data, message: std::ptr::null(), ret: 0, reserved: 0 },
            Err(error) => {
                let failure = Failure::from(error);
                let ret = failure.negative_errno();
                messages.push(failure.into_text());
                // The text itself stays where it is when the list grows.
                let message = messages.last().map_or(std::ptr::null(), |text| text.as_ptr());
                CowhandCompletion { user_data, message, ret, reserved: 0 }
            }
        });
        completions.fill(done)
    }
}

/// Takes completions, at most max, in the order in which requests ended; returns their count. Waits until there are
/// min, or as many as are in flight if these are fewer, or until timeout_ns nanoseconds have passed; a negative timeout
/// is none. With a min of 0 it never waits. After a timeout there may be fewer than min, also none.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cowhand_do_io(
    queue: *mut CowhandQueue,
    completions: *mut CowhandCompletion,
    min: c_int,
    max: c_int,
    timeout_ns: i64,
) -> c_int {
    call(|| {
        let (Ok(min), Ok(len)) = (usize::try_from(min), usize::try_from(max)) else {
            return Err(Failure::invalid(format!("min is {min} and max is {max}; allowed: 0 and more")));
        };
        if min > len {
            return Err(Failure::invalid(format!("min is {min}; allowed: at most max, which is {len}")));
        }
        // SAFETY: the header requires it of the caller.
        let completions = unsafe { OutArray::new(completions, len, "completions") }?;
        let queue = QueueOfC::of(queue)?;
        let mut inner = queue.enter()?;
        let timeout = u64::try_from(timeout_ns).ok().map(Duration::from_nanos);
        let Inner { queue, done, .. } = &mut *inner;
        queue.completions_at_most(done, min, len, timeout)?;
        Ok(inner.give(completions))
    })
}

/// An eventfd that is readable exactly while there are completions to be taken; taking them resets it. It belongs to
/// the queue: do not read, write or close it. It is made by the first call, and costs a system call for each batch of
/// completions from then on.
#[unsafe(no_mangle)]
pub extern "C" fn cowhand_completion_fd(queue: *mut CowhandQueue) -> c_int {
    call(|| {
        let queue = QueueOfC::of(queue)?;
        let inner = queue.enter()?;
        Ok(inner.queue.completion_fd()?.as_raw_fd())
    })
}
