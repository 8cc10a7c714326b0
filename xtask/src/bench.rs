//! `cargo xtask bench`: cowhand side by side with QEMU, on the same bytes, in one run.
//!
//! Every figure is the median of several rounds; in each round every program is measured once, in
//! turn, so that a machine that is slow for a minute is slow for all of them.

mod contender;
mod docs;
mod door;
mod fio;
mod html;
mod image;
mod load;
mod plot;
mod process;
mod sample;
mod scratch;
mod server;
mod table;
mod tables;
mod throttle;
mod vdi;

use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::time::Instant;

use clap::Args as ClapArgs;
use nix::sys::resource::{Resource, getrlimit, setrlimit};

use self::scratch::Scratch;
use self::table::Table;
use self::tables::{Entry, TABLES};
use crate::peers::qemu_releases;
use crate::workspace::{cargo, release};

/// What images of all tables may take at a time, in bytes.
const SPACE_BYTES: u64 = 8 << 30;

/// Options of `cargo xtask bench`.
#[derive(Debug, ClapArgs)]
pub struct Args {
    /// Few and short rounds: shapes, not figures; leaves the documentation alone
    #[arg(long)]
    quick: bool,

    /// Only these tables (door, process, A, B, .., K or throttle, L or tools, M to T, counters); may be repeated
    #[arg(long, value_name = "TABLE", value_delimiter = ',', value_parser = table_id)]
    only: Vec<String>,

    /// Directory on a disk for images (up to 8 GiB, removed at the end) and for the report
    #[arg(long, alias = "directory", value_name = "DIR", default_value = "target/bench")]
    dir: PathBuf,

    /// Leave docs/bench and docs/internals/performance.md alone
    #[arg(long)]
    no_docs: bool,

    /// Measure nothing: make the page and its pictures of the tables in docs/bench
    #[arg(long, conflicts_with_all = ["quick", "only", "no_docs"])]
    page: bool,

    /// Measure this program instead of building one: to compare two states of the code
    #[arg(long, value_name = "PROGRAM")]
    cowhand: Option<PathBuf>,

    /// Rounds of each figure
    #[arg(long, value_name = "N")]
    rounds: Option<u32>,

    /// Seconds of each measurement
    #[arg(long, value_name = "SECONDS")]
    seconds: Option<f64>,
}

/// How much is measured.
#[derive(Clone, Copy, Debug)]
struct Effort {
    rounds: u32,
    seconds: f64,
    /// Rows that only refine a table are left out.
    quick: bool,
}

/// What every table measures with.
#[derive(Clone, Debug)]
struct Bench {
    effort: Effort,
    /// The program under test, built for release.
    cowhand: PathBuf,
    /// Where a table's images are; emptied after each table.
    images: PathBuf,
}

/// Runs `cargo xtask bench`.
pub fn run(args: &Args) -> ExitCode {
    match measure(args) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("xtask bench: {error}");
            ExitCode::FAILURE
        }
    }
}

/// Measures the tables; says whether every one of them came to an end.
fn measure(args: &Args) -> Result<bool, String> {
    if args.page {
        return docs::update(&[]).map(|()| true);
    }
    if let Some(whole) = beside_newest()? {
        return Ok(whole);
    }
    let entries = chosen(&args.only)?;
    let scratch = Scratch::new(&args.dir, SPACE_BYTES)?;
    let cowhand = match &args.cowhand {
        Some(program) => program.canonicalize().map_err(|error| format!("{}: {error}", program.display()))?,
        None => build(&[])?,
    };
    let usual = match args.quick {
        true => Effort { rounds: 1, seconds: 0.1, quick: true },
        false => Effort { rounds: 3, seconds: 0.5, quick: false },
    };
    let effort = Effort {
        rounds: args.rounds.unwrap_or(usual.rounds).max(1),
        seconds: args.seconds.unwrap_or(usual.seconds),
        ..usual
    };
    deepen_stacks()?;
    let bench = Bench { effort, cowhand, images: scratch.path().to_owned() };
    let start = Instant::now();
    let (tables, whole) = all(&entries, &bench, &scratch)?;
    let report = args.dir.join("report.html");
    write(&report, &html::page(&tables)?)?;
    let json = serde_json::to_string_pretty(&tables).map_err(|error| error.to_string())?;
    write(&args.dir.join("report.json"), &json)?;
    if !args.quick && !args.no_docs {
        docs::update(&tables)?;
    }
    println!("{} after {:.0} s", report.display(), start.elapsed().as_secs_f64());
    Ok(whole)
}

/// Set where the newest QEMU is the first that programs are looked for in.
const NEWEST: &str = "COWHAND_BENCH_QEMU";

