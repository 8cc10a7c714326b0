//! `qemu-nbd`.

use std::fs;
use std::path::Path;

use black_box::peer::{nbdsh, qemu_img, qemu_io_ok};
use black_box::ports::free_port;
use black_box::{Run, Scratch};
use rustix::process::{Pid, Signal, kill_process};

use super::{Server, contexts, gone, images, ours, seen};
use crate::serve::tls::certificates;

/// Scripts start one, copy, and wait for it.
#[test]
fn it_ends_when_its_last_client_leaves_and_what_was_written_is_there() {
    let scratch = images();
    let mut server =
        Server::start(&ours("qemu-nbd"), scratch.path(), &["-k", "s", "-f", "qcow2", "disk.qcow2"]);
    qemu_io_ok(&["-f", "raw"], &server.uri(""), &["write -P 7 1M 64k"]);
    assert!(server.ended().success());
    assert!(!scratch.file("s").exists());
    qemu_io_ok(&["-f", "qcow2"], &scratch.name("disk.qcow2"), &["read -P 7 1M 64k", "read -P 1 0 1M"]);
    qemu_img(["check", &scratch.name("disk.qcow2")]).ok();
}

#[test]
fn with_t_it_stays_and_a_signal_ends_it() {
    let scratch = images();
    let mut server =
        Server::start(&ours("qemu-nbd"), scratch.path(), &["-t", "-k", "s", "-f", "qcow2", "disk.qcow2"]);
    for _ in 0..3 {
        qemu_io_ok(&["-f", "raw"], &server.uri(""), &["read -P 1 0 1M"]);
    }
    assert!(server.is_running());
    let pid = Pid::from_raw(i32::try_from(server.child.id()).expect("a number")).expect("a number");
    kill_process(pid, Signal::TERM).expect("a signal");
    assert!(server.ended().success());
}

/// Clients show what the server says of a name that it does not have.
#[test]
fn a_wrong_name_is_refused_in_qemus_words() {
    let look = |program: &Path| {
        let scratch = images();
        let socket = scratch.name("s");
        let words = ["-t", "-x", "a", "-k", &socket, "-f", "raw", "disk.raw"];
        let server = Server::start(program, scratch.path(), &words);
        let uri = server.uri("b");
        let refused = Run::new("qemu-io").args(["-r", "-f", "raw", "-c", "read 0 1", &uri]).fails();
        refused.lines().last().map(str::to_owned)
    };
    let ours = look(&ours("qemu-nbd"));
    assert_eq!(ours, look(Path::new("qemu-nbd")));
    assert!(ours.is_some_and(|said| said.ends_with("export 'b' not present")));
}

#[test]
fn clients_see_what_they_see_of_qemu_nbd() {
    let table: [(&str, &str); 9] = [
        ("", "-f qcow2 disk.qcow2"),
        ("", "-r -f qcow2 disk.qcow2"),
        ("name", "-x name -D words -f qcow2 disk.qcow2"),
        ("", "-A -f qcow2 disk.qcow2"),
        ("", "-B daily -f qcow2 disk.qcow2"),
        ("", "-e 4 -f qcow2 disk.qcow2"),
        ("", "-f raw -o 1048576 disk.raw"),
        ("", "--format=raw --cache=none --aio=io_uring --discard=unmap --detect-zeroes=on disk.raw"),
        ("", "--image-opts driver=qcow2,file.driver=file,file.filename=disk.qcow2"),
    ];
    for (name, line) in table {
        let look = |program: &std::path::Path| {
            // QEMU marks bitmaps when it opens an image, and takes the mark back when it closes it: each has images of its own.
            let scratch = images();
            let socket = scratch.name("s");
            let args: Vec<_> = ["-t", "-k", &socket].into_iter().chain(line.split(' ')).collect();
            let server = Server::start(program, scratch.path(), &args);
            let uri = server.uri(name);
            let copy = scratch.name("copy.raw");
            drop(Run::new("nbdcopy").args([&uri, &copy]).ok());
            (seen(&uri), contexts(&uri), fs::read(&copy).expect("a copy"))
        };
        let theirs = look(std::path::Path::new("qemu-nbd"));
        let ours = look(&ours("qemu-nbd"));
        assert_eq!((&ours.0, &ours.1), (&theirs.0, &theirs.1), "{line}");
        assert!(ours.2 == theirs.2, "{line}: the content differs");
    }
}

