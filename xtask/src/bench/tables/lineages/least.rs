//! What a checkpoint takes at the least: the guest's file is made durable, and a new file with its name.

use std::fs::File;
use std::time::{Duration, Instant};

use serde_json::json;

use crate::bench::Bench;
use crate::bench::image::remove;
use crate::bench::tables::MIB;
use crate::bench::tables::jobs::daemon::{Program, Steered};
use crate::bench::tables::jobs::guest::{Answers, Load, beside};

/// Bytes of the raw disk: each write finds a place that has none yet, as in an overlay.
const SPAN_BYTES: u64 = 64 * 1024 * MIB;

/// What changes beside a guest were seen to take.
pub struct Changes {
    /// Milliseconds of each change.
    pub change_ms: Vec<f64>,
    /// Milliseconds of the guest's longest request in each.
    pub longest_ms: Vec<f64>,
}

impl Changes {
    /// From the begin and the end of each.
    pub fn of(windows: &[(Instant, Instant)], answers: &Answers) -> Self {
        let ms = |time: Duration| time.as_secs_f64() * 1e3;
        Self {
            change_ms: windows.iter().map(|(begun, ended)| ms(*ended - *begun)).collect(),
            longest_ms: windows.iter().map(|window| ms(answers.longest(*window))).collect(),
        }
    }
}

/// Makes `count` changes beside a guest that writes to a raw file.
pub fn ask(bench: &Bench, load: Load, count: usize) -> Result<Changes, String> {
    let (disk, new) = (bench.path("least.raw"), bench.path("least.new"));
    let failed = |error: std::io::Error| format!("{}: {error}", disk.display());
    let file = File::create(&disk).map_err(failed)?;
    file.set_len(SPAN_BYTES).map_err(failed)?;
    let directory = File::open(bench.path(".")).map_err(failed)?;
    let node = json!({ "driver": "file", "node-name": "disk", "filename": disk, "aio": "io_uring" });
    let steered = Steered::start(bench, Program::Theirs, &[node.to_string()])?;
    let change = || {
        let begun = Instant::now();
        let overlay = File::create(&new)?;
        overlay.set_len(MIB)?;
        overlay.sync_data()?;
        file.sync_data()?;
        directory.sync_all()?;
        std::fs::remove_file(&new)?;
        Ok((begun, Instant::now()))
    };
    let load = Load { span_bytes: SPAN_BYTES, ..load };
    let (windows, answers) = beside(&steered.nbd, load, || {
        std::thread::sleep(Duration::from_millis(200));
        (0..count).map(|_| change().map_err(failed)).collect::<Result<Vec<_>, _>>()
    })?;
    drop(steered);
    remove(&disk)?;
    Ok(Changes::of(&windows, &answers))
}
