//! Table K: limits that hold. In real time, over NBD, QEMU's throttle filter beside ours.

mod clients;
mod servers;

use std::path::Path;
use std::process::Command;

use self::clients::{Counted, Load, Mix, keep_asking, percent};
use self::servers::{Limit, Place, Program, Server};
use super::Bench;
use super::table::{Table, Verdict};

/// Bytes of the disk, all written: what QEMU does with holes is a row of its own.
const DISK_BYTES: u64 = 64 << 20;

/// How much is measured.
#[derive(Clone, Copy, Debug)]
struct Extent {
    /// Seconds of each measurement, after the first.
    seconds: u32,
    /// A third of the cases: reads one at a time, writes and both at depth 32.
    quick: bool,
}

const HEADS: [&str; 9] = [
    "limit",
    "requests",
    "depth",
    "requests/s",
    "mean is off by",
    "worst second",
    "QEMU: mean",
    "QEMU: worst second",
    "CPU us/request, ours : QEMU's",
];

/// A case counts if the machine does so many times its limit without one: a rate that is barely reached
/// says more about the neighbours than about the limit.
const FREE_TIMES_MIN: f64 = 1.2;

/// A limit that is to be kept, and the size of requests that meet it.
const LIMITS: [(&str, u64, u32); 7] = [
    ("iops-total", 100, 4096),
    ("iops-total", 1_000, 4096),
    ("iops-total", 10_000, 4096),
    ("iops-total", 30_000, 4096),
    ("bps-total", 1 << 20, 4096),
    ("bps-total", 10 << 20, 16 << 10),
    ("bps-total", 100 << 20, 64 << 10),
];

/// Table K. `--seconds 30` is what the targets speak of.
pub fn run(bench: &Bench) -> Result<Table, String> {
    let place = Place { cowhand: &bench.cowhand, directory: &bench.images };
    // At least three whole seconds: a deviation of one is nothing else.
    let extent = Extent { seconds: (bench.effort.seconds as u32).max(3), quick: bench.effort.quick };
    let image = place.directory.join("throttle.qcow2");
    create(&image, DISK_BYTES, true)?;
    let mut rows = Vec::new();
    let mut worst = Worst::default();
    for mix in Mix::ALL {
        for depth in [1, 32] {
            if extent.quick && (depth == 1) != (mix == Mix::Reads) {
                continue;
            }
            rows.extend(accuracy(&place, &image, (mix, depth), extent, &mut worst)?);
        }
    }
    let mut verdicts = vec![
        Verdict::at_most("mean rate off its limit, worst case", worst.mean, 0.5, " %"),
        Verdict::at_most("one second off its limit, worst case", worst.second, 2.0, " %"),
    ];
    verdicts.extend(overhead(&place, &image, extent)?);
    verdicts.extend(holes(&place, extent)?);
    for members in [2, 8] {
        verdicts.push(shares(&place, members, extent)?);
    }
    Ok(Table {
        id: "K",
        title: "limits".to_owned(),
        about: format!(
            "A client over NBD that always asks for more, for {} s after the first (in which the first bucket goes), \
             QEMU's throttle filter in a qemu-storage-daemon beside it. Where the machine does not reach the limit \
             without one, that rate is in parentheses, and the case does not count.",
            extent.seconds
        ),
        columns: HEADS.map(str::to_owned).into(),
        rows,
        charts: Vec::new(),
        verdicts,
    })
}

/// The largest deviations of cases that the machine is fast enough for, in per cent.
#[derive(Debug, Default)]
struct Worst {
    mean: f64,
    second: f64,
}

