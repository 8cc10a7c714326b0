//! An open disk as its handles share it: which requests are in flight, and how it closes.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use event_listener::Event;
use parking_lot::RwLock;

use crate::error::{Error, ErrorKind};
#[cfg(feature = "jobs")]
use crate::jobs::Site;
use crate::loops::Loops;
use crate::pending::Reply;
use crate::request::Job;

/// Requests of a disk in flight at most: sixteen queues of the depth that guests' drivers use at most (1024), four times over. What
/// they hold is the callers' memory; this bounds what a caller that never looks at completions can pile up here.
const IN_FLIGHT_MAX: usize = 1 << 16;

/// The loop on which a disk is closed, and on which its work in the background runs.
pub(crate) const HOME: usize = 0;

/// What all handles and queues of a disk share.
pub(crate) struct Shared {
    name: String,
    loops: Loops,
    /// `None` once it is closed.
    disk: RwLock<Option<Arc<graph::Disk>>>,
    /// Requests that have come and not ended.
    in_flight: AtomicUsize,
    is_closing: AtomicBool,
    emptied: Event,
    /// Where its jobs work.
    #[cfg(feature = "jobs")]
    site: parking_lot::Mutex<Option<Arc<Site>>>,
}

/// A caller uses the disk: it does not close before this is dropped.
pub(crate) struct Inside {
    // Dropped before the next: a task that waits for the end finds the disk released.
    disk: Arc<graph::Disk>,
    leave: Leave,
}

struct Leave(Arc<Shared>);

impl Drop for Leave {
    fn drop(&mut self) {
        let Shared { in_flight, is_closing, emptied, .. } = &*self.0;
        if in_flight.fetch_sub(1, Ordering::SeqCst) == 1 && is_closing.load(Ordering::SeqCst) {
            emptied.notify(usize::MAX);
        }
    }
}

impl Inside {
    pub(crate) fn disk(&self) -> &graph::Disk {
        &self.disk
    }

    #[cfg(feature = "jobs")]
    pub(crate) fn shared_disk(&self) -> &Arc<graph::Disk> {
        &self.disk
    }

    /// Whether others use the disk now: requests that wait for its loops, or are at work.
    pub(crate) fn is_one_of_several(&self) -> bool {
        self.leave.0.in_flight.load(Ordering::Relaxed) > 1
    }
}

impl Shared {
    pub(crate) fn new(name: String, loops: Loops, disk: Arc<graph::Disk>) -> Self {
        Self {
            name,
            loops,
            disk: RwLock::new(Some(disk)),
            in_flight: AtomicUsize::new(0),
            is_closing: AtomicBool::new(false),
            emptied: Event::new(),
            #[cfg(feature = "jobs")]
            site: parking_lot::Mutex::new(None),
        }
    }

    /// With a place for jobs.
    #[cfg(feature = "jobs")]
    pub(crate) fn with_site(self, site: Site) -> Self {
        Self { site: parking_lot::Mutex::new(Some(Arc::new(site))), ..self }
    }

    /// Where the jobs of the disk work.
    #[cfg(feature = "jobs")]
    pub(crate) fn site(&self) -> Result<Arc<Site>, Error> {
        self.site.lock().clone().ok_or_else(|| Error::closed(&self.name))
    }

    pub(crate) fn loops(&self) -> &Loops {
        &self.loops
    }

    /// Admits a call.
    pub(crate) fn enter(self: &Arc<Self>) -> Result<Inside, Error> {
        self.in_flight.fetch_add(1, Ordering::SeqCst);
        let leave = Leave(Arc::clone(self));
        // After counting: who closes looks at the count after saying so.
        if self.is_closing.load(Ordering::SeqCst) {
            return Err(Error::closed(&self.name));
        }
        match &*self.disk.read() {
            Some(disk) => Ok(Inside { disk: Arc::clone(disk), leave }),
            None => Err(Error::closed(&self.name)),
        }
    }

    /// Lets a request in, unless there are too many.
    pub(crate) fn admit(self: &Arc<Self>) -> Result<Inside, Error> {
        let inside = self.enter()?;
        if self.in_flight.load(Ordering::Relaxed) > IN_FLIGHT_MAX {
            let text =
                format!("{}: {IN_FLIGHT_MAX} requests are in flight, the most there may be", self.name);
            return Err(Error::said(ErrorKind::Full, text));
        }
        Ok(inside)
    }

