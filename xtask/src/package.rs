//! `cargo xtask package`: Debian packages from the tree, and their test in a clean Debian.

mod chroot;
mod container;
mod debian;
mod library;
mod licences;
mod pages;
mod tree;

use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use crate::peers;
use crate::stage::{Stages, output};
use crate::workspace::{cargo, target_directory};

/// Arguments of `cargo xtask package`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Install, run and purge the packages in a clean Debian (as root)
    #[arg(long)]
    test: bool,

    /// Profile that the program is built with
    #[arg(long, value_name = "PROFILE", default_value = "dist")]
    profile: String,
}

/// Where packages and what they are made of go.
fn directory() -> PathBuf {
    target_directory().join("package")
}

/// Runs it.
pub fn run(args: &Args) -> ExitCode {
    let mut stages = Stages::default();
    let mut build = cargo();
    build.args(["build", "--package", "cowhand-cli", "--package", "cowhand-capi"]);
    build.args(["--profile", &args.profile]);
    let ready = stages.stage("what packages are made with", peers::ensure_packaging)
        && stages.command("build of the program and the library", &mut build);
    let mut packages = Vec::new();
    if ready {
        stages.stage("packages", || {
            packages = make(&args.profile)?;
            Ok(())
        });
        if args.test && !packages.is_empty() {
            stages.stage("packages: lintian", || debian::lint(&packages));
            stages.stage("packages: installed, run and purged in a clean Debian", || chroot::test(&packages));
        }
    }
    if stages.sum_up() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// Lays out and packs everything; says how large it is.
fn make(profile: &str) -> Result<Vec<PathBuf>, String> {
    // Cargo's name for the profile `dev` is not that of its directory.
    let built = if profile == "dev" { "debug" } else { profile };
    let built = target_directory().join(built);
    let binary = built.join("cowhand");
    let directory = directory();
    remove(&directory)?;
    let trees = tree::lay_out(&directory, &binary)?;
    let library = library::lay_out(&directory, &built)?;
    let mut packages = Vec::new();
    for tree in trees.iter().chain(&library) {
        let package = debian::pack(&directory, tree)?;
        println!("{}: {}", package.display(), size(&package)?);
        packages.push(package);
    }
    let stripped = directory.join("cowhand/usr/bin/cowhand");
    println!("{}: {}", stripped.display(), size(&stripped)?);
    Ok(packages)
}

fn size(file: &Path) -> Result<String, String> {
    let bytes = std::fs::metadata(file).map_err(|error| failed(file, &error))?.len();
    Ok(format!("{}.{} MB", bytes / 1_000_000, bytes / 100_000 % 10))
}

fn remove(directory: &Path) -> Result<(), String> {
    match std::fs::remove_dir_all(directory) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => Err(failed(directory, &error)),
        _ => Ok(()),
    }
}

fn failed(path: &Path, error: &std::io::Error) -> String {
    format!("{}: {error}", path.display())
}

/// When the commit was made that is packed, in seconds since 1970: two builds of one commit are the same bytes.
fn commit_time() -> Result<String, String> {
    if let Ok(set) = std::env::var("SOURCE_DATE_EPOCH") {
        return Ok(set);
    }
    let mut git = Command::new("git");
    git.args(["log", "-1", "--format=%ct"]).current_dir(crate::workspace::root());
    output(&mut git).map(|seconds| seconds.trim().to_owned())
}
