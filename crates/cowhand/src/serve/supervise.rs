//! From "all is open" to "all is closed": watches for the end, and sees it through.

use std::os::unix::net::UnixStream;
use std::pin::pin;
use std::rc::Rc;
use std::time::{Duration, Instant};

use buffer::IoBuf;
use door_nbd::Shutdown;
use futures_util::future::{Either, select};
use reactor::Reactor;
use reactor::net::Stream;

use super::inventory::Inventory;
use super::status_line::{StatusLine, Totals};
use super::steering::{Running, Sockets};
use super::systemd;
use crate::failure::Failure;

/// Time between two status lines: long enough to read, short enough to watch.
const STATUS_INTERVAL: Duration = Duration::from_secs(1);

/// Exit code after a second signal: 128 and SIGINT's number, as shells count.
const IN_HASTE: i32 = 130;

/// Serves until a signal or a command comes (or a loop fails), then ends in order. `own` is the loop of this thread, which
/// accepts clients and answers commands; the door has others, over the same backend.
///
/// # Errors
/// When a loop fails, or a disk cannot be closed: what was acknowledged without a flush may then be lost.
pub fn until_told(
    own: &Reactor,
    inventory: &Rc<Inventory>,
    shutdown: &Shutdown,
    sockets: &Sockets,
    signals: UnixStream,
) -> Result<(), Failure> {
    let signals = Stream::from_fd(signals.into());
    let (quit, ended) = (Shutdown::new(), Shutdown::new());
    let (server, backend) = (&inventory.server, own.backend());
    let door = std::thread::scope(|scope| {
        let door = scope.spawn(|| {
            let _tell = TellOnDrop(&ended);
            door_nbd::run(server, &[], backend)
        });
        let running = own.run(async { Running::start(sockets, inventory, &quit) });
        own.run(watch(inventory, shutdown, &quit, &signals));
        systemd::stopping();
        tracing::info!("ending: requests in flight are answered, new ones are not taken");
        let asked = quit.is_triggered();
        quit.trigger();
        own.run(running.end(asked));
        // The command at work ends first; those that come later find that the program is ending.
        let change = own.run(inventory.change());
        inventory.doors.close();
        shutdown.trigger();
        // Nobody is to wait for a limit any more: what waits is answered first.
        inventory.disks().iter().filter_map(|node| node.disk().ok()).for_each(|node| node.disk.lift_limits());
        own.run(patiently(&ended, &signals));
        drop(change);
        door.join()
    });
    let door = match door {
        Ok(ran) => ran.map_err(|error| Failure::because("the server ended", &error)),
        Err(panic) => std::panic::resume_unwind(panic),
    };
    // The disks are closed however the server ended.
    let closed = own.run(inventory.close_all());
    closed.map_err(|error| Failure::because("not everything is closed", &error)).and(door)
}

/// Ends at the first signal or command to end, or when the door ends by itself.
async fn watch(inventory: &Rc<Inventory>, shutdown: &Shutdown, quit: &Shutdown, signals: &Stream) {
    for node in inventory.disks() {
        if let Ok(disk) = node.disk() {
            disk.disk.keep_house();
        }
    }
    inventory.doors.accept();
    let (asked, commanded, over) = (pin!(signal(signals)), pin!(quit.wait()), pin!(shutdown.wait()));
    let end = select(select(asked, commanded), over);
    // Which of them ended it makes no difference to what comes next.
    match StatusLine::on_terminal() {
        None => _ = end.await,
        Some(line) => _ = select(end, pin!(show(line, inventory))).await,
    }
}

/// Waits for the door to end; at another signal, for nothing any more.
async fn patiently(ended: &Shutdown, signals: &Stream) {
    if let Either::Right(_) = select(pin!(ended.wait()), pin!(signal(signals))).await {
        eprintln!("cowhand: a second signal: ending at once; what was not flushed may be lost");
        std::process::exit(IN_HASTE);
    }
}

async fn signal(signals: &Stream) {
    // The other end is the signal handlers' and never closes; should it fail, nothing could end us
    // in order any more, so that is taken for a signal too.
    let (_, _) = signals.recv(IoBuf::uninit(1)).await;
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
    let connections = inventory.server.connections() as u64;
    let mut totals = Totals { connections, ..Totals::default() };
    for export in inventory.exports() {
        let counted = export.entry.counters().snapshot();
        totals.requests += counted.requests();
        totals.bytes += counted.read.bytes + counted.write.bytes;
    }
    for node in inventory.disks() {
        let Ok(disk) = node.disk() else { continue };
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
