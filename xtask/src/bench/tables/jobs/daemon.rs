//! A storage daemon, ours or QEMU's, with the same command line and the same commands.

use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use black_box::qmp::Qmp;
use serde_json::{Value, json};

use crate::bench::sample::{Pair, Series};
use crate::bench::server::Daemon;
use crate::bench::{Bench, process};

/// How often a job is looked at.
const LOOK: Duration = Duration::from_millis(5);

/// How long the end of a job may take.
const ENDED_MAX: Duration = Duration::from_secs(60);

/// How long a daemon may take from the name of its socket to listening there.
const LISTENS_MAX: Duration = Duration::from_secs(5);

/// Whose daemon it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Program {
    Ours,
    Theirs,
}

impl Program {
    /// In the order in which they take turns.
    pub const BOTH: [Self; 2] = [Self::Ours, Self::Theirs];

    /// Its samples.
    pub fn of(self, pair: &mut Pair) -> &mut Series {
        match self {
            Self::Ours => &mut pair.ours,
            Self::Theirs => &mut pair.theirs,
        }
    }

    fn command(self, bench: &Bench) -> Result<Command, String> {
        const NAME: &str = "qemu-storage-daemon";
        if self == Self::Theirs {
            return Ok(Command::new(NAME));
        }
        let links = bench.path("compat");
        if !links.exists() {
            std::fs::create_dir(&links).map_err(|error| format!("{}: {error}", links.display()))?;
            process::run(Command::new(&bench.cowhand).args(["compat", "install"]).arg(&links))?;
        }
        Ok(Command::new(links.join(NAME)))
    }
}

/// A daemon that serves the node `disk` over NBD, as `bench`.
pub struct Steered {
    /// Its process.
    pub daemon: Daemon,
    /// Where guests connect.
    pub nbd: PathBuf,
    qmp: Qmp,
}

/// The disk of an image, as an argument of `--blockdev`.
pub fn image_node(name: &str, image: &Path) -> String {
    let file = json!({ "driver": "file", "filename": image, "aio": "io_uring", "discard": "unmap" });
    json!({ "driver": "qcow2", "node-name": name, "discard": "unmap", "file": file }).to_string()
}

/// The same where the disk itself is exported.
pub fn disk(image: &Path) -> [String; 1] {
    [image_node("disk", image)]
}

impl Steered {
    /// Starts `program` with `nodes`, each an argument of `--blockdev`.
    pub fn start(bench: &Bench, program: Program, nodes: &[String]) -> Result<Self, String> {
        let (nbd, socket) = (bench.path("p.nbd"), bench.path("p.qmp"));
        let _ = std::fs::remove_file(&nbd);
        let mut command = program.command(bench)?;
        // A group without limits, for filters that want one.
        command.args(["--object", "throttle-group,id=none"]);
        for node in nodes {
            command.args(["--blockdev", node]);
        }
        command.args(["--nbd-server", &format!("addr.type=unix,addr.path={}", nbd.display())]);
        command.args(["--export", "nbd,id=bench,node-name=disk,name=bench,writable=on"]);
        command.args(["--chardev", &format!("socket,id=c,path={},server=on,wait=off", socket.display())]);
        command.args(["--monitor", "chardev=c"]);
        // QEMU's monitor serves one connection, and resets another that comes before it has noticed the end of the first.
        let daemon = Daemon::start_unasked(command, socket)?;
        let qmp = Qmp::over(connect(daemon.socket())?);
        Ok(Self { daemon, nbd, qmp })
    }

    /// One command that must succeed.
    pub fn ok(&mut self, command: &str, arguments: Value) -> Result<Value, String> {
        let shown = format!("{command} {arguments}");
        self.qmp.ask(command, arguments).map_err(|(_, words)| format!("{shown}: {words}"))
    }

    /// When the last answer had arrived.
    pub fn arrived(&self) -> Instant {
        self.qmp.arrived()
    }

    /// Waits until a job says `status`, or is gone. Says whether that was within `limit`.
    pub fn job_is(&mut self, status: &str, limit: Duration) -> Result<bool, String> {
        let start = Instant::now();
        while start.elapsed() < limit {
            let jobs = self.ok("query-jobs", json!({}))?;
            match jobs.get(0) {
                None => return Ok(true),
                Some(job) if job["status"] == status => return Ok(true),
                Some(_) => std::thread::sleep(LOOK),
            }
        }
        Ok(false)
    }

    /// Ends a job that is ready or that takes too long; nothing of it is left.
    pub fn end_job(&mut self, command: &str) -> Result<(), String> {
        let arguments =
            if command == "block-job-cancel" { json!({ "device": "job" }) } else { json!({ "id": "job" }) };
        self.ok(command, arguments)?;
        match self.job_is("gone", ENDED_MAX)? {
            true => Ok(()),
            false => Err(format!("{command}: the job does not end")),
        }
    }
}

/// The socket's name is there before the daemon listens.
fn connect(socket: &Path) -> Result<UnixStream, String> {
    let start = Instant::now();
    loop {
        match UnixStream::connect(socket) {
            Err(_) if start.elapsed() < LISTENS_MAX => std::thread::sleep(LOOK),
            connected => return connected.map_err(|error| format!("{}: {error}", socket.display())),
        }
    }
}
