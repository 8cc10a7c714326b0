//! Table D: how deep a backing chain may be.

use std::path::{Path, PathBuf};
use std::process::Command;

use super::{GIB, KIB};
use crate::bench::fio;
use crate::bench::image::{Shape, empty_clusters, link};
use crate::bench::load::Load;
use crate::bench::sample::{Pair, Sample, Series, in_rounds};
use crate::bench::server::{Kind, Served, Server};
use crate::bench::table::{Chart, Form, Table, Verdict, bytes, compared, heads};
use crate::bench::{Bench, process};

const LENGTHS: [usize; 6] = [1, 10, 50, 100, 200, 500];
const DISK_BYTES: u64 = 4 * GIB;
/// Clusters that each overlay has of its own.
const CLUSTERS_EACH: u32 = 16;
/// The slices of all tables, four times over: the map is warm.
const WARM_UP: u64 = 4 * (DISK_BYTES / (64 * KIB) / 512) * 8;

/// Table D.
pub fn run(bench: &Bench) -> Result<Table, String> {
    let lengths = if bench.effort.quick { &LENGTHS[..4] } else { &LENGTHS[..] };
    let longest = lengths.last().copied().unwrap_or(1);
    let top = make_chain(bench, longest)?;
    let mut pairs = Vec::new();
    for &length in lengths {
        let disk = chain_of(bench, &top, length)?;
        let load = Load { warm_up: WARM_UP, depth: 32, ..Load::random_reads(disk, DISK_BYTES) };
        pairs.push((length, bench.side_by_side(&load)?));
    }
    let served = over_nbd(bench, &top)?;
    let mut table = Table {
        id: "D",
        title: "length of the backing chain".to_owned(),
        about: format!(
            "4 KiB random reads of a 4 GiB disk at depth 32, O_DIRECT, in process, default cache sizes, warm. The lowest \
             layer is full, each layer above has {CLUSTERS_EACH} random clusters of its own; all clusters are holes of their \
             files. Memory is the most that \
             the process had."
        ),
        columns: heads(&["layers", "memory, ours : QEMU's"]),
        charts: vec![rates(&pairs), memory(&pairs)],
        verdicts: verdicts(&pairs, longest).into_iter().chain([served]).collect(),
        ..Table::default()
    };
    for (length, pair) in &pairs {
        let memory = |series: &Series| bytes(series.median(|s| s.resident_bytes) as u64);
        let names = [length.to_string(), format!("{} : {}", memory(&pair.ours), memory(&pair.theirs))];
        table.rows.push(names.into_iter().chain(compared(pair)).collect());
    }
    Ok(table)
}

fn name(layer: usize) -> String {
    format!("layer-{layer:04}.qcow2")
}

/// Layers 0 (full) to `length` - 2, each over the one before, and the disk to read, which [`chain_of`]
/// puts on top of any of them. Each overlay is written while it stands alone: opening the chain below
/// each time would take minutes.
fn make_chain(bench: &Bench, length: usize) -> Result<PathBuf, String> {
    bench.create(&name(0), Shape::allocated(DISK_BYTES, 64 * KIB), None)?;
    let empty = Shape { allocated: false, ..Shape::allocated(DISK_BYTES, 64 * KIB) };
    let fresh = bench.create("empty.qcow2", empty, None)?;
    for layer in 1..length.saturating_sub(1) {
        let path = bench.path(&name(layer));
        std::fs::copy(&fresh, &path).map_err(|error| format!("{}: {error}", path.display()))?;
        let mut command = Command::new(&bench.cowhand);
        command.args(["bench", "-q", "-w", "-t", "unsafe", "-s", "64k", "--access", "allocating"]);
        command.args(["-o", "1M", "-c", &CLUSTERS_EACH.to_string(), "--seed", &layer.to_string()]).arg(&path);
        process::run(&mut command)?;
        empty_clusters(&path)?;
        link(&path, &name(layer - 1))?;
    }
    let top = bench.create("top.qcow2", empty, None)?;
    bench.shuffle_above(&top, "qcow2", DISK_BYTES)?;
    Ok(top)
}

/// The disk of a chain of `length` layers: `top` put on as many as are needed, or a full image alone.
fn chain_of(bench: &Bench, top: &Path, length: usize) -> Result<PathBuf, String> {
    match length.checked_sub(2) {
        Some(below) => link(top, &name(below)).map(|()| top.to_owned()),
        None => bench.create_readable("alone.qcow2", Shape::allocated(DISK_BYTES, 64 * KIB)),
    }
}

/// A chain beside a single image, as a client of the server finds them.
fn over_nbd(bench: &Bench, top: &Path) -> Result<Verdict, String> {
    let mut pair = Pair::default();
    let load = fio::Load { rw: "randread", block: "4k", depth: 32, jobs: 1, disk_bytes: DISK_BYTES };
    let length = if bench.effort.quick { 50 } else { 200 };
    let seconds = bench.effort.seconds.ceil() as u32;
    in_rounds(bench.effort.rounds, &mut pair, |pair, round| {
        for (series, length) in [(&mut pair.ours, length), (&mut pair.theirs, 1)] {
            let image = &chain_of(bench, top, length)?;
            let served = Served { image, raw: Path::new(""), direct: true, options: "", password: None };
            let server = Server::start(bench, Kind::Cowhand, &served)?;
            let rate = fio::run(&server.uri(), load, seconds, round + 1)?.iops;
            series.0.push(Sample { rate, ..Sample::default() });
        }
        Ok(())
    })?;
    let what = format!("D, {length} layers over NBD, depth 32: of the rate of one image");
    Ok(Verdict::at_least(what, pair.rate_ratio(), 0.95, ""))
}

fn rates(pairs: &[(usize, Pair)]) -> Chart {
    let named: Vec<(String, &Pair)> = pairs.iter().map(|(length, pair)| (length.to_string(), pair)).collect();
    super::cache_size::chart("Reads per second by layers".to_owned(), Form::Lines, &named)
}

fn memory(pairs: &[(usize, Pair)]) -> Chart {
    let mib = |series: &Series| series.median(|s| s.resident_bytes) / f64::from(1 << 20);
    Chart {
        title: "Memory of the process in MiB by layers".to_owned(),
        form: Form::Lines,
        places: pairs.iter().map(|(length, _)| length.to_string()).collect(),
        series: vec![
            ("cowhand".to_owned(), pairs.iter().map(|(_, pair)| mib(&pair.ours)).collect()),
            ("QEMU".to_owned(), pairs.iter().map(|(_, pair)| mib(&pair.theirs)).collect()),
        ],
    }
}

fn verdicts(pairs: &[(usize, Pair)], longest: usize) -> Vec<Verdict> {
    let (Some((_, one)), Some((_, all))) = (pairs.first(), pairs.last()) else { return Vec::new() };
    let resident = |pair: &Pair| pair.ours.median(|sample| sample.resident_bytes);
    let allowed = 1.2 * resident(one) + (8 * KIB * longest as u64) as f64;
    vec![
        Verdict::at_least(
            format!("D, {longest} layers: of the rate of one layer, warm"),
            all.ours.rate() / one.ours.rate(),
            0.9,
            "",
        ),
        Verdict::at_most(
            format!("D, {longest} layers: memory, of 1.2 x one layer's and 8 KiB a layer"),
            resident(all) / allowed,
            1.0,
            "",
        ),
    ]
}
