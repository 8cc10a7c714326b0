//! One load, measured with `cowhand bench` and with `qemu-img bench`.

use std::fs;
use std::path::Path;
use std::process::Command;

use serde_json::{Value, json};

use super::load::{Access, Load};
use super::sample::{Pair, Sample, in_rounds};
use super::{Bench, fio, process, vdi};

/// Requests of QEMU's first, shortest run.
const FIRST_REQUESTS: u64 = 64;
/// `qemu-img bench` takes no wider steps.
const STEP_BYTES_MAX: u64 = 1 << 31;
/// QEMU knows no time limit: the number of requests is corrected at most so often.
const CORRECTIONS_MAX: u32 = 3;
/// And made so many times larger at most.
const GROWTH_MAX: u64 = 8;

/// How fast QEMU was in earlier rounds of a load.
#[derive(Debug, Default)]
pub struct Pace {
    rate: Option<f64>,
}

impl Bench {
    /// Both programs at one load, alternating.
    pub fn side_by_side(&self, load: &Load) -> Result<Pair, String> {
        let (mut pair, mut pace) = (Pair::default(), Pace::default());
        in_rounds(self.effort.rounds, &mut pair, |pair, round| {
            pair.ours.0.push(self.ours(load, round)?);
            pair.theirs.0.push(self.theirs(load, &mut pace)?);
            if let Some(limit) = &load.limit {
                pair.limit.0.push(self.limit(limit, load, round)?);
            }
            Ok(())
        })?;
        Ok(pair)
    }

    /// What the machine does of a load of reads, on a raw file.
    fn limit(&self, raw: &Path, load: &Load, round: u32) -> Result<Sample, String> {
        let disk_bytes = fs::metadata(raw).map_err(|error| format!("{}: {error}", raw.display()))?.len();
        let rw = if matches!(load.access, Access::Steps { .. }) { "read" } else { "randread" };
        let asked = fio::Load { rw, block: "4k", depth: load.depth, jobs: 1, disk_bytes };
        fio::sample_of_file(self, raw, asked, load.mode == "none", round)
    }

    /// cowhand at one load; `round` chooses the random offsets.
    pub fn ours(&self, load: &Load, round: u32) -> Result<Sample, String> {
        let mut command = Command::new(&self.cowhand);
        command.args(["bench", "--output", "json"]);
        command.args(["-d", &load.depth.to_string(), "-s", &load.size.to_string(), "-t", load.mode]);
        command.args(["--seed", &(round + 1).to_string(), "--warm-up", &load.warm_up.to_string()]);
        command.args(["--runtime", &self.effort.seconds.to_string(), "-c", &load.count_max.to_string()]);
        command.args(access(load));
        if load.write {
            command.args(["-w", "--flush-interval", &load.flush_interval.to_string()]);
        }
        command.arg(drive(load));
        report(&process::run(&mut command)?.text)
    }

    /// QEMU at one load. Its warm-up is a run of its own, whose time and cost are taken off.
    pub fn theirs(&self, load: &Load, pace: &mut Pace) -> Result<Sample, String> {
        let before = match load.warm_up {
            0 => Run::default(),
            warm_up => qemu(load, warm_up)?,
        };
        let mut rate = match pace.rate {
            Some(rate) => rate,
            None if before.requests > 0 => before.rate(),
            None => qemu(load, FIRST_REQUESTS.min(load.count_max))?.rate(),
        };
        let mut growth_max = load.count_max;
        for correction in 1.. {
            let count = count(rate, self.effort.seconds, load.count_max).min(growth_max);
            // What is left of a short run may be nothing but noise, and its rate beyond all bounds.
            growth_max = count.saturating_mul(GROWTH_MAX);
            let run = qemu(load, load.warm_up + count)?;
            let sample = run.since(&before);
            rate = sample.rate;
            pace.rate = Some(rate);
            let enough = sample.seconds > self.effort.seconds / 2.0 || count == load.count_max;
            if enough || correction == CORRECTIONS_MAX {
                return Ok(sample);
            }
        }
        Err("qemu-img bench came to no end".to_owned())
    }

    /// QEMU's allocating writes, which cannot be made twice: each run goes on behind the one before. The
    /// first is short; its time, in which the image is opened and its free space searched, is taken off
    /// the others'.
    pub fn theirs_once(&self, load: &Load) -> Result<Sample, String> {
        let first = qemu(load, load.warm_up)?;
        let (mut rate, mut skip) = (first.rate(), load.warm_up);
        let mut found = None;
        for _ in 0..CORRECTIONS_MAX {
            let left = load.count_max.saturating_sub(skip + load.warm_up);
            let count = count(rate, self.effort.seconds, left);
            if count == 0 {
                break;
            }
            let sample = qemu_from(load, skip, load.warm_up + count)?.since(&first);
            skip += load.warm_up + count;
            rate = sample.rate;
            let enough = sample.seconds > self.effort.seconds / 2.0;
            found = Some(sample);
            if enough {
                break;
            }
        }
        found.ok_or_else(|| format!("{} allocating writes are too few to measure", load.count_max))
    }
}

