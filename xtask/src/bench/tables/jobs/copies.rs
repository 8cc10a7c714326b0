//! Copies of whole disks: of one that is not in use, and of one that a guest writes all the time.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use rustix::fs::SeekFrom;
use serde_json::json;

use super::daemon::{Program, Steered, disk};
use super::guest::{Load, beside};
use crate::bench::image::{Shape, remove};
use crate::bench::sample::{Pair, Sample, Series, in_rounds, median};
use crate::bench::table::{Verdict, number};
use crate::bench::tables::{GIB, MIB};
use crate::bench::{Bench, process};

const DISK_BYTES: u64 = 4 * GIB;

/// How long a guest that writes all the time is waited for.
const READY_MAX: Duration = Duration::from_secs(30);

/// A job that copies a disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Job {
    Mirror,
    Backup,
    ActiveCommit,
    Stream,
}

impl Job {
    fn name(self) -> &'static str {
        match self {
            Self::Mirror => "mirror",
            Self::Backup => "backup",
            Self::ActiveCommit => "active commit",
            Self::Stream => "stream",
        }
    }

    /// Whether it ends when all is on the device: others wait for nothing.
    fn ends_durable(self) -> bool {
        matches!(self, Self::Backup | Self::Stream)
    }

    /// How many times QEMU's bytes a second are asked for.
    fn rate_min(self) -> f64 {
        if self == Self::Stream { 3.0 } else { 1.5 }
    }
}

const EMPTY: Shape =
    Shape { disk_bytes: DISK_BYTES, cluster_bytes: 64 << 10, extended: false, allocated: false };

/// Images of which every second MiB is there: one alone, one over an empty image.
pub struct Halves {
    alone: PathBuf,
    overlay: PathBuf,
}

impl Halves {
    pub fn make(bench: &Bench) -> Result<Self, String> {
        let alone = bench.create("half.qcow2", EMPTY, None)?;
        let mut fill = Command::new("qemu-io");
        for part in 0..DISK_BYTES / MIB / 2 {
            fill.args(["-c", &format!("write -q -P {} {}M 1M", part % 255 + 1, part * 2)]);
        }
        process::run(fill.args(["-f", "qcow2"]).arg(&alone))?;
        bench.create("base.qcow2", EMPTY, None)?;
        let overlay = bench.path("half-over.qcow2");
        copy(&alone, &overlay)?;
        let mut rebase = Command::new("qemu-img");
        rebase.args(["rebase", "-u", "-f", "qcow2", "-F", "qcow2", "-b", "base.qcow2"]).arg(&overlay);
        process::run(&mut rebase)?;
        Ok(Self { alone, overlay })
    }

    /// What a job works on: what it writes is new.
    fn image(&self, bench: &Bench, job: Job) -> Result<PathBuf, String> {
        Ok(match job {
            Job::Mirror | Job::Backup => {
                bench.create("target.qcow2", EMPTY, None)?;
                self.alone.clone()
            }
            Job::ActiveCommit => {
                bench.create("base.qcow2", EMPTY, None)?;
                self.overlay.clone()
            }
            Job::Stream => bench.create("over.qcow2", EMPTY, Some("half.qcow2"))?,
        })
    }
}

fn copy(from: &Path, to: &Path) -> Result<(), String> {
    process::run(Command::new("cp").arg(from).arg(to)).map(drop)
}

/// Starts `job`.
fn start(steered: &mut Steered, bench: &Bench, job: Job) -> Result<(), String> {
    if matches!(job, Job::Mirror | Job::Backup) {
        let file = json!({ "driver": "file", "filename": bench.path("target.qcow2"), "aio": "io_uring" });
        steered.ok("blockdev-add", json!({ "driver": "qcow2", "node-name": "target", "file": file }))?;
    }
    let copied = json!({ "job-id": "job", "device": "disk", "target": "target", "sync": "full" });
    let (command, arguments) = match job {
        Job::Mirror => ("blockdev-mirror", copied),
        Job::Backup => ("blockdev-backup", copied),
        Job::ActiveCommit => ("block-commit", json!({ "job-id": "job", "device": "disk" })),
        Job::Stream => ("block-stream", json!({ "job-id": "job", "device": "disk" })),
    };
    steered.ok(command, arguments).map(drop)
}

