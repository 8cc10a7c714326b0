//! Configuration files, TCP, systemd.

use std::os::unix::net::UnixDatagram;

use black_box::server::Start;
use black_box::{Client, Run, Scratch, Server};

use super::create;

#[test]
fn a_configuration_holds_what_was_chosen_once() {
    let scratch = Scratch::new();
    let (a, b) = (create(&scratch, "a.qcow2", "1G"), create(&scratch, "b.qcow2", "2M"));
    let socket = scratch.name("s");
    let text = format!(
        "socket = {socket:?}\nshared = 3\n\n[[drive]]\nfile = {a:?}\nl2-cache-size = \"64k\"\n\
         l2-cache-entry-size = 4096\n\n[[drive]]\nfile = {b:?}\nid = \"second\"\nread-only = true\n"
    );
    let config = scratch.write("cowhand.toml", text.as_bytes());
    let start = |more: &[&str]| {
        Start::new(["--config"]).arg(&config).args(more).listening_on(&socket).listen().expect("it serves")
    };
    for _ in 0..2 {
        let server = start(&[]);
        assert_eq!(server.client("a").size(), 1 << 30);
        assert_eq!(server.client("second").size(), 2 << 20);
        assert!(server.client("second").write(0, &[1]).is_err());
        server.stop();
    }
    // The command line wins.
    let server = start(&["--shared", "1"]);
    let _only = server.client("a");
    Client::connect(server.socket(), "a").expect_err("one is allowed");
    server.stop();
    // Disks are given in one place: neither silently instead of the others nor beside them.
    let said = Server::refuses(["--config", config.to_str().expect("text"), &b]);
    assert!(
        said.contains("has 2 drives and the command line names") && said.contains("cowhand.toml"),
        "{said}"
    );

    scratch.write("cowhand.toml", b"sockte = 1");
    let said = Server::refuses(["--config", config.to_str().expect("text"), &a]);
    assert!(said.contains("sockte") && said.contains("socket"), "{said}");
    // An error names the drive, and where it stands.
    for (option, expected) in
        [("l2-cache = \"1M\"", "unknown option l2-cache"), ("cache = \"fast\"", "cache")]
    {
        let text = format!("shared = 3\n\n[[drive]]\nfile = {a:?}\n\n[[drive]]\nfile = {b:?}\n{option}\n");
        scratch.write("cowhand.toml", text.as_bytes());
        let said = Server::refuses(["--config", config.to_str().expect("text")]);
        let place = format!("drive 2 in {}, line 6", config.display());
        assert!(said.contains(&place) && said.contains(expected), "{said}");
    }
}

#[test]
fn a_level_of_logging_that_does_not_exist_is_refused() {
    // `--log wran` once hid every error: the word was taken for the name of a module.
    let scratch = Scratch::new();
    let path = create(&scratch, "disk.qcow2", "1M");
    let said = Server::refuses(["--log", "wran", &path]);
    assert!(said.contains("allowed: off, error, warn, info, debug, trace"), "{said}");
    assert!(Server::refuses(["--log", "qcow3=debug", &path]).contains("qcow2"));
    // What one part logs does not silence the others.
    let mut server = Server::start(["--log", "qcow2=debug,info", &path]);
    server.signal(rustix::process::Signal::TERM);
    assert!(server.outcome().stderr.contains("INFO monitor"));
}

#[test]
fn a_log_in_a_file_has_no_colours() {
    let scratch = Scratch::new();
    let path = create(&scratch, "disk.qcow2", "1M");
    let mut server = Server::start(["--log", "debug", &path]);
    server.signal(rustix::process::Signal::TERM);
    let said = server.outcome().stderr;
    assert!(said.contains("INFO monitor") && !said.contains('\u{1b}'), "{said}");
}

