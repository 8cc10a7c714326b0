//! A disk as the crate `virtio-driver` reaches it over vhost-user: rings, split or packed, as others read the specification.
//! It is a peer of tests, and the load of `cargo xtask bench`, table M.

use std::os::fd::AsRawFd;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use memmap2::MmapMut;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{MemfdFlags, ftruncate, memfd_create};
use virtio_driver::{
    EventFd, QueueNotifier, VhostUser, VirtioBlkConfig, VirtioBlkQueue, VirtioBlkReqBuf, VirtioBlkTransport,
    VirtioFeatureFlags,
};

/// Requests of each queue at a time, at most: each takes three descriptors of a ring of 256.
pub const DEPTH_MAX: usize = 64;
/// Entries of each ring.
const ENTRIES: u16 = 256;
/// Bytes of data of a request, at most.
pub const DATA_BYTES: usize = 4096;
/// Flushes, a write cache that can be turned off, several queues.
const OF_DISKS: u64 = 1 << 9 | 1 << 11 | 1 << 12;

const PATIENCE: Duration = Duration::from_secs(20);
/// The error of a server that did not complete a request within 20 s.
pub const NO_ANSWER: &str = "no answer, and no call";

/// How a guest is connected.
#[derive(Clone, Copy, Debug)]
pub struct Ways {
    /// Queues.
    pub queues: usize,
    /// Packed rings, if the server has them.
    pub packed: bool,
    /// Notifications by index.
    pub event_index: bool,
}

/// What its queues do.
#[derive(Clone, Copy, Debug)]
pub struct Load {
    /// Writes rather than reads.
    pub write: bool,
    /// Requests of each queue at a time.
    pub depth: usize,
    /// One block behind the other, in a part of the disk for each queue, rather than at random places.
    pub sequential: bool,
    /// Bytes of the disk; the requests are of [`DATA_BYTES`].
    pub disk_bytes: u64,
    /// How long.
    pub time: Duration,
    /// Chooses the places.
    pub seed: u64,
}

/// What they did.
#[derive(Clone, Copy, Debug, Default)]
pub struct Outcome {
    /// Requests that were answered.
    pub requests: u64,
    /// How long it took.
    pub seconds: f64,
}

/// One request.
#[derive(Clone, Copy, Debug)]
pub enum Ask {
    /// One block, from this offset.
    Read(u64),
    /// One block, to this offset.
    Write(u64),
    /// Durability.
    Flush,
}

/// A guest whose disk is at a vhost-user socket.
pub struct Guest {
    lanes: Vec<Lane>,
    // Behind the queues, which use their memory.
    _transport: Box<VirtioBlkTransport>,
    packed: bool,
}

/// One queue, and the data of its requests.
struct Lane {
    queue: VirtioBlkQueue<'static, usize>,
    notifier: Box<dyn QueueNotifier>,
    answers: Arc<EventFd>,
    memory: MmapMut,
}

impl std::fmt::Debug for Guest {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Guest").field("queues", &self.lanes.len()).field("packed", &self.packed).finish()
    }
}

impl Guest {
    /// Connects, and starts all queues.
    ///
    /// # Errors
    /// When the server refuses something.
    pub fn connect(socket: &Path, ways: Ways) -> Result<Self, String> {
        let wanted = |on: bool, feature: VirtioFeatureFlags| if on { feature.bits() } else { 0 };
        let features = VirtioFeatureFlags::VERSION_1.bits()
            | wanted(ways.packed, VirtioFeatureFlags::RING_PACKED)
            | wanted(ways.event_index, VirtioFeatureFlags::RING_EVENT_IDX)
            | OF_DISKS;
        let name = socket.to_str().ok_or("a socket whose name is no text")?;
        let vhost = VhostUser::<VirtioBlkConfig, VirtioBlkReqBuf>::new(name, features).map_err(text)?;
        let mut transport: Box<VirtioBlkTransport> = Box::new(vhost);
        let agreed = transport.get_features();
        let packed = agreed & VirtioFeatureFlags::RING_PACKED.bits() != 0;
        let queues = VirtioBlkQueue::setup_queues(&mut *transport, ways.queues, ENTRIES).map_err(text)?;
        let mut lanes = Vec::new();
        for (number, mut queue) in queues.into_iter().enumerate() {
            let memory = share(&mut *transport)?;
            queue.set_used_notif_enabled(true);
            let (notifier, answers) =
                (transport.get_submission_notifier(number), transport.get_completion_fd(number));
            lanes.push(Lane { queue, notifier, answers, memory });
        }
        Ok(Self { lanes, _transport: transport, packed })
    }

    /// Whether the rings are packed.
    pub fn is_packed(&self) -> bool {
        self.packed
    }

    /// The data of a request of the first queue.
    pub fn data(&mut self, slot: usize) -> &mut [u8] {
        &mut self.lanes[0].memory[slot * DATA_BYTES..][..DATA_BYTES]
    }

