//! The door: disks that are files, each with its mount.

use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use export::{
    Budget, ClientCosts, Door, DuplicateName, Error, ErrorKind, Export, ExportEntry, Exports, Loops, Seat,
    Served, Shutdown,
};
use futures_channel::{mpsc, oneshot};
use futures_util::StreamExt;
use futures_util::future::{Either, select};
use parking_lot::Mutex;
use reactor::Device;
use tracing::Instrument;

use crate::attributes::Retained;
use crate::cloned;
use crate::mounted::Mounted;
use crate::session::{Role, Session};

/// How a disk is shown as a file.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FileOptions {
    /// Writes behind the end, `fallocate` and `truncate` change the disk's size.
    pub growable: bool,
    /// Errors of writes are those of QEMU's export: EIO behind the end, EACCES of a read-only disk. Otherwise they are ENOSPC and EROFS.
    pub as_qemu: bool,
    /// Users other than this process's may use the file, as its mode says.
    pub for_others: bool,
}

/// A disk that is a file.
#[derive(Debug)]
pub struct FuseExport {
    pub(crate) entry: Arc<ExportEntry>,
    pub(crate) options: FileOptions,
    pub(crate) kept: Mutex<Retained>,
    sizes: mpsc::UnboundedSender<SizeRequest>,
    /// Nothing more is waited for.
    pub(crate) stopping: Shutdown,
    pub(crate) ended: Shutdown,
}

/// A program that asks for another size of the disk. Who owns the disk decides, and answers.
#[derive(Debug)]
pub struct SizeRequest {
    size: u64,
    answer: oneshot::Sender<Result<(), Error>>,
}

impl SizeRequest {
    /// Bytes that the disk is to have.
    pub fn size(&self) -> u64 {
        self.size
    }

    /// Tells how it went.
    pub fn answer(self, result: Result<(), Error>) {
        // Who asked may be gone.
        let _ = self.answer.send(result);
    }
}

/// Requests for another size, in order. As many wait as requests may be in flight.
#[derive(Debug)]
pub struct SizeRequests(mpsc::UnboundedReceiver<SizeRequest>);

impl SizeRequests {
    /// The next; None when the export is gone.
    pub async fn next(&mut self) -> Option<SizeRequest> {
        self.0.next().await
    }
}

impl FuseExport {
    /// The export behind it.
    pub fn entry(&self) -> &Arc<ExportEntry> {
        &self.entry
    }

    /// Waits until its mount is not served any more, and no request is in flight.
    pub async fn ended(&self) {
        self.ended.wait().await;
    }

    /// Has the disk's owner give it `size` bytes.
    pub(crate) async fn resize(&self, size: u64) -> Result<(), Error> {
        let gone = || Error::from(ErrorKind::ShuttingDown);
        let (answer, answered) = oneshot::channel();
        self.sizes.unbounded_send(SizeRequest { size, answer }).map_err(|_| gone())?;
        match select(answered, std::pin::pin!(self.stopping.wait())).await {
            Either::Left((answer, _)) => answer.unwrap_or_else(|_| Err(gone())),
            Either::Right(_) => Err(gone()),
        }
    }
}

/// What all mounts share.
#[derive(Debug)]
pub struct Server {
    door: Door,
}

impl Server {
    /// A server without exports whose mounts live on `loops`, as long as these run.
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

    /// Offers `disk` as `name`.
    ///
    /// # Errors
    /// When the name is in use.
    pub fn add(
        &self,
        name: impl Into<String>,
        disk: Arc<dyn Export>,
        options: FileOptions,
    ) -> Result<(Arc<FuseExport>, SizeRequests), DuplicateName> {
        let kept = Mutex::new(Retained::new(disk.read_only(), options.for_others));
        let entry = self.door.exports().add(name, "", disk)?;
        let (sizes, asked) = mpsc::unbounded();
        let (stopping, ended) = (Shutdown::new(), Shutdown::new());
        Ok((Arc::new(FuseExport { entry, options, kept, sizes, stopping, ended }), SizeRequests(asked)))
    }

    /// Answers the kernel at `device`, which a mount gave, from now on: until the mount ends, the export is taken away, or the loops end.
    /// One loop takes requests; the others help it, where the kernel lets them.
    ///
    /// # Errors
    /// When the device is none.
    pub fn serve(&self, device: OwnedFd, export: &Arc<FuseExport>) -> io::Result<()> {
        let loops = self.door.loops();
        let devices = cloned::with_clones(device, loops.count());
        let devices = devices.into_iter().map(Device::from_fd).collect::<io::Result<Vec<_>>>()?;
        let mounted = Arc::new(Mounted::new(export));
        let first = loops.least_busy();
        for (index, device) in devices.into_iter().enumerate() {
            let role = if index == 0 { Role::First } else { Role::Helper };
            let (mounted, budget) = (Arc::clone(&mounted), Arc::clone(loops.budget()));
            self.door.give_to((first + index) % loops.count(), move |seat| {
                begin((role, device), mounted, seat, budget)
            });
        }
        Ok(())
    }
}

fn begin(served: (Role, Device), mounted: Arc<Mounted>, seat: &Seat, budget: Arc<Budget>) -> Served {
    let entry = mounted.export.entry();
    let (span, pace) = (tracing::info_span!("fuse", export = entry.name()), seat.pace(entry));
    let session = Session::new(served, mounted, pace, budget);
    let hang_up = session.ending();
    Served { hang_up, work: Box::pin(session.run().instrument(span)) }
}
