//! Table J: whether a write costs more as the image grows.

use std::process::Command;

use super::cache_size::chart;
use super::{GIB, KIB, TIB};
use crate::bench::fio::{self, Holes};
use crate::bench::image::{Shape, check};
use crate::bench::load::{Access, Load};
use crate::bench::sample::{Pair, in_rounds};
use crate::bench::table::{Form, Table, Verdict, bytes, compared, heads, number};
use crate::bench::{Bench, process};

const SIZES: [u64; 4] = [GIB, 64 * GIB, TIB, 4 * TIB];
const CLUSTER_BYTES: u64 = 512 * KIB;
/// Writes of a run, all to clusters of their own.
const WRITES_MAX: u64 = 1500;
/// Of them, the ones before those that count.
const WARM_UP: u64 = 64;

/// Table J.
pub fn run(bench: &Bench) -> Result<Table, String> {
    let mut pairs = Vec::new();
    for size in SIZES {
        let mut pair = Pair::default();
        in_rounds(bench.effort.rounds, &mut pair, |pair, round| {
            let load = load(grown(bench, size)?, size);
            pair.ours.0.push(bench.ours(&load, round)?);
            check(&load.image)?;
            grown(bench, size)?;
            pair.theirs.0.push(bench.theirs_once(&load)?);
            check(&load.image)?;
            let holes = Holes { offset: size, step: CLUSTER_BYTES, count: WRITES_MAX, depth: load.depth };
            pair.limit.0.push(fio::sample_of_holes(&bench.path("j.raw"), holes)?);
            Ok(())
        })?;
        pairs.push((bytes(size), pair));
    }
    let named: Vec<(String, &Pair)> = pairs.iter().map(|(name, pair)| (name.clone(), pair)).collect();
    let grown = |rate: &dyn Fn(&Pair) -> f64| match &pairs[..] {
        [(_, small), .., (_, large)] => rate(large) / rate(small),
        _ => f64::NAN,
    };
    let flat = grown(&|pair| pair.ours.rate());
    let (of_qemu, of_file) = (grown(&|pair| pair.theirs.rate()), grown(&|pair| pair.limit.rate()));
    let mut verdict =
        Verdict::at_least_or_limit("J: rate at 4 TiB, of that at 1 GiB", flat, 0.8, flat / of_file);
    verdict.found += &format!(" (QEMU {}, fio {})", number(of_qemu), number(of_file));
    Ok(Table {
        id: "J",
        title: "cost of a write as the image grows".to_owned(),
        about: "Allocating 4 KiB writes at depth 16, one a cluster of 512 KiB, O_DIRECT, in process, behind the end of an \
            image that is full up to its size and was then made twice as large. The limit is what fio (io_uring) writes into holes of a raw file at \
            the same places."
            .to_owned(),
        columns: heads(&["allocated before"]),
        rows: named.iter().map(|(name, pair)| std::iter::once(name.clone()).chain(compared(pair)).collect()).collect(),
        charts: vec![chart("Allocating writes per second by image size".to_owned(), Form::Lines, &named)],
        verdicts: vec![verdict],
    })
}

fn load(image: std::path::PathBuf, size: u64) -> Load {
    Load {
        access: Access::Steps { offset: size, step: CLUSTER_BYTES },
        depth: 16,
        write: true,
        warm_up: WARM_UP,
        count_max: WRITES_MAX,
        ..Load::random_reads(image, 2 * size)
    }
}

/// An image that is full up to `size`, and empty for as much again.
fn grown(bench: &Bench, size: u64) -> Result<std::path::PathBuf, String> {
    let image = bench.create("j.qcow2", Shape::allocated(size, CLUSTER_BYTES), None)?;
    let mut resize = Command::new("qemu-img");
    resize.args(["resize", "-q", "-f", "qcow2"]).arg(&image).arg((2 * size).to_string());
    process::run(&mut resize)?;
    Ok(image)
}
