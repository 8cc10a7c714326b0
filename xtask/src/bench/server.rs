//! Servers under measurement: started, watched, stopped.

use std::io::{BufRead, BufReader};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

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

/// A running server with one export.
#[derive(Debug)]
pub struct Server {
    child: Child,
    socket: PathBuf,
}

/// How long a server may take to listen.
const START_MAX: Duration = Duration::from_secs(20);

impl Server {
    /// Serves the qcow2 image (or, for nbdkit, the raw file of the same bytes) in `directory`.
    pub fn start(
        kind: Kind,
        image: &Path,
        raw: &Path,
        direct: bool,
        directory: &Path,
    ) -> Result<Self, String> {
        let socket = directory.join("bench.sock");
        // Left by the server before; not there at the first start.
        let _ = std::fs::remove_file(&socket);
        let mut command = match kind {
            Kind::Cowhand => {
                let mut command = Command::new(super::door::cowhand());
                let cache = if direct { "none" } else { "writeback" };
                command.args(["serve", "--export", "bench", "--shared", "8", "--socket"]).arg(&socket);
                command.arg(format!("file={},cache={cache}", image.display()));
                command
            }
            Kind::QemuNbd => {
                let mut command = Command::new("qemu-nbd");
                let cache = if direct { "--cache=none" } else { "--cache=writeback" };
                command.args(["-f", "qcow2", "-x", "bench", "-e", "8", "-t", "--aio=io_uring", cache, "-k"]);
                command.arg(&socket).arg(image);
                command
            }
            Kind::NbdkitFile => {
                let mut command = Command::new("nbdkit");
                command.args(["-f", "--exportname", "bench", "-U"]).arg(&socket);
                command.arg("file").arg(format!("file={}", raw.display()));
                command
            }
        };
        let child = command
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .map_err(|error| format!("cannot start {}: {error}", kind.name()))?;
        let mut server = Self { child, socket };
        server.wait_until_ready(kind)?;
        Ok(server)
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
            std::thread::sleep(Duration::from_millis(10));
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

impl Drop for Server {
    fn drop(&mut self) {
        let id = self.child.id().to_string();
        // SIGTERM, so that images are closed; the wait below is what counts.
        let _ = Command::new("kill").arg(id).status();
        let _ = self.child.wait();
    }
}
