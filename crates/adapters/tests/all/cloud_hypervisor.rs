//! A disk as cloud-hypervisor's `AsyncDiskFile` and `AsyncIo`. The traits here have the shape of those in its crate `block`, which is in no
//! registry: a monitor copies what follows them.

use std::collections::{HashMap, HashSet, VecDeque};
use std::fmt::Debug;
use std::io;
use std::os::fd::{FromRawFd, IntoRawFd};
use std::ptr::NonNull;
use std::sync::{Arc, Mutex};

use cowhand::{Completion, Disk, ForeignBytes, Queue, Request, ResizeOptions, ZeroOptions};
use vmm_sys_util::eventfd::EventFd;

use crate::scratch::{SIZE_BYTES, Scratch, bytes_at};

/// The shape of cloud-hypervisor's.
mod theirs {
    use super::*;

    pub type BlockResult<T> = Result<T, Box<dyn std::error::Error + Send + Sync>>;

    #[derive(Debug)]
    #[expect(dead_code, reason = "the monitor logs the causes, these tests look at the variants alone")]
    pub enum AsyncIoError {
        ReadVectored(io::Error),
        WriteVectored(io::Error),
        Fsync(io::Error),
        PunchHole(io::Error),
        WriteZeroes(io::Error),
        SubmitBatchRequests(io::Error),
    }

    pub type AsyncIoResult<T> = Result<T, AsyncIoError>;

    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct DiskTopology {
        pub logical_block_size: u64,
        pub physical_block_size: u64,
        pub minimum_io_size: u64,
        pub optimal_io_size: u64,
    }

    pub trait DiskSize: Send + Debug {
        fn logical_size(&self) -> BlockResult<u64>;
    }

    pub trait Geometry: Send + Debug {
        fn topology(&self) -> DiskTopology;
    }

    pub trait SparseCapable: Send + Debug {
        fn supports_sparse_operations(&self) -> bool;
        fn supports_zero_flag(&self) -> bool;
    }

    pub trait Resizable: Send + Debug {
        fn resize(&mut self, size: u64) -> BlockResult<()>;
    }

    pub trait MetadataSync: Send + Debug {
        fn sync_metadata(&self) -> BlockResult<()>;
    }

    pub trait DiskFile: DiskSize + Geometry + Sync {}

    pub trait AsyncDiskFile: DiskFile + Unpin {
        fn try_clone(&self) -> BlockResult<Box<dyn AsyncDiskFile>>;
        fn create_async_io(&self, ring_depth: u32) -> BlockResult<Box<dyn AsyncIo>>;
    }

    /// Memory of an operation that lives as long as this: a guest's, or a buffer of the monitor's.
    #[derive(Debug)]
    pub struct Target {
        pub memory: Vec<u8>,
        pub iovecs: Vec<(usize, usize)>,
    }

    #[derive(Debug)]
    pub enum AsyncIoOperation {
        ReadToMemory { offset: libc::off_t, target: Target, user_data: u64 },
        WriteFromMemory { offset: libc::off_t, target: Target, user_data: u64 },
    }

    impl AsyncIoOperation {
        pub fn user_data(&self) -> u64 {
            match self {
                Self::ReadToMemory { user_data, .. } | Self::WriteFromMemory { user_data, .. } => *user_data,
            }
        }

        pub fn offset(&self) -> libc::off_t {
            match self {
                Self::ReadToMemory { offset, .. } | Self::WriteFromMemory { offset, .. } => *offset,
            }
        }

        pub fn is_read(&self) -> bool {
            matches!(self, Self::ReadToMemory { .. })
        }

        pub fn total_len(&self) -> usize {
            self.target().iovecs.iter().map(|(_, len)| len).sum()
        }

        pub fn target(&self) -> &Target {
            match self {
                Self::ReadToMemory { target, .. } | Self::WriteFromMemory { target, .. } => target,
            }
        }

        /// First byte and length of each range.
        pub fn iovecs(&mut self) -> Vec<(*mut u8, usize)> {
            let (Self::ReadToMemory { target, .. } | Self::WriteFromMemory { target, .. }) = self;
            let start = target.memory.as_mut_ptr();
            target.iovecs.iter().map(|&(at, len)| (start.wrapping_add(at), len)).collect()
        }

        pub fn into_completion_buffer(self) -> Option<Vec<u8>> {
            match self {
                Self::ReadToMemory { target, .. } => Some(target.memory),
                Self::WriteFromMemory { .. } => None,
            }
        }
    }

