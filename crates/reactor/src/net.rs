//! Stream sockets, unix and TCP.

use std::future::poll_fn;
use std::io;
use std::net::{Shutdown, TcpListener, TcpStream};
use std::os::fd::{AsFd, BorrowedFd, FromRawFd, OwnedFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::task::Poll;
use std::time::Duration;

use memory::{IoBuf, IoVec};
use rustix::io::Errno;

use crate::fs::may_call_inline;
use crate::op::{Op, Place};
use crate::work::{self, Work};

/// A listening socket. Clones listen at the same address: each loop accepts on its own.
#[derive(Clone, Debug)]
pub struct Listener {
    fd: Arc<OwnedFd>,
}

impl Listener {
    /// Takes over a listening stream socket, for instance one handed over by systemd.
    pub fn from_fd(fd: OwnedFd) -> io::Result<Self> {
        // Two loops may see one connection; the second must not block over it.
        rustix::io::ioctl_fionbio(&fd, true)?;
        Ok(Self { fd: Arc::new(fd) })
    }

    /// Takes over a TCP listener.
    pub fn from_tcp(listener: TcpListener) -> io::Result<Self> {
        Self::from_fd(listener.into())
    }

    /// Takes over a unix listener.
    pub fn from_unix(listener: UnixListener) -> io::Result<Self> {
        Self::from_fd(listener.into())
    }

    /// The next connection. Dropping the future loses none, except one that arrives at that very
    /// moment: it is closed. Failures (too many open files, say) do not end the listening.
    pub async fn accept(&self) -> io::Result<Stream> {
        loop {
            let (result, _) = Op::start(Work::Accept { fd: Arc::clone(&self.fd) }, Place::Loop).await;
            let raw = match result {
                Ok(raw) => raw,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(error) => return Err(error),
            };
            let raw = i32::try_from(raw).map_err(io::Error::other)?;
            // SAFETY: a completed accept gives a fresh descriptor that has no other owner.
            let fd = unsafe { OwnedFd::from_raw_fd(raw) };
            return Ok(Stream::from_fd(fd));
        }
    }
}

impl AsFd for Listener {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

/// A connected stream socket.
///
/// One receive and one [`Stream::send_all`] at a time; they may overlap each other.
#[derive(Debug)]
pub struct Stream {
    fd: Arc<OwnedFd>,
    /// Receives that go by before one looks for bytes without waiting; 0 while looking finds some.
    until_look: AtomicU32,
}

/// Receives that wait at once after a look in vain: a client with one request at a time costs one
/// needless system call in that many, one with many at a time soon saves one at each.
const WAITS_BETWEEN_LOOKS: u32 = 16;

/// A peer that has ended its sending side is looked at this often: soon enough to drop what it asked for, seldom
/// enough to cost nothing.
const BETWEEN_LOOKS_AT_A_HALF_CLOSED_PEER: Duration = Duration::from_millis(50);

impl Stream {
    /// Takes over a connected socket; on TCP, sends without delay from here on.
    pub fn from_fd(fd: OwnedFd) -> Self {
        // Fails on unix sockets, where there is no delay.
        let _ = rustix::net::sockopt::set_tcp_nodelay(&fd, true);
        Self { fd: Arc::new(fd), until_look: AtomicU32::new(WAITS_BETWEEN_LOOKS) }
    }

    /// Connects to a unix socket.
    pub async fn connect_unix(path: impl Into<std::path::PathBuf>) -> io::Result<Self> {
        let path = path.into();
        crate::blocking(move || UnixStream::connect(path)).await.map(|stream| Self::from_fd(stream.into()))
    }

    /// Connects to a TCP address.
    pub async fn connect_tcp(address: std::net::SocketAddr) -> io::Result<Self> {
        crate::blocking(move || TcpStream::connect(address)).await.map(|stream| Self::from_fd(stream.into()))
    }

    /// Receives into `buf`: the count of bytes, at least one unless the peer has ended its side (0).
    /// Bytes received after the future was dropped are lost: drop it only to give the stream up.
    pub async fn recv(&self, mut buf: IoBuf) -> (io::Result<usize>, IoBuf) {
        if self.looks_first() && may_call_inline() {
            match self.try_recv(&mut buf) {
                Ok(Some(count)) => return (Ok(count), buf),
                Ok(None) => self.until_look.store(WAITS_BETWEEN_LOOKS, Ordering::Relaxed),
                Err(error) => return (Err(error), buf),
            }
        }
        loop {
            let work = Work::Recv { fd: Arc::clone(&self.fd), buf, poll_first: true };
            match Op::start(work, Place::Loop).await {
                (Err(error), Work::Recv { buf: back, .. }) if error.kind() == io::ErrorKind::Interrupted => {
                    buf = back;
                }
                (result, Work::Recv { buf, .. }) => return (result, buf),
                (_, other) => unreachable!("a receive came back as {other:?}"),
            }
        }
    }

    /// As [`Stream::recv`], but `None` when `stop` ends first. No byte is lost then: what has arrived is received, now or by the next
    /// receive. Awaits the end of the operation, whichever it is.
    pub async fn recv_unless(
        &self,
        mut buf: IoBuf,
        stop: impl Future<Output = ()>,
    ) -> (io::Result<Option<usize>>, IoBuf) {
        if self.looks_first() && may_call_inline() {
            match self.try_recv(&mut buf) {
                Ok(Some(count)) => return (Ok(Some(count)), buf),
                Ok(None) => self.until_look.store(WAITS_BETWEEN_LOOKS, Ordering::Relaxed),
                Err(error) => return (Err(error), buf),
            }
        }
        let mut stop = pin!(stop);
        loop {
            let work = Work::Recv { fd: Arc::clone(&self.fd), buf, poll_first: true };
            let mut op = Op::start(work, Place::Loop);
            let done = poll_fn(|cx| match Pin::new(&mut op).poll(cx) {
                Poll::Ready(done) => Poll::Ready(Some(done)),
                Poll::Pending => stop.as_mut().poll(cx).map(|()| None),
            });
            let (stopped, (result, work)) = match done.await {
                Some(done) => (false, done),
                None => {
                    op.cancel();
                    (true, op.await)
                }
            };
            let Work::Recv { buf: back, .. } = work else { unreachable!("a receive came back as {work:?}") };
            buf = back;
            match result.map_err(|error| (error.raw_os_error(), error)) {
                Ok(count) => return (Ok(Some(count)), buf),
                Err((Some(libc::ECANCELED | libc::EINTR), _)) if stopped => return (Ok(None), buf),
                Err((Some(libc::EINTR), _)) => {}
                Err((_, error)) => return (Err(error), buf),
            }
        }
    }

    /// Ends when there is something to receive, or the end of it. A dropped wait loses nothing.
    ///
    /// # Errors
    /// When the socket cannot be waited for.
    pub async fn readable(&self) -> io::Result<()> {
        let (waited, _) = Op::start(Work::Readable { fd: Arc::clone(&self.fd) }, Place::Loop).await;
        waited.map(drop)
    }

    /// Receives what is there without waiting: the count of bytes (0 if the peer has ended its
    /// side), or None if there is nothing.
    pub fn try_recv(&self, buf: &mut [u8]) -> io::Result<Option<usize>> {
        loop {
            match work::recv_now(&*self.fd, buf) {
                Ok(count) => return Ok(Some(count)),
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => return Ok(None),
                Err(error) => return Err(error.into()),
            }
        }
    }

    /// As [`Stream::recv`] on a unix socket, with the descriptors that were passed along (SCM_RIGHTS), at most 16 a
    /// call; the kernel closes what is beyond. They are added to `fds`.
    pub async fn recv_with_fds(&self, mut buf: IoBuf, fds: &mut Vec<OwnedFd>) -> (io::Result<usize>, IoBuf) {
        // A peer that never pauses gets what has arrived after the others had their turn.
        let mut looks = may_call_inline();
        loop {
            match looks.then(|| work::recv_with_fds_now(&*self.fd, &mut buf, fds)) {
                Some(Ok(count)) => return (Ok(count), buf),
                Some(Err(Errno::INTR)) => continue,
                None | Some(Err(Errno::AGAIN)) => {}
                Some(Err(error)) => return (Err(error.into()), buf),
            }
            looks = true;
            let (waited, _) = Op::start(Work::Readable { fd: Arc::clone(&self.fd) }, Place::Loop).await;
            match waited {
                Err(error) if error.kind() != io::ErrorKind::Interrupted => return (Err(error), buf),
                Ok(_) | Err(_) => {}
            }
        }
    }

    fn looks_first(&self) -> bool {
        // One receive at a time: nothing else counts.
        let left = self.until_look.load(Ordering::Relaxed);
        self.until_look.store(left.saturating_sub(1), Ordering::Relaxed);
        left == 0
    }

    /// Sends all of `data`: at once as far as the socket takes it, the rest as the peer reads. A
    /// future dropped half-way has sent any part: then the stream is of no use.
    pub async fn send_all(&self, mut data: IoVec) -> io::Result<()> {
        while !data.is_empty() {
            let sent = match work::send_now(&*self.fd, &data) {
                Ok(sent) => sent,
                Err(Errno::INTR) => continue,
                Err(Errno::AGAIN) => 0,
                Err(error) => return Err(error.into()),
            };
            data = data.slice(sent, data.len());
            if data.is_empty() {
                return Ok(());
            }
            let (waited, _) = Op::start(Work::Writable { fd: Arc::clone(&self.fd) }, Place::Loop).await;
            match waited {
                Err(error) if error.kind() != io::ErrorKind::Interrupted => return Err(error),
                Ok(_) | Err(_) => {}
            }
        }
        Ok(())
    }

    /// Sends a short message with descriptors on a unix socket (SCM_RIGHTS), in one piece and without waiting. At most 16 descriptors.
    ///
    /// # Errors
    /// Also when the socket has no room for it: a peer that reads what it is sent leaves enough.
    pub fn send_with_fds_now(&self, data: &[u8], fds: &[BorrowedFd<'_>]) -> io::Result<()> {
        loop {
            match work::send_with_fds_now(&*self.fd, data, fds) {
                Ok(sent) if sent == data.len() => return Ok(()),
                Ok(_) => return Err(io::ErrorKind::WriteZero.into()),
                Err(Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
        }
    }

    /// Ends when the peer is gone in both directions, or the socket has failed. A peer that has ended its
    /// sending side only may still read: it is not gone.
    pub async fn hung_up(&self) -> io::Result<()> {
        loop {
            let (result, _) = Op::start(Work::HangUp { fd: Arc::clone(&self.fd) }, Place::Loop).await;
            result?;
            if work::is_hung_up(&self.fd)? {
                return Ok(());
            }
            // A ring tells of a half that is closed too, again and again.
            crate::sleep(BETWEEN_LOOKS_AT_A_HALF_CLOSED_PEER).await;
        }
    }

    /// Ends one side of the connection, or both; its receiver sees the end.
    pub fn shutdown(&self, how: Shutdown) -> io::Result<()> {
        let how = match how {
            Shutdown::Read => rustix::net::Shutdown::Read,
            Shutdown::Write => rustix::net::Shutdown::Write,
            Shutdown::Both => rustix::net::Shutdown::Both,
        };
        Ok(rustix::net::shutdown(&*self.fd, how)?)
    }
}

impl AsFd for Stream {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}
