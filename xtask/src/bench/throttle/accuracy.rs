//! Whether a limit is kept, in the mean and in each second.

use std::path::Path;

use super::clients::{Counted, Load, Mix, SLOTS_PER_SECOND, keep_asking, percent, side_by_side};
use super::servers::{Disk, Limits, Program, serve};
use super::{Answer, DISK_BYTES, Extent, trend};
use crate::bench::Bench;
use crate::bench::table::Verdict;

pub const HEADS: [&str; 10] = [
    "limit",
    "requests",
    "depth",
    "requests/s",
    "mean is off by",
    "worst second",
    "QEMU: mean",
    "QEMU: worst second",
    "CPU us/request, ours : QEMU's",
    "without a limit",
];

/// A case counts if a client gets so many times its limit without one: a rate that is barely reached
/// says more about the machine than about the limit.
pub const FREE_TIMES_MIN: f64 = 1.1;

/// A limit that is to be kept, and the size of requests that meet it.
#[derive(Clone, Copy, Debug)]
struct Case {
    name: &'static str,
    value: u64,
    bytes: u32,
    /// It has the machine for itself.
    heavy: bool,
}

const fn case(name: &'static str, value: u64, bytes: u32, heavy: bool) -> Case {
    Case { name, value, bytes, heavy }
}

const CASES: [Case; 7] = [
    case("iops-total", 100, 4096, false),
    case("iops-total", 1_000, 4096, false),
    case("iops-total", 10_000, 4096, true),
    case("iops-total", 30_000, 4096, true),
    case("bps-total", 1 << 20, 4096, false),
    case("bps-total", 10 << 20, 16 << 10, false),
    case("bps-total", 100 << 20, 64 << 10, true),
];

impl Case {
    /// Requests a second that the limit allows.
    fn per_second(&self) -> f64 {
        let units = if self.name.starts_with("bps") { u64::from(self.bytes) } else { 1 };
        (self.value / units) as f64
    }
}

/// What was found of one program.
#[derive(Clone, Debug)]
struct Measured {
    counted: Counted,
    cpu_us: f64,
}

/// The largest deviations of cases that count, in per cent.
#[derive(Debug, Default)]
struct Worst {
    mean: f64,
    second: f64,
    /// Of all cases: no client may get more than the limit.
    above: f64,
}

pub fn ask(bench: &Bench, image: &Path, extent: Extent) -> Result<Answer, String> {
    let (mut answer, mut worst) = (Answer::default(), Worst::default());
    for mix in Mix::ALL {
        for depth in [1, 32] {
            if extent.quick && (depth == 1) != (mix == Mix::Reads) {
                continue;
            }
            let load = Load { mix, bytes: 4096, depth, span: DISK_BYTES };
            let light = light(bench, image, load, extent)?;
            let light = CASES.iter().filter(|case| !case.heavy).zip(light);
            for (case, found) in light {
                tell(&mut answer, &mut worst, case, load, found, None);
            }
            for case in CASES.iter().filter(|case| case.heavy) {
                let load = Load { bytes: case.bytes, ..load };
                let (found, free) = heavy(bench, image, case, load, extent)?;
                if (mix, depth, case.value) == (Mix::Reads, 32, 10_000) {
                    answer.charts.push(chart(case, &found));
                }
                tell(&mut answer, &mut worst, case, load, found, Some(free));
            }
        }
    }
    answer.verdicts = vec![
        Verdict::at_most("mean rate off its limit, worst case", worst.mean, 0.5, " %"),
        Verdict::at_most("one second off its limit, worst case", worst.second, 2.0, " %"),
        Verdict::at_most("mean rate above its limit, any case", worst.above, 0.5, " %"),
    ];
    Ok(answer)
}

