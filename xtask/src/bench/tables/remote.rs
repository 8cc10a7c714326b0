//! Table Q: disks on other machines, beside qemu-nbd.

use std::path::Path;
use std::process::Command;

use black_box::Ceph;
use black_box::ceph::Objects;

use super::GIB;
use crate::bench::fio::{self, Load};
use crate::bench::sample::{Pair, Sample, in_rounds};
use crate::bench::server::Daemon;
use crate::bench::table::{Table, Verdict, compared, heads};
use crate::bench::{Bench, process};

const DISK_BYTES: u64 = GIB;
const BLOCK: &str = "4k";

/// Bytes of a disk in Ceph, whose objects are in memory.
const CEPH_BYTES: u64 = 256 << 20;

/// One row.
#[derive(Clone, Copy, Debug)]
struct Case {
    name: &'static str,
    rw: &'static str,
    depth: u32,
    disk_bytes: u64,
    /// Requests a second, of QEMU's.
    rate_min: f64,
    /// CPU time of a request, of QEMU's; none is asked for where this is `None`.
    cpu_max: Option<f64>,
}

impl Case {
    fn load(&self) -> Load {
        Load { rw: self.rw, block: BLOCK, depth: self.depth, jobs: 1, disk_bytes: self.disk_bytes }
    }
}

const NBD: [Case; 2] = [
    Case {
        name: "nbd+unix, reads, depth 1",
        rw: "randread",
        depth: 1,
        disk_bytes: DISK_BYTES,
        rate_min: 1.5,
        cpu_max: None,
    },
    Case {
        name: "nbd+unix, reads, depth 16",
        rw: "randread",
        depth: 16,
        disk_bytes: DISK_BYTES,
        rate_min: 2.0,
        cpu_max: None,
    },
];

const CEPH: [Case; 2] = [
    Case {
        name: "rbd, reads, depth 16",
        rw: "randread",
        depth: 16,
        disk_bytes: CEPH_BYTES,
        rate_min: 1.0,
        cpu_max: Some(0.5),
    },
    Case {
        name: "rbd, writes, depth 16",
        rw: "randwrite",
        depth: 16,
        disk_bytes: CEPH_BYTES,
        rate_min: 1.0,
        cpu_max: Some(0.5),
    },
];

/// Table Q.
pub fn run(bench: &Bench) -> Result<Table, String> {
    let mut pairs = Vec::new();
    let origin = origin(bench)?;
    let far = format!("nbd+unix:///far?socket={}", origin.socket().display());
    for case in NBD {
        pairs.push((
            case,
            measured(
                bench,
                case,
                &far,
                || Ok(()),
                |load, seconds, seed| fio::run(&far, load, seconds, seed),
            )?,
        ));
    }
    drop(origin);
    let ceph = Ceph::start(Objects::Memory);
    ceph.rbd(["create", "-s", "256M", "rbd/disk"]);
    let far = ceph.name("disk");
    // Before each run: an OSD in memory keeps what is written as pieces, and each write of a small one is slower than the one before.
    let fill = || {
        let fill = format!("write -q -P 5 0 {CEPH_BYTES}");
        process::run(Command::new("qemu-io").args(["-f", "raw", "-c", &fill]).arg(&far))
    };
    for case in CEPH {
        pairs.push((
            case,
            measured(bench, case, &far, fill, |load, seconds, seed| {
                fio::run_on_rbd(&ceph.conf(), load, seconds, seed)
            })?,
        ));
    }
    drop(ceph);
    let verdicts = pairs.iter().flat_map(|(case, pair)| {
        let what = format!("Q: {}", case.name);
        let cpu = case.cpu_max.map(|max| {
            Verdict::at_most(format!("{what}, CPU of the server"), pair.ratio(Sample::cpu_us), max, " x")
        });
        [Some(Verdict::at_least_or_limit(what, pair.rate_ratio(), case.rate_min, pair.of_limit())), cpu]
            .into_iter()
            .flatten()
    });
    let row = |(case, pair): &(Case, Pair)| {
        std::iter::once(case.name.to_owned()).chain(compared(pair)).collect::<Vec<_>>()
    };
    Ok(Table {
        id: "Q",
        title: "disks on other machines".to_owned(),
        about: "fio's nbd engine at a server whose disk is elsewhere, `cowhand serve` beside qemu-nbd; 4 KiB at random places, all on one machine. \
            nbd+unix: 1 GiB of real data in the page cache of another qemu-nbd. rbd: 256 MiB in a Ceph of one monitor and one OSD, objects in memory; librbd \
            works in a process of its own under cowhand, whose CPU time is not counted here, and within qemu-nbd. The limit is fio itself at the far server, \
            by its engines nbd and rbd."
            .to_owned(),
        columns: heads(&["case"]),
        rows: pairs.iter().map(row).collect(),
        verdicts: verdicts.collect(),
        ..Table::default()
    })
}

/// The server that has the disk.
fn origin(bench: &Bench) -> Result<Daemon, String> {
    let (raw, socket) = (bench.path("q.raw"), bench.path("far.sock"));
    process::run(Command::new("qemu-img").args(["create", "-q", "-f", "raw"]).arg(&raw).arg("1G"))?;
    let fill = format!("write -q -P 9 0 {DISK_BYTES}");
    process::run(Command::new("qemu-io").args(["-f", "raw", "-c", &fill]).arg(&raw))?;
    let mut command = Command::new("qemu-nbd");
    command.args(["-t", "-f", "raw", "-x", "far", "-e", "16", "--aio=io_uring", "-k"]).arg(&socket).arg(&raw);
    Daemon::start(command, socket)
}

fn measured<T>(
    bench: &Bench,
    case: Case,
    far: &str,
    prepare: impl Fn() -> Result<T, String>,
    limit: impl Fn(Load, u32, u32) -> Result<fio::Outcome, String>,
) -> Result<Pair, String> {
    let mut pair = Pair::default();
    in_rounds(bench.effort.rounds, &mut pair, |pair, round| {
        prepare()?;
        pair.ours.0.push(sample(bench, case, round, |socket| ours(bench, far, socket))?);
        prepare()?;
        pair.theirs.0.push(sample(bench, case, round, |socket| theirs(far, socket))?);
        prepare()?;
        let rate = limit(case.load(), bench.effort.seconds.ceil() as u32, round + 1)?.iops;
        pair.limit.0.push(Sample { rate, ..Sample::default() });
        Ok(())
    })?;
    Ok(pair)
}

fn ours(bench: &Bench, far: &str, socket: &Path) -> Command {
    let mut command = Command::new(&bench.cowhand);
    command.args(["serve", "-f", "raw", "--export", "bench", "--socket"]).arg(socket);
    command.arg(format!("file={}", far.replace(',', ",,")));
    command
}

fn theirs(far: &str, socket: &Path) -> Command {
    let mut command = Command::new("qemu-nbd");
    command.args(["-t", "-f", "raw", "-x", "bench", "-k"]).arg(socket).arg(far);
    command
}

fn sample(
    bench: &Bench,
    case: Case,
    round: u32,
    server: impl FnOnce(&Path) -> Command,
) -> Result<Sample, String> {
    let socket = bench.path("q.sock");
    let daemon = Daemon::start(server(&socket), socket)?;
    let uri = format!("nbd+unix:///bench?socket={}", daemon.socket().display());
    let seconds = bench.effort.seconds.ceil() as u32;
    let run = || fio::run(&uri, case.load(), seconds, round + 1);
    fio::sample_of_server(|| daemon.cpu_seconds(), seconds, run)
}