/// Seconds until `job` has copied everything, and its CPU seconds; `None` if that takes longer than `limit`.
fn copied(bench: &Bench, steered: &mut Steered, job: Job, limit: Duration) -> Result<Option<Sample>, String> {
    let (begun, before) = (Instant::now(), steered.daemon.cpu_seconds());
    start(steered, bench, job)?;
    let ready = steered.job_is("ready", limit)?;
    let seconds = begun.elapsed().as_secs_f64();
    let rate = DISK_BYTES as f64 / 2.0 / 1e6 / seconds;
    let system_us = (steered.daemon.cpu_seconds() - before) / (DISK_BYTES as f64 / 2.0 / 1e9);
    if matches!(job, Job::Mirror | Job::ActiveCommit) {
        steered.end_job(if ready { "block-job-cancel" } else { "job-cancel" })?;
    }
    Ok(ready.then_some(Sample { rate, system_us, seconds, ..Sample::default() }))
}

/// Copies of a disk that is not in use: rows, verdicts, and for each job whose disk may be written the seconds it took us and QEMU.
pub fn idle(bench: &Bench, halves: &Halves) -> Result<(Vec<Vec<String>>, Vec<Verdict>), String> {
    let (mut rows, mut verdicts) = (Vec::new(), Vec::new());
    for job in [Job::Mirror, Job::Backup, Job::ActiveCommit, Job::Stream] {
        let mut pair = Pair::default();
        in_rounds(bench.effort.rounds, &mut pair, |pair, _| {
            for program in Program::BOTH {
                let mut steered = Steered::start(bench, program, &disk(&halves.image(bench, job)?))?;
                process::touch_memory(DISK_BYTES);
                let sample = copied(bench, &mut steered, job, Duration::from_secs(120))?;
                program.of(pair).0.push(sample.ok_or("a copy does not end")?);
                drop(steered);
                clean(bench, job)?;
            }
            pair.limit.0.push(plain_copy(bench, &halves.alone, job.ends_durable())?);
            Ok(())
        })?;
        let what = format!("{}, idle guest", job.name());
        let cpu = |series: &Series| number(series.median(Sample::cpu_us));
        rows.push(vec![
            what.clone(),
            "MB/s (CPU s/GB)".to_owned(),
            format!("**{}**", number(pair.rate_ratio())),
            format!("{} ({})", number(pair.ours.rate()), cpu(&pair.ours)),
            format!("{:.0} %", pair.ours.spread_percent()),
            format!("{} ({})", number(pair.theirs.rate()), cpu(&pair.theirs)),
            format!("{:.0} %", pair.theirs.spread_percent()),
        ]);
        rows.push(vec![
            what.clone(),
            "MB/s of a plain copy loop (CPU s/GB)".to_owned(),
            format!("{} of it", number(pair.of_limit())),
            format!("{} ({})", number(pair.limit.rate()), cpu(&pair.limit)),
            format!("{:.0} %", pair.limit.spread_percent()),
            "-".to_owned(),
            "-".to_owned(),
        ]);
        let (ratio, of_limit) = (pair.rate_ratio(), pair.of_limit());
        verdicts.push(Verdict::at_least_or_limit(format!("P: {what}"), ratio, job.rate_min(), of_limit));
        if job != Job::Stream {
            let least = pair.limit.median(Sample::cpu_us) / pair.theirs.median(Sample::cpu_us);
            let (what, cpu) = (format!("P: {what}, CPU"), pair.ratio(Sample::cpu_us));
            verdicts.push(Verdict::at_most_or_limit(what, cpu, 0.5, " x", least));
        }
    }
    Ok((rows, verdicts))
}

/// The data of `file` by a loop of reads and writes in large pieces into a new file: what no copy through memory is faster than.
fn plain_copy(bench: &Bench, file: &Path, durable: bool) -> Result<Sample, String> {
    let target = bench.path("loop.raw");
    process::touch_memory(DISK_BYTES);
    let (begun, before) = (Instant::now(), process::own_cpu_seconds());
    let bytes =
        copy_data(file, &target, durable).map_err(|error| format!("{}: {error}", target.display()))?;
    let (seconds, cpu) = (begun.elapsed().as_secs_f64(), process::own_cpu_seconds() - before);
    remove(&target)?;
    let gigabytes = bytes as f64 / 1e9;
    Ok(Sample { rate: gigabytes * 1e3 / seconds, system_us: cpu / gigabytes, seconds, ..Sample::default() })
}

