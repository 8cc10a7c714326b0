//! Table C: images whose clusters are in random order, and images that have aged.

use std::path::{Path, PathBuf};
use std::process::Command;

use super::cache_size::{Cell, DISK_BYTES, GRIDS, chart, grid};
use super::{KIB, MIB};
use crate::bench::image::{Shape, check, shuffle_clusters};
use crate::bench::sample::Pair;
use crate::bench::table::{Form, Table, Verdict, bytes, compared, heads};
use crate::bench::{Bench, Effort, process};

const RANDOM_ORDER: &str = "random order";
/// Depths that are measured.
const DEPTHS: [u32; 2] = [1, 64];

/// Table C: so many rows that it has fewer rounds than table A.
pub fn run(bench: &Bench) -> Result<Table, String> {
    let effort = Effort { rounds: bench.effort.rounds.min(2), ..bench.effort };
    let bench = &Bench { effort, ..bench.clone() };
    let mut table = Table {
        id: "C",
        title: "slices and cache sizes, clusters in random order, and an aged image".to_owned(),
        about: "As table A. Random order: the map entries of a full image shuffled among themselves; the limit is what fio (io_uring, O_DIRECT) reads at random of a raw file as large as the map, of \
            which a miss reads a piece. Aged: a full image \
            after discards, a snapshot, random and sequential writes, the snapshot's end, and more writes. At depth 64 \
            and aged only the smallest slice."
            .to_owned(),
        columns: heads(&["image", "clusters", "slices", "cache", "depth"]),
        ..Table::default()
    };
    for (cluster, slices, caches) in GRIDS {
        let makers: [(&str, Maker); 2] = [(RANDOM_ORDER, shuffled), ("aged", aged)];
        for (name, make) in makers {
            let image = make(bench, cluster)?;
            let map = map_alone(bench, cluster)?;
            let mut all = Vec::new();
            for depth in DEPTHS {
                let all_slices = depth == 1 && name == RANDOM_ORDER && !bench.effort.quick;
                let slices = if all_slices { &slices[..] } else { &slices[..1] };
                let cells = grid(bench, &image, Some(&map), (cluster, slices, &caches), depth)?;
                for cell in &cells {
                    let names = [name.to_owned(), bytes(cell.cluster), bytes(cell.slice), bytes(cell.cache)];
                    let named = names.into_iter().chain([depth.to_string()]);
                    table.rows.push(named.chain(compared(&cell.pair)).collect());
                }
                if cluster == 64 * KIB && name == RANDOM_ORDER {
                    table.verdicts.extend(verdicts(&cells, depth));
                }
                all.extend(cells.into_iter().map(|cell| (depth, cell)));
            }
            let places: Vec<(String, &Pair)> = all
                .iter()
                .map(|(depth, Cell { slice, cache, pair, .. })| {
                    (format!("{} / {} / {depth}", bytes(*slice), bytes(*cache)), pair)
                })
                .collect();
            let title =
                format!("Reads per second, {name}, {} clusters, by slice / cache / depth", bytes(cluster));
            table.charts.push(chart(title, Form::Bars, &places));
        }
    }
    Ok(table)
}

/// As many bytes as the map has, on the device: a miss reads them at random, whatever else it does.
fn map_alone(bench: &Bench, cluster: u64) -> Result<PathBuf, String> {
    let raw = bench.path("map.raw");
    let bytes = DISK_BYTES / cluster * 8;
    process::run(
        Command::new("qemu-img").args(["create", "-q", "-f", "raw"]).arg(&raw).arg(bytes.to_string()),
    )?;
    let write = format!("write -q -P 7 0 {bytes}");
    process::run(Command::new("qemu-io").args(["-f", "raw", "-c", &write, "-c", "flush"]).arg(&raw))?;
    Ok(raw)
}

type Maker = fn(&Bench, u64) -> Result<PathBuf, String>;

fn verdicts(cells: &[Cell], depth: u32) -> Vec<Verdict> {
    let cell = |cache| cells.iter().find(|cell| cell.slice == 4 * KIB && cell.cache == cache);
    let (Some(small), Some(full)) = (cell(MIB), cell(5 * MIB)) else { return Vec::new() };
    let bound = if depth == 1 { 2.0 } else { 7.0 };
    let what = format!("C, random order, {}, depth {depth}: against QEMU", small.name());
    let of_limit = small.pair.of_limit();
    let mut all = vec![Verdict::at_least_or_limit(what, small.pair.rate_ratio(), bound, of_limit)];
    if depth == 1 {
        let formula = (DISK_BYTES / full.cluster * 8) as f64;
        let share = full.pair.ours.median(|sample| sample.map_bytes) / formula;
        all.push(Verdict::at_most("C, random order: map in memory, of QEMU's formula", share, 0.36, ""));
    }
    all
}

/// A full image with its clusters in random order.
fn shuffled(bench: &Bench, cluster: u64) -> Result<PathBuf, String> {
    let image = bench.create("c.qcow2", Shape::allocated(DISK_BYTES, cluster), None)?;
    shuffle_clusters(&image)?;
    finish(bench, image)
}

/// A full image after a life: about a fifth of it discarded and partly written again in another
/// order, a snapshot taken, overwritten and deleted.
fn aged(bench: &Bench, cluster: u64) -> Result<PathBuf, String> {
    let image = bench.create("c.qcow2", Shape::allocated(DISK_BYTES, cluster), None)?;
    let clusters = DISK_BYTES / cluster;
    let live = |arguments: &[&str]| {
        let mut command = Command::new(&bench.cowhand);
        command.args(["bench", "-q", "-t", "unsafe", "-d", "32"]);
        command.args(["--runtime", &(bench.effort.seconds * 3.0).to_string()]);
        command.args(arguments).arg(&image);
        process::run(&mut command).map(drop)
    };
    let (fifth, few) = ((clusters / 5).to_string(), (clusters / 100).to_string());
    let size = cluster.to_string();
    live(&["--discard", "--access", "allocating", "-s", &size, "-c", &fifth])?;
    live(&["-w", "--access", "allocating", "--seed", "2", "-c", &fifth])?;
    snapshot(&image, "-c")?;
    live(&["-w", "--access", "allocating", "--seed", "3", "-c", &few])?;
    live(&["-w", "-s", &size, "-o", "8G", "-c", &few])?;
    snapshot(&image, "-d")?;
    live(&["-w", "--access", "allocating", "--seed", "4", "-c", &few])?;
    finish(bench, image)
}

fn snapshot(image: &Path, what: &str) -> Result<(), String> {
    process::run(Command::new("qemu-img").args(["snapshot", what, "life"]).arg(image)).map(drop)
}

fn finish(bench: &Bench, image: PathBuf) -> Result<PathBuf, String> {
    bench.shuffle_above(&image, "qcow2", DISK_BYTES)?;
    check(&image)?;
    Ok(image)
}
