//! Table N: disks as files.

use std::path::{Path, PathBuf};
use std::process::Command;

use super::GIB;
use crate::bench::Bench;
use crate::bench::fio::{self, Engine, Load};
use crate::bench::image::{check, filled};
use crate::bench::sample::{Pair, Sample, Series, in_rounds};
use crate::bench::server::Daemon;
use crate::bench::table::{Table, Verdict, number};

const DISK_BYTES: u64 = GIB;

/// What is to be reached against qemu-storage-daemon.
const RATE_MIN: f64 = 1.3;

/// Whose file it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Contender {
    Ours,
    Theirs,
    /// The raw file below no FUSE at all: what is lost.
    Nobody,
}

const CONTENDERS: [Contender; 3] = [Contender::Ours, Contender::Theirs, Contender::Nobody];

/// One load.
struct Case {
    name: &'static str,
    load: Load,
}

const fn case(name: &'static str, rw: &'static str, depth: u32, jobs: u32) -> Case {
    Case { name, load: Load { rw, block: "4k", depth, jobs, disk_bytes: DISK_BYTES } }
}

const CASES: [Case; 6] = [
    case("4 KiB random reads, depth 1", "randread", 1, 1),
    case("4 KiB random reads, depth 16", "randread", 16, 1),
    case("4 KiB random reads, 4 jobs, depth 1", "randread", 1, 4),
    case("4 KiB random reads, 4 jobs, depth 16", "randread", 16, 4),
    case("4 KiB random writes, depth 1", "randwrite", 1, 1),
    case("4 KiB random writes, depth 16", "randwrite", 16, 1),
];

/// A disk that is a file, while this is there.
pub(super) struct Mounted {
    pub(super) file: PathBuf,
    daemon: Option<Daemon>,
}

impl Drop for Mounted {
    fn drop(&mut self) {
        let Some(daemon) = self.daemon.take() else { return };
        drop(daemon);
        // A daemon that is killed may leave its mount.
        let _ = Command::new("umount").arg("-q").arg("-l").arg(&self.file).output();
    }
}

/// Table N.
pub fn run(bench: &Bench) -> Result<Table, String> {
    let (image, raw) = make(bench)?;
    let mut table = Table {
        id: "N",
        title: "disks as files".to_owned(),
        about: "fio (libaio, direct) on a file that is a qcow2 disk: 1 GiB of real data in the page cache, 64 KiB clusters, default caches, `cowhand \
            serve --fuse` beside qemu-storage-daemon's export of type fuse; and, as the limit, fio (io_uring, page cache) on the raw file of the same bytes, by itself. The server's CPU time \
            is in microseconds per request."
            .to_owned(),
        columns: ["case", "file", "cowhand is", "its CPU is", "requests/s", "spread", "server CPU us"]
            .map(str::to_owned)
            .into(),
        ..Table::default()
    };
    for case in &CASES {
        let all = case.measure(bench, &image, &raw)?;
        table.rows.extend(case.rows(&all));
        if let (Some([rate, _]), Some([of_limit, _])) =
            (ratios(&all, Contender::Theirs), ratios(&all, Contender::Nobody))
        {
            let what = format!("N, {}: against qemu-storage-daemon", case.name);
            table.verdicts.push(Verdict::at_least_or_limit(what, rate, RATE_MIN, of_limit));
        }
    }
    check(&image)?;
    Ok(table)
}

/// The image, and the raw file of its bytes.
fn make(bench: &Bench) -> Result<(PathBuf, PathBuf), String> {
    let (image, raw) = (bench.path("n.qcow2"), bench.path("n.raw"));
    filled("qcow2", &image)?;
    filled("raw", &raw)?;
    Ok((image, raw))
}

