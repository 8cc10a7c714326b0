//! Checkpoints that are published while a guest writes.

use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use black_box::{Moto, Random};
use serde_json::Value;

use super::Part;
use crate::bench::image::{Shape, remove};
use crate::bench::table::{Verdict, number};
use crate::bench::tables::MIB;
use crate::bench::tables::jobs::daemon::{Program, Steered, disk};
use crate::bench::tables::jobs::guest::{Load, beside};
use crate::bench::{Bench, process};
use crate::peers::moto_packages;

/// 2,000 writes a second, one at a time.
const LOAD: Load = Load { depth: 1, span_bytes: 64 * MIB, seed: 1, every: Some(Duration::from_micros(500)) };
const IMAGE: &str = "s3://images/disk";
/// What a client sends to the same store at the least, to see what that takes.
const LIMIT_MIB_MIN: u64 = 8;

/// What changes between two checkpoints: pieces of so many bytes at random multiples of that, one in a hundred.
struct Change {
    words: &'static str,
    piece_bytes: u64,
}

const CHANGES: [Change; 2] = [
    Change { words: "pieces of 4 MiB", piece_bytes: 4 * MIB },
    Change { words: "pieces of 64 KiB", piece_bytes: MIB / 16 },
];

/// What a publish was seen to take.
struct Published {
    sent_bytes: f64,
    seconds: f64,
    /// MiB a second that curl sends to the same store afterwards.
    limit: f64,
    /// 99th percentile of the guest's writes in microseconds: without, meanwhile, and beside curl.
    p99_us: [f64; 3],
}

pub fn ask(bench: &Bench) -> Part {
    let disk_bytes = if bench.effort.quick { 400 * MIB } else { 3200 * MIB };
    let shape = Shape { disk_bytes, cluster_bytes: 64 << 10, extended: false, allocated: false };
    let store = Moto::start_of(&moto_packages());
    store.put("/images", b"");
    let image = bench.create("published.qcow2", shape, None)?;
    write(&image, disk_bytes, 100, 4 * MIB, 1)?;
    checkpoint(bench, &image, "first")?;
    publish(bench, &store, &image, "first")?;
    let (mut rows, mut verdicts) = (Vec::new(), Vec::new());
    for (number, change) in CHANGES.iter().enumerate() {
        // What the guest has written beside the last publication is not of this change.
        let (before, name) = (format!("before-{number}"), format!("changed-{number}"));
        checkpoint(bench, &image, &before)?;
        publish(bench, &store, &image, &before)?;
        let changed = write(&image, disk_bytes, 1, change.piece_bytes, number as u64 + 2)? as f64;
        checkpoint(bench, &image, &name)?;
        let published = beside_a_guest(bench, &store, &image, &name)?;
        row(&mut rows, &mut verdicts, change, changed, &published);
    }
    remove(&image)?;
    // Gone with the directory of a run otherwise.
    let _ = std::fs::remove_dir_all(bench.path("layers"));
    Ok((rows, verdicts))
}

fn row(
    rows: &mut Vec<Vec<String>>,
    verdicts: &mut Vec<Verdict>,
    change: &Change,
    changed: f64,
    published: &Published,
) {
    let case = format!("publish, 1 % changed in {}, 2,000 writes/s beside it", change.words);
    let mut alone = |figure: &str, ratio: f64, ours: f64, other: f64| {
        let ratio = format!("**{}**", self::number(ratio));
        rows.push(vec![case.clone(), figure.to_owned(), ratio, number(ours), number(other)]);
    };
    let rate = published.sent_bytes / published.seconds / MIB as f64;
    let ([without, meanwhile, beside_curl], limit) = (published.p99_us, published.limit);
    alone("bytes sent, of the changed ones", published.sent_bytes / changed, published.sent_bytes, changed);
    alone("MiB sent/s, of curl's", rate / limit, rate, limit);
    alone("p99 of the guest's writes, us, of that without", meanwhile / without, meanwhile, without);
    let limit_case = "the same beside curl, which sends as much to the same store";
    alone(limit_case, beside_curl / without, beside_curl, without);
    let words = change.words;
    let what = |figure: &str| format!("S: publish of 1 % changed in {words}, {figure}");
    verdicts.extend([
        Verdict::at_most(what("bytes sent, of the changed"), published.sent_bytes / changed, 1.1, " x"),
        Verdict::at_least_or_limit(what("MiB/s"), rate, 50.0, rate / limit),
        Verdict::at_most_or_limit(
            what("p99 of the guest, of that without"),
            meanwhile / without,
            1.2,
            " x",
            beside_curl / without,
        ),
    ]);
}

