//! What a guest notices of changes of the graph.

use std::time::{Duration, Instant};

use serde_json::json;

use super::daemon::{Program, Steered, disk};
use super::guest::{Load, beside};
use crate::bench::Bench;
use crate::bench::image::{Shape, remove};
use crate::bench::table::{Verdict, number};
use crate::bench::tables::{GIB, MIB};

const SHAPE: Shape = Shape { disk_bytes: GIB, cluster_bytes: 64 << 10, extended: false, allocated: false };
const LOAD: Load = Load { depth: 32, span_bytes: 64 * MIB, seed: 1 };

/// The 99th percentile of 1,000 pauses may be this long.
const PAUSE_MAX_MS: f64 = 5.0;

/// Snapshots of a disk that a guest writes, each committed again: the longest that a request took in each change.
pub fn ask(bench: &Bench) -> Result<(Vec<Vec<String>>, Vec<Verdict>), String> {
    let times = if bench.effort.quick { 10 } else { 500 };
    let found = Program::BOTH.map(|program| changes(bench, program, times));
    let [ours, theirs] = found;
    let (ours, theirs) = (ours?, theirs?);
    let mut rows = Vec::new();
    let mut verdicts = Vec::new();
    for (at, name) in ["a snapshot is taken", "an active commit ends", "no change"].into_iter().enumerate() {
        let what = format!("{name}, a guest writes at depth 32");
        let [mine, other] =
            [&ours[at], &theirs[at]].map(|pauses| [50, 99, 100].map(|percent| at_percent(pauses, percent)));
        let cell = |[p50, p99, max]: [f64; 3]| format!("{} / {} / {}", number(p50), number(p99), number(max));
        let none = || "-".to_owned();
        rows.push(vec![
            what.clone(),
            "longest request, ms: median / p99 / most".to_owned(),
            format!("**{}**", number(other[1] / mine[1])),
            cell(mine),
            none(),
            cell(other),
            none(),
        ]);
        if name != "no change" {
            verdicts.push(Verdict::at_most(format!("P: {what}, p99"), mine[1], PAUSE_MAX_MS, " ms"));
        }
    }
    Ok((rows, verdicts))
}

fn at_percent(pauses: &[f64], percent: usize) -> f64 {
    let mut sorted = pauses.to_vec();
    sorted.sort_by(f64::total_cmp);
    sorted.get(sorted.len() * percent / 100).or(sorted.last()).copied().unwrap_or(f64::NAN)
}

/// Milliseconds of the longest request in each snapshot, in each end of a commit, and in as many moments without a change.
fn changes(bench: &Bench, program: Program, times: usize) -> Result<[Vec<f64>; 3], String> {
    let image = bench.create("paused.qcow2", SHAPE, None)?;
    let mut steered = Steered::start(bench, program, &disk(&image))?;
    let nbd = steered.nbd.clone();
    let (windows, answers) = beside(&nbd, LOAD, || {
        let mut windows = Vec::new();
        for _ in 0..times {
            windows.push(change(bench, &mut steered)?);
        }
        Ok(windows)
    })?;
    drop(steered);
    remove(&image)?;
    let longest = |of: usize| {
        windows.iter().map(|windows| answers.longest(windows[of]).as_secs_f64() * 1e3).collect::<Vec<_>>()
    };
    Ok([longest(0), longest(1), longest(2)])
}

type Window = (Instant, Instant);

/// A snapshot, and its commit: when each took place, and a moment of rest.
fn change(bench: &Bench, steered: &mut Steered) -> Result<[Window; 3], String> {
    let path = bench.create("layer.qcow2", SHAPE, None)?;
    let file = json!({ "driver": "file", "filename": path, "aio": "io_uring" });
    let layer = json!({ "driver": "qcow2", "node-name": "layer", "file": file, "backing": null });
    steered.ok("blockdev-add", layer)?;
    let begun = Instant::now();
    steered.ok("blockdev-snapshot", json!({ "node": "disk", "overlay": "layer" }))?;
    let snapshot = (begun, Instant::now());
    std::thread::sleep(REST);
    let rest = (snapshot.1 + REST / 2, Instant::now());
    steered.ok("block-commit", json!({ "job-id": "job", "device": "layer" }))?;
    if !steered.job_is("ready", Duration::from_secs(30))? {
        return Err("a commit does not get ready".to_owned());
    }
    let begun = Instant::now();
    steered.end_job("job-complete")?;
    let commit = (begun, Instant::now());
    steered.ok("blockdev-del", json!({ "node-name": "layer" }))?;
    Ok([snapshot, commit, rest])
}

/// How long the guest writes into a new layer.
const REST: Duration = Duration::from_millis(20);
