//! libblkio, by which QEMU's `-blockdev driver=virtio-blk-vhost-user` reaches a server: properties, memory and requests in the order in which
//! QEMU asks for them.

use std::path::Path;

use black_box::bytes::are_all;
use black_box::libblkio::{Blkio, ReqFlags, Shared, answers};
use black_box::peer::{assert_clean, converted};

use super::{Place, pattern};

const MIB: usize = 1 << 20;

/// A disk that is to be written or not, before it is connected.
fn named(socket: &Path, read_only: bool) -> Blkio {
    let mut disk = Blkio::new("virtio-blk-vhost-user").expect("the driver");
    disk.set_str("path", &socket.display().to_string()).expect("a path");
    disk.set_bool("read-only", read_only).expect("an option");
    disk
}

#[test]
fn libblkio_does_what_qemu_has_it_do() {
    let place = Place::new();
    let server = place.serve(",discard=unmap", &["--threads", "2"]);
    let mut disk = named(&place.socket, false);
    disk.connect().expect("a connection");
    assert!(disk.get_bool("needs-mem-regions").expect("a property"));
    let size = disk.get_u64("capacity").expect("a property");
    let number =
        |disk: &Blkio, name: &str| disk.get_i32(name).unwrap_or_else(|error| panic!("{name}: {error}"));
    assert_eq!(size, 64 << 20);
    assert_eq!(number(&disk, "request-alignment"), 512);
    assert!(number(&disk, "max-segments") > 1 && number(&disk, "max-queues") > 1);
    assert!(number(&disk, "max-transfer") == 0 || number(&disk, "max-transfer") >= 65536);
    for name in ["max-discard-len", "max-write-zeroes-len"] {
        assert!(disk.get_u64(name).expect("a property") >= MIB as u64, "{name}");
    }
    assert!(
        disk.get_bool("flush-needed").expect("a property"),
        "a write cache that is not reported loses writes"
    );
    disk.set_i32("num-queues", 2).expect("two queues");
    let mut queues = disk.start().expect("queues").queues;
    let memory = Shared::new(&mut disk, 4 * MIB);
    let data = pattern(7, MIB);
    let from = memory.put(0, &data);
    let none = ReqFlags::empty();
    queues[0].write(MIB as u64, from, MIB, 0, none);
    queues[0].write(size - 512, from, 512, 1, none);
    assert_eq!(answers(&mut queues[0], 2), [0, 0]);
    queues[1].flush(0, none);
    assert_eq!(answers(&mut queues[1], 1), [0]);
    // By the other queue, into other memory.
    let into = memory.put(2 * MIB, &vec![0xff; MIB]);
    queues[1].read(MIB as u64, into, MIB, 0, none);
    assert_eq!(answers(&mut queues[1], 1), [0]);
    assert!(memory.bytes(2 * MIB, MIB) == data, "what is read is not what was written");
    queues[0].discard(MIB as u64, 128 << 10, 0, none);
    queues[0].write_zeroes(MIB as u64 + (128 << 10), 64 << 10, 1, none);
    queues[0].write_zeroes(MIB as u64 + (256 << 10), 64 << 10, 2, ReqFlags::NO_UNMAP);
    assert_eq!(answers(&mut queues[0], 3), [0, 0, 0]);
    // Beyond the end, and in part of a sector.
    queues[0].write(size, from, 512, 0, none);
    queues[0].read(1, into, 512, 1, none);
    assert!(answers(&mut queues[0], 2).iter().all(|result| *result < 0));
    drop((queues, disk));
    server.stop();
    assert_clean(Path::new(&place.disk));
    let mut expected = data.clone();
    expected[..192 << 10].fill(0);
    expected[256 << 10..320 << 10].fill(0);
    let raw = converted(&place.disk, "qcow2", &[], &place.scratch.file("raw"));
    assert!(raw[MIB..2 * MIB] == expected, "the image has something else");
    assert!(raw[raw.len() - 512..] == data[..512] && are_all(&raw[..MIB], 0));
}

/// What QEMU does when the disk is not to be written.
#[test]
fn libblkio_is_reported_that_a_disk_is_read_only() {
    let place = Place::new();
    let server = place.serve(",read-only=on", &[]);
    let mut disk = named(&place.socket, false);
    disk.connect().expect("a connection");
    let refused = disk.start().map(drop).expect_err("it is to be written").to_string();
    assert!(refused.contains("read-only"), "{refused}");
    drop(disk);
    let mut disk = named(&place.socket, true);
    disk.connect().expect("a connection");
    let mut queues = disk.start().expect("queues").queues;
    let memory = Shared::new(&mut disk, 4 * MIB);
    let into = memory.put(0, &[9; 4096]);
    queues[0].read(0, into, 4096, 0, ReqFlags::empty());
    assert_eq!(answers(&mut queues[0], 1), [0]);
    assert_eq!(memory.bytes(0, 4096), [0; 4096]);
    drop((queues, disk));
    server.stop();
}
