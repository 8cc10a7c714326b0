//! One fio run: over its nbd engine, or on a file.

use std::fs::File;
use std::path::Path;
use std::process::Command;

use serde_json::Value;

use super::image::remove;
use super::sample::Sample;
use super::{Bench, process};

/// What fio is to do.
#[derive(Clone, Copy, Debug)]
pub struct Load {
    /// fio's `rw`.
    pub rw: &'static str,
    /// fio's `bs`.
    pub block: &'static str,
    /// Requests in flight on each connection.
    pub depth: u32,
    /// Connections.
    pub jobs: u32,
    /// Bytes of the disk.
    pub disk_bytes: u64,
}

/// What it found.
#[derive(Clone, Copy, Debug, Default)]
pub struct Outcome {
    /// Requests per second.
    pub iops: f64,
    /// Median latency in microseconds.
    pub p50_us: f64,
    /// 99th percentile.
    pub p99_us: f64,
    /// 99.9th percentile.
    pub p999_us: f64,
}

/// Runs `load` for `seconds` on the export of an NBD server.
pub fn run(uri: &str, load: Load, seconds: u32, seed: u32) -> Result<Outcome, String> {
    let mut command = Command::new("fio");
    command.args(["--name=bench", "--ioengine=nbd", "--thread"]).arg(format!("--uri={uri}"));
    measure(command, load, seconds, seed)
}

/// Runs `load` on the image "disk" in the pool "rbd" of the Ceph that `conf` leads to.
pub fn run_on_rbd(conf: &Path, load: Load, seconds: u32, seed: u32) -> Result<Outcome, String> {
    let mut command = Command::new("fio");
    command.args([
        "--name=bench",
        "--ioengine=rbd",
        "--thread",
        "--pool=rbd",
        "--rbdname=disk",
        "--clientname=admin",
    ]);
    // librados finds its configuration by this variable.
    command.env("CEPH_CONF", conf);
    measure(command, load, seconds, seed)
}

/// What `run` finds in so many seconds, and what each request costs a server that says its CPU seconds so far.
pub fn sample_of_server(
    cpu_seconds: impl Fn() -> f64,
    seconds: u32,
    run: impl FnOnce() -> Result<Outcome, String>,
) -> Result<Sample, String> {
    let before = cpu_seconds();
    let (rate, seconds) = (run()?.iops, f64::from(seconds.max(1)));
    Ok(Sample::of_server(rate * seconds, seconds, cpu_seconds() - before))
}

/// How fio reaches a file.
#[derive(Clone, Copy, Debug)]
pub struct Engine {
    /// fio's `ioengine`.
    pub name: &'static str,
    /// Past the page cache.
    pub direct: bool,
}

/// The same on a file.
pub fn run_on_file(
    file: &Path,
    load: Load,
    engine: Engine,
    seconds: u32,
    seed: u32,
) -> Result<Outcome, String> {
    let mut command = Command::new("fio");
    command
        .args(["--name=bench", "--thread"])
        .arg(format!("--ioengine={}", engine.name))
        .arg(format!("--direct={}", u8::from(engine.direct)))
        .arg(format!("--filename={}", file.display()));
    measure(command, load, seconds, seed)
}

/// What fio does on a file with io_uring: the limit of what is served from it. It counts in whole seconds.
pub fn sample_of_file(
    bench: &Bench,
    file: &Path,
    load: Load,
    direct: bool,
    round: u32,
) -> Result<Sample, String> {
    let (engine, seconds) = (Engine { name: "io_uring", direct }, bench.effort.seconds.ceil() as u32);
    let rate = run_on_file(file, load, engine, seconds, round + 1)?.iops;
    Ok(Sample { rate, ..Sample::default() })
}

/// Writes of 4 KiB into holes of a fresh raw file, as an image that allocates has them: one every `step` bytes from `offset` on.
#[derive(Clone, Copy, Debug)]
pub struct Holes {
    /// Where the first goes.
    pub offset: u64,
    /// From one to the next.
    pub step: u64,
    /// How many.
    pub count: u64,
    /// Requests in flight.
    pub depth: u32,
}

/// What fio makes of them with O_DIRECT: the limit of writes that allocate.
pub fn sample_of_holes(raw: &Path, holes: Holes) -> Result<Sample, String> {
    let Holes { offset, step, count, depth } = holes;
    let failed = |error: std::io::Error| format!("{}: {error}", raw.display());
    let file = File::create(raw).map_err(failed)?;
    file.set_len(offset + step * count).map_err(failed)?;
    let mut command = Command::new("fio");
    command
        .args(["--name=bench", "--thread", "--ioengine=io_uring", "--direct=1", "--bs=4k"])
        .arg(format!("--filename={}", raw.display()))
        .arg(format!("--rw=write:{}", step - 4096))
        .arg(format!("--offset={offset}"))
        .arg(format!("--size={}", step * count))
        .arg(format!("--io_size={}", 4096 * count))
        .arg(format!("--iodepth={depth}"))
        .arg("--output-format=json");
    let text = process::run(&mut command)?.text;
    remove(raw)?;
    let rate = outcome(&text).ok_or_else(|| format!("fio said: {text}"))?.iops;
    Ok(Sample { rate, ..Sample::default() })
}

fn measure(mut command: Command, load: Load, seconds: u32, seed: u32) -> Result<Outcome, String> {
    command
        .args(["--output-format=json", "--time_based", "--group_reporting"])
        // By default fio drops the file's pages first. The new ones are smaller, and small writes cost a tenth there.
        .args(["--norandommap", "--invalidate=0"])
        .arg(format!("--size={}", load.disk_bytes))
        .arg(format!("--rw={}", load.rw))
        .arg(format!("--bs={}", load.block))
        .arg(format!("--iodepth={}", load.depth))
        .arg(format!("--numjobs={}", load.jobs))
        .arg(format!("--runtime={}", seconds.max(1)))
        .arg(format!("--randseed={seed}"));
    let text = process::run(&mut command)?.text;
    outcome(&text).ok_or_else(|| format!("fio said: {text}"))
}

/// The engine prints a line of its own before the JSON.
fn outcome(text: &str) -> Option<Outcome> {
    let report: Value = serde_json::from_str(&text[text.find('{')?..]).ok()?;
    let job = report["jobs"].get(0)?;
    let iops = |side: &str| job[side]["iops"].as_f64().unwrap_or(0.0);
    let side = if iops("read") >= iops("write") { "read" } else { "write" };
    let quantile = |name: &str| {
        job[side]["clat_ns"]["percentile"][name].as_f64().map_or(f64::NAN, |nanos| nanos / 1000.0)
    };
    let total = iops("read") + iops("write");
    (total > 0.0).then(|| Outcome {
        iops: total,
        p50_us: quantile("50.000000"),
        p99_us: quantile("99.000000"),
        p999_us: quantile("99.900000"),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_line_before_the_json_is_skipped() {
        let text = "nbd: connected\n{\"jobs\": [{\"read\": {\"iops\": 5.0, \"clat_ns\": {\"percentile\": \
            {\"99.000000\": 2000}}}, \"write\": {\"iops\": 0}}]}";
        let Outcome { iops, p99_us, p50_us, .. } = outcome(text).unwrap();
        assert_eq!((iops, p99_us), (5.0, 2.0));
        assert!(p50_us.is_nan() && outcome("no json").is_none());
    }
}
