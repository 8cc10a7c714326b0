//! A client that always asks for more, and counts what it gets second by second.

use std::path::Path;
use std::time::{Duration, Instant};

use black_box::Client;
use black_box::client::Request;

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
    /// Requests answered in each whole second but the first, in which the first bucket goes.
    pub seconds: Vec<f64>,
    /// How long requests took, in microseconds, ascending.
    pub latencies_us: Vec<f64>,
}

impl Counted {
    /// Requests a second.
    pub fn mean(&self) -> f64 {
        self.seconds.iter().sum::<f64>() / self.seconds.len().max(1) as f64
    }

    /// Largest deviation of a second from `expected`, in per cent.
    pub fn worst_percent(&self, expected: f64) -> f64 {
        self.seconds.iter().map(|second| percent(*second, expected).abs()).fold(0.0, f64::max)
    }

    /// The latency that `per_mille` thousandths of the requests stayed below, in microseconds.
    pub fn quantile_us(&self, per_mille: usize) -> f64 {
        let at = self.latencies_us.len() * per_mille / 1000;
        self.latencies_us.get(at).or(self.latencies_us.last()).copied().unwrap_or(f64::NAN)
    }
}

/// Deviation of `found` from `expected`, in per cent.
pub fn percent(found: f64, expected: f64) -> f64 {
    (found / expected - 1.0) * 100.0
}

/// Keeps `load` up for one second and `seconds` more.
pub fn keep_asking(socket: &Path, export: &str, load: Load, seconds: u32) -> Result<Counted, String> {
    let failed = |error: std::io::Error| format!("{}: {error}", socket.display());
    let mut client = Client::connect(socket, export).map_err(failed)?;
    let data = vec![5; load.bytes as usize];
    let places = load.span / u64::from(load.bytes);
    let mut counts = vec![0_u32; seconds as usize + 1];
    let mut sent = std::collections::HashMap::new();
    let mut latencies_us = Vec::new();
    let start = Instant::now();
    let end = Duration::from_secs(u64::from(seconds) + 1);
    let mut number = 0_u64;
    loop {
        while sent.len() < load.depth as usize {
            let request = request(load, number % places, number, &data);
            sent.insert(client.send(&request).map_err(failed)?, start.elapsed());
            number += 1;
        }
        let reply = client.receive().map_err(failed)?;
        if reply.error != 0 {
            return Err(format!("a request failed with error {}", reply.error));
        }
        let now = start.elapsed();
        if let Some(since) = sent.remove(&reply.cookie) {
            latencies_us.push((now - since).as_secs_f64() * 1e6);
        }
        if now >= end {
            break;
        }
        counts[now.as_secs() as usize] += 1;
    }
    latencies_us.sort_by(f64::total_cmp);
    Ok(Counted { seconds: counts.into_iter().skip(1).map(f64::from).collect(), latencies_us })
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
