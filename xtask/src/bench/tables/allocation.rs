//! Table G: writes that allocate, over the sizes of clusters and subclusters.

use std::path::Path;

use super::cache_size::chart;
use super::{GIB, KIB, MIB};
use crate::bench::fio::{self, Holes};
use crate::bench::image::{Shape, check, remove};
use crate::bench::load::{Access, Load};
use crate::bench::sample::{Pair, Sample};
use crate::bench::table::{Form, Table, Verdict, bytes, compared, heads, number};
use crate::bench::{Bench, Effort};

const DISK_BYTES: u64 = 40 * GIB;
/// Cluster sizes; the format has subclusters from 16 KiB up.
const CLUSTERS: [u64; 6] = [2 * MIB, 512 * KIB, 64 * KIB, 32 * KIB, 16 * KIB, 4 * KIB];
const EXTENDED_FROM: u64 = 16 * KIB;
const DEPTHS: [u32; 2] = [1, 32];
const FLUSH_INTERVALS: [u32; 2] = [0, 64];
const BACKING: &str = "backing.qcow2";
/// One in so many clusters is allocated at most.
const ALLOCATED_SHARE: u64 = 20;
/// Writes of fio at most: a second's.
const HOLES_MAX: u64 = 40_000;
/// Requests before those that count: QEMU's rate is learned from them.
const WARM_UP: u64 = 64;

/// One row.
struct Row {
    case: Case,
    pair: Pair,
    /// Our rate when the same places are written again.
    rewrite: f64,
}

#[derive(Clone, Copy)]
struct Case {
    cluster: u64,
    extended: bool,
    backed: bool,
    depth: u32,
    flush_interval: u32,
}

impl Case {
    fn names(self) -> [String; 5] {
        let yes = |yes, name: &str| if yes { name.to_owned() } else { "-".to_owned() };
        let flush = self.flush_interval;
        [
            bytes(self.cluster),
            yes(self.extended, &bytes(self.cluster / 32)),
            yes(self.backed, "full"),
            self.depth.to_string(),
            yes(flush > 0, &format!("every {flush}")),
        ]
    }

    /// Whether nothing has to be copied or awaited: then the file system's part is all of what must be.
    fn is_limited_by_holes(self) -> bool {
        !self.backed && self.flush_interval == 0
    }

    fn load(self, image: &Path) -> Load {
        Load {
            depth: self.depth,
            access: Access::Allocating { cluster_bytes: self.cluster },
            write: true,
            flush_interval: self.flush_interval,
            warm_up: WARM_UP,
            count_max: DISK_BYTES / self.cluster / ALLOCATED_SHARE,
            ..Load::random_reads(image.to_owned(), DISK_BYTES)
        }
    }
}

/// Table G.
pub fn run(bench: &Bench) -> Result<Table, String> {
    bench.create(BACKING, Shape::allocated(DISK_BYTES, 64 * KIB), None)?;
    let mut rows = Vec::new();
    for case in cases(bench.effort.quick) {
        rows.push(row(bench, case)?);
    }
    let mut table = Table {
        id: "G",
        title: "writes that allocate".to_owned(),
        about: format!(
            "Random 4 KiB writes to a fresh 40 GiB image, one a cluster, O_DIRECT, in process, until one in \
             {ALLOCATED_SHARE} clusters is allocated or the time is over; over no backing file or a full one (64 KiB \
             clusters). Rewrite: ours, the same places once more. The limit is what fio (io_uring) writes into holes of a raw file, one a cluster. `qemu-img check` is clean after every run."
        ),
        columns: heads(&["clusters", "subclusters", "backing", "depth", "flush", "of our rewrite"]),
        verdicts: verdicts(&rows),
        ..Table::default()
    };
    for Row { case, pair, rewrite } in &rows {
        let of_rewrite = number(pair.ours.rate() / rewrite);
        table.rows.push(case.names().into_iter().chain([of_rewrite]).chain(compared(pair)).collect());
    }
    for backed in [false, true] {
        let drawn = rows
            .iter()
            .filter(|row| row.case.backed == backed && row.case.depth == 32 && row.case.flush_interval == 0);
        let places: Vec<(String, &Pair)> = drawn
            .map(|row| {
                let extended = if row.case.extended { " sub" } else { "" };
                (format!("{}{extended}", bytes(row.case.cluster)), &row.pair)
            })
            .collect();
        let over = if backed { "a full backing file" } else { "nothing" };
        table.charts.push(chart(
            format!(
                "Allocating writes per second over {over}, depth 32, by cluster size (sub: with subclusters)"
            ),
            Form::Bars,
            &places,
        ));
    }
    Ok(table)
}