impl Mounted {
    pub(super) fn start(
        bench: &Bench,
        contender: Contender,
        image: &Path,
        raw: &Path,
    ) -> Result<Self, String> {
        let (file, socket) = (bench.path("n.file"), bench.path("n.sock"));
        let image = image.display();
        let command = match contender {
            Contender::Nobody => return Ok(Self { file: raw.to_owned(), daemon: None }),
            Contender::Ours => {
                let mut command = Command::new(&bench.cowhand);
                command.args(["serve", "--quiet", "--fuse"]).arg(&file).arg("--socket").arg(&socket);
                command.arg(format!("file={image}"));
                command
            }
            Contender::Theirs => {
                let mut command = Command::new("qemu-storage-daemon");
                let blockdev = format!(
                    "driver=qcow2,node-name=d,file.driver=file,file.filename={image},file.aio=io_uring"
                );
                let export = format!("fuse,id=e,node-name=d,mountpoint={},writable=on", file.display());
                let chardev = format!("socket,id=c,path={},server=on,wait=off", socket.display());
                command.args(["--blockdev", &blockdev, "--export", &export, "--chardev", &chardev]);
                command.args(["--monitor", "chardev=c"]);
                command
            }
        };
        std::fs::write(&file, "").map_err(|error| error.to_string())?;
        let daemon = Daemon::start(command, socket)?;
        Ok(Self { file, daemon: Some(daemon) })
    }

    pub(super) fn cpu_seconds(&self) -> f64 {
        self.daemon.as_ref().map_or(0.0, Daemon::cpu_seconds)
    }
}

impl Case {
    /// What each contender did, round by round.
    fn measure(&self, bench: &Bench, image: &Path, raw: &Path) -> Result<Vec<(Contender, Series)>, String> {
        let mut all: Vec<_> =
            CONTENDERS.into_iter().map(|contender| (contender, Series::default())).collect();
        // fio counts in whole seconds.
        let seconds = bench.effort.seconds.ceil() as u32;
        in_rounds(bench.effort.rounds, &mut all, |all, round| {
            for (contender, series) in all {
                let mounted = Mounted::start(bench, *contender, image, raw)?;
                // What a file of FUSE is asked for past the guest's page cache is in the server's.
                let engine = match contender {
                    Contender::Nobody => Engine { name: "io_uring", direct: false },
                    Contender::Ours | Contender::Theirs => Engine { name: "libaio", direct: true },
                };
                let run = || fio::run_on_file(&mounted.file, self.load, engine, seconds, round + 1);
                series.0.push(fio::sample_of_server(|| mounted.cpu_seconds(), seconds, run)?);
            }
            Ok(())
        })?;
        Ok(all)
    }

    fn rows(&self, all: &[(Contender, Series)]) -> Vec<Vec<String>> {
        let row = |(contender, series): &(Contender, Series)| {
            let file = match contender {
                Contender::Ours => "cowhand",
                Contender::Theirs => "qemu-storage-daemon",
                Contender::Nobody => "the raw file itself",
            };
            let ratio = |ratio: f64| format!("{} x", number(ratio));
            let none = || "-".to_owned();
            let (rate, cpu) = match (contender, ratios(all, *contender)) {
                (Contender::Nobody, Some([rate, _])) => (ratio(rate), none()),
                (_, Some([rate, cpu])) => (ratio(rate), ratio(cpu)),
                (_, None) => (none(), none()),
            };
            let spread = format!("{:.0} %", series.spread_percent());
            let cpu_us =
                if *contender == Contender::Nobody { none() } else { number(series.median(Sample::cpu_us)) };
            vec![self.name.to_owned(), file.to_owned(), rate, cpu, number(series.rate()), spread, cpu_us]
        };
        all.iter().map(row).collect()
    }
}

/// Our rate and CPU time in terms of another contender's.
fn ratios(all: &[(Contender, Series)], other: Contender) -> Option<[f64; 2]> {
    let of =
        |wanted| all.iter().find(|(contender, _)| *contender == wanted).map(|(_, series)| series.clone());
    let pair = Pair {
        ours: of(Contender::Ours)?,
        theirs: of(other).filter(|_| other != Contender::Ours)?,
        ..Pair::default()
    };
    Some([pair.rate_ratio(), pair.ratio(Sample::cpu_us)])
}
