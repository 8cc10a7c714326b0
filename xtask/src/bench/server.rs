//! Servers under measurement: started, watched, stopped.

use std::io::{BufRead, BufReader};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use super::Bench;
use super::process::Running;

/// Which server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Cowhand,
    QemuNbd,
    NbdkitFile,
}

impl Kind {
    pub fn name(self) -> &'static str {
        match self {
            Kind::Cowhand => "cowhand",
            Kind::QemuNbd => "qemu-nbd",
            Kind::NbdkitFile => "nbdkit file",
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
}

/// A running server with one export.
#[derive(Debug)]
pub struct Server {
    child: Child,
    socket: PathBuf,
    _running: Running,
}

/// How long a server may take to listen.
const START_MAX: Duration = Duration::from_secs(20);

impl Server {
    /// Starts a server and waits until it answers.
    pub fn start(bench: &Bench, kind: Kind, served: &Served<'_>) -> Result<Self, String> {
        let socket = bench.path("bench.sock");
        // Left by the server before; not there at the first start.
        let _ = std::fs::remove_file(&socket);
        let child = command(bench, kind, served, &socket)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .map_err(|error| format!("cannot start {}: {error}", kind.name()))?;
        let running = Running::new(child.id());
        let mut server = Self { child, socket, _running: running };
        server.wait_until_ready(kind)?;
        Ok(server)
    }

    /// Its process.
    pub fn id(&self) -> u32 {
        self.child.id()
    }

    fn wait_until_ready(&mut self, kind: Kind) -> Result<(), String> {
        let start = Instant::now();
        while UnixStream::connect(&self.socket).is_err() {
            let ended = self.child.try_wait().map_err(|error| error.to_string())?;
            if ended.is_some() || start.elapsed() > START_MAX {
                let said = self.child.stderr.take().map(BufReader::new);
                let said: Vec<String> =
                    said.into_iter().flat_map(|lines| lines.lines().map_while(Result::ok)).collect();
                return Err(format!("{} does not serve: {}", kind.name(), said.join("; ")));
            }
            std::thread::sleep(Duration::from_millis(2));
        }
        Ok(())
    }

    /// What a client connects to.
    pub fn uri(&self) -> String {
        format!("nbd+unix:///bench?socket={}", self.socket.display())
    }

    /// CPU time of the server so far, in seconds.
    pub fn cpu_seconds(&self) -> f64 {
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", self.child.id())).unwrap_or_default();
        // Behind the name in parentheses come the state and ten more fields before utime and stime.
        let behind_name = stat.rsplit_once(')').map_or("", |(_, rest)| rest);
        let ticks =
            |at: usize| behind_name.split_whitespace().nth(at).and_then(|field| field.parse::<f64>().ok());
        (ticks(11).unwrap_or(0.0) + ticks(12).unwrap_or(0.0)) / 100.0
    }
}

fn command(bench: &Bench, kind: Kind, served: &Served<'_>, socket: &Path) -> Command {
    let &Served { image, raw, direct, options } = served;
    let cache = if direct { "none" } else { "writeback" };
    match kind {
        Kind::Cowhand => {
            let mut command = Command::new(&bench.cowhand);
            command.args(["serve", "--export", "bench", "--shared", "8", "--socket"]).arg(socket);
            command.arg(format!("file={},cache={cache}{options}", image.display()));
            command
        }
        Kind::QemuNbd => {
            let mut command = Command::new("qemu-nbd");
            command.args(["-f", "qcow2", "-x", "bench", "-e", "8", "-t", "--aio=io_uring"]);
            command.arg(format!("--cache={cache}")).arg("-k").arg(socket).arg(image);
            command
        }
        Kind::NbdkitFile => {
            let mut command = Command::new("nbdkit");
            command.args(["-f", "--exportname", "bench", "-U"]).arg(socket);
            command.arg("file").arg(format!("file={}", raw.display()));
            command
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let id = self.child.id().to_string();
        // SIGTERM, so that images are closed; the wait below is what counts.
        let _ = Command::new("kill").arg(id).status();
        let _ = self.child.wait();
    }
}