    #[derive(Debug)]
    pub struct AsyncIoCompletion {
        pub user_data: u64,
        pub result: i32,
        pub buffer: Option<Vec<u8>>,
    }

    pub trait AsyncIo: Send {
        fn notifier(&self) -> &EventFd;
        fn submit_data_operation(&mut self, op: AsyncIoOperation) -> AsyncIoResult<()>;
        fn fsync(&mut self, user_data: Option<u64>) -> AsyncIoResult<()>;
        fn punch_hole(&mut self, offset: u64, length: u64, user_data: u64) -> AsyncIoResult<()>;
        fn write_zeroes(&mut self, offset: u64, length: u64, user_data: u64) -> AsyncIoResult<()>;
        fn next_completed_request(&mut self) -> Option<AsyncIoCompletion>;
        fn batch_requests_enabled(&self) -> bool;
        fn submit_batch_requests(&mut self, batch_request: Vec<AsyncIoOperation>) -> AsyncIoResult<()>;
        fn alignment(&self) -> u64;
    }
}

use theirs::{
    AsyncDiskFile, AsyncIo, AsyncIoCompletion, AsyncIoError, AsyncIoOperation, AsyncIoResult, BlockResult,
    DiskFile, DiskSize, DiskTopology, Geometry, MetadataSync, Resizable, SparseCapable, Target,
};

/// A disk of cowhand's as one of cloud-hypervisor's.
#[derive(Clone, Debug)]
pub struct CowhandDisk(pub Disk);

impl DiskSize for CowhandDisk {
    fn logical_size(&self) -> BlockResult<u64> {
        Ok(self.0.size()?)
    }
}

impl Geometry for CowhandDisk {
    fn topology(&self) -> DiskTopology {
        let preferred = self.0.info().map_or(512, |info| info.preferred_bytes.max(512).into());
        DiskTopology {
            logical_block_size: 512,
            physical_block_size: preferred,
            minimum_io_size: preferred,
            optimal_io_size: 0,
        }
    }
}

impl SparseCapable for CowhandDisk {
    fn supports_sparse_operations(&self) -> bool {
        self.0.info().is_ok_and(|info| info.discards)
    }

    fn supports_zero_flag(&self) -> bool {
        self.0.info().is_ok_and(|info| info.driver == "qcow2")
    }
}

impl Resizable for CowhandDisk {
    fn resize(&mut self, size: u64) -> BlockResult<()> {
        Ok(self.0.resize(size, ResizeOptions::default()).wait()?)
    }
}

impl MetadataSync for CowhandDisk {
    fn sync_metadata(&self) -> BlockResult<()> {
        Ok(self.0.flush().wait()?)
    }
}

impl DiskFile for CowhandDisk {}

impl AsyncDiskFile for CowhandDisk {
    fn try_clone(&self) -> BlockResult<Box<dyn AsyncDiskFile>> {
        Ok(Box::new(self.clone()))
    }

    fn create_async_io(&self, ring_depth: u32) -> BlockResult<Box<dyn AsyncIo>> {
        let depth = ring_depth as usize;
        let queue = self.0.queue(depth)?;
        let notifier = queue.completion_fd()?.try_clone_to_owned()?;
        // SAFETY: the descriptor is an eventfd, and nothing else owns the copy.
        let notifier = unsafe { EventFd::from_raw_fd(notifier.into_raw_fd()) };
        let disk = self.0.clone();
        Ok(Box::new(CowhandIo {
            disk,
            queue,
            depth,
            notifier,
            running: HashMap::new(),
            done: VecDeque::new(),
        }))
    }
}

/// An operation in flight. Its request has a clone, too: the memory lives until both are dropped.
type Retained = Arc<Mutex<Option<AsyncIoOperation>>>;

/// What is in flight under a number: an operation and the bytes that its completion counts, or a request without memory.
type Running = Option<(Retained, usize)>;

/// A queue of cowhand's as cloud-hypervisor's I/O of one virtqueue.
pub struct CowhandIo {
    disk: Disk,
    queue: Queue,
    depth: usize,
    notifier: EventFd,
    running: HashMap<u64, Running>,
    done: VecDeque<Completion>,
}

impl CowhandIo {
    fn submit(&mut self, user_data: u64, request: Request, running: Running) -> io::Result<()> {
        if self.running.contains_key(&user_data) {
            let text = format!("an operation with user_data {user_data} is in flight");
            return Err(io::Error::new(io::ErrorKind::AlreadyExists, text));
        }
        self.queue.submit(request, user_data)?;
        self.running.insert(user_data, running);
        Ok(())
    }

