//! One queue of a device on its loop: each place waits for a request, carries it out and answers it with its wait for the next one.

use std::cell::Cell;
use std::io;
use std::pin::pin;
use std::rc::Rc;
use std::sync::Arc;

use async_lock::Mutex;
use export::repeats::{self, Level};
use export::{Budget, Ending, HangUp, Hints, InFlight, LocalEvent, Pace, Permit};
use futures_util::future::{Either, select};
use reactor::CommandDevice;
use rustix::io::Errno;

use crate::abi::Request;
use crate::kernel::{Descriptors, LargestBuf, Place, next_request};
use crate::requests;
use crate::server::UblkExport;

/// A queue that is served.
#[derive(Debug)]
pub(crate) struct Queue {
    pub(crate) export: Arc<UblkExport>,
    pub(crate) pace: Pace,
    pub(crate) device: CommandDevice,
    descriptors: Descriptors,
    number: u16,
    ending: Rc<EndingQueue>,
    in_flight: Rc<InFlight>,
    /// Has the request that waits for a place in memory.
    admission: Mutex<()>,
    /// Places that wait or work.
    places: Cell<u16>,
    /// Of those, the ones at work.
    at_work: Cell<u16>,
    changed: LocalEvent,
}

/// By which a queue is asked to end.
#[derive(Debug, Default)]
pub(crate) struct EndingQueue {
    is_asked: Cell<bool>,
    asked: LocalEvent,
}

impl HangUp for EndingQueue {
    /// Answers wait for nothing: there is one way to end.
    fn hang_up(&self, _how: Ending) {
        self.is_asked.set(true);
        self.asked.wake();
    }
}

impl Queue {
    pub(crate) fn new(
        export: &Arc<UblkExport>,
        (number, device, descriptors): (u16, CommandDevice, Descriptors),
        (pace, budget): (Pace, Arc<Budget>),
    ) -> Rc<Self> {
        Rc::new(Self {
            export: Arc::clone(export),
            pace,
            device,
            descriptors,
            number,
            ending: Rc::default(),
            in_flight: InFlight::new(budget),
            admission: Mutex::new(()),
            places: Cell::new(0),
            at_work: Cell::new(0),
            changed: LocalEvent::default(),
        })
    }

    pub(crate) fn ending(&self) -> Rc<EndingQueue> {
        Rc::clone(&self.ending)
    }

    /// Serves until the device is stopped: by us, if it is asked to end or the export is taken away, or by another process.
    pub(crate) async fn run(self: Rc<Self>) {
        let depth = self.export.device.info().depth;
        self.places.set(depth);
        for tag in 0..depth {
            reactor::spawn(Rc::clone(&self).place(tag)).detach();
        }
        let entry = Arc::clone(self.export.entry());
        let ended = pin!(self.changed.until(|| self.places.get() == 0));
        let asked = pin!(self.ending.asked.until(|| self.ending.is_asked.get()));
        let leaving = pin!(entry.leaving().wait());
        let sizes = pin!(self.follow_size());
        if let Either::Right(_) = select(ended, select(select(asked, leaving), sizes)).await {
            self.export.begin_stop();
        }
        self.changed.until(|| self.places.get() == 0).await;
    }

    /// One place, until it is not served any more.
    async fn place(self: Rc<Self>, tag: u16) {
        self.serve(tag).await;
        self.places.set(self.places.get() - 1);
        self.changed.wake();
    }

    /// The first queue tells the kernel of other sizes; it never ends.
    async fn follow_size(&self) {
        self.export.started().await;
        if self.number != 0 {
            return std::future::pending().await;
        }
        loop {
            let resized = self.export.entry().resized();
            self.export.tell_size().await;
            resized.await;
        }
    }

    /// Serves one place.
    async fn serve(&self, tag: u16) {
        let info = *self.export.device.info();
        let place = Place { encoding: self.export.device.encoding(), queue: self.number, tag };
        let copies = self.export.device.copies_data();
        let mut buf = (!copies).then(|| LargestBuf::new(info.buffer_bytes as usize));
        let mut answer = None;
        loop {
            let (asked, given) = next_request(&self.device, place, answer, buf).await;
            if let Err(error) = asked {
                return self.tell_of(&error);
            }
            let request = Request::decode(&self.descriptors.get(tag));
            tracing::trace!(tag, ?request, "request");
            self.at_work.set(self.at_work.get() + 1);
            // In memory of its own: most places wait most of the time.
            let (result, back) = Box::pin(requests::carry_out(self, place, request, given)).await;
            self.at_work.set(self.at_work.get() - 1);
            (answer, buf) = (Some(result), back);
        }
    }

    /// A place for the data of a request in the memory that all clients share, in the order in which they are asked for.
    pub(crate) async fn admit(&self, bytes: u64) -> Permit {
        let _turn = self.admission.lock().await;
        self.in_flight.admit(bytes).await
    }

    /// What is known of a request that is at work: whether others are.
    pub(crate) fn hints(&self) -> Hints {
        Hints { more_waiting: self.at_work.get() > 1 }
    }

    /// Why a place ends: the device is stopped, or cannot be served.
    fn tell_of(&self, error: &io::Error) {
        if Errno::from_io_error(error) == Some(Errno::NODEV) {
            return;
        }
        let name = self.export.entry().name();
        let text = format!("export {name:?}: the block device cannot be served any more: {error}");
        repeats::tell(Level::Error, "ublk", name, &text);
        self.export.begin_stop();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::limits::QUEUE_DEPTH;

    fn size_of_task<F: Future>(_of: impl FnOnce(Rc<Queue>) -> F) -> usize {
        size_of::<F>()
    }

    /// Each place had a buffer for the largest request from the start on: 32 MiB of a queue, once it was used.
    #[test]
    fn a_queue_that_waits_takes_as_little_as_its_tasks() {
        let bytes = size_of_task(|queue| queue.place(0)) * usize::from(QUEUE_DEPTH);
        assert!(bytes <= 48 << 10, "{bytes}");
    }
}
