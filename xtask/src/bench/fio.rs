//! One fio run: over its nbd engine, or on a file.

use std::path::Path;
use std::process::Command;

use serde_json::Value;

use super::process;

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

fn measure(mut command: Command, load: Load, seconds: u32, seed: u32) -> Result<Outcome, String> {
    command
        .args(["--output-format=json", "--time_based", "--group_reporting"])
        .args(["--norandommap"])
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
