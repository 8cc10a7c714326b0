//! Names lead to the disk that they name, today and after a restart in another order.
//!
//! The socket of `bb/disk.qcow2` was `disk.sock` or `disk-2.sock`, depending on whether `aa/disk.qcow2` was served already, and the empty name
//! was the first of several exports: a script that remembered either wrote to another virtual machine's disk.

use black_box::peer::{qemu_img, qemu_io_ok};
use black_box::server::Start;
use black_box::{Client, Scratch, Server};

use super::printed::line;

/// Two disks of one name, each filled with its own byte.
fn two_disks(scratch: &Scratch) -> [String; 2] {
    ["aa", "bb"].map(|directory| {
        std::fs::create_dir(scratch.file(directory)).expect("a directory");
        let path = scratch.name(&format!("{directory}/disk.qcow2"));
        qemu_img(["create", "-q", "-f", "qcow2", &path, "1M"]).ok();
        let pattern = if directory == "aa" { 0xaa } else { 0xbb };
        qemu_io_ok(&["-f", "qcow2"], &path, &[format!("write -P {pattern} 0 1M")]);
        path
    })
}

fn start(scratch: &Scratch, args: &[&str]) -> Server {
    let start = Start::new(args).listening_on(scratch.file("none")).current_dir(scratch.path());
    let mut server = start.env("XDG_RUNTIME_DIR", scratch.path()).spawn();
    let printed = server.wait_until(|server| server.stdout().contains("fio").then_some(()));
    assert!(printed.is_some(), "{}{}", server.stdout(), server.stderr());
    server
}

#[test]
fn a_disk_is_reached_by_the_same_uri_whatever_was_started_before_it() {
    let scratch = Scratch::new();
    two_disks(&scratch);
    let mut seen = Vec::new();
    // The second time from another directory, and in the other order.
    for order in [["aa/disk.qcow2", "bb/disk.qcow2"], ["./bb/../bb/disk.qcow2", "aa/disk.qcow2"]] {
        let servers = order.map(|path| start(&scratch, &[path]));
        for server in &servers {
            let uri = line(server, "URI");
            let pattern = if server.stdout().contains("aa/disk") { 0xaa } else { 0xbb };
            qemu_io_ok(&["-r", "-f", "raw"], &uri, &[format!("read -P {pattern} 0 1M")]);
            seen.push((pattern, uri));
        }
        servers.into_iter().for_each(|server| _ = server.stop());
    }
    seen.sort();
    seen.dedup();
    assert_eq!(seen.len(), 2, "each disk has one URI: {seen:?}");
    assert_ne!(seen[0].1, seen[1].1);
}

#[test]
fn a_second_server_of_a_disk_is_not_put_under_another_name() {
    let scratch = Scratch::new();
    two_disks(&scratch);
    let first = start(&scratch, &["--read-only", "aa/disk.qcow2"]);
    let second = Start::new(["--read-only", "aa/disk.qcow2"]).listening_on(scratch.file("none"));
    let refused = second.current_dir(scratch.path()).env("XDG_RUNTIME_DIR", scratch.path()).spawn().outcome();
    assert_eq!(refused.status.code(), Some(1), "{refused}");
    let process = format!("process {}", first.pid());
    assert!(refused.stderr.contains(&process) && refused.stderr.contains("--socket PATH"), "{refused}");
    first.stop();
}

#[test]
fn disks_of_one_name_in_one_server_are_kept_apart_by_their_directories() {
    let scratch = Scratch::new();
    let [a, b] = two_disks(&scratch);
    for order in [[&a, &b], [&b, &a]] {
        let server = Server::start(order);
        assert_eq!(server.client("aa/disk").read(0, 1).expect("read"), [0xaa]);
        assert_eq!(server.client("bb/disk").read(0, 1).expect("read"), [0xbb]);
        Client::connect(server.socket(), "disk").expect_err("it could be either");
        server.stop();
    }
    let server = Server::start([a, format!("file={b},id=disk")]);
    assert_eq!(server.client("disk").read(0, 1).expect("a name that was given wins"), [0xbb]);
    assert_eq!(server.client("disk.qcow2").read(0, 1).expect("read"), [0xaa]);
    server.stop();
}

#[test]
fn the_empty_name_means_a_disk_only_where_there_is_one_or_one_was_said() {
    let scratch = Scratch::new();
    let [a, b] = two_disks(&scratch);
    let server = Server::start([&a]);
    assert_eq!(server.client("").read(0, 1).expect("the only one"), [0xaa]);
    server.stop();

    let server = Server::start([&a, &b]);
    let said = Client::connect(server.socket(), "").expect_err("it could be either").to_string();
    assert!(said.contains(r#"name one of "aa/disk" and "bb/disk""#), "{said}");
    let said = Client::connect(server.socket(), "cc").expect_err("there is none").to_string();
    assert!(said.contains(r#"there is no export "cc"; name one of "#), "{said}");
    server.stop();

    let server = Server::start(["--default-export", "bb/disk", &a, &b]);
    assert_eq!(server.client("").read(0, 1).expect("it was said"), [0xbb]);
    server.stop();
    let said = Server::refuses(["--default-export", "cc", &a, &b]);
    assert!(said.contains("there is no such export"), "{said}");
}
