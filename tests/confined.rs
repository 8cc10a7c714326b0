//! Servers in their sandbox whose disks are far away: connections come back, and lead to what was named, and nowhere else.

use std::collections::BTreeSet;
use std::io::IoSlice;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use black_box::client::Failed;
use black_box::fault_server::FAULTS;
use black_box::ports::free_port;
use black_box::qmp::Qmp;
use black_box::ready::eventually;
use black_box::server::Start;
use black_box::{Fault, FaultServer, Nginx, QemuNbd, Random, Run, Scratch, Server, peer, program};
use rustix::net::{
    AddressFamily, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage, SendFlags, SocketFlags, SocketType,
    recv, send, sendmsg, socketpair,
};

fn listening(start: Start) -> Server {
    let mut server = start.listen().unwrap_or_else(|error| panic!("{}", error.0));
    // It announces its disks once it is behind the fences.
    server.wait_until(|server| (!server.stdout().is_empty()).then_some(())).expect("it serves");
    server
}

fn status_of(pid: u32, name: &str) -> Option<String> {
    let text = std::fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    text.lines()
        .find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))
        .map(|value| value.trim().to_owned())
}

/// The processes that a server started, the oldest first.
fn children(server: u32) -> Vec<u32> {
    let numbers = std::fs::read_dir("/proc").expect("processes").flatten();
    let numbers = numbers.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    let is_alive = |pid: u32| status_of(pid, "State").is_some_and(|state| !state.starts_with('Z'));
    let is_child = |&pid: &u32| status_of(pid, "PPid") == Some(server.to_string()) && is_alive(pid);
    let mut children: Vec<u32> = numbers.filter(is_child).collect();
    children.sort_unstable();
    children
}

/// The process that connects, of one that keeps it.
fn only_child(keeper: u32) -> u32 {
    eventually("a process that connects", || children(keeper).len() == 1);
    children(keeper)[0]
}

fn kill(pid: u32) {
    let pid = rustix::process::Pid::from_raw(pid.cast_signed()).expect("a process");
    rustix::process::kill_process(pid, rustix::process::Signal::KILL).expect("it lives");
}

fn send_with(socket: &OwnedFd, bytes: &[u8], passed: BorrowedFd<'_>) {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    let passed = [passed];
    assert!(control.push(SendAncillaryMessage::ScmRights(&passed)));
    sendmsg(socket, &[IoSlice::new(bytes)], &mut control, SendFlags::empty()).expect("it is read");
}

fn bytes(len: usize) -> Vec<u8> {
    Random::new(len as u64).bytes(len)
}

/// fio writes and verifies while the server below is killed and comes back, each second.
fn guest_works_through_kills(place: &[&str], drive: &str, scratch: &Scratch) {
    let image = scratch.write("image", &vec![0; 32 << 20]);
    let mut below = QemuNbd::start(&image, place);
    let drive = format!("id=disk,format=raw,file={drive},file.reconnect-delay=30,file.open-timeout=20");
    let server = listening(Start::new([drive]));
    assert_eq!(status_of(server.pid(), "Seccomp").as_deref(), Some("2"));
    let load = std::thread::spawn({
        let uri = server.uri("disk");
        let words = ["--name=load", "--rw=randwrite", "--bs=4k", "--size=8M", "--iodepth=16", "--fsync=64"];
        let rest = ["--verify=crc32c", "--verify_state_save=0", "--rate_iops=600"];
        move || peer::fio(&uri, &[&words[..], &rest[..]].concat(), Duration::from_secs(120))
    });
    let mut kills = 0;
    while !load.is_finished() && kills < 4 {
        std::thread::sleep(Duration::from_millis(700));
        below.kill();
        std::thread::sleep(Duration::from_millis(300));
        below.restart();
        kills += 1;
    }
    load.join().expect("fio finds what it wrote");
    assert!(kills > 1, "the load was too short");
    server.stop();
}

/// A disk over TCP was lost for good when its connection was: the sandbox let none be made.
#[test]
fn a_disk_over_tcp_comes_back_in_the_sandbox_and_no_byte_is_wrong() {
    let (scratch, port) = (Scratch::new(), free_port());
    guest_works_through_kills(&["-p", &port.to_string()], &format!("nbd://localhost:{port}/disk"), &scratch);
}

