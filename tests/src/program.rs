//! The program under test.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

use crate::default_signals;
use crate::run::Run;

/// The binary: `COWHAND_BIN`, or else this workspace's as its tests are built, with all its assertions; made (or found fresh) once.
pub fn path() -> &'static Path {
    default_signals::default_in_programs(&default_signals::SENT);
    static PATH: OnceLock<PathBuf> = OnceLock::new();
    PATH.get_or_init(|| match std::env::var_os("COWHAND_BIN") {
        Some(path) => std::fs::canonicalize(&path).expect("COWHAND_BIN names no file"),
        None => build(),
    })
}

/// `cowhand` with arguments.
pub fn cowhand<S: AsRef<std::ffi::OsStr>>(args: impl IntoIterator<Item = S>) -> Run {
    Run::new(path()).args(args)
}

fn build() -> PathBuf {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("the workspace's directory");
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let output = Command::new(cargo)
        .args(["test", "--workspace", "--no-run", "--message-format", "json"])
        .current_dir(root)
        .output()
        .expect("cannot run cargo");
    let messages = String::from_utf8_lossy(&output.stdout);
    let built = messages
        .lines()
        .filter_map(|line| serde_json::from_str::<serde_json::Value>(line).ok())
        .filter(|message| message["target"]["name"] == "cowhand" && message["target"]["kind"][0] == "bin")
        .filter(|message| message["profile"]["test"] == false)
        .find_map(|message| message["executable"].as_str().map(PathBuf::from));
    built.unwrap_or_else(|| panic!("cowhand does not build:\n{}", String::from_utf8_lossy(&output.stderr)))
}
