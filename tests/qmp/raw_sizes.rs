//! block_resize of raw disks while clients use them.

use std::sync::atomic::{AtomicBool, Ordering};

use black_box::Scratch;
use black_box::at_end::SetAtEnd;
use black_box::peer::dirty_by_qemu;
use black_box::qmp::Qmp;
use black_box::server::Start;
use serde_json::json;

/// It was refused: the size of a raw disk was that of its file, which could not be changed while it was open.
#[test]
fn a_raw_disk_gets_another_size_while_clients_use_it() {
    let scratch = Scratch::new();
    scratch.write("r.raw", &[1; 4 << 20]);
    let (path, control, bitmaps) = (scratch.name("r.raw"), scratch.file("qmp"), scratch.name("b"));
    let start = Start::new(["--qmp"]).arg(&control);
    let start = start.arg(format!("file={path},format=raw,id=r,bitmaps={bitmaps}"));
    let server = start.listen().unwrap_or_else(|error| panic!("{}", error.0));
    let mut qmp = Qmp::connect(&control);
    let length = || std::fs::metadata(&path).expect("the file").len();
    let size = |size: u64| json!({ "device": "r", "size": size, "x-shrink": true });
    qmp.ok("block-dirty-bitmap-add", json!({ "node": "r", "name": "b", "persistent": true }));
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let (server, stop, end) = (&server, &stop, SetAtEnd(&stop));
        // Writes where the disk always is are answered, whatever becomes of its end; others are written or refused.
        let inside = scope.spawn(move || {
            let mut client = server.client("r");
            let mut written = 0_u64;
            while !stop.load(Ordering::Relaxed) {
                client.write(written % 255 * 4096, &[2; 4096]).expect("a write inside");
                written += 1;
            }
            written
        });
        let beyond = scope.spawn(move || {
            let mut client = server.client("r");
            let mut refused = 0_u64;
            while !stop.load(Ordering::Relaxed) {
                refused += u64::from(client.write(3 << 20, &[3; 1 << 20]).is_err());
            }
            refused
        });
        for round in 0..40_u64 {
            let bytes = ((round % 4 + 1) << 20) + if round % 3 == 0 { 100 } else { 0 };
            qmp.ok("block_resize", size(bytes));
            assert_eq!(length(), bytes, "round {round}");
            assert_eq!(server.client("r").size(), bytes.next_multiple_of(512));
        }
        drop(end);
        assert!(inside.join().expect("it ends") > 0);
        assert!(beyond.join().expect("it ends") > 0, "the disk never was too small");
    });
    let refused = qmp.refused("block_resize", json!({ "device": "r", "size": 512 }));
    assert!(refused.contains("shrinking must be asked for"), "{refused}");
    qmp.ok("block-dirty-bitmap-clear", json!({ "node": "r", "name": "b" }));
    qmp.ok("block_resize", size(1 << 20));
    qmp.ok("block_resize", size(2 << 20));
    let mut client = server.client("r");
    assert_eq!(client.read(1 << 20, 1 << 20).expect("a read"), [0; 1 << 20], "what was cut off is gone");
    drop(client);
    server.stop();
    assert_eq!(dirty_by_qemu(&bitmaps, "b"), [(1 << 20, 1 << 20)], "what was added has changed");
}
