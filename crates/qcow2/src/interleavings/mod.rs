//! Laws of the engine under explored thread interleavings: `cargo xtask interleave`.
//!
//! The engine is the one that ships. Around it stand threads of the explorer, a host that makes one
//! more of each piece of work, and a medium that lets others run before and after every operation.

mod allocate;
mod commit;
mod exchange;
mod free;
mod gate;
mod in_flight;
mod medium;
mod resize;
mod snapshot;
mod subclusters;

use std::sync::{Arc, OnceLock};

use futures_util::FutureExt;
use storage::{Hints, IoBuf, IoBytes, IoVec, MemoryStorage};
use sync::Mutex;
use sync::explore::{JoinHandle, block_on, spawn_local, thread};

use crate::{CheckReport, CreateOptions, Files, Host, Options, Qcow2, Repair, Work};
use medium::Medium;

/// The smallest clusters there are: 64 entries to an L2 table, and with 64 bits to a refcount block.
const CLUSTER: u64 = 512;
/// Two L2 tables' worth of clusters.
const DISK: u64 = 128 * CLUSTER;

/// Runs work as threads of the explorer.
#[derive(Default)]
struct Threads(Mutex<Vec<JoinHandle<()>>>);

impl std::fmt::Debug for Threads {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Threads")
    }
}

impl Host for Threads {
    fn spawn(&self, work: Work) {
        let handle = spawn_local(work);
        self.0.lock().push(handle);
    }
}

/// An open image, and what it is backed by.
struct World {
    image: Qcow2,
    medium: Arc<Medium>,
    host: Arc<Threads>,
}

impl World {
    /// A new, empty image, open for writing.
    fn new() -> Arc<Self> {
        Self::on(empty_image())
    }

    /// An image that is there already, open for writing.
    fn on(bytes: &[u8]) -> Arc<Self> {
        let medium = Arc::new(Medium::new(bytes));
        let host = Arc::new(Threads::default());
        let options = Options {
            writable: true,
            discard: true,
            pass_discard_request: true,
            lazy_refcounts: Some(false),
            // Little: the file is copied whenever a crash is looked at.
            allocation_reserve: Some(64 * CLUSTER),
            ..Options::default()
        };
        let files = Files { file: Arc::clone(&medium) as _, data: None, backing: None };
        let image = block_on(Qcow2::open(files, options, Arc::clone(&host) as _)).unwrap();
        Arc::new(Self { image, medium, host })
    }

    /// Fills guest cluster `cluster` with `value`.
    fn write(&self, cluster: u64, value: u8) {
        let data = IoVec::from(IoBytes::copy_from(&[value; CLUSTER as usize]));
        block_on(self.image.write(cluster * CLUSTER, data, Hints::NONE)).unwrap();
    }

    /// What guest cluster `cluster` is filled with.
    fn read(&self, cluster: u64) -> u8 {
        read(&self.image, cluster)
    }

    fn discard(&self, cluster: u64) {
        block_on(self.image.discard(cluster * CLUSTER, CLUSTER)).unwrap();
    }

    fn flush(&self) {
        block_on(self.image.flush()).unwrap();
    }

    /// The image as it is after a crash that keeps nothing that was not flushed. It may have leaks,
    /// nothing worse.
    fn after_crash(&self) -> Qcow2 {
        self.survivor(&self.medium.durable())
    }

    /// The image as it is when this process has died: all that was written is there.
    fn after_death(&self) -> Qcow2 {
        self.survivor(&self.medium.written())
    }

    fn survivor(&self, bytes: &[u8]) -> Qcow2 {
        let file = MemoryStorage::from_bytes(bytes);
        let report = check(&file);
        assert_eq!((report.corruptions, report.check_errors), (0, 0), "after a crash: {report:?}");
        let files = Files { file: Arc::new(file), data: None, backing: None };
        block_on(Qcow2::open(files, Options::default(), Arc::clone(&self.host) as _)).unwrap()
    }

    /// Closes the image, and waits for everything that it set going.
    fn close(&self) {
        block_on(self.image.close()).unwrap();
        self.wait();
    }

    /// Waits for everything that the image set going.
    fn wait(&self) {
        loop {
            let handles = std::mem::take(&mut *self.host.0.lock());
            if handles.is_empty() {
                return;
            }
            handles.into_iter().for_each(|handle| block_on(handle).unwrap());
        }
    }

    /// Closes the image; no refcount may be wrong then, not even too high.
    fn close_and_check(&self) {
        self.close();
        let report = check(&MemoryStorage::from_bytes(&self.medium.durable()));
        assert!(report.is_clean(), "after closing: {report:?}");
    }
}

/// What is wrong with an image.
fn check(file: &MemoryStorage) -> CheckReport {
    crate::check(file, Repair::None, &mut |_| {}).now_or_never().unwrap().unwrap()
}

fn read(image: &Qcow2, cluster: u64) -> u8 {
    let (result, buf) = block_on(image.read(cluster * CLUSTER, IoBuf::uninit(CLUSTER as usize), Hints::NONE));
    result.unwrap();
    assert!(buf.iter().all(|byte| *byte == buf[0]), "cluster {cluster} holds a mixture");
    buf[0]
}

/// The bytes of an empty image, made once.
fn empty_image() -> &'static [u8] {
    static IMAGE: OnceLock<Vec<u8>> = OnceLock::new();
    IMAGE.get_or_init(|| {
        let file = MemoryStorage::new(0);
        let options = CreateOptions {
            size: DISK,
            cluster_size: CLUSTER,
            refcount_bits: 64,
            ..CreateOptions::default()
        };
        crate::create(&file, None, &options).now_or_never().unwrap().unwrap();
        file.to_bytes()
    })
}

/// Runs all of these at once, to their end.
fn together(world: &Arc<World>, threads: impl IntoIterator<Item = fn(&World)>) {
    let start = |body: fn(&World)| {
        let world = Arc::clone(world);
        thread::spawn(move || body(&world))
    };
    let threads: Vec<_> = threads.into_iter().map(start).collect();
    threads.into_iter().for_each(|thread| thread.join().unwrap());
}
