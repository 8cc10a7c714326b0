//! Mounts come and go with their server.

use std::fs::File;
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt};
use std::process::Command;

use black_box::program::{self, cowhand};
use black_box::qmp::Qmp;
use black_box::ready::eventually;
use black_box::server::Start;
use black_box::{Fault, FaultServer, Nginx, Random, Run, Scratch, Server};
use rustix::io::Errno;
use rustix::process::Signal;

use super::{Place, SIZE, is_mounted};

#[test]
fn every_signal_that_ends_the_server_takes_the_mount_away() {
    let place = Place::new();
    for signal in [Signal::TERM, Signal::INT, Signal::HUP] {
        let server = place.serve("", &[]);
        assert_eq!(std::fs::metadata(&place.file).expect("the disk").len(), SIZE);
        server.stop_with(signal);
        assert!(!is_mounted(&place.file), "after {signal:?}");
    }
    // With a program that has it open, too.
    let server = place.serve("", &[]);
    let open = File::open(&place.file).expect("the disk");
    server.stop();
    assert!(!is_mounted(&place.file));
    assert!(open.metadata().is_err(), "its server is gone");
}

#[test]
fn a_server_that_is_killed_leaves_no_mount() {
    let place = Place::new();
    place.serve("", &[]).kill();
    eventually("the mount goes", || !is_mounted(&place.file));
    assert_eq!(std::fs::metadata(&place.file).expect("the file below").len(), 0);
}

/// The processes that take mounts away are killed, too: what is left answers ENOTCONN, and the next server takes its place.
#[test]
fn a_mount_whose_server_is_gone_is_replaced() {
    let place = Place::new();
    let server = place.serve("", &[]);
    let watchers = children(server.pid());
    assert_eq!(watchers.len(), 1, "one process watches");
    // SIGTERM, as to a whole group, is outlived.
    Run::new("kill").args(&watchers).ok();
    Run::new("kill").arg("-KILL").args(&watchers).ok();
    server.kill();
    // The kernel closes the device a moment after the process: requests until then are broken off.
    let stale = || File::open(&place.file).map(drop).map_err(|error| error.raw_os_error());
    eventually("nobody answers", || stale() == Err(Some(Errno::NOTCONN.raw_os_error())));
    let server = place.serve("", &[]);
    assert!(
        server.stderr().contains("a mount whose server is gone was there: replaced"),
        "{}",
        server.stderr()
    );
    assert_eq!(std::fs::metadata(&place.file).expect("the disk").len(), SIZE);
    server.stop();
    assert!(!is_mounted(&place.file));
}

fn children(pid: u32) -> Vec<String> {
    let mut children = Vec::new();
    for task in std::fs::read_dir(format!("/proc/{pid}/task")).expect("a process").flatten() {
        let text = std::fs::read_to_string(task.path().join("children")).unwrap_or_default();
        children.extend(text.split_whitespace().map(str::to_owned));
    }
    children
}

#[test]
fn a_program_that_mounts_ends_when_its_file_is_unmounted() {
    let place = Place::new();
    place.mount(&[]);
    Run::new("dd")
        .args(["if=/dev/urandom", "bs=1M", "count=3", "conv=notrunc,fsync"])
        .arg(format!("of={}", place.name()))
        .ok();
    let written = std::fs::read(&place.file).expect("the disk");
    place.unmount();
    assert!(place.content() == written);
}

#[test]
fn what_cannot_be_mounted_over_is_said_with_what_to_do() {
    let place = Place::new();
    let refused = |file: &str| cowhand(["mount", &place.disk, file]).fails();
    let missing = refused(&place.scratch.name("missing"));
    assert!(missing.contains("touch") && missing.contains("No such file"), "{missing}");
    let directory = refused(place.scratch.path().to_str().expect("a path"));
    assert!(directory.contains("no regular file"), "{directory}");
    let itself = refused(&place.disk);
    assert!(itself.contains("is an image of the disk"), "{itself}");
    let mount = place.serve("", &[]);
    let names = Server::refuses(["--fuse", place.name(), &place.disk, place.name()]);
    assert!(names.contains("say which disk"), "{names}");
    mount.stop();
}

#[test]
fn a_disk_that_is_read_only_cannot_be_opened_for_writing() {
    let place = Place::new();
    let server = place.serve("", &["--read-only"]);
    let metadata = std::fs::metadata(&place.file).expect("the disk");
    assert_eq!((metadata.mode(), metadata.uid()), (0o100_400, rustix::process::geteuid().as_raw()));
    let opened = File::options().write(true).open(&place.file).map(drop);
    assert_eq!(opened.map_err(|error| error.raw_os_error()), Err(Some(Errno::ROFS.raw_os_error())));
    server.stop();
}

