//! Front-ends that take what others need, or give what never answers: it is their loss alone.

use std::fs::{File, OpenOptions};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::FileExt;

use black_box::peer::{qemu_img, qemu_io_ok};
use black_box::server::Start;
use black_box::vhost_user::{Ask, FrontEnd, GUEST_BASE, Machine, USER_BASE, Ways};
use black_box::{Run, Scratch, Server};
use rustix::fs::{MemfdFlags, ftruncate, memfd_create};
use rustix::process::Signal;

use super::Place;
use super::hostile::Two;

/// Where further memory of a guest is, behind all that the machine has.
const FAR: u64 = 1 << 40;

/// What one front-end may have mapped, and a process at all (docs/internals/threat-model.md).
const FRONT_END_BYTES_MAX: u64 = 32 << 40;

fn sparse(bytes: u64) -> OwnedFd {
    let memory = memfd_create("sparse", MemfdFlags::CLOEXEC).expect("a memory file");
    ftruncate(&memory, bytes).expect("its length");
    memory
}

/// The payload of a message that adds memory at `at` behind [`FAR`].
fn region(at: u64, len: u64) -> Vec<u8> {
    [&[0; 8][..], &[GUEST_BASE + FAR + at, len, USER_BASE + FAR + at, 0].map(u64::to_ne_bytes).concat()]
        .concat()
}

fn count(server: &Server, what: &str) -> usize {
    let place = format!("/proc/{}/{what}", server.pid());
    match std::fs::read_dir(&place) {
        Ok(entries) => entries.count(),
        Err(_) => std::fs::read_to_string(place).expect("a file of the process").lines().count(),
    }
}

/// A front-end mapped 127 TiB; nothing else could be mapped then, and a buffer for another client's request ended the program.
#[test]
fn a_front_end_that_maps_all_addresses_is_refused_and_others_find_room() {
    let mut two = Two::new();
    let (_machine, mut front) = two.liar(Ways::default());
    let memory = sparse(1 << 47);
    let (mut at, mut len) = (0, 1u64 << 46);
    while len >= 4096 {
        match front.acknowledged(37, &region(at, len), &[memory.as_fd()]) {
            0 => at += len,
            _ => len /= 2,
        }
    }
    assert!((FRONT_END_BYTES_MAX / 4..=FRONT_END_BYTES_MAX).contains(&at), "{at} bytes are mapped");
    two.assert_unharmed();
    two.assert_another_can_begin();
}

/// Requests that wait for a limit kept the memory of a hundred tables mapped, and then no other guest could start.
#[test]
fn tables_of_memory_that_requests_in_flight_use_count_for_their_front_end() {
    // A read waits for minutes, however slow the machine is.
    let mut two = Two::with(",throttling.bps-total=1");
    let (mut machine, mut front) = two.liar(Ways { slots: false, ..Ways::default() });
    let memory = sparse(1 << 30);
    let mut refused = false;
    for slot in 0..60 {
        machine.submit(0, slot, &Ask::Read(0, 512));
        machine.kick(0);
        machine.wait_for_kick(0);
        let own = [GUEST_BASE, machine.bytes(), USER_BASE, 0];
        let more =
            (0..15u64).map(|n| [GUEST_BASE + FAR + (n << 24), 4096, USER_BASE + FAR + (n << 24), n << 12]);
        let regions =
            std::iter::once(own).chain(more).flatten().map(u64::to_ne_bytes).collect::<Vec<_>>().concat();
        let payload = [&[16u32, 0].map(u32::to_ne_bytes).concat()[..], &regions].concat();
        let fds: Vec<_> = [machine.memory.as_fd()].into_iter().chain([memory.as_fd(); 15]).collect();
        refused |= front.acknowledged(5, &payload, &fds) != 0;
    }
    assert!(refused, "960 ranges are one front-end's");
    assert!(count(&two.server, "maps") < 3000);
    two.assert_another_can_begin();
}

/// 4,108 bytes, one at a time, brought 65,712 descriptors.
#[test]
fn a_message_in_parts_brings_no_more_descriptors_than_a_whole_one() {
    let mut two = Two::new();
    let before = count(&two.server, "fd");
    let mut front = FrontEnd::connect(&two.place.socket);
    let null = File::open("/dev/null").expect("a device");
    let fds = [null.as_fd(); 16];
    let message = [99u32, 1, 4096].map(u32::to_ne_bytes).concat();
    let sent = message.iter().take_while(|byte| front.send_part(&[**byte], &fds).is_ok()).count();
    assert!(front.is_hung_up(), "{sent} parts were taken");
    let closed = |server: &Server| (count(server, "fd") <= before + 2).then_some(());
    two.server.wait_until(closed).expect("the descriptors are closed");
    two.assert_unharmed();
}

