//! The NBD door: fio's nbd engine against cowhand, qemu-nbd and nbdkit.

use std::path::Path;

use super::Bench;
use super::fio::{self, Load};
use super::image::{check, filled};
use super::sample::{Pair, Sample, Series, in_rounds};
use super::server::{Kind, Served, Server};
use super::table::{Chart, Form, Table, Verdict, number};

/// One row of the table.
struct Case {
    name: &'static str,
    load: Load,
    direct: bool,
    /// The client writes all of the disk before, in the order of a backup that is restored.
    restored: bool,
    rivals: &'static [Kind],
    /// What to reach against each rival.
    targets: &'static [f64],
}

impl Case {
    fn is_cached_read(&self) -> bool {
        !self.direct && self.load.rw.ends_with("read")
    }
}

const DISK_BYTES: u64 = 1 << 30;
const CACHED: &[Kind] = &[Kind::QemuNbd, Kind::NbdkitFile];
const QEMU: &[Kind] = &[Kind::QemuNbd];

const fn case(
    name: &'static str,
    rw: &'static str,
    depth: u32,
    jobs: u32,
    direct: bool,
    rivals: &'static [Kind],
    targets: &'static [f64],
) -> Case {
    Case {
        name,
        load: Load { rw, block: "4k", depth, jobs, disk_bytes: DISK_BYTES },
        direct,
        restored: false,
        rivals,
        targets,
    }
}

const fn stream(name: &'static str, rw: &'static str) -> Case {
    let load = Load { rw, block: "1M", depth: 4, jobs: 1, disk_bytes: DISK_BYTES };
    Case { name, load, direct: false, restored: false, rivals: QEMU, targets: &[1.0] }
}

/// How a disk is restored: as much of it as there is time for, from its beginning, again and again.
const RESTORING: Load = Load { rw: "write", block: "1M", depth: 4, jobs: 1, disk_bytes: DISK_BYTES };

/// A disk is restored, and then used at random.
const RESTORED: Case = Case {
    name: "4k random writes, page cache, depth 16, after 1M writes",
    load: Load { rw: "randwrite", block: "4k", depth: 16, jobs: 1, disk_bytes: DISK_BYTES },
    direct: false,
    restored: true,
    rivals: QEMU,
    targets: &[2.0],
};

const CASES: [Case; 13] = [
    case("4k random reads, page cache, depth 1", "randread", 1, 1, false, CACHED, &[2.2, 1.3]),
    case("4k random reads, page cache, depth 16", "randread", 16, 1, false, CACHED, &[2.5, 1.3]),
    case("4k random reads, page cache, depth 64", "randread", 64, 1, false, CACHED, &[2.5, 1.3]),
    case("4k random reads, page cache, 4 connections x 16", "randread", 16, 4, false, CACHED, &[2.5, 1.3]),
    case("4k random reads, cache=none, depth 1", "randread", 1, 1, true, QEMU, &[1.3]),
    case("4k random reads, cache=none, depth 16", "randread", 16, 1, true, QEMU, &[1.1]),
    case("4k random reads, cache=none, depth 64", "randread", 64, 1, true, QEMU, &[1.0]),
    case("4k random writes, page cache, depth 1", "randwrite", 1, 1, false, QEMU, &[2.0]),
    case("4k random writes, page cache, depth 16", "randwrite", 16, 1, false, QEMU, &[2.0]),
    case("4k random writes, page cache, 4 connections x 16", "randwrite", 16, 4, false, QEMU, &[2.0]),
    RESTORED,
    stream("1M sequential reads, page cache, depth 4", "read"),
    stream("1M sequential writes, page cache, depth 4", "write"),
];

/// What one server did in all rounds of a case.
type Measured = (Kind, Series);

/// Table "door".
pub fn run(bench: &Bench) -> Result<Table, String> {
    let image = bench.path("door.qcow2");
    let raw = bench.path("door.raw");
    filled("qcow2", &image)?;
    filled("raw", &raw)?;
    let mut table = Table {
        id: "door",
        title: "the NBD server".to_owned(),
        about: "fio's nbd engine over a unix socket against 1 GiB of real data, 64 KiB clusters, as qcow2 (and as a raw file \
            for nbdkit). Client and server share the machine. The server's CPU time is in microseconds per request. The limit of reads from the page \
            cache is what the same client reaches with a disk that is nothing (null-co); of all others, what fio (io_uring) reaches on the raw file."
            .to_owned(),
        columns: ["case", "server", "cowhand is", "its CPU is", "requests/s", "spread", "server CPU us"]
            .map(str::to_owned)
            .into(),
        ..Table::default()
    };
    let mut measured = Vec::new();
    for case in CASES.iter().filter(|case| !bench.effort.quick || case.load.depth == 16) {
        let all = measure(bench, case, &image, &raw)?;
        table.rows.extend(rows(case.name, &all));
        table.verdicts.extend(verdicts(case, &all));
        measured.push((case.name, all));
    }
    check(&image)?;
    table.charts.push(chart(&measured));
    Ok(table)
}

