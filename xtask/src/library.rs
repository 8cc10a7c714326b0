//! `cargo xtask library`: what a program gets that links crate `cowhand`: how many foreign crates, packages that a registry would take, every feature
//! by itself, the oldest compiler that links it, and the example of its page.

mod foreign;
mod oldest;
mod pasted;
mod published;

use std::process::{Command, ExitCode};

use crate::stage::{Stages, output, printed};
use crate::workspace::cargo;

/// Arguments of `cargo xtask library`: none.
#[derive(Debug, clap::Args)]
pub struct Args {}

/// The features of the library.
const FEATURES: [&str; 8] = ["checkpoints", "http", "jobs", "libdeflate", "luks", "nbd", "rbd", "s3"];

/// Runs it.
pub fn run(_: &Args) -> ExitCode {
    let mut stages = Stages::default();
    stage(&mut stages);
    if stages.sum_up() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// What takes seconds.
pub fn first_stage(stages: &mut Stages) {
    stages.stage("library: foreign crates", foreign::check);
    stages.stage("library: packages", published::package);
    stages.stage("library: by default and with no feature", by_default);
}

/// All of it.
pub fn stage(stages: &mut Stages) {
    first_stage(stages);
    stages.stage("library: each feature by itself", each_feature);
    stages.stage("library: the oldest compiler", oldest::check);
    let mut tests = cargo();
    tests.args([
        "test",
        "--locked",
        "--package",
        "cowhand",
        "--test",
        "all",
        "--",
        "features::",
        "opening::",
    ]);
    stages.command("library: tests without features", &mut tests);
    stages.stage("library: the example of its page, pasted", pasted::build_and_run);
}

/// Checks the library as most programs link it, and with no feature; a warning fails. Where the whole workspace is built all features are on.
fn by_default() -> Result<(), String> {
    for more in [&[][..], &["--no-default-features"]] {
        let mut check = cargo();
        check.args(["check", "--locked", "--package", "cowhand"]).args(more);
        if let Some(first) = warnings(&mut check)?.first() {
            return Err(format!("the library is built with warnings ({more:?}):\n{first}"));
        }
    }
    Ok(())
}

/// Checks the library with each of its features alone, and all; a warning fails.
fn each_feature() -> Result<(), String> {
    let alone = FEATURES.map(|feature| feature.to_owned());
    for features in alone.into_iter().chain([FEATURES.join(",")]) {
        let mut check = cargo();
        check.args(["check", "--locked", "--package", "cowhand", "--no-default-features"]);
        check.args(["--features", &features]);
        let warned = warnings(&mut check)?;
        println!("{features}: {} warnings", warned.len());
        if let Some(first) = warned.first() {
            return Err(format!("with features {features:?} the library is built with warnings:\n{first}"));
        }
    }
    Ok(())
}

/// What the compiler warns of; cargo shows it again where nothing is to be built.
fn warnings(check: &mut Command) -> Result<Vec<String>, String> {
    let said = printed(check)?.err;
    let parts = said.split("\n\n").filter(|part| part.trim_start().starts_with("warning"));
    Ok(parts.map(str::to_owned).collect())
}
