//! The broker's side.

use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage,
    SendFlags, recv, recvmsg, sendmsg,
};

use crate::dial::asking::reach;
use crate::dial::message::{ASK_BYTES_MAX, Answer, Ask};
use crate::dial::target::Allowed;

/// Connections that are being made at a time, each by a thread: a caller that requests more is asked to come again.
const AT_ONCE_MAX: usize = 64;

/// Makes connections that are `allowed`, for the process that has the other end of `socket` (unix, SOCK_SEQPACKET), until that end is
/// closed. Everything else that is asked for is refused.
///
/// # Errors
/// When the socket is none.
pub fn serve(socket: &OwnedFd, allowed: &Allowed) -> io::Result<()> {
    serve_while(socket, allowed, || true).map(drop)
}

/// Why a broker ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// No asker is left.
    Unused,
    /// It could not do what the next question asks for: that is left for another broker of the same socket.
    Outdated,
}

/// As [`serve`], while `is_current` says so, which is asked before each question is taken.
///
/// # Errors
/// When the socket is none.
pub fn serve_while(
    socket: &OwnedFd,
    allowed: &Allowed,
    mut is_current: impl FnMut() -> bool,
) -> io::Result<End> {
    let at_work = Arc::new(AtomicUsize::new(0));
    loop {
        wait_for_a_question(socket)?;
        if !is_current() {
            return Ok(End::Outdated);
        }
        let Some((ask, answers)) = receive(socket)? else { return Ok(End::Unused) };
        let Some(answers) = answers else { continue };
        let granted = ask.and_then(|ask| Some(Ask { target: allowed.resolve(&ask.target)?, ..ask }));
        let Some(ask) = granted else {
            answer(&answers, &Answer::Forbidden, None);
            continue;
        };
        if at_work.fetch_add(1, Ordering::Relaxed) >= AT_ONCE_MAX {
            at_work.fetch_sub(1, Ordering::Relaxed);
            answer(&answers, &Answer::Busy, None);
            continue;
        }
        let turn = Turn(Arc::clone(&at_work));
        let work = move || {
            let _turn = turn;
            connect(&ask, &answers);
        };
        // Without a thread the answers' socket is closed, and the task that asked asks again.
        let _ = std::thread::Builder::new().spawn(work);
    }
}

/// Nothing is taken: another broker of the socket may do that.
fn wait_for_a_question(socket: &OwnedFd) -> io::Result<()> {
    let mut waited = [PollFd::new(socket, PollFlags::IN)];
    loop {
        match poll(&mut waited, None) {
            Err(Errno::INTR) => {}
            polled => return Ok(polled.map(drop)?),
        }
    }
}

/// One of those that are at work; also when its thread could not be had.
struct Turn(Arc<AtomicUsize>);

impl Drop for Turn {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

fn connect(ask: &Ask, answers: &OwnedFd) {
    if is_given_up(answers) {
        return;
    }
    match reach(&ask.target, ask.within) {
        Ok(socket) => answer(answers, &Answer::Connected, Some(socket.as_fd())),
        Err(error) => answer(answers, &Answer::failed(&error), None),
    }
}

/// The task that asked waits no more.
fn is_given_up(answers: &OwnedFd) -> bool {
    let mut byte = [0];
    recv(answers, &mut byte, RecvFlags::DONTWAIT | RecvFlags::PEEK) != Err(Errno::AGAIN)
}

/// The next question, if it is one, and where its answer goes; `None` when no asker is left.
fn receive(socket: &OwnedFd) -> io::Result<Option<(Option<Ask>, Option<OwnedFd>)>> {
    let mut bytes = [0; ASK_BYTES_MAX];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let received = loop {
        match recvmsg(socket, &mut [IoSliceMut::new(&mut bytes)], &mut control, RecvFlags::CMSG_CLOEXEC) {
            Err(Errno::INTR) => {}
            Err(Errno::CONNRESET) => return Ok(None),
            received => break received?,
        }
    };
    let mut passed = Vec::new();
    for message in control.drain() {
        if let RecvAncillaryMessage::ScmRights(sockets) = message {
            passed.extend(sockets);
        }
    }
    if received.bytes == 0 && passed.is_empty() {
        return Ok(None);
    }
    Ok(Some((bytes.get(..received.bytes).and_then(Ask::decode), passed.pop())))
}

/// A task that does not wait any more gets nothing.
fn answer(answers: &OwnedFd, answer: &Answer, socket: Option<BorrowedFd<'_>>) {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    let sockets: Vec<_> = socket.into_iter().collect();
    if !sockets.is_empty() && !control.push(SendAncillaryMessage::ScmRights(&sockets)) {
        return;
    }
    let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
    let _ = sendmsg(answers, &[IoSlice::new(&answer.encode())], &mut control, flags);
}