#[test]
fn tcp_stays_on_this_machine_unless_asked_otherwise() {
    let scratch = Scratch::new();
    let path = create(&scratch, "disk.qcow2", "1M");
    let refused = Start::new(["--listen", "0.0.0.0:0", &path]).listening_on("/nowhere").spawn().outcome();
    assert_eq!(refused.status.code(), Some(1), "{refused}");
    assert!(refused.stderr.contains("--allow-plain-tcp"), "{refused}");
    for address in ["127.0.0.1:0", "0", "[::1]:0"] {
        let mut server = Start::new(["--listen", address, &path]).listening_on("/nowhere").spawn();
        let uri = server.wait_until(uri).unwrap_or_else(|| panic!("{address}: {}", server.stderr()));
        let reported = Run::new("nbdinfo").args(["--json", &uri]).json();
        assert_eq!(reported["exports"][0]["export-size"], 1 << 20, "{address}");
        server.stop();
    }
}

/// The URI that a server has printed.
pub fn uri(server: &Server) -> Option<String> {
    let printed = server.stdout();
    let line = printed.lines().find_map(|line| line.trim().strip_prefix("URI"))?;
    // Printed whole once the next line has begun.
    printed.contains("nbdcopy").then(|| line.trim().to_owned())
}

/// Opens a listening socket, and becomes the program with the socket handed over as systemd does it.
const HAND_OVER: &str = r"
import os, socket, sys
path, program = sys.argv[1], sys.argv[2:]
listener = socket.socket(socket.AF_UNIX)
listener.bind(path)
listener.listen(16)
if listener.fileno() != 3:
    os.dup2(listener.fileno(), 3)
os.set_inheritable(3, True)
os.environ.update(LISTEN_FDS='1', LISTEN_PID=str(os.getpid()))
os.execv(program[0], program)
";

#[test]
fn a_socket_handed_over_by_systemd_is_used_and_left_in_its_place() {
    let scratch = Scratch::new();
    let path = create(&scratch, "disk.qcow2", "1M");
    let socket = scratch.file("handed.sock");
    let program = black_box::program::path();
    let mut child = std::process::Command::new("python3")
        .args(["-c", HAND_OVER])
        .arg(&socket)
        .arg(program)
        .args(["serve", &path])
        .stdout(std::process::Stdio::null())
        .spawn()
        .expect("python3");
    let end = black_box::run::pidfd(&child);
    // The socket accepts before the server does: connecting waits for it.
    let mut client = None;
    while client.is_none() {
        assert!(!black_box::run::ended(&end, std::time::Duration::from_millis(1)), "it ended");
        client = Client::connect(&socket, "").ok();
    }
    assert_eq!(client.as_ref().map(Client::size), Some(1 << 20));
    drop(client);
    let pid = rustix::process::Pid::from_child(&child);
    rustix::process::kill_process(pid, rustix::process::Signal::TERM).expect("a signal");
    assert!(child.wait().expect("wait").success());
    assert!(socket.exists(), "it belongs to systemd");
}

#[test]
fn systemd_is_reported_when_clients_can_connect_and_when_it_ends() {
    let scratch = Scratch::new();
    let path = create(&scratch, "disk.qcow2", "1M");
    let notify = scratch.file("notify.sock");
    let listener = UnixDatagram::bind(&notify).expect("bind");
    listener.set_read_timeout(Some(std::time::Duration::from_secs(20))).expect("a timeout");
    let receive = || {
        let mut bytes = [0; 4096];
        let length = listener.recv(&mut bytes).expect("a notice");
        String::from_utf8_lossy(&bytes[..length]).into_owned()
    };
    let server = Start::new([&path]).env("NOTIFY_SOCKET", &notify).spawn();
    let ready = receive();
    assert!(ready.contains("READY=1"), "{ready}");
    assert_eq!(server.client("").size(), 1 << 20, "ready means ready");
    server.stop();
    let stopping = receive();
    assert!(stopping.contains("STOPPING=1"), "{stopping}");
}
