//! Packed rings: a driver of others, notifications, rings that stop and go on, and guests that break them. What a guest asks and what a crash
//! leaves is in `talk` and `crashes`, beside split rings.

use std::path::Path;
use std::time::Duration;

use black_box::peer::{assert_clean, converted};
use black_box::ready::eventually;
use black_box::vhost_user::{Ask, DESCRIPTORS_AT, FrontEnd, GUEST_BASE, Machine, PATIENCE, Ways};
use black_box::virtio_driver::{self, DATA_BYTES, Guest, Load};

use super::{Place, pattern};

const PACKED: Ways = Ways {
    queues: 1,
    inflight: true,
    indirect: true,
    event_index: true,
    flush: true,
    slots: true,
    packed: true,
};

/// The crate virtio-driver, with rings of both forms, with and without notifications by index: what it wrote is there.
#[test]
fn a_driver_of_others_reads_what_it_wrote() {
    for (packed, event_index) in [(true, true), (true, false), (false, true), (false, false)] {
        let place = Place::new();
        let server = place.serve("", &["--threads", "2"]);
        let ways = virtio_driver::Ways { queues: 2, packed, event_index };
        let mut guest = Guest::connect(&place.socket, ways).expect("a guest");
        assert_eq!(guest.is_packed(), packed);
        let count = 64;
        for slot in 0..count {
            guest.data(slot).copy_from_slice(&pattern(slot as u64, DATA_BYTES));
        }
        let at = |slot: usize| (slot * 3 * DATA_BYTES) as u64;
        let writes: Vec<_> = (0..count).map(|slot| virtio_driver::Ask::Write(at(slot))).collect();
        assert_eq!(guest.ask(&writes).expect("answers"), vec![0; count]);
        (0..count).for_each(|slot| guest.data(slot).fill(0));
        let reads: Vec<_> = (0..count).map(|slot| virtio_driver::Ask::Read(at(slot))).collect();
        assert_eq!(guest.ask(&reads).expect("answers"), vec![0; count]);
        for slot in 0..count {
            assert!(guest.data(slot) == pattern(slot as u64, DATA_BYTES), "packed: {packed}, slot {slot}");
        }
        // Many times round the rings, behind what is looked at below.
        let load = Load {
            write: false,
            depth: 64,
            sequential: false,
            disk_bytes: 64 << 20,
            time: Duration::from_millis(150),
            seed: 1,
        };
        assert!(guest.run(load).expect("answers").requests > 256);
        assert_eq!(guest.ask(&[virtio_driver::Ask::Flush]).expect("an answer"), [0]);
        drop(guest);
        server.stop();
        assert_clean(Path::new(&place.disk));
        let raw = converted(&place.disk, "qcow2", &[], &place.scratch.file("raw"));
        for slot in 0..count {
            let from = slot * 3 * DATA_BYTES;
            assert!(raw[from..from + DATA_BYTES] == pattern(slot as u64, DATA_BYTES), "slot {slot}");
        }
    }
}

#[test]
fn a_ring_goes_on_where_it_was_stopped() {
    let place = Place::new();
    let server = place.serve("", &[]);
    for inflight in [true, false] {
        let mut machine = Machine::new(Ways { inflight, indirect: false, ..PACKED });
        let mut front = FrontEnd::start(&place.socket, &mut machine);
        // Requests of two, three and four entries: the ring's end is met at several places, also once exactly.
        for round in 0..200u64 {
            machine.ok(0, &Ask::Write(round % 7 * 8, &pattern(round, 512)));
            if round % 23 == 0 {
                let base = front.stop_ring_at(0);
                assert_eq!(base, machine.packed_base(0), "round {round}");
                machine.submit(0, 0, &Ask::Read(round % 7 * 8, 512));
                machine.kick(0);
                front.start_ring_at(&machine, 0, base);
                assert_eq!(machine.wait(0, 1)[0].status, 0);
                assert!(machine.data(0, 0, 512) == pattern(round, 512), "round {round}");
                machine.ok(0, &Ask::Flush);
            }
        }
    }
    server.stop();
}

#[test]
fn a_driver_is_woken_as_it_wishes() {
    let place = Place::new();
    let server = place.serve("", &[]);
    let mut machine = Machine::new(PACKED);
    let _front = FrontEnd::start(&place.socket, &mut machine);
    machine.ok(0, &Ask::Write(0, &[1; 512]));
    while machine.called(0, Duration::ZERO) {}
    // Never: the answer comes, the call does not.
    machine.suppress_packed(0, true);
    machine.submit(0, 0, &Ask::Read(0, 512));
    machine.kick(0);
    assert!(!machine.called(0, Duration::from_millis(300)), "a driver that wants no calls is called");
    // To take answers is to wish for the next call.
    eventually("an answer", || machine.completed(0).len() == 1);
    // Always.
    machine.suppress_packed(0, false);
    machine.submit(0, 0, &Ask::Read(0, 512));
    machine.kick(0);
    assert!(machine.called(0, PATIENCE));
    assert_eq!(machine.completed(0).len(), 1);
    // The device asks for the entry that comes next: three were used, in the first pass.
    eventually("the wish for entry 3", || machine.wish_of_device(0) == (3 | 1 << 15, 2));
    server.stop();
}

/// What a guest writes into its ring, before a kick: entries of address, bytes, number, flags.
type Lie = (&'static str, &'static [(u64, u32, u16, u16)]);

const AVAILABLE: u16 = 1 << 7;

const BREAKING: [Lie; 7] = [
    ("no byte for the status", &[(GUEST_BASE, 16, 0, AVAILABLE)]),
    ("a status outside memory", &[(GUEST_BASE, 16, 0, AVAILABLE | 1), (u64::MAX - 3, 1, 0, AVAILABLE | 2)]),
    (
        "what is read behind what is written",
        &[(GUEST_BASE, 16, 0, AVAILABLE | 3), (GUEST_BASE, 16, 0, AVAILABLE)],
    ),
    ("a table outside memory", &[(1 << 60, 32, 0, AVAILABLE | 4)]),
    ("a table of gigabytes", &[(GUEST_BASE, 0xffff_fff0, 0, AVAILABLE | 4)]),
    ("a table of odd length", &[(GUEST_BASE, 17, 0, AVAILABLE | 4)]),
    ("a table that goes on", &[(GUEST_BASE, 16, 0, AVAILABLE | 5), (GUEST_BASE, 1, 0, AVAILABLE | 2)]),
];

#[test]
fn a_packed_ring_that_its_guest_broke_stops_and_no_other() {
    let place = Place::new();
    let server = place.serve("", &["--threads", "1"]);
    let circle = vec![(GUEST_BASE, 16, 0, AVAILABLE | 1); 256];
    let lies =
        BREAKING.iter().map(|(name, lie)| (*name, lie.to_vec())).chain([("a chain in circles", circle)]);
    for (name, lie) in lies {
        let mut machine = Machine::new(Ways { queues: 2, ..PACKED });
        let mut front = FrontEnd::start(&place.socket, &mut machine);
        for (nth, (address, len, number, flags)) in (0..).zip(&lie) {
            let bytes =
                [&address.to_le_bytes()[..], &len.to_le_bytes(), &number.to_le_bytes(), &flags.to_le_bytes()];
            machine.put(DESCRIPTORS_AT + 16 * nth, &bytes.concat());
        }
        machine.kick(0);
        assert!(machine.broken(0), "{name}: nothing is reported");
        assert!(machine.completed(0).is_empty(), "{name}: it is answered");
        machine.ok(1, &Ask::Write(8, &[2; 512]));
        front.stop_ring_at(0);
    }
    server.stop();
}