#[test]
fn exports_are_listed_as_qemu_nbd_lists_them() {
    for line in ["-f qcow2 disk.qcow2", "-x name -D words -r -A -B daily -f qcow2 disk.qcow2"] {
        let scratch = images();
        let socket = scratch.name("s");
        let args: Vec<_> = ["-t", "-k", &socket].into_iter().chain(line.split(' ')).collect();
        let _server = Server::start(Path::new("qemu-nbd"), scratch.path(), &args);
        let listed = |program: &Path| {
            let list = Run::new(program).args(["-L", "-k", &socket]).ok();
            // Older versions know lengths of 32 bits alone, and do not say so.
            let lines = list.lines().filter(|line| !line.starts_with("  transaction size: "));
            lines.map(str::to_owned).collect::<Vec<_>>()
        };
        assert_eq!(listed(&ours("qemu-nbd")), listed(Path::new("qemu-nbd")), "{line}");
    }
    let scratch = images();
    let _server = Server::start(
        &ours("qemu-nbd"),
        scratch.path(),
        &["-t", "-k", "s", "-x", "n", "-f", "raw", "disk.raw"],
    );
    let list = Run::new(ours("qemu-nbd")).args(["-L", "-k", &scratch.name("s")]).ok();
    assert!(list.starts_with("exports available: 1\n export: 'n'\n  size:  4194304\n"), "{list}");
    assert!(
        list.contains("\n  transaction size: 64-bit\n") && list.contains("\n   base:allocation\n"),
        "{list}"
    );
}

#[test]
fn a_snapshot_is_served_for_reading_as_qemu_nbd_serves_it() {
    for which in ["s", "snapshot.name=s", "snapshot.id=1"] {
        let look = |program: &std::path::Path| {
            let scratch = images();
            qemu_img(["snapshot", "-c", "s", &scratch.name("disk.qcow2")]).ok();
            qemu_io_ok(&["-f", "qcow2"], &scratch.name("disk.qcow2"), &["write -P 9 0 2M"]);
            let socket = scratch.name("s");
            let args = ["-t", "-k", &socket, "-f", "qcow2", "-l", which, "disk.qcow2"];
            let server = Server::start(program, scratch.path(), &args);
            let copy = scratch.name("copy.raw");
            drop(Run::new("nbdcopy").args([&server.uri(""), &copy]).ok());
            assert!(
                fs::read(&copy).ok() == fs::read(scratch.file("disk.raw")).ok(),
                "the disk was so when it was taken"
            );
            seen(&server.uri(""))
        };
        assert_eq!(look(&ours("qemu-nbd")), look(std::path::Path::new("qemu-nbd")), "{which}");
    }
    let scratch = images();
    let run = |words: &str| Run::new(ours("qemu-nbd")).args(words.split(' ')).current_dir(scratch.path());
    assert!(run("-k s -f qcow2 -l missing disk.qcow2").fails().contains("missing"));
}

#[test]
fn with_s_the_image_stays_as_it_was() {
    for (format, name) in [("qcow2", "disk.qcow2"), ("raw", "disk.raw")] {
        let scratch = images();
        let before = fs::read(scratch.file(name)).expect("an image");
        fs::create_dir(scratch.file("tmp")).expect("a directory");
        let mut command = std::process::Command::new(ours("qemu-nbd"));
        command.args(["-s", "-k", "s", "-f", format, name]).env("TMPDIR", scratch.file("tmp"));
        let mut server = Server::spawn(command, scratch.path());
        let left: Vec<_> = fs::read_dir(scratch.file("tmp")).expect("a directory").collect();
        assert!(left.is_empty(), "the overlay has no name: {left:?}");
        let steps = ["write -P 9 0 128k", "read -P 9 0 128k", "read -P 1 128k 128k", "flush"];
        qemu_io_ok(&["-f", "raw"], &server.uri(""), &steps);
        assert!(server.ended().success());
        assert!(fs::read(scratch.file(name)).expect("an image") == before, "{name} was written");
    }
}

#[test]
fn as_many_clients_as_were_said_are_connected_and_the_next_one_waits() {
    let scratch = images();
    let server = Server::start(
        &ours("qemu-nbd"),
        scratch.path(),
        &["-t", "-e", "2", "-k", "s", "-f", "raw", "disk.raw"],
    );
    let uri = server.uri("");
    let script = format!(
        "second = nbd.NBD()\nsecond.connect_uri('{uri}')\nthird = nbd.NBD()\nthird.aio_connect_uri('{uri}')\n\
         for _ in range(5):\n    third.poll(60)\nprint(third.aio_is_connecting())\nsecond.shutdown()\n\
         while third.aio_is_connecting():\n    third.poll(-1)\nprint(third.aio_is_ready(), third.get_size())\n"
    );
    let size = fs::metadata(scratch.file("disk.raw")).expect("a disk").len();
    assert_eq!(nbdsh(&uri, &script).ok(), format!("True\nTrue {size}\n"));
}

#[test]
fn in_the_background_it_has_a_pid_file_and_listens_before_it_returns() {
    let scratch = images();
    let run = |words: &str| Run::new(ours("qemu-nbd")).args(words.split(' ')).current_dir(scratch.path());
    drop(run("--fork -t -k s --pid-file pid -f qcow2 disk.qcow2").ok());
    let uri = format!("nbd+unix:///?socket={}", scratch.name("s"));
    qemu_io_ok(&["-f", "raw"], &uri, &["read -P 1 0 1M"]);
    let pid: i32 =
        fs::read_to_string(scratch.file("pid")).expect("a pid file").trim().parse().expect("a number");
    kill_process(Pid::from_raw(pid).expect("a number"), Signal::TERM).expect("a signal");
    gone(&scratch.file("s"));
    assert!(
        run("--fork -k s -f qcow2 missing.qcow2").fails().starts_with("qemu-nbd: cannot serve missing.qcow2")
    );
    assert!(!scratch.file("s").exists());
}

