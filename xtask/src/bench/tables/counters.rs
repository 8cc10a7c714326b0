//! Table "counters": what counting costs a hit of the map.

use std::path::Path;

use super::{GIB, KIB};
use crate::bench::image::Shape;
use crate::bench::load::{Access, Load};
use crate::bench::sample::{Pair, Sample};
use crate::bench::table::{Table, Verdict, number};
use crate::bench::{Bench, build};

const DISK_BYTES: u64 = 40 * GIB;
/// Rounds for one of other tables: a difference of 2 % is looked for.
const ROUNDS_FACTOR: u32 = 7;

/// Table "counters".
pub fn run(bench: &Bench) -> Result<Table, String> {
    let uncounted = bench.path("uncounted");
    copy(&build(&["uncounted"])?, &uncounted)?;
    // The same place: later steps expect the usual program there.
    let counting = Bench { cowhand: build(&[])?, ..bench.clone() };
    let without = Bench { cowhand: uncounted, ..bench.clone() };
    let image = bench.create("counters.qcow2", Shape::allocated(DISK_BYTES, 64 * KIB), None)?;
    let mut table = Table {
        id: "counters",
        title: "counting hits, and not".to_owned(),
        about: "Reads of a 40 GiB image whose map is in memory, O_DIRECT, in process: cowhand as it is, and built with \
            `--features uncounted`, in turn. User CPU time in microseconds per read."
            .to_owned(),
        columns: ["depth", "ratio", "counting /s", "spread", "not counting /s", "spread", "user us, counting : not"]
            .map(str::to_owned)
            .into(),
        ..Table::default()
    };
    for depth in [1, 64] {
        let load = Load {
            depth,
            access: Access::RandomCovered,
            warm_up: 20_000,
            ..Load::random_reads(image.clone(), DISK_BYTES)
        };
        let mut pair = Pair::default();
        for round in 0..bench.effort.rounds * ROUNDS_FACTOR {
            pair.ours.0.push(counting.ours(&load, round)?);
            pair.theirs.0.push(without.ours(&load, round)?);
        }
        table.rows.push(row(depth, &pair));
        let what = format!("counters, depth {depth}: rate, of one that does not count");
        table.verdicts.push(Verdict::at_least(what, pair.rate_ratio(), 0.98, " x"));
    }
    Ok(table)
}

fn row(depth: u32, pair: &Pair) -> Vec<String> {
    let user = |sample: &Sample| sample.user_us;
    let mut cells = vec![depth.to_string(), format!("**{}**", number(pair.rate_ratio()))];
    for series in [&pair.ours, &pair.theirs] {
        cells.extend([number(series.rate()), format!("{:.0} %", series.spread_percent())]);
    }
    cells.push(format!("{:.3} : {:.3}", pair.ours.median(user), pair.theirs.median(user)));
    cells
}

fn copy(from: &Path, to: &Path) -> Result<(), String> {
    std::fs::copy(from, to).map(drop).map_err(|error| format!("{}: {error}", to.display()))
}
