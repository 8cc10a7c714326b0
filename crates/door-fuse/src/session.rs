//! One mount on one loop: takes the kernel's requests and answers or starts them.

use std::cell::Cell;
use std::io::{self, IoSlice};
use std::pin::pin;
use std::rc::Rc;
use std::sync::Arc;

use export::repeats::{self, Level};
use export::{Budget, Ending, HangUp, Hints, InFlight, LocalEvent, Pace};
use futures_util::future::{Either, select};
use reactor::Device;
use rustix::io::Errno;

use crate::abi::{self, Body, Request, SetAttr};
use crate::limits::REQUESTS_BEFORE_YIELD;
use crate::mounted::Mounted;
use crate::reader::{Message, Reader};
use crate::requests::{self, Work};
use crate::server::FuseExport;

/// Requests that are waited for at once after a look in vain: with one request at a time every look is one, with many at a time a look
/// saves a turn of the loop.
const WAITS_BETWEEN_LOOKS: u32 = 16;

/// What a session does for its mount.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Role {
    /// It waits for requests.
    First,
    /// It takes requests when the first calls, until there are none: the kernel wakes all that wait for a mount, and with one request at a
    /// time each would find another's cache cold.
    Helper,
}

/// A mount as one loop serves it.
#[derive(Debug)]
pub(crate) struct Session {
    role: Role,
    device: Device,
    pub(crate) mounted: Arc<Mounted>,
    pub(crate) export: Arc<FuseExport>,
    pub(crate) pace: Pace,
    pub(crate) in_flight: Rc<InFlight>,
    ending: Rc<EndingSession>,
}

/// By which a session is asked to end.
#[derive(Debug, Default)]
pub(crate) struct EndingSession {
    is_asked: Cell<bool>,
    asked: LocalEvent,
}

impl HangUp for EndingSession {
    /// Answers wait for nothing: there is one way to end.
    fn hang_up(&self, _how: Ending) {
        self.is_asked.set(true);
        self.asked.wake();
    }
}

impl Session {
    pub(crate) fn new(
        (role, device): (Role, Device),
        mounted: Arc<Mounted>,
        pace: Pace,
        budget: Arc<Budget>,
    ) -> Rc<Self> {
        Rc::new(Self {
            role,
            device,
            export: Arc::clone(&mounted.export),
            mounted,
            pace,
            in_flight: InFlight::new(budget),
            ending: Rc::default(),
        })
    }

    pub(crate) fn ending(&self) -> Rc<EndingSession> {
        Rc::clone(&self.ending)
    }

    /// Serves until the mount ends, it is asked to, or the session of another loop has ended. What is in flight then is finished and answered;
    /// requests that were not taken fail when the last session closes the device.
    pub(crate) async fn run(self: Rc<Self>) {
        let entry = Arc::clone(&self.export.entry);
        let asked = pin!(self.ending.asked.until(|| self.ending.is_asked.get()));
        let leaving = pin!(entry.leaving().wait());
        let stopping = pin!(self.export.stopping.wait());
        let reported = select(select(asked, leaving), stopping);
        // The receiver is dropped at the first end: it holds nothing that was acknowledged.
        if let Either::Left((Err(error), _)) = select(pin!(self.take_requests()), reported).await {
            let text = format!("export {:?}: the mount cannot be served any more: {error}", entry.name());
            repeats::tell(Level::Error, "fuse", entry.name(), &text);
        }
        self.export.stopping.trigger();
        self.in_flight.drained().await;
        tracing::info!(export = entry.name(), "mount ends");
    }

    /// Takes requests until the mount has ended.
    async fn take_requests(self: &Rc<Self>) -> io::Result<()> {
        let mut reader = Reader::new();
        let taken = match self.role {
            Role::First => self.take_all(&mut reader).await,
            Role::Helper => self.help(&mut reader).await,
        };
        match taken {
            Err(error) if Errno::from_io_error(&error) == Some(Errno::NODEV) => Ok(()),
            taken => taken,
        }
    }

    async fn take_all(self: &Rc<Self>, reader: &mut Reader) -> io::Result<()> {
        let mut until_look = WAITS_BETWEEN_LOOKS;
        let mut in_a_row = 0;
        loop {
            let Some(message) = reader.read(&self.device)? else {
                (until_look, in_a_row) = (WAITS_BETWEEN_LOOKS, 0);
                self.device.readable().await?;
                continue;
            };
            self.handle(reader, message).await;
            if until_look > 0 {
                until_look -= 1;
                self.device.readable().await?;
                continue;
            }
            in_a_row += 1;
            if in_a_row == REQUESTS_BEFORE_YIELD {
                in_a_row = 0;
                self.mounted.call_for_help();
                reactor::yield_now().await;
            }
        }
    }

    async fn help(self: &Rc<Self>, reader: &mut Reader) -> io::Result<()> {
        loop {
            let called = self.mounted.called_for_help();
            let mut in_a_row = 0;
            while let Some(message) = reader.read(&self.device)? {
                self.handle(reader, message).await;
                in_a_row += 1;
                if in_a_row == REQUESTS_BEFORE_YIELD {
                    in_a_row = 0;
                    reactor::yield_now().await;
                }
            }
            called.await;
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
            Request::Open { writes } => self.answer(unique, self.mounted.open(writes).map(abi::opened)),
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
                self.mounted.close(handle);
                self.answer(unique, Ok(Body::default()));
            }
            Request::Fallocate { what, offset, len } => {
                requests::start(self, unique, Work::Fallocate { what, offset, len }).await;
            }
            Request::Seek { offset, target } => {
                requests::start(self, unique, Work::Seek { offset, target }).await;
            }
            Request::StatFs => self.answer(unique, Ok(abi::file_system(self.export.entry.disk().size()))),
            Request::Interrupt { unique } => self.mounted.interrupt(unique),
            Request::Destroy => self.answer(unique, Ok(Body::default())),
            Request::Unknown => self.answer(unique, Err(Errno::NOSYS)),
        }
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
            // No task awaits it any more (ENOENT), or the mount has ended, which the receiver sees.
            tracing::debug!(unique, %error, "an answer is not taken");
        }
    }
}
