//! What may wait for ever, aside from the loops: closing descriptors of front-ends, giving and taking a device's state.
//!
//! A front-end chooses what its descriptors are. Closing a file asks its file system, closing a pipe waits for who copies out of it at that
//! moment. Nothing ends such a wait, so it happens on a thread that is waited for no longer than a deadline. Threads are few; who has more
//! to wait for than they can take is served no further.

use std::collections::VecDeque;
use std::fmt;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

use event_listener::Event;
use parking_lot::Mutex;

use crate::limits::WAITING_THREADS_MAX;
use crate::mapping::closes_at_once;

/// Bytes of such a thread's stack: it makes one system call.
const STACK_BYTES: usize = 128 << 10;

type Job = Box<dyn FnOnce() + Send>;

/// The threads of one export.
#[derive(Default)]
pub(crate) struct Aside {
    state: Mutex<State>,
    done: Event,
}

#[derive(Default)]
struct State {
    waiting: VecDeque<Job>,
    threads: usize,
}

impl Aside {
    /// Has a thread do `job` when one is free.
    fn start(self: &Arc<Self>, job: Job) {
        let mut state = self.state.lock();
        state.waiting.push_back(job);
        self.engage(&mut state);
    }

    /// One thread more, if there may be one. Without any the next call tries again.
    fn engage(self: &Arc<Self>, state: &mut State) {
        if state.threads >= WAITING_THREADS_MAX || state.waiting.is_empty() {
            return;
        }
        let own = Arc::clone(self);
        let thread = std::thread::Builder::new().name("cowhand-aside".to_owned()).stack_size(STACK_BYTES);
        if reactor::room_for_thread(STACK_BYTES).and_then(|()| thread.spawn(move || own.work())).is_ok() {
            state.threads += 1;
        }
    }

    fn work(self: &Arc<Self>) {
        loop {
            let job = {
                let mut state = self.state.lock();
                let job = state.waiting.pop_front();
                if job.is_none() {
                    state.threads -= 1;
                }
                job
            };
            let Some(job) = job else { return self.notify() };
            job();
            self.notify();
        }
    }

    fn notify(&self) {
        self.done.notify(usize::MAX);
    }

    /// Waits until a thread has taken everything up; whether that was within `patience`.
    pub(crate) async fn has_room(self: &Arc<Self>, patience: Duration) -> bool {
        let taken_up = async {
            loop {
                let done = self.done.listen();
                {
                    let mut state = self.state.lock();
                    if state.waiting.is_empty() {
                        return;
                    }
                    self.engage(&mut state);
                }
                done.await;
            }
        };
        reactor::within(patience, taken_up).await.is_some()
    }

    /// What `call` gives; `None` if that is not there within `patience`. The call goes on all the same.
    pub(crate) async fn call<T: Send + 'static>(
        self: &Arc<Self>,
        patience: Duration,
        call: impl FnOnce() -> T + Send + 'static,
    ) -> Option<T> {
        let slot = Arc::new(Mutex::new(None));
        let filled = Arc::clone(&slot);
        self.start(Box::new(move || {
            let value = call();
            *filled.lock() = Some(value);
        }));
        let answered = async {
            loop {
                let done = self.done.listen();
                if let Some(value) = slot.lock().take() {
                    return value;
                }
                done.await;
            }
        };
        reactor::within(patience, answered).await
    }

    /// Closes a descriptor, here if that waits for nothing.
    fn close(self: &Arc<Self>, fd: OwnedFd) {
        if !closes_at_once(&fd) {
            self.start(Box::new(move || drop(fd)));
        }
    }
}

impl fmt::Debug for Aside {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let state = self.state.lock();
        write!(f, "Aside({} threads, {} jobs wait)", state.threads, state.waiting.len())
    }
}

/// A descriptor as a front-end sent it: of any kind. Dropping it waits for nothing.
#[derive(Debug)]
pub(crate) struct Passed {
    fd: Option<OwnedFd>,
    aside: Arc<Aside>,
}

impl Passed {
    pub(crate) fn new(fd: OwnedFd, aside: &Arc<Aside>) -> Self {
        Self { fd: Some(fd), aside: Arc::clone(aside) }
    }

    /// The descriptor, of a kind that was looked at.
    pub(crate) fn known(mut self) -> OwnedFd {
        self.fd.take().unwrap_or_else(|| unreachable!("a descriptor is taken once"))
    }
}

impl AsFd for Passed {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_ref().map_or_else(|| unreachable!("a descriptor is taken once"), AsFd::as_fd)
    }
}

impl Drop for Passed {
    fn drop(&mut self) {
        if let Some(fd) = self.fd.take() {
            self.aside.close(fd);
        }
    }
}

/// Descriptors of a message that has not come whole.
#[derive(Debug)]
pub(crate) struct Arriving {
    pub(crate) fds: Vec<OwnedFd>,
    aside: Arc<Aside>,
}

impl Arriving {
    pub(crate) fn new(aside: &Arc<Aside>) -> Self {
        Self { fds: Vec::new(), aside: Arc::clone(aside) }
    }

    /// All of them: the message is whole.
    pub(crate) fn arrived(mut self) -> Vec<Passed> {
        let fds = std::mem::take(&mut self.fds);
        fds.into_iter().map(|fd| Passed::new(fd, &self.aside)).collect()
    }
}

impl Drop for Arriving {
    fn drop(&mut self) {
        self.fds.drain(..).for_each(|fd| self.aside.close(fd));
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use super::*;

    const SOON: Duration = Duration::from_millis(20);
    const LATE: Duration = Duration::from_secs(60);

    /// A loop waited for a descriptor of its front-end, and with it all guests on that loop.
    #[test]
    fn what_never_ends_holds_its_own_front_end_up_and_nobody_else() {
        let aside = Arc::new(Aside::default());
        let reactor = reactor::Reactor::new(reactor::Backend::Threads).expect("a loop");
        reactor.run(async {
            assert_eq!(aside.call(LATE, || 7).await, Some(7));
            assert!(aside.has_room(LATE).await);
            let stuck: Vec<_> = (0..=WAITING_THREADS_MAX)
                .map(|_| {
                    let (end, ended) = mpsc::channel::<()>();
                    aside.start(Box::new(move || {
                        let _ = ended.recv();
                    }));
                    end
                })
                .collect();
            assert!(!aside.has_room(SOON).await, "{aside:?}");
            assert_eq!(aside.call(SOON, || 8).await, None);
            drop(stuck);
            assert!(aside.has_room(LATE).await, "{aside:?}");
            assert_eq!(aside.call(LATE, || 9).await, Some(9));
        });
    }

    #[test]
    fn a_descriptor_that_may_wait_is_closed_on_another_thread() {
        let aside = Arc::new(Aside::default());
        let reactor = reactor::Reactor::new(reactor::Backend::Threads).expect("a loop");
        let (from, to) = rustix::pipe::pipe().expect("a pipe");
        reactor.run(async {
            drop(Passed::new(to, &aside));
            // It is closed when the other end reads the end.
            let end = aside.call(LATE, move || rustix::io::read(&from, &mut [0; 1])).await;
            assert_eq!(end, Some(Ok(0)));
        });
    }
}
