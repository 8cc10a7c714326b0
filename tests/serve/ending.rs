//! The end: what is in flight is finished, metadata is written, locks are given back.

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use black_box::client::Request;
use black_box::peer::{assert_clean, qemu_io_ok};
use black_box::server::Start;
use black_box::{Client, Scratch, Server};
use rustix::process::Signal;

use super::create;

#[test]
fn each_signal_that_ends_it_ends_it_in_order() {
    for signal in [Signal::TERM, Signal::INT, Signal::HUP, Signal::QUIT] {
        let scratch = Scratch::new();
        let path = create(&scratch, "disk.qcow2", "64M");
        let (socket, pid_file) = (scratch.name("s"), scratch.name("pid"));
        let args = ["--socket", &socket, "--pid-file", &pid_file, &path];
        let server = Start::new(args).listening_on(&socket).listen().expect("it serves");
        let written = std::fs::read_to_string(&pid_file).expect("a pid file");
        assert_eq!(written.trim(), server.pid().to_string());
        let mut client = server.client("");
        client.write(1 << 20, &[7; 1 << 20]).expect("write");
        // Neither flushed nor disconnected: the end does both.
        server.stop_with(signal);
        assert!(!Path::new(&socket).exists() && !Path::new(&pid_file).exists());
        assert_clean(Path::new(&path));
        qemu_io_ok(&["-f", "qcow2"], &path, &["read -P 7 1M 1M", "write 0 512"]);
        drop(client);
    }
}

#[test]
fn what_was_acknowledged_before_the_end_is_there_after_it() {
    let scratch = Scratch::new();
    let path = create(&scratch, "disk.qcow2", "64M");
    let server = Server::start([&path]);
    let mut client = server.client("");
    let data = [0x5c; 64 << 10];
    let mut offsets = std::collections::HashMap::new();
    for index in 0..64_u64 {
        let offset = index << 20;
        offsets.insert(client.send(&Request::write(offset, &data)).expect("send"), offset);
    }
    server.signal(Signal::TERM);
    let mut acknowledged = Vec::new();
    while let Ok(reply) = client.receive() {
        if reply.error == 0 {
            acknowledged.push(offsets[&reply.cookie]);
        }
        if client.in_flight() == 0 {
            break;
        }
    }
    let mut server = server;
    assert!(server.outcome().status.success());
    assert_clean(Path::new(&path));
    let reads: Vec<String> = acknowledged.iter().map(|offset| format!("read -P 0x5c {offset} 64k")).collect();
    qemu_io_ok(&["-f", "qcow2"], &path, &reads);
}

/// A system call of one loop did not return (memory in a file system that did not answer), and the server did not end on SIGTERM: other
/// disks were not closed. A debugger that delays the calls of one thread stands for it.
#[test]
fn a_loop_that_does_not_answer_is_named_and_keeps_the_end_of_no_other_disk() {
    let scratch = Scratch::new();
    let (path, pid_file) = (create(&scratch, "disk.qcow2", "64M"), scratch.name("pid"));
    let mut server = Server::start([
        "--threads",
        "2",
        "--sandbox",
        "off",
        "--log",
        "debug",
        "--pid-file",
        &pid_file,
        &path,
    ]);
    let mut clients = [server.client(""), server.client("")];
    clients.iter_mut().for_each(|client| client.write(1 << 20, &[7; 1 << 20]).expect("write"));
    let tasks = std::fs::read_dir(format!("/proc/{}/task", server.pid())).expect("threads");
    let mut tasks = tasks.map(|task| task.expect("a thread").path());
    let is_first = |task: &PathBuf| {
        std::fs::read_to_string(task.join("comm")).is_ok_and(|name| name == "cowhand-loop-0\n")
    };
    let thread = tasks.find(is_first).expect("a loop").file_name().expect("a number").to_owned();
    let inject = "inject=io_uring_enter,poll,read:delay_enter=600s";
    let mut debugger = Command::new("strace")
        .args(["-o", "/dev/null", "-e", inject, "-p"])
        .arg(thread)
        .stderr(Stdio::piped())
        .spawn()
        .expect("strace");
    let mut said = BufReader::new(debugger.stderr.take().expect("its errors"));
    said.read_line(&mut String::new()).expect("it says that it is attached");
    server.signal(Signal::TERM);
    // A thread that is traced ends when it is not traced any more.
    let over = |server: &Server| server.stderr().contains("ended without a loop").then_some(());
    server.wait_until(over).expect("it ends");
    debugger.kill().and_then(|()| debugger.wait()).expect("strace ends");
    let outcome = server.outcome();
    assert_eq!(outcome.status.code(), Some(1), "{outcome}");
    assert!(outcome.stderr.contains("cowhand-loop-0 does not answer"), "{outcome}");
    assert!(!Path::new(&pid_file).exists());
    assert_clean(Path::new(&path));
    qemu_io_ok(&["-f", "qcow2"], &path, &["read -P 7 1M 1M", "write 0 512"]);
    drop(clients);
}

#[test]
fn idle_connections_do_not_keep_it() {
    let scratch = Scratch::new();
    let path = create(&scratch, "disk.qcow2", "1M");
    let server = Server::start([&path]);
    let idle: Vec<Client> = (0..5).map(|_| server.client("")).collect();
    // One that never says a word.
    let silent = std::os::unix::net::UnixStream::connect(server.socket()).expect("connect");
    server.stop();
    drop((idle, silent));
}

#[test]
fn a_pid_file_of_a_living_server_is_not_taken_over() {
    let scratch = Scratch::new();
    let (a, b) = (create(&scratch, "a.qcow2", "1M"), create(&scratch, "b.qcow2", "1M"));
    let pid_file = scratch.name("pid");
    let server = Server::start(["--pid-file", &pid_file, &a]);
    Server::refuses(["--pid-file", &pid_file, &b]);
    assert_eq!(std::fs::read_to_string(&pid_file).expect("a pid file").trim(), server.pid().to_string());
    server.kill();
    // A dead server's is.
    Server::start(["--pid-file", &pid_file, &b]).stop();
}

#[test]
fn a_socket_of_a_living_server_is_not_taken_over_and_a_dead_ones_is() {
    let scratch = Scratch::new();
    let (a, b) = (create(&scratch, "a.qcow2", "1M"), create(&scratch, "b.qcow2", "1M"));
    let socket = scratch.name("s");
    let start = |path: &str| Start::new(["--socket", &socket, path]).listening_on(&socket);
    let server = start(&a).listen().expect("it serves");
    let outcome = start(&b).spawn().outcome();
    assert_eq!(outcome.status.code(), Some(1), "{outcome}");
    assert!(outcome.stderr.contains(&socket), "{outcome}");
    assert_eq!(server.client("").size(), 1 << 20);
    server.kill();
    let mut second = start(&b).spawn();
    let client = second.wait_until(|_| Client::connect(Path::new(&socket), "b").ok());
    assert!(client.is_some());
    second.stop();
}