/// An eventfd is read and written without waiting; a file may have its reader wait for ever.
#[test]
fn only_an_eventfd_is_a_bell() {
    let mut two = Two::new();
    let (machine, mut front) = two.liar(Ways::default());
    front.stop_ring(0);
    let (pipe, _end) = rustix::pipe::pipe().expect("a pipe");
    let (memory, file) = (machine.memory.as_fd(), File::open("/dev/zero").expect("a device"));
    for message in [12, 13, 14] {
        for fd in [pipe.as_fd(), memory, file.as_fd()] {
            assert_eq!(front.acknowledged(message, &0u64.to_ne_bytes(), &[fd]), 1, "message {message}");
        }
    }
    assert_eq!(front.acknowledged(21, &[], &[memory]), 1, "a channel is a socket");
    two.assert_unharmed();
}

/// Each page of a file that its front-end cut became a mapping of its own, until the process could have no more. And what was read there was
/// zeroes: a write of such bytes is an error, and the disk has what it had.
#[test]
fn lost_memory_stops_its_queues_costs_one_mapping_and_writes_nothing() {
    let mut two = Two::with(",detect-zeroes=on");
    let (mut machine, mut front) = two.liar(Ways { queues: 2, ..Ways::default() });
    machine.ok(0, &Ask::Write(0, &[1; 4096]));
    let lost = sparse(1 << 30);
    assert_eq!(front.acknowledged(37, &region(0, 1 << 30), &[lost.as_fd()]), 0);
    ftruncate(&lost, 0).expect("it is not sealed");
    let before = count(&two.server, "maps");
    machine.put(0x20_0000, &[&1u32.to_le_bytes()[..], &[0; 12], &[0xff]].concat());
    for page in 0..20u16 {
        let head = 3 * page;
        machine.put_descriptor(0, head, (GUEST_BASE + 0x20_0000, 16, 1, head + 1));
        machine.put_descriptor(0, head + 1, (GUEST_BASE + FAR + (u64::from(page) << 16), 4096, 1, head + 2));
        machine.put_descriptor(0, head + 2, (GUEST_BASE + 0x20_0010, 1, 2, 0));
        machine.make_available(0, head);
    }
    machine.kick(0);
    assert!(machine.broken(0), "nothing is reported");
    assert!(count(&two.server, "maps") <= before + 10);
    let mut status = [0];
    machine.memory.read_exact_at(&mut status, 0x20_0010).expect("memory");
    assert_eq!(status, [1], "a write of lost bytes is an error");
    // The guest's other queue stops when it is asked for something.
    machine.submit(1, 0, &Ask::Read(0, 512));
    machine.kick(1);
    assert!(machine.broken(1));
    two.assert_unharmed();
    drop(front);
    let (mut machine, _front) = two.liar(Ways::default());
    assert_eq!(machine.read(0, 4096), [1; 4096], "zeroes were written");
}

/// A file of a FUSE file system, and the server that answers for it.
fn fuse_file(scratch: &Scratch) -> (Server, File) {
    let (disk, file) = (scratch.name("fuse.qcow2"), scratch.file("fuse.raw"));
    qemu_img(["create", "-q", "-f", "qcow2", &disk, "64M"]).ok();
    File::create(&file).expect("a file to mount over");
    let start = Start::new(["--fuse"]).arg(&file).arg(&disk);
    let mut server = start.listen().unwrap_or_else(|error| panic!("{}", error.0));
    let mounted = |server: &Server| server.stdout().contains("as a file").then_some(());
    server.wait_until(mounted).expect("it mounts the disk");
    let opened = OpenOptions::new().read(true).write(true).open(&file).expect("a file");
    (server, opened)
}

/// Memory in a file of a FUSE file system whose server does not answer held a loop up for ever, with all its clients, and the end of the
/// server. Whether a file lies there is found out without asking it.
#[test]
fn memory_in_a_file_that_does_not_answer_is_refused_at_once() {
    let mut two = Two::new();
    let scratch = Scratch::new();
    let (silent, opened) = fuse_file(&scratch);
    silent.signal(Signal::STOP);
    let (_machine, mut front) = two.liar(Ways::default());
    assert_eq!(front.acknowledged(37, &region(0, 1 << 20), &[opened.as_fd()]), 1);
    assert_eq!(front.acknowledged(13, &0u64.to_ne_bytes(), &[opened.as_fd()]), 1);
    assert!(two.server.stderr().contains("--guest-memory any"), "{}", two.server.stderr());
    two.assert_unharmed();
    silent.signal(Signal::CONT);
    drop(opened);
    silent.stop();
    two.assert_unharmed();
}

/// Messages that begin a transfer of a device's state (the descriptor goes along) and ask how it went, and their answers.
const SET_DEVICE_STATE: u32 = 42;
const CHECK_DEVICE_STATE: u32 = 43;
const SAVE: [u8; 8] = [0; 8];
const LOAD: [u8; 8] = 1u64.to_ne_bytes();
const BEGUN: u64 = 1 << 8;
const FAILED: u64 = BEGUN | 1;

