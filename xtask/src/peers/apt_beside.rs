//! apt with lists and archives of its own, beside the machine's: it brings files into the build's directory and installs nothing.

use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};

/// Makes the directory `work`, with the lists that `source` names.
///
/// # Errors
/// With what failed.
pub fn prepare(work: &Path, source: &str) -> Result<(), String> {
    let failed = |error: std::io::Error| format!("{}: {error}", work.display());
    fs::create_dir_all(work.join("lists").join("partial")).map_err(failed)?;
    fs::create_dir_all(work.join("cache").join("archives").join("partial")).map_err(failed)?;
    fs::write(work.join("sources.list"), source).map_err(failed)?;
    apt(work, "apt-get", &["update"]).map(drop)
}

/// Runs a program of apt in `work`; gives what it printed.
///
/// # Errors
/// With what failed.
pub fn apt(work: &Path, program: &str, arguments: &[&str]) -> Result<String, String> {
    let own =
        [("Dir::Etc::SourceList", "sources.list"), ("Dir::State::Lists", "lists"), ("Dir::Cache", "cache")];
    let own = own
        .iter()
        .flat_map(|(name, place)| ["-o".to_owned(), format!("{name}={}", work.join(place).display())]);
    let quiet = ["-q", "-o", "Dir::Etc::SourceParts=-", "-o", "APT::Sandbox::User=root"];
    run(Command::new(program).args(quiet).args(own).args(arguments).env("LC_ALL", "C").current_dir(work))
}

/// Runs a command that must succeed; gives what it printed.
///
/// # Errors
/// With what it printed, if it failed.
pub fn run(command: &mut Command) -> Result<String, String> {
    let output = command.stdin(Stdio::null()).output().map_err(|error| format!("{command:?}: {error}"))?;
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    match output.status.success() {
        true => Ok(said),
        false => Err(format!("{command:?}: {}\n{}", output.status, String::from_utf8_lossy(&output.stderr))),
    }
}
