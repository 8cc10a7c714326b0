//! BLOCK_IMAGE_CORRUPTED: which image it is of, and where in the file, as QEMU's daemon reports it.

use std::os::unix::fs::FileExt;
use std::path::Path;

use black_box::Run;
use black_box::peer::newest_qemu;
use black_box::qmp::Qmp;
use serde_json::{Value, json};

use super::{Server, images, ours};

/// Changes 8 bytes of an image.
type Harm = fn(&Path);

fn put(image: &Path, at: u64, bytes: &[u8]) {
    let file = std::fs::File::options().write(true).open(image).expect("an image");
    file.write_all_at(bytes, at).expect("an image");
}

/// The first event when a client reads the disk's start and writes behind it, without its words.
fn event(program: &Path, harm: Harm) -> Value {
    let scratch = images();
    let path = scratch.name("new.qcow2");
    drop(Run::new("qemu-img").args(["create", "-q", "-f", "qcow2", &path, "8M"]).ok());
    harm(path.as_ref());
    let node = format!("qcow2,node-name=d,file.driver=file,file.filename={path}");
    let server = format!("addr.type=unix,addr.path={}", scratch.name("s"));
    let monitor = format!("socket,id=m,path={},server=on,wait=off", scratch.name("q"));
    let args = [
        ["--chardev", &monitor],
        ["--monitor", "m"],
        ["--blockdev", &node],
        ["--nbd-server", &server],
        ["--export", "nbd,id=e,node-name=d,writable=on"],
    ];
    let server = Server::start(program, scratch.path(), &args.concat());
    let mut qmp = Qmp::connect(&scratch.file("q"));
    let commands = ["-c", "read 0 64k", "-c", "write 1M 64k"];
    let uri = server.uri("d");
    drop(Run::new("qemu-io").args(["-f", "raw"]).args(commands).arg(&uri).outcome());
    let mut event = qmp.event("BLOCK_IMAGE_CORRUPTED")["data"].clone();
    assert!(event["msg"].is_string(), "{event}");
    event["msg"] = json!("");
    event
}

#[test]
fn an_image_that_contradicts_itself_is_reported_with_its_place_as_by_qemus() {
    let Some(newest) = newest_qemu() else { return };
    // Of an image of qemu-img's: the refcounts begin at 128 KiB, the L1 table is at 192 KiB.
    let free_l1_table: Harm = |image| put(image, (128 << 10) + 6, &[0, 0]);
    let unaligned_table: Harm = |image| put(image, 192 << 10, &(1_u64 << 63 | 0x2a000).to_be_bytes());
    for harm in [free_l1_table, unaligned_table] {
        let theirs = event(&newest.join("qemu-storage-daemon"), harm);
        assert_eq!(event(&ours("qemu-storage-daemon"), harm), theirs);
    }
}
