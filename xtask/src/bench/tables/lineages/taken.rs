//! Checkpoints under a guest that writes, reads through all of them, a rollback.

use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use black_box::client::Request;
use black_box::{Client, Random};
use serde_json::json;

use super::least::Changes;
use super::{Part, least, row};
use crate::bench::image::{Shape, remove};
use crate::bench::sample::{at_percent, median};
use crate::bench::table::{Verdict, number};
use crate::bench::tables::MIB;
use crate::bench::tables::jobs::daemon::{Program, Steered, disk};
use crate::bench::tables::jobs::guest::{Load, beside};
use crate::bench::{Bench, process};

const SHAPE: Shape =
    Shape { disk_bytes: 256 * MIB, cluster_bytes: 64 << 10, extended: false, allocated: false };
/// A layer may hold all of it: a thousand of them take 16 GiB.
const LOAD: Load = Load { depth: 32, span_bytes: 16 * MIB, seed: 1, every: None };
/// What was written before the first checkpoint. Guests write the begin of it; reads go to the rest, which only the lowest layer has.
const BASE_BYTES: u64 = 64 * MIB;
/// Where qemu-storage-daemon gets slow, and people stop.
const THEIR_DEPTH: usize = 200;
/// With the image that is written and a base, for which a lineage keeps room: the most that a chain may have.
const OUR_DEPTH: usize = 998;

/// What a program was seen to take.
struct Taken {
    /// Milliseconds of each checkpoint, from the command to its answer.
    command_ms: Vec<f64>,
    /// Milliseconds of the longest request in each.
    longest_ms: Vec<f64>,
    /// 4 KiB reads a second before the first checkpoint, and after the last.
    reads: [f64; 2],
    /// CPU microseconds of such a read after the last.
    read_cpu_us: f64,
    rollback_ms: f64,
}

pub fn ask(bench: &Bench) -> Part {
    let depth = |depth: usize| if bench.effort.quick { depth / 20 } else { depth };
    let ours = checkpoints(bench, Program::Ours, depth(OUR_DEPTH))?;
    let theirs = checkpoints(bench, Program::Theirs, depth(THEIR_DEPTH))?;
    let case = format!(
        "checkpoints under writes at depth 32: {} here, {} of QEMU's",
        ours.command_ms.len(),
        theirs.command_ms.len()
    );
    let percent = |taken: &Taken, percent| at_percent(&taken.command_ms, percent);
    let edge = |taken: &Taken| {
        let hundred = (taken.command_ms.len() / 4).min(100);
        let (first, last) =
            (&taken.command_ms[..hundred], &taken.command_ms[taken.command_ms.len() - hundred..]);
        median(last) / median(first)
    };
    let longest = |taken: &Taken| at_percent(&taken.longest_ms, 99);
    let least = least::ask(bench, LOAD, depth(THEIR_DEPTH))?;
    let least_of = |ms: &[f64]| at_percent(ms, 99);
    let kept = |taken: &Taken| taken.reads[1] / taken.reads[0];
    let reads = "4 KiB reads at random of the lowest layer, behind the last, depth 32";
    let limit = |figure: &str, found: f64| {
        let case = "limit: the same writes to a raw file of QEMU's daemon".to_owned();
        vec![case, figure.to_owned(), "-".to_owned(), "-".to_owned(), number(found)]
    };
    let mut rows = vec![
        row(&case, "ms a command, median", percent(&ours, 50), percent(&theirs, 50)),
        row(&case, "ms a command, p99", percent(&ours, 99), percent(&theirs, 99)),
        row(&case, "the last hundred to the first", edge(&ours), edge(&theirs)),
        row(&case, "longest request of the guest, ms, p99", longest(&ours), longest(&theirs)),
        limit("ms of the least that is durable, p99", least_of(&least.change_ms)),
        limit("longest request of a guest meanwhile, ms, p99", least_of(&least.longest_ms)),
        row(reads, "CPU us a read", ours.read_cpu_us, theirs.read_cpu_us),
    ];
    let ratio = format!("**{}**", number(ours.reads[1] / theirs.reads[1]));
    let cell = |taken: &Taken| format!("{} ({} of one image's)", number(taken.reads[1]), number(kept(taken)));
    rows.push(vec![reads.to_owned(), "reads/s".to_owned(), ratio, cell(&ours), cell(&theirs)]);
    let rollback = number(ours.rollback_ms);
    rows.push(vec![
        "rollback under writes".to_owned(),
        "longest request, ms".to_owned(),
        "-".to_owned(),
        rollback,
        "none".to_owned(),
    ]);
    let verdicts = vec![
        Verdict::at_most_or_limit(
            "S: checkpoint under writes, p99",
            percent(&ours, 99),
            5.0,
            " ms",
            least_of(&least.change_ms),
        ),
        Verdict::at_most("S: the last hundred checkpoints, of the first", edge(&ours), 1.2, " x"),
        Verdict::at_least("S: reads at the greatest depth, of one image", kept(&ours), 0.9, " x"),
        Verdict::at_least(
            "S: reads at the greatest depth, of QEMU's at 200",
            ours.reads[1] / theirs.reads[1],
            25.0,
            " x",
        ),
        Verdict::at_most_or_limit(
            "S: rollback under writes, longest request",
            ours.rollback_ms,
            10.0,
            " ms",
            least_of(&least.longest_ms),
        ),
    ];
    Ok((rows, verdicts))
}

