//! The oldest compiler that links the library: the one that its crates name as theirs.

use std::process::Command;

use crate::stage::outcome;
use crate::workspace::root;

/// What a crate says of its compiler.
const KEY: &str = "rust-version = \"";

/// The packages that programs link.
const LINKED: [&str; 3] = ["cowhand", "cowhand-adapters", "cowhand-capi"];

/// Checks the library, its adapters and its C interface with all their features by that compiler, which rustup brings if it is not there: Debian has no
/// package of it.
pub fn check() -> Result<(), String> {
    let manifest = root().join("Cargo.toml");
    let text =
        std::fs::read_to_string(&manifest).map_err(|error| format!("{}: {error}", manifest.display()))?;
    let version = named(&text).ok_or_else(|| format!("{}: no {KEY}VERSION\"", manifest.display()))?;
    run(rustup().args(["toolchain", "install", version, "--profile", "minimal", "--no-self-update"]))?;
    let mut check = rustup();
    check.args(["run", version, "cargo", "check", "--locked", "--all-features"]);
    check.args(LINKED.iter().flat_map(|package| ["--package", package]));
    run(check.args(["--target-dir", "target/oldest"]))?;
    println!("Rust {version} builds {} with all features", LINKED.join(", "));
    Ok(())
}

/// rustup, in the workspace, without what this cargo says of its own compiler.
fn rustup() -> Command {
    let mut rustup = Command::new("rustup");
    for of_this_cargo in ["CARGO", "RUSTC", "RUSTDOC", "RUSTUP_TOOLCHAIN"] {
        rustup.env_remove(of_this_cargo);
    }
    rustup.current_dir(root());
    rustup
}

fn run(command: &mut Command) -> Result<(), String> {
    let ended = command.status();
    outcome(command, ended)
}

/// The version in the manifest of the workspace.
fn named(manifest: &str) -> Option<&str> {
    let (_, rest) = manifest.split_once(KEY)?;
    rest.split('"').next()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_version_is_the_one_of_the_workspace() {
        assert_eq!(named("[workspace.package]\nrust-version = \"1.89\"\n"), Some("1.89"));
        assert_eq!(named("[workspace.package]\n"), None);
    }
}