    /// Has the first queue do all of these at a time, each in the slot of its place; gives their errors, 0 for none.
    ///
    /// # Errors
    /// When an answer does not come, or a ring is full.
    pub fn ask(&mut self, asks: &[Ask]) -> Result<Vec<i32>, String> {
        let lane = &mut self.lanes[0];
        let mut found = vec![None; asks.len()];
        for (slot, ask) in asks.iter().enumerate() {
            lane.submit(slot, *ask)?;
        }
        lane.notify()?;
        let mut left = asks.len();
        while left > 0 {
            for (slot, error) in lane.wait()? {
                found[slot] = Some(error);
                left -= 1;
            }
        }
        Ok(found.into_iter().flatten().collect())
    }

    /// Has every queue do `load`, each on a thread of its own.
    ///
    /// # Errors
    /// When a request fails, or an answer does not come.
    pub fn run(&mut self, load: Load) -> Result<Outcome, String> {
        let start = Instant::now();
        let count = self.lanes.len() as u64;
        let results: Vec<_> = std::thread::scope(|scope| {
            let drive = |(number, lane)| scope.spawn(move || drive(lane, Places::new(load, number, count)));
            let threads: Vec<_> = (0..).zip(&mut self.lanes).map(drive).collect();
            threads
                .into_iter()
                .map(|thread| thread.join().map_err(|_| "a queue's thread ended".to_owned()))
                .collect()
        });
        let mut requests = 0;
        for result in results {
            requests += result??;
        }
        Ok(Outcome { requests, seconds: start.elapsed().as_secs_f64() })
    }
}

impl Lane {
    fn submit(&mut self, slot: usize, ask: Ask) -> Result<(), String> {
        let data = &mut self.memory[slot * DATA_BYTES..][..DATA_BYTES];
        let submitted = match ask {
            Ask::Read(offset) => self.queue.read(offset, data, slot),
            Ask::Write(offset) => self.queue.write(offset, data, slot),
            Ask::Flush => self.queue.flush(slot),
        };
        submitted.map_err(text)
    }

    fn notify(&mut self) -> Result<(), String> {
        if self.queue.avail_notif_needed() { self.notifier.notify().map_err(text) } else { Ok(()) }
    }

    /// Waits for answers: slots and errors.
    fn wait(&mut self) -> Result<Vec<(usize, i32)>, String> {
        loop {
            let done: Vec<_> = self.queue.completions().map(|one| (one.context, one.ret)).collect();
            if !done.is_empty() {
                return Ok(done);
            }
            let mut fds = [PollFd::new(&*self.answers, PollFlags::IN)];
            let patience = Timespec::try_from(PATIENCE).map_err(text)?;
            if poll(&mut fds, Some(&patience)).map_err(text)? == 0 {
                return Err(NO_ANSWER.to_owned());
            }
            self.answers.read().map_err(text)?;
        }
    }
}

/// Keeps `load.depth` requests in flight; how many were answered.
fn drive(lane: &mut Lane, mut places: Places) -> Result<u64, String> {
    let load = places.load;
    let ask = |offset| if load.write { Ask::Write(offset) } else { Ask::Read(offset) };
    let start = Instant::now();
    for slot in 0..load.depth.min(DEPTH_MAX) {
        lane.submit(slot, ask(places.next()))?;
    }
    lane.notify()?;
    let (mut in_flight, mut answered) = (load.depth.min(DEPTH_MAX), 0);
    while in_flight > 0 {
        let done = lane.wait()?;
        let goes_on = start.elapsed() < load.time;
        for (slot, error) in done {
            if error != 0 {
                return Err(format!("a request failed: {error}"));
            }
            answered += 1;
            if goes_on {
                lane.submit(slot, ask(places.next()))?;
            } else {
                in_flight -= 1;
            }
        }
        if goes_on {
            lane.notify()?;
        }
    }
    Ok(answered)
}

/// Where requests go.
struct Places {
    load: Load,
    random: crate::Random,
    /// First block of the queue's own part, and how many it has.
    part: (u64, u64),
    next: u64,
}

impl Places {
    fn new(load: Load, queue: u64, queues: u64) -> Self {
        let blocks = load.disk_bytes / DATA_BYTES as u64 / queues;
        let random = crate::Random::new(load.seed * 64 + queue);
        Self { load, random, part: (queue * blocks, blocks), next: 0 }
    }

    fn next(&mut self) -> u64 {
        let (first, count) = self.part;
        let block = if self.load.sequential { self.next % count } else { self.random.below(count) };
        self.next += 1;
        (first + block) * DATA_BYTES as u64
    }
}

/// Memory for the data of one queue's requests, which the server sees.
#[expect(unsafe_code, reason = "memory that is shared with another process has to be mapped")]
fn share(transport: &mut VirtioBlkTransport) -> Result<MmapMut, String> {
    let file = memfd_create("guest", MemfdFlags::CLOEXEC).map_err(text)?;
    ftruncate(&file, (DEPTH_MAX * DATA_BYTES) as u64).map_err(text)?;
    // SAFETY: nothing cuts the file. The server writes to the bytes of a request only while it is in flight, and `Lane` does not look at them then.
    let mut memory = unsafe { MmapMut::map_mut(&file) }.map_err(text)?;
    // The pages are there before anything is measured.
    memory.fill(0x5a);
    transport.map_mem_region(memory.as_ptr() as usize, memory.len(), file.as_raw_fd(), 0).map_err(text)?;
    Ok(memory)
}

fn text(error: impl std::fmt::Display) -> String {
    error.to_string()
}
