//! From "all is open" to "all is closed": waits for the end, and runs its steps.
//!
//! The end waits for running work, but not for a loop that a single client blocks: `roll` knows which loops
//! answer. If one does not, the others end all the same, the disks are closed as far as they can be, and the
//! log names it.

mod roll;

use std::io;
use std::pin::pin;
use std::rc::Rc;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use export::{Loops, Shutdown};
use futures_util::future::{Either, join_all, select};
use graph::Change;
use reactor::{Backend, Reactor};
use tool::failure::Failure;
use tool::output::tell;

use self::roll::Roll;
use super::inventory::Inventory;
use super::signals::SignalStreams;
use super::socket_path::let_names_stay;
use super::status_line::{StatusLine, Totals};
use super::steering::{Running, Sockets};
use super::systemd;
use super::take_over::Estate;
use super::take_over::levels::levels;
use super::take_over::predecessor::{Exchange, wait_for_successor};
use super::take_over::sockets::Handed;

/// The exit code of a server that the third SIGINT or SIGQUIT ended at once.
pub const ENDED_AT_ONCE: u8 = 130;

/// Time between two status lines: long enough to read, short enough to watch.
const STATUS_INTERVAL: Duration = Duration::from_secs(1);

/// How long the end waits for servers of disks that are lost, to bring them what was acknowledged and not flushed.
const LOST_SERVER_PATIENCE: Duration = Duration::from_secs(5);

/// How long a loop may stand still before the end waits for it no longer: requests that it has are not answered.
const LOST_LOOP_PATIENCE: Duration = Duration::from_secs(5);

/// How long disks may then take to write what was acknowledged, and to be closed: requests of the lost loop may hold them open.
const CLOSING_PATIENCE: Duration = Duration::from_secs(3);

/// What is shown while the server runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum View {
    /// A line of figures, where standard error is the terminal of a person who waits for us.
    Terminal,
    /// Nothing (`--quiet`).
    Nothing,
}

/// How serving ended.
#[derive(Debug)]
pub enum Ended {
    /// All is closed.
    Over,
    /// All is closed, and a process that is ready to serve it gets what is left.
    GivenAway(Exchange, Estate),
    /// As `GivenAway`, but a disk could not be closed: nothing is handed over before this process has tried
    /// again.
    Kept(Exchange, Estate, Failure),
}

/// Serves until a signal or a command comes (or a loop fails), or another process takes over; then ends in order. `own` is the loop of this thread, which
/// accepts clients and answers commands; the door has others, and each decides for itself whether
/// it can have a ring.
///
/// # Errors
/// When a loop fails, or a disk cannot be closed: what was acknowledged without a flush may then be lost.
pub fn until_asked(
    own: &Reactor,
    inventory: Rc<Inventory>,
    sockets: &Sockets,
    signals: &SignalStreams,
    view: View,
) -> Result<Ended, Failure> {
    let quit = Shutdown::new();
    let (door, ended) = start_loops(&inventory.loops)?;
    let shutdown = inventory.loops.shutdown();
    let running = own.run(async { Running::start(sockets, &inventory, &quit) });
    let successor = own.run(watch(&inventory, (sockets, shutdown, &quit), signals, view));
    let asked = quit.is_triggered();
    quit.trigger();
    let end = TheEnd { own, inventory: &inventory, signals, roll: Roll::call(&inventory.loops) };
    let successor = successor.and_then(|exchange| prepare_to_give(exchange, &inventory));
    if successor.is_some() {
        tracing::info!("another process takes over: requests in flight are answered");
        own.run(running.hand_over());
    } else {
        systemd::stopping();
        net::dial::end_within(LOST_SERVER_PATIENCE);
        tracing::info!("ending: requests in flight are answered, new ones are not taken");
        own.run(running.end(asked));
    }
    let Some(door) = end.of_loops(successor.is_some(), &ended, door) else {
        end.without_lost_loops();
        return Err(Failure::new("the server ended without a loop that does not answer"));
    };
    // Its tasks have the disks.
    drop(running);
    let ends = inventory.graph.ends();
    // The disks are closed however the server ended.
    let closed = own.run(patiently(inventory.close_all(), signals));
    let closed = closed.map_err(|error| Failure::because("not everything is closed", &error)).and(door);
    let Some((exchange, estate)) = successor else { return closed.map(|()| Ended::Over) };
    let estate = Estate {
        clients: inventory.server.take_handed(),
        front_ends: inventory.vhost.take_handed(),
        ..estate
    };
    drop(inventory);
    // Cancelled tasks of this loop are dropped when it runs again, and their references to disks with them.
    // Otherwise the successor would find the files locked.
    own.run(patiently(ends.reached(), signals));
    Ok(match closed {
        Ok(()) => Ended::GivenAway(exchange, estate),
        Err(failure) => Ended::Kept(exchange, estate, failure),
    })
}

