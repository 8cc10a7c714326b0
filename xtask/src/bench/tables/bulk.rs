//! Table I: writes of many bytes, zeroes, discards, and what snapshots share.

use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;

use super::{GIB, KIB, MIB};
use crate::bench::image::{Shape, check, host_bytes};
use crate::bench::load::{Access, Load};
use crate::bench::sample::{Pair, Sample, median};
use crate::bench::table::{Table, Verdict, compared, heads, number};
use crate::bench::{Bench, process, vdi};

const CLUSTER_BYTES: u64 = 64 * KIB;
/// The disk of the sequential and shared writes.
const DISK_BYTES: u64 = 4 * GIB;
/// 1 MiB writes of a run.
const WRITES_MAX: u64 = 512;
/// What is zeroed and discarded, in requests of [`LARGE_BYTES`].
const ZEROED_BYTES: u64 = 10 * GIB;
const LARGE_BYTES: u64 = GIB;
/// The disk of which half is discarded: all of it real data.
const FULL_BYTES: u64 = 256 * MIB;

/// Table I.
pub fn run(bench: &Bench) -> Result<Table, String> {
    let mut table = Table {
        id: "I",
        title: "sequential writes, zeroes, discards, shared clusters".to_owned(),
        about: "64 KiB clusters. Sequential: 1 MiB writes at depth 4, O_DIRECT. Shared: 4 KiB writes at depth 32 to a full \
            image with a snapshot, one a cluster. Zeroes and discard: the whole process, from open to close. Host space: \
            `du` after every other cluster of 256 MiB of real data was discarded in random order, against what is mapped."
            .to_owned(),
        columns: heads(&["case"]),
        ..Table::default()
    };
    let mut row = |name: &str, cells: Vec<String>| {
        table.rows.push(std::iter::once(name.to_owned()).chain(cells).collect());
    };
    let (fresh, rewritten) = sequential(bench)?;
    row("sequential writes, fresh", compared(&fresh));
    row("sequential writes, rewritten", compared(&rewritten));
    row("writes to clusters shared with a snapshot", compared(&shared(bench)?));
    for (name, large) in
        [("write-zeroes of 10 GiB, ms", Large::Zeroes), ("discard of 10 GiB, ms", Large::Discard)]
    {
        let (ours, theirs) = large_requests(bench, large)?;
        row(name, times(ours, theirs));
        if large == Large::Zeroes {
            table.verdicts.push(Verdict::at_most("I, write-zeroes of 10 GiB", ours, 50.0, " ms"));
        }
    }
    let (ours, theirs) = space(bench)?;
    row("host space after discarding half, of what is mapped", times(ours, theirs));
    table.verdicts.push(Verdict::at_most(
        "I, host space after discarding half, of what is mapped",
        ours,
        1.01,
        "",
    ));
    Ok(table)
}

/// Cells of two figures of which the lower is better.
fn times(ours: f64, theirs: f64) -> Vec<String> {
    let none = || "-".to_owned();
    vec![format!("**{}**", number(theirs / ours)), number(ours), none(), number(theirs), none(), none()]
}

fn empty(bench: &Bench) -> Result<PathBuf, String> {
    let shape = Shape { allocated: false, ..Shape::allocated(DISK_BYTES, CLUSTER_BYTES) };
    bench.create("i.qcow2", shape, None)
}

fn sequential(bench: &Bench) -> Result<(Pair, Pair), String> {
    let (mut fresh, mut rewritten) = (Pair::default(), Pair::default());
    for round in 0..bench.effort.rounds {
        let image = empty(bench)?;
        let load = Load {
            size: MIB,
            depth: 4,
            write: true,
            access: Access::Steps { offset: 0, step: MIB },
            warm_up: 16,
            count_max: WRITES_MAX,
            ..Load::random_reads(image.clone(), DISK_BYTES)
        };
        let ours = bench.ours(&load, round)?;
        check(&image)?;
        let again = |sample: &Sample| Load { count_max: sample.requests as u64, ..load.clone() };
        rewritten.ours.0.push(bench.ours(&again(&ours), round)?);
        fresh.ours.0.push(ours);
        empty(bench)?;
        let theirs = bench.theirs_once(&load)?;
        rewritten.theirs.0.push(bench.theirs_once(&again(&theirs))?);
        fresh.theirs.0.push(theirs);
        check(&image)?;
    }
    Ok((fresh, rewritten))
}

