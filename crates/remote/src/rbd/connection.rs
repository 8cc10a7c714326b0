//! A worker that has the image open.
//!
//! Requests of any thread are sent at once; a task receives the answers, on the loop of the request that found none, for as long as answers are to come: where
//! one loop has all the requests, none is woken for another one's. When that loop ends, the next one whose request waits goes on.

use std::future::poll_fn;
use std::io;
use std::net::Shutdown;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use memory::IoBuf;
use net::dial::line::{InFlight, Protocol, Table, Unflushed};
use parking_lot::{Mutex, MutexGuard};
use reactor::net::Stream;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, ftruncate, memfd_create};
use rustix::io::{pread, pwrite};

use crate::rbd::errors::Error;
use crate::rbd::message::{ANSWER_BYTES, Answer, Ask, Kind, MEMORY_BYTES, Malformed, Request, SLOTS};
use crate::rbd::opening::{OPENED_BYTES_MAX, OpenReply, Opening};
use crate::rbd::starter;

/// Files are read and written in one call where they are in memory; this is for those calls' rest.
type Bytes = io::Result<usize>;

/// What is kept of requests to a worker. Its answer to one also means that it has done with the slot's memory.
#[derive(Debug)]
pub(crate) struct Rbd;

#[derive(Debug, Default)]
pub(crate) struct Shared {
    /// A task receives answers.
    is_received: bool,
}

impl Protocol for Rbd {
    type Kind = Kind;
    type Request = ();
    type Reply = Result<Answer, Error>;
    type Error = Error;
    type Shared = Shared;
    const IN_FLIGHT_MAX: usize = SLOTS as usize;

    fn lost((): (), error: Error) -> Self::Reply {
        Err(error)
    }
}

/// A worker.
#[derive(Debug)]
pub(crate) struct Connection {
    socket: Stream,
    /// Through which bytes go.
    memory: OwnedFd,
    requests: InFlight<Rbd>,
}

/// What is known of an image that was opened.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ImageFound {
    pub(crate) bytes: u64,
}

impl Connection {
    /// Starts a worker and has it open the image.
    ///
    /// # Errors
    /// When no worker can be started, or it cannot open the image.
    pub(crate) async fn open(
        opening: &Opening,
        unflushed: &Arc<Unflushed<Kind>>,
    ) -> Result<(Arc<Self>, ImageFound), Error> {
        let (socket, memory, bytes) = Self::start(opening).await?;
        let requests = InFlight::new(Arc::clone(unflushed));
        Ok((Arc::new(Self { socket, memory, requests }), ImageFound { bytes }))
    }

    /// Starts a worker and has it make the image, which it does not open.
    ///
    /// # Errors
    /// When no worker can be started, or it cannot make the image.
    pub(crate) async fn create(opening: Opening, bytes: u64) -> Result<(), Error> {
        Self::start(&Opening { new_bytes: Some(bytes), ..opening }).await.map(drop)
    }

    /// Starts a worker: its socket, the memory that it has too, and the bytes of the image.
    async fn start(opening: &Opening) -> Result<(Stream, OwnedFd, u64), Error> {
        let failed = |kind, reason: String| Error::Open { reason, kind };
        let system = |error: io::Error| failed(error.kind(), error.to_string());
        let memory = memory().map_err(system)?;
        let socket = Stream::from_fd(starter::worker().map_err(system)?);
        let message = opening.encode();
        let message =
            message.ok_or_else(|| failed(io::ErrorKind::InvalidInput, "names are too long".into()))?;
        // The worker that could not be started has closed its end.
        let ended =
            || failed(io::ErrorKind::ConnectionAborted, "the process that has the image ended".into());
        socket.send_with_fds_now(&message, &[memory.as_fd()]).map_err(|_| ended())?;
        drop(message);
        let (received, buf) = socket.recv(IoBuf::uninit(OPENED_BYTES_MAX)).await;
        let bytes = received.ok().filter(|bytes| *bytes > 0).ok_or_else(ended)?;
        let found = OpenReply::decode(buf.get(..bytes).unwrap_or_default());
        match found.map_err(|error| failed(io::ErrorKind::InvalidData, error.to_string()))? {
            OpenReply::Open { bytes, .. } => Ok((socket, memory, bytes)),
            OpenReply::Failed { number: 0, words } => Err(failed(io::ErrorKind::Other, words)),
            OpenReply::Failed { number, words } => {
                Err(failed(io::Error::from_raw_os_error(number).kind(), words))
            }
        }
    }

