//! Table M: the vhost-user-blk door, beside the export of QEMU's storage daemon.

use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use black_box::virtio_driver::{Guest, Load, NO_ANSWER, Ways};

use super::GIB;
use super::cache_size::chart;
use crate::bench::Bench;
use crate::bench::fio;
use crate::bench::image::{Shape, check, filled};
use crate::bench::sample::{Pair, Sample, Series, in_rounds};
use crate::bench::server::Daemon;
use crate::bench::table::{Form, Table, Verdict, compared, heads, number};

const DISK_BYTES: u64 = GIB;
/// Nothing is allocated in it: each write of 4 KiB needs a cluster, mostly.
const EMPTY_BYTES: u64 = 16 * GIB;

/// A program that serves a disk to a guest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Program {
    Cowhand,
    Qemu,
}

/// One row.
#[derive(Clone, Copy, Debug)]
pub(super) struct Case {
    pub(super) write: bool,
    pub(super) depth: usize,
    pub(super) queues: usize,
}

impl Case {
    /// Of QEMU's rate.
    fn rate_min(self) -> f64 {
        match (self.write, self.depth) {
            (true, _) => 1.2,
            (false, 1) => 1.5,
            (false, _) => 2.0,
        }
    }
}

/// Table M.
pub fn run(bench: &Bench) -> Result<Table, String> {
    let (image, raw) = (bench.path("m.qcow2"), bench.path("m.raw"));
    filled("qcow2", &image)?;
    filled("raw", &raw)?;
    let mut pairs = Vec::new();
    for case in cases(bench.effort.quick) {
        let mut pair = Pair::default();
        in_rounds(bench.effort.rounds, &mut pair, |pair, round| {
            pair.ours.0.push(measure(bench, Program::Cowhand, &image, case, DISK_BYTES, round)?);
            pair.theirs.0.push(measure(bench, Program::Qemu, &image, case, DISK_BYTES, round)?);
            pair.limit.0.push(limit(bench, &raw, case, round)?);
            Ok(())
        })?;
        pairs.push((case, pair));
    }
    check(&image)?;
    let allocating = allocating(bench)?;
    let named: Vec<(String, &Pair)> = pairs
        .iter()
        .map(|(case, pair)| (name(*case), pair))
        .chain(allocating.iter().map(|(name, pair)| (name.clone(), pair)))
        .collect();
    let verdicts = pairs.iter().flat_map(|(case, pair)| {
        let what = format!("M: {}", name(*case));
        [
            Verdict::at_least_or_limit(what.clone(), pair.rate_ratio(), case.rate_min(), pair.of_limit()),
            Verdict::at_most(
                format!("{what}, CPU"),
                pair.ratio(Sample::cpu_us),
                if case.write { 0.9 } else { 1.0 },
                " x",
            ),
        ]
    });
    Ok(Table {
        id: "M",
        title: "a virtual machine's disk over vhost-user-blk".to_owned(),
        about: format!(
            "The driver of the crate virtio-driver as a guest without a machine, a thread a queue, which sleeps while nothing is answered; depth is that of each queue. 4 KiB at \
            random places of 1 GiB of real data, page cache; beside qemu-storage-daemon with aio=io_uring and an iothread. The limit is what fio \
            (io_uring, as many jobs as queues) does on a raw file of the same bytes. CPU time is the server's. The last rows write to an empty disk of {} GiB, where most writes allocate: over vhost-user-blk such a write is answered when the kernel has its map entry, too, \
            so that kill -9 of the server loses nothing that was answered; QEMU's export answers from memory and loses it. Over NBD a client notices the end of its server, \
            and no write waits; that row's client is fio on both sides.",
            EMPTY_BYTES / GIB
        ),
        columns: heads(&["case"]),
        rows: named
            .iter()
            .map(|(name, pair)| std::iter::once(name.clone()).chain(compared(pair)).collect())
            .collect(),
        charts: vec![chart("4 KiB requests per second over vhost-user-blk".to_owned(), Form::Bars, &named)],
        verdicts: verdicts.chain(cost_of_commits(&allocating)).collect(),
    })
}

fn cases(quick: bool) -> Vec<Case> {
    let mut cases = Vec::new();
    for write in [false, true] {
        for queues in [1, 2, 4] {
            cases.extend([1, 16, 64].map(|depth| Case { write, depth, queues }));
        }
    }
    cases.retain(|case| !quick || (case.depth == 16 && case.queues == 1));
    cases
}

fn name(Case { write, depth, queues }: Case) -> String {
    let (kind, s) = (if write { "writes" } else { "reads" }, if queues == 1 { "" } else { "s" });
    format!("{kind}, {queues} queue{s}, depth {depth}")
}

/// One server and one guest.
pub(super) fn measure(
    bench: &Bench,
    program: Program,
    image: &Path,
    Case { write, depth, queues }: Case,
    disk_bytes: u64,
    round: u32,
) -> Result<Sample, String> {
    let load = Load {
        write,
        depth,
        sequential: false,
        disk_bytes,
        time: Duration::from_secs_f64(bench.effort.seconds),
        seed: u64::from(round) + 1,
    };
    match guest(&serve(bench, program, image, queues)?, queues, load) {
        // QEMU 11.1.3 leaves requests of four queues of depth 64 without an answer in most rounds, which others stand for.
        Err(error) if program == Program::Qemu && error == NO_ANSWER => {
            println!("{program:?}, {queues} queues, {load:?}: {error}");
            Ok(Sample { rate: f64::NAN, system_us: f64::NAN, ..Sample::default() })
        }
        measured => measured,
    }
}

