//! A back-end for vhost-user-blk on the framework of rust-vmm, `vhost-user-backend`, with libblkio as its front-end.

use std::collections::HashMap;
use std::fs::{File, OpenOptions};
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use blkio::{Blkio, Blkioq, Completion, ReqFlags};
use cowhand::{Disk, Queue};
use cowhand_adapters::virtio_blk::{BlockRequest, Status, Work};
use vhost::vhost_user::Listener;
use vhost::vhost_user::message::VhostUserProtocolFeatures;
use vhost_user_backend::{VhostUserBackendMut, VhostUserDaemon, VringRwLock, VringT};
use virtio_queue::QueueT;
use vm_memory::{GuestAddressSpace, GuestMemoryAtomic, GuestMemoryMmap};
use vmm_sys_util::epoll::EventSet;
use vmm_sys_util::event::{EventConsumer, EventFlag, EventNotifier, new_event_consumer_and_notifier};

use crate::scratch::{SIZE_BYTES, Scratch, bytes_at};

/// Descriptors of the ring, and so requests in flight.
const QUEUE_SIZE: usize = 256;
/// The event of the ring, and that of completions: the framework has the number between them.
const KICKED: u16 = 0;
const COMPLETED: u16 = 2;

/// VIRTIO_F_VERSION_1, VHOST_USER_F_PROTOCOL_FEATURES, VIRTIO_BLK_F_WRITE_ZEROES, _DISCARD, _FLUSH, _BLK_SIZE, _SEG_MAX.
const FEATURES: u64 = 1 << 32 | 1 << 30 | 1 << 14 | 1 << 13 | FLUSH | 1 << 6 | 1 << 2;
const FLUSH: u64 = 1 << 9;

/// A device with one ring.
struct Backend {
    disk: Disk,
    queue: Queue,
    memory: Option<GuestMemoryAtomic<GuestMemoryMmap>>,
    /// By the number of the chain's first descriptor.
    running: HashMap<u64, BlockRequest>,
    /// The driver flushes; otherwise each write is durable when it completes.
    flushes: bool,
}

impl Backend {
    fn new(disk: Disk) -> Self {
        let queue = disk.queue(QUEUE_SIZE).unwrap();
        Self { disk, queue, memory: None, running: HashMap::new(), flushes: false }
    }

    /// Submits what the guest has put into its ring.
    fn submit(&mut self, vring: &VringRwLock) -> io::Result<()> {
        let memory = self.memory.as_ref().ok_or(io::ErrorKind::NotConnected)?.memory();
        loop {
            let chain = vring.get_mut().get_queue_mut().pop_descriptor_chain(memory.clone());
            let Some(chain) = chain else { return Ok(()) };
            let head = chain.head_index();
            let request =
                BlockRequest::parse(memory.clone().into_inner(), chain).map_err(io::Error::other)?;
            let work = if self.flushes { request.request() } else { request.durable_request() };
            match work {
                Some(work) => {
                    self.queue.submit(work, head.into())?;
                    self.running.insert(head.into(), request);
                }
                None if matches!(request.work, Work::Name(_)) => {
                    request.answer_name("cowhand");
                    used(vring, head, &request, Status::Ok)?;
                }
                None => used(vring, head, &request, Status::Unsupported)?,
            }
        }
    }

    /// Gives the guest what has ended.
    fn complete(&mut self, vring: &VringRwLock) -> io::Result<()> {
        let mut done = Vec::new();
        self.queue.completions(&mut done, 0, None)?;
        for cowhand::Completion { user_data, result, .. } in done {
            let Some(request) = self.running.remove(&user_data) else { continue };
            let status = if result.is_ok() { Status::Ok } else { Status::IoError };
            used(vring, user_data as u16, &request, status)?;
        }
        vring.signal_used_queue()
    }
}

fn used(vring: &VringRwLock, head: u16, request: &BlockRequest, status: Status) -> io::Result<()> {
    let len = request.complete(status).map_err(io::Error::other)?;
    vring.add_used(head, len).map_err(io::Error::other)
}

impl VhostUserBackendMut for Backend {
    type Bitmap = ();
    type Vring = VringRwLock;

    fn num_queues(&self) -> usize {
        1
    }

    fn max_queue_size(&self) -> usize {
        QUEUE_SIZE
    }

    fn features(&self) -> u64 {
        FEATURES
    }

    fn acked_features(&mut self, features: u64) {
        self.flushes = features & FLUSH != 0;
    }

    fn protocol_features(&self) -> VhostUserProtocolFeatures {
        VhostUserProtocolFeatures::CONFIG
            | VhostUserProtocolFeatures::MQ
            | VhostUserProtocolFeatures::REPLY_ACK
            | VhostUserProtocolFeatures::CONFIGURE_MEM_SLOTS
    }

    fn set_event_idx(&mut self, _enabled: bool) {}