/// The thread that waits for all loops.
type LoopsThread = JoinHandle<io::Result<()>>;

/// Starts the loops; also returns what is triggered when all have ended. The thread is never joined for ever:
/// a loop may not end.
fn start_loops(loops: &Arc<Loops>) -> Result<(LoopsThread, Shutdown), Failure> {
    let ended = Shutdown::new();
    let (loops, tell) = (Arc::clone(loops), TellOnDrop(ended.clone()));
    let body = move || {
        let _tell = tell;
        loops.run(Backend::Ring)
    };
    let thread = std::thread::Builder::new().name("cowhand-loops".to_owned()).spawn(body);
    Ok((thread.map_err(|error| Failure::because("cannot start the event loops", &error))?, ended))
}

/// What the steps of the end need.
struct TheEnd<'a> {
    own: &'a Reactor,
    inventory: &'a Rc<Inventory>,
    signals: &'a SignalStreams,
    roll: Roll,
}

impl TheEnd<'_> {
    /// Ends the loops, and returns how they ended; `None` if one of them does not answer.
    fn of_loops(&self, hands_over: bool, ended: &Shutdown, door: LoopsThread) -> Option<Result<(), Failure>> {
        let Self { own, inventory, signals, .. } = self;
        // The running command ends first: it may begin a job. Later commands fail, since the program is
        // ending.
        let change = self.before_the_loops(hands_over);
        let shutdown = inventory.loops.shutdown();
        if hands_over {
            shutdown.hand_over();
        } else {
            shutdown.trigger();
        }
        // Requests that wait for a limit are answered first, without waiting any longer.
        inventory.graph.disks().iter().for_each(|node| node.disk.lift_limits());
        let lost = self.roll.lost(LOST_LOOP_PATIENCE);
        let all_ended = own.run(patiently(
            async {
                match select(pin!(ended.wait()), pin!(lost)).await {
                    Either::Left(_) => true,
                    Either::Right(_) => false,
                }
            },
            signals,
        ));
        if !all_ended {
            return None;
        }
        // A loop was slow, and answered after all: what was not waited for then is waited for now.
        let change = change.unwrap_or_else(|| own.run(patiently(self.commands_and_doors(), signals)));
        drop(change);
        match door.join() {
            Ok(ran) => Some(ran.map_err(|error| Failure::because("the server ended", &error))),
            Err(panic) => std::panic::resume_unwind(panic),
        }
    }

    /// Waits for commands and jobs, then closes the doors. `None` if that would wait for a loop that does not
    /// answer: then at least those doors are closed that close without waiting.
    fn before_the_loops(&self, hands_over: bool) -> Option<Change<'_>> {
        let inventory = self.inventory;
        // Clients that connect during a take-over are the next process's: a loop that is only slow must not have them sent away.
        let patience = if hands_over { LOST_LOOP_PATIENCE } else { Roll::PATIENCE };
        let steps = self.commands_and_doors();
        let in_time = async {
            match select(pin!(steps), pin!(self.roll.lost(patience))).await {
                Either::Left((change, _)) => Some(change),
                Either::Right(_) => None,
            }
        };
        let change = self.own.run(patiently(in_time, self.signals));
        if change.is_none() {
            inventory.close_sockets();
        }
        change
    }

    /// Waits for commands and jobs, then closes the doors; no command begins any more.
    async fn commands_and_doors(&self) -> Change<'_> {
        let inventory = self.inventory;
        drop(inventory.graph.change().await);
        inventory.jobs.end_all().await;
        let change = inventory.graph.change().await;
        inventory.close_doors().await;
        change
    }

    /// Some loop does not answer, and its requests are lost. Other clients' acknowledged writes are flushed,
    /// and what can be closed is closed.
    fn without_lost_loops(&self) {
        let disks = self.inventory.graph.disks();
        let flushed = async {
            let flushes = disks.iter().map(|node| node.disk.flush());
            for failed in join_all(flushes).await.into_iter().filter_map(Result::err) {
                tracing::error!("{failed}");
            }
        };
        self.within(flushed, "not every disk could be flushed");
        let closed = async {
            // It logs failures.
            let _ = self.inventory.close_all().await;
        };
        self.within(
            closed,
            "requests of a loop that does not answer hold disks open: these are not closed in order",
        );
    }

    fn within(&self, part: impl Future<Output = ()>, otherwise: &str) {
        let patience = async {
            reactor::sleep(CLOSING_PATIENCE).await;
            tracing::error!("{otherwise}");
        };
        let ended = async {
            let _ = select(pin!(part), pin!(patience)).await;
        };
        self.own.run(patiently(ended, self.signals));
    }
}

