//! qemu-nbd.

use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};

use crate::ready;

/// How long it may take to answer.
const STARTS_WITHIN: Duration = Duration::from_secs(60);

/// The server. It ends with the test.
#[derive(Debug)]
pub struct QemuNbd {
    child: Child,
    words: Vec<String>,
}

impl QemuNbd {
    /// Serves a raw file as the export "disk" for eight connections; `place` are the words that say where.
    pub fn start(image: &Path, place: &[&str]) -> Self {
        let words = ["-f", "raw", "-e", "8", "-x", "disk"];
        Self::serve(image, words.iter().chain(place))
    }

    /// Serves a qcow2 image; `words` say as what, and where.
    pub fn start_image(image: &Path, words: &[&str]) -> Self {
        Self::serve(image, ["-f", "qcow2"].iter().chain(words))
    }

    fn serve<'a>(image: &Path, words: impl Iterator<Item = &'a &'a str>) -> Self {
        let mut words: Vec<String> = words.map(|&word| word.to_owned()).collect();
        words.extend(["-t".to_owned(), image.display().to_string()]);
        Self { child: Self::spawn(&words), words }
    }

    fn spawn(words: &[String]) -> Child {
        let mut command = Command::new("qemu-nbd");
        let child = command.args(words).stdin(Stdio::null()).spawn();
        let mut child = child.expect("qemu-nbd (needed to test with)");
        let place = words.iter().position(|word| ["-k", "-p"].contains(&word.as_str()));
        if let Some(place) = place.and_then(|at| words.get(at + 1)) {
            ready::until("qemu-nbd", &mut child, STARTS_WITHIN, || ready::nbd(place));
        }
        child
    }

    /// Ends it in order: the image is closed.
    pub fn stop(mut self) {
        kill_process(Pid::from_child(&self.child), Signal::TERM).expect("it runs");
        self.child.wait().expect("it ends");
    }

    /// Kills it.
    pub fn kill(&mut self) {
        self.child.kill().expect("it runs");
        self.child.wait().expect("it ends");
    }

    /// Starts it again, after [`QemuNbd::kill`].
    pub fn restart(&mut self) {
        self.child = Self::spawn(&self.words);
    }
}

impl Drop for QemuNbd {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
