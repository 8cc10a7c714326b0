//! A client that always asks for more, and counts what it gets.

use std::collections::HashMap;
use std::path::Path;
use std::time::{Duration, Instant};

use black_box::Client;
use black_box::client::Request;

/// What is counted together at the finest.
pub const SLOT: Duration = Duration::from_millis(10);

/// Slots of a second.
pub const SLOTS_PER_SECOND: usize = 100;

/// How long a client that is not to ask rests before it looks again.
const REST: Duration = Duration::from_millis(1);

/// Which way the bytes go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mix {
    Reads,
    Writes,
    /// In turns.
    Mixed,
}

impl Mix {
    pub const ALL: [Self; 3] = [Self::Reads, Self::Writes, Self::Mixed];

    pub fn name(self) -> &'static str {
        match self {
            Self::Reads => "reads",
            Self::Writes => "writes",
            Self::Mixed => "mixed",
        }
    }
}

/// What is asked.
#[derive(Clone, Copy, Debug)]
pub struct Load {
    pub mix: Mix,
    /// Bytes of a request.
    pub bytes: u32,
    /// Requests in flight.
    pub depth: u32,
    /// Bytes of the disk that are gone through, over and over.
    pub span: u64,
}

/// What came of it.
#[derive(Clone, Debug)]
pub struct Counted {
    /// Requests answered in each slot from the start.
    pub slots: Vec<u32>,
    /// How long requests took, in microseconds, ascending.
    pub latencies_us: Vec<f64>,
}

impl Counted {
    /// All that was answered.
    pub fn requests(&self) -> f64 {
        self.latencies_us.len() as f64
    }

    /// Requests a second in pieces of so many slots, without the first second, in which the first bucket goes.
    pub fn rates(&self, slots: usize) -> Vec<f64> {
        let behind_first = self.slots.get(SLOTS_PER_SECOND..).unwrap_or_default();
        let rate = |piece: &[u32]| sum(piece) * SLOTS_PER_SECOND as f64 / slots as f64;
        behind_first.chunks_exact(slots).map(rate).collect()
    }

    /// Requests a second, without the first one.
    pub fn mean(&self) -> f64 {
        let seconds = self.rates(SLOTS_PER_SECOND);
        seconds.iter().sum::<f64>() / seconds.len().max(1) as f64
    }

    /// Largest deviation of a second from `expected`, in per cent.
    pub fn worst_percent(&self, expected: f64) -> f64 {
        let off = |second: f64| percent(second, expected).abs();
        self.rates(SLOTS_PER_SECOND).into_iter().map(off).fold(0.0, f64::max)
    }

    /// A rate that all but the slowest tenth of the tenths of a second had: what one can count on.
    pub fn dependable(&self) -> f64 {
        let mut rates = self.rates(SLOTS_PER_SECOND / 10);
        rates.sort_by(f64::total_cmp);
        rates.get(rates.len() / 10).copied().unwrap_or(0.0)
    }

    /// What was answered up to a moment.
    pub fn until(&self, moment: Duration) -> f64 {
        let slots = (moment.as_millis() / SLOT.as_millis()) as usize;
        sum(self.slots.get(..slots).unwrap_or(&self.slots))
    }

    /// The latency that `per_mille` thousandths of the requests stayed below, in microseconds.
    pub fn quantile_us(&self, per_mille: usize) -> f64 {
        let at = self.latencies_us.len() * per_mille / 1000;
        self.latencies_us.get(at).or(self.latencies_us.last()).copied().unwrap_or(f64::NAN)
    }
}

fn sum(slots: &[u32]) -> f64 {
    slots.iter().map(|&count| f64::from(count)).sum()
}

/// Deviation of `found` from `expected`, in per cent.
pub fn percent(found: f64, expected: f64) -> f64 {
    (found / expected - 1.0) * 100.0
}

/// What a client wants at a moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wish {
    Ask,
    Rest,
    End,
}

/// Keeps `load` up for one second and `seconds` more.
pub fn keep_asking(socket: &Path, export: &str, load: Load, seconds: u32) -> Result<Counted, String> {
    let end = Duration::from_secs(u64::from(seconds) + 1);
    ask_while(socket, export, load, (Instant::now(), end), |_| Wish::Ask)
}

/// Keeps `load` up from `start` to `end` after it at the latest, as `wish` says of the time since `start`; then waits
/// for every answer that is still due.
///
/// # Errors
/// When a request fails or is not answered.
pub fn ask_while(
    socket: &Path,
    export: &str,
    load: Load,
    (start, end): (Instant, Duration),
    wish: impl Fn(Duration) -> Wish,
) -> Result<Counted, String> {
    let failed = |error: std::io::Error| format!("{}: {error}", socket.display());
    let mut client = Client::connect(socket, export).map_err(failed)?;
    let data = vec![5; load.bytes as usize];
    let places = load.span / u64::from(load.bytes);
    let mut counted = Counted { slots: vec![0; slot(end)], latencies_us: Vec::new() };
    let mut sent = HashMap::new();
    let mut number = 0_u64;
    loop {
        let now = start.elapsed();
        let wish = if now < end { wish(now) } else { Wish::End };
        if wish == Wish::Ask {
            while sent.len() < load.depth as usize {
                let request = request(load, number % places, number, &data);
                sent.insert(client.send(&request).map_err(failed)?, start.elapsed());
                number += 1;
            }
        }
        if sent.is_empty() {
            if wish == Wish::End {
                break;
            }
            std::thread::sleep(REST);
            continue;
        }
        let reply = client.receive().map_err(failed)?;
        if reply.error != 0 {
            return Err(format!("a request failed with error {}", reply.error));
        }
        let now = start.elapsed();
        if let Some(since) = sent.remove(&reply.cookie) {
            counted.latencies_us.push((now - since).as_secs_f64() * 1e6);
        }
        if let Some(count) = counted.slots.get_mut(slot(now)) {
            *count += 1;
        }
    }
    counted.latencies_us.sort_by(f64::total_cmp);
    Ok(counted)
}

fn slot(at: Duration) -> usize {
    (at.as_millis() / SLOT.as_millis()) as usize
}

fn request(load: Load, place: u64, number: u64, data: &[u8]) -> Request<'_> {
    let offset = place * u64::from(load.bytes);
    let read = match load.mix {
        Mix::Reads => true,
        Mix::Writes => false,
        Mix::Mixed => number.is_multiple_of(2),
    };
    if read { Request::read(offset, load.bytes) } else { Request::write(offset, data) }
}

/// What several of them did side by side, in order.
pub fn side_by_side<T: Send>(
    clients: impl IntoIterator<Item = impl FnOnce() -> Result<T, String> + Send>,
) -> Result<Vec<T>, String> {
    std::thread::scope(|scope| {
        let started: Vec<_> = clients.into_iter().map(|client| scope.spawn(client)).collect();
        let ended = started.into_iter().map(|client| client.join());
        ended.map(|result| result.map_err(|_| "a client panicked".to_owned()).flatten()).collect()
    })
}
