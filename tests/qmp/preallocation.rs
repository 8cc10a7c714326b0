//! `preallocate` below an image: the file has room ahead of what is written while the image is open, and none when it is closed.

use std::os::unix::fs::MetadataExt;
use std::path::Path;

use black_box::Client;
use black_box::peer::{assert_clean, qemu_io_ok};
use black_box::qmp::Qmp;
use serde_json::{Value, json};

use super::backups::Daemon;
use super::jobs::reported;
use super::{Steered, create};

const MIB: u64 = 1 << 20;

/// The file's length, and its bytes in use.
fn room(path: &str) -> (u64, u64) {
    let meta = std::fs::metadata(path).expect("a file");
    (meta.len(), meta.blocks() * 512)
}

/// Writes through an image over `preallocate`, which names its file or has it nested; gives the room there is while it is open.
fn write(qmp: &mut Qmp, socket: &Path, path: &str, file: Value) -> (u64, u64) {
    let file =
        json!({ "driver": "preallocate", "file": file, "prealloc-size": 8 * MIB, "prealloc-align": 2 * MIB });
    qmp.ok("blockdev-add", json!({ "driver": "qcow2", "node-name": "p", "file": file }));
    qmp.ok("block-export-add", json!({ "type": "nbd", "id": "p", "node-name": "p", "writable": true }));
    let mut client = Client::connect(socket, "p").expect("it serves");
    client.write(MIB, &[7; 128 << 10]).expect("a write");
    client.flush().expect("a flush");
    drop(client);
    let found = room(path);
    qmp.ok("block-export-del", json!({ "id": "p", "mode": "hard" }));
    qmp.event_of("BLOCK_EXPORT_DELETED", "id", "p");
    qmp.ok("blockdev-del", json!({ "node-name": "p" }));
    found
}

/// An image on a nearly full file system: what it will need is reserved in large pieces, and given back.
#[test]
fn an_image_has_room_ahead_while_it_is_open_as_with_qemu() {
    let steered = Steered::new();
    let scratch = &steered.scratch;
    let (_daemon, mut theirs) = Daemon::with(&scratch.file("daemon"), &create(scratch, "other", "1M"));
    let socket = scratch.file("nbd");
    theirs.ok("nbd-server-start", json!({ "addr": { "type": "unix", "data": { "path": socket } } }));
    let mut ours = steered.talk();
    for (name, nested) in [("nested", true), ("named", false)] {
        for (qmp, socket) in [(&mut ours, steered.server.socket()), (&mut theirs, socket.as_path())] {
            let path = create(scratch, name, "64M");
            let mut file = json!({ "driver": "file", "filename": path });
            if !nested {
                file["node-name"] = json!("f");
                qmp.ok("blockdev-add", file.clone());
                file = json!("f");
            }
            let (len, used) = write(qmp, socket, &path, file);
            assert!(
                len >= 8 * MIB && len.is_multiple_of(2 * MIB) && used >= 8 * MIB,
                "{name}: {len}, {used}"
            );
            if !nested {
                qmp.ok("blockdev-del", json!({ "node-name": "f" }));
            }
            let (len, used) = room(&path);
            assert!(len <= MIB && used <= MIB, "{name}: {len}, {used} at the end");
            assert_clean(path.as_ref());
            qemu_io_ok(&["-f", "qcow2"], &path, &["read -P 7 1M 128k", "read -P 0 2M 62M"]);
        }
    }
    let refused = json!({ "driver": "preallocate", "file": "f", "prealloc-align": 100 });
    let refused = json!({ "driver": "raw", "node-name": "r", "file": refused });
    for qmp in [&mut ours, &mut theirs] {
        qmp.ok("blockdev-add", json!({ "driver": "null-co", "node-name": "f" }));
        let said = qmp.refused("blockdev-add", refused.clone());
        assert!(said.contains("prealloc-align") && said.contains("512"), "{said}");
    }
    steered.server.stop();
}

/// A base is opened for writing by a commit, and for reading again while the disk is at work: its room goes then, not at the disk's end.
#[test]
fn a_base_that_a_commit_wrote_has_no_room_left_when_it_is_read_again() {
    let steered = Steered::new();
    let (scratch, mut qmp) = (&steered.scratch, steered.talk());
    let [base, mid, top] = ["base", "mid", "top"].map(|name| create(scratch, name, "4M"));
    qemu_io_ok(&["-f", "qcow2"], &mid, &["write -P 2 3M 64k"]);
    let file = |path: &str| json!({ "driver": "file", "filename": path });
    let preallocate = json!({ "driver": "preallocate", "file": file(&base) });
    let base_node = json!({ "driver": "qcow2", "node-name": "base", "file": preallocate });
    let mid = json!({ "driver": "qcow2", "node-name": "mid", "file": file(&mid), "backing": base_node });
    let top = json!({ "driver": "qcow2", "node-name": "top", "file": file(&top), "backing": mid });
    qmp.ok("blockdev-add", top);
    let job = json!({ "job-id": "j", "device": "top", "top-node": "mid", "base-node": "base" });
    qmp.ok("block-commit", job);
    reported(&mut qmp, "BLOCK_JOB_COMPLETED", "j");
    let (len, used) = room(&base);
    assert!(len <= MIB && used <= MIB, "{len}, {used}");
    qemu_io_ok(&["-r", "-f", "qcow2"], &base, &["read -P 2 3M 64k"]);
    steered.server.stop();
}

/// A file that was put over itself, or over one that was put over it later, had the server look for its end until the stack was full.
#[test]
fn storage_over_a_file_is_never_below_itself() {
    let scratch = black_box::Scratch::new();
    let (server, mut qmp) = super::begin_with_nothing(&scratch);
    let over = |name: &str, file: &str| json!({ "driver": "preallocate", "node-name": name, "file": file });
    let image = |name: &str, file: &str| json!({ "driver": "qcow2", "node-name": name, "file": file });
    let alone = qmp.refused("blockdev-add", over("a", "a"));
    assert!(alone.contains("\"a\""), "{alone}");
    let path = super::create(&scratch, "f.qcow2", "1M");
    qmp.ok("blockdev-add", json!({ "driver": "file", "node-name": "f", "filename": path }));
    qmp.ok("blockdev-add", over("a", "f"));
    qmp.ok("blockdev-add", over("b", "a"));
    // With its name free, another one of the name could be put over `b`.
    let used = qmp.refused("blockdev-del", json!({ "node-name": "a" }));
    assert!(used.contains("\"b\""), "{used}");
    qmp.ok("blockdev-add", image("d", "b"));
    for name in ["d", "b", "a", "f"] {
        qmp.ok("blockdev-del", json!({ "node-name": name }));
    }
    server.stop();
}