fn shared(bench: &Bench) -> Result<Pair, String> {
    let mut pair = Pair::default();
    for round in 0..bench.effort.rounds {
        let load = Load {
            depth: 32,
            write: true,
            access: Access::Allocating { cluster_bytes: CLUSTER_BYTES },
            warm_up: 64,
            count_max: DISK_BYTES / CLUSTER_BYTES / 4,
            ..Load::random_reads(with_snapshot(bench)?, DISK_BYTES)
        };
        pair.ours.0.push(bench.ours(&load, round)?);
        check(&load.image)?;
        with_snapshot(bench)?;
        pair.theirs.0.push(bench.theirs_once(&load)?);
        check(&load.image)?;
    }
    Ok(pair)
}

fn with_snapshot(bench: &Bench) -> Result<PathBuf, String> {
    let image = bench.create_readable("i.qcow2", Shape::allocated(DISK_BYTES, CLUSTER_BYTES))?;
    process::run(Command::new("qemu-img").args(["snapshot", "-c", "one"]).arg(&image))?;
    Ok(image)
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Large {
    Zeroes,
    Discard,
}

/// Milliseconds of each program, from start to end.
fn large_requests(bench: &Bench, large: Large) -> Result<(f64, f64), String> {
    let full = || bench.create("i.qcow2", Shape::allocated(ZEROED_BYTES, CLUSTER_BYTES), None);
    let count = ZEROED_BYTES / LARGE_BYTES;
    let (mut ours, mut theirs) = (Vec::new(), Vec::new());
    for _ in 0..bench.effort.rounds {
        let image = full()?;
        let mut command = Command::new(&bench.cowhand);
        command.args(["bench", "-q", "-d", "1", "-s", "1G", "-t", "none", "-c", &count.to_string()]);
        command.arg(if large == Large::Zeroes { "--write-zeroes" } else { "--discard" });
        command.arg(format!("file={},discard=unmap", image.display()));
        ours.push(process::run(&mut command)?.seconds * 1000.0);
        check(&image)?;
        full()?;
        let mut command = Command::new("qemu-io");
        command.args(["-f", "qcow2", "-n", "-d", "unmap"]);
        for part in 0..count {
            let offset = part * LARGE_BYTES;
            let request = match large {
                Large::Zeroes => format!("write -q -z -u {offset} 1G"),
                Large::Discard => format!("discard -q {offset} 1G"),
            };
            command.args(["-c", &request]);
        }
        theirs.push(process::run(command.arg(&image))?.seconds * 1000.0);
        check(&image)?;
    }
    Ok((median(&ours), median(&theirs)))
}

/// Bytes on the disk for each mapped byte, after half of a full image was discarded.
fn space(bench: &Bench) -> Result<(f64, f64), String> {
    let clusters = FULL_BYTES / CLUSTER_BYTES;
    let image = full_of_data(bench)?;
    let mut command = Command::new(&bench.cowhand);
    command.args(["bench", "-q", "-d", "8", "-s", "64k", "--discard", "--access", "allocating"]);
    command.args(["-c", &(clusters / 2).to_string()]);
    process::run(command.arg(format!("file={},discard=unmap", image.display())))?;
    let ours = per_mapped_byte(&image)?;
    let image = full_of_data(bench)?;
    let mut command = Command::new("qemu-io");
    command.args(["-f", "qcow2", "-d", "unmap"]);
    let order = vdi::shuffle(u32::try_from(clusters).unwrap_or(0), 3);
    for cluster in order.into_iter().take(usize::try_from(clusters / 2).unwrap_or(0)) {
        command.args(["-c", &format!("discard -q {} 64k", u64::from(cluster) * CLUSTER_BYTES)]);
    }
    process::run(command.arg(&image))?;
    Ok((ours, per_mapped_byte(&image)?))
}

fn full_of_data(bench: &Bench) -> Result<PathBuf, String> {
    let shape = Shape { allocated: false, ..Shape::allocated(FULL_BYTES, CLUSTER_BYTES) };
    let image = bench.create("i.qcow2", shape, None)?;
    let mut fill = Command::new("qemu-io");
    fill.args(["-f", "qcow2", "-c", "write -q -P 1 0 128M", "-c", "write -q -P 2 128M 128M"]);
    process::run(fill.arg(&image))?;
    Ok(image)
}

fn per_mapped_byte(image: &Path) -> Result<f64, String> {
    let mut command = Command::new("qemu-img");
    let text = process::run(command.args(["check", "-f", "qcow2", "--output", "json"]).arg(image))?.text;
    let check: Value = serde_json::from_str(&text).map_err(|error| format!("qemu-img check: {error}"))?;
    let mapped = check["allocated-clusters"].as_u64().unwrap_or(0) * CLUSTER_BYTES;
    // What a file system has not placed yet it does not count.
    rustix::fs::sync();
    Ok(host_bytes(image)? as f64 / mapped as f64)
}