fn count(rate: f64, seconds: f64, most: u64) -> u64 {
    ((rate * seconds) as u64).clamp(FIRST_REQUESTS.min(most), most)
}

/// The order of offsets for `cowhand bench`.
fn access(load: &Load) -> Vec<String> {
    let words = |words: &[&str]| words.iter().map(|&word| word.to_owned()).collect();
    // What QEMU's shuffled disk does not reach, we leave out too.
    let behind_head = vdi::data_offset(load.disk_bytes).to_string();
    match load.access {
        Access::Steps { offset, step } => words(&["-o", &offset.to_string(), "-S", &step.to_string()]),
        Access::Random => words(&["--access", "random", "-o", &behind_head]),
        Access::RandomCovered => words(&["-S", &wide_step(load).to_string()]),
        Access::Allocating { cluster_bytes } => {
            let behind_head = vdi::data_offset(load.disk_bytes).next_multiple_of(cluster_bytes).to_string();
            words(&["--access", "allocating", "-o", &behind_head, "-S", &cluster_bytes.to_string()])
        }
    }
}

/// The image as `cowhand bench` takes it.
fn drive(load: &Load) -> String {
    let mut drive =
        format!("driver={},file={}", load.format, load.image.display().to_string().replace(',', ",,"));
    for (name, value) in &load.options {
        let text = value.as_str().map_or_else(|| value.to_string(), ToOwned::to_owned);
        drive += &format!(",{name}={text}");
    }
    load.own_options.iter().for_each(|(name, value)| drive += &format!(",{name}={value}"));
    drive
}

/// What `cowhand bench --output json` said.
pub fn report(text: &str) -> Result<Sample, String> {
    let report: Value = serde_json::from_str(text).map_err(|error| format!("cowhand bench: {error}"))?;
    let figure = |name: &str| report[name].as_f64().unwrap_or(f64::NAN);
    let map = |name: &str| report["map"][name].as_f64().unwrap_or(f64::NAN);
    Ok(Sample {
        rate: figure("requests-per-second"),
        user_us: figure("user-us-per-request"),
        system_us: figure("system-us-per-request"),
        p50_us: figure("p50-us"),
        p99_us: figure("p99-us"),
        p999_us: figure("p999-us"),
        resident_bytes: figure("resident-bytes-max"),
        map_bytes: map("resident-bytes"),
        map_misses: map("misses"),
        requests: figure("requests"),
        seconds: figure("seconds"),
    })
}

/// What one run of `qemu-img bench` took.
#[derive(Clone, Copy, Debug, Default)]
struct Run {
    requests: u64,
    seconds: f64,
    cpu_us: (f64, f64),
    resident_bytes: u64,
}

impl Run {
    fn rate(&self) -> f64 {
        self.requests as f64 / self.seconds.max(0.000_5)
    }

    /// What this run did beyond `before`, which did the same up to a point.
    fn since(&self, before: &Run) -> Sample {
        let requests = (self.requests - before.requests) as f64;
        // The time is given in milliseconds.
        let seconds = (self.seconds - before.seconds).max(0.000_5);
        Sample {
            rate: requests / seconds,
            user_us: (self.cpu_us.0 - before.cpu_us.0) / requests,
            system_us: (self.cpu_us.1 - before.cpu_us.1) / requests,
            p50_us: f64::NAN,
            p99_us: f64::NAN,
            p999_us: f64::NAN,
            resident_bytes: self.resident_bytes as f64,
            map_bytes: f64::NAN,
            map_misses: f64::NAN,
            requests,
            seconds,
        }
    }
}

fn qemu(load: &Load, count: u64) -> Result<Run, String> {
    qemu_from(load, 0, count)
}