fn accuracy(
    place: &Place<'_>,
    image: &Path,
    (mix, depth): (Mix, u32),
    extent: Extent,
    worst: &mut Worst,
) -> Result<Vec<Vec<String>>, String> {
    let mut rows = Vec::new();
    for (name, value, bytes) in LIMITS {
        let load = Load { mix, bytes, depth, span: DISK_BYTES };
        let per_second = if name.starts_with("bps") { value / u64::from(bytes) } else { value } as f64;
        let free = measure(place, Program::Cowhand, image, None, load, 1)?.0.mean();
        let limit = Some((name, value));
        let (ours, our_cpu) = measure(place, Program::Cowhand, image, limit, load, extent.seconds)?;
        let (theirs, their_cpu) = measure(place, Program::Qemu, image, limit, load, extent.seconds)?;
        let reached = free >= FREE_TIMES_MIN * per_second;
        if reached {
            worst.mean = worst.mean.max(percent(ours.mean(), per_second).abs());
            worst.second = worst.second.max(ours.worst_percent(per_second));
        }
        let off = |counted: &Counted| format!("{:+.2} %", percent(counted.mean(), per_second));
        let note = if reached { String::new() } else { format!(" ({free:.0})") };
        let row = vec![
            format!("{name}={value}"),
            format!("{} of {} KiB", mix.name(), bytes >> 10),
            depth.to_string(),
            format!("{:.1}{note}", ours.mean()),
            off(&ours),
            format!("{:.2} %", ours.worst_percent(per_second)),
            off(&theirs),
            format!("{:.2} %", theirs.worst_percent(per_second)),
            format!("{our_cpu:.1} : {their_cpu:.1}"),
        ];
        println!("{}", row.join(" | "));
        rows.push(row);
    }
    Ok(rows)
}

/// What a client gets, and the server's CPU microseconds for each request.
fn measure(
    place: &Place<'_>,
    program: Program,
    image: &Path,
    limit: Limit,
    load: Load,
    seconds: u32,
) -> Result<(Counted, f64), String> {
    let server = Server::start(place, program, image, limit)?;
    let counted = keep_asking(&server.socket, "bench", load, seconds)?;
    let cpu_us = server.cpu_seconds() * 1e6 / counted.latencies_us.len().max(1) as f64;
    Ok((counted, cpu_us))
}

/// What two runs of the same thing differ by in their p99.
const NOISE_PERCENT: f64 = 10.0;

/// What a limit costs that is never reached: alone, and shared by 64 disks.
fn overhead(place: &Place<'_>, image: &Path, extent: Extent) -> Result<Vec<Verdict>, String> {
    const UNREACHED: &str = ",throttling.iops-total=1000000000,throttling.bps-total=1000000000000";
    let others: Vec<String> = (1..64).map(|number| format!("member{number}.qcow2")).collect();
    let mut drives = Vec::new();
    for other in &others {
        let path = place.directory.join(other);
        create(&path, 1 << 20, false)?;
        drives.push(format!("file={},throttling.group=g", path.display()));
    }
    let drive = |rest: &str| format!("file={},id=bench{rest}", image.display());
    let grouped = [vec![drive(&format!("{UNREACHED},throttling.group=g"))], drives].concat();
    let settings = [vec![drive("")], vec![drive(UNREACHED)], grouped];
    let mut rows = Vec::new();
    for depth in [1, 32] {
        let load = Load { mix: Mix::Reads, bytes: 4096, depth, span: DISK_BYTES };
        let (mut cpu, mut p99) = ([const { Vec::new() }; 3], [const { Vec::new() }; 3]);
        for _ in 0..if extent.quick { 3 } else { 7 } {
            for (index, drives) in settings.iter().enumerate() {
                let server = Server::cowhand(place, drives)?;
                let before = server.cpu_seconds();
                let counted = keep_asking(&server.socket, "bench", load, 1)?;
                let requests = counted.latencies_us.len() as f64;
                cpu[index].push((server.cpu_seconds() - before) * 1e6 / requests);
                p99[index].push(counted.quantile_us(990));
            }
        }
        let (cpu, p99) = (cpu.map(median), p99.map(median));
        let more = |index: usize| percent(cpu[index], cpu[0]);
        let case = |what: &str| format!("{what}, depth {depth}");
        rows.push(Verdict::at_most(case("CPU that an unreached limit takes more"), more(1), 2.0, " %"));
        rows.push(Verdict::at_most(case("the same in a group of 64"), more(2), 5.0, " %"));
        let slower = percent(p99[1], p99[0]);
        rows.push(Verdict::at_most(case("p99 below the limit, longer by"), slower, NOISE_PERCENT, " %"));
    }
    for other in others {
        let path = place.directory.join(other);
        std::fs::remove_file(&path).map_err(|error| format!("{}: {error}", path.display()))?;
    }
    Ok(rows)
}