fn cases(quick: bool) -> Vec<Case> {
    let mut cases = Vec::new();
    for flush_interval in FLUSH_INTERVALS {
        for backed in [false, true] {
            for depth in DEPTHS {
                for cluster in CLUSTERS {
                    for extended in [false, true] {
                        let exists = !extended || cluster >= EXTENDED_FROM;
                        let wanted = !quick || (depth == 32 && [64 * KIB, 4 * KIB].contains(&cluster));
                        if exists && wanted {
                            cases.push(Case { cluster, extended, backed, depth, flush_interval });
                        }
                    }
                }
            }
        }
    }
    cases
}

/// Every run needs an image of its own, and there are 88 rows: fewer and shorter rounds than elsewhere.
fn row(bench: &Bench, case: Case) -> Result<Row, String> {
    let Effort { rounds, seconds, quick } = bench.effort;
    let bench = &Bench { effort: Effort { rounds, seconds: seconds * 0.5, quick }, ..bench.clone() };
    let rounds = if case.flush_interval == 0 { rounds.min(2) } else { 1 };
    let (mut pair, mut rewrites) = (Pair::default(), Vec::new());
    for round in 0..rounds {
        let image = fresh(bench, case)?;
        let load = case.load(&image);
        let ours = bench.ours(&load, round)?;
        check(&image)?;
        pair.ours.0.push(ours);
        if round == 0 {
            rewrites.push(rewrite(bench, &load, &ours)?.rate);
        }
        let image = fresh(bench, case)?;
        pair.theirs.0.push(bench.theirs_once(&load)?);
        check(&image)?;
        remove(&image)?;
        if case.is_limited_by_holes() {
            let holes = Holes {
                offset: 0,
                step: case.cluster,
                count: load.count_max.min(HOLES_MAX),
                depth: case.depth,
            };
            pair.limit.0.push(fio::sample_of_holes(&bench.path("g.raw"), holes)?);
        }
    }
    Ok(Row { case, pair, rewrite: crate::bench::sample::median(&rewrites) })
}

/// The same seed gives the same places, which are allocated now.
fn rewrite(bench: &Bench, load: &Load, first: &Sample) -> Result<Sample, String> {
    let count_max = first.requests as u64 + WARM_UP;
    bench.ours(&Load { warm_up: 0, count_max, ..load.clone() }, 0)
}

fn fresh(bench: &Bench, case: Case) -> Result<std::path::PathBuf, String> {
    let shape = Shape {
        disk_bytes: DISK_BYTES,
        cluster_bytes: case.cluster,
        extended: case.extended,
        allocated: false,
    };
    let image = bench.create("g.qcow2", shape, case.backed.then_some(BACKING))?;
    bench.shuffle_above(&image, "qcow2", DISK_BYTES)?;
    Ok(image)
}

