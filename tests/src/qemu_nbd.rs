//! qemu-nbd with a raw file, as the export "disk" for eight connections.

use std::path::Path;
use std::process::{Child, Command, Stdio};

/// The server. It ends with the test.
#[derive(Debug)]
pub struct QemuNbd {
    child: Child,
    words: Vec<String>,
}

impl QemuNbd {
    /// Serves `image`; `place` are the words that say where.
    pub fn start(image: &Path, place: &[&str]) -> Self {
        let mut words: Vec<String> = ["-f", "raw", "-t", "-e", "8", "-x", "disk"].map(str::to_owned).to_vec();
        words.extend(place.iter().map(|&word| word.to_owned()));
        words.push(image.display().to_string());
        Self { child: Self::spawn(&words), words }
    }

    fn spawn(words: &[String]) -> Child {
        Command::new("qemu-nbd")
            .args(words)
            .stdin(Stdio::null())
            .spawn()
            .expect("qemu-nbd (needed to test with)")
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
