//! Threads that may block, shared by all loops of the process.

use std::collections::VecDeque;
use std::io;
use std::ptr::null_mut;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::{Condvar, Mutex};
use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous, munmap};

use crate::remote::{Remote, Returned};
use crate::work::Work;

/// Most threads at a time: as many requests as a disk is usefully given at once.
const THREADS_MAX: usize = 64;

/// Bytes of a thread's stack.
const STACK_BYTES: usize = 2 << 20;

/// Bytes that a thread takes beyond its stack before it does anything: a stack for signals, what the C library keeps for it.
const BEYOND_STACK_BYTES: usize = 1 << 20;

/// How long a thread waits for more before it ends.
const IDLE_MAX: Duration = Duration::from_secs(10);

struct Job {
    remote: Arc<Remote>,
    key: usize,
    work: Work,
}

struct Queue {
    jobs: VecDeque<Job>,
    threads: usize,
    idle: usize,
    /// Threads end when they find nothing to do.
    ending: bool,
}

static QUEUE: Mutex<Queue> = Mutex::new(Queue { jobs: VecDeque::new(), threads: 0, idle: 0, ending: false });
static ARRIVED: Condvar = Condvar::new();
static GONE: Condvar = Condvar::new();

/// Waits until the blocking calls under way are done and the threads for them have ended. Later calls get new
/// threads, which inherit what the thread that makes them has given up in between.
///
/// Not to be called where other loops keep starting calls: it would wait for them.
pub fn end_blocking_threads() {
    let mut queue = QUEUE.lock();
    queue.ending = true;
    ARRIVED.notify_all();
    while queue.threads > 0 {
        GONE.wait(&mut queue);
    }
    queue.ending = false;
}

/// Has `work` done by some thread, which then hands it back to `remote` under `key`.
pub(crate) fn start(remote: &Arc<Remote>, key: usize, work: Work) {
    let mut queue = QUEUE.lock();
    queue.jobs.push_back(Job { remote: Arc::clone(remote), key, work });
    if queue.idle >= queue.jobs.len() || queue.threads >= THREADS_MAX {
        ARRIVED.notify_one();
        return;
    }
    queue.threads += 1;
    let alone = queue.threads == 1;
    drop(queue);
    let thread = std::thread::Builder::new().name("cowhand-io".to_owned()).stack_size(STACK_BYTES);
    let spawned = room_for_thread(STACK_BYTES).and_then(|()| thread.spawn(serve));
    if let Err(error) = spawned {
        QUEUE.lock().threads -= 1;
        if alone {
            tracing::warn!(%error, "no thread for blocking calls, they run on the loop");
            run_queued();
        }
    }
}

/// Whether there is memory for a thread with a stack of so many bytes. A thread that has its stack and finds no memory for its first steps ends the
/// process, so this is to be asked before one is started while clients are served.
///
/// # Errors
/// When there is none.
pub fn room_for_thread(stack_bytes: usize) -> io::Result<()> {
    let (bytes, access) = (stack_bytes + BEYOND_STACK_BYTES, ProtFlags::READ | ProtFlags::WRITE);
    // SAFETY: a new mapping at a place of the kernel's choice touches no memory that is there.
    let mapped = unsafe { mmap_anonymous(null_mut(), bytes, access, MapFlags::PRIVATE) }?;
    // SAFETY: the mapping was made above, is as long, and nothing refers to it.
    unsafe { munmap(mapped, bytes) }?;
    Ok(())
}

/// Where no thread can be had: on the caller's.
fn run_queued() {
    loop {
        let Some(job) = QUEUE.lock().jobs.pop_front() else { return };
        perform(job);
    }
}

fn serve() {
    // Calculations end the life of what loops gave them: 8 MiB and more would stay with each thread.
    memory::keep_none_on_this_thread();
    let mut queue = QUEUE.lock();
    loop {
        if let Some(job) = queue.jobs.pop_front() {
            drop(queue);
            perform(job);
            queue = QUEUE.lock();
            continue;
        }
        if queue.ending {
            queue.threads -= 1;
            GONE.notify_all();
            return;
        }
        queue.idle += 1;
        let timed_out = ARRIVED.wait_for(&mut queue, IDLE_MAX).timed_out();
        queue.idle -= 1;
        if timed_out && queue.jobs.is_empty() {
            queue.threads -= 1;
            GONE.notify_all();
            return;
        }
    }
}

fn perform(mut job: Job) {
    let result = job.work.perform();
    job.remote.push_returned(Returned { key: job.key, result, work: job.work });
}
