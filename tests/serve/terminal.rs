//! A server outlives its terminal, or ends with it in order. A closed window, a dropped ssh connection and `| head` once killed the
//! server in the middle: acknowledged writes were gone, and the next start found a stale socket.

use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use black_box::peer::{assert_clean, qemu_io_ok};
use black_box::run::{ended, pidfd};
use black_box::server::Start;
use black_box::{Client, Scratch, program};
use rustix::process::{Pid, Signal, kill_process};

use super::create;

/// Runs a program in a session of its own on a terminal of its own. The terminal goes away when a line comes in; "gone" is said then, and the exit
/// code is the program's.
const ON_A_TERMINAL: &str = r"
import os, pty, sys
pid, master = pty.fork()
if pid == 0:
    os.execvp(sys.argv[1], sys.argv[1:])
sys.stdin.readline()
os.close(master)
print('gone', flush=True)
_, status = os.waitpid(pid, 0)
sys.exit(os.waitstatus_to_exitcode(status) % 256)
";

/// Waits for a server at `socket` that `child` runs.
fn connect(child: &Child, socket: &str) -> Client {
    let end = pidfd(child);
    loop {
        assert!(!ended(&end, Duration::from_millis(1)), "it ended");
        if let Ok(client) = Client::connect(Path::new(socket), "disk") {
            return client;
        }
    }
}

fn signal_owner(pid_file: &str, signal: Signal) {
    let pid = std::fs::read_to_string(pid_file).expect("a pid file");
    let pid = Pid::from_raw(pid.trim().parse().expect("a number")).expect("a process");
    kill_process(pid, signal).expect("it lives");
}

/// Starts a shell script on a terminal; `"$@"` in it is the server.
fn on_a_terminal(script: &str, args: &[&str]) -> Child {
    let mut command = Command::new("python3");
    command
        .args(["-c", ON_A_TERMINAL, "sh", "-c", script, "sh"])
        .arg(program::path())
        .arg("serve")
        .args(args);
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("python3")
}

/// Takes the terminal away.
fn hang_up(child: &mut Child) {
    child.stdin.take().expect("a pipe").write_all(b"\n").expect("it listens");
    let mut line = String::new();
    BufReader::new(child.stdout.take().expect("a pipe")).read_line(&mut line).expect("a line");
    assert_eq!(line, "gone\n");
}

#[test]
fn losing_the_terminal_ends_the_server_in_order() {
    let scratch = Scratch::new();
    let path = create(&scratch, "disk.qcow2", "64M");
    let (socket, pid_file) = (scratch.name("s"), scratch.name("pid"));
    let args = ["--socket", &socket, "--pid-file", &pid_file, "--log", "trace", &path];
    let mut child = on_a_terminal(r#"exec "$@""#, &args);
    let mut client = connect(&child, &socket);
    for index in 0..64 {
        client.write(index << 20, &[7; 4096]).expect("write");
    }
    // Nothing is flushed: what was acknowledged is in memory only.
    hang_up(&mut child);
    let status = child.wait().expect("wait");
    assert!(status.success(), "{status}");
    assert!(!Path::new(&socket).exists() && !Path::new(&pid_file).exists(), "something is left behind");
    assert_clean(Path::new(&path));
    let reads: Vec<String> = (0..64).map(|index| format!("read -P 7 {index}M 4k")).collect();
    qemu_io_ok(&["-f", "qcow2"], &path, &reads);
}

#[test]
fn a_server_under_nohup_serves_on_without_its_terminal() {
    let scratch = Scratch::new();
    let path = create(&scratch, "disk.qcow2", "64M");
    let (socket, pid_file) = (scratch.name("s"), scratch.name("pid"));
    // Everything is reported to a terminal that is not there any more.
    let args = ["--socket", &socket, "--pid-file", &pid_file, "--log", "trace", &path];
    let mut child = on_a_terminal(r#"trap "" HUP; exec "$@""#, &args);
    connect(&child, &socket).disconnect();
    hang_up(&mut child);
    let mut client = connect(&child, &socket);
    client.write(1 << 20, &[9; 4096]).expect("write");
    client.flush().expect("flush");
    client.write(2 << 20, &[9; 4096]).expect("write");
    signal_owner(&pid_file, Signal::TERM);
    let status = child.wait().expect("wait");
    assert!(status.success(), "{status}");
    assert_clean(Path::new(&path));
    qemu_io_ok(&["-f", "qcow2"], &path, &["read -P 9 1M 4k", "read -P 9 2M 4k"]);
}

#[test]
fn lines_and_log_that_nobody_reads_end_nothing() {
    let scratch = Scratch::new();
    let path = create(&scratch, "disk.qcow2", "64M");
    let (socket, pid_file, code) = (scratch.name("s"), scratch.name("pid"), scratch.name("code"));
    for (reader, log) in [("head -n 1", "warn"), ("true", "trace")] {
        let script = format!(r#"{{ "$@" 2>&1; echo $? > {code}; }} | {reader}"#);
        let mut command = Command::new("sh");
        command.args(["-c", &script, "sh"]).arg(program::path()).args(["serve", "--socket", &socket]);
        command.args(["--pid-file", &pid_file, "--log", log, &path]).stdout(Stdio::null());
        let mut child = command.spawn().expect("sh");
        let mut client = connect(&child, &socket);
        client.write(1 << 20, &[5; 4096]).expect("write");
        signal_owner(&pid_file, Signal::TERM);
        child.wait().expect("wait");
        assert_eq!(std::fs::read_to_string(&code).expect("a code"), "0\n", "{reader}");
        assert_clean(Path::new(&path));
        qemu_io_ok(&["-f", "qcow2"], &path, &["read -P 5 1M 4k"]);
    }
}

#[test]
fn signals_while_it_ends_do_not_cut_the_end_short() {
    // A terminal that closes sends SIGHUP twice (kernel and shell), a supervisor SIGTERM and then SIGHUP. The second one
    // used to end the server at once, with what was not flushed.
    let scratch = Scratch::new();
    let path = create(&scratch, "disk.qcow2", "64M");
    let server = Start::new([&path]).listen().expect("it serves");
    let mut client = server.client("");
    client.write(1 << 20, &[7; 1 << 20]).expect("write");
    // All of them are there when it goes on.
    server.signal(Signal::STOP);
    for signal in [Signal::HUP, Signal::TERM, Signal::INT] {
        server.signal(signal);
    }
    server.stop_with(Signal::CONT);
    assert_clean(Path::new(&path));
    qemu_io_ok(&["-f", "qcow2"], &path, &["read -P 7 1M 1M"]);
}

#[test]
fn a_limit_on_the_length_of_files_fails_requests_and_not_the_server() {
    let scratch = Scratch::new();
    let path = create(&scratch, "disk.qcow2", "64M");
    let socket = scratch.name("s");
    // In units of 512 or 1024 bytes: 2 or 4 MiB.
    let mut command = Command::new("sh");
    command.args(["-c", r#"ulimit -f 4096; exec "$@""#, "sh"]).arg(program::path());
    let mut child = command
        .args(["serve", "--socket", &socket, &path])
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .expect("sh");
    let mut client = connect(&child, &socket);
    let results: Vec<bool> = (0..32).map(|index| client.write(index << 20, &[7; 1 << 20]).is_ok()).collect();
    assert!(results.contains(&true) && results.contains(&false), "{results:?}");
    assert_eq!(client.read(0, 4096).expect("it goes on"), [7; 4096]);
    kill_process(Pid::from_child(&child), Signal::TERM).expect("it lives");
    assert!(child.wait().expect("wait").success());
    assert_clean(Path::new(&path));
}
