//! A server that has given up its privileges does everything that it did with them, and nothing else.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use std::time::Duration;

use black_box::server::Start;
use black_box::{Run, Scratch, Server, peer};

/// The value of a line of /proc/PID/status, of every thread.
fn status(pid: u32, name: &str) -> Vec<String> {
    let tasks = std::fs::read_dir(format!("/proc/{pid}/task")).unwrap();
    // A thread may end while the others are looked at.
    let texts = tasks.filter_map(|task| std::fs::read_to_string(task.unwrap().path().join("status")).ok());
    let value = |text: String| {
        let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
        line.unwrap_or_else(|| panic!("no {name} in {text}")).trim().to_owned()
    };
    texts.map(value).collect()
}

fn all(values: Vec<String>, expected: &str) {
    assert!(!values.is_empty() && values.iter().all(|value| value == expected), "{values:?}");
}

/// Every thread of the server is behind the fences.
fn assert_sandboxed(server: &Server) {
    all(status(server.pid(), "NoNewPrivs"), "1");
    all(status(server.pid(), "Seccomp"), "2");
}

/// A server that accepts clients: it announces its disks once it is behind the fences, though its socket listens before.
fn started(start: Start) -> Server {
    let mut server = start.listen().unwrap_or_else(|error| panic!("{}", error.0));
    server.wait_until(|server| (!server.stdout().is_empty()).then_some(())).expect("it serves");
    server
}

/// Serves a new disk with `options`, copies to and from it, verifies under load, ends it.
fn serves_all_its_life(options: &str) {
    let scratch = Scratch::new();
    let (disk, pid_file) = (scratch.name("disk.qcow2"), scratch.file("pid"));
    let start = Start::new(["--create", "64M", "--log", "info", "--pid-file"]).arg(&pid_file);
    let server = started(start.arg(format!("file={disk}{options}")));
    assert_sandboxed(&server);
    let uri = server.uri("disk");
    let bytes: Vec<u8> = (0..8u32 << 20).map(|at| (at >> 10) as u8 | 1).collect();
    let source = scratch.write("source", &bytes);
    Run::new("nbdcopy").arg(&source).arg(&uri).ok();
    let back = scratch.file("back");
    Run::new("nbdcopy").arg(&uri).arg(&back).ok();
    assert!(std::fs::read(&back).unwrap()[..bytes.len()] == bytes);
    let load = ["--name=load", "--rw=randwrite", "--bs=4k", "--size=16M", "--iodepth=16", "--numjobs=2"];
    let verify = ["--offset_increment=16M", "--verify=crc32c", "--verify_state_save=0"];
    peer::fio(&uri, &[&load[..], &verify[..]].concat(), Duration::from_secs(60));
    // Threads that came under load inherit.
    assert_sandboxed(&server);
    let socket = server.socket().to_owned();
    let stderr = server.stderr();
    assert!(stderr.contains("sandbox:"), "{stderr}");
    server.stop();
    assert!(!socket.exists() && !pid_file.exists(), "names stay behind");
    peer::assert_clean(disk.as_ref());
}

#[test]
fn a_sandboxed_server_does_everything_with_a_ring() {
    serves_all_its_life(",aio=io_uring,discard=unmap");
}

#[test]
fn a_sandboxed_server_does_everything_with_threads() {
    serves_all_its_life(",aio=threads,cache=none");
}

#[test]
fn a_sandboxed_server_speaks_tls() {
    let scratch = Scratch::new();
    let made = rcgen::generate_simple_self_signed(["localhost".to_owned()]).unwrap();
    let cert = scratch.write("ca-cert.pem", made.cert.pem().as_bytes());
    let key = scratch.write("key.pem", made.signing_key.serialize_pem().as_bytes());
    let disk = scratch.name("disk.qcow2");
    let server = Start::new(["--create", "16M"]).arg("--tls-cert").arg(&cert).arg("--tls-key").arg(&key);
    let server = started(server.arg(&disk));
    assert_sandboxed(&server);
    let (socket, certificates) = (server.socket().display(), scratch.path().display());
    let uri =
        format!("nbds+unix:///disk?socket={socket}&tls-certificates={certificates}&tls-verify-peer=false");
    let source = scratch.write("source", &[5; 1 << 20]);
    Run::new("nbdcopy").arg(&source).arg(&uri).ok();
    let info = Run::new("nbdinfo").args(["--json", &uri]).json();
    assert_eq!(info["TLS"], true, "{info}");
    server.stop();
    peer::assert_clean(disk.as_ref());
}

#[test]
fn without_a_sandbox_the_process_keeps_its_rights() {
    let scratch = Scratch::new();
    let disk = scratch.name("disk.qcow2");
    let server = Server::start(["--create", "16M", "--sandbox", "off", &disk]);
    all(status(server.pid(), "Seccomp"), "0");
    server.stop();
}