fn verdicts(rows: &[Row]) -> Vec<Verdict> {
    let deep = |row: &&Row| row.case.depth == 32 && row.case.flush_interval == 0;
    let plain = || rows.iter().filter(deep).filter(|row| !row.case.backed);
    let backed = || rows.iter().filter(deep).filter(|row| row.case.backed);
    let large = || plain().filter(|row| row.case.cluster >= 32 * KIB);
    let fine = |row: &&Row| row.case.extended && row.case.cluster / 32 <= 4 * KIB;
    let of_plain = |row: &Row| {
        let same =
            |other: &&Row| other.case.cluster == row.case.cluster && other.case.extended == row.case.extended;
        plain().find(same).map_or(f64::NAN, |other| row.pair.ours.rate() / other.pair.ours.rate())
    };
    let ratio = |row: &Row| row.pair.rate_ratio();
    let of_size = |cluster, extended| {
        move |row: &&Row| {
            row.case.cluster == cluster && row.case.extended == extended && row.case.flush_interval == 0
        }
    };
    let shallow = |row: &&Row| row.case.depth == 1 && !row.case.backed;
    let whole_64k = |row: &&Row| !row.case.extended && row.case.cluster == 64 * KIB;
    vec![
        of_rewrite(large()),
        Verdict::at_least(
            "G, no backing, 32 KiB clusters and more, depth 32, lowest row: against QEMU",
            lowest(large().map(ratio)),
            3.0,
            " x",
        ),
        Verdict::at_least(
            "G, no backing, 4 KiB clusters, depth 32: against QEMU",
            lowest(plain().filter(|row| row.case.cluster == 4 * KIB).map(ratio)),
            20.0,
            " x",
        ),
        Verdict::at_least(
            "G, backing file, subclusters of 4 KiB or less, depth 32, lowest row: of the rate without one",
            lowest(backed().filter(fine).map(of_plain)),
            0.8,
            "",
        ),
        Verdict::at_least(
            "G, backing file, subclusters of 4 KiB or less, depth 32, lowest row: against QEMU",
            lowest(backed().filter(fine).map(ratio)),
            2.0,
            " x",
        ),
        Verdict::at_least(
            "G, backing file, 64 KiB clusters, depth 32: against QEMU",
            lowest(backed().filter(whole_64k).map(ratio)),
            2.5,
            " x",
        ),
        Verdict::at_least(
            "G, backing file, 2 MiB clusters, depth 32: against QEMU",
            lowest(backed().filter(of_size(2 * MIB, false)).map(ratio)),
            3.0,
            " x",
        ),
        Verdict::at_least_or_limit(
            "G, no backing, 64 KiB clusters with subclusters, depth 1: against QEMU",
            lowest(rows.iter().filter(of_size(64 * KIB, true)).filter(shallow).map(ratio)),
            1.1,
            lowest(
                rows.iter().filter(of_size(64 * KIB, true)).filter(shallow).map(|row| row.pair.of_limit()),
            ),
        ),
        Verdict::at_least(
            "G, a flush every 64 writes, lowest row: against QEMU",
            lowest(rows.iter().filter(|row| row.case.flush_interval > 0).map(ratio)),
            1.5,
            " x",
        ),
    ]
}

/// The row that is farthest from both: from the rewrite rate, and from what the file system makes of such writes.
fn of_rewrite<'a>(rows: impl Iterator<Item = &'a Row>) -> Verdict {
    const OF_REWRITE: f64 = 0.8;
    let figures = |row: &Row| (row.pair.ours.rate() / row.rewrite, row.pair.of_limit());
    let reached = |(of_rewrite, of_limit): &(f64, f64)| (of_rewrite / OF_REWRITE).max(of_limit / 0.9);
    let farthest = rows.map(figures).min_by(|one, other| reached(one).total_cmp(&reached(other)));
    let (of_rewrite, of_limit) = farthest.unwrap_or((f64::NAN, f64::NAN));
    let what = "G, no backing, 32 KiB clusters and more, depth 32, lowest row: of our rewrite rate";
    Verdict::at_least_or_limit(what, of_rewrite, OF_REWRITE, of_limit)
}

/// NaN without any.
fn lowest(values: impl Iterator<Item = f64>) -> f64 {
    values.fold(f64::NAN, f64::min)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_size_is_measured_with_and_without_subclusters_where_there_are_any() {
        let all = cases(false);
        assert_eq!(all.len(), 11 * 2 * 2 * 2);
        assert!(all.iter().all(|case| !case.extended || case.cluster >= EXTENDED_FROM));
        assert!(lowest(std::iter::empty()).is_nan());
    }
}
