//! A virtual machine without a machine: the front-end's half of vhost-user-blk, and a driver for its rings.
//!
//! The guest's memory is a memory file, read and written as a file: the daemon has it mapped, and both see the same bytes. Everything
//! that a guest and a front-end can do wrong can be done here.

mod packed;

pub use packed::BASE_AT_START;

use std::fs::File;
use std::io::{IoSlice, Read};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::{Duration, Instant};

use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use rustix::fs::{MemfdFlags, ftruncate, memfd_create};
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage,
    SendFlags,
};

/// Entries of each ring.
pub const ENTRIES: u16 = 256;
/// Requests of each queue at a time.
pub const SLOTS: u16 = 64;
/// Bytes of data of a request.
pub const DATA_BYTES: usize = 32 << 10;
/// Where the guest's memory begins, as the front-end and as the guest has it: they differ.
pub const USER_BASE: u64 = 0x7f00_0000_0000;
/// See [`USER_BASE`].
pub const GUEST_BASE: u64 = 0x4000_0000;

/// Descriptors of a slot.
const PER_SLOT: u16 = ENTRIES / SLOTS;
/// What a slot has besides its data: header, status, a table.
const SLOT_HEAD_BYTES: u64 = 4096;
const SLOT_BYTES: u64 = SLOT_HEAD_BYTES + DATA_BYTES as u64;
const RING_BYTES: u64 = 0x1_0000;
const QUEUE_BYTES: u64 = RING_BYTES + SLOTS as u64 * SLOT_BYTES;

/// Where parts of a queue are in its part of the memory.
pub const DESCRIPTORS_AT: u64 = 0;
/// The available ring.
pub const AVAILABLE_AT: u64 = 0x4000;
/// The used ring.
pub const USED_AT: u64 = 0x8000;

/// How long a device may take on a machine that is fully loaded.
pub const PATIENCE: Duration = crate::ready::PATIENCE;

/// Feature bits of the device.
pub mod feature {
    /// Write cache that can be flushed.
    pub const FLUSH: u64 = 1 << 9;
    /// The driver may turn it off.
    pub const CONFIG_WCE: u64 = 1 << 11;
    /// Dirty pages are logged.
    pub const LOG_ALL: u64 = 1 << 26;
    /// Tables of descriptors.
    pub const INDIRECT: u64 = 1 << 28;
    /// Notifications by index.
    pub const EVENT_IDX: u64 = 1 << 29;
    /// Protocol features.
    pub const PROTOCOL: u64 = 1 << 30;
    /// Read-only.
    pub const RO: u64 = 1 << 5;
    /// Virtio 1.
    pub const VERSION_1: u64 = 1 << 32;
    /// Packed rings.
    pub const RING_PACKED: u64 = 1 << 34;
}

/// Protocol features: MQ, LOG_SHMFD, REPLY_ACK, BACKEND_REQ, CONFIG, INFLIGHT_SHMFD, CONFIGURE_MEM_SLOTS, DEVICE_STATE.
const PROTOCOL: u64 = 1 | 1 << 1 | 1 << 3 | 1 << 5 | 1 << 9 | 1 << 12 | 1 << 15 | 1 << 19;

/// How a front-end behaves.
#[derive(Clone, Copy, Debug)]
pub struct Ways {
    /// Queues.
    pub queues: u16,
    /// It keeps records of requests in flight.
    pub inflight: bool,
    /// The driver uses tables.
    pub indirect: bool,
    /// The driver uses notifications by index.
    pub event_index: bool,
    /// The driver can flush.
    pub flush: bool,
    /// Memory comes region by region.
    pub slots: bool,
    /// Rings are packed.
    pub packed: bool,
}

impl Default for Ways {
    fn default() -> Self {
        Self {
            queues: 1,
            inflight: true,
            indirect: true,
            event_index: true,
            flush: true,
            slots: true,
            packed: false,
        }
    }
}

