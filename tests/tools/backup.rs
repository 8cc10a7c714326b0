//! `cowhand backup`: points of images and of servers, read by QEMU's tools, restored, damaged, interrupted.

use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::time::{Duration, Instant};

use black_box::peer::{assert_clean, assert_leaks_at_most, qemu_img, qemu_io, qemu_io_ok};
use black_box::qmp::Qmp;
use black_box::server::Start;
use black_box::{Run, Scratch, Server, cowhand};
use serde_json::{Value, json};

fn write(disk: &str, commands: &[&str]) {
    qemu_io_ok(&["-f", "qcow2"], disk, commands);
}

fn bitmaps(disk: &str) -> Vec<String> {
    let info = qemu_img(["info", "--output=json", disk]).json();
    let bitmaps = info["format-specific"]["data"]["bitmaps"].as_array().cloned().unwrap_or_default();
    bitmaps.iter().map(|bitmap| bitmap["name"].as_str().expect("a name").to_owned()).collect()
}

fn points(directory: &str) -> Vec<Value> {
    let list = cowhand(["backup", "--list", "--output", "json", directory]).json();
    list.as_array().expect("a list").clone()
}

fn kinds(directory: &str) -> Vec<String> {
    points(directory).iter().map(|point| point["kind"].as_str().expect("a kind").to_owned()).collect()
}

fn names(directory: &str) -> Vec<String> {
    let mut names: Vec<_> = std::fs::read_dir(directory)
        .expect("a directory")
        .map(|entry| entry.expect("an entry").file_name().to_string_lossy().into_owned())
        .collect();
    names.sort();
    names
}

/// A disk of 16 MiB over a base, with data in both.
fn disk(scratch: &Scratch) -> String {
    let (base, disk) = (scratch.name("base.qcow2"), scratch.name("disk.qcow2"));
    qemu_img(["create", "-q", "-f", "qcow2", &base, "16M"]).ok();
    write(&base, &["write -P 1 0 4M"]);
    qemu_img(["create", "-q", "-f", "qcow2", "-b", &base, "-F", "qcow2", &disk]).ok();
    write(&disk, &["write -P 2 2M 4M"]);
    disk
}

#[test]
fn each_point_is_what_the_disk_was_and_qemu_reads_it() {
    let scratch = Scratch::new();
    let (disk, directory) = (disk(&scratch), scratch.name("backups"));
    let mut copies = Vec::new();
    let changes: [&[&str]; 4] =
        [&[], &["write -P 3 1M 1M", "write -z 2M 1M"], &["write -P 4 15M 1M", "discard 3M 1M"], &[]];
    for (at, commands) in changes.iter().enumerate() {
        write(&disk, commands);
        let copy = scratch.name(&format!("copy{at}"));
        qemu_img(["convert", "-O", "raw", &disk, &copy]).ok();
        cowhand(["backup", &disk, &directory]).ok();
        copies.push(copy);
    }
    assert_eq!(kinds(&directory), ["full", "incremental", "incremental", "incremental"]);
    assert_eq!(bitmaps(&disk).len(), 1);
    cowhand(["backup", "--verify", &directory]).ok();
    for (point, copy) in points(&directory).iter().zip(&copies) {
        let file = format!("{directory}/{}", point["file"].as_str().expect("a name"));
        qemu_img(["compare", "-q", "-F", "raw", &file, copy]).ok();
        assert_clean(file.as_ref());
        // What a private disk held was open to every user, in its backups.
        let mode = std::fs::metadata(&file).expect("a point").permissions().mode();
        assert_eq!(mode & 0o777, 0o600, "{file}");
        let restored = scratch.name("restored");
        let place = format!("{directory}@{}", point["point"]);
        cowhand(["backup", "--restore", "-O", "raw", &place, &restored]).ok();
        assert_eq!(std::fs::read(&restored).expect("it is there"), std::fs::read(copy).expect("it is there"));
    }
    // Nothing changed: the last point holds nothing of its own.
    assert!(points(&directory)[3]["file-bytes"].as_u64() < Some(1 << 20));
}