#[test]
fn a_disk_over_a_unix_socket_comes_back_in_the_sandbox() {
    let scratch = Scratch::new();
    let socket = scratch.name("below");
    guest_works_through_kills(&["-k", &socket], &format!("nbd+unix:///disk?socket={socket}"), &scratch);
}

#[test]
fn the_process_that_connects_is_fenced_in_knows_no_credential_and_ends_with_the_server() {
    let store = FaultServer::start(bytes(1 << 20));
    let drive = format!("id=disk,read-only=on,format=raw,file={}", store.url());
    let start = Start::new([drive]).env("AWS_SECRET_ACCESS_KEY", "hush");
    let server = listening(start);
    let keepers = children(server.pid());
    assert_eq!(keepers.len(), 2, "one and a spare one");
    let those_that_connect: Vec<u32> = keepers.iter().map(|&keeper| only_child(keeper)).collect();
    for &broker in &those_that_connect {
        eventually("the sandbox", || status_of(broker, "Seccomp").as_deref() == Some("2"));
        assert_eq!(status_of(broker, "NoNewPrivs").as_deref(), Some("1"));
    }
    let brokers = [&keepers[..], &those_that_connect].concat();
    for &broker in &brokers {
        let proc = PathBuf::from(format!("/proc/{broker}"));
        let environment = std::fs::read(proc.join("environ")).expect("an environment");
        assert!(!String::from_utf8_lossy(&environment).contains("hush"));
        let words = std::fs::read_to_string(proc.join("cmdline")).expect("words");
        assert!(
            words.contains("broker\0") && words.contains(&format!("\0127.0.0.1:{}", store.port())),
            "{words}"
        );
        // Nothing of the server's: no ring, and no socket but its own.
        let open = std::fs::read_dir(proc.join("fd")).expect("descriptors").flatten();
        let open =
            open.filter_map(|entry| std::fs::read_link(entry.path()).ok()?.to_str().map(str::to_owned));
        let open: BTreeSet<String> = open.filter(|name| !name.starts_with(['/', 'p'])).collect();
        assert!(open.len() == 1, "{open:?} are open");
    }
    // A terminal's signals are not for it.
    let signal = rustix::process::Signal::TERM;
    for &broker in &brokers {
        let pid = rustix::process::Pid::from_raw(broker.cast_signed()).expect("a process");
        rustix::process::kill_process(pid, signal).expect("it lives");
    }
    std::thread::sleep(Duration::from_millis(100));
    assert_eq!(children(server.pid()), keepers);
    assert!(keepers.iter().map(|&keeper| only_child(keeper)).eq(those_that_connect));
    server.kill();
    let are_gone = || brokers.iter().all(|&pid| status_of(pid, "State").is_none_or(|s| s.starts_with('Z')));
    eventually("their end", are_gone);
}

#[test]
fn a_process_that_connects_and_is_killed_is_replaced_and_without_one_reads_fail_in_time() {
    let data = bytes(4 << 20);
    let store = FaultServer::start(data.clone());
    let drive = format!(
        "id=disk,read-only=on,format=raw,file={},file.readahead=0,file.remote-timeout=2",
        store.url()
    );
    let server = listening(Start::new([drive]));
    let brokers = children(server.pid());
    let mut client = server.client("disk");
    for (number, &broker) in brokers.iter().enumerate() {
        kill(broker);
        eventually("its end", || children(server.pid()).len() == brokers.len() - 1 - number);
        let at = (number as u64 + 1) << 20;
        // The kept connection is gone, so that a new one is needed.
        store.fail(&[Fault::Reset]);
        let read = client.read(at, 4096);
        match number {
            0 => {
                let at = usize::try_from(at).expect("small");
                assert!(read.expect("the spare one connects") == data[at..at + 4096]);
            }
            // An answer, before the client loses its patience.
            _ => assert!(matches!(read, Err(Failed::Refused(_))), "{read:?}"),
        }
    }
    let stderr = server.stderr_at_end();
    assert!(stderr.contains("have ended"), "{stderr}");
}