/// `count` requests behind the first `skip` ones.
fn qemu_from(load: &Load, skip: u64, count: u64) -> Result<Run, String> {
    let (offset, step, disk_bytes) = steps(load);
    let offset = (offset + u128::from(skip) * u128::from(step)) % u128::from(disk_bytes);
    let mut command = Command::new("qemu-img");
    command.args(["bench", "-q", "-i", "io_uring", "-t", load.mode]);
    command.args(["-c", &count.to_string(), "-d", &load.depth.to_string(), "-s", &load.size.to_string()]);
    command.args(["-o", &offset.to_string(), "-S", &step.to_string()]);
    if load.write {
        command.args(["-w", &format!("--flush-interval={}", load.flush_interval)]);
    }
    command.arg(format!("json:{}", node(load)));
    let outcome = process::run(&mut command)?;
    let seconds = outcome.text.split("completed in ").nth(1).and_then(|rest| rest.split(' ').next());
    let seconds = seconds.and_then(|seconds| seconds.parse().ok());
    let seconds = seconds.ok_or_else(|| format!("qemu-img bench said: {}", outcome.text))?;
    Ok(Run { requests: count, seconds, cpu_us: outcome.cpu_us, resident_bytes: outcome.resident_bytes_max })
}

/// First offset, step and size of the disk that QEMU sees.
fn steps(load: &Load) -> (u128, u64, u64) {
    let shuffled = vdi::disk_bytes_above(load.disk_bytes);
    match load.access {
        Access::Steps { offset, step } => (u128::from(offset), step, load.disk_bytes),
        // One block and one request further each time: the next block in the shuffled order, and
        // another place in it in the next round through all blocks.
        Access::Random => (0, vdi::BLOCK_BYTES + load.size, shuffled),
        Access::RandomCovered => (0, wide_step(load), load.disk_bytes),
        Access::Allocating { cluster_bytes } => {
            (0, vdi::BLOCK_BYTES + cluster_bytes % vdi::BLOCK_BYTES + load.size, shuffled)
        }
    }
}

/// The golden section spreads steps evenly, at any number of them.
fn wide_step(load: &Load) -> u64 {
    let places = load.disk_bytes.min(STEP_BYTES_MAX) / load.size;
    ((places as f64 * 0.618_034) as u64 | 1) * load.size
}

/// The image as QEMU takes it.
fn node(load: &Load) -> Value {
    let mut node = json!({
        "driver": load.format,
        "file": {"driver": "file", "filename": load.image.display().to_string()},
    });
    for (name, value) in &load.options {
        node[*name] = value.clone();
    }
    match load.access {
        Access::Steps { .. } | Access::RandomCovered => node,
        Access::Random | Access::Allocating { .. } => json!({"driver": "vdi", "file": node}),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn load() -> Load {
        Load::random_reads("/d/i,1.qcow2".into(), 40 << 30)
    }

    #[test]
    fn both_programs_get_the_same_options() {
        let load = load().with_cache(1 << 20, 4096, 65_536);
        assert_eq!(
            drive(&load),
            "driver=qcow2,file=/d/i,,1.qcow2,l2-cache-size=1048576,l2-cache-entry-size=4096"
        );
        let node = node(&load);
        assert_eq!((&node["driver"], &node["file"]["l2-cache-size"]), (&json!("vdi"), &json!(1_048_576)));
    }

    #[test]
    fn a_cache_that_covers_the_disk_needs_no_shuffled_one() {
        let covered = load().with_cache(5 << 20, 4096, 65_536);
        assert_eq!((covered.access, covered.warm_up), (Access::RandomCovered, 5120));
        assert_eq!(node(&covered)["driver"], json!("qcow2"));
        let (_, step, disk) = steps(&covered);
        assert!(step % 4096 == 0 && (step / 4096) % 2 == 1 && step < disk);
    }

    #[test]
    fn random_steps_of_qemu_never_cross_a_block() {
        let (_, step, disk) = steps(&load());
        let offsets = (0..10_000u64).map(|request| request * step % disk);
        assert!(offsets.into_iter().all(|offset| offset % vdi::BLOCK_BYTES <= vdi::BLOCK_BYTES - 4096));
    }

    #[test]
    fn a_warm_up_run_is_taken_off() {
        let before = Run { requests: 100, seconds: 1.0, cpu_us: (50.0, 100.0), resident_bytes: 5 };
        let after = Run { requests: 300, seconds: 2.0, cpu_us: (250.0, 300.0), resident_bytes: 6 };
        let Sample { rate, user_us, system_us, resident_bytes, .. } = after.since(&before);
        assert_eq!((rate, user_us, system_us, resident_bytes), (200.0, 1.0, 1.0, 6.0));
    }

    #[test]
    fn cowhand_s_report_is_understood() {
        let sample = report(r#"{"requests-per-second": 5, "map": {"misses": 2}}"#).unwrap();
        assert_eq!((sample.rate, sample.map_misses), (5.0, 2.0));
        assert!(sample.p50_us.is_nan() && report("nonsense").is_err());
    }
}
