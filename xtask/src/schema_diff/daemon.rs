//! A storage daemon that is asked.

use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use black_box::qmp::Qmp;
use serde_json::{Value, json};

/// How long a daemon may take until it listens.
const START_MAX: Duration = Duration::from_secs(30);

/// How long to wait before the socket is tried again.
const PAUSE: Duration = Duration::from_millis(20);

/// A running daemon with a client.
pub struct Daemon {
    process: Child,
    client: Qmp,
    programs: PathBuf,
    work: PathBuf,
}

impl Daemon {
    /// Starts the daemon in the directory `programs`. Its files are in `work`.
    ///
    /// # Errors
    /// When it does not start.
    pub fn start(programs: &Path, work: &Path) -> Result<Self, String> {
        let (program, socket) = (programs.join("qemu-storage-daemon"), work.join("qmp"));
        let chardev = format!("socket,id=m,path={},server=on,wait=off", socket.display());
        let mut command = Command::new(&program);
        command.args(["--chardev", &chardev, "--monitor", "chardev=m"]);
        let started = command.stdin(Stdio::null()).stdout(Stdio::null()).spawn();
        let mut process = started.map_err(|error| format!("{}: {error}", program.display()))?;
        let start = Instant::now();
        let stream = loop {
            match UnixStream::connect(&socket) {
                Ok(stream) => break stream,
                Err(error) if start.elapsed() > START_MAX => {
                    let _ = process.kill();
                    return Err(format!("{}: {error}", program.display()));
                }
                Err(_) => sleep(PAUSE),
            }
        };
        let client = Qmp::over(stream);
        Ok(Self { process, client, programs: programs.to_owned(), work: work.to_owned() })
    }

    /// A file in its directory.
    pub fn file(&self, name: &str) -> String {
        self.work.join(name).display().to_string()
    }

    /// Runs the qemu-img beside it.
    ///
    /// # Errors
    /// When it fails.
    pub fn image(&self, arguments: &[&str]) -> Result<(), String> {
        let output = Command::new(self.programs.join("qemu-img")).args(arguments).output();
        match output {
            Ok(output) if output.status.success() => Ok(()),
            Ok(output) => Err(format!("qemu-img {arguments:?}: {}", String::from_utf8_lossy(&output.stderr))),
            Err(error) => Err(format!("qemu-img: {error}")),
        }
    }

    /// One command, which must succeed.
    ///
    /// # Errors
    /// When it fails.
    pub fn ok(&mut self, command: &str, arguments: Value) -> Result<Value, String> {
        let answer = self.client.ask(command, arguments.clone());
        answer.map_err(|(class, text)| {
            format!("{}: {command} {arguments}: {class}: {text}", self.programs.display())
        })
    }

    /// One command that not every daemon has.
    pub fn maybe(&mut self, command: &str, arguments: Value) -> Option<Value> {
        self.client.ask(command, arguments).ok()
    }

    /// Waits for an event.
    pub fn event(&mut self, name: &str) {
        self.client.event(name);
    }

    /// Ends it.
    ///
    /// # Errors
    /// When it does not end well.
    pub fn stop(mut self) -> Result<(), String> {
        self.ok("quit", json!({}))?;
        let status = self.process.wait().map_err(|error| error.to_string())?;
        if status.success() { Ok(()) } else { Err(format!("{}: {status}", self.programs.display())) }
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        // It has ended, or an error left it behind.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}