fn measure(bench: &Bench, case: &Case, image: &Path, raw: &Path) -> Result<Vec<Measured>, String> {
    let kinds = [&[Kind::Cowhand], case.rivals, &[LIMIT]].concat();
    let mut all: Vec<Measured> = kinds.into_iter().map(|kind| (kind, Series::default())).collect();
    // fio counts in whole seconds.
    let seconds = bench.effort.seconds.ceil() as u32;
    in_rounds(bench.effort.rounds, &mut all, |all, round| {
        for (kind, series) in all {
            if *kind == LIMIT && !case.is_cached_read() {
                if case.restored {
                    fio::sample_of_file(bench, raw, RESTORING, case.direct, round)?;
                }
                series.0.push(fio::sample_of_file(bench, raw, case.load, case.direct, round)?);
                continue;
            }
            let served = Served { image, raw, direct: case.direct, options: "", password: None };
            let server = Server::start(bench, *kind, &served)?;
            if case.restored {
                fio::run(&server.uri(), RESTORING, seconds, 1)?;
            }
            let run = || fio::run(&server.uri(), case.load, seconds, round + 1);
            series.0.push(fio::sample_of_server(|| server.cpu_seconds(), seconds, run)?);
        }
        Ok(())
    })?;
    Ok(all)
}

fn rows(name: &str, all: &[Measured]) -> Vec<Vec<String>> {
    let row = |measured: &Measured| {
        let [rate, cpu] = compared(all, measured).map_or(["-".to_owned(), "-".to_owned()], |ratios| {
            ratios.map(|ratio| format!("{} x", number(ratio)))
        });
        let (kind, series) = measured;
        let cpu = if *kind == LIMIT { "-".to_owned() } else { cpu };
        let spread = format!("{:.0} %", series.spread_percent());
        let cpu_us = number(series.median(Sample::cpu_us));
        vec![name.to_owned(), kind.name().to_owned(), rate, cpu, number(series.rate()), spread, cpu_us]
    };
    all.iter().map(row).collect()
}

/// Our rate and CPU time in terms of a rival's.
fn compared(all: &[Measured], rival: &Measured) -> Option<[f64; 2]> {
    let (_, ours) = all.first().filter(|(kind, _)| *kind != rival.0)?;
    let pair = Pair { ours: ours.clone(), theirs: rival.1.clone(), ..Pair::default() };
    Some([pair.rate_ratio(), pair.ratio(Sample::cpu_us)])
}

/// What no server can be faster than.
const LIMIT: Kind = Kind::Empty;

fn verdicts(case: &Case, all: &[Measured]) -> Vec<Verdict> {
    let mut verdicts = Vec::new();
    let limit = all.iter().find(|(kind, _)| *kind == LIMIT);
    let of_limit = limit.and_then(|limit| compared(all, limit)).map_or(f64::NAN, |[rate, _]| rate);
    for (rival, target) in all.iter().skip(1).zip(case.targets) {
        let Some([rate, cpu]) = compared(all, rival) else { continue };
        let what = format!("door, {}: against {}", case.name, rival.0.name());
        verdicts.push(Verdict::at_least_or_limit(what.clone(), rate, *target, of_limit));
        if case.direct {
            verdicts.push(Verdict::at_most(format!("{what}, CPU"), cpu, 0.5, " x"));
        }
    }
    verdicts
}

fn chart(measured: &[(&str, Vec<Measured>)]) -> Chart {
    let rates = |kind: Kind| {
        let rate = |all: &Vec<Measured>| {
            all.iter().find(|(measured, _)| *measured == kind).map_or(f64::NAN, |(_, series)| series.rate())
        };
        measured.iter().map(|(_, all)| rate(all)).collect()
    };
    Chart {
        title: "Requests per second over NBD".to_owned(),
        form: Form::Bars,
        places: measured.iter().map(|(name, _)| (*name).to_owned()).collect(),
        series: [Kind::Cowhand, Kind::QemuNbd, Kind::NbdkitFile]
            .map(|kind| (kind.name().to_owned(), rates(kind)))
            .into(),
    }
}