/// What a driver asks for.
#[derive(Clone, Debug)]
pub enum Ask<'a> {
    /// Bytes of the disk.
    Read(u64, usize),
    /// Bytes for the disk.
    Write(u64, &'a [u8]),
    /// Durability.
    Flush,
    /// The disk's name.
    Id,
    /// Discard (kind 11) or write zeroes (13): sector, sectors, flags.
    Ranges(u32, &'a [(u64, u32, u32)]),
    /// Anything: kind, sector, bytes that the device reads.
    Raw(u32, u64, &'a [u8]),
}

/// One queue as the driver has it.
#[derive(Debug)]
struct Queue {
    next_available: u16,
    next_used: u16,
    kick: OwnedFd,
    call: OwnedFd,
    err: OwnedFd,
    packed: packed::Driver,
}

/// The guest: its memory and its driver. It outlives connections.
#[derive(Debug)]
pub struct Machine {
    /// The memory.
    pub memory: File,
    queues: Vec<Queue>,
    ways: Ways,
    inflight: Option<(OwnedFd, [u8; 24])>,
}

/// A request that the device has answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Done {
    /// Its slot.
    pub slot: u16,
    /// Its status.
    pub status: u8,
    /// Bytes that the device says it wrote.
    pub written: u32,
}

impl Machine {
    /// A new one.
    pub fn new(ways: Ways) -> Self {
        let memory = memfd_create("guest", MemfdFlags::CLOEXEC).expect("a memory file");
        ftruncate(&memory, QUEUE_BYTES * u64::from(ways.queues)).expect("memory");
        Self::in_file(File::from(memory), ways)
    }

    /// A new one, whose memory is this file.
    pub fn in_file(memory: File, ways: Ways) -> Self {
        let bell = || eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).expect("an eventfd");
        let queue = |_| Queue {
            next_available: 0,
            next_used: 0,
            kick: bell(),
            call: bell(),
            err: bell(),
            packed: packed::Driver::new(),
        };
        let machine = Self { memory, queues: (0..ways.queues).map(queue).collect(), ways, inflight: None };
        (0..ways.queues).for_each(|queue| machine.put_u16(queue, USED_AT + 2, 0));
        machine
    }

    /// Bytes of memory.
    pub fn bytes(&self) -> u64 {
        QUEUE_BYTES * u64::from(self.ways.queues)
    }

    /// Where queue number `queue` is in memory.
    pub fn queue_at(queue: u16) -> u64 {
        u64::from(queue) * QUEUE_BYTES
    }

    fn slot_at(queue: u16, slot: u16) -> u64 {
        Self::queue_at(queue) + RING_BYTES + u64::from(slot) * SLOT_BYTES
    }

    /// Writes to memory.
    pub fn put(&self, at: u64, bytes: &[u8]) {
        self.memory.write_all_at(bytes, at).expect("memory");
    }

    /// Writes a number to a queue's part of memory.
    pub fn put_u16(&self, queue: u16, at: u64, value: u16) {
        self.put(Self::queue_at(queue) + at, &value.to_le_bytes());
    }

    fn get_u16(&self, queue: u16, at: u64) -> u16 {
        let mut bytes = [0; 2];
        self.memory.read_exact_at(&mut bytes, Self::queue_at(queue) + at).expect("memory");
        u16::from_le_bytes(bytes)
    }

    /// Writes a descriptor of a queue.
    pub fn put_descriptor(&self, queue: u16, number: u16, descriptor: (u64, u32, u16, u16)) {
        self.put(Self::queue_at(queue) + DESCRIPTORS_AT + 16 * u64::from(number), &encoded(descriptor));
    }

    /// Makes `head` available, without a kick.
    pub fn make_available(&mut self, queue: u16, head: u16) {
        let next = self.queues[usize::from(queue)].next_available;
        self.put_u16(queue, AVAILABLE_AT + 4 + 2 * u64::from(next % ENTRIES), head);
        self.put_u16(queue, AVAILABLE_AT + 2, next.wrapping_add(1));
        self.queues[usize::from(queue)].next_available = next.wrapping_add(1);
    }

    /// Wakes the device.
    pub fn kick(&self, queue: u16) {
        rustix::io::write(&self.queues[usize::from(queue)].kick, &1u64.to_ne_bytes()).expect("a kick");
    }

    /// Waits until the device has seen the last kick.
    pub fn wait_for_kick(&self, queue: u16) {
        let kick = &self.queues[usize::from(queue)].kick;
        let info = format!("/proc/self/fdinfo/{}", kick.as_raw_fd());
        let start = Instant::now();
        loop {
            let text = std::fs::read_to_string(&info).expect("a descriptor");
            let count = text.lines().find_map(|line| line.strip_prefix("eventfd-count:"));
            if count.expect("an event").trim() == "0" {
                return;
            }
            assert!(start.elapsed() < PATIENCE, "queue {queue} is not looked at");
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    /// Puts a request into a slot and makes it available, without a kick.
    pub fn submit(&mut self, queue: u16, slot: u16, ask: &Ask<'_>) {
        let at = Self::slot_at(queue, slot);
        let guest = |offset: u64| GUEST_BASE + at + offset;
        let (kind, sector, readable, writable): (u32, u64, Vec<u8>, usize) = match ask {
            Ask::Read(sector, len) => (0, *sector, Vec::new(), *len),
            Ask::Write(sector, data) => (1, *sector, data.to_vec(), 0),
            Ask::Flush => (4, 0, Vec::new(), 0),
            Ask::Id => (8, 0, Vec::new(), 20),
            Ask::Ranges(kind, ranges) => (*kind, 0, ranges.iter().flat_map(range).collect(), 0),
            Ask::Raw(kind, sector, data) => (*kind, *sector, data.to_vec(), 0),
        };
        self.put(at, &[&kind.to_le_bytes()[..], &[0; 4], &sector.to_le_bytes(), &[0xff]].concat());
        self.put(at + SLOT_HEAD_BYTES, &readable);
        let mut parts = vec![(guest(0), 16, 0u16)];
        // Two parts, so that a request has pieces.
        let total = readable.len().max(writable);
        let direction = if writable > 0 { 2 } else { 0 };
        let half = (total / 2).next_multiple_of(512).min(total);
        if self.ways.indirect && half < total {
            parts.push((guest(SLOT_HEAD_BYTES), half as u32, direction));
            parts.push((guest(SLOT_HEAD_BYTES + half as u64), (total - half) as u32, direction));
        } else if total > 0 {
            parts.push((guest(SLOT_HEAD_BYTES), total as u32, direction));
        }
        parts.push((guest(16), 1, 2));
        if self.ways.packed {
            return self.submit_packed(queue, slot, &parts);
        }
        let head = slot * PER_SLOT;
        let base = if self.ways.indirect { 0 } else { head };
        let count = parts.len() as u16;
        let chain = (0..).zip(&parts).map(|(number, (address, len, flags))| {
            let more = number + 1 < count;
            (*address, *len, flags | u16::from(more), if more { base + number + 1 } else { 0 })
        });
        let chain: Vec<_> = chain.collect();
        if self.ways.indirect {
            let table: Vec<u8> = chain.iter().flat_map(|one| encoded(*one)).collect();
            self.put(at + 512, &table);
            self.put_descriptor(queue, head, (guest(512), table.len() as u32, 4, 0));
        } else {
            (head..).zip(chain).for_each(|(number, one)| self.put_descriptor(queue, number, one));
        }
        self.make_available(queue, head);
    }

    fn submit_packed(&mut self, queue: u16, slot: u16, parts: &[(u64, u32, u16)]) {
        if !self.ways.indirect {
            return self.put_packed(queue, slot, parts);
        }
        // In a table all follow each other; number and flags stand the other way round than in a split ring.
        let table: Vec<u8> =
            parts.iter().flat_map(|(address, len, flags)| encoded((*address, *len, 0, *flags))).collect();
        let at = Self::slot_at(queue, slot) + 512;
        self.put(at, &table);
        self.put_packed(queue, slot, &[(GUEST_BASE + at, table.len() as u32, 4)]);
    }

    /// The data of a slot.
    pub fn data(&self, queue: u16, slot: u16, len: usize) -> Vec<u8> {
        let mut bytes = vec![0; len];
        let at = Self::slot_at(queue, slot) + SLOT_HEAD_BYTES;
        self.memory.read_exact_at(&mut bytes, at).expect("memory");
        bytes
    }

    /// What the device has answered since the last time.
    pub fn completed(&mut self, queue: u16) -> Vec<Done> {
        if self.ways.packed {
            return self.completed_packed(queue);
        }
        let index = self.get_u16(queue, USED_AT + 2);
        let mut done = Vec::new();
        while self.queues[usize::from(queue)].next_used != index {
            let next = self.queues[usize::from(queue)].next_used;
            let at = Self::queue_at(queue) + USED_AT + 4 + 8 * u64::from(next % ENTRIES);
            let mut entry = [0; 8];
            self.memory.read_exact_at(&mut entry, at).expect("memory");
            let [head, written] =
                [0, 4].map(|at| u32::from_le_bytes(entry[at..at + 4].try_into().expect("four bytes")));
            let slot = u16::try_from(head).expect("a head") / PER_SLOT;
            done.push(Done { slot, status: self.status(queue, slot), written });
            self.queues[usize::from(queue)].next_used = next.wrapping_add(1);
        }
        // The driver asks to be woken for what comes next.
        self.put_u16(queue, AVAILABLE_AT + 4 + 2 * u64::from(ENTRIES), index);
        done
    }

    fn status(&self, queue: u16, slot: u16) -> u8 {
        let mut status = [0];
        self.memory.read_exact_at(&mut status, Self::slot_at(queue, slot) + 16).expect("memory");
        status[0]
    }

    /// Waits until the device wakes the driver; `false` when it did not in time.
    pub fn called(&self, queue: u16, patience: Duration) -> bool {
        let call = &self.queues[usize::from(queue)].call;
        readable(call, patience) && rustix::io::read(call, &mut [0; 8]).is_ok()
    }

    /// Whether the device reported that a ring is broken.
    pub fn broken(&self, queue: u16) -> bool {
        readable(&self.queues[usize::from(queue)].err, PATIENCE)
    }

    /// Gives the descriptors of a queue to the daemon, and enables it.
    pub fn give_bells(&self, front: &mut FrontEnd, queue: u16) {
        let own = &self.queues[usize::from(queue)];
        front.ok(13, &u64::from(queue).to_ne_bytes(), &[own.call.as_fd()]);
        front.ok(14, &u64::from(queue).to_ne_bytes(), &[own.err.as_fd()]);
        front.ok(12, &u64::from(queue).to_ne_bytes(), &[own.kick.as_fd()]);
        front.ok(18, &pair(queue, 1), &[]);
    }

    /// Waits for `count` answers of a queue, woken by the device each time.
    pub fn wait(&mut self, queue: u16, count: usize) -> Vec<Done> {
        let mut done = self.completed(queue);
        while done.len() < count {
            // An answer may come between the look and the wish to be woken: look again.
            let more = self.completed(queue);
            let waits = more.is_empty();
            done.extend(more);
            if waits && !self.called(queue, PATIENCE) {
                let late = self.completed(queue);
                assert!(late.is_empty(), "the device answered without a call: {late:?}");
                panic!("{} answers of {count}", done.len());
            }
        }
        done
    }

    /// One request from beginning to end.
    pub fn ask(&mut self, queue: u16, ask: &Ask<'_>) -> Done {
        self.submit(queue, 0, ask);
        self.kick(queue);
        let done = self.wait(queue, 1);
        assert_eq!(done.len(), 1, "{done:?}");
        done[0]
    }

    /// One request that succeeds.
    pub fn ok(&mut self, queue: u16, ask: &Ask<'_>) -> Done {
        let done = self.ask(queue, ask);
        assert_eq!(done.status, 0, "{ask:?}");
        done
    }

    /// Bytes of the disk.
    pub fn read(&mut self, sector: u64, len: usize) -> Vec<u8> {
        assert_eq!(self.ok(0, &Ask::Read(sector, len)).written as usize, len + 1);
        self.data(0, 0, len)
    }
}

fn range((sector, count, flags): &(u64, u32, u32)) -> Vec<u8> {
    [&sector.to_le_bytes()[..], &count.to_le_bytes(), &flags.to_le_bytes()].concat()
}

fn encoded((address, len, flags, next): (u64, u32, u16, u16)) -> Vec<u8> {
    [&address.to_le_bytes()[..], &len.to_le_bytes(), &flags.to_le_bytes(), &next.to_le_bytes()].concat()
}

fn readable(fd: impl AsFd, patience: Duration) -> bool {
    let mut fds = [PollFd::new(&fd, PollFlags::IN)];
    let patience = Timespec::try_from(patience).expect("a time");
    poll(&mut fds, Some(&patience)).expect("a poll") > 0
}

/// A connection to the daemon.
#[derive(Debug)]
pub struct FrontEnd {
    stream: UnixStream,
    /// The back-end's messages.
    channel: Option<UnixStream>,
    /// Features that it offered.
    pub offered: u64,
}

impl FrontEnd {
    /// Connects; the daemon may be about to listen.
    pub fn connect(socket: &Path) -> Self {
        let start = Instant::now();
        loop {
            match UnixStream::connect(socket) {
                Ok(stream) => {
                    stream.set_read_timeout(Some(PATIENCE)).expect("a time-out");
                    return Self { stream, channel: None, offered: 0 };
                }
                Err(error) => assert!(start.elapsed() < PATIENCE, "{}: {error}", socket.display()),
            }
            std::thread::sleep(Duration::from_millis(2));
        }
    }

    /// Connects, and starts all rings of a machine.
    pub fn start(socket: &Path, machine: &mut Machine) -> Self {
        let mut own = Self::connect(socket);
        own.prepare(machine);
        own.start_rings(machine);
        own
    }

    /// Sends a message.
    pub fn send(&mut self, request: u32, payload: &[u8], fds: &[BorrowedFd<'_>]) {
        self.send_flags(request, 1, payload, fds).expect("the daemon reads");
    }

    /// Sends a message with these flags.
    ///
    /// # Errors
    /// When the daemon has hung up.
    pub fn send_flags(
        &mut self,
        request: u32,
        flags: u32,
        payload: &[u8],
        fds: &[BorrowedFd<'_>],
    ) -> rustix::io::Result<()> {
        let header = [request, flags, payload.len() as u32].map(u32::to_ne_bytes).concat();
        let message = [&header[..], payload].concat();
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(16))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        assert!(fds.is_empty() || control.push(SendAncillaryMessage::ScmRights(fds)));
        rustix::net::sendmsg(&self.stream, &[IoSlice::new(&message)], &mut control, SendFlags::NOSIGNAL)
            .map(drop)
    }

    /// Sends a part of a message.
    ///
    /// # Errors
    /// When the daemon has hung up.
    pub fn send_part(&mut self, bytes: &[u8], fds: &[BorrowedFd<'_>]) -> rustix::io::Result<()> {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(16))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        assert!(fds.is_empty() || control.push(SendAncillaryMessage::ScmRights(fds)));
        rustix::net::sendmsg(&self.stream, &[IoSlice::new(bytes)], &mut control, SendFlags::NOSIGNAL)
            .map(drop)
    }

    /// The next answer: its payload, and what came along.
    pub fn answer(&mut self) -> Option<(Vec<u8>, Vec<OwnedFd>)> {
        let mut head = [0; 12];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(16))];
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let slices = &mut [std::io::IoSliceMut::new(&mut head)];
        let flags = RecvFlags::WAITALL | RecvFlags::CMSG_CLOEXEC;
        let received = rustix::net::recvmsg(&self.stream, slices, &mut control, flags).ok()?;
        let mut fds = Vec::new();
        for message in control.drain() {
            if let RecvAncillaryMessage::ScmRights(passed) = message {
                fds.extend(passed);
            }
        }
        if received.bytes < 12 {
            return None;
        }
        let mut payload = vec![0; u32::from_ne_bytes(head[8..].try_into().expect("four bytes")) as usize];
        self.stream.read_exact(&mut payload).ok()?;
        Some((payload, fds))
    }

    /// Whether the daemon hangs up rather than answers.
    pub fn is_hung_up(&mut self) -> bool {
        self.answer().is_none()
    }

    /// Asks, and gives the number that is answered.
    pub fn number(&mut self, request: u32, payload: &[u8]) -> u64 {
        self.send(request, payload, &[]);
        let (payload, _) = self.answer().expect("an answer");
        u64::from_ne_bytes(payload[..8].try_into().expect("a number"))
    }

    /// The same with a descriptor that goes along.
    pub fn number_with(&mut self, request: u32, payload: &[u8], fd: BorrowedFd<'_>) -> u64 {
        self.send(request, payload, &[fd]);
        let (payload, _) = self.answer().expect("an answer");
        u64::from_ne_bytes(payload[..8].try_into().expect("a number"))
    }

    /// Sends a message that is acknowledged; 0 is success.
    pub fn acknowledged(&mut self, request: u32, payload: &[u8], fds: &[BorrowedFd<'_>]) -> u64 {
        self.send_flags(request, 1 | 8, payload, fds).expect("the daemon reads");
        let (payload, _) = self.answer().expect("an acknowledgement");
        u64::from_ne_bytes(payload[..8].try_into().expect("a number"))
    }

    fn ok(&mut self, request: u32, payload: &[u8], fds: &[BorrowedFd<'_>]) {
        assert_eq!(self.acknowledged(request, payload, fds), 0, "message {request}");
    }

    /// Features, memory, records, the channel: all but rings.
    pub fn prepare(&mut self, machine: &mut Machine) {
        let ways = machine.ways;
        self.offered = self.number(1, &[]);
        let protocol = self.number(15, &[]) & if ways.inflight { PROTOCOL } else { PROTOCOL & !(1 << 12) };
        self.send(16, &protocol.to_ne_bytes(), &[]);
        self.ok(3, &[], &[]);
        let (channel, theirs) = UnixStream::pair().expect("a pair of sockets");
        channel.set_read_timeout(Some(PATIENCE)).expect("a time-out");
        self.ok(21, &[], &[theirs.as_fd()]);
        self.channel = Some(channel);
        self.set_features(ways, 0);
        assert!(self.number(17, &[]) >= u64::from(ways.queues), "too few queues");
        self.share_memory(machine);
        if ways.inflight {
            self.share_records(machine);
        }
    }

    /// Says which features are used, and `more`.
    pub fn set_features(&mut self, ways: Ways, more: u64) {
        let when = |on: bool, bit: u64| if on { bit } else { 0 };
        let wanted = feature::VERSION_1
            | feature::PROTOCOL
            | feature::CONFIG_WCE
            | when(ways.indirect, feature::INDIRECT)
            | when(ways.event_index, feature::EVENT_IDX)
            | when(ways.flush, feature::FLUSH)
            | when(ways.packed, feature::RING_PACKED)
            | more;
        self.ok(2, &(wanted & (self.offered | more)).to_ne_bytes(), &[]);
    }

    /// Says where the memory is: in two regions.
    pub fn share_memory(&mut self, machine: &Machine) {
        // Not at a boundary of pages that all parts respect: requests cross it.
        let (all, first) = (machine.bytes(), machine.bytes() / 2 / 4096 * 4096);
        let region =
            |at: u64, len: u64| [GUEST_BASE + at, len, USER_BASE + at, at].map(u64::to_ne_bytes).concat();
        let fd = machine.memory.as_fd();
        // Rings lie in one region each: one queue's memory must not be cut in its ring.
        let regions = [(0, first.max(RING_BYTES)), (first.max(RING_BYTES), all - first.max(RING_BYTES))];
        if machine.ways.slots {
            assert!(self.number(36, &[]) >= 2);
            for (at, len) in regions {
                self.ok(37, &[&[0; 8][..], &region(at, len)].concat(), &[fd]);
            }
        } else {
            let table: Vec<u8> = regions.iter().flat_map(|(at, len)| region(*at, *len)).collect();
            self.ok(5, &[&2u64.to_ne_bytes()[..], &table].concat(), &[fd, fd]);
        }
    }

    fn share_records(&mut self, machine: &mut Machine) {
        if machine.inflight.is_none() {
            let mut question = [0; 24];
            question[16..18].copy_from_slice(&machine.ways.queues.to_ne_bytes());
            question[18..20].copy_from_slice(&ENTRIES.to_ne_bytes());
            self.send(31, &question, &[]);
            let (answer, mut fds) = self.answer().expect("records");
            machine.inflight = Some((fds.pop().expect("a descriptor"), answer.try_into().expect("24 bytes")));
        }
        let (fd, info) = machine.inflight.as_ref().expect("records");
        self.ok(32, info, &[fd.as_fd()]);
    }

    /// Starts all rings where the used ring says that they are.
    pub fn start_rings(&mut self, machine: &Machine) {
        for queue in 0..machine.ways.queues {
            self.describe_ring(machine, queue, 0);
            machine.give_bells(self, queue);
        }
    }

    /// Entries, base and address of a ring; `flags` of 1 have writes to the used ring logged.
    pub fn describe_ring(&mut self, machine: &Machine, queue: u16, flags: u32) {
        self.ok(8, &pair(queue, u32::from(ENTRIES)), &[]);
        // A front-end does not know where a packed ring is after a crash: it says what it said at first.
        let base = match machine.ways.packed {
            true => BASE_AT_START,
            false => u32::from(machine.get_u16(queue, USED_AT + 2)),
        };
        self.ok(10, &pair(queue, base), &[]);
        self.set_address(queue, flags);
    }

    /// Where a ring is.
    pub fn set_address(&mut self, queue: u16, flags: u32) {
        let at = Machine::queue_at(queue);
        let words = [
            USER_BASE + at + DESCRIPTORS_AT,
            USER_BASE + at + USED_AT,
            USER_BASE + at + AVAILABLE_AT,
            GUEST_BASE + at + USED_AT,
        ];
        let payload = [&pair(queue, flags)[..], &words.map(u64::to_ne_bytes).concat()].concat();
        self.ok(9, &payload, &[]);
    }

    /// Stops a ring; gives the index of the entry that is next.
    pub fn stop_ring(&mut self, queue: u16) -> u16 {
        u16::try_from(self.stop_ring_at(queue)).expect("an index")
    }

    /// Stops a ring; gives the place where it goes on, as the message has it.
    pub fn stop_ring_at(&mut self, queue: u16) -> u32 {
        self.send(11, &pair(queue, 0), &[]);
        let (payload, _) = self.answer().expect("a base");
        u32::from_ne_bytes(payload[4..8].try_into().expect("four bytes"))
    }

    /// Starts a stopped ring where it was left.
    pub fn start_ring_at(&mut self, machine: &Machine, queue: u16, base: u32) {
        self.ok(10, &pair(queue, base), &[]);
        machine.give_bells(self, queue);
    }

    /// Bytes of the configuration.
    pub fn config(&mut self, offset: u32, len: usize) -> Vec<u8> {
        let head = [offset, len as u32, 0].map(u32::to_ne_bytes).concat();
        self.send(24, &[head, vec![0; len]].concat(), &[]);
        self.answer().expect("a configuration").0.split_off(12)
    }

    /// Bytes of the disk, as the configuration has it.
    pub fn size(&mut self) -> u64 {
        u64::from_le_bytes(self.config(0, 8).try_into().expect("eight bytes")) * 512
    }

    /// Turns the write cache on or off.
    pub fn set_cache(&mut self, on: bool) -> u64 {
        let head = [32, 1, 0].map(u32::to_ne_bytes).concat();
        self.acknowledged(25, &[head, vec![u8::from(on)]].concat(), &[])
    }

    /// Waits until the daemon says that the configuration has changed.
    pub fn config_changed(&mut self) -> bool {
        let mut message = [0; 12];
        self.channel.as_mut().expect("a channel").read_exact(&mut message).expect("a message");
        message[..4] == 2u32.to_ne_bytes()
    }
}

fn pair(ring: u16, value: u32) -> Vec<u8> {
    [u32::from(ring), value].map(u32::to_ne_bytes).concat()
}
