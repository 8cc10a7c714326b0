//! What a guest notices of changes of the graph.

use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::daemon::{Program, Steered, disk};
use super::guest::{Load, beside};
use crate::bench::Bench;
use crate::bench::image::{Shape, remove};
use crate::bench::sample::at_percent;
use crate::bench::table::{Verdict, number};
use crate::bench::tables::{GIB, MIB};

const SHAPE: Shape = Shape { disk_bytes: GIB, cluster_bytes: 64 << 10, extended: false, allocated: false };
const LOAD: Load = Load { depth: 32, span_bytes: 64 * MIB, seed: 1, every: None };

/// The 99th percentile of 1,000 pauses may be this long.
const PAUSE_MAX_MS: f64 = 5.0;

/// Snapshots of a disk that a guest writes, each committed again: the longest that a request took in each change, and how long the change
/// kept requests out, which only we tell.
pub fn ask(bench: &Bench) -> Result<(Vec<Vec<String>>, Vec<Verdict>), String> {
    let times = if bench.effort.quick { 10 } else { 500 };
    let found = Program::BOTH.map(|program| changes(bench, program, times));
    let [ours, theirs] = found;
    let (ours, theirs) = (ours?, theirs?);
    let mut rows = Vec::new();
    let mut verdicts = Vec::new();
    let none = || "-".to_owned();
    let shown = |[p50, p99, max]: [f64; 3]| format!("{} / {} / {}", number(p50), number(p99), number(max));
    let of = |times: &[f64]| [50, 99, 100].map(|percent| at_percent(times, percent));
    for (at, name) in ["a snapshot is taken", "an active commit ends", "no change"].into_iter().enumerate() {
        let what = format!("{name}, a guest writes at depth 32");
        if let Some(pauses) = ours.pauses.get(at) {
            let pauses = of(pauses);
            let (title, cell) = ("requests kept out, ms: median / p99 / most".to_owned(), shown(pauses));
            rows.push(vec![what.clone(), title, none(), cell, none(), "it does not tell".to_owned(), none()]);
            let what = format!("P: {what}, pause, p99");
            verdicts.push(Verdict::at_most(what, pauses[1], PAUSE_MAX_MS, " ms"));
        }
        let [mine, other] = [&ours, &theirs].map(|changes| of(&changes.longest[at]));
        rows.push(vec![
            what.clone(),
            "longest request, ms: median / p99 / most".to_owned(),
            format!("**{}**", number(other[1] / mine[1])),
            shown(mine),
            none(),
            shown(other),
            none(),
        ]);
        if name != "no change" {
            let what = format!("P: {what}, longest request, p99");
            verdicts.push(Verdict::at_most(what, mine[1], PAUSE_MAX_MS, " ms"));
        }
    }
    Ok((rows, verdicts))
}

/// Milliseconds, one for each time.
struct Changes {
    /// The longest request in each snapshot, in each end of a commit, and in as many moments without a change.
    longest: [Vec<f64>; 3],
    /// How long each snapshot and each end of a commit kept requests out, if the program tells.
    pauses: Vec<Vec<f64>>,
}

fn changes(bench: &Bench, program: Program, times: usize) -> Result<Changes, String> {
    let image = bench.create("paused.qcow2", SHAPE, None)?;
    let mut steered = Steered::start(bench, program, &disk(&image))?;
    let nbd = steered.nbd.clone();
    let (changes, answers) = beside(&nbd, LOAD, || {
        let mut changes = Vec::new();
        for _ in 0..times {
            changes.push(change(bench, &mut steered)?);
        }
        Ok(changes)
    })?;
    drop(steered);
    remove(&image)?;
    let longest = |of: usize| {
        let longest = changes.iter().map(|change| answers.longest(change.windows[of]).as_secs_f64() * 1e3);
        longest.collect::<Vec<_>>()
    };
    let pauses = |of: usize| changes.iter().filter_map(|change| change.pauses[of]).collect::<Vec<_>>();
    Ok(Changes {
        longest: [longest(0), longest(1), longest(2)],
        pauses: [0, 1].map(pauses).into_iter().filter(|pauses| !pauses.is_empty()).collect(),
    })
}

type Window = (Instant, Instant);

/// A snapshot, and its commit.
struct Change {
    /// When each took place, and a moment of rest.
    windows: [Window; 3],
    /// Milliseconds for which each kept requests out.
    pauses: [Option<f64>; 2],
}

fn change(bench: &Bench, steered: &mut Steered) -> Result<Change, String> {
    let path = bench.create("layer.qcow2", SHAPE, None)?;
    let file = json!({ "driver": "file", "filename": path, "aio": "io_uring" });
    let layer = json!({ "driver": "qcow2", "node-name": "layer", "file": file, "backing": null });
    steered.ok("blockdev-add", layer)?;
    let begun = Instant::now();
    steered.ok("blockdev-snapshot", json!({ "node": "disk", "overlay": "layer" }))?;
    let snapshot = (begun, Instant::now());
    std::thread::sleep(REST);
    let rest = (snapshot.1 + REST / 2, Instant::now());
    let of_snapshot = pause(steered)?;
    steered.ok("block-commit", json!({ "job-id": "job", "device": "layer" }))?;
    if !steered.job_is("ready", Duration::from_secs(30))? {
        return Err("a commit does not get ready".to_owned());
    }
    let begun = Instant::now();
    steered.end_job("job-complete")?;
    let commit = (begun, Instant::now());
    let of_commit = pause(steered)?;
    steered.ok("blockdev-del", json!({ "node-name": "layer" }))?;
    Ok(Change { windows: [snapshot, commit, rest], pauses: [of_snapshot, of_commit] })
}

/// For how many milliseconds the last change kept requests of the disk out, if the program tells.
fn pause(steered: &mut Steered) -> Result<Option<f64>, String> {
    let disks = steered.ok("query-blockstats", json!({}))?;
    let last = |disk: &Value| disk["driver-specific"]["pauses"]["last-ns"].as_f64();
    Ok(disks.as_array().and_then(|disks| disks.iter().find_map(last)).map(|nanos| nanos / 1e6))
}

/// How long the guest writes into a new layer.
const REST: Duration = Duration::from_millis(20);
