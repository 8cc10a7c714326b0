//! What `info --medium`, `status` and QMP say of a medium is what it does.

use black_box::media::{LoopDevice, Mounted};
use black_box::{Run, Scratch, Server, cowhand, peer, wire};
use rustix::io::{ReadWriteFlags, preadv2};
use serde_json::{Value, json};

use super::{DEVICE, FILE_SYSTEM};

/// What `info` says before anything was tried, and `status` when everything was.
struct Reported {
    before: Value,
    after: Value,
    for_people: String,
}

/// A raw disk at `path` of some bytes and a hole, of which everything is tried that only trying tells.
fn reported(path: &str, mode: &str) -> Reported {
    let before = cowhand(["info", "--medium", "-f", "raw", "--output", "json", path]).json()["medium"].take();
    let scratch = Scratch::new();
    let qmp = scratch.name("qmp");
    let drive = format!("file={path},format=raw,discard=unmap,cache={mode}");
    let server = Server::start(["--qmp", &qmp, &drive]);
    let mut client = server.client("");
    client.write(0, &[1; 65_536]).expect("a write");
    client.write_zeroes(0, 8192, wire::NO_HOLE).expect("zeroes that keep their space");
    client.write_zeroes(16_384, 8192, 0).expect("zeroes that give space back");
    client.trim(32_768, 8192).expect("a trim");
    client.disconnect();
    // Asks where the holes are.
    peer::qemu_img(["map", "--output=json", "-f", "raw", &server.uri("")]).ok();
    let status = cowhand(["status", "--output", "json", &qmp]).json();
    let for_people = cowhand(["status", &qmp]).ok();
    server.stop();
    Reported { before, after: status["disks"][0]["driver-specific"]["medium"].clone(), for_people }
}

fn sparse(files: &Mounted) -> String {
    let path = files.name("disk.raw");
    std::fs::File::create(&path).and_then(|file| file.set_len(1 << 20)).expect("a sparse file");
    path
}

/// What the kernel itself says to a read that may not wait.
fn reads_without_waiting(path: &str) -> &'static str {
    let file = std::fs::File::open(path).expect("our file");
    let mut byte = [0];
    match preadv2(&file, &mut [std::io::IoSliceMut::new(&mut byte)], 0, ReadWriteFlags::NOWAIT) {
        Err(rustix::io::Errno::OPNOTSUPP) => "no",
        _ => "yes",
    }
}

#[track_caller]
fn assert_reported(reported: &Value, expected: Value) {
    for (name, answer) in expected.as_object().expect("answers") {
        assert_eq!(&reported[name], answer, "{name} of {reported}");
    }
}

#[test]
fn the_answers_for_tmpfs_are_what_it_does() {
    let Some(files) = Mounted::tmpfs(FILE_SYSTEM) else { return };
    let path = sparse(&files);
    let reported = reported(&path, "writeback");
    let nowait = reads_without_waiting(&path);
    // A file that is one hole proves that holes are reported.
    let asked = json!({ "file-system": "tmpfs", "holes": "yes", "punch-hole": "not-tried", "zero-range": "not-tried",
        "read-nowait": nowait, "reflink": "no", "overwrite-takes-room": "never" });
    assert_reported(&reported.before, asked);
    let tried = json!({ "file-system": "tmpfs", "holes": "yes", "punch-hole": "yes", "zero-range": "no",
        "read-nowait": nowait, "reflink": "no", "overwrite-takes-room": "never" });
    assert_reported(&reported.after, tried);
    assert!(
        reported.for_people.contains("  medium    tmpfs; can holes, punch-hole"),
        "{}",
        reported.for_people
    );
}

#[test]
fn the_answers_for_ext4_are_what_it_does() {
    for sector_bytes in [512, 4096] {
        let Some(files) = Mounted::ext4(FILE_SYSTEM, sector_bytes) else { return };
        let path = sparse(&files);
        let reported = reported(&path, "writeback");
        let all = json!({ "file-system": "ext4", "holes": "yes", "punch-hole": "yes", "zero-range": "yes",
            "read-nowait": "yes", "reflink": "no", "overwrite-takes-room": "never" });
        assert_reported(&reported.after, all);
        assert!(reported.for_people.contains("overwriting takes no room"), "{}", reported.for_people);
        let direct = self::reported(&path, "none");
        assert_reported(
            &direct.after,
            json!({ "direct-io": "yes", "direct-offset-alignment": sector_bytes,
            "read-nowait": "not-tried" }),
        );
    }
}

#[test]
fn the_answers_for_xfs_are_what_it_does() {
    for (reflink, answer, room) in [(true, "yes", "shared"), (false, "no", "never")] {
        let Some(files) = Mounted::xfs(FILE_SYSTEM, reflink) else { return };
        let path = sparse(&files);
        let reported = reported(&path, "writeback");
        let all = json!({ "file-system": "xfs", "holes": "yes", "punch-hole": "yes", "zero-range": "yes",
            "read-nowait": "yes", "reflink": answer, "overwrite-takes-room": room });
        assert_reported(&reported.after, all);
        assert_eq!(reported.before["reflink"], answer, "also of a file that is only read");
        let copied = Run::new("cp").args(["--reflink=always", &path, &files.name("copy")]).outcome();
        assert_eq!(copied.status.success(), reflink, "{copied}");
    }
}

