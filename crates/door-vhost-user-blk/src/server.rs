//! The door: its exports, and the front-ends that come in.

use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use export::{ClientCosts, Departure, Door, DuplicateName, Export, Exports, Loops, Room, Seat, Served, peer};
use parking_lot::Mutex;
use reactor::net::{Listener, Stream};
use tracing::Instrument;

use crate::allowance::Allowance;
use crate::connection;
use crate::handed::{HandedFrontEnd, NotResumed, Said};
use crate::limits::FRONT_ENDS_MAX;
use crate::mapping::{FilePolicy, open_mount_table};
use crate::shown_disk::{DeviceOptions, VhostExport};

/// What all front-ends share.
#[derive(Debug)]
pub struct Server {
    door: Door,
    /// The loop that the next device's first queue lives on.
    next_loop: AtomicUsize,
    /// Front-ends that no loop serves any more, for another process.
    handed: Mutex<Vec<HandedFrontEnd>>,
    memory: FilePolicy,
}

impl Server {
    /// A server without exports whose front-ends live on `loops`, as long as these run. Their guests' memory lies in files as `memory` says.
    /// To be called before the process gives up the right to open files.
    pub fn new(loops: &Arc<Loops>, memory: FilePolicy) -> Arc<Self> {
        if open_mount_table().is_none() {
            tracing::info!("there is no mount table: memory of guests in files of btrfs and ZFS is refused");
        }
        Arc::new(Self {
            memory,
            door: Door::new(loops, Exports::new()),
            next_loop: AtomicUsize::new(0),
            handed: Mutex::default(),
        })
    }

    /// What is served.
    pub fn exports(&self) -> &Exports {
        self.door.exports()
    }

    /// What its clients cost.
    pub fn client_costs(&self) -> ClientCosts {
        self.door.costs()
    }

    /// Front-ends and queues that are served now.
    pub fn clients(&self) -> usize {
        self.door.clients()
    }

    /// Offers `disk` as `name`.
    ///
    /// # Errors
    /// When the name is in use.
    pub fn add(
        &self,
        name: impl Into<String>,
        disk: Arc<dyn Export>,
        options: DeviceOptions,
    ) -> Result<Arc<VhostExport>, DuplicateName> {
        let entry = self.door.exports().add(name, "", disk)?;
        Ok(Arc::new(VhostExport::new(entry, options)))
    }

    /// Accepts front-ends of one export at `listener` for ever. Runs on any event loop, also one that serves no client; dropping it ends the
    /// listening.
    pub async fn accept(self: Arc<Self>, listener: Listener, export: Arc<VhostExport>) {
        let welcome = |stream| self.begin(stream, &export);
        let room = Room { waits_from: usize::MAX, refused_from: FRONT_ENDS_MAX };
        self.door.accept(&listener, room, welcome).await;
    }

    fn begin(self: &Arc<Self>, stream: Stream, export: &Arc<VhostExport>) {
        self.give(stream, export, Vec::new());
    }

    /// Starts a front-end on a loop, which has received `reported` before.
    fn give(self: &Arc<Self>, stream: Stream, export: &Arc<VhostExport>, reported: Vec<Said>) {
        let (server, export) = (Arc::clone(self), Arc::clone(export));
        self.door.give(move |_seat| {
            let span = tracing::info_span!("vhost-user-blk", peer = peer::name(&stream));
            let stream = Rc::new(stream);
            let departure = Departure::new(Rc::clone(&stream));
            // Also before its work has begun: the next process may fail, and one more come at once.
            if !reported.is_empty() {
                departure.can_be_given();
            }
            let hang_up = Rc::clone(&departure);
            let served =
                async move { connection::serve(server, (stream, departure), export, reported).await };
            Served { hang_up, work: Box::pin(served.instrument(span)) }
        });
    }

    /// Resumes a front-end that another back-end has given away. It is served when the loops run.
    ///
    /// # Errors
    /// When the disk is not what its guest knows: the front-end stays as it is.
    pub fn resume(
        self: &Arc<Self>,
        front: &HandedFrontEnd,
        export: &Arc<VhostExport>,
    ) -> Result<(), NotResumed> {
        export.check(front, self.memory)?;
        let (socket, reported) = (front.socket.try_clone()?, front.reported_again()?);
        // An older program said a block, and handed nothing over.
        export.keep_discard_bytes(front.discard_bytes.unwrap_or(export.options.logical_block_size));
        if front.cache.is_some() {
            *export.cache.lock() = front.cache;
        }
        self.give(Stream::from_fd(socket), export, reported);
        Ok(())
    }

    /// The front-ends that were given away when the loops ended ([`export::Shutdown::hand_over`]).
    pub fn take_handed(&self) -> Vec<HandedFrontEnd> {
        std::mem::take(&mut self.handed.lock())
    }

    /// What a new front-end may map.
    pub(crate) fn allowance(&self) -> Allowance {
        Allowance::new(self.memory)
    }

    pub(crate) fn hand(&self, front: HandedFrontEnd) {
        self.handed.lock().push(front);
    }

    /// The loop of a new device's first queue; its next queues are on the loops behind it.
    pub(crate) fn first_loop(&self) -> usize {
        self.next_loop.fetch_add(1, Ordering::Relaxed) % self.door.loops().count()
    }

    /// Starts queue number `queue` of a device on its loop.
    pub(crate) fn give_queue(
        &self,
        first_loop: usize,
        queue: usize,
        begin: impl FnOnce(&Seat) -> Served + Send + 'static,
    ) {
        self.door.give_to((first_loop + queue) % self.door.loops().count(), begin);
    }

    pub(crate) fn door(&self) -> &Door {
        &self.door
    }
}
