//! `cargo xtask figures`: what one run of the full tier looks at, in numbers, and whether that is enough.

mod sums;

use std::io::{self, BufRead, BufReader};
use std::process::{Command, ExitCode, Stdio};
use std::time::Instant;

pub use self::sums::Figures;
use crate::stage::Stages;
use crate::test::Tier;
use crate::workspace::{binary, cargo, cargo_test, root};
use crate::{interleave, sim};

/// Arguments of `cargo xtask figures`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Put the table into docs/internals/testing.md
    #[arg(long)]
    write: bool,
    /// How long all fuzz targets together make up cases beside the corpus
    #[arg(long, value_name = "S", default_value_t = Tier::Full.fuzz_seconds())]
    fuzz_seconds: u64,
}

/// What every run must look at, at the least: name as the tests print it, number, and what it says in the table.
const WANTED: [(&str, u64, &str); 8] = [
    ("crash states", 100_000, "crash states checked"),
    ("workloads with failing I/O", 20, "workloads of which every I/O failed"),
    ("operations against the model", 1_000_000, "random operations against the model"),
    ("unlike chains", 400, "jobs and tools on chains of unlike images"),
    ("interleavings", 50_000, "interleavings explored"),
    ("fuzz executions", 60_000, "fuzz executions, all targets"),
    ("kills", 50, "kills of the daemon"),
    ("hostile images", 200, "hostile images"),
];

/// The table stands in the documentation between these.
const BEGIN: &str = "<!-- figures: cargo xtask figures --write -->\n";
const END: &str = "<!-- end of figures -->\n";

/// Runs it.
pub fn run(args: &Args) -> ExitCode {
    let mut figures = Figures::default();
    let mut stages = Stages::default();
    for (name, command) in commands(args) {
        stages.stage(name, || follow(command, &mut figures));
    }
    stages.stage("interleavings", || {
        interleave::stage().map(|explored| figures.add("interleavings", explored))
    });
    let (table, enough) = table(&figures);
    print!("\n{table}");
    if args.write {
        stages.stage("docs/internals/testing.md", || write(&table));
    }
    if stages.sum_up() && enough { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// Everything that prints figures, and the build of the program before those that need it.
fn commands(args: &Args) -> Vec<(&'static str, Command)> {
    let mut fuzz = cargo();
    fuzz.args(["test", "--package", "cowhand-fuzz", "--test", "corpus", "--", "--nocapture"]);
    fuzz.env("COWHAND_FUZZ_SECONDS", args.fuzz_seconds.to_string());
    let mut build = cargo();
    build.args(["test", "--workspace", "--no-run"]);
    let mut outside = tests("black-box", &["all"], &["kill::", "hostile::", "matrix::"]);
    outside.env("COWHAND_BIN", binary());
    vec![
        ("simulation", tests(sim::PACKAGE, &sim::PROGRAMS, &sim::TESTS)),
        ("fuzzing", fuzz),
        ("build", build),
        ("black box", outside),
    ]
}

fn tests(package: &str, programs: &[&str], modules: &[&str]) -> Command {
    let mut command = cargo_test(package, programs, modules);
    command.arg("--nocapture");
    command
}

/// Passes on what the command prints, with the sums so far behind every line that has figures.
///
/// # Errors
/// If it does not run, or does not succeed.
pub fn follow(mut command: Command, figures: &mut Figures) -> Result<(), String> {
    let failed = |error: io::Error| error.to_string();
    let mut child = command.stdout(Stdio::piped()).spawn().map_err(failed)?;
    let start = Instant::now();
    for line in child.stdout.take().into_iter().flat_map(|out| BufReader::new(out).lines()) {
        let line = line.map_err(failed)?;
        println!("{line}");
        if figures.read(&line) {
            println!("  after {} s, {}", start.elapsed().as_secs(), figures.line());
        }
    }
    match child.wait().map_err(failed)? {
        status if status.success() => Ok(()),
        status => Err(status.to_string()),
    }
}

/// The table, and whether everything reaches what is wanted.
fn table(figures: &Figures) -> (String, bool) {
    let mut table =
        String::from("| looked at by one run of the full tier | number | at least |\n|---|---|---|\n");
    let mut enough = true;
    for (name, wanted, what) in WANTED {
        let found = figures.get(name);
        enough &= found >= wanted;
        table += &format!("| {what} | {} | {} |\n", sums::grouped(found), sums::grouped(wanted));
    }
    for (name, number) in figures.others(&WANTED.map(|(name, ..)| name)) {
        table += &format!("| {name} | {} | |\n", sums::grouped(number));
    }
    (table, enough)
}

fn write(table: &str) -> Result<(), String> {
    let path = root().join("docs").join("testing.md");
    let failed = |error: io::Error| format!("{}: {error}", path.display());
    let text = std::fs::read_to_string(&path).map_err(failed)?;
    let replaced =
        replaced(&text, table).ok_or_else(|| format!("{}: no place for figures", path.display()))?;
    std::fs::write(&path, replaced).map_err(failed)
}

fn replaced(text: &str, table: &str) -> Option<String> {
    let (before, rest) = text.split_once(BEGIN)?;
    let (_, after) = rest.split_once(END)?;
    Some(format!("{before}{BEGIN}{table}{END}{after}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn too_little_of_anything_is_not_enough() {
        let mut figures = Figures::default();
        WANTED.iter().for_each(|(name, wanted, _)| figures.add(name, *wanted));
        assert!(table(&figures).1);
        let mut short = Figures::default();
        WANTED.iter().skip(1).for_each(|(name, wanted, _)| short.add(name, *wanted));
        let (table, enough) = table(&short);
        assert!(!enough && table.contains("| crash states checked | 0 | 100,000 |"), "{table}");
    }

    #[test]
    fn the_table_goes_where_the_old_one_was() {
        let text = format!("a\n{BEGIN}old\n{END}b\n");
        assert_eq!(replaced(&text, "new\n"), Some(format!("a\n{BEGIN}new\n{END}b\n")));
        assert!(include_str!("../../../docs/internals/testing.md").contains(BEGIN));
    }
}