    fn submit_operation(&mut self, mut op: AsyncIoOperation) -> io::Result<()> {
        let offset = u64::try_from(op.offset()).map_err(|_| io::ErrorKind::InvalidInput)?;
        let (user_data, len, is_read) = (op.user_data(), op.total_len(), op.is_read());
        let iovecs = op.iovecs();
        let parts = iovecs.into_iter().filter_map(|(start, len)| Some((NonNull::new(start)?, len)));
        let parts: Vec<_> = parts.collect();
        let retained: Retained = Arc::new(Mutex::new(Some(op)));
        // SAFETY: the operation, which the owner is, keeps its memory in place; nothing refers to it before the completion.
        let memory = unsafe { ForeignBytes::new(parts, retained.clone()) };
        let request = match is_read {
            true => Request::ReadInto { offset, memory },
            false => Request::WriteFrom { offset, memory, fua: false },
        };
        self.submit(user_data, request, Some((retained, len)))
    }
}

impl AsyncIo for CowhandIo {
    fn notifier(&self) -> &EventFd {
        &self.notifier
    }

    fn submit_data_operation(&mut self, op: AsyncIoOperation) -> AsyncIoResult<()> {
        let failed = if op.is_read() { AsyncIoError::ReadVectored } else { AsyncIoError::WriteVectored };
        self.submit_operation(op).map_err(failed)
    }

    fn fsync(&mut self, user_data: Option<u64>) -> AsyncIoResult<()> {
        let flushed = match user_data {
            Some(user_data) => self.submit(user_data, Request::Flush, None),
            None => self.disk.flush().wait().map_err(io::Error::from),
        };
        flushed.map_err(AsyncIoError::Fsync)
    }

    fn punch_hole(&mut self, offset: u64, length: u64, user_data: u64) -> AsyncIoResult<()> {
        let request = Request::Discard { offset, len: length };
        self.submit(user_data, request, None).map_err(AsyncIoError::PunchHole)
    }

    fn write_zeroes(&mut self, offset: u64, length: u64, user_data: u64) -> AsyncIoResult<()> {
        let options = ZeroOptions { unmap: true, fast_only: false };
        let request = Request::WriteZeroes { offset, len: length, options, fua: false };
        self.submit(user_data, request, None).map_err(AsyncIoError::WriteZeroes)
    }

    fn next_completed_request(&mut self) -> Option<AsyncIoCompletion> {
        if self.done.is_empty() {
            let mut taken = Vec::new();
            self.queue.completions(&mut taken, 0, None).ok()?;
            self.done.extend(taken);
        }
        let Completion { user_data, result, .. } = self.done.pop_front()?;
        let (op, len) = match self.running.remove(&user_data).flatten() {
            Some((op, len)) => (op.lock().ok()?.take(), len),
            None => (None, 0),
        };
        let result = match result {
            Ok(()) => i32::try_from(len).unwrap_or(i32::MAX),
            Err(error) => -error.errno(),
        };
        let buffer = op.and_then(AsyncIoOperation::into_completion_buffer);
        Some(AsyncIoCompletion { user_data, result, buffer })
    }

    fn batch_requests_enabled(&self) -> bool {
        true
    }

    /// None of them is submitted unless there is place for all, under numbers of their own.
    fn submit_batch_requests(&mut self, batch_request: Vec<AsyncIoOperation>) -> AsyncIoResult<()> {
        let numbers: HashSet<u64> = batch_request.iter().map(AsyncIoOperation::user_data).collect();
        let is_used = numbers.iter().any(|number| self.running.contains_key(number));
        if is_used || numbers.len() < batch_request.len() {
            let error = io::Error::new(io::ErrorKind::AlreadyExists, "a user_data is in use");
            return Err(AsyncIoError::SubmitBatchRequests(error));
        }
        if self.queue.in_flight() + batch_request.len() > self.depth {
            let error = io::Error::new(io::ErrorKind::WouldBlock, "the queue has no place for the batch");
            return Err(AsyncIoError::SubmitBatchRequests(error));
        }
        batch_request.into_iter().try_for_each(|op| self.submit_data_operation(op))
    }

    fn alignment(&self) -> u64 {
        512
    }
}

fn target(len: usize, byte: u8) -> Target {
    Target { memory: vec![byte; len], iovecs: vec![(0, len / 2), (len / 2, len - len / 2)] }
}

