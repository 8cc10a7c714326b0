//! The worker: a process of its own that has the library and one image.
//!
//! It ends when its parent closes the socket: the image is closed then, so that its lock is given back.

use std::convert::Infallible;
use std::io;
use std::ops::ControlFlow;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;
use rustix::net::{SendFlags, send};

use crate::rbd::librbd::{Completed, Image, Library, SharedMemory};
use crate::rbd::message::{Answer, Kind, MEMORY_BYTES, REQUEST_BYTES, Request};
use crate::rbd::opening::{OPENING_BYTES_MAX, OpenReply, Opening};
use crate::rbd::packet;

/// How long closing may take when the parent is gone: a cluster that is away does not keep the process.
const CLOSES_WITHIN: Duration = Duration::from_secs(5);

/// Serves the image that the parent, at the other end of `socket` (unix, SOCK_SEQPACKET), asks for, until that end is closed. `confine` gives up what is
/// not needed once the library is loaded.
///
/// # Errors
/// When the socket fails, or what comes over it makes no sense. That an image cannot be opened is the parent's to tell.
pub fn serve(socket: OwnedFd, confine: impl FnOnce()) -> io::Result<()> {
    let socket = Arc::new(socket);
    let mut message = zeroize::Zeroizing::new(vec![0; OPENING_BYTES_MAX]);
    let Some((bytes, memory)) = packet::receive_with_file(&socket, &mut message)? else { return Ok(()) };
    let opening = message.get(..bytes).map(Opening::decode);
    let (Some(Ok(opening)), Some(memory)) = (opening, memory) else {
        return Err(io::Error::other("the first message makes no sense"));
    };
    drop(message);
    end_with_the_parent(Arc::clone(&socket))?;
    let opened = match opening.new_bytes {
        Some(bytes) => create(&opening, bytes, confine).map(|found| (None, found)),
        None => open(&opening, &memory, confine).map(|(image, found)| (Some(image), found)),
    };
    // The user's key is gone with it.
    drop(opening);
    let (found, image) = match opened {
        Ok((image, found)) => (found, image),
        Err(error) => {
            let words = error.to_string();
            (OpenReply::Failed { number: error.raw_os_error().unwrap_or(number_of(&error)), words }, None)
        }
    };
    send(&*socket, &found.encode(), SendFlags::NOSIGNAL)?;
    let Some(image) = image else { return Ok(()) };
    let requests = take_requests(&socket, image);
    requests.and(image.close())
}

/// A kind of error that the parent tells apart.
fn number_of(error: &io::Error) -> i32 {
    match error.kind() {
        io::ErrorKind::NotFound => libc::ENOENT,
        io::ErrorKind::PermissionDenied => libc::EACCES,
        io::ErrorKind::TimedOut => libc::ETIMEDOUT,
        io::ErrorKind::AlreadyExists => libc::EEXIST,
        _ => 0,
    }
}

fn create(opening: &Opening, bytes: u64, confine: impl FnOnce()) -> io::Result<OpenReply> {
    let library = Library::load().map_err(io::Error::other)?;
    confine();
    Image::create(&library, opening, bytes)?;
    Ok(OpenReply::Open { bytes, period: 1 })
}

fn open(opening: &Opening, memory: &OwnedFd, confine: impl FnOnce()) -> io::Result<(Image, OpenReply)> {
    let memory = SharedMemory::map(memory, MEMORY_BYTES)?;
    let library = Library::load().map_err(io::Error::other)?;
    confine();
    let (image, opened) = Image::open(&library, opening, memory)?;
    Ok((image, OpenReply::Open { bytes: opened.bytes, period: opened.period }))
}

/// Has the process end soon after its parent is gone, whatever the library waits for.
fn end_with_the_parent(socket: Arc<OwnedFd>) -> io::Result<()> {
    let watch = move || {
        let mut gone = [PollFd::new(&*socket, PollFlags::RDHUP)];
        while poll(&mut gone, None) == Err(Errno::INTR) {}
        std::thread::sleep(CLOSES_WITHIN);
        std::process::exit(1);
    };
    std::thread::Builder::new().name("parent".to_owned()).spawn(watch).map(drop)
}

fn take_requests(socket: &Arc<OwnedFd>, image: Image) -> io::Result<()> {
    let (waits, waiting) = channel();
    // The image is closed when no answer is awaited any more.
    let (at_work, idle) = channel();
    let answers = Answers { socket: Arc::clone(socket), _at_work: at_work };
    let calls = std::thread::Builder::new().name("calls".to_owned());
    calls.spawn({
        let answers = answers.clone();
        move || call(&waiting, image, &answers)
    })?;
    let mut message = [0; REQUEST_BYTES + 1];
    while let Some(bytes) = packet::receive(socket, &mut message)? {
        let request = message.get(..bytes).map(Request::decode);
        let Some(Ok(request)) = request else { return Err(io::Error::other("a request makes no sense")) };
        start(request, image, &answers, &waits);
    }
    drop((waits, answers));
    // The end of all that is at work, not a message.
    let _: Result<Infallible, _> = idle.recv();
    Ok(())
}

/// Starts a request; those that the library has no completion for are another thread's.
fn start(request: Request, image: Image, answers: &Answers, waits: &Sender<Request>) {
    let Request { cookie, kind, offset, len } = request;
    let completed = answers.of(cookie);
    let (bytes, place) = (usize::try_from(len).unwrap_or(usize::MAX), Request::place(cookie));
    match (kind, place) {
        (Kind::Read, Some(place)) => image.read(offset, bytes, place, completed),
        (Kind::Write, Some(place)) => image.write(offset, bytes, place, completed),
        (Kind::Read | Kind::Write, None) => completed(-i64::from(libc::EFAULT)),
        (Kind::Flush, _) => image.flush(completed),
        (Kind::Discard, _) => image.discard(offset, len, completed),
        (Kind::Zero, _) => image.zero(offset, bytes, false, completed),
        (Kind::ZeroKept, _) => image.zero(offset, bytes, true, completed),
        (Kind::Status | Kind::Grow | Kind::Shorten, _) => {
            // The thread lives as long as the process.
            let _ = waits.send(request);
        }
    }
}