#[test]
fn where_nothing_tells_what_changed_the_next_point_is_a_full_one() {
    let scratch = Scratch::new();
    let (disk, directory) = (disk(&scratch), scratch.name("backups"));
    cowhand(["backup", &disk, &directory]).ok();
    qemu_img(["bitmap", "--remove", &disk, &bitmaps(&disk)[0]]).ok();
    let reported = cowhand(["backup", &disk, &directory]).outcome();
    assert!(reported.status.success() && reported.stderr.contains("full backup"), "{reported}");
    cowhand(["backup", "--full", "-q", &disk, &directory]).ok();
    cowhand(["backup", &disk, &directory]).ok();
    assert_eq!(kinds(&directory), ["full", "full", "full", "incremental"]);
    let raw = scratch.name("raw");
    std::fs::write(&raw, vec![7; 1 << 20]).expect("a file");
    let other = scratch.name("other");
    for _ in 0..2 {
        cowhand(["backup", "-f", "raw", &raw, &other]).ok();
    }
    assert_eq!(kinds(&other), ["full", "full"]);
    qemu_img(["compare", "-q", "-F", "raw", &format!("{other}/0002-full.qcow2"), &raw]).ok();
}

/// Increments of builds before this one could lack zeroes that hide older data. An increment over such a point would be restored wrong, so the
/// first point after the update is a full one, and says why.
#[test]
fn the_first_point_over_those_of_an_earlier_build_is_a_full_one() {
    let scratch = Scratch::new();
    let (disk, directory) = (disk(&scratch), scratch.name("backups"));
    cowhand(["backup", &disk, &directory]).ok();
    cowhand(["backup", &disk, &directory]).ok();
    let list = format!("{directory}/backup.json");
    let text = std::fs::read(&list).expect("it is there");
    let mut written: Value = serde_json::from_slice(&text).expect("JSON");
    for point in written["points"].as_array_mut().expect("a list") {
        let removed = point.as_object_mut().expect("an object").remove("copy-rules");
        assert!(removed.is_some(), "{point}");
    }
    std::fs::write(&list, written.to_string()).expect("it can be written");
    let reported = cowhand(["backup", "--output", "json", &disk, &directory]).outcome();
    assert!(reported.status.success() && reported.stderr.contains("an earlier build"), "{reported}");
    let point: Value = serde_json::from_str(&reported.stdout).expect("JSON");
    assert_eq!(point["kind"], "full");
    assert_eq!(point["full-because"], "earlier-build");
    let point = cowhand(["backup", "--output", "json", &disk, &directory]).json();
    assert_eq!(point["kind"], "incremental");
    assert_eq!(point.get("full-because"), None);
    assert_eq!(kinds(&directory), ["full", "incremental", "full", "incremental"]);
}

/// The guide had the newest points deleted to make room. Deleting the oldest by hand left a directory that `--verify` found wrong for ever.
#[test]
fn the_oldest_points_go_in_whole_runs_and_the_next_is_an_increment() {
    let scratch = Scratch::new();
    let (disk, directory) = (disk(&scratch), scratch.name("backups"));
    let take = |more: &[&str]| cowhand([&["backup", "-q"], more, &[&disk, &directory]].concat()).ok();
    let forget = |keep: &str| {
        let removed = cowhand(["backup", "--output", "json", "--forget", keep, &directory]).json();
        removed.as_array().expect("a list").iter().map(|point| point["point"].clone()).collect::<Vec<_>>()
    };
    for more in [&[][..], &[], &["--full"], &[], &[]] {
        take(more);
    }
    assert_eq!(forget("4"), [0; 0]);
    assert_eq!(forget("3"), [1, 2]);
    cowhand(["backup", "--verify", &directory]).ok();
    write(&disk, &["write -P 9 0 64k"]);
    take(&[]);
    assert_eq!(kinds(&directory), ["full", "incremental", "incremental", "incremental"]);
    let restored = scratch.name("restored.qcow2");
    cowhand(["backup", "--restore", &directory, &restored]).ok();
    qemu_img(["compare", "-q", &restored, &disk]).ok();
    take(&["--full"]);
    std::fs::remove_file(format!("{directory}/0003-full.qcow2")).expect("it is there");
    let reported = cowhand(["backup", "--verify", &directory]).outcome();
    assert!(!reported.status.success() && reported.stdout.contains("is not there"), "{reported}");
    assert_eq!(points(&directory)[0]["missing"], true);
    assert!(cowhand(["backup", "--list", &directory]).ok().contains("0003-full.qcow2, which is not there"));
    assert_eq!(forget("1"), [3, 4, 5, 6]);
    cowhand(["backup", "--verify", &directory]).ok();
    assert_eq!(names(&directory), ["0007-full.qcow2", "backup.json"]);
}

