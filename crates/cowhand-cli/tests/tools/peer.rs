//! Runs cowhand and the tools it is compared with. A tool that is missing fails the test.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::default_signals::{SENT, default_in_programs};

/// What QEMU's tools say, now and then, when they make a key: the kernel's count of CPU time went back. They are to try again.
const NO_CPU_TIME: &str = "Unable to get accurate CPU usage";

/// How long a killed process may keep its locks.
const LOCK_PATIENCE: Duration = Duration::from_secs(60);

/// What a command said, and how it ended.
pub struct Ran {
    /// Exit code.
    pub code: i32,
    /// Standard output.
    pub out: String,
    /// Standard error.
    pub err: String,
}

impl Ran {
    /// Standard output as JSON.
    pub fn json(&self) -> Value {
        serde_json::from_str(&self.out).unwrap_or_else(|error| panic!("{error}: {}{}", self.out, self.err))
    }
}

/// A directory of its own, in which commands run.
pub struct Bench {
    directory: tempfile::TempDir,
}

impl Bench {
    pub fn new() -> Self {
        default_in_programs(&SENT);
        Self { directory: tempfile::tempdir().unwrap() }
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    /// Runs cowhand with these words.
    pub fn cowhand(&self, words: &[&str]) -> Ran {
        self.run(Path::new(env!("CARGO_BIN_EXE_cowhand")), words)
    }

    /// Runs one of QEMU's tools, which must succeed.
    pub fn qemu(&self, tool: &str, words: &[&str]) -> Ran {
        let mut ran = self.run(Path::new(tool), words);
        while ran.err.contains(NO_CPU_TIME) {
            ran = self.run(Path::new(tool), words);
        }
        assert_eq!(ran.code, 0, "{tool} {words:?}: {}", ran.err);
        ran
    }

    /// Waits until the locks of a process that was killed are gone: the kernel gives them back a moment after its end, when it
    /// has ended its rings.
    pub fn wait_for_lock(&self, image: &str) {
        let began = Instant::now();
        while self.run(Path::new("qemu-img"), &["info", image]).err.contains("lock") {
            assert!(began.elapsed() < LOCK_PATIENCE, "{image} stays locked");
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    /// Runs a tool, however it ends.
    pub fn run(&self, program: &Path, words: &[&str]) -> Ran {
        let output = Command::new(program).args(words).current_dir(self.directory.path()).output();
        let Output { status, stdout, stderr } = output.unwrap_or_else(|error| {
            panic!("cannot run {} (needed to compare with): {error}", program.display());
        });
        let text = |bytes| String::from_utf8(bytes).unwrap();
        Ran { code: status.code().unwrap_or(-1), out: text(stdout), err: text(stderr) }
    }
}
