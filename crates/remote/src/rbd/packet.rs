//! Packets of a unix socket (SOCK_SEQPACKET), received by threads that wait.

use std::io::{self, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;

use rustix::io::Errno;
use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, recv, recvmsg};

/// The next packet's bytes; `None` when the peer is gone.
///
/// # Errors
/// When the socket is none.
pub(crate) fn receive(socket: &OwnedFd, buf: &mut [u8]) -> io::Result<Option<usize>> {
    loop {
        match recv(socket, &mut *buf, RecvFlags::empty()) {
            Ok((_, 0)) | Err(Errno::CONNRESET) => return Ok(None),
            Ok((_, bytes)) => return Ok(Some(bytes)),
            Err(Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
    }
}

/// Likewise, with the file that was passed along.
///
/// # Errors
/// When the socket is none.
pub(crate) fn receive_with_file(
    socket: &OwnedFd,
    buf: &mut [u8],
) -> io::Result<Option<(usize, Option<OwnedFd>)>> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let received = loop {
        match recvmsg(socket, &mut [IoSliceMut::new(buf)], &mut control, RecvFlags::CMSG_CLOEXEC) {
            Err(Errno::INTR) => {}
            Err(Errno::CONNRESET) => return Ok(None),
            received => break received?,
        }
    };
    let mut passed = None;
    for message in control.drain() {
        if let RecvAncillaryMessage::ScmRights(mut files) = message {
            passed = files.next_back();
        }
    }
    if received.bytes == 0 && passed.is_none() {
        return Ok(None);
    }
    Ok(Some((received.bytes, passed)))
}
