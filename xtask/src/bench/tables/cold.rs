//! Table F: a map that is not in memory yet.

use super::cache_size::chart;
use super::{KIB, TIB};
use crate::bench::Bench;
use crate::bench::image::Shape;
use crate::bench::load::Load;
use crate::bench::sample::Pair;
use crate::bench::table::{Form, Table, Verdict, compared, heads};

const DEPTHS: [u32; 4] = [1, 16, 64, 256];
/// Requests of a run: a quarter of the image's slices, so that nearly every one is a miss.
const REQUESTS: u64 = 8192;

/// Table F.
pub fn run(bench: &Bench) -> Result<Table, String> {
    let image = bench.create_readable("f.qcow2", Shape::allocated(TIB, 64 * KIB))?;
    let mut pairs = Vec::new();
    for depth in DEPTHS {
        let mut load = Load::random_reads(image.clone(), TIB).at_depth(depth);
        load.count_max = REQUESTS;
        pairs.push((depth, bench.side_by_side(&load)?));
    }
    let named: Vec<(String, &Pair)> = pairs.iter().map(|(depth, pair)| (depth.to_string(), pair)).collect();
    Ok(Table {
        id: "F",
        title: "cold map, by depth".to_owned(),
        about: format!(
            "The first {REQUESTS} 4 KiB random reads after opening a full 1 TiB image with 64 KiB clusters, O_DIRECT, in \
             process, default cache sizes: nearly every read misses the map."
        ),
        columns: heads(&["depth"]),
        rows: named
            .iter()
            .map(|(name, pair)| std::iter::once(name.clone()).chain(compared(pair)).collect())
            .collect(),
        charts: vec![chart("Reads per second by depth, cold".to_owned(), Form::Lines, &named)],
        verdicts: pairs
            .iter()
            .filter(|(depth, _)| *depth == 64)
            .map(|(_, pair)| {
                Verdict::at_least("F, depth 64, cold: against QEMU", pair.rate_ratio(), 4.0, " x")
            })
            .collect(),
    })
}
