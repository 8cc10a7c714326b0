//! What a persistent bitmap costs writes, and what it says after its server was killed.

use std::process::Command;
use std::time::{Duration, Instant};

use serde_json::json;

use super::daemon::{Program, Steered, disk};
use super::guest::{Load, beside};
use crate::bench::image::{Shape, fill, remove};
use crate::bench::sample::{Pair, Sample, Series};
use crate::bench::table::{Verdict, number};
use crate::bench::tables::{GIB, TIB};
use crate::bench::{Bench, process};

const SHAPE: Shape = Shape { disk_bytes: GIB, cluster_bytes: 64 << 10, extended: false, allocated: false };

/// What a bitmap may cost: a fiftieth of the rate.
const RATE_MIN: f64 = 0.98;

/// The share of a disk that may count as dirty for nothing.
const FALSE_PERCENT_MAX: f64 = 1.0;

/// How often the bitmap comes and goes in a round.
const TURNS: usize = 6;

/// Bytes that a bit stands for.
const GRANULARITY_BYTES: u64 = 64 << 10;

/// A guest's writes with a bitmap and without, and the bitmap after kill -9.
pub fn ask(bench: &Bench) -> Result<(Vec<Vec<String>>, Vec<Verdict>), String> {
    let (row, cost) = cost(bench)?;
    let (killed, verdict) = killed(bench)?;
    Ok((vec![row, killed], vec![cost, verdict]))
}

fn cost(bench: &Bench) -> Result<(Vec<String>, Verdict), String> {
    let image = bench.create("bits.qcow2", SHAPE, None)?;
    fill("qcow2", &image)?;
    // "Ours" is with a bitmap, "theirs" without.
    let mut found = Program::BOTH.map(|program| (program, Pair::default()));
    for round in 0..bench.effort.rounds {
        for (program, pair) in &mut found {
            written(bench, *program, &image, round, pair)?;
        }
    }
    remove(&image)?;
    let [ours, theirs] = found.map(|(_, pair)| pair);
    let what = "random 4 KiB writes, depth 16, with a persistent bitmap";
    let cell = |pair: &Pair| {
        let cpu = |series: &Series| number(series.median(Sample::cpu_us));
        let (ratio, with, without) = (pair.rate_ratio(), pair.ours.rate(), pair.theirs.rate());
        let times = [number(ratio), number(with), number(without)];
        format!(
            "{} x ({} : {}), CPU us {} : {}",
            times[0],
            times[1],
            times[2],
            cpu(&pair.ours),
            cpu(&pair.theirs)
        )
    };
    let spread = |pair: &Pair| format!("{:.0} %", pair.ours.spread_percent());
    let row = vec![
        what.to_owned(),
        "writes/s with : without".to_owned(),
        format!("**{}** x", number(ours.rate_ratio())),
        cell(&ours),
        spread(&ours),
        cell(&theirs),
        spread(&theirs),
    ];
    Ok((row, Verdict::at_least(format!("P: {what}"), ours.rate_ratio(), RATE_MIN, " x those without")))
}

fn add_bitmap(steered: &mut Steered) -> Result<(), String> {
    let bitmap = json!({ "node": "disk", "name": "b", "persistent": true, "granularity": GRANULARITY_BYTES });
    steered.ok("block-dirty-bitmap-add", bitmap).map(drop)
}

