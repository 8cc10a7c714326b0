//! Kills at named points: while the disk is opened, flushed, changed as a whole, closed.

use std::io;
use std::path::Path;
use std::time::{Duration, Instant};

use black_box::client::Request;
use black_box::qmp::Qmp;
use black_box::server::Start;
use black_box::{Client, Random, Scratch, Server};
use rustix::process::Signal;
use serde_json::json;

use super::{Mode, Shared};

/// Longest time from a moment's beginning to the kill: all of them are over by then on most machines.
const DELAY_MAX: Duration = Duration::from_millis(8);

/// A point in the life of a server.
#[derive(Clone, Copy, Debug)]
pub enum Moment {
    /// It opens a disk that the kill before has left, and repairs it if it has to.
    Open,
    /// It flushes.
    Flush,
    /// It takes an internal snapshot.
    Snapshot,
    /// It deletes one.
    DeleteSnapshot,
    /// It makes the disk larger.
    Grow,
    /// It changes an option for which it writes the header.
    Reopen,
    /// It writes everything back and ends.
    Close,
}

impl Moment {
    pub const ALL: [Self; 7] = [
        Self::Open,
        Self::Flush,
        Self::Snapshot,
        Self::DeleteSnapshot,
        Self::Grow,
        Self::Reopen,
        Self::Close,
    ];

    /// What must be there before it.
    fn prepare(self, qmp: &mut Qmp, round: u64) {
        if matches!(self, Self::DeleteSnapshot) {
            qmp.ok(
                "blockdev-snapshot-internal-sync",
                json!({ "device": "d", "name": format!("old-{round}") }),
            );
        }
    }

    /// Begins it, and waits for nothing. What it gives must live as long as it takes.
    fn begin(self, server: &Server, qmp: &mut Qmp, round: u64) -> io::Result<Client> {
        let mut client = server.client("");
        let name = |which: &str| json!({ "device": "d", "name": format!("{which}-{round}") });
        let command = match self {
            Self::Open => None,
            Self::Flush => {
                client.send(&Request::flush())?;
                None
            }
            Self::Close => {
                server.signal(Signal::TERM);
                None
            }
            Self::Snapshot => Some(("blockdev-snapshot-internal-sync", name("new"))),
            Self::DeleteSnapshot => Some(("blockdev-snapshot-delete-internal-sync", name("old"))),
            Self::Grow => Some(("block_resize", json!({ "device": "d", "size": client.size() + (1 << 20) }))),
            Self::Reopen => {
                let options =
                    if round.is_multiple_of(2) { "lazy-refcounts=on" } else { "lazy-refcounts=off" };
                Some(("x-blockdev-set", json!({ "node-name": "d", "options": options })))
            }
        };
        if let Some((command, arguments)) = command {
            qmp.send(json!({ "execute": command, "arguments": arguments }).to_string().as_bytes())?;
        }
        Ok(client)
    }
}

impl Mode {
    /// Kills the server once in each moment, `rounds` times, over one image; gives the number of kills.
    pub fn kill_in_moments(&self, rounds: u64, random: &mut Random) -> u64 {
        let scratch = Scratch::new();
        let path = self.create(&scratch);
        let mut shared = self.shared();
        let drive = format!("id=d,file={path},{}", self.drive);
        let mut kills = 0;
        for round in 0..rounds {
            for moment in Moment::ALL {
                self.moment(moment, &drive, &shared, round, random);
                // A reopen may have left the refcounts to the repair.
                if !matches!(moment, Moment::Reopen) {
                    self.judge_metadata(&path);
                }
                self.judge_data(&drive, &mut shared, round);
                kills += 1;
            }
        }
        kills
    }

    fn moment(&self, moment: Moment, drive: &str, shared: &Shared, round: u64, random: &mut Random) {
        let scratch = Scratch::new();
        let control = scratch.name("qmp.sock");
        let start = || Start::new([drive, "--qmp", control.as_str()]);
        let mut server = match start().listen() {
            Ok(server) => server,
            Err(failed) => panic!("{}, {moment:?}: {failed:?}", self.name),
        };
        let mut qmp = Qmp::connect(Path::new(&control));
        moment.prepare(&mut qmp, round);
        let delay = DELAY_MAX.mul_f64(random.below(1000) as f64 / 1000.0);
        std::thread::scope(|scope| {
            self.load(scope, &server, shared, random);
            self.wait(shared, random.between(1, 500));
            let _client = moment.begin(&server, &mut qmp, round).expect("it listens");
            spin(delay);
            server.signal(Signal::KILL);
            server.outcome();
        });
        if matches!(moment, Moment::Open) {
            let mut server = start().spawn();
            spin(delay * 4);
            server.signal(Signal::KILL);
            server.outcome();
        }
    }
}

/// Lets time go by without giving the processor away: a sleep is longer than most moments.
fn spin(time: Duration) {
    let start = Instant::now();
    while start.elapsed() < time {
        std::hint::spin_loop();
    }
}
