//! Table K: limits that hold. In real time, over NBD, QEMU's throttle filter beside ours.

mod accuracy;
mod burst;
mod clients;
mod holes;
mod live;
mod servers;
mod shares;
mod unreached;

use std::path::{Path, PathBuf};
use std::process::Command;

use super::table::{Chart, Form, Table, Verdict};
use super::{Bench, process};

/// Bytes of the disk, all written: what QEMU does with holes is a row of its own.
const DISK_BYTES: u64 = 64 << 20;

/// How much is measured.
#[derive(Clone, Copy, Debug)]
struct Extent {
    /// Seconds of a case that hardly keeps the machine busy, after the first one; several run side by side.
    light: u32,
    /// Seconds of a case that has the machine for itself, after the first one.
    heavy: u32,
    /// Rounds of what is compared.
    rounds: usize,
    /// A third of the cases: reads one at a time, writes and both at depth 32.
    quick: bool,
}

impl Extent {
    /// At least three whole seconds: a deviation of one is nothing else. 30 s is what the targets speak of; by default
    /// only where that costs nothing.
    fn of(bench: &Bench) -> Self {
        let asked = bench.effort.seconds as u32;
        let (light, heavy) = match (bench.effort.quick, asked) {
            (true, _) => (3, 3),
            (false, 0) => (30, 5),
            (false, asked) => (asked.max(3), asked.max(3)),
        };
        let rounds = if bench.effort.quick { 3 } else { 5 };
        Self { light, heavy, rounds, quick: bench.effort.quick }
    }
}

/// What one question adds to the table.
#[derive(Debug, Default)]
struct Answer {
    rows: Vec<Vec<String>>,
    verdicts: Vec<Verdict>,
    charts: Vec<Chart>,
}

/// Table K. `--seconds 30` is what the targets speak of, for every case.
pub fn run(bench: &Bench) -> Result<Table, String> {
    let extent = Extent::of(bench);
    let image = create(bench, "throttle.qcow2", DISK_BYTES, true)?;
    let mut all = Answer::default();
    let answers = [
        accuracy::ask(bench, &image, extent)?,
        burst::ask(bench, &image)?,
        holes::ask(bench, extent)?,
        shares::ask(bench, extent)?,
        live::ask(bench, &image)?,
        unreached::ask(bench, &image, extent)?,
    ];
    for answer in answers {
        all.rows.extend(answer.rows);
        all.verdicts.extend(answer.verdicts);
        all.charts.extend(answer.charts);
    }
    Ok(Table {
        id: "K",
        title: "limits".to_owned(),
        about: format!(
            "A client over NBD that always asks for more, for {} s ({} s from 10,000 requests or 100 MiB a second on) \
             after the first, in which the first bucket goes; QEMU's throttle filter in a qemu-storage-daemon beside it. \
             Where a client does not get {} times the limit without one, the row says so and does not count.",
            extent.light,
            extent.heavy,
            accuracy::FREE_TIMES_MIN,
        ),
        columns: accuracy::HEADS.map(str::to_owned).into(),
        rows: all.rows,
        charts: all.charts,
        verdicts: all.verdicts,
    })
}

/// Lines over time, of pieces of `piece_ms`; the axis names whole seconds.
fn trend(title: impl Into<String>, piece_ms: usize, series: Vec<(String, Vec<f64>)>) -> Chart {
    let pieces = series.iter().map(|(_, values)| values.len()).max().unwrap_or(0);
    let name = |at: usize| {
        let ms = at * piece_ms;
        if ms.is_multiple_of(1000) { format!("{} s", ms / 1000) } else { String::new() }
    };
    Chart { title: title.into(), form: Form::Trend, places: (0..pieces).map(name).collect(), series }
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(f64::NAN)
}

/// A fresh image, all of it written if that is wanted.
fn create(bench: &Bench, name: &str, bytes: u64, filled: bool) -> Result<PathBuf, String> {
    let path = bench.path(name);
    let mut make = Command::new("qemu-img");
    process::run(make.args(["create", "-q", "-f", "qcow2"]).arg(&path).arg(bytes.to_string()))?;
    if filled {
        let mut fill = Command::new("qemu-io");
        process::run(fill.args(["-f", "qcow2", "-c", &format!("write -q -P 5 0 {bytes}")]).arg(&path))?;
    }
    Ok(path)
}

fn remove(path: &Path) -> Result<(), String> {
    std::fs::remove_file(path).map_err(|error| format!("{}: {error}", path.display()))
}
