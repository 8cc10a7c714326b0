//! One fio run over its nbd engine.

use std::process::Command;

use serde_json::Value;

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
}

/// Runs `load` for `seconds` and gives requests per second.
pub fn run(uri: &str, load: Load, seconds: u32, seed: u32) -> Result<f64, String> {
    let output = Command::new("fio")
        .args(["--name=bench", "--ioengine=nbd", "--output-format=json", "--time_based", "--group_reporting"])
        .args(["--norandommap", "--size=1G", "--thread"])
        .arg(format!("--uri={uri}"))
        .arg(format!("--rw={}", load.rw))
        .arg(format!("--bs={}", load.block))
        .arg(format!("--iodepth={}", load.depth))
        .arg(format!("--numjobs={}", load.jobs))
        .arg(format!("--runtime={seconds}"))
        .arg(format!("--randseed={seed}"))
        .output()
        .map_err(|error| format!("cannot run fio: {error}"))?;
    let text = String::from_utf8_lossy(&output.stdout);
    // The engine prints a line of its own before the JSON.
    let json = text.find('{').and_then(|start| serde_json::from_str::<Value>(&text[start..]).ok());
    let job = json.as_ref().and_then(|json| json["jobs"].get(0));
    let iops = |side: &str| job.and_then(|job| job[side]["iops"].as_f64()).unwrap_or(0.0);
    let total = iops("read") + iops("write");
    if output.status.success() && total > 0.0 {
        return Ok(total);
    }
    Err(format!("fio failed: {}{text}", String::from_utf8_lossy(&output.stderr)))
}
