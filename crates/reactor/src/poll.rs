//! Sockets without io_uring: one `poll` over all that wait.

use std::collections::HashMap;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
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

/// Sockets, each with what is awaited of it.
type Sockets<'a> = SmallVec<[(&'a Fd, PollFlags); 16]>;

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
        work.waits_for_peer() && !matches!(work, Work::Command { .. })
    }

    pub(crate) fn start(&mut self, key: usize, work: &Work) {
        let (fd, events) = match work {
            Work::Recv { fd, .. } | Work::Accept { fd } | Work::Readable { fd } => (fd, PollFlags::IN),
            Work::Writable { fd } => (fd, PollFlags::OUT),
            Work::HangUp { fd } => (fd, PollFlags::empty()),
            _ => return,
        };
        self.waiting.push(Waiting { key, fd: Arc::clone(fd), events });
    }

    pub(crate) fn cancel(&mut self, key: usize) {
        self.cancelled.push(key);
    }

    /// Waits as long as given until a socket is ready, and does what became possible.
    pub(crate) fn turn(
        &mut self,
        slots: &mut Slots,
        wait: Wait<'_>,
        landings: &mut Vec<Landing>,
    ) -> io::Result<u32> {
        for key in std::mem::take(&mut self.cancelled) {
            if let Some(at) = self.waiting.iter().position(|waiting| waiting.key == key) {
                self.waiting.swap_remove(at);
                landings.push(slots.land(key, -libc::ECANCELED, None));
            }
        }
        let wait = if landings.is_empty() { wait } else { Wait::No };
        if matches!(wait, Wait::Look(..)) || matches!(wait, Wait::No) && self.waiting.is_empty() {
            return Ok(0);
        }
        for at in self.ready(wait)?.into_iter().rev() {
            self.perform(at, slots, landings);
        }
        Ok(1)
    }

    /// Places in `waiting` that are ready, ascending.
    fn ready(&self, wait: Wait<'_>) -> io::Result<SmallVec<[usize; 16]>> {
        let (places, sockets) = self.sockets();
        let mut fds: SmallVec<[PollFd<'_>; 16]> =
            sockets.into_iter().map(|(fd, events)| PollFd::new(&**fd, events)).collect();
        fds.push(PollFd::new(&*self.event, PollFlags::IN));
        let time = match wait {
            Wait::No | Wait::Look(..) => Some(Duration::ZERO),
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
        let is_ready = |&at: &usize| {
            let reported = fds[places[at]].revents();
            reported.intersects(self.waiting[at].events | PollFlags::HUP | PollFlags::ERR | PollFlags::NVAL)
        };
        Ok((0..self.waiting.len()).filter(is_ready).collect())
    }

    /// Each socket once, with all that is awaited of it, and the place of each of `waiting` among them: `poll` takes no
    /// more entries than the process may have descriptors, and every connection waits for two things.
    fn sockets(&self) -> (SmallVec<[usize; 16]>, Sockets<'_>) {
        let mut sockets = Sockets::new();
        let mut known = HashMap::with_capacity(self.waiting.len());
        let mut places = SmallVec::with_capacity(self.waiting.len());
        for waiting in &self.waiting {
            let at = *known.entry(waiting.fd.as_raw_fd()).or_insert(sockets.len());
            match sockets.get_mut(at) {
                Some((_, events)) => *events |= waiting.events,
                None => sockets.push((&waiting.fd, waiting.events)),
            }
            places.push(at);
        }
        (places, sockets)
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
