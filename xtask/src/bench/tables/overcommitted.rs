//! Table T: every door on a host whose processors have other work.

use std::path::Path;
use std::process::{Child, Command};

use super::GIB;
use super::cache_size::chart;
use super::files::{Contender, Mounted};
use super::machine::{self, Case, Program};
use crate::bench::Bench;
use crate::bench::fio::{self, Engine};
use crate::bench::image::{check, filled};
use crate::bench::process::{self, Running};
use crate::bench::sample::{Pair, Sample, in_rounds};
use crate::bench::server::{Kind, Served, Server};
use crate::bench::table::{Form, Table, Verdict, compared, heads};

const DISK_BYTES: u64 = GIB;
/// Programs that compute all the time.
const BUSY: [usize; 3] = [0, 2, 3];

/// Where clients come in, with the requests that each has in flight.
#[derive(Clone, Copy, Debug)]
enum Door {
    Nbd { depth: u32, clients: u32 },
    VhostUserBlk { depth: usize },
    Fuse { depth: u32 },
}

const DOORS: [Door; 8] = [
    Door::Nbd { depth: 1, clients: 1 },
    Door::Nbd { depth: 16, clients: 1 },
    Door::Nbd { depth: 16, clients: 4 },
    Door::VhostUserBlk { depth: 1 },
    Door::VhostUserBlk { depth: 16 },
    Door::VhostUserBlk { depth: 64 },
    Door::Fuse { depth: 1 },
    Door::Fuse { depth: 16 },
];

/// Table T.
pub fn run(bench: &Bench) -> Result<Table, String> {
    let image = bench.path("t.qcow2");
    filled("qcow2", &image)?;
    let mut pairs = Vec::new();
    for door in DOORS.into_iter().filter(|door| !bench.effort.quick || door.depth() == 16) {
        for busy in BUSY {
            let _loops = (0..busy).map(|_| Busy::start()).collect::<Result<Vec<_>, _>>()?;
            let mut pair = Pair::default();
            in_rounds(bench.effort.rounds, &mut pair, |pair, round| {
                pair.ours.0.push(door.measure(bench, Program::Cowhand, &image, round)?);
                pair.theirs.0.push(door.measure(bench, Program::Qemu, &image, round)?);
                Ok(())
            })?;
            pairs.push((format!("{}, {busy} busy", door.name()), pair));
        }
    }
    check(&image)?;
    let named: Vec<(String, &Pair)> = pairs.iter().map(|(name, pair)| (name.clone(), pair)).collect();
    Ok(Table {
        id: "T",
        title: "doors beside programs that compute".to_owned(),
        about: "4 KiB random reads of 1 GiB of real data in the page cache, through every door, beside so many programs that compute all the time; \
            the client runs on the same processors. The rivals are qemu-nbd and qemu-storage-daemon with aio=io_uring, for vhost-user-blk with an \
            iothread. CPU time is the server's."
            .to_owned(),
        columns: heads(&["case"]),
        rows: named.iter().map(|(name, pair)| std::iter::once(name.clone()).chain(compared(pair)).collect()).collect(),
        charts: vec![chart("Reads per second beside busy programs".to_owned(), Form::Bars, &named)],
        verdicts: named
            .iter()
            .map(|(name, pair)| Verdict::at_least(format!("T: {name}"), pair.rate_ratio(), 1.0, " x"))
            .collect(),
    })
}

impl Door {
    fn depth(self) -> usize {
        match self {
            Self::Nbd { depth, .. } | Self::Fuse { depth } => depth as usize,
            Self::VhostUserBlk { depth } => depth,
        }
    }

    fn name(self) -> String {
        match self {
            Self::Nbd { depth, clients: 1 } => format!("NBD, depth {depth}"),
            Self::Nbd { depth, clients } => format!("NBD, {clients} clients, depth {depth}"),
            Self::VhostUserBlk { depth } => format!("vhost-user-blk, depth {depth}"),
            Self::Fuse { depth } => format!("FUSE, depth {depth}"),
        }
    }

    fn measure(self, bench: &Bench, program: Program, image: &Path, round: u32) -> Result<Sample, String> {
        let is_ours = program == Program::Cowhand;
        let load =
            |depth, jobs| fio::Load { rw: "randread", block: "4k", depth, jobs, disk_bytes: DISK_BYTES };
        let seconds = bench.effort.seconds.ceil() as u32;
        match self {
            Self::Nbd { depth, clients } => {
                let kind = if is_ours { Kind::Cowhand } else { Kind::QemuNbd };
                let served = Served { image, raw: Path::new(""), direct: false, options: "", password: None };
                let server = Server::start(bench, kind, &served)?;
                let run = || fio::run(&server.uri(), load(depth, clients), seconds, round + 1);
                fio::sample_of_server(|| server.cpu_seconds(), seconds, run)
            }
            Self::VhostUserBlk { depth } => {
                let case = Case { write: false, depth, queues: 1 };
                machine::measure(bench, program, image, case, DISK_BYTES, round)
            }
            Self::Fuse { depth } => {
                let contender = if is_ours { Contender::Ours } else { Contender::Theirs };
                let mounted = Mounted::start(bench, contender, image, Path::new(""))?;
                let engine = Engine { name: "libaio", direct: true };
                let load = load(depth, 1);
                let run = || fio::run_on_file(&mounted.file, load, engine, seconds, round + 1);
                fio::sample_of_server(|| mounted.cpu_seconds(), seconds, run)
            }
        }
    }
}

/// A program that computes until this is dropped.
struct Busy {
    child: Child,
    _running: Running,
}

impl Busy {
    fn start() -> Result<Self, String> {
        let (child, running) = process::spawn(Command::new("sh").args(["-c", "while :; do :; done"]))?;
        Ok(Self { child, _running: running })
    }
}

impl Drop for Busy {
    fn drop(&mut self) {
        // One that has ended already needs no end.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
