//! The door: disks that are block devices.

use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU16, AtomicU64, Ordering};

use export::{ClientCosts, Door, DuplicateName, Export, ExportEntry, Exports, Loops, Served, Shutdown};
use reactor::CommandDevice;
use tracing::Instrument;

use crate::abi::{Parameters, SECTOR_BYTES};
use crate::control::{Device, DeviceError, Number};
use crate::kernel::Descriptors;
use crate::limits::{QUEUES_MAX, RANGE_SECTORS_MAX, REQUEST_BYTES_MAX};
use crate::queue::Queue;

/// Physical blocks are reported as no larger: file systems take them for sectors.
const PHYSICAL_BLOCK_BYTES_MAX: u32 = 4096;

/// A disk that is a block device.
#[derive(Debug)]
pub struct UblkExport {
    entry: Arc<ExportEntry>,
    pub(crate) device: Arc<Device>,
    /// Queues that are served, or will be.
    queues: AtomicU16,
    is_stopping: AtomicBool,
    /// What the kernel received last.
    sectors: AtomicU64,
    started: Shutdown,
    ended: Shutdown,
}

/// Why a disk is not served as a block device.
#[derive(Debug, thiserror::Error)]
pub enum NotAdded {
    /// Of two exports.
    #[error(transparent)]
    Name(#[from] DuplicateName),
    /// The kernel's, or a device's.
    #[error(transparent)]
    Device(#[from] DeviceError),
    /// Something of the system.
    #[error("the device cannot be served")]
    System(#[from] std::io::Error),
}

impl UblkExport {
    /// The export behind it.
    pub fn entry(&self) -> &Arc<ExportEntry> {
        &self.entry
    }

    /// The block device. It is there when the loops run.
    pub fn path(&self) -> PathBuf {
        self.device.path()
    }

    /// Waits until programs can use the device, or never will.
    pub(crate) async fn started(&self) {
        self.started.wait().await;
    }

    /// Waits until the device is not served any more, and no request is in flight.
    pub async fn ended(&self) {
        self.ended.wait().await;
    }

    /// Takes the device from programs, after what they wrote has reached it, and deletes it. To be awaited on a loop, while the others run.
    pub async fn remove(&self) {
        self.begin_stop();
        self.ended().await;
        let device = Arc::clone(&self.device);
        reactor::blocking(move || device.delete()).await;
    }

    /// Forgets the device, whose queues were not served: the program is about to end. One that was recovered waits for the next server.
    pub fn abandon(&self) {
        self.is_stopping.store(true, Ordering::SeqCst);
        if !self.device.is_recovered() {
            self.device.delete_when_closed();
        }
    }

    /// Has the device stopped, once. The queues end when it is.
    pub(crate) fn begin_stop(&self) {
        if self.is_stopping.swap(true, Ordering::SeqCst) || self.queues.load(Ordering::SeqCst) == 0 {
            return;
        }
        let device = Arc::clone(&self.device);
        reactor::spawn(reactor::blocking(move || tell_of(&device, device.stop()))).detach();
    }

    /// Tells the kernel of the disk's size, where it is another one than it knows.
    pub(crate) async fn tell_size(&self) {
        let sectors = sectors(&**self.entry.disk());
        if self.sectors.load(Ordering::SeqCst) == sectors {
            return;
        }
        let device = Arc::clone(&self.device);
        if !device.can_be_resized() {
            let path = device.path();
            let path = path.display();
            return tracing::warn!(
                "{path} keeps its size: this kernel changes none while it is used (Linux 6.16 does)"
            );
        }
        let resized = reactor::blocking(move || {
            let resized = device.resize(sectors);
            let is_reported = resized.is_ok();
            tell_of(&device, resized);
            is_reported
        });
        if resized.await {
            self.sectors.store(sectors, Ordering::SeqCst);
        }
    }
}

fn tell_of(device: &Device, done: Result<(), DeviceError>) {
    if let Err(error) = done {
        let cause = std::error::Error::source(&error).map(ToString::to_string).unwrap_or_default();
        tracing::error!(device = %device.path().display(), cause, "{error}");
    }
}

/// What all devices share.
#[derive(Debug)]
pub struct Server {
    door: Door,
}

impl Server {
    /// A server without exports whose queues live on `loops`, as long as these run.
    pub fn new(loops: &Arc<Loops>) -> Arc<Self> {
        Arc::new(Self { door: Door::new(loops, Exports::new()) })
    }

    /// What is served.
    pub fn exports(&self) -> &Exports {
        self.door.exports()
    }

    /// What its clients cost.
    pub fn client_costs(&self) -> ClientCosts {
        self.door.costs()
    }

    /// Makes `disk` a block device, which is exported as `name`, and known again as `disk_name` when its server is gone; programs can use it as soon as the loops run. A device of this disk and number whose
    /// server is gone is recovered: its programs have waited, and go on. It blocks for as long as the kernel takes.
    ///
    /// # Errors
    /// When the name is in use, or the kernel has no such device for us. Nothing is left then.
    pub fn add(
        &self,
        (name, disk_name): (String, &str),
        disk: Arc<dyn Export>,
        number: Number,
    ) -> Result<Arc<UblkExport>, NotAdded> {
        let loops = self.door.loops().count();
        let queues = u16::try_from(loops).unwrap_or(QUEUES_MAX).min(QUEUES_MAX);
        let described = parameters(&*disk);
        let entry = self.door.exports().add(name.clone(), "", disk)?;
        let added = Device::open(number, disk_name, queues, &described);
        let added = added.map_err(NotAdded::from).and_then(|device| {
            let known = if device.is_recovered() { device.sectors()? } else { described.sectors };
            let export = Arc::new(UblkExport {
                entry,
                queues: AtomicU16::new(device.info().queues),
                sectors: AtomicU64::new(known),
                device: Arc::new(device),
                is_stopping: AtomicBool::new(false),
                started: Shutdown::new(),
                ended: Shutdown::new(),
            });
            self.serve(&export).inspect_err(|_| export.give_up())?;
            Ok(export)
        });
        added.inspect_err(|_| {
            // No client was admitted.
            let _ = self.door.exports().remove(&name, export::Removal::Hard);
        })
    }

    /// Gives the queues to the loops, one after the other, and starts the device when they ask for requests.
    fn serve(&self, export: &Arc<UblkExport>) -> Result<(), NotAdded> {
        let (device, info) = (&export.device, *export.device.info());
        let node = device.open_queues()?;
        let mapped = (0..info.queues).map(|number| {
            let descriptors = Descriptors::map(&node, number, info.depth)?;
            Ok((number, CommandDevice::from_fd(OwnedFd::from(node.try_clone()?)), descriptors))
        });
        let mapped: Vec<_> = mapped.collect::<Result<_, std::io::Error>>()?;
        let starting = Arc::clone(export);
        std::thread::Builder::new().name("cowhand-ublk".to_owned()).spawn(move || starting.start())?;
        for queue in mapped {
            let mut ended = EndOfQueue { export: Arc::clone(export), in_order: false };
            let budget = Arc::clone(self.door.loops().budget());
            let index = usize::from(queue.0) % self.door.loops().count();
            self.door.give_to(index, move |seat| {
                let export = &ended.export;
                let span = tracing::info_span!("ublk", export = export.entry.name());
                let queue = Queue::new(export, queue, (seat.pace(&export.entry), budget));
                let hang_up = queue.ending();
                let work = async move {
                    queue.run().await;
                    ended.in_order = true;
                    drop(ended);
                };
                Served { hang_up, work: Box::pin(work.instrument(span)) }
            });
        }
        Ok(())
    }
}

impl UblkExport {
    /// Lets programs in, when all queues ask for requests. Blocks until then.
    fn start(&self) {
        let started = self.device.start();
        if started.is_err() && !self.is_stopping.load(Ordering::SeqCst) {
            tell_of(&self.device, started);
            self.is_stopping.store(true, Ordering::SeqCst);
            tell_of(&self.device, self.device.stop_at_once());
        }
        self.started.trigger();
    }

    /// No queue will be served. A device that was recovered waits for the next server.
    fn give_up(&self) {
        self.is_stopping.store(true, Ordering::SeqCst);
        if !self.device.is_recovered() {
            self.device.delete();
        }
    }
}

/// Tells that a queue is not served any more, and of the last one.
struct EndOfQueue {
    export: Arc<UblkExport>,
    in_order: bool,
}

impl Drop for EndOfQueue {
    fn drop(&mut self) {
        let export = &self.export;
        if export.queues.fetch_sub(1, Ordering::SeqCst) == 1 {
            export.ended.trigger();
        }
        // What the kernel has of the queue ends with the device alone, and its loop waits for that.
        if !self.in_order && !export.is_stopping.swap(true, Ordering::SeqCst) {
            let device = Arc::clone(&export.device);
            let stopping = move || tell_of(&device, device.stop_at_once());
            if let Err(error) = std::thread::Builder::new().spawn(stopping) {
                tracing::error!(%error, "the block device cannot be stopped");
            }
        }
    }
}

/// How a disk is shown to programs.
fn parameters(disk: &dyn Export) -> Parameters {
    let (blocks, can, read_only) = (disk.block_sizes(), disk.abilities(), disk.read_only());
    let logical = logical_block_bytes(disk);
    let when = |can: bool| if can && !read_only { RANGE_SECTORS_MAX } else { 0 };
    Parameters {
        read_only,
        write_cache: !disk.writes_through(),
        logical_block_bytes: logical,
        physical_block_bytes: blocks.preferred.next_power_of_two().clamp(logical, PHYSICAL_BLOCK_BYTES_MAX),
        discard_bytes: blocks.discard,
        sectors: sectors(disk),
        // In sectors of 512 bytes.
        request_sectors_max: REQUEST_BYTES_MAX / 512,
        discard_sectors_max: when(can.discard),
        zero_sectors_max: when(can.zero),
    }
}

fn logical_block_bytes(disk: &dyn Export) -> u32 {
    disk.block_sizes().minimum.next_power_of_two().clamp(512, PHYSICAL_BLOCK_BYTES_MAX)
}

/// Sectors that programs see: those of whole blocks.
fn sectors(disk: &dyn Export) -> u64 {
    let block = u64::from(logical_block_bytes(disk));
    disk.size() / block * (block / SECTOR_BYTES)
}
