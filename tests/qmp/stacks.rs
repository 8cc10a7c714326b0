//! Any driver over any node: what is written through random stacks of drivers is what QEMU finds in the file.

use black_box::Client;
use black_box::peer::{assert_clean, qemu_img, qemu_io_ok};
use serde_json::{Value, json};

use super::{Steered, create};

/// Numbers that depend on nothing but where they begin.
struct Numbers(u64);

impl Numbers {
    fn below(&mut self, end: usize) -> usize {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) as usize % end
    }
}

/// `child` below another driver, which keeps its bytes.
fn over(child: Value, which: usize) -> Value {
    match which {
        0 => json!({ "driver": "raw", "file": child }),
        1 => json!({ "driver": "throttle", "throttle-group": "g", "file": child }),
        2 => json!({ "driver": "copy-on-read", "file": child }),
        3 => json!({ "driver": "quorum", "vote-threshold": 1, "children": [child] }),
        4 => json!({ "driver": "preallocate", "file": child }),
        _ => json!({ "driver": "blkdebug", "image": child }),
    }
}

#[test]
fn what_is_written_through_any_stack_is_in_the_file() {
    let steered = Steered::new();
    let mut qmp = steered.talk();
    qmp.ok("object-add", json!({ "qom-type": "throttle-group", "id": "g" }));
    let socket = steered.server.socket();
    for seed in 0..24 {
        let mut numbers = Numbers(seed);
        let name = format!("stack{seed}.qcow2");
        let path = create(&steered.scratch, &name, "8M");
        let by_name = seed % 2 == 0;
        let mut added = Vec::new();
        let mut stack = json!({ "driver": "file", "filename": path });
        let mut drivers = vec!["file".to_owned()];
        for level in 0..=numbers.below(5) {
            if by_name {
                let name = format!("level{level}");
                stack["node-name"] = json!(name);
                qmp.ok("blockdev-add", stack);
                stack = json!(name);
                added.push(name);
            }
            stack = over(stack, numbers.below(6));
            drivers.push(stack["driver"].to_string());
        }
        qmp.ok("blockdev-add", json!({ "driver": "qcow2", "node-name": "top", "file": stack }));
        added.push("top".to_owned());
        qmp.ok("block-export-add", json!({ "type": "nbd", "id": "x", "node-name": "top", "writable": true }));
        let mut client =
            Client::connect(socket, "top").unwrap_or_else(|error| panic!("{drivers:?}: {error:?}"));
        for place in 0..8_u64 {
            let at = (place << 20) + numbers.below(200) as u64 * 512;
            client
                .write(at, &[place as u8 + 1; 70_000])
                .unwrap_or_else(|error| panic!("{drivers:?}: {error:?}"));
            assert!(client.read(at, 70_000).expect("a read").iter().all(|byte| *byte == place as u8 + 1));
            qmp.ok("query-named-block-nodes", json!({}));
        }
        client.flush().expect("a flush");
        let bytes = client.read_all().expect("a read");
        drop(client);
        qmp.ok("block-export-del", json!({ "id": "x", "mode": "hard" }));
        qmp.event("BLOCK_EXPORT_DELETED");
        for name in added.iter().rev() {
            qmp.ok("blockdev-del", json!({ "node-name": name }));
        }
        assert_clean(path.as_ref());
        let raw = steered.scratch.name("raw");
        qemu_img(["convert", "-f", "qcow2", "-O", "raw", &path, &raw]).ok();
        assert!(std::fs::read(&raw).expect("a copy") == bytes, "{drivers:?}");
        qemu_io_ok(&["-f", "qcow2"], &path, &["write 0 4k"]);
    }
    let left = qmp.ok("query-named-block-nodes", json!({}));
    assert!(!left.to_string().contains("#block"), "{left}");
    steered.server.stop();
}

/// A bare file is exported, copied to and backed up; it stays a file where an image is over it.
#[test]
fn a_bare_file_is_a_disk_where_a_command_names_one() {
    let steered = Steered::new();
    let mut qmp = steered.talk();
    let (source, target) = (steered.scratch.name("source.raw"), steered.scratch.name("target.raw"));
    std::fs::write(&source, vec![7; 1 << 20]).expect("a file");
    std::fs::write(&target, vec![0; 1 << 20]).expect("a file");
    for (name, path) in [("s", &source), ("t", &target)] {
        qmp.ok("blockdev-add", json!({ "driver": "file", "node-name": name, "filename": path }));
    }
    qmp.ok("block-export-add", json!({ "type": "nbd", "id": "x", "node-name": "s", "writable": true }));
    let mut client = Client::connect(steered.server.socket(), "s").expect("it serves");
    client.write(512, &[8; 512]).expect("a write");
    qmp.ok("blockdev-backup", json!({ "job-id": "j", "device": "s", "target": "t", "sync": "full" }));
    qmp.event("BLOCK_JOB_COMPLETED");
    client.flush().expect("a flush");
    assert!(std::fs::read(&source).expect("it is there") == std::fs::read(&target).expect("it is there"));
    assert_eq!(super::node(&mut qmp, "t").expect("it is there")["drv"], json!("file"));
    let over = json!({ "driver": "raw", "node-name": "d", "file": "s" });
    assert!(qmp.refused("blockdev-add", over).contains("in use by export"));
    steered.server.stop();
}