    /// Whether the worker has ended.
    pub(crate) fn is_lost(&self) -> bool {
        self.requests.lock().lost().is_some()
    }

    /// Sends a request and waits for its answer; of a read, fills `into`. Dropped, the request is still on its way.
    ///
    /// # Errors
    /// The cluster's; [`Error::Lost`] when the worker ends first.
    pub(crate) async fn request(self: &Arc<Self>, ask: &Ask, into: &mut [u8]) -> Result<Answer, Error> {
        // Until bytes were copied from the slot's memory.
        let taken = self.requests.entered(|| self.enter(ask)).await?;
        let cookie = taken.cookie();
        let place = Request::place(cookie).ok_or(Error::Lost)? as u64;
        let Ask { kind, offset, len, .. } = *ask;
        self.put(ask, place).map_err(Self::of_memory)?;
        let message = Request { cookie, kind, offset, len }.encode();
        match self.socket.send_with_fds_now(&message, &[]) {
            Ok(()) => {}
            // Never more is sent than a socket holds.
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => self.give_up("it reads nothing"),
            // It is gone: the task that receives is notified.
            Err(_) => {}
        }
        let answer = poll_fn(|cx| self.poll(cookie, cx)).await?;
        if answer.error != 0 {
            return Err(Error::Failed { number: answer.error });
        }
        if kind == Kind::Read {
            if answer.value != len {
                return Err(Error::Answer("a read with fewer bytes than the image has there"));
            }
            self.get(into, place).map_err(Self::of_memory)?;
        }
        drop(taken);
        Ok(answer)
    }

    fn of_memory(error: io::Error) -> Error {
        Error::Failed { number: error.raw_os_error().unwrap_or(libc::EIO) }
    }

    fn enter(self: &Arc<Self>, ask: &Ask) -> Result<Option<u64>, Error> {
        let mut table = self.requests.lock();
        let cookie = table.enter(ask, || ())?;
        if cookie.is_none() {
            // No task may wait for any of them.
            self.receive(table);
        }
        Ok(cookie)
    }

    /// Copies what is written to its place in the shared memory.
    fn put(&self, ask: &Ask, mut place: u64) -> io::Result<()> {
        for part in ask.data.parts() {
            let mut rest = &part[..];
            while !rest.is_empty() {
                let bytes: Bytes = pwrite(&self.memory, rest, place).map_err(io::Error::from);
                let bytes = bytes?;
                rest = rest.get(bytes..).unwrap_or_default();
                place += bytes as u64;
            }
        }
        Ok(())
    }

