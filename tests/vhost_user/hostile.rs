//! Guests and front-ends that lie: an error for them, nothing for others.

use std::fs::File;
use std::os::fd::AsFd;
use std::path::PathBuf;
use std::time::Duration;

use black_box::Server;
use black_box::vhost_user::{
    AVAILABLE_AT, Ask, DESCRIPTORS_AT, FrontEnd, GUEST_BASE, Machine, USED_AT, USER_BASE, Ways, feature,
};

use super::Place;

/// A disk for the liar and one for another client, served by one loop.
pub(super) struct Two {
    pub(super) place: Place,
    pub(super) server: Server,
    honest: Machine,
    socket: PathBuf,
    front: Option<FrontEnd>,
    written: u8,
}

impl Two {
    pub(super) fn new() -> Self {
        Self::with("")
    }

    /// The liar's disk has these options.
    pub(super) fn with(options: &str) -> Self {
        let place = Place::new();
        let other = place.scratch.name("other.qcow2");
        black_box::peer::qemu_img(["create", "-q", "-f", "qcow2", &other, "8M"]).ok();
        let socket = place.scratch.file("o.sock");
        let named = format!("disk={}", place.socket.display());
        let server = Server::start([
            "--vhost-user-blk".to_owned(),
            named,
            "--vhost-user-blk".to_owned(),
            format!("other={}", socket.display()),
            "--threads".to_owned(),
            "1".to_owned(),
            format!("file={}{options}", place.disk),
            other,
        ]);
        let mut honest = Machine::new(Ways::default());
        let front = FrontEnd::start(&socket, &mut honest);
        Self { place, server, honest, socket, front: Some(front), written: 0 }
    }

    /// The other guest works on.
    pub(super) fn assert_unharmed(&mut self) {
        self.written += 1;
        let bytes = [self.written; 512];
        self.honest.ok(0, &Ask::Write(u64::from(self.written), &bytes));
        assert_eq!(self.honest.read(u64::from(self.written), 512), bytes);
    }

    /// The other guest's monitor connects again: all that it needs is there.
    pub(super) fn assert_another_can_begin(&mut self) {
        self.front = None;
        self.front = Some(FrontEnd::start(&self.socket, &mut self.honest));
        self.assert_unharmed();
    }

    pub(super) fn liar(&self, ways: Ways) -> (Machine, FrontEnd) {
        let mut machine = Machine::new(ways);
        let front = FrontEnd::start(&self.place.socket, &mut machine);
        (machine, front)
    }
}