/// The same by fio on a file.
fn limit(
    bench: &Bench,
    raw: &Path,
    Case { write, depth, queues }: Case,
    round: u32,
) -> Result<Sample, String> {
    let number = |of: usize| u32::try_from(of).map_err(|error| error.to_string());
    let load = fio::Load {
        rw: if write { "randwrite" } else { "randread" },
        block: "4k",
        depth: number(depth)?,
        jobs: number(queues)?,
        disk_bytes: DISK_BYTES,
    };
    fio::sample_of_file(bench, raw, load, false, round)
}

/// The socket's name is there before the server listens.
fn connect(daemon: &Daemon, ways: Ways) -> Result<Guest, String> {
    let start = Instant::now();
    loop {
        match Guest::connect(daemon.socket(), ways) {
            Err(_) if start.elapsed() < Duration::from_secs(5) => {
                std::thread::sleep(Duration::from_millis(5))
            }
            connected => return connected,
        }
    }
}

/// A guest at a server's socket, and what its requests cost the server.
pub(super) fn guest(daemon: &Daemon, queues: usize, load: Load) -> Result<Sample, String> {
    let mut guest = connect(daemon, Ways { queues, packed: false, event_index: true })?;
    guest.run(Load { time: Duration::from_millis(20), ..load })?;
    let before = daemon.cpu_seconds();
    let found = guest.run(Load { seed: load.seed + 100, ..load })?;
    Ok(Sample::of_server(found.requests as f64, found.seconds, daemon.cpu_seconds() - before))
}

fn serve(bench: &Bench, program: Program, image: &Path, queues: usize) -> Result<Daemon, String> {
    let socket = bench.path("m.sock");
    let (image, shown) = (image.display(), socket.display());
    let command = match program {
        Program::Cowhand => {
            let mut command = Command::new(&bench.cowhand);
            command.args(["serve", "--vhost-user-blk"]).arg(&socket).arg(format!("file={image}"));
            command
        }
        Program::Qemu => {
            let mut command = Command::new("qemu-storage-daemon");
            let export = format!(
                "type=vhost-user-blk,id=e,node-name=d,addr.type=unix,addr.path={shown},writable=on,num-queues={queues},iothread=t"
            );
            command.args(["--object", "iothread,id=t", "--blockdev"]);
            command.arg(format!("driver=file,node-name=f,filename={image},aio=io_uring"));
            command.args(["--blockdev", "driver=qcow2,node-name=d,file=f", "--export", &export]);
            command
        }
    };
    Daemon::start_unasked(command, socket)
}

/// Writes that allocate: over vhost-user-blk beside QEMU's, and beside our own NBD server, which answers from memory.
fn allocating(bench: &Bench) -> Result<Vec<(String, Pair)>, String> {
    let mut found = Vec::new();
    for depth in [1, 16, 64] {
        let (mut pair, mut nbd) = (Pair::default(), Pair::default());
        for round in 0..bench.effort.rounds {
            let case = Case { write: true, depth, queues: 1 };
            for program in [Program::Cowhand, Program::Qemu] {
                let image = bench.create("m-empty.qcow2", EMPTY, None)?;
                let sample = measure(bench, program, &image, case, EMPTY_BYTES, round)?;
                check(&image)?;
                if program == Program::Cowhand { &mut pair.ours } else { &mut pair.theirs }.0.push(sample);
            }
            nbd.ours.0.push(*pair.ours.0.last().ok_or("no round")?);
            nbd.theirs.0.push(over_nbd(bench, depth, round)?);
        }
        found.push((format!("allocating writes, depth {depth}"), pair));
        found.push((format!("allocating writes, depth {depth}, beside our NBD server"), nbd));
    }
    Ok(found)
}

const EMPTY: Shape =
    Shape { disk_bytes: EMPTY_BYTES, cluster_bytes: 64 << 10, extended: false, allocated: false };

fn over_nbd(bench: &Bench, depth: usize, round: u32) -> Result<Sample, String> {
    let (image, socket) = (bench.create("m-empty.qcow2", EMPTY, None)?, bench.path("m.sock"));
    let mut command = Command::new(&bench.cowhand);
    command
        .args(["serve", "--export", "bench", "--socket"])
        .arg(&socket)
        .arg(format!("file={}", image.display()));
    let daemon = Daemon::start(command, socket)?;
    let seconds = bench.effort.seconds.ceil() as u32;
    let depth = u32::try_from(depth).map_err(|error| error.to_string())?;
    let load = fio::Load { rw: "randwrite", block: "4k", depth, jobs: 1, disk_bytes: EMPTY_BYTES };
    let uri = format!("nbd+unix:///bench?socket={}", daemon.socket().display());
    let run = || fio::run(&uri, load, seconds, round + 1);
    let sample = fio::sample_of_server(|| daemon.cpu_seconds(), seconds, run)?;
    drop(daemon);
    check(&image)?;
    Ok(sample)
}

/// What the answer after the commit costs, in words: there is no target.
fn cost_of_commits(allocating: &[(String, Pair)]) -> Vec<Verdict> {
    let rate = |series: &Series| number(series.rate());
    let cost = |(name, pair): &(String, Pair)| {
        let found = format!("{} : {}", rate(&pair.ours), rate(&pair.theirs));
        Verdict::unknown(format!("M: {name}"), "none: the price of losing nothing", found)
    };
    allocating.iter().filter(|(name, _)| name.ends_with("NBD server")).map(cost).collect()
}
