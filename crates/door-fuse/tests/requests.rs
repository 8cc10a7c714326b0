//! The door without a kernel: a socket that keeps messages apart stands in for the device, so that requests can be sent that no kernel sends.
#![allow(clippy::allow_attributes, clippy::unwrap_used, reason = "a test fails by panicking")]

#[path = "../../export/tests/all/support/memory_export.rs"]
mod memory_export;

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use door_fuse::{FileOptions, FuseExport, Server, SizeRequests};
use export::{Export, Loops, Shutdown};
use memory_export::MemoryExport;
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType};

const SIZE: u64 = 1 << 20;

/// A disk in memory, and the kernel's end of its device.
struct Mounted {
    disk: Arc<MemoryExport>,
    export: Arc<FuseExport>,
    _sizes: SizeRequests,
    kernel: OwnedFd,
    loops: Arc<Loops>,
    thread: Option<JoinHandle<()>>,
}

/// An answer: the error's number, and the bytes.
type Answer = (i32, Vec<u8>);

impl Mounted {
    fn new(change: impl FnOnce(&mut MemoryExport)) -> Self {
        let (kernel, ours) =
            rustix::net::socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)
                .unwrap();
        let patience = Some(Duration::from_secs(20));
        rustix::net::sockopt::set_socket_timeout(&kernel, rustix::net::sockopt::Timeout::Recv, patience)
            .unwrap();
        let mut disk = MemoryExport::new(SIZE);
        change(&mut disk);
        let disk = Arc::new(disk);
        let loops = Loops::new(1, Shutdown::new());
        let server = Server::new(&loops);
        let (export, sizes) =
            server.add("disk", Arc::clone(&disk) as Arc<dyn Export>, FileOptions::default()).unwrap();
        server.serve(ours, &export).unwrap();
        let running = Arc::clone(&loops);
        let thread = std::thread::spawn(move || {
            let _server = server;
            running.run(reactor::Backend::Ring).unwrap();
        });
        Self { disk, export, _sizes: sizes, kernel, loops, thread: Some(thread) }
    }

    fn send(&self, opcode: u32, unique: u64, body: &[u8]) {
        let len = u32::try_from(40 + body.len()).unwrap();
        let mut message = [len.to_ne_bytes(), opcode.to_ne_bytes()].concat();
        message.extend(unique.to_ne_bytes());
        message.extend(1u64.to_ne_bytes());
        message.resize(40, 0);
        message.extend(body);
        rustix::net::send(&self.kernel, &message, SendFlags::empty()).unwrap();
    }

    fn answer(&self, unique: u64) -> Answer {
        let mut bytes = vec![0; 1 << 17];
        let (len, _) =
            rustix::net::recv(&self.kernel, &mut bytes[..], RecvFlags::empty()).expect("an answer");
        let number = |at: usize| u32::from_ne_bytes(bytes[at..at + 4].try_into().unwrap());
        assert_eq!(number(0) as usize, len);
        assert_eq!(u64::from_ne_bytes(bytes[8..16].try_into().unwrap()), unique);
        (number(4).cast_signed(), bytes[16..len].to_vec())
    }

    fn ask(&self, opcode: u32, body: &[u8]) -> Answer {
        self.send(opcode, 7, body);
        self.answer(7)
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        self.loops.shutdown().trigger();
        self.thread.take().unwrap().join().expect("no panic");
    }
}

fn read(offset: u64, len: u32) -> Vec<u8> {
    [&[0; 8][..], &offset.to_ne_bytes(), &len.to_ne_bytes(), &[0; 20]].concat()
}

fn write(offset: u64, data: &[u8], said: u32) -> Vec<u8> {
    [&[0; 8][..], &offset.to_ne_bytes(), &said.to_ne_bytes(), &[0; 20], data].concat()
}

fn error(errno: rustix::io::Errno) -> Answer {
    (-errno.raw_os_error(), Vec::new())
}

