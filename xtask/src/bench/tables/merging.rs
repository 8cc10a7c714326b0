//! Table O: requests that go to the disk as one, beside the same requests one by one.

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use black_box::virtio_driver::Load;

use super::GIB;
use super::machine::guest;
use crate::bench::Bench;
use crate::bench::fio;
use crate::bench::image::{check, filled};
use crate::bench::sample::{Pair, Sample, in_rounds};
use crate::bench::server::Daemon;
use crate::bench::table::{Table, Verdict, number};

const DISK_BYTES: u64 = GIB;
const DEPTH: u32 = 32;

/// A way to the disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Door {
    VhostUserBlk,
    Nbd,
}

/// One row.
#[derive(Clone, Copy, Debug)]
struct Case {
    door: Door,
    write: bool,
    cache: &'static str,
}

/// Table O.
pub fn run(bench: &Bench) -> Result<Table, String> {
    let image = bench.path("o.qcow2");
    filled("qcow2", &image)?;
    let mut pairs = Vec::new();
    for case in cases() {
        // "Theirs" is ours without merging.
        let mut pair = Pair::default();
        in_rounds(bench.effort.rounds, &mut pair, |pair, round| {
            pair.ours.0.push(measure(bench, &image, case, true, round)?);
            pair.theirs.0.push(measure(bench, &image, case, false, round)?);
            Ok(())
        })?;
        pairs.push((name(case), case, pair));
    }
    check(&image)?;
    let row = |(name, _, pair): &(String, Case, Pair)| {
        let cpu = |of: &crate::bench::sample::Series| number(of.median(Sample::cpu_us));
        let factor = format!("**{}**", number(pair.rate_ratio()));
        let rates = [number(pair.ours.rate()), number(pair.theirs.rate())];
        let spread = format!("{:.0} %", pair.ours.spread_percent());
        let [merged, alone] = rates;
        vec![
            name.clone(),
            factor,
            merged,
            spread,
            alone,
            format!("{} : {}", cpu(&pair.ours), cpu(&pair.theirs)),
        ]
    };
    let gains = |(name, case, pair): &(String, Case, Pair)| {
        let merges = case.write || case.door == Door::VhostUserBlk;
        merges.then(|| Verdict::at_least(format!("O: {name}"), pair.rate_ratio(), 1.0, " x"))
    };
    Ok(Table {
        id: "O",
        title: "merging of requests".to_owned(),
        about: "4 KiB, one behind the other, at depth 32, over 1 GiB of real data: with `--request-merging on` and `off`. Over NBD writes alone are \
            merged: reads of what is in the page cache are answered as they come. CPU time is the server's, in microseconds per request."
            .to_owned(),
        columns: ["case", "factor", "merged /s", "spread", "one by one /s", "CPU us/request, merged : one by one"]
            .map(str::to_owned)
            .into(),
        rows: pairs.iter().map(row).collect(),
        verdicts: pairs.iter().filter_map(gains).collect(),
        ..Table::default()
    })
}

fn cases() -> Vec<Case> {
    let mut cases = Vec::new();
    for door in [Door::VhostUserBlk, Door::Nbd] {
        for write in [true, false] {
            cases.extend(["writeback", "none"].map(|cache| Case { door, write, cache }));
        }
    }
    cases
}

fn name(Case { door, write, cache }: Case) -> String {
    let door = if door == Door::Nbd { "NBD" } else { "vhost-user-blk" };
    format!("{door}, {}, cache={cache}", if write { "writes" } else { "reads" })
}

fn measure(bench: &Bench, image: &Path, case: Case, merges: bool, round: u32) -> Result<Sample, String> {
    let socket = bench.path("o.sock");
    let mut command = Command::new(&bench.cowhand);
    command.args(["serve", "--request-merging", if merges { "on" } else { "off" }]);
    match case.door {
        Door::VhostUserBlk => command.arg("--vhost-user-blk"),
        Door::Nbd => command.args(["--export", "bench", "--socket"]),
    };
    command.arg(&socket).arg(format!("file={},cache={}", image.display(), case.cache));
    let daemon = Daemon::start(command, socket)?;
    match case.door {
        Door::VhostUserBlk => {
            let time = Duration::from_secs_f64(bench.effort.seconds);
            let (write, seed) = (case.write, u64::from(round));
            let load =
                Load { write, depth: DEPTH as usize, sequential: true, disk_bytes: DISK_BYTES, time, seed };
            guest(&daemon, 1, load)
        }
        Door::Nbd => over_nbd(bench, &daemon, case.write, round),
    }
}

fn over_nbd(bench: &Bench, daemon: &Daemon, write: bool, round: u32) -> Result<Sample, String> {
    let rw = if write { "write" } else { "read" };
    let load = fio::Load { rw, block: "4k", depth: DEPTH, jobs: 1, disk_bytes: DISK_BYTES };
    let uri = format!("nbd+unix:///bench?socket={}", daemon.socket().display());
    let seconds = bench.effort.seconds.ceil() as u32;
    fio::sample_of_server(|| daemon.cpu_seconds(), seconds, || fio::run(&uri, load, seconds, round + 1))
}