/// As the monitor's device does: waits for the event, reads it, and takes completions until there are none.
fn completions(io: &mut Box<dyn AsyncIo>, count: usize) -> Vec<AsyncIoCompletion> {
    let mut all = Vec::new();
    while all.len() < count {
        match io.notifier().read() {
            Ok(_) => {}
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => std::thread::yield_now(),
            Err(error) => panic!("{error}"),
        }
        all.extend(std::iter::from_fn(|| io.next_completed_request()));
    }
    all.sort_by_key(|completion| completion.user_data);
    all
}

#[test]
fn a_disk_does_what_cloud_hypervisors_traits_say() {
    let scratch = Scratch::new();
    let mut disk = CowhandDisk(scratch.open());
    assert_eq!(disk.logical_size().unwrap(), SIZE_BYTES);
    assert!(disk.supports_sparse_operations() && disk.supports_zero_flag());
    assert_eq!(disk.topology().logical_block_size, 512);
    let mut io = disk.try_clone().unwrap().create_async_io(16).unwrap();
    let batch = (0..8u64).map(|number| AsyncIoOperation::WriteFromMemory {
        offset: number as libc::off_t * 65536,
        target: target(65536, number as u8 + 1),
        user_data: number,
    });
    assert!(io.batch_requests_enabled());
    io.submit_batch_requests(batch.collect()).unwrap();
    let results: Vec<_> =
        completions(&mut io, 8).into_iter().map(|done| (done.user_data, done.result)).collect();
    assert_eq!(results, (0..8).map(|number| (number, 65536)).collect::<Vec<_>>());

    io.punch_hole(0, 65536, 1).unwrap();
    io.write_zeroes(65536, 65536, 2).unwrap();
    let past_end = AsyncIoOperation::ReadToMemory {
        offset: SIZE_BYTES as libc::off_t,
        target: target(512, 0),
        user_data: 3,
    };
    io.submit_data_operation(past_end).unwrap();
    let results: Vec<_> =
        completions(&mut io, 3).into_iter().map(|done| (done.user_data, done.result)).collect();
    assert_eq!(results, [(1, 0), (2, 0), (3, -libc::EINVAL)]);

    let read =
        |offset, user_data| AsyncIoOperation::ReadToMemory { offset, target: target(131_072, 9), user_data };
    io.submit_data_operation(read(65536, 7)).unwrap();
    let done = completions(&mut io, 1).pop().unwrap();
    assert_eq!((done.user_data, done.result), (7, 131_072));
    let expected: Vec<u8> = [0, 3].into_iter().flat_map(|byte| [byte; 65536]).collect();
    assert!(done.buffer.unwrap() == expected);

    io.fsync(Some(8)).unwrap();
    assert_eq!(completions(&mut io, 1)[0].user_data, 8);
    io.fsync(None).unwrap();
    assert!(matches!(io.submit_data_operation(read(-1, 9)), Err(AsyncIoError::ReadVectored(_))));
    assert_eq!(io.alignment(), 512);
    disk.sync_metadata().unwrap();
    disk.resize(SIZE_BYTES * 2).unwrap();
    assert_eq!(disk.logical_size().unwrap(), SIZE_BYTES * 2);
    drop(io);
    assert_eq!(bytes_at(&disk.0, 7 * 65536, 512), [8; 512]);
    disk.0.close().wait().unwrap();
}

/// A number twice is an error that leaves the first operation alone; memory outlives an I/O that is dropped.
#[test]
fn operations_in_flight_keep_their_memory_and_their_numbers() {
    let scratch = Scratch::new();
    let disk = CowhandDisk(scratch.options().limit("iops-total", 1).open().wait().unwrap());
    let mut io = disk.create_async_io(16).unwrap();
    let write = |number: u64| AsyncIoOperation::WriteFromMemory {
        offset: number as libc::off_t * 512,
        target: target(512, 5),
        user_data: number,
    };
    (0..8).for_each(|number| io.submit_data_operation(write(number)).unwrap());
    assert!(matches!(io.submit_data_operation(write(7)), Err(AsyncIoError::WriteVectored(_))));
    let twice = io.submit_batch_requests(vec![write(8), write(8)]);
    assert!(matches!(twice, Err(AsyncIoError::SubmitBatchRequests(_))));
    let too_many = io.submit_batch_requests((8..17).map(write).collect());
    assert!(matches!(too_many, Err(AsyncIoError::SubmitBatchRequests(_))));
    drop(io);
    disk.0.set_limits(&[]).unwrap();
    disk.0.close().wait().unwrap();
    let disk = scratch.open();
    assert_eq!(bytes_at(&disk, 0, 4096), [5; 4096]);
    disk.close().wait().unwrap();
}