#[test]
fn redirects_and_commands_lead_to_allowed_addresses_only() {
    let (data, scratch) = (bytes(1 << 20), Scratch::new());
    let (store, other) = (FaultServer::start(data.clone()), FaultServer::start(data));
    let drive = format!("id=disk,read-only=on,format=raw,file={}", store.url());
    store.fail(&[Fault::RedirectTo(other.port())]);
    let refused = Server::refuses([&drive]);
    let way_out = format!("--allow-connect 127.0.0.1:{}", other.port());
    assert!(refused.contains(&way_out), "{refused}");
    assert_eq!(other.requests(), 0);
    let allowed = format!("127.0.0.1:{}", other.port());
    store.fail(&[Fault::RedirectTo(other.port())]);
    let server = listening(Start::new([&drive, "--allow-connect", &allowed]));
    assert!(other.requests() > 0);
    server.stop();

    let qmp = scratch.file("qmp");
    let add = |url: &str| serde_json::json!({"node-name": "more", "driver": "raw", "read-only": true, "file": {"driver": "http", "url": url}});
    let server = listening(Start::new(["--qmp"]).arg(&qmp).arg(&drive));
    let refused = Qmp::connect(&qmp).refused("blockdev-add", add(&other.url()));
    assert!(refused.contains(&way_out) && !refused.contains("--allow-path"), "{refused}");
    server.stop();
    let start = Start::new(["--allow-connect", &allowed, "--qmp"]).arg(&qmp).arg("--allow-path");
    let server = listening(start.arg(scratch.path()));
    Qmp::connect(&qmp).ok("blockdev-add", add(&other.url()));
    let mut cached = add(&other.url());
    cached["node-name"] = "cached".into();
    cached["file"]["cache-file"] = scratch.name("cache").into();
    Qmp::connect(&qmp).ok("blockdev-add", cached);
    assert!(scratch.file("cache").exists(), "it is made in the sandbox");
    server.stop();
}

/// With the connection allowed, a disk on an https server and a copy to a real store were refused: the sandbox had closed the files of the
/// machine's authorities. Stores of tests speak http, so no test saw it.
#[test]
fn a_server_with_tls_that_is_allowed_is_reached_in_the_sandbox() {
    let (scratch, data) = (Scratch::new(), bytes(1 << 20));
    scratch.write("disk.raw", &data);
    let certificates = crate::remote::certificates();
    let nginx = Nginx::start(scratch.path(), &certificates);
    let url = nginx.tls_url("/disk.raw");
    let address = url.strip_prefix("https://").and_then(|rest| rest.split('/').next()).expect("a server");
    let qmp = scratch.file("qmp");
    let serve = |authority: &str| {
        let start = Start::new(["--allow-connect", address, "--qmp"]).arg(&qmp);
        listening(start.env("SSL_CERT_FILE", certificates.join(authority)))
    };
    let add = serde_json::json!({"node-name": "more", "driver": "raw", "read-only": true, "file": {"driver": "https", "url": url}});
    let server = serve("ca.pem");
    Qmp::connect(&qmp).ok("blockdev-add", add.clone());
    server.stop();
    let server = serve("stranger.pem");
    let refused = Qmp::connect(&qmp).refused("blockdev-add", add);
    assert!(refused.contains("TLS: "), "{refused}");
    server.stop();
}

/// A network manager writes another resolv.conf with each network, and puts it in the place of the old one: a fence around the old one
/// let no name be found any more. Here /etc is a directory of the test's, in a mount namespace.
#[test]
fn names_are_looked_up_as_files_that_were_replaced_say() {
    let (scratch, data) = (Scratch::new(), bytes(4 << 20));
    let store = FaultServer::start(data.clone());
    std::fs::create_dir(scratch.file("etc")).expect("a directory");
    let hosts = |lines: &str| {
        std::fs::write(scratch.file("etc/new"), lines).expect("a file");
        std::fs::rename(scratch.file("etc/new"), scratch.file("etc/hosts")).expect("it is replaced");
    };
    std::fs::write(scratch.file("etc/nsswitch.conf"), "hosts: files\n").expect("a file");
    std::fs::copy("/etc/ld.so.cache", scratch.file("etc/ld.so.cache")).expect("a file");
    hosts("127.0.0.1 store.test\n");
    let script = r#"mount --bind "$1" /etc && shift && exec "$@""#;
    let drive = format!(
        "id=disk,read-only=on,format=raw,file={},file.readahead=0,file.remote-timeout=4",
        store.url().replace("127.0.0.1", "store.test")
    );
    let etc = scratch.name("etc");
    let server = listening(Start::under("unshare", ["--mount", "sh", "-c", script, "sh", &etc], [drive]));
    let mut client = server.client("disk");
    let mut at = 0;
    let mut read = || {
        // The kept connection is gone, so that a new one is needed.
        store.fail(&[Fault::Reset]);
        at += 1 << 19;
        client.read(at as u64, 4096).map(|read| assert!(read == data[at..at + 4096]))
    };
    read().expect("the name is known");
    hosts("127.0.0.1 other.test\n");
    read().expect_err("the name is not known any more");
    hosts("127.0.0.1 store.test\n");
    read().expect("the name is known again");
    server.stop();
}

