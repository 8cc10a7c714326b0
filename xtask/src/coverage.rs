//! `cargo xtask coverage`: which lines of the format, the map cache and the engine their own tests reach.
//!
//! The compiler's instrumentation (`-C instrument-coverage`) with the `llvm-profdata` and `llvm-cov` that
//! belong to it: component `llvm-tools` of the toolchain.

mod report;

use std::io;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Output};

use self::report::Report;
use crate::stage::Stages;
use crate::workspace::{cargo, root, rustc_says, target_directory};

/// Arguments of `cargo xtask coverage`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// List the lines that no test reaches
    #[arg(long)]
    lines: bool,
    /// Of the last run, without running the tests again
    #[arg(long)]
    again: bool,
    /// Only files whose path contains this [default: all]
    #[arg(value_name = "PART")]
    part: Option<String>,
}

/// The packages that are looked at, with all of their tests.
const PACKAGES: [&str; 3] = ["cowhand-qcow2-layout", "cowhand-map-cache", "cowhand-qcow2"];

/// Where instrumented code goes: the flags differ from those of every other build.
const TARGET_DIRECTORY: &str = "coverage";

/// How long each configuration of the simulation runs, unless the environment says something else, in minutes: lines
/// that seconds of random work do not reach wait for a test of their own.
const SIMULATION: (&str, &str) = ("COWHAND_SIM_MINUTES", "0.02");

/// What all runs together come to, once merged.
const MERGED: &str = "merged.profdata";

/// Runs it.
pub fn run(args: &Args) -> ExitCode {
    let tools = match Tools::find() {
        Ok(tools) => tools,
        Err(error) => {
            eprintln!("{error}");
            return ExitCode::FAILURE;
        }
    };
    let mut stages = Stages::default();
    if !args.again {
        let _ = std::fs::remove_dir_all(profiles());
        if stages.command("build with counters", tests().arg("--no-run")) {
            // A test that fails has counted all the same.
            stages.command("tests", tests().arg("--no-fail-fast"));
            stages.stage("counters of all runs together", || tools.merge());
        }
    }
    stages.stage("lines", || {
        let lcov = tools.lcov()?;
        print!("{}", Report::read(&lcov, &root(), args.part.as_deref()).table(args.lines));
        Ok(())
    });
    if stages.sum_up() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// `cargo test` of the packages, instrumented.
fn tests() -> Command {
    let mut command = cargo();
    command.arg("test").args(PACKAGES.iter().flat_map(|package| ["--package", *package])).arg("--tests");
    command
        .env("RUSTFLAGS", "-C instrument-coverage")
        .env("CARGO_TARGET_DIR", directory())
        // %m: one file for each binary, to which all its runs add.
        .env("LLVM_PROFILE_FILE", profiles().join("%m.profraw"));
    if std::env::var_os(SIMULATION.0).is_none() {
        command.env(SIMULATION.0, SIMULATION.1);
    }
    command
}

/// The programs of LLVM that understand what this compiler's counters write.
struct Tools {
    directory: PathBuf,
}

impl Tools {
    fn find() -> Result<Self, String> {
        let libraries = Path::new(&rustc_says("sysroot")?).join("lib").join("rustlib");
        let directory = libraries.join(rustc_says("host-tuple")?).join("bin");
        match directory.join("llvm-cov").is_file() {
            true => Ok(Self { directory }),
            false => Err(format!(
                "no llvm-cov in {}; `rustup component add llvm-tools` installs it",
                directory.display()
            )),
        }
    }

    fn merge(&self) -> Result<(), String> {
        let raw = files(&profiles(), |path| path.extension().is_some_and(|end| end == "profraw"));
        let raw = raw.map_err(|error| format!("{}: {error}", profiles().display()))?;
        let mut command = Command::new(self.directory.join("llvm-profdata"));
        command.args(["merge", "--sparse", "--output"]).arg(profiles().join(MERGED)).args(raw);
        output_of(&mut command).map(drop)
    }

    /// How often each line ran, in the format of lcov.
    fn lcov(&self) -> Result<String, String> {
        let output = tests().args(["--no-run", "--message-format=json"]).output();
        let output = output.map_err(|error| format!("cargo does not run: {error}"))?;
        let binaries = executables(&String::from_utf8_lossy(&output.stdout));
        let mut command = Command::new(self.directory.join("llvm-cov"));
        command.args(["export", "--format=lcov", "--ignore-filename-regex=/(rustc|registry)/"]);
        command.arg("--instr-profile").arg(profiles().join(MERGED));
        command.args(binaries.iter().flat_map(|binary| ["--object", binary]));
        let output = output_of(&mut command)?;
        Ok(String::from_utf8_lossy(&output.stdout).into_owned())
    }
}

/// The programs that cargo built, from its messages: one line each, `"executable":"PATH"`.
fn executables(messages: &str) -> Vec<String> {
    let path = |line: &str| Some(line.split_once("\"executable\":\"")?.1.split_once('"')?.0.to_owned());
    messages.lines().filter_map(path).collect()
}

fn output_of(command: &mut Command) -> Result<Output, String> {
    let output = command.output().map_err(|error| format!("{command:?}: {error}"))?;
    match output.status.success() {
        true => Ok(output),
        false => Err(format!("{:?}: {}", command.get_program(), String::from_utf8_lossy(&output.stderr))),
    }
}

fn files(directory: &Path, which: impl Fn(&Path) -> bool) -> io::Result<Vec<PathBuf>> {
    let entries = directory.read_dir()?.map(|entry| Ok(entry?.path()));
    let all: io::Result<Vec<PathBuf>> = entries.collect();
    Ok(all?.into_iter().filter(|path| which(path)).collect())
}

fn directory() -> PathBuf {
    target_directory().join(TARGET_DIRECTORY)
}

fn profiles() -> PathBuf {
    directory().join("profiles")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_was_built_to_run_is_asked_for_its_counters() {
        let messages = "{\"reason\":\"compiler-artifact\",\"executable\":null}\n\
                        {\"reason\":\"compiler-artifact\",\"executable\":\"/t/one-1\",\"fresh\":true}\n";
        assert_eq!(executables(messages), ["/t/one-1"]);
    }
}
