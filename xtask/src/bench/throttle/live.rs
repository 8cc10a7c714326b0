//! Limits that change a thousand times while clients ask for all they can get.

use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use black_box::Random;
use black_box::qmp::Qmp;
use serde_json::json;

use super::clients::{Counted, Load, Mix, Wish, ask_while, keep_asking, side_by_side};
use super::servers::cowhand;
use super::{Answer, DISK_BYTES, trend};
use crate::bench::Bench;
use crate::bench::table::Verdict;

const CHANGES: u32 = 1_000;
const PAUSE: Duration = Duration::from_millis(5);
const CLIENTS: usize = 3;
const PATIENCE: Duration = Duration::from_secs(10);
/// The changes end long before.
const END: Duration = Duration::from_secs(120);

pub fn ask(bench: &Bench, image: &Path) -> Result<Answer, String> {
    let qmp = bench.path("live.qmp");
    let drive = format!("file={},id=bench", image.display());
    let control = qmp.display().to_string();
    let server = cowhand(bench, "live.sock", &[drive], &["--qmp", &control])?;
    wait_until_it_listens(&qmp)?;
    let over = AtomicBool::new(false);
    let load = Load { mix: Mix::Mixed, bytes: 4096, depth: 8, span: DISK_BYTES };
    let start = Instant::now();
    let (socket, ended) = (server.socket(), &over);
    let (changed, counted) = std::thread::scope(|scope| {
        let changing = scope.spawn(|| {
            change(&qmp);
            over.store(true, Ordering::Relaxed);
        });
        let wish = |_| if ended.load(Ordering::Relaxed) { Wish::End } else { Wish::Ask };
        let ask = |_| move || ask_while(socket, "bench", load, (start, END), wish);
        let counted = side_by_side((0..CLIENTS).map(ask).map(|ask| move || ended_early(ask, ended)));
        (changing.join(), counted)
    });
    changed.map_err(|_| "the control socket did not answer".to_owned())?;
    let counted = counted?;
    // The last limit holds, and the same process keeps it.
    let after = keep_asking(socket, "bench", Load { depth: 32, ..load }, 3)?.mean();
    let answered: f64 = counted.iter().map(Counted::requests).sum();
    println!("{CHANGES} changes of limits: {answered:.0} requests, all answered; then {after:.0} a second");
    let off = super::clients::percent(after, 1_000.0).abs();
    let lengths = counted.iter().map(|counted| counted.slots.iter().rposition(|&count| count > 0));
    let slots = lengths.flatten().max().unwrap_or(0);
    let tenths = |counted: &Counted| {
        let slots = counted.slots.get(..slots).unwrap_or_default();
        slots.chunks(10).map(|slots| f64::from(slots.iter().sum::<u32>()) * 10.0).collect()
    };
    let series = counted.iter().enumerate().map(|(at, counted)| (format!("client {at}"), tenths(counted)));
    let chart = trend("Requests a second while limits change 1,000 times", 100, series.collect());
    let what = format!("requests lost or stuck in {CHANGES} changes of limits ({answered:.0} answered)");
    Ok(Answer {
        // A request that failed or was never answered has ended the table with an error.
        verdicts: vec![
            Verdict::at_most(what, 0.0, 0.5, ""),
            Verdict::at_most("the limit set last, off by", off, 0.5, " %"),
        ],
        charts: vec![chart],
        ..Answer::default()
    })
}

/// It listens there a moment later than for NBD clients.
fn wait_until_it_listens(socket: &Path) -> Result<(), String> {
    let start = Instant::now();
    while let Err(error) = UnixStream::connect(socket) {
        if start.elapsed() > PATIENCE {
            return Err(format!("{}: {error}", socket.display()));
        }
        std::thread::sleep(PAUSE);
    }
    Ok(())
}

/// A client that fails ends the others.
fn ended_early<T>(ask: impl FnOnce() -> Result<T, String>, ended: &AtomicBool) -> Result<T, String> {
    ask().inspect_err(|_| ended.store(true, Ordering::Relaxed))
}

fn change(qmp: &Path) {
    let mut control = Qmp::connect(qmp);
    let mut random = Random::new(7);
    let mut set = |iops: u64, bps: u64| {
        let limits = json!({ "id": "bench", "iops": iops, "iops_rd": 0, "iops_wr": 0,
            "bps": bps, "bps_rd": 0, "bps_wr": 0 });
        control.ok("block_set_io_throttle", limits);
    };
    for number in 0..CHANGES {
        match number % 3 {
            0 => set(random.between(10, 20_000), 0),
            1 => set(0, random.between(64 << 10, 64 << 20)),
            _ => set(random.between(10, 20_000), random.between(64 << 10, 64 << 20)),
        }
        std::thread::sleep(PAUSE);
    }
    set(1_000, 0);
}