/// How many bytes were copied.
fn copy_data(from: &Path, to: &Path, durable: bool) -> std::io::Result<u64> {
    let (source, target) = (File::open(from)?, File::create(to)?);
    let (len, mut at, mut bytes) = (source.metadata()?.len(), 0, 0);
    let mut piece = vec![0; MIB as usize];
    while at < len {
        let Ok(data) = rustix::fs::seek(&source, SeekFrom::Data(at)) else { break };
        let hole = rustix::fs::seek(&source, SeekFrom::Hole(data))?;
        at = data;
        while at < hole {
            let count = (hole - at).min(MIB) as usize;
            source.read_exact_at(&mut piece[..count], at)?;
            target.write_all_at(&piece[..count], at)?;
            at += count as u64;
            bytes += count as u64;
        }
    }
    if durable {
        target.sync_data()?;
    }
    Ok(bytes)
}

/// Removes what a job wrote, so that the device need not take it while the next one is measured.
fn clean(bench: &Bench, job: Job) -> Result<(), String> {
    match job {
        Job::Mirror | Job::Backup => remove(&bench.path("target.qcow2")),
        Job::ActiveCommit => remove(&bench.path("base.qcow2")),
        Job::Stream => remove(&bench.path("over.qcow2")),
    }
}

/// Copies of a disk that a guest writes as fast as it can, beside the same without the guest.
pub fn written(bench: &Bench, halves: &Halves) -> Result<(Vec<Vec<String>>, Vec<Verdict>), String> {
    let (mut rows, mut verdicts) = (Vec::new(), Vec::new());
    for job in [Job::Mirror, Job::ActiveCommit] {
        // Seconds of each program: idle, with the guest; the guest's writes a second.
        let mut found = Program::BOTH.map(|program| (program, Vec::new(), Vec::new(), Vec::new()));
        for round in 0..bench.effort.rounds {
            for (program, idle, busy, writes) in &mut found {
                for has_guest in [false, true] {
                    let image = halves.image(bench, job)?;
                    let scribbled = bench.path("written.qcow2");
                    copy(&image, &scribbled)?;
                    let mut steered = Steered::start(bench, *program, &disk(&scribbled))?;
                    process::touch_memory(DISK_BYTES);
                    let seconds =
                        |sample: Option<Sample>| sample.map_or(f64::INFINITY, |sample| sample.seconds);
                    if has_guest {
                        let load = Load {
                            depth: 16,
                            span_bytes: DISK_BYTES,
                            seed: u64::from(round) + 1,
                            every: None,
                        };
                        let nbd = steered.nbd.clone();
                        let begun = Instant::now();
                        let (sample, answers) =
                            beside(&nbd, load, || copied(bench, &mut steered, job, READY_MAX))?;
                        writes.push(answers.in_time((begun, Instant::now())).0);
                        busy.push(seconds(sample));
                    } else {
                        idle.push(seconds(copied(bench, &mut steered, job, READY_MAX)?));
                    }
                    drop(steered);
                    remove(&scribbled)?;
                    clean(bench, job)?;
                }
            }
        }
        let what = format!("{}, a guest writes 4 KiB at random, depth 16", job.name());
        let cell = |(_, idle, busy, writes): &(Program, Vec<f64>, Vec<f64>, Vec<f64>)| {
            let busy = median(busy);
            let busy =
                if busy.is_finite() { number(busy) } else { format!("not in {}", READY_MAX.as_secs()) };
            format!("{busy} s (idle {} s, {} writes/s)", number(median(idle)), number(median(writes)))
        };
        let [ours, theirs] = &found;
        let times: Vec<f64> = ours.1.iter().zip(&ours.2).map(|(idle, busy)| busy / idle).collect();
        let worst = times.iter().copied().fold(0.0, f64::max);
        let none = || "-".to_owned();
        let ratio = format!("**{}** x the idle time", number(median(&times)));
        rows.push(vec![
            what.clone(),
            "until ready".to_owned(),
            ratio,
            cell(ours),
            none(),
            cell(theirs),
            none(),
        ]);
        verdicts.push(Verdict::at_most(format!("P: {what}, worst round"), worst, 3.0, " x the idle time"));
    }
    Ok((rows, verdicts))
}
