//! A manager hears that an image contradicts itself: it pauses the machine, and the image is repaired before it is written again.

use std::os::unix::fs::FileExt;

use black_box::peer::{qemu_img, qemu_io_ok};
use black_box::{Client, Scratch};
use serde_json::json;

use super::{begin_with_nothing, qcow2};

/// A table entry: the refcount is 1.
const COPIED: u64 = 1 << 63;

/// Bits of an L1 entry with the offset of its L2 table.
const OFFSET: u64 = 0x00ff_ffff_ffff_fe00;

/// Makes the first cluster of the disk lie where the image's L1 table is; gives that place.
fn point_at_l1_table(path: &str) -> u64 {
    let file = std::fs::File::options().read(true).write(true).open(path).expect("an image");
    let number = |at: u64| {
        let mut bytes = [0; 8];
        file.read_exact_at(&mut bytes, at).expect("an image");
        u64::from_be_bytes(bytes)
    };
    // Header, byte 40: the offset of the L1 table.
    let l1_table = number(40);
    let l2_table = number(l1_table) & OFFSET;
    file.write_all_at(&(l1_table | COPIED).to_be_bytes(), l2_table).expect("an image");
    l1_table
}

#[test]
fn corruption_is_reported_once_and_says_whether_the_image_can_be_written() {
    for is_writable in [true, false] {
        let scratch = Scratch::new();
        let path = scratch.name("a.qcow2");
        qemu_img(["create", "-q", "-f", "qcow2", &path, "8M"]).ok();
        qemu_io_ok(&["-f", "qcow2"], &path, &["write 0 128k"]);
        let l1_table = point_at_l1_table(&path);
        let (server, mut qmp) = begin_with_nothing(&scratch);
        let mut options = qcow2("a", &path);
        options["read-only"] = json!(!is_writable);
        qmp.ok("blockdev-add", options);
        let nbd = scratch.name("n");
        qmp.ok("nbd-server-start", json!({ "addr": { "type": "unix", "data": { "path": nbd } } }));
        qmp.ok(
            "block-export-add",
            json!({ "type": "nbd", "id": "e", "node-name": "a", "writable": is_writable }),
        );
        let mut client = Client::connect(nbd.as_ref(), "a").expect("it serves");
        assert!(client.read(0, 512).is_err(), "metadata is never data");
        assert!(client.read(0, 512).is_err());
        let event = qmp.event("BLOCK_IMAGE_CORRUPTED")["data"].clone();
        assert_eq!((&event["node-name"], &event["fatal"]), (&json!("a"), &json!(is_writable)), "{event}");
        // The place of the L1 table, which a cluster of the disk has too.
        assert_eq!(event["offset"], l1_table, "{event}");
        assert!(event["size"].as_u64().is_some_and(|bytes| (1..=65536).contains(&bytes)), "{event}");
        assert!(event["msg"].as_str().is_some_and(|text| text.contains("a.qcow2")), "{event}");
        drop(client);
        qmp.ok("nbd-server-stop", json!({}));
        // Looked at once more before the disk is closed: nothing is new.
        let answer = qmp.ask("blockdev-del", json!({ "node-name": "a" }));
        assert!(answer.is_ok(), "{answer:?}");
        server.stop();
    }
}
