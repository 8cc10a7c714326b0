//! A burst: as much as the formula says, at every moment.

use std::path::Path;
use std::time::Duration;

use super::clients::{Counted, Load, Mix, keep_asking, side_by_side};
use super::servers::{Disk, Program, serve};
use super::{Answer, DISK_BYTES, trend};
use crate::bench::Bench;
use crate::bench::table::Verdict;

const AVERAGE: f64 = 100.0;
const MAX: f64 = 2_000.0;
const LENGTH: f64 = 3.0;

/// Seconds that are looked at: the burst lasts for half of them.
const SECONDS: u32 = 7;

/// What has passed `seconds` after an idle start: the fuller of two buckets decides.
fn formula(seconds: f64) -> f64 {
    (MAX * LENGTH + AVERAGE * seconds).min(MAX / 10.0 + MAX * seconds)
}

pub fn ask(bench: &Bench, image: &Path) -> Result<Answer, String> {
    let limits = [
        ("iops-total", AVERAGE as u64),
        ("iops-total-max", MAX as u64),
        ("iops-total-max-length", LENGTH as u64),
    ];
    let load = Load { mix: Mix::Reads, bytes: 4096, depth: 32, span: DISK_BYTES };
    let mut clients = Vec::new();
    for program in Program::BOTH {
        let name = format!("burst-{program:?}");
        let copy = bench.path(&format!("{name}.qcow2"));
        std::fs::copy(image, &copy).map_err(|error| format!("{}: {error}", copy.display()))?;
        clients.push(move || {
            let server = serve(bench, program, &format!("{name}.sock"), &[Disk::bench(&copy)], &limits)?;
            let counted = keep_asking(server.socket(), "bench", load, SECONDS - 1)?;
            drop(server);
            super::remove(&copy)?;
            Ok(counted)
        });
    }
    let found = side_by_side(clients)?;
    let [ours, theirs] = found.as_slice() else { return Err("two programs were measured".to_owned()) };
    println!("a burst: ours off by {:.2} %, QEMU's by {:.2} %", off(ours), off(theirs));
    let what = "a burst of 2,000 for 3 s over 100, off the formula at any half second";
    let series = vec![
        ("formula".to_owned(), rates(|tenth| formula(f64::from(tenth) / 10.0))),
        ("cowhand".to_owned(), rates(|tenth| at_tenth(ours, tenth))),
        ("QEMU".to_owned(), rates(|tenth| at_tenth(theirs, tenth))),
    ];
    Ok(Answer {
        verdicts: vec![Verdict::at_most(what, off(ours), 1.0, " %")],
        charts: vec![trend("Requests a second in a burst of 2,000 for 3 s over 100", 100, series)],
        ..Answer::default()
    })
}

/// The largest deviation of the sum at any half second, in per cent.
fn off(counted: &Counted) -> f64 {
    let halves = 1..=SECONDS * 2;
    let at = |half: u32| Duration::from_millis(u64::from(half) * 500);
    let deviation =
        |half| super::clients::percent(counted.until(at(half)), formula(at(half).as_secs_f64())).abs();
    halves.map(deviation).fold(0.0, f64::max)
}

fn at_tenth(counted: &Counted, tenth: u32) -> f64 {
    counted.until(Duration::from_millis(u64::from(tenth) * 100))
}

/// What is added in each tenth of a second, by the second.
fn rates(sum: impl Fn(u32) -> f64) -> Vec<f64> {
    (0..SECONDS * 10)
        .map(|tenth| {
            let before = if tenth == 0 { 0.0 } else { sum(tenth) };
            (sum(tenth + 1) - before) * 10.0
        })
        .collect()
}