    /// Copies what was read from there.
    fn get(&self, mut into: &mut [u8], mut place: u64) -> io::Result<()> {
        while !into.is_empty() {
            let bytes: Bytes = pread(&self.memory, &mut *into, place).map_err(io::Error::from);
            let bytes = bytes?;
            if bytes == 0 {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
            into = into.get_mut(bytes..).unwrap_or_default();
            place += bytes as u64;
        }
        Ok(())
    }

    fn poll(self: &Arc<Self>, cookie: u64, cx: &mut Context<'_>) -> Poll<Result<Answer, Error>> {
        let mut table = self.requests.lock();
        match table.poll(cookie, cx.waker()) {
            Some(answer) => Poll::Ready(answer),
            None => {
                self.receive(table);
                Poll::Pending
            }
        }
    }

    /// Has a task of this loop receive answers, unless one does.
    fn receive(self: &Arc<Self>, mut table: MutexGuard<'_, Table<Rbd>>) {
        let begins = !std::mem::replace(&mut table.shared.is_received, true);
        drop(table);
        if begins {
            let receiving = Receiving(Arc::clone(self));
            reactor::spawn(async move { receiving.run().await }).detach();
        }
    }

    /// What a worker says is of no use any more: it is to end. Requests learn it when it has.
    fn give_up(&self, reason: &str) {
        tracing::warn!("the process that has an RBD image is ended: {reason}");
        // Fails where it was faster.
        let _ = self.socket.shutdown(Shutdown::Write);
    }

    fn answered(&self, message: &[u8]) -> Result<(), Malformed> {
        let answer = Answer::decode(message)?;
        let reply = |()| (Ok(answer), answer.error == 0);
        match self.requests.answered(self.requests.lock(), answer.cookie, reply) {
            true => Ok(()),
            false => Err(Malformed("a request that is not on its way")),
        }
    }

    /// The storage is not used any more: the worker closes the image and ends.
    pub(crate) fn close(&self) {
        // Fails where it was faster.
        let _ = self.socket.shutdown(Shutdown::Write);
        add(self.socket.as_fd());
    }
}

/// A memory file whose size stays.
fn memory() -> io::Result<OwnedFd> {
    let memory = memfd_create("cowhand-rbd", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?;
    ftruncate(&memory, MEMORY_BYTES as u64)?;
    fcntl_add_seals(&memory, SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL)?;
    Ok(memory)
}

/// The task that receives answers.
struct Receiving(Arc<Connection>);

impl Receiving {
    async fn run(&self) {
        let connection = &self.0;
        let mut message = [0; ANSWER_BYTES + 1];
        let mut in_a_row = 0;
        let reason = loop {
            match connection.socket.try_recv(&mut message) {
                Ok(None) => {
                    if connection.requests.lock().in_flight() == 0 {
                        return;
                    }
                    in_a_row = 0;
                    if connection.socket.readable().await.is_err() {
                        break None;
                    }
                }
                Ok(Some(0)) | Err(_) => break None,
                Ok(Some(bytes)) => {
                    if let Err(error) = connection.answered(message.get(..bytes).unwrap_or_default()) {
                        break Some(error);
                    }
                    in_a_row += 1;
                    if in_a_row % SLOTS == 0 {
                        reactor::yield_now().await;
                    }
                }
            }
        };
        match reason {
            Some(error) => connection.give_up(&error.to_string()),
            None => _ = connection.socket.shutdown(Shutdown::Write),
        }
        // Until it is gone it may write what it was asked to: another one is started after that only.
        let _ = connection.socket.hung_up().await;
        let reported = connection.requests.lock().lose(Error::Lost);
        connection.requests.wake(reported);
    }
}

impl Drop for Receiving {
    /// Also when its loop ends in the middle: another one goes on. So does one for a request that came while the last answers were taken.
    fn drop(&mut self) {
        let mut table = self.0.requests.lock();
        table.shared.is_received = false;
        let reported = table.take_wakers();
        drop(table);
        self.0.requests.wake(reported);
    }
}

/// Sockets of workers that were asked to end.
static CLOSING: Mutex<Vec<OwnedFd>> = Mutex::new(Vec::new());

/// Notes the socket of a worker that was asked to end.
pub(crate) fn add(socket: BorrowedFd<'_>) {
    let mut closing = CLOSING.lock();
    closing.retain(|socket| !is_gone(socket, Duration::ZERO));
    // Without a descriptor no task awaits it.
    closing.extend(socket.try_clone_to_owned());
}

/// Waits, at most for `patience`, until the images that were in use are closed: a program that ends does so before, so that the next one finds no other
/// user of them. Costs nothing if there were none.
pub fn settle(patience: Duration) {
    let until = Instant::now() + patience;
    let closing = std::mem::take(&mut *CLOSING.lock());
    for socket in closing {
        is_gone(&socket, until.saturating_duration_since(Instant::now()));
    }
}

/// Whether the worker is gone within `patience`.
fn is_gone(socket: &OwnedFd, patience: Duration) -> bool {
    // That a peer is gone is reported unasked.
    let mut asked = [PollFd::new(socket, PollFlags::empty())];
    let timeout = Timespec::try_from(patience).unwrap_or_default();
    !matches!(poll(&mut asked, Some(&timeout)), Ok(0))
}
