//! `cargo xtask fuzz`: one target, or all, under libFuzzer.
//!
//! The engine is libFuzzer from the crate `libfuzzer-sys`, with the coverage instrumentation that the
//! stable compiler has (`-C passes=sancov-module`): nothing to install but a C++ compiler. The corpus
//! that is checked in is where a run starts; what it finds goes to a directory beside the build, and
//! `--keep` brings what covers more back into the corpus.

use std::ffi::OsStr;
use std::io;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use crate::stage::Stages;
use crate::workspace::{cargo, root, rustc_says, target_directory};

/// Arguments of `cargo xtask fuzz`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// The target, a directory's name under fuzz/corpus, or all
    target: String,

    /// How long each target runs
    #[arg(long, value_name = "M", default_value_t = 1.0)]
    minutes: f64,

    /// Bring what covers more into fuzz/corpus
    #[arg(long)]
    keep: bool,

    /// Run this one case and nothing else
    #[arg(long, value_name = "FILE", conflicts_with = "keep")]
    case: Option<PathBuf>,
}

/// Where instrumented code goes: the flags differ from those of every other build.
const TARGET_DIRECTORY: &str = "fuzz";

/// Flags of the instrumentation that libFuzzer reads: counters on edges, and operands of comparisons, so
/// that magic numbers are found.
const RUSTFLAGS: &str = "-Cpasses=sancov-module -Cllvm-args=-sanitizer-coverage-level=4 \
    -Cllvm-args=-sanitizer-coverage-inline-8bit-counters -Cllvm-args=-sanitizer-coverage-pc-table \
    -Cllvm-args=-sanitizer-coverage-trace-compares -Cdebug-assertions=on -Coverflow-checks=on \
    -Clink-dead-code=off -Ccodegen-units=4 --cfg fuzzing";

/// One case may take this many seconds.
const CASE_SECONDS_MAX: u32 = 10;

/// Longest case: larger ones say nothing that these do not.
const CASE_BYTES_MAX: u32 = 4096;

/// Longest case that is kept: the corpus is read at every test.
const KEPT_BYTES_MAX: u64 = 256;

/// Most cases that one run adds to a corpus, those that cover most first.
const KEPT_FILES_MAX: usize = 60;

/// Runs it.
pub fn run(args: &Args) -> ExitCode {
    println!("engine: libFuzzer (crate libfuzzer-sys), instrumented by the stable compiler");
    let mut stages = Stages::default();
    if stages.command("build of the targets", &mut build()) {
        for target in targets(&args.target) {
            if let Some(case) = &args.case {
                stages.command(&format!("{target}: one case"), engine(&target).arg(case));
                continue;
            }
            fuzz(&mut stages, &target, args);
        }
    }
    if stages.sum_up() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn fuzz(stages: &mut Stages, target: &str, args: &Args) {
    let found = work(target, "found");
    let failures = work(target, "failures");
    let seconds = (args.minutes.clamp(0.01, 100_000.0) * 60.0).round();
    let mut command = engine(target);
    command
        .arg(format!("-max_total_time={seconds}"))
        .arg(format!("-timeout={CASE_SECONDS_MAX}"))
        .arg(format!("-max_len={CASE_BYTES_MAX}"))
        .args(["-rss_limit_mb=2048", "-print_final_stats=1", "-verbosity=0", "-use_value_profile=1"])
        .arg(format!("-artifact_prefix={}/", failures.display()))
        .args([found.as_path(), &corpus(target)]);
    stages.command(&format!("{target}: {seconds} s"), &mut command);
    if args.keep {
        keep(stages, target, &found);
    }
}

/// The corpus, and of what was found the short cases that cover more, as few as possible.
fn keep(stages: &mut Stages, target: &str, found: &Path) {
    let merged = work(target, "merged");
    // What an earlier run left there would count as covered.
    let _ = std::fs::remove_dir_all(&merged);
    let merged = made(merged);
    let mut merge = engine(target);
    merge.args(["-set_cover_merge=1", "-verbosity=0", &format!("-max_len={KEPT_BYTES_MAX}")]);
    merge.arg(&merged).arg(corpus(target)).arg(found);
    if !stages.command(&format!("{target}: the cases worth keeping"), &mut merge) {
        return;
    }
    stages.stage(&format!("{target}: into the corpus"), || {
        copy_best(&merged, &corpus(target)).map_err(|error| error.to_string())
    });
}

/// libFuzzer writes those that cover most first.
fn copy_best(from: &Path, into: &Path) -> io::Result<()> {
    let mut files = Vec::new();
    for file in from.read_dir()? {
        let file = file?;
        let metadata = file.metadata()?;
        if metadata.len() <= KEPT_BYTES_MAX {
            files.push((metadata.modified()?, file));
        }
    }
    files.sort_by_key(|(modified, _)| *modified);
    for (_, file) in files.iter().take(KEPT_FILES_MAX) {
        std::fs::copy(file.path(), into.join(file.file_name()))?;
    }
    Ok(())
}

fn build() -> Command {
    let mut command = cargo();
    // With --target, the flags are for the targets alone, not for build scripts and macros.
    command
        .args(["build", "--release", "--package", "cowhand-fuzz", "--features", "libfuzzer"])
        // With the names that a report of a crash shows.
        .args(["--config", "profile.release.strip=false"])
        .args(["--bin", "libfuzzer", "--config", "profile.release.lto=false", "--target", &host()])
        .env("RUSTFLAGS", RUSTFLAGS)
        .env("CARGO_TARGET_DIR", directory());
    command
}

fn engine(target: &str) -> Command {
    let mut command = Command::new(directory().join(host()).join("release").join("libfuzzer"));
    command.env("COWHAND_FUZZ_TARGET", target).current_dir(root());
    command
}

/// The machine's own triple, as the compiler names it.
fn host() -> String {
    rustc_says("host-tuple").unwrap_or_default()
}

fn targets(wanted: &str) -> Vec<String> {
    if wanted != "all" {
        return vec![wanted.to_owned()];
    }
    let Ok(directory) = root().join("fuzz").join("corpus").read_dir() else { return Vec::new() };
    let names = directory.flatten().map(|entry| entry.file_name());
    let mut names: Vec<String> = names.filter_map(|name| name.into_string().ok()).collect();
    names.sort();
    names
}

fn directory() -> PathBuf {
    target_directory().join(TARGET_DIRECTORY)
}

fn corpus(target: &str) -> PathBuf {
    made(root().join("fuzz").join("corpus").join(target))
}

fn work(target: &str, what: impl AsRef<OsStr>) -> PathBuf {
    made(directory().join("cases").join(target).join(what.as_ref()))
}

/// The directory, there if it can be; libFuzzer says so if it is not.
fn made(directory: PathBuf) -> PathBuf {
    let _ = std::fs::create_dir_all(&directory);
    directory
}
