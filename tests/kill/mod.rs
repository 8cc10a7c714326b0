//! Kill -9 loses nothing that a flush acknowledged, and leaves nothing worse than leaks.
//!
//! The daemon works for several connections, which write blocks that are stamped with address and
//! version, and is killed after a random number of acknowledgements. After a restart each sector has a
//! version that is at least the last one flushed and at most the last one sent.
//!
//! 50 rounds over all cache modes, and others at named points ([`moments`]): while the disk is opened, flushed,
//! snapshotted, made larger, reopened and closed. `COWHAND_KILL_ROUNDS` says otherwise, `COWHAND_KILL_SEED`
//! starts elsewhere.

#![forbid(unsafe_code)]

mod bitmaps;
mod jobs;
mod ledger;
mod load;
mod moments;

use std::sync::{Condvar, Mutex};
use std::thread::Scope;
use std::time::{Duration, Instant};

use black_box::bytes::are_all;
use black_box::peer::{assert_leaks_at_most, qemu_img};
use black_box::random::number;
use black_box::{Random, Scratch, Server, cowhand};

use ledger::{BLOCK_BYTES, Ledger};
use load::{Load, Shared};
use moments::Moment;

/// Kills, over all modes.
const ROUNDS: u64 = 50;

/// Blocks of a disk: 32 MiB.
const BLOCKS: usize = 8192;

const CONNECTIONS: usize = 3;

/// Acknowledgements that a round waits for at most.
const ACKNOWLEDGEMENTS_MAX: u64 = 4000;

/// And how long: slow disks get killed all the same.
const ROUND_MAX: Duration = Duration::from_secs(2);

/// A way to serve, and an image to serve.
struct Mode {
    name: &'static str,
    drive: &'static str,
    create: &'static str,
    overlay: bool,
}

const fn mode(name: &'static str, drive: &'static str, create: &'static str, overlay: bool) -> Mode {
    Mode { name, drive, create, overlay }
}

const MODES: [Mode; 8] = [
    mode("writeback", "cache=writeback,discard=unmap", "cluster_size=64k", false),
    mode("writethrough", "cache=writethrough,discard=unmap", "cluster_size=4k", false),
    mode("none", "cache=none,discard=unmap", "cluster_size=64k", true),
    mode("directsync", "cache=directsync", "cluster_size=16k,extended_l2=on", false),
    mode("unsafe", "cache=unsafe,discard=unmap", "cluster_size=2M", false),
    mode("lazy", "lazy-refcounts=on,discard=unmap", "cluster_size=4k", false),
    mode("small", "l2-cache-size=2k,l2-cache-entry-size=512,discard=unmap", "cluster_size=512", false),
    mode("threads", "aio=threads,discard=unmap", "cluster_size=64k,extended_l2=on", true),
];

/// Of those, the ones that are killed at named points: page cache, O_DIRECT over a backing file, subclusters
/// without a write-back cache, many small tables.
const MOMENT_MODES: [usize; 4] = [0, 2, 3, 6];

#[test]
fn kill_9_loses_nothing_that_was_flushed_in_any_cache_mode() {
    let rounds = number("COWHAND_KILL_ROUNDS").unwrap_or(ROUNDS);
    let seed = number("COWHAND_KILL_SEED").unwrap_or(1);
    let mut kills = 0;
    for (index, mode) in MODES.iter().enumerate() {
        let share = rounds / MODES.len() as u64 + u64::from((index as u64) < rounds % MODES.len() as u64);
        kills += mode.run(share, &mut Random::new(seed ^ (index as u64) << 32));
    }
    println!("looked at in kill: {kills} kills");
}

#[test]
fn kill_9_at_named_points_loses_nothing_either() {
    let rounds = number("COWHAND_KILL_ROUNDS").unwrap_or(ROUNDS);
    let seed = number("COWHAND_KILL_SEED").unwrap_or(1);
    // All moments of one round are as many kills as there are.
    let each = rounds.div_ceil((MOMENT_MODES.len() * Moment::ALL.len()) as u64);
    let kills: u64 = MOMENT_MODES
        .iter()
        .map(|&index| MODES[index].kill_in_moments(each, &mut Random::new(!seed ^ (index as u64) << 32)))
        .sum();
    println!("looked at in kill: {kills} kills at named points");
}

