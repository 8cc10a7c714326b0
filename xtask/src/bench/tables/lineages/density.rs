//! A thousand forks of one checkpoint in one process.

use std::process::Command;
use std::time::Instant;

use serde_json::{Value, json};

use super::{Part, row};
use crate::bench::image::{Shape, remove};
use crate::bench::sample::{at_percent, median};
use crate::bench::table::{Verdict, number};
use crate::bench::tables::MIB;
use crate::bench::tables::jobs::daemon::{Program, Steered, disk};
use crate::bench::{Bench, process};

const SHAPE: Shape =
    Shape { disk_bytes: 256 * MIB, cluster_bytes: 64 << 10, extended: false, allocated: false };
/// How often each query is asked; the median counts.
const ASKED: usize = 9;
const QUERIES: [&str; 3] = ["query-block", "query-named-block-nodes", "query-blockstats"];

/// What a program was seen to take.
struct Forked {
    /// Milliseconds of each fork with its export.
    each_ms: Vec<f64>,
    resident_mib: f64,
    descriptors: f64,
    /// Milliseconds of each of [`QUERIES`].
    query_ms: [f64; 3],
}

pub fn ask(bench: &Bench) -> Part {
    let count = if bench.effort.quick { 50 } else { 1000 };
    let theirs = forks(bench, Program::Theirs, count)?;
    let ours = forks(bench, Program::Ours, count)?;
    let case = format!("{count} forks of one checkpoint, each with an NBD export");
    let median = |forked: &Forked| at_percent(&forked.each_ms, 50);
    let mut rows = vec![
        row(&case, "ms a fork, median", median(&ours), median(&theirs)),
        row(&case, "memory, MiB", ours.resident_mib, theirs.resident_mib),
        row(&case, "descriptors", ours.descriptors, theirs.descriptors),
    ];
    let mut verdicts = vec![
        Verdict::at_most("S: a fork with its export, median", median(&ours), 3.0, " ms"),
        Verdict::at_most("S: memory of the forks in all", ours.resident_mib, 256.0, " MiB"),
    ];
    for ((name, ours), theirs) in QUERIES.iter().zip(ours.query_ms).zip(theirs.query_ms) {
        rows.push(row(&format!("{name} of {count} forks"), "ms", ours, theirs));
        verdicts.push(Verdict::at_most(format!("S: {name} of {count} disks"), ours, 100.0, " ms"));
    }
    let served = served(bench, count)?;
    let mut alone = |case: String, figure: &str, found: f64, bound: f64, unit: &str| {
        rows.push(vec![case.clone(), figure.to_owned(), "-".to_owned(), number(found), "-".to_owned()]);
        verdicts.push(Verdict::at_most(format!("S: {case}"), found, bound, unit));
    };
    alone(format!("start until {count} disks are served"), "seconds", served.seconds, 3.0, " s");
    alone(format!("memory of an idle disk, of {count}"), "KiB", served.disk_kib, 64.0, " KiB");
    alone(format!("memory of an NBD export, of {count}"), "KiB", served.export_kib, 32.0, " KiB");
    let more = "descriptors beyond one for each disk and one for the layer";
    alone(more.to_owned(), "a disk", served.more_descriptors, 0.01, "");
    for number in 0..count {
        remove(&bench.path(&fork_name(number)))?;
    }
    Ok((rows, verdicts))
}

fn fork_name(number: usize) -> String {
    format!("fork-{number}.qcow2")
}

