//! Containers refuse io_uring in different ways: no ring at all, no ring after the first, rings that may be made and
//! not entered. A server in one of them ended with a panic, or did not start.

#![expect(clippy::unwrap_used, reason = "a test that fails to set up has failed")]

use std::collections::BTreeMap;
use std::io::Write;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::pin::pin;
use std::task::{Context, Waker};

use memory::{IoBuf, IoBytes};
use reactor::fs::File;
use reactor::net::Stream;
use reactor::{Backend, Reactor};
use seccompiler::{BpfProgram, SeccompAction, SeccompFilter, apply_filter};

/// From here on this thread gets EPERM for `call`.
fn refuse(call: i64) {
    let refused = SeccompAction::Errno(libc::EPERM as u32);
    let rules = BTreeMap::from([(call, Vec::new())]);
    let arch = std::env::consts::ARCH.try_into().unwrap();
    let filter = SeccompFilter::new(rules, SeccompAction::Allow, refused, arch).unwrap();
    apply_filter(&BpfProgram::try_from(filter).unwrap()).unwrap();
}

/// A thread of its own: its filter goes with it.
fn on_a_thread(test: impl FnOnce() + Send + 'static) {
    std::thread::spawn(test).join().unwrap();
}

fn pair() -> (Stream, Stream) {
    let (one, other) = UnixStream::pair().unwrap();
    (Stream::from_fd(one.into()), Stream::from_fd(other.into()))
}

/// Files, sockets and other threads are all reached.
fn assert_works(reactor: &Reactor) {
    let mut file = tempfile::tempfile().unwrap();
    file.write_all(b"bytes of a disk").unwrap();
    let file = File::new(OwnedFd::from(file), Backend::Ring);
    reactor.run(async {
        let (read, buf) = file.read_at(0, IoBuf::zeroed(15)).await;
        assert_eq!((read.unwrap(), &buf[..]), (15, &b"bytes of a disk"[..]));
        file.sync_data().await.unwrap();
        let (near, far) = pair();
        let received = reactor::spawn(async move { far.recv(IoBuf::zeroed(5)).await });
        reactor::yield_now().await;
        near.send_all(IoBytes::copy_from(b"hello").into()).await.unwrap();
        let (count, buf) = received.await;
        assert_eq!((count.unwrap(), &buf[..]), (5, &b"hello"[..]));
        assert_eq!(reactor::blocking(|| 7).await, 7);
    });
}

#[test]
fn a_loop_that_cannot_have_a_ring_uses_threads() {
    on_a_thread(|| {
        refuse(libc::SYS_io_uring_setup);
        let reactor = Reactor::new(Backend::Ring).unwrap();
        assert_eq!(reactor.backend(), Backend::Threads);
        assert_works(&reactor);
    });
}

#[test]
fn a_ring_that_may_be_made_and_not_entered_is_no_ring() {
    on_a_thread(|| {
        refuse(libc::SYS_io_uring_enter);
        let reactor = Reactor::new(Backend::Ring).unwrap();
        assert_eq!(reactor.backend(), Backend::Threads);
        assert_works(&reactor);
    });
}

#[test]
fn each_loop_decides_for_itself() {
    on_a_thread(|| {
        let first = Reactor::new(Backend::Ring).unwrap();
        assert_eq!(first.backend(), Backend::Ring);
        on_a_thread(|| {
            refuse(libc::SYS_io_uring_setup);
            assert_eq!(Reactor::new(Backend::Ring).unwrap().backend(), Backend::Threads);
        });
        assert_works(&first);
    });
}

#[test]
fn a_ring_that_fails_later_fails_what_is_in_flight_and_threads_go_on() {
    on_a_thread(|| {
        let reactor = Reactor::new(Backend::Ring).unwrap();
        assert_works(&reactor);
        let (near, far) = pair();
        let (mut front, received) = (IoBuf::zeroed(100), far.recv(IoBuf::zeroed(1)));
        let rest = front.split_off(50);
        let mut in_two = pin!(near.recv(rest));
        let mut received = pin!(received);
        reactor.run(async {
            let mut cx = Context::from_waker(Waker::noop());
            assert!(
                in_two.as_mut().poll(&mut cx).is_pending() && received.as_mut().poll(&mut cx).is_pending()
            );
            reactor::yield_now().await;
        });
        refuse(libc::SYS_io_uring_enter);
        let ended = reactor.run(async { (in_two.await, received.await) });
        let ((one, rest), (other, _)) = ended;
        assert_eq!(one.unwrap_err().raw_os_error(), Some(libc::EIO));
        assert_eq!(other.unwrap_err().raw_os_error(), Some(libc::EIO));
        // The kernel may still have the buffer: what comes back is another, of the same length.
        front.rejoin(rest);
        assert_eq!((front.len(), reactor.backend()), (100, Backend::Threads));
        assert_works(&reactor);
    });
}