#[test]
fn the_answers_for_btrfs_are_what_it_does() {
    let Some(files) = Mounted::btrfs(FILE_SYSTEM) else { return };
    let path = sparse(&files);
    let reported = reported(&path, "writeback");
    let all = json!({ "file-system": "btrfs", "holes": "yes", "punch-hole": "yes", "zero-range": "yes",
        "read-nowait": reads_without_waiting(&path), "reflink": "yes", "overwrite-takes-room": "always" });
    assert_reported(&reported.after, all);
    // It takes requests of 512 bytes, and sends them through the page cache: blocks are what it takes as they are.
    let direct = self::reported(&path, "none");
    assert_reported(&direct.after, json!({ "direct-io": "yes", "direct-offset-alignment": 4096 }));
    // A file that is marked for it is overwritten in place, unless it shares bytes.
    let marked = files.name("marked.raw");
    std::fs::File::create(&marked).expect("a file");
    Run::new("chattr").args(["+C", &marked]).ok();
    std::fs::File::options()
        .write(true)
        .open(&marked)
        .and_then(|file| file.set_len(1 << 20))
        .expect("a length");
    assert_eq!(self::reported(&marked, "writeback").after["overwrite-takes-room"], "shared");
}

#[test]
fn the_answers_for_a_device_are_what_it_does() {
    for sector_bytes in [512, 4096] {
        let Some(device) = LoopDevice::new(DEVICE, sector_bytes) else { return };
        for mode in ["writeback", "none"] {
            let reported = reported(device.path(), mode);
            let queue = |name: &str| {
                let device = device.path().trim_start_matches("/dev/");
                let text = std::fs::read_to_string(format!("/sys/block/{device}/queue/{name}"));
                text.expect("sysfs").trim().parse::<u64>().expect("a number")
            };
            let asked = json!({ "holes": "no", "reflink": "no", "logical-block-size": sector_bytes,
                "direct-io": "yes", "direct-offset-alignment": sector_bytes,
                "discard-granularity": queue("discard_granularity"), "overwrite-takes-room": "unknown" });
            assert_reported(&reported.before, asked.clone());
            assert_reported(&reported.after, asked);
            assert_reported(&reported.after, json!({ "punch-hole": "yes", "zero-range": "yes" }));
            assert_eq!(reported.after.get("file-system"), None);
            let expected = format!("medium    device with sectors of {sector_bytes} bytes");
            assert!(reported.for_people.contains(&expected), "{}", reported.for_people);
        }
    }
}

/// Who greps the output of `info`, or compares it with qemu-img's, finds nothing new unless it was asked for.
#[test]
fn info_tells_of_the_medium_only_when_asked() {
    let scratch = Scratch::new();
    let path = scratch.name("disk.qcow2");
    cowhand(["create", "-q", &path, "1M"]).ok();
    assert_eq!(cowhand(["info", "--output", "json", &path]).json().get("medium"), None);
    let plain = cowhand(["info", &path]).ok();
    let with = cowhand(["info", "--medium", &path]).ok();
    assert!(with.starts_with(&plain) && with[plain.len()..].starts_with("Medium:\n"), "{with}");
    assert!(with[plain.len()..].contains("    overwrite takes room: "), "{with}");
}

/// A frozen file system; thawed again.
struct Frozen(std::path::PathBuf);

impl Frozen {
    fn new(files: &Mounted) -> Self {
        let at = files.file("");
        Run::new("fsfreeze").arg("--freeze").arg(&at).ok();
        Self(at)
    }
}

impl Drop for Frozen {
    fn drop(&mut self) {
        let thawed = Run::new("fsfreeze").arg("--unfreeze").arg(&self.0).outcome();
        assert!(thawed.status.success() || std::thread::panicking(), "{thawed}");
    }
}

/// Asking must change nothing: a question that the kernel counts as a write waits until a frozen file system is thawed.
#[test]
fn who_only_reads_does_not_wait_for_a_frozen_file_system() {
    for files in [Mounted::xfs(FILE_SYSTEM, true), Mounted::btrfs(FILE_SYSTEM)].into_iter().flatten() {
        let path = sparse(&files);
        let frozen = Frozen::new(&files);
        let info = cowhand(["info", "--medium", "-f", "raw", "--output", "json", &path]);
        assert_eq!(info.json()["medium"]["reflink"], "yes");
        let server = Server::start([format!("file={path},format=raw,read-only=on")]);
        assert_eq!(server.client("").read(0, 4096).expect("a read"), [0; 4096]);
        server.stop();
        drop(frozen);
    }
}