/// A guest that writes while a bitmap comes and goes: what is slow for a moment is slow with and without it.
fn written(
    bench: &Bench,
    program: Program,
    image: &std::path::Path,
    round: u32,
    pair: &mut Pair,
) -> Result<(), String> {
    let mut steered = Steered::start(bench, program, &disk(image))?;
    let load = Load { depth: 16, span_bytes: SHAPE.disk_bytes, seed: u64::from(round) + 1, every: None };
    let nbd = steered.nbd.clone();
    let (windows, answers) = beside(&nbd, load, || {
        let mut windows = Vec::new();
        for _ in 0..TURNS {
            add_bitmap(&mut steered)?;
            let with = window(bench, &steered);
            steered.ok("block-dirty-bitmap-remove", json!({ "node": "disk", "name": "b" }))?;
            windows.push((with, window(bench, &steered)));
        }
        Ok(windows)
    })?;
    let sample = |(time, cpu): (Time, f64)| {
        let (rate, p99_us) = answers.in_time(time);
        let requests = rate * (time.1 - time.0).as_secs_f64();
        Sample { rate, p99_us, system_us: cpu * 1e6 / requests, requests, ..Sample::default() }
    };
    for (with, without) in windows {
        pair.ours.0.push(sample(with));
        pair.theirs.0.push(sample(without));
    }
    Ok(())
}

type Time = (Instant, Instant);

/// A while in which the guest writes, and the server's CPU seconds in it. What comes before, the first writes into each part of the disk
/// among it, is not the steady state.
fn window(bench: &Bench, steered: &Steered) -> (Time, f64) {
    let half = Duration::from_secs_f64(bench.effort.seconds / 2.0);
    std::thread::sleep(half);
    let (begun, before) = (Instant::now(), steered.daemon.cpu_seconds());
    std::thread::sleep(half);
    ((begun, Instant::now()), steered.daemon.cpu_seconds() - before)
}

/// Dirty bytes of a 1 TiB disk after random writes and kill -9, beside what was written.
fn killed(bench: &Bench) -> Result<(Vec<String>, Verdict), String> {
    let shape = Shape { disk_bytes: TIB, ..SHAPE };
    let mut most = 0.0_f64;
    let mut cells = Vec::new();
    for (span_bytes, name) in [(16 * GIB, "16 GiB of it"), (TIB, "all of it")] {
        let image = bench.create("killed.qcow2", shape, None)?;
        let mut steered = Steered::start(bench, Program::Ours, &disk(&image))?;
        add_bitmap(&mut steered)?;
        let nbd = steered.nbd.clone();
        let load = Load { depth: 16, span_bytes, seed: 1, every: None };
        let ((), answers) = beside(&nbd, load, || {
            std::thread::sleep(Duration::from_secs_f64(bench.effort.seconds));
            Ok(())
        })?;
        let before = dirty_bytes(&mut steered)?;
        process::run(Command::new("kill").args(["-9", &steered.daemon.id().to_string()]))?;
        drop(steered);
        let mut steered = Steered::start(bench, Program::Ours, &disk(&image))?;
        let after = dirty_bytes(&mut steered)?;
        let percent = (after - before) / TIB as f64 * 100.0;
        most = most.max(percent);
        cells.push(format!("{} writes in {name}: {} %", number(answers.0.len() as f64), number(percent)));
        drop(steered);
        remove(&image)?;
    }
    let what = "dirty for nothing after kill -9, disk of 1 TiB";
    let none = || "-".to_owned();
    let row = vec![
        what.to_owned(),
        "share of the disk".to_owned(),
        none(),
        cells.join("; "),
        none(),
        "the bitmap is lost: \"inconsistent\"".to_owned(),
        none(),
    ];
    Ok((row, Verdict::at_most(format!("P: {what}"), most, FALSE_PERCENT_MAX, " %")))
}

fn dirty_bytes(steered: &mut Steered) -> Result<f64, String> {
    let nodes = steered.ok("query-named-block-nodes", json!({}))?;
    let disk = nodes.as_array().and_then(|nodes| nodes.iter().find(|node| node["node-name"] == "disk"));
    let bitmap = disk.map(|node| &node["dirty-bitmaps"][0]).ok_or("the disk is not there")?;
    if bitmap["inconsistent"] == true {
        return Err(format!("the bitmap is lost: {bitmap}"));
    }
    bitmap["count"].as_f64().ok_or_else(|| format!("a bitmap without a count: {bitmap}"))
}
