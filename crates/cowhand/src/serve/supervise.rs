//! From "all is open" to "all is closed": watches for the end, and sees it through.

use std::os::unix::net::UnixStream;
use std::pin::pin;
use std::sync::Arc;
use std::time::{Duration, Instant};

use buffer::IoBuf;
use door_nbd::{Server, Shutdown};
use futures_util::future::{Either, select};
use reactor::Reactor;
use reactor::net::{Listener, Stream};

use super::disks::Served;
use super::status_line::{StatusLine, Totals};
use super::systemd;
use crate::failure::Failure;

/// Time between two status lines: long enough to read, short enough to watch.
const STATUS_INTERVAL: Duration = Duration::from_secs(1);

/// Exit code after a second signal: 128 and SIGINT's number, as shells count.
const IN_HASTE: i32 = 130;

/// Serves until a signal comes (or a loop fails), then ends in order. `own` is the loop of this thread; the
/// door has others, over the same backend.
///
/// # Errors
/// When a loop fails, or a disk cannot be closed: what was acknowledged without a flush may then be lost.
pub fn until_told(
    own: &Reactor,
    server: &Arc<Server>,
    shutdown: &Shutdown,
    listeners: &[Listener],
    served: &[Served],
    signals: UnixStream,
) -> Result<(), Failure> {
    let signals = Stream::from_fd(signals.into());
    let ended = Shutdown::new();
    let backend = own.backend();
    let door = std::thread::scope(|scope| {
        let door = scope.spawn(|| {
            let _tell = TellOnDrop(&ended);
            door_nbd::run(server, listeners, backend)
        });
        own.run(watch(server, shutdown, served, &signals));
        systemd::stopping();
        tracing::info!("ending: requests in flight are answered, new ones are not taken");
        shutdown.trigger();
        // Nobody is to wait for a limit any more: what waits is answered first.
        served.iter().for_each(|disk| disk.disk.lift_limits());
        own.run(patiently(&ended, &signals));
        door.join()
    });
    let door = match door {
        Ok(ran) => ran.map_err(|error| Failure::because("the server ended", &error)),
        Err(panic) => std::panic::resume_unwind(panic),
    };
    // The disks are closed however the server ended.
    own.run(close(served)).and(door)
}

/// Ends at the first signal, or when the door ends by itself.
async fn watch(server: &Arc<Server>, shutdown: &Shutdown, served: &[Served], signals: &Stream) {
    served.iter().for_each(|disk| disk.disk.keep_house());
    let asked = pin!(signal(signals));
    let over = pin!(shutdown.wait());
    let end = select(asked, over);
    // Which of them ended it makes no difference to what comes next.
    match StatusLine::on_terminal() {
        None => _ = end.await,
        Some(line) => _ = select(end, pin!(show(line, server, served))).await,
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

async fn show(mut line: StatusLine, server: &Arc<Server>, served: &[Served]) {
    let mut last = Instant::now();
    loop {
        reactor::sleep(STATUS_INTERVAL).await;
        let now = Instant::now();
        line.show(totals(server, served), now - last);
        last = now;
    }
}

fn totals(server: &Arc<Server>, served: &[Served]) -> Totals {
    let mut totals = Totals { connections: server.connections() as u64, ..Totals::default() };
    for entry in server.exports().entries() {
        let counted = entry.counters().snapshot();
        totals.requests += counted.requests();
        totals.bytes += counted.read.bytes + counted.write.bytes;
    }
    for disk in served {
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

/// Closes every disk, also after one has failed; tells of all failures.
async fn close(served: &[Served]) -> Result<(), Failure> {
    let mut result = Ok(());
    for disk in served {
        if let Err(error) = disk.disk.close().await {
            let failure = Failure::because(format!("cannot close {}", disk.path.display()), &error);
            tracing::error!("{failure}");
            result = result.and(Err(failure));
        }
    }
    result
}

/// Tells that a thread has ended, however it did.
struct TellOnDrop<'a>(&'a Shutdown);

impl Drop for TellOnDrop<'_> {
    fn drop(&mut self) {
        self.0.trigger();
    }
}