/// Runs this program again with the newest QEMU that there is in front of the system's, and says whether all went well; `None` in that run.
fn beside_newest() -> Result<Option<bool>, String> {
    if std::env::var_os(NEWEST).is_some() {
        return Ok(None);
    }
    let newest = qemu_releases::ensure()?.pop().ok_or("there is no QEMU to compare with")?;
    let before = std::env::var_os("PATH").unwrap_or_default();
    let path = std::iter::once(newest.programs.clone()).chain(std::env::split_paths(&before));
    let path = std::env::join_paths(path).map_err(|error| error.to_string())?;
    let own = std::env::current_exe().map_err(|error| error.to_string())?;
    let mut again = Command::new(own);
    again.args(std::env::args_os().skip(1)).env("PATH", path).env(NEWEST, newest.upstream());
    let status = again.status().map_err(|error| error.to_string())?;
    Ok(Some(status.success()))
}

/// Gives the programs that are started from here on all the stack that the system allows: `qemu-img bench` 10 goes one level deeper with each request
/// that is answered at once, and is ended by the kernel where that is 8 MiB deep.
fn deepen_stacks() -> Result<(), String> {
    let deepened =
        getrlimit(Resource::RLIMIT_STACK).and_then(|(_, hard)| setrlimit(Resource::RLIMIT_STACK, hard, hard));
    deepened.map_err(|error| format!("the limit of stacks: {error}"))
}

/// The id of a table that was asked for by its subject.
fn table_id(name: &str) -> Result<String, std::convert::Infallible> {
    Ok(match name {
        "throttle" => "K".to_owned(),
        "tools" => "L".to_owned(),
        name => name.to_owned(),
    })
}

fn chosen(only: &[String]) -> Result<Vec<&'static Entry>, String> {
    let known = || TABLES.iter().map(|entry| entry.id).collect::<Vec<_>>().join(", ");
    if let Some(unknown) =
        only.iter().find(|id| TABLES.iter().all(|entry| !entry.id.eq_ignore_ascii_case(id)))
    {
        return Err(format!("there is no table {unknown}; there are {}", known()));
    }
    let usual = |entry: &Entry| only.is_empty() && !entry.on_request;
    let wanted = |entry: &&Entry| usual(entry) || only.iter().any(|id| entry.id.eq_ignore_ascii_case(id));
    Ok(TABLES.iter().filter(wanted).collect())
}

/// Runs the tables one after the other; one that fails does not keep the others from running.
fn all(entries: &[&Entry], bench: &Bench, scratch: &Scratch) -> Result<(Vec<Table>, bool), String> {
    let (mut tables, mut whole) = (Vec::new(), true);
    let rivals = rivals()?;
    for entry in entries {
        let start = Instant::now();
        match (entry.run)(bench) {
            Ok(mut table) => {
                table.about += &rivals;
                println!("{}\n({:.0} s)\n", docs::markdown(&table), start.elapsed().as_secs_f64());
                tables.push(table);
            }
            Err(error) => {
                eprintln!("xtask bench: table {}: {error}\n", entry.id);
                whole = false;
            }
        }
        scratch.empty()?;
    }
    Ok((tables, whole))
}

/// Which versions of other programs this machine has, as a sentence.
fn rivals() -> Result<String, String> {
    let qemu = process::run(Command::new("qemu-img").arg("--version"))?.text;
    let nbdkit = process::run(Command::new("nbdkit").arg("--version"))?.text;
    let of_qemu = qemu.split_whitespace().nth(2).unwrap_or("of an unknown version");
    let of_nbdkit = nbdkit.split_whitespace().nth(1).unwrap_or("of an unknown version");
    Ok(format!(" Others: QEMU {of_qemu}, nbdkit {of_nbdkit}."))
}

/// Builds the program with `features` and says where it is.
fn build(features: &[&str]) -> Result<PathBuf, String> {
    let mut command = cargo();
    command.args(["build", "--quiet", "--release", "--package", "cowhand-cli"]);
    command.args(features.iter().flat_map(|feature| ["--features", feature]));
    process::run(&mut command)?;
    Ok(release())
}

fn write(path: &Path, text: &str) -> Result<(), String> {
    std::fs::write(path, text).map_err(|error| format!("{}: {error}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tables_are_chosen_by_name_in_their_own_order() {
        let ids = |only: &[&str]| {
            let only: Vec<String> = only.iter().map(|&id| id.to_owned()).collect();
            chosen(&only).map(|entries| entries.iter().map(|entry| entry.id).collect::<Vec<_>>())
        };
        assert_eq!(ids(&["b", "A"]), Ok(vec!["A", "B"]));
        let usual = TABLES.iter().filter(|entry| !entry.on_request).count();
        assert_eq!(ids(&[]).map(|ids| ids.len()), Ok(usual));
        assert!(ids(&["Z"]).is_err_and(|error| error.contains("door")));
    }
}
