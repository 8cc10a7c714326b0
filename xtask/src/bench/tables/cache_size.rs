//! Tables A and B: what a smaller map cache costs.

use std::path::Path;

use super::{GIB, KIB, MIB};
use crate::bench::Bench;
use crate::bench::image::Shape;
use crate::bench::load::{Access, Load};
use crate::bench::sample::Pair;
use crate::bench::table::{Chart, Form, Table, Verdict, bytes, compared, heads};

/// Cluster size with the slice and cache sizes that are tried; the last cache covers 40 GiB.
pub const GRIDS: [(u64, [u64; 3], [u64; 3]); 2] = [
    (64 * KIB, [4 * KIB, 16 * KIB, 64 * KIB], [MIB, 3 * MIB, 5 * MIB]),
    (256 * KIB, [4 * KIB, 64 * KIB, 256 * KIB], [512 * KIB, MIB, 1280 * KIB]),
];
/// The disk of tables A and C.
pub const DISK_BYTES: u64 = 40 * GIB;

/// One place of a grid, measured.
pub struct Cell {
    pub cluster: u64,
    pub slice: u64,
    pub cache: u64,
    pub pair: Pair,
}

impl Cell {
    pub fn name(&self) -> String {
        format!("{} clusters, {} slices, {}", bytes(self.cluster), bytes(self.slice), bytes(self.cache))
    }
}

/// Measures the slices and caches of one cluster size on an image, whose map is as large as the raw file `map`.
pub fn grid(
    bench: &Bench,
    image: &Path,
    map: Option<&Path>,
    (cluster, slices, caches): (u64, &[u64], &[u64]),
    depth: u32,
) -> Result<Vec<Cell>, String> {
    let mut cells = Vec::new();
    for &slice in slices {
        for &cache in caches {
            let mut load = Load::random_reads(image.to_owned(), DISK_BYTES).with_cache(cache, slice, cluster);
            // A cache that covers the map reads nothing of it.
            load.limit = map.filter(|_| load.access == Access::Random).map(Path::to_owned);
            let pair = bench.side_by_side(&load.at_depth(depth))?;
            cells.push(Cell { cluster, slice, cache, pair });
        }
    }
    Ok(cells)
}

/// Rates of both over the places of a table.
pub fn chart(title: String, form: Form, cells: &[(String, &Pair)]) -> Chart {
    let series = |name: &str, rate: fn(&Pair) -> f64| {
        (name.to_owned(), cells.iter().map(|(_, pair)| rate(pair)).collect())
    };
    Chart {
        title,
        form,
        places: cells.iter().map(|(name, _)| name.clone()).collect(),
        series: vec![series("cowhand", |pair| pair.ours.rate()), series("QEMU", |pair| pair.theirs.rate())],
    }
}

/// Table A.
pub fn slices(bench: &Bench) -> Result<Table, String> {
    let mut table = Table {
        id: "A",
        title: "slices and cache sizes, image allocated in order".to_owned(),
        about: "4 KiB random reads of a full 40 GiB image, O_DIRECT, in process, one at a time, map cache warm. The \
            last cache of each group covers the disk in QEMU."
            .to_owned(),
        columns: heads(&["clusters", "slices", "cache"]),
        ..Table::default()
    };
    for (cluster, slices, caches) in GRIDS {
        let image = bench.create_readable("a.qcow2", Shape::allocated(DISK_BYTES, cluster))?;
        let cells = grid(bench, &image, None, (cluster, &slices, &caches), 1)?;
        for cell in &cells {
            let names = [bytes(cell.cluster), bytes(cell.slice), bytes(cell.cache)];
            table.rows.push(names.into_iter().chain(compared(&cell.pair)).collect());
        }
        let places: Vec<(String, &Pair)> = cells
            .iter()
            .map(|cell| (format!("{} / {}", bytes(cell.slice), bytes(cell.cache)), &cell.pair))
            .collect();
        table.charts.push(chart(
            format!("Reads per second, {} clusters, by slice / cache", bytes(cluster)),
            Form::Bars,
            &places,
        ));
        table.verdicts.extend(verdicts(&cells, caches));
    }
    Ok(table)
}

/// The smallest cache against the covering one, and against QEMU's, at the default slice.
fn verdicts(cells: &[Cell], caches: [u64; 3]) -> Vec<Verdict> {
    let cell = |cache| cells.iter().find(|cell| cell.slice == 4 * KIB && cell.cache == cache);
    let (Some(small), Some(full)) = (cell(caches[0]), cell(caches[2])) else { return Vec::new() };
    let covered = small.pair.ours.rate() / full.pair.ours.rate();
    vec![
        Verdict::at_least(format!("A, {}: of our own covered rate", small.name()), covered, 0.95, ""),
        Verdict::at_least(format!("A, {}: against QEMU", small.name()), small.pair.rate_ratio(), 8.0, " x"),
    ]
}

/// Table B.
pub fn sizes(bench: &Bench) -> Result<Table, String> {
    let disk = 20 * GIB;
    let image = bench.create_readable("b.qcow2", Shape::allocated(disk, 64 * KIB))?;
    let mut cells = Vec::new();
    for cache in [MIB, 3 * MIB / 2, 2 * MIB, 5 * MIB / 2] {
        let load = Load::random_reads(image.clone(), disk).with_cache(cache, 4 * KIB, 64 * KIB);
        cells.push((bytes(cache), bench.side_by_side(&load)?));
    }
    let places: Vec<(String, &Pair)> = cells.iter().map(|(name, pair)| (name.clone(), pair)).collect();
    Ok(Table {
        id: "B",
        title: "cache sizes on a 20 GiB image".to_owned(),
        about: "As table A, with 64 KiB clusters and 4 KiB slices; 2.5 MiB cover the disk in QEMU."
            .to_owned(),
        columns: heads(&["cache"]),
        rows: cells
            .iter()
            .map(|(name, pair)| std::iter::once(name.clone()).chain(compared(pair)).collect())
            .collect(),
        charts: vec![chart("Reads per second by cache size".to_owned(), Form::Bars, &places)],
        verdicts: Vec::new(),
    })
}