/// `nbdcopy -- [ qemu-nbd ... ]` hands a socket over.
#[test]
fn a_socket_that_is_handed_over_is_served() {
    let scratch = images();
    let server = ours("qemu-nbd");
    let words = ["--", "[", server.to_str().expect("a path"), "-f", "qcow2", "disk.qcow2", "]", "copy.raw"];
    drop(Run::new("nbdcopy").args(words).current_dir(scratch.path()).ok());
    assert!(fs::read(scratch.file("copy.raw")).ok() == fs::read(scratch.file("disk.raw")).ok());
}

#[test]
fn over_tcp_with_credentials_clients_must_use_tls() {
    let scratch = images();
    certificates(scratch.path());
    let port = free_port();
    let directory = scratch.path().display().to_string();
    let object = format!("tls-creds-x509,id=t,dir={directory},endpoint=server,verify-peer=on");
    let line = format!(
        "--fork -t -b 127.0.0.1 -p {port} --pid-file pid --object {object} --tls-creds t -f qcow2 disk.qcow2"
    );
    drop(Run::new(ours("qemu-nbd")).args(line.split(' ')).current_dir(scratch.path()).ok());
    let with = format!("nbds://localhost:{port}/?tls-certificates={directory}");
    let reported = Run::new("nbdinfo").args(["--json", &with]).json();
    Run::new("nbdinfo").arg(format!("nbd://localhost:{port}/")).fails();
    let pid: i32 =
        fs::read_to_string(scratch.file("pid")).expect("a pid file").trim().parse().expect("a number");
    kill_process(Pid::from_raw(pid).expect("a number"), Signal::TERM).expect("a signal");
    assert_eq!(reported["exports"][0]["export-size"], 4 << 20);
    assert_eq!(reported["TLS"], true, "{reported}");
}

#[test]
fn what_is_not_done_here_is_refused_by_name() {
    let scratch = images();
    let table = [
        ("-c /dev/null disk.raw", "/dev/nbd0"),
        ("-c /dev/nbd0 -L disk.raw", "-L"),
        ("-d /dev/null", "/dev/nbd0"),
        ("-d", "-d"),
        ("-L -k missing", "missing"),
        ("-k s -s -f raw -o 512 disk.raw", "-o"),
        ("-k s -l first -f qcow2 disk.qcow2", "first"),
        ("-k s -l first -s -f qcow2 disk.qcow2", "--snapshot"),
        ("--tls-authz a -f raw disk.raw", "--tls-authz"),
        ("-k s -B missing -f qcow2 disk.qcow2", "missing"),
        ("-k s --tls-creds missing -f qcow2 disk.qcow2", "missing"),
        ("-k s --object secret,id=a -f qcow2 disk.qcow2", "secret"),
        ("-k s -o 1M -f qcow2 disk.qcow2", "-o"),
        ("-k s disk.raw", "-f raw"),
        ("-k s -f raw", "FILE"),
        ("--nonsense", "--nonsense"),
        ("-k s -f raw disk.raw other", "other"),
    ];
    for (line, named) in table {
        let refused = Run::new(ours("qemu-nbd")).args(line.split(' ')).current_dir(scratch.path()).fails();
        assert!(refused.starts_with("qemu-nbd: ") && refused.contains(named), "{line}: {refused}");
        assert!(!scratch.file("s").exists(), "{line}");
    }
}

/// QEMU looks for a bitmap down the chain.
#[test]
fn a_bitmap_of_an_image_below_is_shown() {
    let scratch = Scratch::new();
    let (base, over) = (scratch.name("base.qcow2"), scratch.name("over.qcow2"));
    let img = |words: &[&str]| drop(Run::new("qemu-img").args(words).ok());
    img(&["create", "-q", "-f", "qcow2", &base, "4M"]);
    img(&["bitmap", "--add", &base, "b"]);
    qemu_io_ok(&["-f", "qcow2"], &base, &["write 1M 64k"]);
    img(&["create", "-q", "-f", "qcow2", "-b", &base, "-F", "qcow2", &over]);
    let map = |program: &std::path::Path| {
        let server = Server::start(
            program,
            scratch.path(),
            &["-t", "-r", "-f", "qcow2", "-k", &scratch.name("s"), "-B", "b", &over],
        );
        let map = Run::new("nbdinfo").args(["--json", "--map=qemu:dirty-bitmap:b", &server.uri("")]).ok();
        drop(server);
        let _ = std::fs::remove_file(scratch.file("s"));
        map.to_string()
    };
    assert_eq!(map(&ours("qemu-nbd")), map(std::path::Path::new("qemu-nbd")));
}
