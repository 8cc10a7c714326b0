//! A directory of one test, gone with it.

use std::path::{Path, PathBuf};

use crate::default_signals;

/// A new, empty directory; removed when dropped, kept if `COWHAND_KEEP` is set.
#[derive(Debug)]
pub struct Scratch {
    directory: tempfile::TempDir,
}

impl Scratch {
    /// Makes one in the system's directory for temporary files.
    #[expect(clippy::new_without_default, reason = "it makes a directory: that is not a default value")]
    pub fn new() -> Self {
        // Most tests begin here, also those that start programs by themselves.
        default_signals::default_in_programs(&default_signals::SENT);
        let mut directory =
            tempfile::Builder::new().prefix("cowhand-").tempdir().expect("cannot make a scratch directory");
        if std::env::var_os("COWHAND_KEEP").is_some() {
            directory.disable_cleanup(true);
            eprintln!("scratch directory {}", directory.path().display());
        }
        Self { directory }
    }

    /// The directory.
    pub fn path(&self) -> &Path {
        self.directory.path()
    }

    /// The path of a file in it.
    pub fn file(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    /// The same as text: scratch names are plain ASCII.
    pub fn name(&self, name: &str) -> String {
        self.file(name).to_str().expect("scratch paths are text").to_owned()
    }

    /// Writes a file and gives its path.
    pub fn write(&self, name: &str, bytes: &[u8]) -> PathBuf {
        let path = self.file(name);
        std::fs::write(&path, bytes).expect("cannot write a scratch file");
        path
    }
}
