//! What a limit costs that is never reached: alone, and shared by 64 disks.

use std::path::Path;
use std::process::Command;

use super::clients::{Counted, Load, Mix, keep_asking, percent, side_by_side};
use super::servers::{Disk, Limits, Program, serve};
use super::{Answer, DISK_BYTES, Extent, create, median, remove};
use crate::bench::table::Verdict;
use crate::bench::{Bench, contender, process};

/// What two runs of the same thing differ by in their p99.
const NOISE_PERCENT: f64 = 10.0;

const UNREACHED: Limits<'static> = &[("iops-total", 1_000_000_000), ("bps-total", 1_000_000_000_000)];

const MEMBERS: usize = 64;

pub fn ask(bench: &Bench, image: &Path, extent: Extent) -> Result<Answer, String> {
    let mut verdicts = vec![in_process(bench, image, extent)?];
    for depth in [1, 32] {
        verdicts.extend(one_disk(bench, image, depth, extent)?);
    }
    verdicts.push(members(bench, extent)?);
    Ok(Answer { verdicts, ..Answer::default() })
}

/// CPU time of reads from the page cache, without a door.
fn in_process(bench: &Bench, image: &Path, extent: Extent) -> Result<Verdict, String> {
    let measure = |limits: &str| {
        let mut command = Command::new(&bench.cowhand);
        command.args(["bench", "--output", "json", "-d", "1", "-c", "400000", "--access", "random"]);
        command.arg(format!("file={}{limits}", image.display()));
        contender::report(&process::run(&mut command)?.text).map(|sample| sample.cpu_us())
    };
    let limits: String =
        UNREACHED.iter().map(|(name, value)| format!(",throttling.{name}={value}")).collect();
    let (mut without, mut with) = (Vec::new(), Vec::new());
    for _ in 0..extent.rounds {
        without.push(measure("")?);
        with.push(measure(&limits)?);
    }
    let (without, with) = (median(without), median(with));
    println!("in process, CPU us/request: {without:.3} without a limit, {with:.3} with one out of reach");
    let more = percent(with, without);
    Ok(Verdict::at_most("CPU that an unreached limit takes more, in process", more, 2.0, " %"))
}

/// What one server did.
#[derive(Clone, Copy, Debug)]
struct Cost {
    cpu_us: f64,
    rate: f64,
    p99_us: f64,
}

impl Cost {
    fn medians(all: &[Self]) -> Self {
        let of = |figure: fn(&Self) -> f64| median(all.iter().map(figure).collect());
        Self { cpu_us: of(|cost| cost.cpu_us), rate: of(|cost| cost.rate), p99_us: of(|cost| cost.p99_us) }
    }
}

/// Through the door, ours and QEMU's, with a limit out of reach and without one.
fn one_disk(bench: &Bench, image: &Path, depth: u32, extent: Extent) -> Result<Vec<Verdict>, String> {
    let load = Load { mix: Mix::Reads, bytes: 4096, depth, span: DISK_BYTES };
    let settings: [(Program, Limits<'_>); 4] = [
        (Program::Cowhand, &[]),
        (Program::Cowhand, UNREACHED),
        (Program::Qemu, &[]),
        (Program::Qemu, UNREACHED),
    ];
    let mut costs = [const { Vec::new() }; 4];
    for _ in 0..extent.rounds {
        for (index, (program, limits)) in settings.into_iter().enumerate() {
            let server = serve(bench, program, "unreached.sock", &[Disk::bench(image)], limits)?;
            let before = server.cpu_seconds();
            let counted = keep_asking(server.socket(), "bench", load, 1)?;
            let cpu_us = (server.cpu_seconds() - before) * 1e6 / counted.requests();
            costs[index].push(Cost { cpu_us, rate: counted.mean(), p99_us: counted.quantile_us(990) });
        }
    }
    let [free, limited, qemu_free, qemu_limited] = costs.each_ref().map(|costs| Cost::medians(costs));
    println!(
        "depth {depth}, CPU us/request without and with: ours {:.2} {:.2}, QEMU's {:.2} {:.2}",
        free.cpu_us, limited.cpu_us, qemu_free.cpu_us, qemu_limited.cpu_us
    );
    println!(
        "depth {depth}, requests/s without and with: ours {:.0} {:.0}, QEMU's {:.0} {:.0}",
        free.rate, limited.rate, qemu_free.rate, qemu_limited.rate
    );
    let case = |what: &str| format!("{what}, depth {depth}");
    Ok(vec![
        Verdict::at_most(
            case("slower under an unreached limit by"),
            -percent(limited.rate, free.rate),
            2.0,
            " %",
        ),
        Verdict::at_most(
            case("CPU that an unreached limit takes more"),
            percent(limited.cpu_us, free.cpu_us),
            2.0,
            " %",
        ),
        Verdict::at_most(
            case("p99 below the limit, longer by"),
            percent(limited.p99_us, free.p99_us),
            NOISE_PERCENT,
            " %",
        ),
    ])
}

/// 64 disks that are all in use, in a group and without limits.
fn members(bench: &Bench, extent: Extent) -> Result<Verdict, String> {
    let disk = |number: usize| {
        let image = create(bench, &format!("u{number}.qcow2"), 1 << 20, true)?;
        Ok(Disk { export: format!("u{number}"), image })
    };
    let disks: Vec<Disk> = (0..MEMBERS).map(disk).collect::<Result<_, String>>()?;
    let load = Load { mix: Mix::Reads, bytes: 4096, depth: 1, span: 1 << 20 };
    let (mut free, mut grouped) = (Vec::new(), Vec::new());
    for _ in 0..extent.rounds {
        for (limits, costs) in [(&[][..], &mut free), (UNREACHED, &mut grouped)] {
            let server = serve(bench, Program::Cowhand, "unreached.sock", &disks, limits)?;
            let before = server.cpu_seconds();
            let ask = |disk: &Disk| {
                let (export, server) = (disk.export.clone(), &server);
                move || keep_asking(server.socket(), &export, load, 1)
            };
            let counted = side_by_side(disks.iter().map(ask))?;
            let requests: f64 = counted.iter().map(Counted::requests).sum();
            costs.push((server.cpu_seconds() - before) * 1e6 / requests);
        }
    }
    disks.iter().try_for_each(|disk| remove(&disk.image))?;
    let (free, grouped) = (median(free), median(grouped));
    println!("64 disks, CPU us/request: {free:.2} without limits, {grouped:.2} in a group out of reach");
    let what = "CPU that a group of 64 with an unreached limit takes more";
    Ok(Verdict::at_most(what, percent(grouped, free), 5.0, " %"))
}