/// What a server under foreign control asks for: anything, over the socket that it has.
#[test]
fn a_server_that_was_taken_over_reaches_no_address_that_was_not_named() {
    let (named, unnamed) = (FaultServer::start(bytes(4096)), FaultServer::start(bytes(4096)));
    let pair = || {
        socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None).expect("a pair")
    };
    let (own, theirs) = pair();
    let mut command = Command::new(program::path());
    command.args(["broker", &format!("127.0.0.1:{}", named.port())]).stdin(theirs);
    let mut broker = command.spawn().expect("it starts");
    drop(command);
    for (port, kind) in [(named.port(), 0), (unnamed.port(), 2), (22, 2)] {
        let (answers, passed): (OwnedFd, OwnedFd) = pair();
        let question = [&5_000_u32.to_be_bytes()[..], &port.to_be_bytes(), b"127.0.0.1"].concat();
        send_with(&own, &question, passed.as_fd());
        drop(passed);
        let mut answer = [9; 64];
        recv(&answers, &mut answer, RecvFlags::empty()).expect("an answer");
        assert_eq!(answer[0], kind, "port {port}");
    }
    send(&own, &[0xff; 2000], SendFlags::empty()).expect("what is no question ends nothing");
    assert!(broker.try_wait().expect("a child").is_none());
    drop(own);
    assert!(broker.wait().expect("a child").success());
}

/// Each fault in turn under load: a read has the right bytes or fails, and all is well when the server is.
#[test]
fn no_fault_of_a_store_makes_wrong_bytes_or_holds_a_read_up() {
    let (data, scratch) = (bytes(8 << 20), Scratch::new());
    let store = FaultServer::start(data.clone());
    let drive = format!(
        "id=disk,read-only=on,format=raw,file={},file.readahead=0,file.timeout=1,file.remote-timeout=2",
        store.url()
    );
    let server = listening(Start::new([drive]));
    let mut client = server.client("disk");
    let (mut failed, mut random) = (0, Random::new(17));
    for round in 0..2 {
        for fault in FAULTS {
            // One is borne with; eight in a row are more than redirects are followed.
            store.fail(&vec![fault; if round == 0 { 1 } else { 8 }]);
            let at = usize::try_from(random.below(data.len() as u64 - 65_536)).expect("small");
            match client.read(at as u64, 65_536) {
                Ok(read) => assert!(read == data[at..at + 65_536], "{fault:?}"),
                Err(Failed::Refused(_)) => failed += 1,
                Err(error) => panic!("{fault:?}: {error:?}"),
            }
        }
    }
    assert!(failed > 0, "no fault was seen");
    store.fail(&[]);
    let back = scratch.file("back");
    Run::new("nbdcopy").arg(server.uri("disk")).arg(&back).limit(Duration::from_secs(60)).ok();
    assert!(std::fs::read(&back).expect("a copy") == data);
    server.stop();
}

/// Seconds of processor time that a process has used.
fn processor_seconds(pid: u32) -> f64 {
    let text = std::fs::read_to_string(format!("/proc/{pid}/stat")).expect("it runs");
    let (_, rest) = text.rsplit_once(')').expect("its name");
    let fields = rest.split_ascii_whitespace().skip(11).take(2);
    fields.map(|ticks| ticks.parse::<f64>().expect("a number")).sum::<f64>() / 100.0
}

/// A pause longer than the deadline of `report`, in which next to nothing is done.
fn waits_without_spinning(server: &Server) {
    let began = processor_seconds(server.pid());
    std::thread::sleep(Duration::from_secs(4));
    let used = processor_seconds(server.pid()) - began;
    assert!(used < 0.2, "{used} s of processor time in 4 s of waiting");
}