#[test]
fn bytes_are_written_and_read_at_their_places_whatever_the_length() {
    let mounted = Mounted::new(|_| {});
    for (offset, len) in [(0u64, 1usize), (4095, 2), (70_001, 65_536), (200_000, 100_000)] {
        let data: Vec<u8> = (0..len).map(|at| (at * 7 + 1) as u8).collect();
        let said = u32::try_from(len).unwrap();
        assert_eq!(mounted.ask(16, &write(offset, &data, said)).0, 0);
        assert_eq!(mounted.ask(15, &read(offset, said)), (0, data.clone()));
        assert_eq!(mounted.disk.peek(offset, len), data);
    }
    assert_eq!(mounted.ask(15, &read(SIZE - 10, 4096)).1.len(), 10, "what lies in the disk");
    assert_eq!(mounted.ask(15, &read(u64::MAX, 4096)), (0, Vec::new()));
}

#[test]
fn writes_that_contradict_themselves_or_lie_outside_change_nothing() {
    use rustix::io::Errno;
    let mounted = Mounted::new(|_| {});
    assert_eq!(mounted.ask(16, &write(0, b"abc", 4)), error(Errno::INVAL));
    assert_eq!(mounted.ask(16, &write(0, b"abc", 2)), error(Errno::INVAL));
    assert_eq!(mounted.ask(16, &write(0, b"", u32::MAX)), error(Errno::INVAL));
    assert_eq!(mounted.ask(16, &write(SIZE, b"abc", 3)), error(Errno::NOSPC));
    assert_eq!(mounted.ask(16, &write(u64::MAX, b"abc", 3)), error(Errno::FBIG));
    assert_eq!(mounted.ask(16, &write(SIZE - 1, b"abc", 3)), (0, vec![1, 0, 0, 0, 0, 0, 0, 0]));
    assert_eq!(mounted.disk.peek(0, 4), [0; 4]);
    let read_only = Mounted::new(|disk| disk.read_only = true);
    assert_eq!(read_only.ask(16, &write(0, b"abc", 3)), error(Errno::ROFS));
}

#[test]
fn a_flush_reaches_the_disk_and_a_failure_is_reported() {
    let mounted = Mounted::new(|disk| disk.bad_page = Some(3));
    for opcode in [20, 25] {
        let before = mounted.disk.flushes();
        assert_eq!(mounted.ask(opcode, &[0; 24]).0, 0);
        assert_eq!(mounted.disk.flushes(), before + 1);
    }
    assert_eq!(mounted.ask(15, &read(3 * 4096, 10)), error(rustix::io::Errno::IO));
}

/// Requests of every kind, of any length and content: each that is to be answered is, and the door lives on.
#[test]
fn no_request_makes_the_door_fall() {
    let mounted = Mounted::new(|_| {});
    let mut random = 0x9e37_79b9_7f4a_7c15u64;
    let mut next = move || {
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        random
    };
    for unique in 1..4000u64 {
        let opcode = (next() % 60) as u32;
        let len = (next() % 160) as usize;
        let small = next() % 2 == 0;
        let body: Vec<u8> =
            (0..len).map(|at| if small && at % 8 > 1 { 0 } else { (next() >> 24) as u8 }).collect();
        mounted.send(opcode, unique, &body);
        let is_silent = matches!(opcode, 2 | 42) || opcode == 36 && len >= 8;
        // A resize waits for who owns the disk: none does here, and a disk of fixed size asks none.
        if !is_silent {
            let (errno, _) = mounted.answer(unique);
            assert!((-4095..=0).contains(&errno), "{opcode}: {errno}");
        }
    }
    assert_eq!(mounted.ask(15, &read(0, 16)).0, 0);
    assert!(mounted.export.entry().counters().snapshot().invalid > 0);
}

/// The device gives bytes that are no request, or ends: the mount ends, and waits for what is in flight.
#[test]
fn a_device_that_makes_no_sense_ends_the_mount() {
    let mounted = Mounted::new(|_| {});
    rustix::net::send(&mounted.kernel, b"no request", SendFlags::empty()).unwrap();
    mounted.loops.shutdown().trigger();
    let nothing = rustix::net::recv(&mounted.kernel, &mut [0u8; 16][..], RecvFlags::empty());
    assert_eq!(nothing.map(|(len, _)| len).unwrap_or(0), 0);
}
