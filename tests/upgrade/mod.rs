//! A new process takes over from a running one: clients see a pause, no error and no loss; and if the new one fails, the old one goes on.

#![forbid(unsafe_code)]

mod failing;
mod guests;
mod linux;
mod steering;
mod successor;
mod writer;

use std::path::{Path, PathBuf};
use std::time::Duration;

use black_box::peer::qemu_img;
use black_box::server::Start;
use black_box::{Scratch, Server};

/// What a client may wait for an upgrade, by the promise of docs/guide/upgrade.md.
const PAUSE_MAX: Duration = Duration::from_millis(200);

/// A daemon that others take over from.
struct Daemon {
    scratch: Scratch,
    disk: String,
    socket: PathBuf,
    next: PathBuf,
    args: Vec<String>,
    server: Server,
    /// Of each upgrade, as the daemon measured it.
    pauses: Vec<Duration>,
}

impl Daemon {
    /// Serves a new disk of 64 MiB as `disk`, with these arguments more.
    fn start(more: impl FnOnce(&Scratch) -> Vec<String>) -> Self {
        let scratch = Scratch::new();
        let disk = scratch.name("disk.qcow2");
        qemu_img(["create", "-q", "-f", "qcow2", &disk, "64M"]).ok();
        let (socket, next) = (scratch.file("n.sock"), scratch.file("next.sock"));
        let mut args = ["--log", "info", "--threads", "2", "--socket"].map(str::to_owned).to_vec();
        args.push(socket.display().to_string());
        args.extend(more(&scratch));
        let start = Start::new(&args).arg(&disk).arg("--take-over-socket").arg(&next);
        let server = start.listening_on(&socket).listen().unwrap_or_else(|error| panic!("{}", error.0));
        Self { scratch, disk, socket, next, args, server, pauses: Vec::new() }
    }

    /// A process that takes over, with other arguments than it should have or not.
    fn successor(&self, disk: &str, more: &[&str]) -> Server {
        let start = Start::new(&self.args).arg(disk).arg("--take-over").arg(&self.next).args(more);
        start.listening_on(&self.socket).spawn()
    }

    /// Another process takes over; gives what the one before said.
    fn upgrade(&mut self) -> String {
        let successor = self.successor(&self.disk, &[]);
        let outcome = self.server.outcome();
        assert!(outcome.status.success(), "{outcome}\n--- of the new process\n{}", successor.stderr());
        assert!(!outcome.stderr.contains("in use somewhere"), "it gave away what it still had: {outcome}");
        self.pauses.push(pause(&outcome.stderr));
        self.server = successor;
        outcome.stderr
    }

    /// No process has taken over.
    fn assert_goes_on(&self) {
        assert!(Path::new(&format!("/proc/{}", self.server.pid())).exists(), "{}", self.server.stderr());
    }

    /// Ends in order; the image is sound, and names are gone.
    fn stop(self) {
        let Self { scratch, disk, socket, next, server, pauses, .. } = self;
        server.stop();
        qemu_img(["check", "-q", &disk]).ok();
        assert!(!socket.exists() && !next.exists(), "names stay");
        if let Some(longest) = pauses.iter().max() {
            println!("{} upgrades, the longest pause {longest:?}", pauses.len());
        }
        drop(scratch);
    }
}

/// What the daemon says of the pause.
fn pause(said: &str) -> Duration {
    let text = said.split("paused=").nth(1).unwrap_or_else(|| panic!("no pause: {said}"));
    let text = text.split_whitespace().next().expect("a time");
    let at = text.find(|letter: char| letter.is_alphabetic() || letter == 'µ').expect("a unit");
    let (number, unit) = text.split_at(at);
    let seconds = match unit {
        "s" => 1.0,
        "ms" => 1e-3,
        _ => 1e-6,
    };
    Duration::from_secs_f64(number.parse::<f64>().expect("a number") * seconds)
}