/// A loop read from the descriptor by itself, and waited with all its guests for a front-end that sent nothing.
#[test]
fn a_state_over_a_pipe_that_stays_silent_is_an_error_and_holds_nobody_up() {
    let mut two = Two::new();
    let (_machine, mut front) = two.liar(Ways::default());
    front.stop_ring(0);
    let (from, to) = rustix::pipe::pipe().expect("a pipe");
    assert_eq!(front.number_with(SET_DEVICE_STATE, &LOAD, from.as_fd()), BEGUN);
    two.assert_unharmed();
    // It is asked for when the other end has hung up; nothing waits for a peer that has not.
    assert_eq!(front.number(CHECK_DEVICE_STATE, &[]), FAILED);
    rustix::io::ioctl_fionbio(&to, true).expect("a pipe that does not wait");
    while rustix::io::write(&to, &[0; 4096]).is_ok() {}
    assert_eq!(front.number_with(SET_DEVICE_STATE, &SAVE, to.as_fd()), FAILED, "a full pipe has no room");
    two.assert_unharmed();
    // One that begins, and is left, too.
    assert_eq!(front.number_with(SET_DEVICE_STATE, &LOAD, from.as_fd()), BEGUN);
    drop(front);
    two.assert_another_can_begin();
    two.server.stop();
}

/// Continues it, also when a test fails: a process that has a file of it open does not end before.
struct Stopped<'a>(&'a Server);

impl Drop for Stopped<'_> {
    fn drop(&mut self) {
        self.0.signal(Signal::CONT);
    }
}

/// No look at a file says whether reading it ends: a thread of its own waits, for a time that is bounded, and not at the end of the server.
#[test]
fn a_state_in_a_file_that_does_not_answer_is_given_up_and_keeps_no_disk_from_being_closed() {
    let mut two = Two::new();
    let scratch = Scratch::new();
    let (silent, opened) = fuse_file(&scratch);
    let (_machine, mut front) = two.liar(Ways::default());
    front.stop_ring(0);
    assert_eq!(front.number_with(SET_DEVICE_STATE, &LOAD, opened.as_fd()), BEGUN);
    // Closing such a file waits, here and in each process that this one starts.
    drop(opened);
    silent.signal(Signal::STOP);
    front.send(CHECK_DEVICE_STATE, &[], &[]);
    two.assert_unharmed();
    let (payload, _) = front.answer().expect("an answer after a while");
    assert_eq!(payload, FAILED.to_ne_bytes());
    assert!(two.server.stderr().contains("its descriptor does not answer"), "{}", two.server.stderr());
    two.assert_unharmed();
    // The thread still waits when the end comes.
    two.server.signal(Signal::TERM);
    let Two { place, mut server, .. } = two;
    let stopped = Stopped(&silent);
    // Locks are given back. What is left is a process whose file the kernel closes when the other one answers.
    for disk in [&place.disk, &place.scratch.name("other.qcow2")] {
        let writes = || Run::new("qemu-io").args(["-f", "qcow2", "-c", "write 1M 512", disk]).outcome();
        server.wait_until(|_| writes().status.success().then_some(()));
        qemu_io_ok(&["-f", "qcow2"], disk, &["write 1M 512"]);
    }
    drop(stopped);
    let outcome = server.outcome();
    assert!(outcome.status.success() && !outcome.stderr.contains("cowhand-loop"), "a loop waited: {outcome}");
    silent.stop();
}

/// Where all front-ends are trusted their memory may lie anywhere: it is mapped, and a write has its bytes.
#[test]
fn memory_in_a_file_of_any_file_system_is_used_where_that_is_allowed() {
    let scratch = Scratch::new();
    let (answering, opened) = fuse_file(&scratch);
    opened.write_all_at(&[5; 4096], 0).expect("a write");
    let place = Place::new();
    let server = place.serve("", &["--guest-memory", "any"]);
    let mut machine = Machine::new(Ways::default());
    let mut front = FrontEnd::start(&place.socket, &mut machine);
    let mapped = front.acknowledged(37, &region(0, 1 << 20), &[opened.as_fd()]);
    assert_eq!(mapped, 0, "{}", server.stderr());
    machine.put(0x20_0000, &[&1u32.to_le_bytes()[..], &[0; 12]].concat());
    machine.put_descriptor(0, 0, (GUEST_BASE + 0x20_0000, 16, 1, 1));
    machine.put_descriptor(0, 1, (GUEST_BASE + FAR, 4096, 1, 2));
    machine.put_descriptor(0, 2, (GUEST_BASE + 0x1_0010, 1, 2, 0));
    machine.make_available(0, 0);
    machine.kick(0);
    assert_eq!(machine.wait(0, 1)[0].status, 0, "{}", server.stderr());
    assert_eq!(machine.read(0, 4096), [5; 4096]);
    drop(front);
    server.stop();
    drop(opened);
    answering.stop();
}
