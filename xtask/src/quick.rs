//! `cargo xtask quick CRATE`: what says within a minute whether a change of one crate is well.

use std::process::{Command, ExitCode};

use crate::packages::Packages;
use crate::stage::Stages;
use crate::test::Tier;
use crate::tidy;
use crate::workspace::cargo;

/// Arguments of `cargo xtask quick`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// A crate, by its name, with or without `cowhand-`, or its directory
    #[arg(value_name = "CRATE")]
    package: String,

    /// Only tests that have one of these in their names [default: all]
    #[arg(value_name = "TEST")]
    tests: Vec<String>,
}

/// The package whose tests need the program and its peers, and an hour: only what its suites share is tested here.
const BLACK_BOX: &str = "black-box";

/// The crate whose build for speed takes longer than its tests do without.
const ENGINE: &str = "cowhand-qcow2";

/// How the engine is built here.
const ENGINE_PROFILE: [&str; 2] = ["opt-level=1", "codegen-units=16"];

/// The part of the engine's simulation: with [`ENGINE_PROFILE`] it takes some seconds.
const SIMULATION_PART: &str = "1/100";

/// Runs it.
pub fn run(args: &Args) -> ExitCode {
    let packages = match Packages::read() {
        Ok(packages) => packages,
        Err(error) => return failed(&error),
    };
    let Some((_, package)) = packages.called(&args.package) else {
        return failed(&format!("unknown crate {}; known: {}", args.package, packages.names().join(", ")));
    };
    let mut stages = Stages::default();
    stages.stage("tidy: what the tree says of itself", tidy::stage);
    let check = ["check", "--package", package, "--all-targets"];
    if stages.command("check", cargo().args(check)) {
        stages.command(&format!("tests of {package}"), &mut tests(package, &args.tests));
    }
    if stages.sum_up() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn failed(error: &str) -> ExitCode {
    eprintln!("{error}");
    ExitCode::FAILURE
}

fn tests(package: &str, names: &[String]) -> Command {
    let mut command = cargo();
    command.args(["test", "--package", package]);
    Tier::First.set(&mut command);
    match package {
        BLACK_BOX => {
            command.arg("--lib");
        }
        ENGINE => {
            for setting in ENGINE_PROFILE {
                command.args(["--config", &format!("profile.test.package.{ENGINE}.{setting}")]);
            }
            command.env("COWHAND_SIM_SCALE", SIMULATION_PART);
        }
        _ => {}
    }
    command.arg("--").args(names);
    command
}
