//! One mount on its loop: takes the kernel's requests and answers or starts them.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::io::{self, IoSlice};
use std::pin::pin;
use std::rc::Rc;
use std::sync::Arc;

use export::repeats::{self, Level};
use export::{Budget, Ending, HangUp, Hints, InFlight, LocalEvent, Pace, Place};
use futures_util::future::{Either, select};
use reactor::Device;
use rustix::io::Errno;

use crate::abi::{self, Body, Request, SetAttr};
use crate::limits::{OPEN_FILES_MAX, REQUESTS_BEFORE_YIELD};
use crate::reader::{Message, Reader};
use crate::requests::{self, Work};
use crate::server::FuseExport;

/// Requests that are waited for at once after a look in vain: with one request at a time every look is one, with many at a time a look
/// saves a turn of the loop.
const WAITS_BETWEEN_LOOKS: u32 = 16;

/// A mount that is served.
#[derive(Debug)]
pub(crate) struct Session {
    device: Device,
    pub(crate) export: Arc<FuseExport>,
    pub(crate) pace: Pace,
    pub(crate) in_flight: Rc<InFlight>,
    ending: Rc<EndingSession>,
    /// Files that programs have open. Each is a client of the export.
    files: RefCell<HashMap<u64, Place>>,
    next_file: Cell<u64>,
    /// Requests in flight that can be interrupted, and whether they are.
    interruptible: RefCell<HashMap<u64, Rc<Cell<bool>>>>,
}

/// By which a session is told to end.
#[derive(Debug, Default)]
pub(crate) struct EndingSession {
    is_asked: Cell<bool>,
    asked: LocalEvent,
}

impl HangUp for EndingSession {
    /// Answers wait for nobody: there is one way to end.
    fn hang_up(&self, _how: Ending) {
        self.is_asked.set(true);
        self.asked.wake();
    }
}

impl Session {
    pub(crate) fn new(device: Device, export: &Arc<FuseExport>, pace: Pace, budget: Arc<Budget>) -> Rc<Self> {
        Rc::new(Self {
            device,
            export: Arc::clone(export),
            pace,
            in_flight: InFlight::new(budget),
            ending: Rc::default(),
            files: RefCell::default(),
            next_file: Cell::new(1),
            interruptible: RefCell::default(),
        })
    }

    pub(crate) fn ending(&self) -> Rc<EndingSession> {
        Rc::clone(&self.ending)
    }

    /// Serves until the mount ends, or it is told to. What is in flight then is finished and answered; requests that nobody has taken fail
    /// when the device is closed.
    pub(crate) async fn run(self: Rc<Self>) {
        let entry = Arc::clone(&self.export.entry);
        let asked = pin!(self.ending.asked.until(|| self.ending.is_asked.get()));
        let leaving = pin!(entry.leaving().wait());
        let told = select(asked, leaving);
        // The receiver is dropped at the first end: it holds nothing that was acknowledged.
        if let Either::Left((Err(error), _)) = select(pin!(self.take_requests()), told).await {
            let text = format!("export {:?}: the mount cannot be served any more: {error}", entry.name());
            repeats::tell(Level::Error, "fuse", entry.name(), &text);
        }
        self.export.stopping.trigger();
        self.in_flight.drained().await;
        self.files.borrow_mut().clear();
        tracing::info!(export = entry.name(), "mount ends");
    }

    /// Takes requests until the mount has ended.
    async fn take_requests(self: &Rc<Self>) -> io::Result<()> {
        let mut reader = Reader::new();
        let mut until_look = WAITS_BETWEEN_LOOKS;
        let mut in_a_row = 0;
        loop {
            match reader.read(&self.device) {
                Ok(Some(message)) => self.handle(&mut reader, message).await,
                Ok(None) => {
                    until_look = WAITS_BETWEEN_LOOKS;
                    self.device.readable().await?;
                    continue;
                }
                Err(error) if Errno::from_io_error(&error) == Some(Errno::NODEV) => return Ok(()),
                Err(error) => return Err(error),
            }
            in_a_row += 1;
            if in_a_row == REQUESTS_BEFORE_YIELD {
                in_a_row = 0;
                reactor::yield_now().await;
            }
            if until_look > 0 {
                until_look -= 1;
                self.device.readable().await?;
            }
        }
    }

