//! Cowhand as `qemu-nbd` and `qemu-storage-daemon`: the same command lines, and what clients see of both.

mod abstract_sockets;
mod after_jobs;
mod authz;
mod chardevs;
mod copies;
mod corruption;
mod credentials;
mod foreign;
mod names;
mod nbd;
mod null;
mod options;
mod proxies;
mod storage_daemon;
mod tools;

use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use black_box::{Run, Scratch, program};
use serde_json::Value;

/// How long a server may take to listen, or to end: loading a machine fully must not fail a test.
const PATIENCE: Duration = Duration::from_secs(20);

/// How often it is looked whether something has happened.
const LOOK: Duration = Duration::from_millis(2);

/// The program under test, called as QEMU's program `name`.
pub fn ours(name: &str) -> PathBuf {
    static LINKS: OnceLock<Scratch> = OnceLock::new();
    let links = LINKS.get_or_init(|| {
        let scratch = Scratch::new();
        drop(Run::new(program::path()).args(["compat", "install"]).arg(scratch.path()).ok());
        scratch
    });
    links.file(name)
}

/// A server in the foreground. Killed when dropped.
struct Server {
    child: Child,
    socket: PathBuf,
}

impl Server {
    /// Starts `program` in `directory` and waits until it listens at the socket `s` there.
    fn start(program: &Path, directory: &Path, args: &[&str]) -> Self {
        let mut command = Command::new(program);
        command.args(args);
        Self::spawn(command, directory)
    }

    /// The same with a command of one's own.
    fn spawn(mut command: Command, directory: &Path) -> Self {
        command.current_dir(directory).stdin(Stdio::null()).stdout(Stdio::null());
        let child = command.spawn().expect("cannot run the server");
        let mut server = Self { child, socket: directory.join("s") };
        // Connecting would count as a client.
        assert!(
            server.wait_until(|server| is_listening(&server.socket).then_some(())).is_some(),
            "{command:?} ended"
        );
        server
    }

    fn uri(&self, export: &str) -> String {
        format!("nbd+unix:///{export}?socket={}", self.socket.display())
    }

    /// Looks until `look` finds something; `None` if the server ends first.
    fn wait_until<T>(&mut self, look: impl Fn(&Self) -> Option<T>) -> Option<T> {
        let begun = Instant::now();
        loop {
            if let Some(found) = look(self) {
                return Some(found);
            }
            if self.child.try_wait().expect("a child").is_some() {
                return None;
            }
            assert!(begun.elapsed() < PATIENCE, "nothing happens");
            std::thread::park_timeout(LOOK);
        }
    }

    /// Waits for the end.
    fn ended(&mut self) -> ExitStatus {
        assert_eq!(self.wait_until(|_| None::<()>), None);
        self.child.wait().expect("a child")
    }

    fn is_running(&mut self) -> bool {
        self.child.try_wait().expect("a child").is_none()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Whether a server listens at a Unix socket that was named from the root, by the kernel's list: no connection is made.
fn is_listening(socket: &Path) -> bool {
    /// `__SO_ACCEPTCON`: the socket is listened at.
    const LISTENS: &str = "00010000";
    let name = socket.to_str().expect("a path");
    // Ours listens before its name is there, under the name that it has until then.
    let (directory, own) = name.rsplit_once('/').expect("a whole path");
    let before = format!("{directory}/.{own}.new");
    let text = std::fs::read_to_string("/proc/net/unix").expect("/proc/net/unix");
    text.lines().any(|line| {
        let words: Vec<_> = line.split_whitespace().collect();
        let is_ours = || words.get(7) == Some(&&*before) && socket.exists();
        words.get(3) == Some(&LISTENS) && (words.get(7) == Some(&name) || is_ours())
    })
}

/// Waits until no client can connect any more.
fn gone(socket: &Path) {
    let begun = Instant::now();
    while UnixStream::connect(socket).is_ok() {
        assert!(begun.elapsed() < PATIENCE, "it does not end");
        std::thread::park_timeout(LOOK);
    }
}

/// What nbdinfo tells of an export, of what both servers should agree in.
fn seen(uri: &str) -> Value {
    let reported = Run::new("nbdinfo").args(["--json", uri]).json();
    let export = &reported["exports"][0];
    let names = [
        "export-name",
        "description",
        "export-size",
        "is_read_only",
        "can_multi_conn",
        "can_flush",
        "can_fua",
        "can_trim",
        "can_zero",
    ];
    names
        .iter()
        .map(|name| ((*name).to_owned(), export[*name].clone()))
        .collect::<serde_json::Map<_, _>>()
        .into()
}

/// The metadata contexts that an export offers.
fn contexts(uri: &str) -> Vec<String> {
    let reported = Run::new("nbdinfo").args(["--json", "--list", uri]).json();
    let list = reported["exports"][0]["contexts"].as_array().cloned().unwrap_or_default();
    let mut names: Vec<_> = list.iter().filter_map(|name| name.as_str().map(str::to_owned)).collect();
    names.sort();
    names
}

/// Images of 4 MiB in a directory: `disk.qcow2` with data and a bitmap, `disk.raw` with the same data.
fn images() -> Scratch {
    let scratch = Scratch::new();
    let img =
        |words: &str| drop(Run::new("qemu-img").args(words.split(' ')).current_dir(scratch.path()).ok());
    img("create -q -f qcow2 disk.qcow2 4M");
    let writes = ["write -P 1 0 1M", "write -P 2 3M 64k"];
    black_box::peer::qemu_io_ok(&["-f", "qcow2"], &scratch.name("disk.qcow2"), &writes);
    img("bitmap --add disk.qcow2 daily");
    img("convert -O raw disk.qcow2 disk.raw");
    scratch
}
