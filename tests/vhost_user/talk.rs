//! What a guest asks is done, whatever its rings look like.

use std::path::Path;
use std::time::Duration;

use black_box::peer::{assert_clean, converted, qemu_io_ok};
use black_box::vhost_user::{Ask, FrontEnd, Machine, SLOTS, Ways};

use super::{Place, pattern};

/// Chains in the ring and in tables, notified by index and by flag, memory in a table and in slots, one queue and several: each pair.
#[test]
fn a_guest_reads_what_it_wrote_however_it_describes_it() {
    let ways = [
        (Ways { queues: 1, ..Ways::default() }, ""),
        (Ways { queues: 4, indirect: false, ..Ways::default() }, ",cache=none"),
        (Ways { queues: 3, event_index: false, slots: false, ..Ways::default() }, ",cache=writethrough"),
        (
            Ways { queues: 2, inflight: false, indirect: false, event_index: false, ..Ways::default() },
            ",aio=threads",
        ),
        (Ways { queues: 2, inflight: false, flush: false, ..Ways::default() }, ",cache=none"),
        (Ways { queues: 3, packed: true, ..Ways::default() }, ""),
        (
            Ways { queues: 1, packed: true, indirect: false, event_index: false, ..Ways::default() },
            ",cache=none",
        ),
        (
            Ways { queues: 2, packed: true, indirect: false, inflight: false, ..Ways::default() },
            ",aio=threads",
        ),
    ];
    for (ways, options) in ways {
        let place = Place::new();
        let server = place.serve(options, &["--threads", "3"]);
        let mut machine = Machine::new(ways);
        let mut front = FrontEnd::start(&place.socket, &mut machine);
        assert_eq!(front.size(), 64 << 20);
        for round in 0..8u64 {
            let bytes =
                |queue: u16, slot: u16| pattern(round << 32 | u64::from(queue) << 16 | u64::from(slot), 8192);
            let sector = |queue: u16, slot: u16| (round * 256 + u64::from(queue) * 64 + u64::from(slot)) * 32;
            for queue in 0..ways.queues {
                for slot in 0..SLOTS {
                    machine.submit(queue, slot, &Ask::Write(sector(queue, slot), &bytes(queue, slot)));
                }
                machine.kick(queue);
            }
            for queue in 0..ways.queues {
                let done = machine.wait(queue, usize::from(SLOTS));
                assert!(done.iter().all(|done| done.status == 0 && done.written == 1), "{done:?}");
                (0..SLOTS)
                    .for_each(|slot| machine.submit(queue, slot, &Ask::Read(sector(queue, slot), 8192)));
                machine.kick(queue);
                let done = machine.wait(queue, usize::from(SLOTS));
                assert!(done.iter().all(|done| done.status == 0 && done.written == 8193), "{done:?}");
                for slot in 0..SLOTS {
                    assert!(machine.data(queue, slot, 8192) == bytes(queue, slot), "{ways:?} {queue} {slot}");
                }
            }
        }
        machine.ok(0, &Ask::Flush);
        for queue in 0..ways.queues {
            let flushes = u32::from(queue == 0);
            let expected = match ways.packed {
                true => machine.packed_base(queue),
                false => 16 * u32::from(SLOTS) + flushes,
            };
            assert_eq!(front.stop_ring_at(queue), expected, "{ways:?}");
        }
        drop(front);
        server.stop();
        assert_clean(Path::new(&place.disk));
        let raw = converted(&place.disk, "qcow2", &[], &place.scratch.file("raw"));
        let at = |queue: usize, slot: usize| (3 * 256 + queue * 64 + slot) * 32 * 512;
        let expected = pattern(3 << 32 | 5, 8192);
        assert!(raw[at(0, 5)..at(0, 5) + 8192] == expected, "QEMU reads something else");
    }
}