    /// Keeps newcomers out from now on, and closes the disk when those inside have left.
    pub(crate) fn close(self: &Arc<Self>, reply: Reply<()>) {
        if self.is_closing.swap(true, Ordering::SeqCst) {
            return reply.send(Err(Error::closed(&self.name)));
        }
        let shared = Arc::clone(self);
        let close = move || {
            let task = async move {
                let result = shared.close_here().await;
                drop(shared);
                reply.send(result);
            };
            reactor::spawn(task).detach();
        };
        self.loops.send(HOME, Job::Work(Box::new(close)));
    }

    /// Closes the disk where no caller awaits the result: its last handle has gone.
    pub(crate) fn close_silently(self: &Arc<Self>) {
        let (reply, closed) = crate::Pending::new();
        let name = self.name.clone();
        closed.on_completion(move |result| match result {
            Err(error) if error.kind() != ErrorKind::Closed => {
                tracing::error!("{name}: closing the disk after its last handle was dropped: {error}");
            }
            _ => {}
        });
        self.close(reply);
    }

    /// Nothing of the disk is left afterwards, locks included, also after a failure.
    async fn close_here(&self) -> Result<(), Error> {
        let Some(disk) = self.disk.read().clone() else { return Err(Error::closed(&self.name)) };
        // No caller wants to wait for a limit now.
        disk.lift_limits();
        self.nobody_inside().await;
        #[cfg(feature = "jobs")]
        self.end_jobs().await;
        let closed = disk.close().await;
        disk.idle().await;
        self.disk.write().take();
        let end = disk.end();
        drop(disk);
        end.reached().await;
        closed.map_err(Error::from)
    }

    /// Ends the jobs, if there are some, and with them the graph, which has the disk.
    #[cfg(feature = "jobs")]
    async fn end_jobs(&self) {
        let site = self.site.lock().take();
        if let Some(site) = site {
            site.end_jobs().await;
        }
    }

    async fn nobody_inside(&self) {
        loop {
            let emptied = self.emptied.listen();
            if self.in_flight.load(Ordering::SeqCst) == 0 {
                return;
            }
            emptied.await;
        }
    }
}

impl fmt::Debug for Shared {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({} in flight)", self.name, self.in_flight.load(Ordering::Relaxed))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Buffer, Disk, NewImage, Request, create};

    /// A loop of a monitor's disk died of a bug; the monitor must learn it from every request, at once, and get its bytes back.
    #[test]
    fn when_the_loop_has_died_everything_ends_with_an_error() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("disk.qcow2");
        create(&path, NewImage::qcow2(1 << 20)).wait().unwrap();
        let disk = Disk::open(&path).wait().unwrap();
        disk.set_limits(&[("iops-total", 1)]).unwrap();
        let mut queue = disk.queue(8).unwrap();
        let write = || Request::Write { offset: 0, buffer: vec![7; 512].into(), fua: false };
        let in_flight: Vec<_> = (0..8).map(|_| disk.submit(write())).collect();
        (0..8).for_each(|number| queue.submit(write(), number).unwrap());
        let shared = Arc::clone(disk.shared());
        shared.loops().send(HOME, Job::Work(Box::new(|| panic!("a bug"))));
        let ended = in_flight.into_iter().filter_map(|pending| pending.wait().err());
        assert!(ended.map(|error| error.kind()).all(|kind| kind == ErrorKind::LoopEnded));
        let mut done = Vec::new();
        assert_eq!(queue.completions(&mut done, 8, None).unwrap(), 8);
        assert!(done.iter().any(|completion| completion.result.is_err()));

        let error = disk.write(0, vec![7; 512]).wait().unwrap_err();
        assert_eq!((error.kind(), error.errno()), (ErrorKind::LoopEnded, 5));
        assert_eq!(error.into_buffer().map(Buffer::into_vec), Some(vec![7; 512]));
        assert_eq!(disk.snapshots().wait().unwrap_err().kind(), ErrorKind::LoopEnded);
        assert_eq!(disk.close().wait().unwrap_err().kind(), ErrorKind::LoopEnded);
        drop((disk, queue, shared));
        // Nothing of it is left to stand against another opener.
        Disk::open(&path).wait().unwrap().close().wait().unwrap();
    }
}
