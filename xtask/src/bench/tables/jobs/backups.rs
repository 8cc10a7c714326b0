//! What a guest notices of a backup to a slow place: its old data goes to a local image first (fleecing).

use std::process::Command;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::daemon::{Program, Steered, image_node};
use super::guest::{Load, beside};

use crate::bench::image::{Shape, remove};
use crate::bench::sample::median;
use crate::bench::table::{Verdict, number};
use crate::bench::tables::MIB;
use crate::bench::{Bench, process};

const DISK_BYTES: u64 = 256 * MIB;
const SHAPE: Shape =
    Shape { disk_bytes: DISK_BYTES, cluster_bytes: 64 << 10, extended: false, allocated: false };

/// What the target takes in a second.
const TARGET_BYTES_PER_SECOND: u64 = 10_000_000;

/// The guest's share of its rate without a backup, and what its 99th percentile may be of that without.
const RATE_MIN: f64 = 0.9;
const P99_MAX: f64 = 2.0;

/// What a guest got in one round: writes a second and the 99th percentile of their latency in microseconds, without a backup and beside one.
#[derive(Clone, Copy, Debug)]
struct Round {
    without: (f64, f64),
    beside: (f64, f64),
}

/// A guest beside such a backup, and the same guest without.
pub fn ask(bench: &Bench) -> Result<(Vec<Vec<String>>, Vec<Verdict>), String> {
    let mut found = Program::BOTH.map(|program| (program, Vec::new()));
    for round in 0..if bench.effort.quick { 1 } else { 2 } {
        for (program, rounds) in &mut found {
            rounds.push(side_by_side(bench, *program, round + 1)?);
        }
    }
    let of =
        |rounds: &[Round], figure: fn(&Round) -> f64| median(&rounds.iter().map(figure).collect::<Vec<_>>());
    let [ours, theirs] = [&found[0].1, &found[1].1];
    let cell = |rounds: &[Round]| {
        let middle = |figure| number(of(rounds, figure));
        let (before, during) = (middle(|round| round.without.0), middle(|round| round.beside.0));
        let (p99_before, p99_during) = (middle(|round| round.without.1), middle(|round| round.beside.1));
        format!("{during} (without {before}), p99 {p99_during} us ({p99_before})")
    };
    let (rate, p99) = (
        of(ours, |round| round.beside.0 / round.without.0),
        of(ours, |round| round.beside.1 / round.without.1),
    );
    let what =
        "a guest writes 4 KiB at random, depth 16, beside a backup to a target of 10 MB/s, with fleecing";
    let none = || "-".to_owned();
    let ratio = format!("**{}** x the rate without, p99 {} x", number(rate), number(p99));
    let row = vec![what.to_owned(), "writes/s".to_owned(), ratio, cell(ours), none(), cell(theirs), none()];
    let verdicts = vec![
        Verdict::at_least("P: writes beside a slow backup", rate, RATE_MIN, " x those without"),
        Verdict::at_most("P: p99 of writes beside a slow backup", p99, P99_MAX, " x that without"),
    ];
    Ok((vec![row], verdicts))
}

/// The same guest on the same new image, twice for as long as the backup takes: what the device does after some seconds, it does to both.
fn side_by_side(bench: &Bench, program: Program, seed: u64) -> Result<Round, String> {
    let beside = guest(bench, program, seed, |steered| back_up(bench, program, steered))?;
    let time = Duration::from_secs_f64(DISK_BYTES as f64 / TARGET_BYTES_PER_SECOND as f64);
    let without = guest(bench, program, seed, |_| {
        std::thread::sleep(time);
        Ok(())
    })?;
    Ok(Round { without, beside })
}

/// What a guest gets while `work` runs.
fn guest(
    bench: &Bench,
    program: Program,
    seed: u64,
    work: impl FnOnce(&mut Steered) -> Result<(), String>,
) -> Result<(f64, f64), String> {
    let image = bench.create("backed-up.qcow2", SHAPE, None)?;
    let fill = "write -q -P 3 0 256M";
    process::run(Command::new("qemu-io").args(["-f", "qcow2", "-c", fill]).arg(&image))?;
    let target = bench.path("slow.raw");
    let made = std::fs::File::create(&target).and_then(|file| file.set_len(DISK_BYTES));
    made.map_err(|error| format!("{}: {error}", target.display()))?;
    bench.create("fleece.qcow2", SHAPE, None)?;
    let nodes = [image_node("image", &image), filter(program, "image").to_string()];
    let mut steered = Steered::start(bench, program, &nodes)?;
    let (nbd, load) = (steered.nbd.clone(), Load { depth: 16, span_bytes: DISK_BYTES, seed, every: None });
    let (time, answers) = beside(&nbd, load, || {
        let begun = Instant::now();
        work(&mut steered)?;
        Ok((begun, Instant::now()))
    })?;
    drop(steered);
    for name in ["backed-up.qcow2", "slow.raw", "fleece.qcow2"] {
        remove(&bench.path(name))?;
    }
    Ok(answers.in_time(time))
}

/// A filter below which another can be put while the guest writes: QEMU changes the file of few.
fn filter(program: Program, file: &str) -> Value {
    match program {
        Program::Ours => json!({ "driver": "copy-on-read", "node-name": "disk", "file": file }),
        Program::Theirs => {
            json!({ "driver": "throttle", "node-name": "disk", "file": file, "throttle-group": "none" })
        }
    }
}

/// A backup as it was at one moment, to a slow place, by the way of a local image.
fn back_up(bench: &Bench, program: Program, steered: &mut Steered) -> Result<(), String> {
    let file = |name: &str| json!({ "driver": "file", "filename": bench.path(name), "aio": "io_uring" });
    let limits = json!({ "bps-write": TARGET_BYTES_PER_SECOND });
    steered.ok("object-add", json!({ "qom-type": "throttle-group", "id": "slow", "limits": limits }))?;
    let raw = json!({ "driver": "raw", "file": file("slow.raw") });
    let nodes = [
        json!({ "driver": "throttle", "node-name": "target", "throttle-group": "slow", "file": raw }),
        json!({ "driver": "qcow2", "node-name": "fleece", "file": file("fleece.qcow2") }),
        json!({ "driver": "copy-before-write", "node-name": "cbw", "file": "image", "target": "fleece" }),
    ];
    for node in nodes {
        steered.ok("blockdev-add", node)?;
    }
    steered.ok("blockdev-reopen", json!({ "options": [filter(program, "cbw")] }))?;
    steered.ok("blockdev-add", json!({ "driver": "snapshot-access", "node-name": "then", "file": "cbw" }))?;
    steered.ok(
        "blockdev-backup",
        json!({ "job-id": "job", "device": "then", "target": "target", "sync": "full" }),
    )?;
    match steered.job_is("gone", Duration::from_secs(300))? {
        true => Ok(()),
        false => Err("a backup to a slow target does not end".to_owned()),
    }
}