impl Mode {
    fn shared(&self) -> Shared {
        Shared {
            ledger: Mutex::new(Ledger::new(BLOCKS)),
            progress: Condvar::new(),
            writethrough: matches!(self.name, "writethrough" | "directsync"),
            connections: CONNECTIONS,
        }
    }

    /// Kills the server again and again over one image; gives the number of kills.
    fn run(&self, rounds: u64, random: &mut Random) -> u64 {
        let scratch = Scratch::new();
        let path = self.create(&scratch);
        let mut shared = self.shared();
        let drive = format!("file={path},{}", self.drive);
        for round in 0..rounds {
            self.round(&drive, &shared, random);
            self.judge_metadata(&path);
            self.judge_data(&drive, &mut shared, round);
        }
        // What crashes left is repaired, and the disk is as before.
        let repaired = cowhand(["check", "-r", "all", &path]).outcome();
        assert!(repaired.status.success(), "{}: {repaired}", self.name);
        qemu_img(["check", &path]).ok();
        self.judge_data(&drive, &mut shared, rounds);
        rounds
    }

    fn create(&self, scratch: &Scratch) -> String {
        let path = scratch.name("disk.qcow2");
        let size = (BLOCKS * BLOCK_BYTES).to_string();
        let mut create = qemu_img(["create", "-q", "-f", "qcow2", "-o", self.create]);
        if self.overlay {
            scratch.write("base.raw", &vec![0; BLOCKS * BLOCK_BYTES / 2]);
            create = create.args(["-b", "base.raw", "-F", "raw"]);
        }
        create.args(["disk.qcow2", &size]).current_dir(scratch.path()).ok();
        path
    }

    /// Loads the server, and kills it in the middle.
    fn round(&self, drive: &str, shared: &Shared, random: &mut Random) {
        let server = Server::start([drive]);
        let wanted = random.between(1, *random.clone().pick(&[100, 1000, ACKNOWLEDGEMENTS_MAX]));
        std::thread::scope(|scope| {
            self.load(scope, &server, shared, random);
            self.wait(shared, wanted);
            server.kill();
        });
    }

    /// Keeps the server busy until it is gone.
    fn load<'scope>(
        &self,
        scope: &'scope Scope<'scope, '_>,
        server: &Server,
        shared: &'scope Shared,
        random: &mut Random,
    ) {
        for connection in 0..CONNECTIONS {
            let load = Load::new(shared, server.client(""), Random::new(random.next_u64()), connection);
            scope.spawn(move || load.run());
        }
    }

    fn wait(&self, shared: &Shared, wanted: u64) {
        let start = Instant::now();
        let mut ledger = shared.ledger.lock().expect("no panic elsewhere");
        while ledger.acknowledgements() < wanted && start.elapsed() < ROUND_MAX {
            (ledger, _) = shared.progress.wait_timeout(ledger, ROUND_MAX).expect("no panic elsewhere");
        }
        assert!(ledger.acknowledgements() > 0, "{}: nothing is acknowledged", self.name);
    }

    fn judge_metadata(&self, path: &str) {
        // With lazy refcounts the refcounts are wrong until the repair when it is opened next.
        if self.name != "lazy" {
            assert_leaks_at_most(std::path::Path::new(path));
        }
    }

    /// Restarts, reads everything, goes on from there.
    fn judge_data(&self, drive: &str, shared: &mut Shared, round: u64) {
        let server = Server::start([drive]);
        let mut disk = server.client("").read_all().expect("read");
        server.stop();
        // What it was made larger by was never written.
        let grown = disk.split_off(BLOCKS * BLOCK_BYTES);
        assert!(are_all(&grown, 0), "{}, round {round}: bytes behind the old end", self.name);
        let ledger = shared.ledger.get_mut().expect("no panic elsewhere");
        ledger.restart(&disk).unwrap_or_else(|lost| panic!("{}, round {round}: {lost}", self.name));
    }
}
