//! Table H: cache modes.

use std::process::Command;

use super::cache_size::chart;
use super::{GIB, KIB, MIB};
use crate::bench::image::{Shape, check};
use crate::bench::load::Load;
use crate::bench::sample::Pair;
use crate::bench::table::{Form, Table, compared, heads};
use crate::bench::{Bench, Effort, process};

const MODES: [&str; 5] = ["writeback", "writethrough", "none", "directsync", "unsafe"];
const DISK_BYTES: u64 = GIB;

/// Table H.
pub fn run(bench: &Bench) -> Result<Table, String> {
    let Effort { rounds, .. } = bench.effort;
    let bench = &Bench { effort: Effort { rounds: rounds.min(2), ..bench.effort }, ..bench.clone() };
    let qcow2 = bench.create("h.qcow2", Shape::allocated(DISK_BYTES, 64 * KIB), None)?;
    let raw = bench.path("h.raw");
    let mut fill = Command::new("qemu-io");
    for part in 0..8 {
        fill.args(["-c", &format!("write -q -P {} {}M 128M", part + 1, part * 128)]);
    }
    process::run(fill.args(["-f", "qcow2"]).arg(&qcow2))?;
    process::run(Command::new("qemu-img").args(["convert", "-S", "0", "-O", "raw"]).arg(&qcow2).arg(&raw))?;
    let mut pairs = Vec::new();
    for (format, image) in [("qcow2", &qcow2), ("raw", &raw)] {
        bench.shuffle_above(image, format, DISK_BYTES)?;
    }
    for write in [false, true] {
        for mode in MODES {
            for (format, image) in [("qcow2", &qcow2), ("raw", &raw)] {
                let warm_up = if write { 0 } else { DISK_BYTES / MIB };
                let load = Load {
                    format,
                    mode,
                    write,
                    warm_up,
                    depth: 16,
                    ..Load::random_reads(image.clone(), DISK_BYTES)
                };
                pairs
                    .push(([if write { "write" } else { "read" }, mode, format], bench.side_by_side(&load)?));
            }
        }
    }
    check(&qcow2)?;
    let charts = ["read", "write"].map(|kind| {
        let drawn = pairs.iter().filter(|(names, _)| names[0] == kind);
        let places: Vec<(String, &Pair)> =
            drawn.map(|(names, pair)| (format!("{} {}", names[1], names[2]), pair)).collect();
        chart(format!("4 KiB {kind}s per second by cache mode"), Form::Bars, &places)
    });
    Ok(Table {
        id: "H",
        title: "cache modes".to_owned(),
        about: "4 KiB random reads and rewrites of 1 GiB of real data at depth 16, in process. The rows of raw files, read \
            and written by both programs, are the medium's own figures."
            .to_owned(),
        columns: heads(&["request", "mode", "format"]),
        rows: pairs
            .iter()
            .map(|(names, pair)| names.iter().map(|&name| name.to_owned()).chain(compared(pair)).collect())
            .collect(),
        charts: charts.into(),
        verdicts: Vec::new(),
    })
}
