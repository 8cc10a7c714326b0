//! `cowhand serve`: from the command line to the last byte on disk, with other people's clients.

use std::fs;
use std::io::{BufRead, BufReader, Read};
use std::os::unix::net::UnixStream;
use std::process::{Child, Command, Stdio};

use rustix::process::{Pid, Signal, kill_process};

use crate::peer::Bench;

/// A server that is ready, with the lines it printed.
struct Server {
    child: Child,
    lines: Vec<String>,
    rest: BufReader<std::process::ChildStdout>,
}

impl Server {
    /// Starts `cowhand serve` with these words, and waits until it has printed `exports` exports: it
    /// listens by then.
    fn start(bench: &Bench, exports: usize, words: &[&str]) -> Self {
        let mut command = Command::new(env!("CARGO_BIN_EXE_cowhand"));
        Self::start_as(command.arg("serve").args(words), bench, exports)
    }

    fn start_as(command: &mut Command, bench: &Bench, exports: usize) -> Self {
        let mut child = command
            .current_dir(bench.path(""))
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mut rest = BufReader::new(child.stdout.take().unwrap());
        let mut lines = Vec::new();
        while lines.iter().filter(|line: &&String| line.starts_with("  fio")).count() < exports {
            let mut line = String::new();
            if rest.read_line(&mut line).unwrap() == 0 {
                let mut err = String::new();
                child.stderr.take().unwrap().read_to_string(&mut err).unwrap();
                panic!("{command:?} ended: {err}");
            }
            lines.push(line.trim_end().to_owned());
        }
        Self { child, lines, rest }
    }

    /// What stands behind `tool` in the lines of the export with this number.
    fn line(&self, tool: &str, number: usize) -> String {
        let mut found = self.lines.iter().filter_map(|line| line.trim_start().strip_prefix(tool));
        found.nth(number).unwrap().trim().to_owned()
    }

    fn uri(&self, number: usize) -> String {
        self.line("URI", number)
    }

    fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.child), signal).unwrap();
    }

    /// Waits for the end: exit code and standard error.
    fn end(mut self) -> (Option<i32>, String) {
        let (mut out, mut err) = (String::new(), String::new());
        self.rest.read_to_string(&mut out).unwrap();
        self.child.stderr.take().unwrap().read_to_string(&mut err).unwrap();
        assert_eq!(out, "", "nothing more is printed");
        (self.child.wait().unwrap().code(), err)
    }

    fn stop(self) {
        self.signal(Signal::TERM);
        assert_eq!(self.end(), (Some(0), String::new()));
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // A test that failed leaves no server behind; one that was waited for is gone already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
fn a_new_disk_is_served_written_and_left_sound() {
    let bench = Bench::new();
    let server = Server::start(&bench, 1, &["--create", "1G", "--socket", "s", "disk.qcow2"]);
    assert_eq!(server.lines[0], "disk: 1 GiB, disk.qcow2, created");
    bench.qemu("qemu-io", &["-f", "raw", "-c", "write -P 7 1M 1M", "-c", "read -P 7 1M 1M", &server.uri(0)]);
    let refused = bench.run("qemu-img".as_ref(), &["check", "disk.qcow2"]);
    assert_ne!(refused.code, 0, "QEMU is kept out while we serve");
    server.stop();
    assert!(!bench.path("s").exists(), "the socket is removed");
    bench.qemu("qemu-img", &["check", "disk.qcow2"]);
    let read = bench.qemu("qemu-io", &["-c", "read -P 7 1M 1M", "-c", "read -P 0 0 1M", "disk.qcow2"]);
    assert!(!read.out.contains("failed"), "{}", read.out);
}

#[test]
fn create_never_touches_an_image_that_exists() {
    let bench = Bench::new();
    bench.qemu("qemu-img", &["create", "-f", "qcow2", "disk.qcow2", "5M"]);
    bench.qemu("qemu-io", &["-c", "write -P 9 0 1M", "disk.qcow2"]);
    let server = Server::start(&bench, 1, &["--create", "1G", "--socket", "s", "disk.qcow2"]);
    assert_eq!(server.lines[0], "disk: 5 MiB, disk.qcow2");
    server.stop();
    bench.qemu("qemu-io", &["-c", "read -P 9 0 1M", "disk.qcow2"]);
}

#[test]
fn the_printed_lines_work_as_they_are() {
    let bench = Bench::new();
    let server = Server::start(&bench, 1, &["--create", "8M", "--socket", "a b,c", "my disk.qcow2"]);
    bench.qemu("nbdinfo", &[&server.uri(0)]);
    for tool in ["qemu-img", "nbdcopy"] {
        // The tool's own name stands first in its line.
        let line = server.line(tool, 0);
        bench.qemu("sh", &["-c", &line]);
    }
    assert_eq!(fs::metadata(bench.path("copy.raw")).unwrap().len(), 8 << 20);
    server.stop();
}

#[test]
fn several_drives_are_several_exports_and_the_empty_name_is_what_was_said() {
    let bench = Bench::new();
    for (name, pattern) in [("a.qcow2", "1"), ("b.qcow2", "2")] {
        bench.qemu("qemu-img", &["create", "-f", "qcow2", name, "1M"]);
        bench.qemu("qemu-io", &["-c", &format!("write -P {pattern} 0 64k"), name]);
    }
    let server = Server::start(
        &bench,
        2,
        &["--socket", "s", "--default-export", "second", "a.qcow2", "file=b.qcow2,id=second,read-only=on"],
    );
    let default = server.uri(0).replace("/a?", "/?");
    for (uri, pattern) in [(server.uri(0), 1), (server.uri(1), 2), (default, 2)] {
        let read = format!("read -P {pattern} 0 64k");
        let ran = bench.qemu("qemu-io", &["-r", "-f", "raw", "-c", &read, &uri]);
        assert!(!ran.out.contains("failed"), "{uri}: {}", ran.out);
    }
    assert!(server.lines.iter().any(|line| line.ends_with("b.qcow2, read-only")), "{:?}", server.lines);
    let refused = bench.run("qemu-io".as_ref(), &["-f", "raw", "-c", "write 0 64k", &server.uri(1)]);
    assert_ne!(refused.code, 0);
    server.stop();
}

#[test]
fn a_configuration_file_serves_as_the_command_line_does() {
    let bench = Bench::new();
    bench.qemu("qemu-img", &["create", "-f", "qcow2", "a.qcow2", "1M"]);
    let config = "socket = \"s\"\npid-file = \"pid\"\nshared = 2\n\n[[drive]]\nfile = \"a.qcow2\"\nid = \"x\"\n\
                  l2-cache-size = \"1M\"\ncache = \"unsafe\"\n";
    fs::write(bench.path("c.toml"), config).unwrap();
    let server = Server::start(&bench, 1, &["--config", "c.toml"]);
    assert_eq!(server.lines[0], "x: 1 MiB, a.qcow2");
    assert_eq!(fs::read_to_string(bench.path("pid")).unwrap(), format!("{}\n", server.child.id()));
    server.stop();
    assert!(!bench.path("pid").exists());
}

#[test]
fn tcp_serves_on_this_machine() {
    let bench = Bench::new();
    let server = Server::start(&bench, 1, &["--create", "1M", "--listen", "127.0.0.1:0", "d.qcow2"]);
    assert!(server.uri(0).starts_with("nbd://127.0.0.1:"), "{}", server.uri(0));
    bench.qemu("nbdinfo", &[&server.uri(0)]);
    server.stop();
}

#[test]
fn a_socket_left_by_a_killed_server_does_not_stop_the_next() {
    let bench = Bench::new();
    let words = ["--create", "1M", "--socket", "s", "d.qcow2"];
    let mut killed = Server::start(&bench, 1, &words);
    killed.child.kill().unwrap();
    killed.child.wait().unwrap();
    assert!(bench.path("s").exists());
    Server::start(&bench, 1, &words).stop();
}

#[test]
fn a_connected_client_does_not_keep_the_server_from_ending() {
    let bench = Bench::new();
    let server = Server::start(&bench, 1, &["--create", "1M", "--socket", "s", "d.qcow2"]);
    let mut silent = UnixStream::connect(bench.path("s")).unwrap();
    let mut greeting = [0; 18];
    silent.read_exact(&mut greeting).unwrap();
    server.signal(Signal::INT);
    assert_eq!(server.end(), (Some(0), String::new()));
}

#[test]
fn what_cannot_be_served_is_said_with_what_to_do() {
    let bench = Bench::new();
    fs::write(bench.path("x.raw"), vec![0; 4096]).unwrap();
    let table: &[(&[&str], &str)] = &[
        (&[], "no DRIVE is given"),
        (&["missing.qcow2"], "hint: to make a new disk, give --create SIZE"),
        (&["x.raw"], "-f raw, or with file=PATH,format=raw"),
        (&["--listen", "0.0.0.0:0", "-f", "raw", "x.raw"], "--allow-plain-tcp"),
        (&["file=x.raw,format=raw,chache=none"], "did you mean cache?"),
        (&["--config", "missing.toml"], "cannot read the configuration missing.toml"),
        (&["--log", "x=loud", "-f", "raw", "x.raw"], "--log x=loud"),
        (&["--tls-cert", "missing", "--tls-key", "missing", "-f", "raw", "x.raw"], "cannot set up TLS"),
        (&["--socket", "x.raw", "-f", "raw", "x.raw"], "a file that is no socket"),
        (&["-f", "raw", "x.raw", "./x.raw"], "give one of them another name with id="),
    ];
    for (words, text) in table {
        let ran = bench.cowhand(&[&["serve"], *words].concat());
        assert_eq!(ran.code, 1, "{words:?}: {}{}", ran.out, ran.err);
        assert!(ran.err.contains(text), "{words:?}: {}", ran.err);
    }
}

#[test]
fn an_image_that_qemu_uses_is_refused() {
    use std::sync::Arc;

    use storage::{FileLock, Role};

    let bench = Bench::new();
    bench.qemu("qemu-img", &["create", "-f", "qcow2", "x.qcow2", "1M"]);
    let file = fs::File::open(bench.path("x.qcow2")).unwrap();
    let _reader = FileLock::acquire_role(&Arc::new(file.into()), Role::Reader).unwrap();
    let ran = bench.cowhand(&["serve", "--socket", "s", "x.qcow2"]);
    assert_eq!(ran.code, 1);
    assert!(ran.err.contains(&std::process::id().to_string()), "names the holder: {}", ran.err);
}

#[test]
fn systemd_hears_of_readiness_and_of_the_end() {
    use std::os::unix::net::UnixDatagram;

    let bench = Bench::new();
    let systemd = UnixDatagram::bind(bench.path("notify")).unwrap();
    let heard = || {
        let mut message = [0; 256];
        let length = systemd.recv(&mut message).unwrap();
        String::from_utf8_lossy(&message[..length]).into_owned()
    };
    let mut command = Command::new(env!("CARGO_BIN_EXE_cowhand"));
    command.args(["serve", "--create", "1M", "--socket", "s", "d.qcow2"]);
    let server = Server::start_as(command.env("NOTIFY_SOCKET", bench.path("notify")), &bench, 1);
    assert!(heard().contains("READY=1"));
    server.stop();
    assert!(heard().contains("STOPPING=1"));
}

#[test]
fn sockets_that_systemd_opened_are_served() {
    const ACTIVATE: &str = "
import os, socket, sys
s = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
s.bind(sys.argv[1]); s.listen()
os.dup2(s.fileno(), 3); os.set_inheritable(3, True)
os.environ.update(LISTEN_FDS='1', LISTEN_PID=str(os.getpid()))
os.execv(sys.argv[2], sys.argv[2:])
";
    let bench = Bench::new();
    let socket = bench.path("activated");
    let mut command = Command::new("python3");
    command.args(["-c", ACTIVATE]).arg(&socket).arg(env!("CARGO_BIN_EXE_cowhand"));
    let server = Server::start_as(command.args(["serve", "--create", "1M", "d.qcow2"]), &bench, 1);
    assert_eq!(server.uri(0), format!("nbd+unix:///d?socket={}", socket.display()));
    bench.qemu("nbdinfo", &[&server.uri(0)]);
    server.stop();
    assert!(socket.exists(), "the socket is systemd's");
}

#[test]
fn an_overlay_is_served_with_its_chain_and_its_own_writes() {
    let bench = Bench::new();
    fs::write(bench.path("base.raw"), vec![5; 1 << 20]).unwrap();
    bench.qemu("qemu-img", &["create", "-f", "qcow2", "-b", "base.raw", "-F", "raw", "mid.qcow2"]);
    bench.qemu("qemu-img", &["create", "-f", "qcow2", "-b", "mid.qcow2", "-F", "qcow2", "top.qcow2"]);
    let drive = "file=top.qcow2,cache=writethrough,discard=unmap,backing.l2-cache-size=64k";
    let server = Server::start(&bench, 1, &["--socket", "s", drive]);
    let commands =
        ["-c", "write -P 6 4k 4k", "-c", "read -P 5 0 4k", "-c", "read -P 6 4k 4k", "-c", "read -P 5 8k 64k"];
    let ran = bench.qemu("qemu-io", &[&["-f", "raw"], &commands[..], &[&server.uri(0)]].concat());
    assert!(!ran.out.contains("failed"), "{}", ran.out);
    server.stop();
    bench.qemu("qemu-img", &["check", "top.qcow2"]);
    let ran = bench.qemu("qemu-io", &["-c", "read -P 6 4k 4k", "-c", "read -P 5 8k 64k", "top.qcow2"]);
    assert!(!ran.out.contains("failed"), "{}", ran.out);
    assert_eq!(fs::read(bench.path("base.raw")).unwrap(), vec![5; 1 << 20]);
}