/// Reads of an image in which nothing was ever written.
fn holes(place: &Place<'_>, extent: Extent) -> Result<Vec<Verdict>, String> {
    let image = place.directory.join("holes.qcow2");
    create(&image, DISK_BYTES, false)?;
    let load = Load { mix: Mix::Reads, bytes: 4096, depth: 32, span: DISK_BYTES };
    let limit = Some(("iops-total", 100));
    let ours = measure(place, Program::Cowhand, &image, limit, load, extent.seconds)?.0;
    let theirs = measure(place, Program::Qemu, &image, limit, load, extent.seconds)?.0;
    std::fs::remove_file(&image).map_err(|error| format!("{}: {error}", image.display()))?;
    println!("reads of holes under iops-total=100: ours {:.1}, QEMU's {:.1}", ours.mean(), theirs.mean());
    let off = percent(ours.mean(), 100.0).abs();
    Ok(vec![Verdict::at_most("reads of holes under iops-total=100, off by", off, 0.5, " %")])
}

/// Disks of one group that all want more than there is.
fn shares(place: &Place<'_>, members: usize, extent: Extent) -> Result<Verdict, String> {
    let images: Vec<_> =
        (0..members).map(|number| place.directory.join(format!("m{number}.qcow2"))).collect();
    let mut drives = Vec::new();
    for image in &images {
        create(image, 1 << 20, false)?;
        drives.push(format!("file={},throttling.iops-total=4000,throttling.group=g", image.display()));
    }
    let server = Server::cowhand(place, &drives)?;
    let load = Load { mix: Mix::Mixed, bytes: 4096, depth: 8, span: 1 << 20 };
    let (socket, seconds) = (&server.socket, extent.seconds);
    let counted: Result<Vec<Counted>, String> = std::thread::scope(|scope| {
        let ask = |number: usize| move || keep_asking(socket, &format!("m{number}"), load, seconds);
        let clients: Vec<_> = (0..members).map(|number| scope.spawn(ask(number))).collect();
        let joined = clients.into_iter().map(|client| client.join());
        joined.map(|result| result.map_err(|_| "a client panicked".to_owned()).flatten()).collect()
    });
    drop(server);
    for image in &images {
        std::fs::remove_file(image).map_err(|error| format!("{}: {error}", image.display()))?;
    }
    let means: Vec<f64> = counted?.iter().map(Counted::mean).collect();
    let (least, most) =
        means.iter().fold((f64::INFINITY, 0.0_f64), |(low, high), &mean| (low.min(mean), high.max(mean)));
    let what = format!("largest over smallest part of {members} equal members under iops-total=4000");
    Ok(Verdict::at_most(what, most / least, 1.03, ""))
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(f64::NAN)
}

fn create(image: &Path, bytes: u64, filled: bool) -> Result<(), String> {
    let path = image.display().to_string();
    command("qemu-img", &["create", "-q", "-f", "qcow2", &path, &bytes.to_string()])?;
    if filled {
        command("qemu-io", &["-f", "qcow2", "-c", &format!("write -q -P 5 0 {bytes}"), &path])?;
    }
    Ok(())
}

fn command(program: &str, arguments: &[&str]) -> Result<(), String> {
    let output = Command::new(program).args(arguments).output();
    let output = output.map_err(|error| format!("cannot run {program}: {error}"))?;
    match output.status.success() {
        true => Ok(()),
        false => {
            Err(format!("{program} {}: {}", arguments.join(" "), String::from_utf8_lossy(&output.stderr)))
        }
    }
}