/// Carries out what waits, one after the other: so a change of size sees the size that the one before it left.
fn call(requests: &Receiver<Request>, image: Image, answers: &Answers) {
    for request in requests {
        let Request { cookie, kind, offset, len } = request;
        let done = match kind {
            Kind::Status => status(image, offset, len),
            Kind::Grow => resize(image, |bytes| bytes.max(len)),
            _ => resize(image, |bytes| bytes.min(len)),
        };
        let answer = match done {
            Ok((is_data, value)) => Answer { cookie, error: 0, is_data, value },
            Err(error) => {
                let error = error.raw_os_error().unwrap_or(libc::EIO);
                Answer { cookie, error, is_data: false, value: 0 }
            }
        };
        answers.send(answer);
    }
}

fn resize(image: Image, wanted: impl FnOnce(u64) -> u64) -> io::Result<(bool, u64)> {
    let bytes = image.bytes()?;
    let wanted = wanted(bytes);
    if wanted != bytes {
        image.resize(wanted)?;
    }
    Ok((false, wanted))
}

/// What is at `offset`, and for how many of `len` bytes. Asked from where the offset's object begins: see [`Image::differences`].
fn status(image: Image, offset: u64, len: u64) -> io::Result<(bool, u64)> {
    if image.is_encrypted() {
        return Ok((true, len));
    }
    let mut seen = Seen { offset, end: offset.saturating_add(len), data: None, hole: None };
    let start = offset - offset % image.period();
    image.differences(start, seen.end - start, |at, bytes, is_data| seen.take(at, bytes, is_data))?;
    Ok(seen.first())
}

/// What is known of a range that is looked at from its start on.
struct Seen {
    offset: u64,
    end: u64,
    /// Up to where it holds data, if it begins with some.
    data: Option<u64>,
    /// Up to where it is a hole, if data comes later.
    hole: Option<u64>,
}

impl Seen {
    /// There is a range of data, or of what was data once, in order; ends when that tells enough.
    fn take(&mut self, at: u64, bytes: u64, is_data: bool) -> ControlFlow<()> {
        let range_end = at.saturating_add(bytes).min(self.end);
        if range_end <= self.offset {
            return ControlFlow::Continue(());
        }
        match (self.data, is_data) {
            // A snapshot has it, the image has not: a hole.
            (None, false) => {}
            (None, true) if at > self.offset => {
                self.hole = Some(at.min(self.end));
                return ControlFlow::Break(());
            }
            (None, true) => self.data = Some(range_end),
            (Some(end), true) if at <= end => self.data = Some(end.max(range_end)),
            (Some(_), _) => return ControlFlow::Break(()),
        }
        ControlFlow::Continue(())
    }

    /// Whether it begins with data, and for how long. What is not reported of was never written.
    fn first(&self) -> (bool, u64) {
        let end = self.data.or(self.hole).unwrap_or(self.end);
        (self.data.is_some(), end - self.offset)
    }
}

/// Where answers go. A task has one for as long as a request is at work.
#[derive(Clone)]
struct Answers {
    socket: Arc<OwnedFd>,
    _at_work: Sender<Infallible>,
}

impl Answers {
    /// Answers the request with this cookie.
    fn of(&self, cookie: u64) -> Completed {
        let answers = self.clone();
        Box::new(move |result| {
            let answer = match u64::try_from(result) {
                Ok(value) => Answer { cookie, error: 0, is_data: false, value },
                Err(_) => {
                    let error = i32::try_from(result.saturating_neg()).unwrap_or(libc::EIO);
                    Answer { cookie, error, is_data: false, value: 0 }
                }
            };
            answers.send(answer);
        })
    }

    /// Fails where the parent is gone: no task waits then.
    fn send(&self, answer: Answer) {
        while send(self.socket.as_fd(), &answer.encode(), SendFlags::NOSIGNAL) == Err(Errno::INTR) {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn first(offset: u64, ranges: &[(u64, u64, bool)]) -> (bool, u64) {
        let mut seen = Seen { offset, end: 1000, data: None, hole: None };
        let _ = ranges.iter().try_for_each(|&(at, bytes, is_data)| seen.take(at, bytes, is_data));
        seen.first()
    }

    /// A hole was taken for data, and data for a hole, where a snapshot had what the image has no more.
    #[test]
    fn what_only_a_snapshot_has_is_a_hole_and_data_that_touches_is_one_range() {
        assert_eq!(first(100, &[]), (false, 900));
        assert_eq!(first(100, &[(0, 50, true)]), (false, 900));
        assert_eq!(first(100, &[(0, 150, true)]), (true, 50));
        assert_eq!(first(100, &[(0, 150, true), (150, 50, true), (300, 10, true)]), (true, 100));
        assert_eq!(first(100, &[(0, 150, true), (150, 50, false), (200, 10, true)]), (true, 50));
        assert_eq!(first(100, &[(0, 300, false)]), (false, 900));
        assert_eq!(first(100, &[(0, 300, false), (300, 10, true)]), (false, 200));
        assert_eq!(first(100, &[(120, 10, true)]), (false, 20));
        assert_eq!(first(100, &[(100, 5000, true)]), (true, 900));
    }
}