/// Writes noise over so many of a hundred pieces of the disk, and says how many bytes.
fn write(image: &Path, disk_bytes: u64, percent: u64, piece_bytes: u64, seed: u64) -> Result<u64, String> {
    let (pieces, mut random) = (disk_bytes / piece_bytes, Random::new(seed));
    let noise = image.with_extension("noise");
    let failed = |error: std::io::Error| format!("{}: {error}", noise.display());
    let count = pieces * percent / 100;
    // Each hundredth of the disk has one of them, or all.
    let stride = 100 / percent;
    for number in 0..count {
        let bytes = random.bytes(usize::try_from(piece_bytes).map_err(|error| error.to_string())?);
        std::fs::write(&noise, bytes).map_err(failed)?;
        let at = (number * stride + random.below(stride)) * piece_bytes;
        let command = format!("write -q -s {} {at} {piece_bytes}", noise.display());
        process::run(Command::new("qemu-io").args(["-f", "qcow2", "-c", &command]).arg(image))?;
    }
    std::fs::remove_file(&noise).map_err(failed)?;
    Ok(count * piece_bytes)
}

fn checkpoint(bench: &Bench, image: &Path, name: &str) -> Result<(), String> {
    process::run(Command::new(&bench.cowhand).args(["checkpoint", "-q"]).arg(image).arg(name)).map(drop)
}

/// Publishes the checkpoint called `name`, and says how many bytes that sent and how long it took.
fn publish(bench: &Bench, store: &Moto, image: &Path, name: &str) -> Result<(f64, f64), String> {
    let mut command = Command::new(&bench.cowhand);
    command.args(["publish", "--output", "json", &format!("{}@{name}", image.display()), IMAGE]);
    command.env("AWS_ENDPOINT_URL", store.endpoint());
    command.env("AWS_ACCESS_KEY_ID", "A").env("AWS_SECRET_ACCESS_KEY", "hush");
    let outcome = process::run(&mut command)?;
    let report: Value = serde_json::from_str(&outcome.text).map_err(|error| error.to_string())?;
    let sent = report["uploaded-bytes"].as_f64().ok_or("publish reports no uploaded-bytes")?;
    Ok((sent, outcome.seconds))
}

fn beside_a_guest(bench: &Bench, store: &Moto, image: &Path, name: &str) -> Result<Published, String> {
    let steered = Steered::start(bench, Program::Ours, &disk(image))?;
    let quiet = Duration::from_secs_f64(bench.effort.seconds);
    let ((moments, (sent_bytes, seconds), limit), answers) = beside(&steered.nbd, LOAD, || {
        std::thread::sleep(quiet);
        let begun = Instant::now();
        let published = publish(bench, store, image, name)?;
        let ended = Instant::now();
        std::thread::sleep(quiet);
        let sending = Instant::now();
        let limit = limit(bench, store, published.0)?;
        Ok(([begun, ended, sending, Instant::now()], published, limit))
    })?;
    let [begun, ended, sending, sent] = moments;
    let p99_us =
        [(begun - quiet, begun), (begun, ended), (sending, sent)].map(|time| answers.in_time(time).1);
    Ok(Published { sent_bytes, seconds, limit, p99_us })
}

/// MiB a second that curl sends to the store in objects of 1 MiB, about `bytes` of them.
fn limit(bench: &Bench, store: &Moto, bytes: f64) -> Result<f64, String> {
    let count = ((bytes / MIB as f64) as u64).max(LIMIT_MIB_MIN);
    let noise = bench.path("object.noise");
    let failed = |error: std::io::Error| format!("{}: {error}", noise.display());
    let object = usize::try_from(MIB).map_err(|error| error.to_string())?;
    std::fs::write(&noise, Random::new(9).bytes(object)).map_err(failed)?;
    let mut command = Command::new("curl");
    command.args(["-sS", "-f", "-H", "Authorization: AWS4-HMAC-SHA256 Credential=A/20260101/us-east-1/s3/aws4_request, SignedHeaders=host, Signature=0"]);
    for number in 0..count {
        command.arg("-T").arg(&noise).arg(format!("{}/images/limit-{number}", store.endpoint()));
    }
    let outcome = process::run(&mut command)?;
    std::fs::remove_file(&noise).map_err(failed)?;
    Ok(count as f64 / outcome.seconds)
}
