//! From "all is open" to "all is closed": watches for the end, and sees it through.

use std::pin::pin;
use std::rc::Rc;
use std::time::{Duration, Instant};

use export::Shutdown;
use futures_util::future::{Either, select};
use reactor::{Backend, Reactor};

use super::inventory::Inventory;
use super::signals::{SignalStreams, Signals};
use super::status_line::{StatusLine, Totals};
use super::steering::{Running, Sockets};
use super::systemd;
use crate::failure::Failure;
use crate::output::tell;

/// Time between two status lines: long enough to read, short enough to watch.
const STATUS_INTERVAL: Duration = Duration::from_secs(1);

/// How long the end waits for servers of disks that are lost, to bring them what was acknowledged and not flushed.
const LOST_SERVER_PATIENCE: Duration = Duration::from_secs(5);

/// Exit code after an end in haste: 128 and SIGINT's number, as shells count.
const IN_HASTE: i32 = 130;

/// What is shown while the server runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum View {
    /// A line of figures, where standard error is the terminal of a person who waits for us.
    Terminal,
    /// Nothing (`--quiet`).
    Nothing,
}

/// Serves until a signal or a command comes (or a loop fails), then ends in order. `own` is the loop of this thread, which
/// accepts clients and answers commands; the door has others, and each decides for itself whether
/// it can have a ring.
///
/// # Errors
/// When a loop fails, or a disk cannot be closed: what was acknowledged without a flush may then be lost.
pub fn until_told(
    own: &Reactor,
    inventory: &Rc<Inventory>,
    sockets: &Sockets,
    signals: Signals,
    view: View,
) -> Result<(), Failure> {
    let signals = signals.on_loop();
    let (quit, ended) = (Shutdown::new(), Shutdown::new());
    let loops = &inventory.loops;
    let shutdown = loops.shutdown();
    let door = std::thread::scope(|scope| {
        let door = scope.spawn(|| {
            let _tell = TellOnDrop(&ended);
            loops.run(Backend::Ring)
        });
        let running = own.run(async { Running::start(sockets, inventory, &quit) });
        own.run(watch(inventory, shutdown, &quit, &signals, view));
        systemd::stopping();
        dial::end_within(LOST_SERVER_PATIENCE);
        tracing::info!("ending: requests in flight are answered, new ones are not taken");
        let asked = quit.is_triggered();
        quit.trigger();
        own.run(running.end(asked));
        // The command at work may begin a job; those that come later find that the program is ending.
        drop(own.run(inventory.graph.change()));
        own.run(patiently(inventory.jobs.end_all(), &signals));
        // The command at work ends first; those that come later find that the program is ending.
        let change = own.run(inventory.graph.change());
        own.run(patiently(inventory.close_doors(), &signals));
        shutdown.trigger();
        // Nobody is to wait for a limit any more: what waits is answered first.
        inventory.graph.disks().iter().for_each(|node| node.disk.lift_limits());
        own.run(patiently(ended.wait(), &signals));
        drop(change);
        door.join()
    });
    let door = match door {
        Ok(ran) => ran.map_err(|error| Failure::because("the server ended", &error)),
        Err(panic) => std::panic::resume_unwind(panic),
    };
    // The disks are closed however the server ended.
    let closed = own.run(patiently(inventory.close_all(), &signals));
    closed.map_err(|error| Failure::because("not everything is closed", &error)).and(door)
}

/// Ends at the first signal or command to end, or when the door ends by itself.
async fn watch(
    inventory: &Rc<Inventory>,
    shutdown: &Shutdown,
    quit: &Shutdown,
    signals: &SignalStreams,
    view: View,
) {
    inventory.doors.accept();
    inventory.accept_front_ends();
    inventory.watch_mounts();
    let (asked, commanded, over) = (pin!(signals.end()), pin!(quit.wait()), pin!(shutdown.wait()));
    let end = select(select(asked, commanded), over);
    // Which of them ended it makes no difference to what comes next.
    match (view == View::Terminal).then(StatusLine::on_terminal).flatten() {
        None => _ = end.await,
        Some(line) => _ = select(end, pin!(show(line, inventory))).await,
    }
}

/// Waits for a part of the end; for nothing any more when somebody is in haste.
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
            std::process::exit(IN_HASTE);
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

/// Tells that a thread has ended, however it did.
struct TellOnDrop<'a>(&'a Shutdown);

impl Drop for TellOnDrop<'_> {
    fn drop(&mut self) {
        self.0.trigger();
    }
}