#[test]
fn ranges_are_discarded_and_zeroed_and_the_disk_says_its_name() {
    let place = Place::new();
    let server = place.serve(",discard=unmap", &[]);
    let mut machine = Machine::new(Ways::default());
    let mut front = FrontEnd::start(&place.socket, &mut machine);
    assert_eq!(front.config(44, 4), 128u32.to_le_bytes(), "sectors of a cluster");
    let ones = vec![0x11; 32 << 10];
    for piece in 0..64 {
        machine.ok(0, &Ask::Write(piece * 64, &ones));
    }
    machine.ok(0, &Ask::Ranges(13, &[(0, 128, 0), (256, 128, 1)]));
    machine.ok(0, &Ask::Ranges(11, &[(1024, 1024, 0)]));
    for (sector, byte) in
        [(0, 0), (127, 0), (128, 0x11), (255, 0x11), (256, 0), (383, 0), (384, 0x11), (1023, 0x11), (1024, 0)]
    {
        assert!(machine.read(sector, 512) == vec![byte; 512], "sector {sector}");
    }
    assert_eq!(machine.ok(0, &Ask::Id).written, 21);
    assert_eq!(&machine.data(0, 0, 20), b"disk\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0");
    // What is not on the disk, not offered, or no such thing.
    let end = (64 << 20) / 512;
    let refused: [(Ask<'_>, u8); 9] = [
        (Ask::Read(end, 512), 1),
        (Ask::Read(end - 1, 1024), 1),
        (Ask::Write(u64::MAX / 512, &ones[..512]), 1),
        (Ask::Write(u64::MAX, &ones[..512]), 1),
        (Ask::Raw(1, 0, &ones[..100]), 1),
        (Ask::Ranges(11, &[(0, 8, 1)]), 2),
        (Ask::Ranges(13, &[(end - 1, 2, 0)]), 1),
        (Ask::Raw(11, 0, &[0; 17]), 1),
        (Ask::Raw(77, 0, &[]), 2),
    ];
    for (ask, status) in refused {
        assert_eq!(machine.ask(0, &ask).status, status, "{ask:?}");
    }
    machine.ok(0, &Ask::Flush);
    assert_eq!(front.stop_ring(0), 64 + 2 + 9 + 1 + 9 + 1);
    server.stop();
    qemu_io_ok(
        &["-f", "qcow2"],
        &place.disk,
        &["read -P 0x11 64k 64k", "read -P 0 128k 64k", "read -P 0 512k 512k"],
    );
}

/// A read-only disk says so, and takes no changes from a driver that does not listen.
#[test]
fn a_read_only_disk_takes_no_changes() {
    let place = Place::new();
    let server = place.serve(",read-only=on", &[]);
    let mut machine = Machine::new(Ways::default());
    let front = FrontEnd::start(&place.socket, &mut machine);
    assert_ne!(front.offered & black_box::vhost_user::feature::RO, 0);
    assert_eq!(front.offered & (1 << 13 | 1 << 14), 0, "discards and zeroes are offered");
    for ask in [Ask::Write(0, &[1; 512]), Ask::Ranges(11, &[(0, 8, 0)]), Ask::Ranges(13, &[(0, 8, 0)])] {
        assert_eq!(machine.ask(0, &ask).status, 1);
    }
    assert_eq!(machine.read(0, 512), vec![0; 512]);
    machine.ok(0, &Ask::Flush);
    server.stop();
}

/// A driver made 32 small requests available before one kick.
#[test]
fn contiguous_requests_of_one_kick_go_to_the_disk_as_one_and_are_counted() {
    for (more, merges) in [(&[][..], true), (&["--request-merging", "off"][..], false)] {
        let place = Place::new();
        let qmp = place.scratch.name("q");
        let mut arguments = vec!["--qmp", &qmp, "--threads", "1"];
        arguments.extend(more);
        let server = place.serve("", &arguments);
        let mut machine = Machine::new(Ways::default());
        let _front = FrontEnd::start(&place.socket, &mut machine);
        for round in 0..4u64 {
            let data = pattern(round, 4096 * 32);
            for slot in 0..32u16 {
                // Not in their order.
                let piece = u64::from(slot ^ 5);
                let at = piece as usize * 4096;
                machine.submit(0, slot, &Ask::Write((round * 32 + piece) * 8, &data[at..at + 4096]));
            }
            machine.kick(0);
            assert!(machine.wait(0, 32).iter().all(|done| done.status == 0));
            (0..32u16).for_each(|slot| {
                machine.submit(0, slot, &Ask::Read((round * 32 + u64::from(slot)) * 8, 4096))
            });
            machine.kick(0);
            assert!(machine.wait(0, 32).iter().all(|done| done.status == 0 && done.written == 4097));
            let back: Vec<u8> = (0..32).flat_map(|slot| machine.data(0, slot, 4096)).collect();
            assert!(back == data, "merged requests mix their bytes up");
        }
        let stats =
            black_box::qmp::Qmp::connect(Path::new(&qmp)).ok("query-blockstats", serde_json::json!({}));
        let merged = |name: &str| stats[0]["stats"][name].as_u64().expect("a number");
        assert_eq!(merged("wr_merged") > 60, merges, "{stats}");
        assert_eq!(merged("rd_merged") > 60, merges, "{stats}");
        assert_eq!(merged("wr_merged") + merged("wr_operations"), 128, "{stats}");
        server.stop();
    }
}

/// A driver asks for no calls: it polls. Then none come.
#[test]
fn a_driver_that_polls_is_not_called() {
    let place = Place::new();
    let server = place.serve("", &[]);
    let mut machine = Machine::new(Ways { event_index: false, ..Ways::default() });
    let _front = FrontEnd::start(&place.socket, &mut machine);
    machine.put_u16(0, black_box::vhost_user::AVAILABLE_AT, 1);
    machine.submit(0, 0, &Ask::Write(0, &[7; 512]));
    machine.kick(0);
    while machine.completed(0).is_empty() {
        std::thread::sleep(Duration::from_millis(1));
    }
    assert!(!machine.called(0, Duration::from_millis(50)));
    server.stop();
}
