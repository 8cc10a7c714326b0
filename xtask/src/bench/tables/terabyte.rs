//! Table E: a disk of 1 TiB, from its opening on.

use super::{KIB, TIB};
use crate::bench::contender::report;
use crate::bench::fio::{self, Load};
use crate::bench::image::Shape;
use crate::bench::server::{Kind, Served, Server};
use crate::bench::table::{Chart, Form, Table, Verdict, number};
use crate::bench::{Bench, process};
use std::path::Path;
use std::process::Command;

/// Depth of the requests.
const DEPTH: u32 = 16;
/// Longest time that reading every table may take.
const PREFETCH_SECONDS_MAX: f64 = 2.0;

/// What one server did.
struct Row {
    name: &'static str,
    start: f64,
    first: fio::Outcome,
    later: fio::Outcome,
    resident: f64,
}

/// Table E.
pub fn run(bench: &Bench) -> Result<Table, String> {
    let image = bench.create("e.qcow2", Shape::allocated(TIB, 64 * KIB), None)?;
    let mut rows = vec![
        row(bench, "cowhand", Kind::Cowhand, &image, "")?,
        row(bench, "qemu-nbd", Kind::QemuNbd, &image, "")?,
    ];
    let prefetches = prefetches(bench, &image)?;
    if prefetches {
        rows.insert(1, row(bench, "cowhand, prefetch=all", Kind::Cowhand, &image, ",prefetch=all")?);
    }
    let cells = |row: &Row| {
        let mut cells = vec![row.name.to_owned(), number(row.start * 1000.0)];
        for outcome in [&row.first, &row.later] {
            cells.extend([outcome.iops, outcome.p50_us, outcome.p99_us, outcome.p999_us].map(number));
        }
        cells.push(number(row.resident / f64::from(1 << 20)));
        cells
    };
    let heads = ["server", "start ms", "first: /s", "p50 us", "p99 us", "p99.9 us"];
    let more = ["then: /s", "p50 us", "p99 us", "p99.9 us", "memory MiB"];
    Ok(Table {
        id: "E",
        title: "1 TiB with all metadata: cold start, then latencies".to_owned(),
        about: format!(
            "A full 1 TiB image, 64 KiB clusters, O_DIRECT, served over NBD with default cache sizes; fio, 4 KiB random \
             reads at depth {DEPTH}: right after the start, then once more. The start is the time until the server \
             answers; memory is the most the server had."
        ),
        columns: heads.iter().chain(&more).map(|&head| head.to_owned()).collect(),
        rows: rows.iter().map(cells).collect(),
        charts: vec![latencies(&rows)],
        verdicts: if prefetches { verdicts(bench, &image)? } else { vec![not_there()] },
    })
}

fn row(bench: &Bench, name: &'static str, kind: Kind, image: &Path, options: &str) -> Result<Row, String> {
    let seconds = (bench.effort.seconds * 4.0).ceil() as u32;
    let begin = std::time::Instant::now();
    let served = Served { image, raw: image, direct: true, options, password: None };
    let server = Server::start(bench, kind, &served)?;
    let start = begin.elapsed().as_secs_f64();
    let load = Load { rw: "randread", block: "4k", depth: DEPTH, jobs: 1, disk_bytes: TIB };
    let first = fio::run(&server.uri(), load, seconds, 1)?;
    let later = fio::run(&server.uri(), load, seconds, 2)?;
    let resident = process::resident(server.id()).unwrap_or(0) as f64;
    Ok(Row { name, start, first, later, resident })
}

fn latencies(rows: &[Row]) -> Chart {
    let series = |row: &Row| {
        let fio::Outcome { p50_us, p99_us, p999_us, .. } = row.later;
        (row.name.to_owned(), vec![p50_us, p99_us, p999_us])
    };
    Chart {
        title: "Latency in microseconds, after the first seconds".to_owned(),
        form: Form::Bars,
        places: ["p50", "p99", "p99.9"].map(str::to_owned).into(),
        series: rows.iter().map(series).collect(),
    }
}

/// Whether this build can read every table at open.
fn prefetches(bench: &Bench, image: &Path) -> Result<bool, String> {
    let mut help = Command::new(&bench.cowhand);
    help.args(["bench", "-q", "-c", "1"]).arg(format!("file={},prefetch=all", image.display()));
    match process::run(&mut help) {
        Ok(_) => Ok(true),
        Err(error) if error.contains("prefetch") => Ok(false),
        Err(error) => Err(error),
    }
}

/// Random reads that begin when every table should have been read: none of them may miss.
fn verdicts(bench: &Bench, image: &Path) -> Result<Vec<Verdict>, String> {
    let mut command = Command::new(&bench.cowhand);
    command.args(["bench", "-d", "1", "-t", "none", "--access", "random", "--output", "json"]);
    // A first part keeps the disk busy a little, so that what runs beside it gets its turns.
    command.args(["--warm-up-seconds", &PREFETCH_SECONDS_MAX.to_string(), "-c", "200000"]);
    command.arg(format!("file={},prefetch=all", image.display()));
    let sample = report(&process::run(&mut command)?.text)?;
    Ok(vec![
        Verdict::at_most("E, prefetch=all, after 2 s: misses in 200,000 reads", sample.map_misses, 1.0, ""),
        Verdict::at_most(
            "E, prefetch=all: memory of the map, of the default budget",
            sample.map_bytes / f64::from(32 << 20),
            1.0,
            "",
        ),
    ])
}

fn not_there() -> Verdict {
    Verdict::unknown(
        "E, prefetch=all: 1 TiB map in memory",
        "under 2 s, no miss afterwards, within the budget",
        "this build has no prefetch option",
    )
}
