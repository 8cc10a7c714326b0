//! A broker is asked as a server under foreign control is: for anything.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use net::dial::{Address, Allowed, Target, broker, connect};
use reactor::{Backend, Reactor};
use rustix::net::{AddressFamily, SendFlags, SocketFlags, SocketType, send, socketpair};

fn pair() -> (OwnedFd, OwnedFd) {
    socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None).unwrap()
}

fn only(target: &Target) -> Allowed {
    Allowed { targets: [target.clone()].into(), ..Allowed::default() }
}

fn listener() -> (TcpListener, Target) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = Address::new("127.0.0.1", listener.local_addr().unwrap().port()).unwrap();
    (listener, address.into())
}

/// The state is the process's, so one test has all of its life.
#[test]
fn a_broker_connects_where_it_may_refuses_all_else_and_its_end_is_reported() {
    let (listener, allowed) = listener();
    let (_other_listener, other) = self::listener();
    net::dial::name(allowed.clone());
    // Named, and unknown to the broker: a list that was closed before.
    net::dial::name(other.clone());
    let (own, theirs) = pair();
    let serving = std::thread::spawn({
        let allowed = only(&allowed);
        move || broker::serve(&theirs, &allowed)
    });
    let (spare, spare_theirs) = pair();
    net::dial::through(vec![own.try_clone().unwrap(), spare]);
    let reactor = Reactor::new(Backend::Threads).unwrap();
    // A deadline that no answer misses, whatever else the machine does.
    let in_time = Duration::from_secs(60);

    let stream = reactor.run(connect(&allowed, in_time)).unwrap();
    let (mut accepted, _) = listener.accept().unwrap();
    accepted.write_all(b"here").unwrap();
    drop(accepted);
    let mut made = TcpStream::from(std::os::fd::AsFd::as_fd(&stream).try_clone_to_owned().unwrap());
    let mut said = String::new();
    made.read_to_string(&mut said).unwrap();
    assert_eq!(said, "here");

    let refused = reactor.run(connect(&other, in_time)).unwrap_err();
    assert_eq!(refused.kind(), std::io::ErrorKind::PermissionDenied, "{refused}");
    for unnamed in ["127.0.0.1:9", "unix:/run/other"] {
        let refused = reactor.run(connect(&unnamed.parse().unwrap(), in_time)).unwrap_err().to_string();
        assert!(refused.contains(&format!("--allow-connect {unnamed}")), "{refused}");
    }

    // What is no question ends nothing.
    for bytes in [&b"x"[..], &[0xff; 4096]] {
        send(&own, bytes, SendFlags::empty()).unwrap();
    }
    reactor.run(connect(&allowed, in_time)).unwrap();
    drop(listener);
    let nobody = reactor.run(connect(&allowed, in_time)).unwrap_err();
    assert_eq!(nobody.kind(), std::io::ErrorKind::ConnectionRefused, "{nobody}");

    // The first ends: the spare one is asked, and one that says nothing delays no task.
    rustix::net::shutdown(&own, rustix::net::Shutdown::Both).unwrap();
    serving.join().unwrap().unwrap();
    let began = Instant::now();
    let silent = reactor.run(connect(&allowed, Duration::from_millis(200))).unwrap_err();
    assert_eq!(silent.kind(), std::io::ErrorKind::TimedOut, "{silent}");
    assert!(began.elapsed() < in_time);
    drop(spare_theirs);
    let ended = reactor.run(connect(&allowed, in_time)).unwrap_err();
    assert!(ended.to_string().contains("have ended"), "{ended}");
}

/// A question that a broker cannot answer any more waits for the next one of the same socket.
#[test]
fn a_broker_that_is_outdated_leaves_the_question_to_the_next_one() {
    let (own, theirs) = pair();
    let (listener, allowed) = listener();
    let port = listener.local_addr().unwrap().port();
    let (answers, passed) = pair();
    let question = [&1000_u32.to_be_bytes()[..], &port.to_be_bytes(), b"127.0.0.1"].concat();
    ask(&own, &question, &passed);
    drop(passed);
    let ended = broker::serve_while(&theirs, &only(&allowed), || false).unwrap();
    assert_eq!(ended, broker::End::Outdated);
    let serving = std::thread::spawn(move || broker::serve_while(&theirs, &only(&allowed), || true));
    let mut answer = [9; 64];
    rustix::net::recv(&answers, &mut answer, rustix::net::RecvFlags::empty()).unwrap();
    assert_eq!(answer[0], 0, "it is connected");
    drop(own);
    assert_eq!(serving.join().unwrap().unwrap(), broker::End::Unused);
}

fn ask(socket: &OwnedFd, question: &[u8], answers: &OwnedFd) {
    use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, sendmsg};
    let mut space = [std::mem::MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    let passed = [std::os::fd::AsFd::as_fd(answers)];
    assert!(control.push(SendAncillaryMessage::ScmRights(&passed)));
    sendmsg(socket, &[std::io::IoSlice::new(question)], &mut control, SendFlags::empty()).unwrap();
}