#[test]
fn a_read_waits_for_its_store_where_it_is_reported_to_and_a_paused_server_ends_in_time() {
    let (scratch, data) = (Scratch::new(), bytes(4 << 20));
    scratch.write("disk", &data);
    let certificates = crate::remote::certificates();
    let mut store = Nginx::start(scratch.path(), &certificates);
    let drive = format!(
        "id=disk,read-only=on,format=raw,file={},file.readahead=0,file.on-remote-error=wait",
        store.url("/disk")
    );
    let server = listening(Start::new([drive]));
    let read = |at: usize| {
        let mut client = server.client("disk");
        std::thread::spawn(move || client.read(at as u64, 4096))
    };
    store.kill();
    let waiting = read(1 << 20);
    waits_without_spinning(&server);
    assert!(!waiting.is_finished());
    store.restart();
    assert!(waiting.join().expect("a thread").expect("it is back") == data[1 << 20..(1 << 20) + 4096]);
    store.kill();
    let waiting = read(2 << 20);
    std::thread::sleep(Duration::from_millis(500));
    server.stop();
    waiting.join().expect("a thread").expect_err("it was not answered");
}

#[test]
fn writes_wait_for_their_server_where_they_are_reported_to_and_are_there_afterwards() {
    let (scratch, port) = (Scratch::new(), free_port());
    let image = scratch.write("image", &vec![0; 4 << 20]);
    let mut below = QemuNbd::start(&image, &["-p", &port.to_string()]);
    let drive = format!(
        "id=disk,format=raw,file=nbd://127.0.0.1:{port}/disk,file.open-timeout=20,file.on-remote-error=wait"
    );
    let server = listening(Start::new([drive]));
    let mut client = server.client("disk");
    client.write(0, &[7; 4096]).expect("a write");
    below.kill();
    let waiting = std::thread::spawn(move || {
        client.write(8192, &[8; 4096]).expect("it waits");
        client.flush().expect("it waits");
    });
    waits_without_spinning(&server);
    assert!(!waiting.is_finished());
    below.restart();
    waiting.join().expect("all is acknowledged");
    below.kill();
    let written = std::fs::read(&image).expect("an image");
    assert!(written[..4096] == [7; 4096] && written[8192..12_288] == [8; 4096]);
    let mut client = server.client("disk");
    let waiting = std::thread::spawn(move || client.read(0, 4096));
    std::thread::sleep(Duration::from_millis(500));
    server.signal(rustix::process::Signal::TERM);
    let mut server = server;
    server.outcome();
    waiting.join().expect("a thread").expect_err("it was not answered");
}

/// A server under foreign control connected to any unix socket of the machine: another guest's disk, or the control socket of another server.
#[test]
fn commands_lead_to_unix_sockets_below_allowed_directories_and_to_named_ones_only() {
    let (scratch, elsewhere) = (Scratch::new(), Scratch::new());
    let image = elsewhere.write("image", &bytes(1 << 20));
    let allowed = scratch.name("below.sock");
    let other = elsewhere.name("other.sock");
    let _below = QemuNbd::start(&image, &["-r", "-k", &allowed]);
    let _other = QemuNbd::start(&image, &["-r", "-k", &other]);
    for socket in [&allowed, &other] {
        eventually("a server", || std::os::unix::net::UnixStream::connect(socket).is_ok());
    }
    let link = scratch.name("link.sock");
    std::os::unix::fs::symlink(&other, &link).expect("a link");
    let qmp = scratch.file("qmp");
    let add = |name: &str, path: &str| serde_json::json!({"node-name": name, "driver": "raw", "read-only": true, "file": {"driver": "nbd", "export": "disk", "server": {"type": "unix", "path": path}}});
    let start = |more: &[&str]| {
        let start = Start::new(["--qmp"]).arg(&qmp).arg("--allow-path").arg(scratch.path()).args(more);
        let mut server = start.listening_on(&qmp).spawn();
        server.wait_until(|server| server.stdout().contains("control:").then_some(())).expect("it serves");
        server
    };
    let server = start(&[]);
    let client = || Qmp::connect(&qmp);
    client().ok("blockdev-add", add("allowed", &allowed));
    for path in [&other, &link] {
        let refused = client().refused("blockdev-add", add("other", path));
        assert!(refused.contains(&format!("--allow-connect unix:{path}")), "{refused}");
        // A bare file is opened with the disk that is put over it, and refused at once.
        let bare = serde_json::json!({"node-name": "bare", "driver": "nbd", "server": {"type": "unix", "path": path}});
        let refused = client().refused("blockdev-add", bare);
        assert!(refused.contains("--allow-connect"), "{refused}");
    }
    server.stop();
    let server = start(&["--allow-connect", &format!("unix:{other}")]);
    client().ok("blockdev-add", add("other", &other));
    server.stop();
}
