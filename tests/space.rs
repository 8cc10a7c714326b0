//! Space that a guest gives up comes back to the host.

#![forbid(unsafe_code)]

use std::os::unix::fs::MetadataExt;
use std::path::Path;

use black_box::peer::{assert_clean, assert_leaks_at_most, qemu_img, qemu_io_ok};
use black_box::{Client, Scratch, Server};

const DISK: u64 = 256 << 20;
const STEP: usize = 1 << 20;
const CLUSTER: u32 = 64 << 10;
const HALF: u32 = 128 << 20;

/// What `du` says, in bytes.
fn host_bytes(path: &Path) -> u64 {
    std::fs::metadata(path).expect("an image").blocks() * 512
}

/// An image of which every byte is written.
fn filled(scratch: &Scratch, options: &str) -> String {
    let path = scratch.name("disk.qcow2");
    qemu_img(["create", "-q", "-f", "qcow2", "-o", options, &path, "256M"]).ok();
    let server = Server::start([format!("file={path},discard=unmap")]);
    let mut client = server.client("");
    for at in (0..DISK).step_by(STEP) {
        client.write(at, &[0xa5; STEP]).expect("write");
    }
    client.flush().expect("flush");
    client.disconnect();
    server.stop();
    assert!(host_bytes(Path::new(&path)) >= DISK, "{options}: the image is full");
    path
}

/// Metadata of so small a disk: header, tables, L2 tables; a cluster each.
const METADATA_MAX: u64 = 8 * CLUSTER as u64;

fn within_a_hundredth(found: u64, mapped: u64) -> bool {
    (mapped..=mapped + mapped / 100 + METADATA_MAX).contains(&found)
}

/// `discard` takes half of a full disk away; `judge` sees the image once it is closed.
fn half_of_it(discard: impl Fn(&mut Client), judge: impl Fn(&Path, &str)) {
    for options in ["cluster_size=64k", "cluster_size=64k,extended_l2=on"] {
        let scratch = Scratch::new();
        let path = filled(&scratch, options);
        let server = Server::start([format!("file={path},discard=unmap")]);
        let mut client = server.client("");
        discard(&mut client);
        client.disconnect();
        server.stop();
        judge(Path::new(&path), options);
        assert_clean(Path::new(&path));
    }
}

#[test]
fn half_a_disk_discarded_in_pieces_is_half_the_space() {
    let every_other_cluster = |client: &mut Client| {
        // No two pieces are neighbours.
        for at in (0..DISK).step_by(2 * CLUSTER as usize) {
            client.trim(at, CLUSTER).expect("trim");
        }
        client.flush().expect("flush");
    };
    half_of_it(every_other_cluster, |path, options| {
        let found = host_bytes(path);
        assert!(within_a_hundredth(found, DISK / 2), "{options}: {found} bytes for {} mapped", DISK / 2);
    });
}

#[test]
fn a_discarded_end_makes_the_file_shorter_at_the_close() {
    let end = |client: &mut Client| client.trim(DISK / 2, HALF).expect("trim");
    half_of_it(end, |path, options| {
        let length = std::fs::metadata(path).expect("an image").len();
        assert!(within_a_hundredth(length, DISK / 2), "{options}: {length} bytes long");
        assert!(within_a_hundredth(host_bytes(path), DISK / 2), "{options}");
    });
}

/// What `qemu-img check` finds leaked.
fn leaks(path: &str) -> u64 {
    let outcome = qemu_img(["check", "--output=json", path]).outcome();
    assert!(matches!(outcome.status.code(), Some(0 | 3)), "{outcome}");
    let report: serde_json::Value = serde_json::from_str(&outcome.stdout).expect("a report");
    report["leaks"].as_u64().unwrap_or(0)
}

/// An image whose server was killed after it had allocated: it leaks the clusters that it held in reserve.
fn killed(scratch: &Scratch) -> String {
    let path = scratch.name("disk.qcow2");
    qemu_img(["create", "-q", "-f", "qcow2", &path, "256M"]).ok();
    let server = Server::start([format!("file={path},discard=unmap")]);
    let mut client = server.client("");
    for at in 0..8 {
        client.write(at * STEP as u64, &[0x11; STEP]).expect("write");
        client.flush().expect("flush");
    }
    client.disconnect();
    server.kill();
    assert_leaks_at_most(Path::new(&path));
    assert!(leaks(&path) > 100, "nothing was leaked: there is nothing to give back");
    path
}

/// A crash leaked up to 16 MiB of clusters each time, and they came back only by a check.
#[test]
fn what_a_killed_server_held_in_reserve_is_free_after_the_next_start() {
    let scratch = Scratch::new();
    let path = killed(&scratch);
    let server = Server::start([format!("file={path},discard=unmap")]);
    let mut client = server.client("");
    assert_eq!(client.read(7 * STEP as u64, STEP as u32).expect("read"), [0x11; STEP]);
    client.disconnect();
    server.stop();
    assert_clean(Path::new(&path));
}

/// QEMU knows nothing of a reserve. What it does to the image in between, with clusters that we held or others, stays.
#[test]
fn what_qemu_did_to_an_image_after_a_crash_is_left_alone() {
    let scratch = Scratch::new();
    let path = killed(&scratch);
    let commands = ["write -P 0x22 64M 4M", "discard 1M 1M", "write -P 0x33 2M 1M"];
    qemu_io_ok(&["-f", "qcow2", "-d", "unmap"], &path, &commands);
    qemu_img(["snapshot", "-c", "theirs", &path]).ok();
    qemu_io_ok(&["-f", "qcow2"], &path, &["write -P 0x44 65M 1M"]);
    let server = Server::start([format!("file={path},discard=unmap")]);
    let mut client = server.client("");
    for at in 0..8 {
        client.write((100 + at) * STEP as u64, &[0x55; STEP]).expect("write");
    }
    client.flush().expect("flush");
    client.disconnect();
    server.stop();
    // Nor does it keep us from giving back what is still unused.
    assert_clean(Path::new(&path));
    let now = [
        "read -P 0x22 64M 1M",
        "read -P 0x44 65M 1M",
        "read -P 0x33 2M 1M",
        "read -P 0x11 0 1M",
        "read -P 0x55 100M 8M",
    ];
    qemu_io_ok(&["-f", "qcow2"], &path, &now);
    qemu_img(["snapshot", "-a", "theirs", &path]).ok();
    qemu_io_ok(&["-f", "qcow2"], &path, &["read -P 0x22 64M 4M", "read -P 0 1M 1M", "read -P 0x11 3M 5M"]);
}