/// All cases that leave the machine idle, and both programs, side by side: each has an image of its own.
fn light(bench: &Bench, image: &Path, load: Load, extent: Extent) -> Result<Vec<[Measured; 2]>, String> {
    let cases: Vec<&Case> = CASES.iter().filter(|case| !case.heavy).collect();
    let mut clients = Vec::new();
    for (number, case) in cases.iter().enumerate() {
        for program in Program::BOTH {
            let name = format!("light{number}-{program:?}");
            let copy = bench.path(&format!("{name}.qcow2"));
            std::fs::copy(image, &copy).map_err(|error| format!("{}: {error}", copy.display()))?;
            let load = Load { bytes: case.bytes, ..load };
            clients.push(move || {
                let found =
                    one(bench, program, &name, &copy, &[(case.name, case.value)], load, extent.light)?;
                super::remove(&copy)?;
                Ok(found)
            });
        }
    }
    let mut found = side_by_side(clients)?.into_iter();
    Ok(std::iter::from_fn(|| Some([found.next()?, found.next()?])).collect())
}

/// One case with the machine for itself, and what a client gets without a limit, before and after.
fn heavy(
    bench: &Bench,
    image: &Path,
    case: &Case,
    load: Load,
    extent: Extent,
) -> Result<([Measured; 2], f64), String> {
    let limits: Limits<'_> = &[(case.name, case.value)];
    let measure = |program, limits, seconds| one(bench, program, "heavy", image, limits, load, seconds);
    let before = measure(Program::Cowhand, &[], 1)?.counted.dependable();
    let ours = measure(Program::Cowhand, limits, extent.heavy)?;
    let after = measure(Program::Cowhand, &[], 1)?.counted.dependable();
    let theirs = measure(Program::Qemu, limits, extent.heavy)?;
    Ok(([ours, theirs], before.min(after)))
}

fn one(
    bench: &Bench,
    program: Program,
    name: &str,
    image: &Path,
    limits: Limits<'_>,
    load: Load,
    seconds: u32,
) -> Result<Measured, String> {
    let server = serve(bench, program, &format!("{name}.sock"), &[Disk::bench(image)], limits)?;
    let before = server.cpu_seconds();
    let counted = keep_asking(server.socket(), "bench", load, seconds)?;
    let cpu_us = (server.cpu_seconds() - before) * 1e6 / counted.requests().max(1.0);
    Ok(Measured { counted, cpu_us })
}

fn tell(
    answer: &mut Answer,
    worst: &mut Worst,
    case: &Case,
    load: Load,
    [ours, theirs]: [Measured; 2],
    free: Option<f64>,
) {
    let wanted = case.per_second();
    let reached = free.is_none_or(|free| free >= FREE_TIMES_MIN * wanted);
    let mean_percent = percent(ours.counted.mean(), wanted);
    worst.above = worst.above.max(mean_percent);
    if reached {
        worst.mean = worst.mean.max(mean_percent.abs());
        worst.second = worst.second.max(ours.counted.worst_percent(wanted));
    }
    let off = |found: &Measured| format!("{:+.2} %", percent(found.counted.mean(), wanted));
    let worst_second = |found: &Measured| format!("{:.2} %", found.counted.worst_percent(wanted));
    let without = match (free, reached) {
        (None, _) => String::new(),
        (Some(free), true) => format!("{free:.0}"),
        (Some(free), false) => format!("{free:.0}: the client could not ask for more"),
    };
    let row = vec![
        format!("{}={}", case.name, case.value),
        format!("{} of {} KiB", load.mix.name(), case.bytes >> 10),
        load.depth.to_string(),
        format!("{:.1}", ours.counted.mean()),
        off(&ours),
        worst_second(&ours),
        off(&theirs),
        worst_second(&theirs),
        format!("{:.1} : {:.1}", ours.cpu_us, theirs.cpu_us),
        without,
    ];
    println!("{}", row.join(" | "));
    answer.rows.push(row);
}

fn chart(case: &Case, [ours, theirs]: &[Measured; 2]) -> crate::bench::table::Chart {
    let tenths = SLOTS_PER_SECOND / 10;
    let rates = |found: &Measured| found.counted.rates(tenths);
    let series = vec![
        ("limit".to_owned(), vec![case.per_second(); rates(ours).len()]),
        ("cowhand".to_owned(), rates(ours)),
        ("QEMU".to_owned(), rates(theirs)),
    ];
    trend("Requests a second under iops-total=10000, reads, depth 32", 100, series)
}