#[test]
fn what_is_not_what_was_written_is_found_and_not_restored() {
    let scratch = Scratch::new();
    let (disk, directory) = (disk(&scratch), scratch.name("backups"));
    cowhand(["backup", &disk, &directory]).ok();
    write(&disk, &["write -P 9 0 64k"]);
    cowhand(["backup", &disk, &directory]).ok();
    let file = format!("{directory}/0001-full.qcow2");
    let mut bytes = std::fs::read(&file).expect("it is there");
    let last = bytes.len() - 1;
    bytes[last] ^= 1;
    std::fs::write(&file, bytes).expect("a file");
    let reported = cowhand(["backup", "--verify", &directory]).outcome();
    assert!(!reported.status.success() && reported.stdout.contains("is not what was written"), "{reported}");
    let target = scratch.name("target");
    let refused = cowhand(["backup", "--restore", &directory, &target]).fails();
    assert!(refused.contains("is not what was written") && !Path::new(&target).exists(), "{refused}");
    for (place, words) in [("@7", "no point 7"), ("x", "No such file")] {
        let refused = cowhand(["backup", "--restore", &format!("{directory}{place}"), &target]).fails();
        assert!(refused.contains(words), "{refused}");
    }
    std::fs::write(format!("{directory}/backup.json"), b"{").expect("a file");
    assert!(cowhand(["backup", &disk, &directory]).fails().contains("no list of backups"));
}

/// A server with the disk, and its control socket.
fn serve(scratch: &Scratch, disk: &str) -> (Server, String) {
    let qmp = scratch.name("qmp");
    let start = Start::new(["--qmp", &qmp, "--allow-path"]).arg(scratch.path()).arg(disk);
    let mut server = start.listen().unwrap_or_else(|error| panic!("{}", error.0));
    server.wait_until(|server| server.stdout().contains("control:").then_some(())).expect("it serves");
    (server, qmp)
}

/// The same directory and bitmaps serve an image at rest and one that guests write.
#[test]
fn a_served_disk_is_backed_up_while_it_is_written() {
    let scratch = Scratch::new();
    let (disk, directory) = (disk(&scratch), scratch.name("backups"));
    cowhand(["backup", &disk, &directory]).ok();
    let (server, qmp) = serve(&scratch, &disk);
    let mut client = server.client("disk");
    client.write(8 << 20, &[5; 1 << 20]).expect("a write");
    client.write_zeroes(0, 1 << 20, 0).expect("zeroes");
    client.flush().expect("a flush");
    cowhand(["backup", &qmp, &directory]).ok();
    client.write(9 << 20, &[6; 64 << 10]).expect("a write");
    cowhand(["backup", &qmp, &directory]).ok();
    drop(client);
    server.stop();
    assert_eq!(kinds(&directory), ["full", "incremental", "incremental"]);
    let last = format!("{directory}/0003-incremental.qcow2");
    qemu_img(["compare", "-q", &last, &disk]).ok();
    qemu_io_ok(
        &["-f", "qcow2"],
        &format!("{directory}/0002-incremental.qcow2"),
        &["read -P 0 0 1M", "read -P 5 8M 1M", "read -P 0 9M 64k"],
    );
    assert_eq!(bitmaps(&disk).len(), 1);
    write(&disk, &["write -P 8 5M 64k"]);
    cowhand(["backup", &disk, &directory]).ok();
    assert_eq!(kinds(&directory)[3], "incremental");
    qemu_img(["compare", "-q", &format!("{directory}/0004-incremental.qcow2"), &disk]).ok();
    cowhand(["backup", "--verify", &directory]).ok();
}

/// docs/reference/qmp.md advises to export a filter over the disk, so that another one can be put below it. The bitmaps are the disk's, below the filter:
/// `backup` looked at the filter, found none, and each point was a full one.
#[test]
fn a_disk_that_is_exported_below_filters_is_backed_up_incrementally() {
    let scratch = Scratch::new();
    let (disk, directory) = (disk(&scratch), scratch.name("backups"));
    let (server, socket) = serve(&scratch, &scratch.name("disk.qcow2"));
    let mut qmp = Qmp::connect(Path::new(&socket));
    qmp.ok("block-export-del", json!({ "id": "disk" }));
    let over =
        |driver: &str, name: &str, below: &str| json!({ "driver": driver, "node-name": name, "file": below });
    qmp.ok("blockdev-add", over("compress", "compressing", "disk"));
    qmp.ok("blockdev-add", over("copy-on-read", "top", "compressing"));
    qmp.ok(
        "block-export-add",
        json!({ "type": "nbd", "id": "e", "node-name": "top", "name": "top", "writable": true }),
    );
    let mut client = server.client("top");
    for fill in 5..8 {
        client.write(8 << 20, &[fill; 1 << 20]).expect("a write");
        client.flush().expect("a flush");
        cowhand(["backup", &socket, &directory]).ok();
    }
    drop(client);
    server.stop();
    assert_eq!(kinds(&directory), ["full", "incremental", "incremental"]);
    for (point, fill) in [("0001-full", 5), ("0002-incremental", 6), ("0003-incremental", 7)] {
        let image = format!("{directory}/{point}.qcow2");
        qemu_io_ok(&["-f", "qcow2"], &image, &["read -P 1 0 2M", &format!("read -P {fill} 8M 1M")]);
    }
    assert_eq!(bitmaps(&disk).len(), 1, "the bitmaps of earlier points are gone");
}