    /// The configuration of a virtio-blk device (virtio 1.2, 5.2.4).
    fn get_config(&self, offset: u32, size: u32) -> Vec<u8> {
        let mut config = [0; 60];
        let mut put = |at: usize, bytes: &[u8]| config[at..at + bytes.len()].copy_from_slice(bytes);
        put(0, &(self.disk.size().unwrap_or(0) / 512).to_le_bytes());
        put(12, &(QUEUE_SIZE as u32 - 2).to_le_bytes());
        put(20, &512u32.to_le_bytes());
        put(34, &1u16.to_le_bytes());
        for (sectors, segments) in [(36, 40), (48, 52)] {
            put(sectors, &u32::MAX.to_le_bytes());
            put(segments, &1u32.to_le_bytes());
        }
        put(44, &1u32.to_le_bytes());
        put(56, &[1]);
        let end = config.len().min(offset as usize + size as usize);
        config.get(offset as usize..end).unwrap_or_default().to_vec()
    }

    fn update_memory(&mut self, memory: GuestMemoryAtomic<GuestMemoryMmap>) -> io::Result<()> {
        self.memory = Some(memory);
        Ok(())
    }

    fn exit_event(&self, _thread_index: usize) -> Option<(EventConsumer, EventNotifier)> {
        new_event_consumer_and_notifier(EventFlag::NONBLOCK | EventFlag::CLOEXEC).ok()
    }

    fn handle_event(
        &mut self,
        event: u16,
        _set: EventSet,
        vrings: &[VringRwLock],
        _thread: usize,
    ) -> io::Result<()> {
        if event == KICKED {
            self.submit(&vrings[0])?;
        }
        self.complete(&vrings[0])
    }
}

/// Serves one front-end, until it goes.
fn serve(disk: Disk, socket: &Path) -> std::thread::JoinHandle<()> {
    let backend = Arc::new(Mutex::new(Backend::new(disk)));
    let event = backend.lock().unwrap().queue.completion_fd().unwrap().as_raw_fd();
    let memory = GuestMemoryAtomic::new(GuestMemoryMmap::new());
    let mut daemon = VhostUserDaemon::new("cowhand".to_owned(), backend, memory).unwrap();
    let handler = daemon.get_epoll_handlers().remove(0);
    handler.register_listener(event, EventSet::IN, COMPLETED.into()).unwrap();
    let mut listener = Listener::new(socket, true).unwrap();
    std::thread::spawn(move || {
        daemon.start(&mut listener).unwrap();
        // The front-end's going is an error here.
        let _ = daemon.wait();
        handler.send_exit_event();
    })
}

/// Results of requests, by their numbers.
fn answers(queue: &mut Blkioq, count: usize) -> Vec<i32> {
    let mut completions: Vec<_> = (0..count).map(|_| MaybeUninit::<Completion>::uninit()).collect();
    let mut patience = Duration::from_secs(20);
    let done = queue.do_io(&mut completions, count, Some(&mut patience), None).unwrap();
    assert_eq!(done, count);
    // SAFETY: the library has filled as many as it says.
    let all = completions.iter().map(|completion| unsafe { completion.assume_init_ref() });
    let mut found: Vec<_> = all.map(|completion| (completion.user_data, completion.ret)).collect();
    found.sort_unstable();
    found.into_iter().map(|(_, result)| result).collect()
}

/// Memory that both sides have, as a file, and its address in ours.
fn shared(disk: &mut Blkio, len: usize) -> (File, usize) {
    let region = disk.alloc_mem_region(len).unwrap();
    disk.map_mem_region(&region).unwrap();
    let path = format!("/proc/self/fd/{}", region.fd);
    (OpenOptions::new().read(true).write(true).open(path).unwrap(), region.addr)
}

#[test]
fn libblkio_reads_and_writes_a_disk_behind_the_framework() {
    let scratch = Scratch::new();
    let socket = scratch.path().with_extension("sock");
    let disk = scratch.open();
    let served = serve(disk.clone(), &socket);

    let mut front = Blkio::new("virtio-blk-vhost-user").unwrap();
    front.set_str("path", socket.to_str().unwrap()).unwrap();
    front.connect().unwrap();
    assert_eq!(front.get_u64("capacity").unwrap(), SIZE_BYTES);
    let mut queue = front.start().unwrap().queues.remove(0);
    let (file, start) = shared(&mut front, 1 << 20);
    let place = |at: usize| std::ptr::without_provenance_mut::<u8>(start + at);
    let none = ReqFlags::empty();

    file.write_all_at(&[7; 65536], 0).unwrap();
    for number in 0..32usize {
        queue.write(number as u64 * 65536, place(0), 65536, number, none);
    }
    assert_eq!(answers(&mut queue, 32), [0; 32]);
    queue.flush(0, none);
    queue.discard(0, 65536, 1, none);
    queue.write_zeroes(65536, 65536, 2, none);
    assert_eq!(answers(&mut queue, 3), [0, 0, 0]);
    queue.read(65536, place(131_072), 131_072, 0, none);
    assert_eq!(answers(&mut queue, 1), [0]);
    let mut read = vec![0xee; 131_072];
    file.read_exact_at(&mut read, 131_072).unwrap();
    assert!(read[..65536].iter().all(|byte| *byte == 0) && read[65536..].iter().all(|byte| *byte == 7));
    drop((queue, front));
    served.join().unwrap();
    assert_eq!(bytes_at(&disk, 31 * 65536, 512), [7; 512]);
    disk.close().wait().unwrap();
}