fn forks(bench: &Bench, program: Program, count: usize) -> Result<Forked, String> {
    let image = bench.create("forked.qcow2", SHAPE, None)?;
    process::run(Command::new("qemu-io").args(["-f", "qcow2", "-c", "write -q -P 1 0 64M"]).arg(&image))?;
    if program == Program::Ours {
        let _ = std::fs::remove_dir_all(bench.path("layers"));
        process::run(Command::new(&bench.cowhand).args(["checkpoint", "-q"]).arg(&image).arg("golden"))?;
    }
    let mut steered = Steered::start(bench, program, &disk(&image))?;
    let mut each_ms = Vec::with_capacity(count);
    for number in 0..count {
        let path = bench.path(&fork_name(number));
        remove(&path)?;
        let begun = Instant::now();
        match program {
            Program::Ours => {
                let serve = json!({ "type": "nbd" });
                let fork =
                    json!({ "node-name": "disk", "checkpoint": "golden", "new": path, "serve": serve });
                steered.ok("cowhand-fork", fork)?;
            }
            Program::Theirs => {
                bench.create(&fork_name(number), SHAPE, Some("forked.qcow2"))?;
                let (node, file) = (format!("n{number}"), json!({ "driver": "file", "filename": path }));
                let image = json!({ "driver": "qcow2", "node-name": node, "file": file, "backing": "disk" });
                steered.ok("blockdev-add", image)?;
                let export =
                    json!({ "type": "nbd", "id": node, "node-name": node, "name": node, "writable": true });
                steered.ok("block-export-add", export)?;
            }
        }
        each_ms.push(begun.elapsed().as_secs_f64() * 1e3);
    }
    let mut query_ms = [0.0; 3];
    for (ms, query) in query_ms.iter_mut().zip(QUERIES) {
        let asked: Vec<f64> =
            (0..ASKED).map(|_| query_took(&mut steered, query, count)).collect::<Result<_, _>>()?;
        *ms = median(&asked);
    }
    let (resident_kib, descriptors) = taken(&steered);
    Ok(Forked { each_ms, resident_mib: resident_kib / 1024.0, descriptors, query_ms })
}

/// Milliseconds of one query, until its answer has arrived.
fn query_took(steered: &mut Steered, query: &str, count: usize) -> Result<f64, String> {
    let begun = Instant::now();
    let arguments = match query {
        "query-named-block-nodes" => json!({ "flat": true }),
        // QEMU's storage daemon has no devices, whose figures there would be otherwise.
        "query-blockstats" => json!({ "query-nodes": true }),
        _ => json!({}),
    };
    let found: Value = steered.ok(query, arguments)?;
    if query != "query-block" && found.as_array().is_none_or(|found| found.len() < count) {
        return Err(format!("{query} does not show {count} disks"));
    }
    Ok((steered.arrived() - begun).as_secs_f64() * 1e3)
}

/// What a server with the forks was seen to take.
struct Served {
    /// From its start until it serves all of them.
    seconds: f64,
    disk_kib: f64,
    export_kib: f64,
    /// For each disk, beyond its own and that of the layer which all share.
    more_descriptors: f64,
}

/// Memory in KiB and descriptors of a daemon.
fn taken(steered: &Steered) -> (f64, f64) {
    let id = steered.daemon.id();
    let open = std::fs::read_dir(format!("/proc/{id}/fd")).map_or(f64::NAN, |open| open.count() as f64);
    (process::resident(id).map_or(f64::NAN, |bytes| bytes as f64 / 1024.0), open)
}

fn served(bench: &Bench, count: usize) -> Result<Served, String> {
    let nodes = (0..count).map(|number| {
        let file = json!({ "driver": "file", "filename": bench.path(&fork_name(number)) });
        json!({ "driver": "qcow2", "node-name": format!("n{number}"), "file": file }).to_string()
    });
    let first = disk(&bench.path("forked.qcow2"));
    let one = Steered::start(bench, Program::Ours, &first)?;
    let (empty_kib, empty_open) = taken(&one);
    drop(one);
    let nodes: Vec<String> = nodes.chain(first).collect();
    let begun = Instant::now();
    let mut steered = Steered::start(bench, Program::Ours, &nodes)?;
    let looking = Instant::now();
    let (idle_kib, idle_open) = taken(&steered);
    let looked = looking.elapsed();
    for number in 0..count {
        let node = format!("n{number}");
        let export = json!({ "type": "nbd", "id": node, "node-name": node, "name": node, "writable": true });
        steered.ok("block-export-add", export)?;
    }
    let seconds = (begun.elapsed() - looked).as_secs_f64();
    let (exported_kib, _) = taken(&steered);
    let each = |more: f64| more / count as f64;
    Ok(Served {
        seconds,
        disk_kib: each(idle_kib - empty_kib),
        export_kib: each(exported_kib - idle_kib),
        // The layer below the first disk is open in both.
        more_descriptors: each(idle_open - empty_open) - 1.0,
    })
}