/// The handover state, as far as it is known before everything is closed. Names in the file system stay from
/// here on.
fn prepare_to_give(exchange: Exchange, inventory: &Inventory) -> Option<(Exchange, Estate)> {
    match inventory.handed_sockets() {
        Ok(sockets) => {
            let_names_stay(true);
            let commands = inventory.journal.entries();
            let levels = levels(inventory);
            Some((exchange, Estate { sockets, commands, levels, ..Estate::default() }))
        }
        Err(error) => {
            tracing::error!(%error, "sockets cannot be given away; this process ends");
            None
        }
    }
}

/// Ends at the first signal or command to end, or when the door ends by itself; with the process that takes over, if one does.
async fn watch(
    inventory: &Rc<Inventory>,
    (sockets, shutdown, quit): (&Sockets, &Shutdown, &Shutdown),
    signals: &SignalStreams,
    view: View,
) -> Option<Exchange> {
    inventory.doors.accept();
    inventory.accept_front_ends();
    inventory.watch_mounts();
    inventory.watch_devices();
    let (asked, commanded, over) = (pin!(signals.end()), pin!(quit.wait()), pin!(shutdown.wait()));
    let end = select(select(asked, commanded), over);
    let taken_over = pin!(async {
        match sockets.take_over() {
            Some(socket) => wait_for_successor(socket, inventory, || all_sockets(inventory, sockets)).await,
            None => std::future::pending().await,
        }
    });
    let end = async {
        // Which of several signals or commands came first makes no difference from here on.
        match select(end, taken_over).await {
            Either::Left(_) => None,
            Either::Right((exchange, _)) => Some(exchange),
        }
    };
    match (view == View::Terminal).then(StatusLine::on_terminal).flatten() {
        None => end.await,
        Some(line) => match select(pin!(end), pin!(show(line, inventory))).await {
            Either::Left((successor, _)) => successor,
            Either::Right(_) => None,
        },
    }
}

/// All sockets of this process, and its pid file.
fn all_sockets(inventory: &Inventory, sockets: &Sockets) -> io::Result<Vec<Handed>> {
    let mut all = inventory.handed_sockets()?;
    all.extend(sockets.handed()?);
    Ok(all)
}

/// Waits for a part of the end. Three interrupts end the program at once.
async fn patiently<T>(part: impl Future<Output = T>, signals: &SignalStreams) -> T {
    let haste = signals.haste(|more| {
        tell(format_args!(
            "cowhand: still ending in order; {more} more Ctrl-C end it at once, and lose what was not flushed"
        ));
    });
    match select(pin!(part), pin!(haste)).await {
        Either::Left((done, _)) => done,
        Either::Right(_) => {
            tell(format_args!("cowhand: ending at once; what was not flushed may be lost"));
            std::process::exit(ENDED_AT_ONCE.into());
        }
    }
}

async fn show(mut line: StatusLine, inventory: &Inventory) {
    let mut last = Instant::now();
    loop {
        reactor::sleep(STATUS_INTERVAL).await;
        let now = Instant::now();
        line.show(totals(inventory), now - last);
        last = now;
    }
}

fn totals(inventory: &Inventory) -> Totals {
    let connections = inventory.exports().iter().map(|export| u64::from(export.entry.connections())).sum();
    let mut totals = Totals { connections, ..Totals::default() };
    for export in inventory.exports() {
        let counted = export.entry.counters().snapshot();
        totals.requests += counted.requests();
        totals.bytes += counted.read.bytes + counted.write.bytes;
    }
    for disk in inventory.graph.disks() {
        totals.disk_bytes += disk.disk.size();
        if let Some(status) = disk.disk.status() {
            for map in [Some(status.map), status.chain.map(|chain| chain.map)].into_iter().flatten() {
                totals.hits += map.hits;
                totals.misses += map.misses;
            }
            totals.covered_bytes += status.covered_bytes;
        }
    }
    totals
}

/// Triggers when a thread ends, also by a panic.
struct TellOnDrop(Shutdown);

impl Drop for TellOnDrop {
    fn drop(&mut self) {
        self.0.trigger();
    }
}