/// The storage daemon of QEMU has the disk: the same commands, the same directory.
#[test]
fn a_disk_of_qemus_storage_daemon_is_backed_up_streamed_and_mirrored() {
    let scratch = Scratch::new();
    let (disk, directory, qmp) = (disk(&scratch), scratch.name("backups"), scratch.name("qmp"));
    let nbd = scratch.name("nbd");
    let file = format!("driver=qcow2,node-name=d,discard=unmap,file.driver=file,file.filename={disk}");
    let mut daemon = std::process::Command::new("qemu-storage-daemon")
        .args(["--chardev", &format!("socket,id=c,path={qmp},server=on,wait=off"), "--monitor", "chardev=c"])
        .args(["--blockdev", &file, "--nbd-server", &format!("addr.type=unix,addr.path={nbd}")])
        .args(["--export", "nbd,id=e,node-name=d,writable=on"])
        .spawn()
        .expect("it runs");
    let start = Instant::now();
    while !Path::new(&nbd).exists() {
        assert!(start.elapsed() < Duration::from_secs(20), "it does not listen");
        std::thread::sleep(Duration::from_millis(5));
    }
    cowhand(["backup", &qmp, &directory]).ok();
    let uri = format!("nbd+unix:///d?socket={nbd}");
    qemu_io_ok(&["-f", "raw"], &uri, &["write -P 9 0 1M", "write -z 3M 1M"]);
    cowhand(["backup", &qmp, &directory]).ok();
    cowhand(["stream", &qmp]).ok();
    let copy = scratch.name("copy.qcow2");
    cowhand(["mirror", &qmp, &copy]).ok();
    Run::new("kill").args([&daemon.id().to_string()]).ok();
    daemon.wait().expect("it ends");
    assert_eq!(kinds(&directory), ["full", "incremental"]);
    for copy in [copy, format!("{directory}/0002-incremental.qcow2")] {
        qemu_img(["compare", "-q", &copy, &disk]).ok();
    }
}

/// The command is killed at any moment, of an image and of a server; the next run goes on, and nothing is left.
#[test]
fn a_killed_backup_leaves_the_points_before_it_and_nothing_in_the_way() {
    for is_served in [false, true] {
        let scratch = Scratch::new();
        let (disk, directory) = (disk(&scratch), scratch.name("backups"));
        cowhand(["backup", &disk, &directory]).ok();
        let served = is_served.then(|| serve(&scratch, &disk));
        let source = served.as_ref().map_or(disk.clone(), |(_, qmp)| qmp.clone());
        for round in 0..8 {
            match &served {
                Some((server, _)) => {
                    server.client("disk").write(round << 20, &[round as u8; 1 << 20]).expect("a write");
                }
                None => {
                    // The kernel gives the lock back a moment after the end of the process.
                    let start = Instant::now();
                    let command = format!("write -P {round} {round}M 1M");
                    while !qemu_io(&["-f", "qcow2"], &disk, &[&command]).outcome().status.success() {
                        assert!(start.elapsed() < Duration::from_secs(20), "the disk stays locked");
                    }
                }
            }
            let pause = Duration::from_millis(12 * round);
            cowhand(["backup", &source, &directory]).outcome_telling(move |pid| {
                std::thread::spawn(move || {
                    std::thread::sleep(pause);
                    kill(pid);
                });
            });
        }
        let start = Instant::now();
        loop {
            let run = cowhand(["backup", &source, &directory]).outcome();
            if run.status.success() {
                break;
            }
            // Likewise.
            assert!(!is_served && start.elapsed() < Duration::from_secs(20), "it does not go on: {run}");
        }
        if let Some((server, _)) = served {
            server.stop();
        }
        let files: Vec<String> = points(&directory)
            .iter()
            .map(|point| point["file"].as_str().expect("a name").to_owned())
            .collect();
        qemu_img(["compare", "-q", &format!("{directory}/{}", files.last().expect("a point")), &disk]).ok();
        cowhand(["backup", "--verify", &directory]).ok();
        assert_eq!(names(&directory).len(), files.len() + 1, "{:?}", names(&directory));
        assert_eq!(bitmaps(&disk).len(), 1);
        assert_leaks_at_most(disk.as_ref());
    }
}

fn kill(pid: u32) {
    let _ = Run::new("kill").args(["-9", &pid.to_string()]).outcome();
}