fn checkpoints(bench: &Bench, program: Program, depth: usize) -> Result<Taken, String> {
    let image = bench.create("sealed.qcow2", SHAPE, None)?;
    let write = format!("write -q -P 1 0 {BASE_BYTES}");
    process::run(Command::new("qemu-io").args(["-f", "qcow2", "-c", &write]).arg(&image))?;
    if program == Program::Ours {
        process::run(Command::new(&bench.cowhand).args(["checkpoint", "-q"]).arg(&image).arg("first"))?;
    }
    let mut steered = Steered::start(bench, program, &disk(&image))?;
    let nbd = steered.nbd.clone();
    let before = reads(bench, &steered)?.0;
    let (windows, answers) = beside(&nbd, LOAD, || {
        (1..depth)
            .map(|number| checkpoint(bench, program, &mut steered, number))
            .collect::<Result<Vec<_>, _>>()
    })?;
    let Changes { change_ms: command_ms, longest_ms } = Changes::of(&windows, &answers);
    let (after, read_cpu_us) = reads(bench, &steered)?;
    let mut rollback_ms = f64::NAN;
    if program == Program::Ours {
        let (window, answers) = beside(&nbd, LOAD, || {
            std::thread::sleep(Duration::from_millis(200));
            let begun = Instant::now();
            let arguments = json!({ "node-name": "disk", "checkpoint": "first", "live": true });
            steered.ok("cowhand-rollback", arguments)?;
            Ok((begun, Instant::now()))
        })?;
        rollback_ms = answers.longest(window).as_secs_f64() * 1e3;
    }
    drop(steered);
    for number in 0..depth {
        remove(&bench.path(&format!("sealed-{number}.qcow2")))?;
    }
    remove(&image)?;
    // Gone with the directory of a run otherwise.
    let _ = std::fs::remove_dir_all(bench.path("layers"));
    Ok(Taken { command_ms, longest_ms, reads: [before, after], read_cpu_us, rollback_ms })
}

fn checkpoint(
    bench: &Bench,
    program: Program,
    steered: &mut Steered,
    number: usize,
) -> Result<(Instant, Instant), String> {
    let begun = Instant::now();
    match program {
        Program::Ours => drop(steered.ok("cowhand-checkpoint", json!({ "node-name": "disk" }))?),
        Program::Theirs => put_over(bench, steered, number)?,
    }
    Ok((begun, Instant::now()))
}

/// The commands that a manager of QEMU's gives for one.
fn put_over(bench: &Bench, steered: &mut Steered, number: usize) -> Result<(), String> {
    let path = bench.path(&format!("sealed-{number}.qcow2"));
    let job = |options| json!({ "job-id": "job", "options": options });
    let file = format!("file-{number}");
    for options in [
        json!({ "driver": "file", "filename": path, "size": 0 }),
        json!({ "driver": "qcow2", "file": file, "size": SHAPE.disk_bytes }),
    ] {
        let is_image = options["driver"] == "qcow2";
        if is_image {
            let node = json!({ "driver": "file", "node-name": file, "filename": path, "aio": "io_uring" });
            steered.ok("blockdev-add", node)?;
        }
        steered.ok("blockdev-create", job(options))?;
        if !steered.job_is("concluded", Duration::from_secs(30))? {
            return Err("blockdev-create does not end".to_owned());
        }
        steered.ok("job-dismiss", json!({ "id": "job" }))?;
    }
    let name = |number: usize| if number == 0 { "disk".to_owned() } else { format!("layer-{number}") };
    let overlay = name(number);
    let layer = json!({ "driver": "qcow2", "node-name": overlay, "file": file, "backing": null });
    steered.ok("blockdev-add", layer)?;
    steered.ok("blockdev-snapshot", json!({ "node": name(number - 1), "overlay": overlay }))?;
    Ok(())
}

/// 4 KiB reads a second at random, and CPU microseconds of the daemon for each.
fn reads(bench: &Bench, steered: &Steered) -> Result<(f64, f64), String> {
    let time = Duration::from_secs_f64(bench.effort.seconds);
    read_for(&steered.nbd, time / 4)?;
    let cpu = steered.daemon.cpu_seconds();
    let (count, seconds) = read_for(&steered.nbd, time)?;
    Ok((count / seconds, (steered.daemon.cpu_seconds() - cpu) * 1e6 / count))
}

fn read_for(socket: &Path, time: Duration) -> Result<(f64, f64), String> {
    let failed = |error: std::io::Error| format!("a client at {}: {error}", socket.display());
    let mut client = Client::connect(socket, "bench").map_err(failed)?;
    let (mut random, begun, mut count, mut in_flight) = (Random::new(7), Instant::now(), 0_u64, 0);
    while begun.elapsed() < time || in_flight > 0 {
        while in_flight < LOAD.depth && begun.elapsed() < time {
            let at = LOAD.span_bytes + random.below((BASE_BYTES - LOAD.span_bytes) / 4096) * 4096;
            client.send(&Request::read(at, 4096)).map_err(failed)?;
            in_flight += 1;
        }
        let reply = client.receive().map_err(failed)?;
        if reply.error != 0 {
            return Err(format!("a read failed with error {}", reply.error));
        }
        (in_flight, count) = (in_flight - 1, count + 1);
    }
    Ok((count as f64, begun.elapsed().as_secs_f64()))
}
