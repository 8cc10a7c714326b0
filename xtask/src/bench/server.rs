//! Servers under measurement: started, watched, stopped.

use std::io::{BufRead, BufReader};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use super::Bench;
use super::process::{self, Running};

/// Which server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Cowhand,
    QemuNbd,
    NbdkitFile,
    /// Ours, with a disk that is nothing: what its client reaches is all that client and door can.
    Empty,
}

impl Kind {
    pub fn name(self) -> &'static str {
        match self {
            Kind::Cowhand => "cowhand",
            Kind::QemuNbd => "qemu-nbd",
            Kind::NbdkitFile => "nbdkit file",
            Kind::Empty => "limit",
        }
    }
}

/// What is served, and how.
#[derive(Clone, Copy, Debug)]
pub struct Served<'a> {
    /// The qcow2 image.
    pub image: &'a Path,
    /// The raw file of the same bytes, for nbdkit.
    pub raw: &'a Path,
    /// Bypass the page cache.
    pub direct: bool,
    /// Options that only cowhand knows, each with a comma before it.
    pub options: &'a str,
    /// The file of its password, where it is encrypted.
    pub password: Option<&'a Path>,
}

/// A running program that listens at a Unix socket.
#[derive(Debug)]
pub struct Daemon {
    child: Child,
    socket: PathBuf,
    _running: Running,
}

/// A running server with one export.
#[derive(Debug)]
pub struct Server(Daemon);

/// How long a server may take to listen.
const START_MAX: Duration = Duration::from_secs(20);

/// How long a server may take to end before it is killed.
const END_MAX: Duration = Duration::from_secs(20);

impl Daemon {
    /// Starts `command` and waits until it answers at `socket`. What its standard error says is reported if it does not.
    pub fn start(command: Command, socket: PathBuf) -> Result<Self, String> {
        Self::start_until(command, socket, |socket| UnixStream::connect(socket).is_ok())
    }

    /// Starts `command` and waits until its socket is there, without a connection: QEMU's vhost-user server answers no client that comes
    /// before it has noticed the end of the one before.
    pub fn start_unasked(command: Command, socket: PathBuf) -> Result<Self, String> {
        Self::start_until(command, socket, Path::exists)
    }

    /// Starts qemu-storage-daemon and waits until it has done its whole command line: it answers clients before it has made its exports.
    pub fn start_qemu(mut command: Command, socket: PathBuf) -> Result<Self, String> {
        let done = socket.with_extension("pid");
        // Left by the server before; not there at the first start.
        let _ = std::fs::remove_file(&done);
        command.arg("--pidfile").arg(&done);
        Self::start_until(command, socket, |_| done.exists())
    }

    fn start_until(
        mut command: Command,
        socket: PathBuf,
        listens: impl Fn(&Path) -> bool,
    ) -> Result<Self, String> {
        // Left by the server before; not there at the first start.
        let _ = std::fs::remove_file(&socket);
        let (child, running) = process::spawn(command.stdout(Stdio::null()).stderr(Stdio::piped()))?;
        let mut daemon = Self { child, socket, _running: running };
        let start = Instant::now();
        while !listens(&daemon.socket) {
            let ended = daemon.child.try_wait().map_err(|error| error.to_string())?;
            if ended.is_some() || start.elapsed() > START_MAX {
                return Err(format!("it does not serve: {command:?}: {}", daemon.said()));
            }
            std::thread::sleep(Duration::from_millis(2));
        }
        Ok(daemon)
    }

    fn said(&mut self) -> String {
        // One that hangs would never close its end.
        let _ = self.child.kill();
        let said = self.child.stderr.take().map(BufReader::new);
        let said: Vec<String> =
            said.into_iter().flat_map(|lines| lines.lines().map_while(Result::ok)).collect();
        said.join("; ")
    }

    /// Its process.
    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// Where it listens.
    pub fn socket(&self) -> &Path {
        &self.socket
    }

    /// CPU time so far, in seconds.
    pub fn cpu_seconds(&self) -> f64 {
        process::cpu_seconds(self.id())
    }
}

impl Server {
    /// Starts a server and waits until it answers.
    pub fn start(bench: &Bench, kind: Kind, served: &Served<'_>) -> Result<Self, String> {
        let socket = bench.path("bench.sock");
        let command = command(bench, kind, served, &socket);
        Daemon::start(command, socket).map(Self).map_err(|error| format!("{}: {error}", kind.name()))
    }

    /// Its process.
    pub fn id(&self) -> u32 {
        self.0.id()
    }

    /// What a client connects to.
    pub fn uri(&self) -> String {
        format!("nbd+unix:///bench?socket={}", self.0.socket.display())
    }

    /// CPU time of the server so far, in seconds.
    pub fn cpu_seconds(&self) -> f64 {
        self.0.cpu_seconds()
    }
}

fn command(bench: &Bench, kind: Kind, served: &Served<'_>, socket: &Path) -> Command {
    let &Served { image, raw, direct, options, password } = served;
    let object = password.map(|file| format!("secret,id=key,file={}", file.display()));
    let cache = if direct { "none" } else { "writeback" };
    match kind {
        Kind::Cowhand => {
            let mut command = Command::new(&bench.cowhand);
            command.args(["serve", "--export", "bench", "--shared", "8", "--socket"]).arg(socket);
            let mut drive = format!("file={},cache={cache}{options}", image.display());
            if let Some(object) = object {
                command.args(["--object", &object]);
                drive.push_str(",encrypt.key-secret=key");
            }
            command.arg(drive);
            command
        }
        Kind::QemuNbd => {
            let mut command = Command::new("qemu-nbd");
            command.args(["-x", "bench", "-e", "8", "-t", "--aio=io_uring"]);
            command.arg(format!("--cache={cache}")).arg("-k").arg(socket);
            match object {
                Some(object) => {
                    let drive =
                        format!("driver=qcow2,encrypt.key-secret=key,file.filename={}", image.display());
                    command.args(["--object", &object, "--image-opts"]).arg(drive);
                }
                None => drop(command.args(["-f", "qcow2"]).arg(image)),
            }
            command
        }
        Kind::NbdkitFile => {
            let mut command = Command::new("nbdkit");
            command.args(["-f", "--exportname", "bench", "-U"]).arg(socket);
            command.arg("file").arg(format!("file={}", raw.display()));
            command
        }
        Kind::Empty => {
            let mut command = Command::new(&bench.cowhand);
            command.args(["serve", "--export", "bench", "--shared", "8", "--socket"]).arg(socket);
            command.arg("driver=null-co,size=1G");
            command
        }
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        let id = self.child.id().to_string();
        // SIGTERM, so that images are closed; the wait below is what counts.
        let _ = Command::new("kill").arg(id).status();
        let start = Instant::now();
        while let Ok(None) = self.child.try_wait() {
            if start.elapsed() > END_MAX {
                // qemu-storage-daemon 7.2 with a vhost-user-blk export does not always end.
                let _ = self.child.kill();
                let _ = self.child.wait();
                return;
            }
            thread::sleep(Duration::from_millis(2));
        }
    }
}
