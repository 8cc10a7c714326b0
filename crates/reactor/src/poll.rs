//! Sockets without io_uring: one `poll` over all that wait.

use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::io::Errno;
use smallvec::SmallVec;

use crate::ring::Wait;
use crate::slots::{Landing, Slots};
use crate::work::{Fd, Work};

struct Waiting {
    key: usize,
    fd: Fd,
    events: PollFlags,
}

/// The sockets that operations wait for. Files never come here, they block threads of the pool.
pub(crate) struct Poll {
    event: Arc<OwnedFd>,
    waiting: Vec<Waiting>,
    cancelled: Vec<usize>,
}

impl Poll {
    pub(crate) fn new(event: &Arc<OwnedFd>) -> Self {
        Self { event: Arc::clone(event), waiting: Vec::new(), cancelled: Vec::new() }
    }

    /// Whether `work` waits for a socket.
    pub(crate) fn takes(work: &Work) -> bool {
        work.waits_for_peer()
    }

    pub(crate) fn start(&mut self, key: usize, work: &Work) {
        let (fd, events) = match work {
            Work::Recv { fd, .. } | Work::Accept { fd } => (fd, PollFlags::IN),
            Work::Send { fd, .. } => (fd, PollFlags::OUT),
            _ => return,
        };
        self.waiting.push(Waiting { key, fd: Arc::clone(fd), events });
    }

    pub(crate) fn cancel(&mut self, key: usize) {
        self.cancelled.push(key);
    }

    /// Waits as told until a socket is ready, and does what became possible.
    pub(crate) fn turn(
        &mut self,
        slots: &mut Slots,
        wait: Wait,
        landings: &mut Vec<Landing>,
    ) -> io::Result<u32> {
        for key in std::mem::take(&mut self.cancelled) {
            if let Some(at) = self.waiting.iter().position(|waiting| waiting.key == key) {
                self.waiting.swap_remove(at);
                landings.push(slots.land(key, -libc::ECANCELED, None));
            }
        }
        let wait = if landings.is_empty() { wait } else { Wait::No };
        if matches!(wait, Wait::No) && self.waiting.is_empty() {
            return Ok(0);
        }
        for at in self.ready(wait)?.into_iter().rev() {
            self.perform(at, slots, landings);
        }
        Ok(1)
    }

    /// Places in `waiting` that are ready, ascending.
    fn ready(&self, wait: Wait) -> io::Result<SmallVec<[usize; 16]>> {
        let mut fds: SmallVec<[PollFd<'_>; 16]> = SmallVec::with_capacity(self.waiting.len() + 1);
        fds.extend(self.waiting.iter().map(|waiting| PollFd::new(&*waiting.fd, waiting.events)));
        fds.push(PollFd::new(&*self.event, PollFlags::IN));
        let time = match wait {
            Wait::No => Some(Duration::ZERO),
            Wait::Until(time) => time,
        };
        // A time that the kernel cannot express is as good as none.
        let time = time.and_then(|time| Timespec::try_from(time).ok());
        match rustix::event::poll(&mut fds, time.as_ref()) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
        if fds.pop().is_some_and(|event| !event.revents().is_empty()) {
            // Only empties the counter; what woke us is in the inbox.
            let _ = rustix::io::read(&*self.event, &mut [0; 8]);
        }
        let is_ready = |(at, fd): (usize, &PollFd<'_>)| (!fd.revents().is_empty()).then_some(at);
        Ok(fds.iter().enumerate().filter_map(is_ready).collect())
    }

    fn perform(&mut self, at: usize, slots: &mut Slots, landings: &mut Vec<Landing>) {
        let key = self.waiting[at].key;
        let result = slots.work(key).map_or(-libc::ECANCELED, |(work, _)| work.perform());
        if result == -libc::EAGAIN || result == -libc::EINTR {
            return;
        }
        self.waiting.swap_remove(at);
        landings.push(slots.land(key, result, None));
    }
}
