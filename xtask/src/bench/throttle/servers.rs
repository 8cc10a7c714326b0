//! cowhand and QEMU's throttle filter, each with the same limit over the same image.

use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// Whose limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Program {
    Cowhand,
    /// `driver=throttle` in a qemu-storage-daemon.
    Qemu,
}

/// What both measure with.
#[derive(Clone, Debug)]
pub struct Place<'a> {
    /// The program under test.
    pub cowhand: &'a Path,
    /// Where images and sockets are.
    pub directory: &'a Path,
}

/// A limit, as `throttling.*` names it, and its value; `None`: no limit.
pub type Limit = Option<(&'static str, u64)>;

/// A running server.
#[derive(Debug)]
pub struct Server {
    child: Child,
    pub socket: PathBuf,
}

/// How long a server may take to listen.
const START_MAX: Duration = Duration::from_secs(20);

impl Server {
    /// Serves `image` as `bench` under a limit.
    pub fn start(place: &Place<'_>, program: Program, image: &Path, limit: Limit) -> Result<Self, String> {
        match program {
            Program::Cowhand => {
                let limit =
                    limit.map_or(String::new(), |(name, value)| format!(",throttling.{name}={value}"));
                Self::cowhand(place, &[format!("file={},id=bench{limit}", image.display())])
            }
            Program::Qemu => Self::qemu(place, image, limit),
        }
    }

    /// Serves drives.
    pub fn cowhand(place: &Place<'_>, drives: &[String]) -> Result<Self, String> {
        let socket = place.directory.join("throttle.sock");
        let mut command = Command::new(place.cowhand);
        command.args(["serve", "--socket"]).arg(&socket).args(drives);
        Self::spawn(command, socket)
    }

    fn qemu(place: &Place<'_>, image: &Path, limit: Limit) -> Result<Self, String> {
        let socket = place.directory.join("throttle.sock");
        let limit = limit.map_or(String::new(), |(name, value)| format!(",limits.{name}={value}"));
        let mut command = Command::new("qemu-storage-daemon");
        command.arg("--object").arg(format!("throttle-group,id=group{limit}"));
        command.arg("--blockdev").arg(format!("driver=file,node-name=file,filename={}", image.display()));
        command.args(["--blockdev", "driver=qcow2,node-name=image,file=file"]);
        command.args(["--blockdev", "driver=throttle,node-name=disk,throttle-group=group,file=image"]);
        command.arg("--nbd-server").arg(format!("addr.type=unix,addr.path={}", socket.display()));
        command.args(["--export", "type=nbd,id=export,node-name=disk,name=bench,writable=on"]);
        Self::spawn(command, socket)
    }

    fn spawn(mut command: Command, socket: PathBuf) -> Result<Self, String> {
        // Left by the server before; not there at the first start.
        let _ = std::fs::remove_file(&socket);
        let child = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).spawn();
        let child = child.map_err(|error| format!("cannot run {command:?}: {error}"))?;
        let mut server = Self { child, socket };
        let start = Instant::now();
        while UnixStream::connect(&server.socket).is_err() {
            let ended = server.child.try_wait().map_err(|error| error.to_string())?;
            if ended.is_some() || start.elapsed() > START_MAX {
                return Err(format!("it does not serve: {command:?}"));
            }
            std::thread::sleep(Duration::from_millis(2));
        }
        Ok(server)
    }

    /// CPU time so far, in seconds.
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
        // SIGTERM, so that the image is closed; the wait below is what counts.
        let _ = Command::new("kill").arg(id).status();
        let _ = self.child.wait();
    }
}