/// Users other than root mount by fusermount3.
#[test]
fn a_user_mounts_and_unmounts_by_fusermount3() {
    const NOBODY: [&str; 3] = ["--reuid=65534", "--regid=65534", "--clear-groups"];
    let place = Place::new();
    let own = std::env::temp_dir().join(format!("cowhand-fuse-user-{}", std::process::id()));
    std::fs::create_dir_all(&own).expect("a directory");
    std::fs::set_permissions(&own, std::fs::Permissions::from_mode(0o777)).expect("for everybody");
    let (program, disk, file) = (own.join("cowhand"), own.join("disk.qcow2"), own.join("disk.raw"));
    std::fs::copy(program::path(), &program).expect("the program");
    std::fs::copy(&place.disk, &disk).expect("a disk");
    File::create(&file).expect("a file");
    for path in [&disk, &file] {
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o666)).expect("for everybody");
        Run::new("chown").arg("65534").arg(path).ok();
    }
    let as_user = |words: &[&str]| Run::new("setpriv").args(NOBODY).args(words);
    let path = |path: &std::path::Path| path.to_str().expect("a path").to_owned();
    let (program, disk_name, file_name) = (path(&program), path(&disk), path(&file));
    let done = std::panic::catch_unwind(|| {
        as_user(&[&program, "mount", "-b", &disk_name, &file_name]).current_dir(&own).ok();
        as_user(&["dd", "if=/dev/urandom", "bs=64k", "count=5", "conv=notrunc", &format!("of={file_name}")])
            .ok();
        // root is another user, and the file was not mounted for others.
        assert!(File::open(&file).is_err());
        as_user(&["fusermount3", "-u", &file_name]).ok();
        eventually("the disk is given back", || {
            Run::new("qemu-io").args(["-f", "qcow2", "-c", "flush", &disk_name]).outcome().status.success()
        });
    });
    let _ = Command::new("umount").arg("-l").arg(&file).output();
    std::fs::remove_dir_all(&own).expect("a directory");
    done.expect("a user's mount");
}

/// Nothing of the server's can mount or run programs any more, and its mount goes all the same.
#[test]
fn the_sandbox_holds_over_a_mount() {
    let place = Place::new();
    let qmp = place.scratch.name("qmp.sock");
    let server =
        Start::new(["--fuse", place.name(), "--qmp", &qmp, &place.disk]).listen().expect("it serves");
    let mut commands = Qmp::connect(qmp.as_ref());
    // It answers in the sandbox.
    commands.ok("query-status", serde_json::json!({}));
    let status = std::fs::read_to_string(format!("/proc/{}/status", server.pid())).expect("a process");
    assert!(status.contains("Seccomp:\t2") && status.contains("NoNewPrivs:\t1"), "{status}");
    let other = place.scratch.name("other.raw");
    File::create(&other).expect("a file");
    let export = serde_json::json!({ "type": "fuse", "id": "e", "node-name": "disk", "mountpoint": other });
    let refused = commands.refused("block-export-add", export);
    assert!(refused.contains("--sandbox off"), "{refused}");
    let export = serde_json::json!({ "id": "disk-fuse0" });
    commands.ok("block-export-del", export);
    assert_eq!(commands.event("BLOCK_EXPORT_DELETED")["data"]["id"], "disk-fuse0");
    assert!(!is_mounted(&place.file));
    server.stop();
}

/// The sandbox let no connection be made any more: a mount of a disk on a server was lost with the first one.
#[test]
fn a_mount_of_a_disk_on_a_server_survives_the_end_of_its_connections() {
    let scratch = Scratch::new();
    let data = Random::of_name("mount").bytes(8 << 20);
    scratch.write("disk", &data);
    let file = scratch.write("file", b"");
    let mut store = Nginx::start(scratch.path(), &crate::remote::certificates());
    let options = "driver=raw,read-only=on,file.driver=http,file.readahead=0,file.on-remote-error=wait";
    let drive = format!("{options},file.url={}", store.url("/disk"));
    let (qmp, place) = (scratch.file("qmp"), &file);
    cowhand(["mount", "--background", "--qmp"]).arg(&qmp).arg(drive).arg(place).ok();
    let read = |at: usize| {
        let mut bytes = vec![0; 4096];
        let open = File::open(place).and_then(|open| open.read_exact_at(&mut bytes, at as u64));
        open.map(|()| assert!(bytes == data[at..at + 4096]))
    };
    read(0).expect("the server is there");
    let mut control = Qmp::connect(&qmp);
    for at in [3 << 20, 5 << 20] {
        store.kill();
        std::thread::scope(|scope| {
            let reader = scope.spawn(|| read(at));
            control.event("X_REMOTE_LOST");
            store.restart();
            reader.join().expect("a thread").expect("it waits for the server");
        });
        control.event("X_REMOTE_BACK");
    }
    Run::new("umount").arg(place).ok();
}

/// A redirect leads where the user did not say: it is not followed, unless that is allowed.
#[test]
fn a_mount_is_led_elsewhere_only_where_that_is_allowed() {
    let (scratch, data) = (Scratch::new(), Random::of_name("mount").bytes(1 << 20));
    let file = scratch.write("file", b"");
    let (store, other) = (FaultServer::start(data.clone()), FaultServer::start(data.clone()));
    let drive = format!("driver=raw,read-only=on,file={}", store.url());
    let elsewhere = Fault::RedirectTo(other.port());
    store.fail(&[elsewhere]);
    let refused = cowhand(["mount", "--background", &drive]).arg(&file).fails();
    let way = format!("127.0.0.1:{}", other.port());
    assert!(refused.contains(&format!("--allow-connect {way}")), "{refused}");
    store.fail(&[elsewhere]);
    cowhand(["mount", "--background", "--allow-connect", &way, &drive]).arg(&file).ok();
    assert!(std::fs::read(&file).expect("the disk") == data);
    assert!(other.requests() > 0);
    Run::new("umount").arg(&file).ok();
}