    async fn handle(self: &Rc<Self>, reader: &mut Reader, message: Message) {
        let unique = message.unique;
        let request = match message.request {
            Ok(request) => request,
            Err(errno) => return self.refuse(unique, errno),
        };
        tracing::trace!(unique, ?request, "request");
        match request {
            Request::Init { major, minor, flags } => {
                tracing::debug!(major, minor, flags, "the kernel's FUSE");
                self.answer(unique, abi::init_answer(major, minor, flags));
            }
            Request::Lookup => self.answer(unique, Err(Errno::NOENT)),
            Request::Forget => {}
            Request::GetAttr => self.answer(unique, Ok(self.attributes())),
            Request::SetAttr(set) => self.set_attributes(unique, set).await,
            Request::Open { writes } => self.answer(unique, self.open(writes)),
            Request::Read { offset, len } => requests::read(self, unique, offset, len).await,
            Request::Write { offset, len } => match reader.take_data(message.data_bytes, len) {
                Some(data) => requests::write(self, unique, offset, data).await,
                None => self.refuse(unique, Errno::INVAL),
            },
            Request::Flush | Request::Fsync if self.export.entry.disk().read_only() => {
                self.answer(unique, Ok(Body::default()));
            }
            // A closed file is expected to outlive this process, too.
            Request::Flush | Request::Fsync => requests::start(self, unique, Work::Flush).await,
            Request::Release { handle } => {
                let place = self.files.borrow_mut().remove(&handle);
                drop(place);
                self.answer(unique, Ok(Body::default()));
            }
            Request::Fallocate { what, offset, len } => {
                requests::start(self, unique, Work::Fallocate { what, offset, len }).await;
            }
            Request::Seek { offset, target } => {
                requests::start(self, unique, Work::Seek { offset, target }).await;
            }
            Request::StatFs => self.answer(unique, Ok(abi::file_system(self.export.entry.disk().size()))),
            Request::Interrupt { unique } => self.interrupt(unique),
            Request::Destroy => self.answer(unique, Ok(Body::default())),
            Request::Unknown => self.answer(unique, Err(Errno::NOSYS)),
        }
    }

    /// A program opens the file. O_TRUNC changes nothing: as of a block device, bytes are overwritten, not cut off.
    fn open(&self, writes: bool) -> Result<Body, Errno> {
        let entry = &self.export.entry;
        if writes && entry.disk().read_only() {
            return Err(Errno::ROFS);
        }
        let place = Place::take(Arc::clone(entry), OPEN_FILES_MAX).map_err(|_| Errno::NFILE)?;
        let handle = self.next_file.get();
        self.next_file.set(handle + 1);
        self.files.borrow_mut().insert(handle, place);
        Ok(abi::opened(handle))
    }

    pub(crate) fn attributes(&self) -> Body {
        let disk = self.export.entry.disk();
        let size = disk.size();
        let allocated = disk.allocated_bytes().unwrap_or(size);
        abi::attributes(&self.export.kept.lock().of_disk(size, allocated))
    }

    async fn set_attributes(self: &Rc<Self>, unique: u64, set: SetAttr) {
        let read_only = self.export.entry.disk().read_only();
        if let Err(errno) = self.export.kept.lock().set(&set, read_only) {
            return self.refuse(unique, errno);
        }
        match set.size {
            Some(size) => requests::start(self, unique, Work::Truncate { size }).await,
            None => self.answer(unique, Ok(self.attributes())),
        }
    }

    /// What is known of a request for which `places` were taken: whether others are at work.
    pub(crate) fn hints(&self, places: u32) -> Hints {
        Hints { more_waiting: self.in_flight.requests() > places }
    }

    /// Lets a request be interrupted while what this gives is kept.
    pub(crate) fn interruptible(self: &Rc<Self>, unique: u64) -> Interruptible {
        let is_interrupted = Rc::<Cell<bool>>::default();
        self.interruptible.borrow_mut().insert(unique, Rc::clone(&is_interrupted));
        Interruptible { session: Rc::clone(self), unique, is_interrupted }
    }

    /// What cannot be interrupted goes on: programs do not expect reads and writes of a file to fail because of a signal.
    fn interrupt(&self, unique: u64) {
        if let Some(is_interrupted) = self.interruptible.borrow().get(&unique) {
            is_interrupted.set(true);
        }
    }

    /// A request that makes no sense.
    pub(crate) fn refuse(&self, unique: u64, errno: Errno) {
        self.export.entry.counters().refused();
        self.answer(unique, Err(errno));
    }

    pub(crate) fn answer(&self, unique: u64, result: Result<Body, Errno>) {
        match result {
            Ok(body) => self.send(unique, Ok(body.bytes())),
            Err(errno) => self.send(unique, Err(errno)),
        }
    }

    /// Answers a request. The kernel takes each answer at once.
    pub(crate) fn send(&self, unique: u64, result: Result<&[u8], Errno>) {
        let header = abi::out_header(unique, result.map(<[u8]>::len));
        let parts = [IoSlice::new(&header), IoSlice::new(result.unwrap_or_default())];
        let used = if parts[1].is_empty() { 1 } else { 2 };
        if let Err(error) = self.device.write_now(&parts[..used]) {
            // Nobody waits for it any more (ENOENT), or the mount has ended, which the receiver sees.
            tracing::debug!(unique, %error, "an answer is not taken");
        }
    }
}

/// A request that can be interrupted.
pub(crate) struct Interruptible {
    session: Rc<Session>,
    unique: u64,
    is_interrupted: Rc<Cell<bool>>,
}

impl Interruptible {
    pub(crate) fn is_interrupted(&self) -> bool {
        self.is_interrupted.get()
    }
}

impl Drop for Interruptible {
    fn drop(&mut self) {
        self.session.interruptible.borrow_mut().remove(&self.unique);
    }
}