/// What a guest writes into its ring, before a kick.
type Lie = (&'static str, fn(&mut Machine));

const BREAKING: [Lie; 13] = [
    ("an index far ahead", |machine| machine.put_u16(0, AVAILABLE_AT + 2, 5000)),
    ("a head that is none", |machine| machine.make_available(0, 60000)),
    ("a chain in circles", |machine| {
        machine.put_descriptor(0, 0, (GUEST_BASE, 16, 1, 1));
        machine.put_descriptor(0, 1, (GUEST_BASE, 16, 1, 0));
        machine.make_available(0, 0);
    }),
    ("a chain that leads nowhere", |machine| {
        machine.put_descriptor(0, 0, (GUEST_BASE, 16, 1, 999));
        machine.make_available(0, 0);
    }),
    ("a table in a table", |machine| {
        machine.put(0x20_0000, &table(&[(GUEST_BASE, 32, 4, 0)]));
        indirect(machine, 16);
    }),
    ("a table of odd length", |machine| indirect(machine, 17)),
    ("a table without an end", |machine| {
        machine.put(0x20_0000, &table(&[(GUEST_BASE, 16, 1, 1), (GUEST_BASE, 16, 1, 0)]));
        indirect(machine, 32);
    }),
    ("a table of gigabytes", |machine| indirect(machine, 0xffff_fff0)),
    ("a table outside memory", |machine| {
        machine.put_descriptor(0, 0, (1 << 60, 32, 4, 0));
        machine.make_available(0, 0);
    }),
    ("a table that goes on", |machine| {
        machine.put_descriptor(0, 0, (GUEST_BASE + 0x20_0000, 32, 4 | 1, 1));
        machine.make_available(0, 0);
    }),
    ("no byte for the status", |machine| {
        machine.put_descriptor(0, 0, (GUEST_BASE, 16, 0, 0));
        machine.make_available(0, 0);
    }),
    ("a status outside memory", |machine| {
        machine.put_descriptor(0, 0, (GUEST_BASE, 16, 1, 1));
        machine.put_descriptor(0, 1, (u64::MAX - 3, 1, 2, 0));
        machine.make_available(0, 0);
    }),
    ("what is read behind what is written", |machine| {
        machine.put_descriptor(0, 0, (GUEST_BASE, 16, 2 | 1, 1));
        machine.put_descriptor(0, 1, (GUEST_BASE, 16, 0, 0));
        machine.make_available(0, 0);
    }),
];

fn table(descriptors: &[(u64, u32, u16, u16)]) -> Vec<u8> {
    descriptors
        .iter()
        .flat_map(|(a, b, c, d)| {
            [&a.to_le_bytes()[..], &b.to_le_bytes(), &c.to_le_bytes(), &d.to_le_bytes()].concat()
        })
        .collect()
}

fn indirect(machine: &mut Machine, len: u32) {
    machine.put_descriptor(0, 0, (GUEST_BASE + 0x20_0000, len, 4, 0));
    machine.make_available(0, 0);
}

#[test]
fn a_ring_that_its_guest_broke_stops_and_no_other() {
    let mut two = Two::new();
    for (name, lie) in BREAKING {
        let (mut machine, mut front) = two.liar(Ways { queues: 2, ..Ways::default() });
        machine.ok(0, &Ask::Write(0, &[1; 512]));
        lie(&mut machine);
        machine.kick(0);
        assert!(machine.broken(0), "{name}: nothing is reported");
        assert!(machine.completed(0).is_empty(), "{name}: it is answered");
        // Its other queue works on, and the ring can be stopped.
        machine.ok(1, &Ask::Write(8, &[2; 512]));
        front.stop_ring(0);
        two.assert_unharmed();
    }
}

/// Requests that fail alone: the ring is sound, what it describes is not.
#[test]
fn a_request_on_memory_that_there_is_not_fails_alone() {
    let mut two = Two::new();
    let (mut machine, _front) = two.liar(Ways::default());
    let header = |kind: u32| [&kind.to_le_bytes()[..], &[0; 12], &[0xff]].concat();
    for (kind, flags, address, len) in [
        (0u32, 2u16, 0u64, 512u32),
        (0, 2, GUEST_BASE + machine.bytes() - 256, 512),
        (1, 0, u64::MAX - 100, 512),
        (1, 0, GUEST_BASE, 0xffff_fe00),
        (0, 2, GUEST_BASE, 1 << 30),
        (11, 0, 1 << 50, 16),
    ] {
        machine.put(0x20_0000, &header(kind));
        machine.put_descriptor(0, 0, (GUEST_BASE + 0x20_0000, 16, 1, 1));
        machine.put_descriptor(0, 1, (address, len, flags | 1, 2));
        machine.put_descriptor(0, 2, (GUEST_BASE + 0x1_0010, 1, 2, 0));
        machine.make_available(0, 0);
        machine.kick(0);
        let done = machine.wait(0, 1);
        assert_eq!(done[0].status, 1, "{kind} {address:#x} {len:#x}");
    }
    machine.ok(0, &Ask::Write(0, &[1; 512]));
    two.assert_unharmed();
}

/// A front-end cuts the file of its guest's memory: SIGBUS ended other programs here.
#[test]
fn memory_that_is_cut_harms_nobody_else() {
    let mut two = Two::new();
    let file = File::options().read(true).write(true).create_new(true).open(two.place.scratch.file("ram"));
    let file = file.expect("a file");
    file.set_len(8 << 20).expect("its length");
    let mut machine = Machine::in_file(file, Ways { inflight: false, ..Ways::default() });
    let mut front = FrontEnd::start(&two.place.socket, &mut machine);
    machine.ok(0, &Ask::Write(0, &[1; 512]));
    machine.submit(0, 0, &Ask::Read(0, 4096));
    machine.memory.set_len(0).expect("cut");
    machine.kick(0);
    two.assert_unharmed();
    front.stop_ring(0);
    drop(front);
    two.assert_unharmed();
    // The disk has other guests.
    let (mut machine, _front) = two.liar(Ways::default());
    assert_eq!(machine.read(0, 512), [1; 512]);
}

#[test]
fn front_ends_that_send_nonsense_are_hung_up_on_or_reported() {
    let mut two = Two::new();
    let socket = two.place.socket.clone();
    let hung_up: [(u32, u32, Vec<u8>); 9] = [
        (1, 3, vec![]),
        (1, 5, vec![]),
        (2, 1, vec![0; 4]),
        (2, 1, (1u64 << 60).to_ne_bytes().to_vec()),
        (5, 1, vec![0xff; 8]),
        (8, 1, vec![0xff; 8]),
        (12, 1, vec![0; 8]),
        (24, 1, vec![0xff; 12]),
        (99, 1, vec![]),
    ];
    for (request, flags, payload) in hung_up {
        let mut front = FrontEnd::connect(&socket);
        front.send_flags(request, flags, &payload, &[]).expect("it listens");
        assert!(front.is_hung_up(), "message {request}");
    }
    let mut front = FrontEnd::connect(&socket);
    let _ = front.send_flags(1, 1, &vec![0; 8192], &[]);
    assert!(front.is_hung_up());
    // Those that ask for an acknowledgement hear that it failed, and go on.
    let (machine, mut front) = two.liar(Ways::default());
    let region = |guest: u64, len: u64, offset: u64| {
        [&[0; 8][..], &[guest, len, USER_BASE, offset].map(u64::to_ne_bytes).concat()].concat()
    };
    let memory = machine.memory.as_fd();
    let zero = File::open("/dev/zero").expect("a device");
    for (request, payload, fds) in [
        (37, region(0, 4096, 1 << 40), vec![memory]),
        (37, region(0, u64::MAX, 0), vec![memory]),
        (37, region(u64::MAX - 4096, 8192, 0), vec![memory]),
        (37, region(GUEST_BASE, 4096, 0), vec![memory]),
        (37, region(0, 4096, 0), vec![]),
        (37, region(0, 4096, 0), vec![memory, memory]),
        (37, region(0, 4096, 0), vec![zero.as_fd()]),
        (38, region(0, 4096, 0), vec![]),
        (32, vec![0xff; 24], vec![memory]),
        (2, feature::VERSION_1.to_ne_bytes().to_vec(), vec![]),
        (8, [0u32, 8].map(u32::to_ne_bytes).concat(), vec![]),
        (12, 0x100u64.to_ne_bytes().to_vec(), vec![]),
        (25, [[0u32, 1, 0].map(u32::to_ne_bytes).concat(), vec![1]].concat(), vec![]),
        (99, vec![], vec![]),
    ] {
        assert_eq!(front.acknowledged(request, &payload, &fds), 1, "message {request} {payload:?}");
    }
    two.assert_unharmed();
}

/// Rings that cannot be: no entries, outside memory, not aligned. The connection goes on.
#[test]
fn a_ring_that_cannot_be_is_reported_at_its_start() {
    let mut two = Two::new();
    for (entries, shift) in [(0u32, 0u64), (3, 0), (1 << 20, 0), (256, 1), (256, 1 << 40), (32768, 0x20_0000)]
    {
        let mut machine = Machine::new(Ways::default());
        let mut front = FrontEnd::connect(&two.place.socket);
        front.prepare(&mut machine);
        let pair = |value: u32| [0, value].map(u32::to_ne_bytes).concat();
        front.acknowledged(8, &pair(entries), &[]);
        let places =
            [DESCRIPTORS_AT, USED_AT, AVAILABLE_AT, 0].map(|at| (USER_BASE + at + shift).to_ne_bytes());
        front.acknowledged(9, &[pair(0), places.concat()].concat(), &[]);
        machine.give_bells(&mut front, 0);
        assert!(machine.broken(0), "{entries} {shift:#x}");
        two.assert_unharmed();
    }
}

/// One front-end at a time: the second waits for the first, and is refused if it stays.
#[test]
fn a_second_front_end_waits_for_the_end_of_the_first() {
    let two = Two::new();
    let (mut machine, first) = two.liar(Ways::default());
    machine.ok(0, &Ask::Write(0, &[9; 512]));
    let mut second = FrontEnd::connect(&two.place.socket);
    second.send(1, &[], &[]);
    std::thread::sleep(Duration::from_millis(50));
    drop(first);
    assert!(second.answer().is_some(), "it is not served when the first has gone");
}
