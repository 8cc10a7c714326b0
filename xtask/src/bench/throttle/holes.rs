//! Reads of an image in which nothing was ever written, by a client that can be notified of holes: fio uses structured replies.

use super::clients::percent;
use super::servers::{Disk, Program, serve};
use super::{Answer, DISK_BYTES, Extent, create, remove};
use crate::bench::table::Verdict;
use crate::bench::{Bench, fio};

/// Requests a second.
const LIMIT: f64 = 100.0;

pub fn ask(bench: &Bench, extent: Extent) -> Result<Answer, String> {
    let image = create(bench, "holes.qcow2", DISK_BYTES, false)?;
    let load = fio::Load { rw: "randread", block: "4k", depth: 32, jobs: 1, disk_bytes: DISK_BYTES };
    let seconds = extent.heavy;
    let measure = |program| {
        let server = serve(bench, program, "holes.sock", &[Disk::bench(&image)], &[("iops-total", 100)])?;
        let uri = format!("nbd+unix:///bench?socket={}", server.socket().display());
        fio::run(&uri, load, seconds, 1).map(|outcome| outcome.iops)
    };
    let (ours, theirs) = (measure(Program::Cowhand)?, measure(Program::Qemu)?);
    remove(&image)?;
    println!("reads of holes under iops-total=100: ours {ours:.1}, QEMU's {theirs:.1}");
    // The first bucket, and those in flight at the end, for which fio waits.
    let more = (LIMIT / 10.0 + f64::from(load.depth)) / f64::from(seconds);
    let above = percent(ours, LIMIT + more).max(0.0);
    let what =
        format!("reads of holes under iops-total=100 ({ours:.1} a second, QEMU's {theirs:.0}), above it by");
    Ok(Answer { verdicts: vec![Verdict::at_most(what, above, 0.5, " %")], ..Answer::default() })
}
