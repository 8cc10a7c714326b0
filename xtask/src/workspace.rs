//! Where the project is, where its builds go, and the programs that build it.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// The workspace's directory.
pub fn root() -> PathBuf {
    let own = Path::new(env!("CARGO_MANIFEST_DIR"));
    own.parent().unwrap_or(own).to_owned()
}

/// Where cargo puts what it builds, as a path that is right from everywhere.
pub fn target_directory() -> PathBuf {
    let set = std::env::var_os("CARGO_TARGET_DIR");
    root().join(set.map_or_else(|| PathBuf::from("target"), PathBuf::from))
}

/// The program under test: `cargo test` builds it beside the tests, optimised as they are and with its assertions.
pub fn binary() -> PathBuf {
    target_directory().join("debug").join("cowhand")
}

/// The program as users get it: [`cargo`] builds it with `--release`.
pub fn release() -> PathBuf {
    target_directory().join("release").join("cowhand")
}

/// The cargo that runs this, in the workspace's directory; it is asked nothing.
pub fn cargo() -> Command {
    let mut command = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    // What `cargo run` said about this program: build scripts that look at it would run again each time.
    for (name, _) in std::env::vars_os() {
        let of_this = |name: &str| name.starts_with("CARGO_PKG_") || name.starts_with("CARGO_MANIFEST_");
        if name.to_str().is_some_and(of_this) {
            command.env_remove(name);
        }
    }
    command.current_dir(root()).stdin(Stdio::null());
    command
}

/// `cargo test` of some modules of a package's test programs; what is added to it goes to the test harness.
/// A name of a module ends with `::`.
pub fn cargo_test(package: &str, programs: &[&str], names: &[&str]) -> Command {
    let mut command = cargo();
    command.args(["test", "--package", package]);
    for program in programs {
        command.args(["--test", program]);
    }
    command.arg("--").args(names);
    command
}

/// What `rustc --print` answers.
///
/// # Errors
/// If it does not run.
pub fn rustc_says(what: &str) -> Result<String, String> {
    let output = Command::new("rustc").args(["--print", what]).current_dir(root()).output();
    let output = output.map_err(|error| format!("rustc does not run: {error}"))?;
    Ok(String::from_utf8_lossy(&output.stdout).trim().to_owned())
}
