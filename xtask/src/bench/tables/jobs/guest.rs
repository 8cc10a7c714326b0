//! A guest that writes as fast as it is answered, or at a rate.

use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use black_box::client::Request;
use black_box::{Client, Random};

/// Bytes of each write.
const BLOCK_BYTES: u64 = 4096;

/// What it does.
#[derive(Clone, Copy, Debug)]
pub struct Load {
    /// Requests in flight.
    pub depth: usize,
    /// It writes at random places of the first bytes of the disk: so many.
    pub span_bytes: u64,
    /// Where its random numbers begin.
    pub seed: u64,
    /// The time from one request to the next; none: as soon as there is room for it.
    pub every: Option<Duration>,
}

/// A request that was answered.
#[derive(Clone, Copy, Debug)]
pub struct Answer {
    /// When it was sent.
    pub sent: Instant,
    /// How long it took.
    pub took: Duration,
}

/// What it was answered.
#[derive(Clone, Debug)]
pub struct Answers(pub Vec<Answer>);

impl Answers {
    /// Requests a second in `time`, and the 99th percentile of their latency in microseconds.
    pub fn in_time(&self, (start, end): (Instant, Instant)) -> (f64, f64) {
        let inside = self.0.iter().filter(|answer| answer.sent >= start && answer.sent + answer.took < end);
        let mut took: Vec<f64> = inside.map(|answer| answer.took.as_secs_f64() * 1e6).collect();
        took.sort_by(f64::total_cmp);
        let p99 = took.get(took.len() * 99 / 100).copied().unwrap_or(f64::NAN);
        (took.len() as f64 / (end - start).as_secs_f64(), p99)
    }

    /// The longest that a request took which was on its way at some moment of `time`.
    pub fn longest(&self, (start, end): (Instant, Instant)) -> Duration {
        // Sorted by their ends, as they were answered.
        let first = self.0.partition_point(|answer| answer.sent + answer.took < start);
        let during = self.0[first..].iter().take_while(|answer| answer.sent + answer.took < end + LATE);
        during.filter(|answer| answer.sent < end).map(|answer| answer.took).max().unwrap_or_default()
    }
}

/// How much later than the end of a change the answer to a request may come that waited for it.
const LATE: Duration = Duration::from_secs(2);

/// Runs `work` beside a guest at the export at `socket`.
///
/// # Errors
/// What `work` says, or a request of the guest that failed.
pub fn beside<T>(
    socket: &Path,
    load: Load,
    work: impl FnOnce() -> Result<T, String>,
) -> Result<(T, Answers), String> {
    let ends = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let guest = scope.spawn(|| keep_writing(socket, load, &ends));
        let done = work();
        ends.store(true, Ordering::Relaxed);
        let answers = guest.join().map_err(|_| "the guest panicked".to_owned())?;
        Ok((done?, answers?))
    })
}

fn keep_writing(socket: &Path, load: Load, ends: &AtomicBool) -> Result<Answers, String> {
    let failed = |error: std::io::Error| format!("the guest at {}: {error}", socket.display());
    let mut client = Client::connect(socket, "bench").map_err(failed)?;
    let (mut random, data) = (Random::new(load.seed), vec![7; BLOCK_BYTES as usize]);
    let mut sent = std::collections::HashMap::new();
    let (mut answers, mut due) = (Vec::new(), Instant::now());
    loop {
        if let Some(every) = load.every {
            std::thread::sleep(due.saturating_duration_since(Instant::now()));
            due = Instant::now().max(due + every);
        }
        while sent.len() < load.depth && !ends.load(Ordering::Relaxed) {
            let offset = random.below(load.span_bytes / BLOCK_BYTES) * BLOCK_BYTES;
            let begun = Instant::now();
            sent.insert(client.send(&Request::write(offset, &data)).map_err(failed)?, begun);
        }
        if sent.is_empty() {
            return Ok(Answers(answers));
        }
        let reply = client.receive().map_err(failed)?;
        if reply.error != 0 {
            return Err(format!("a write of the guest failed with error {}", reply.error));
        }
        let begun = sent.remove(&reply.cookie).ok_or("an answer to nothing")?;
        answers.push(Answer { sent: begun, took: begun.elapsed() });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_that_waited_for_a_change_counts_and_others_do_not() {
        let start = Instant::now();
        let at = |millis| start + Duration::from_millis(millis);
        let answer = |sent, millis| Answer { sent: at(sent), took: Duration::from_millis(millis) };
        let answers = Answers(vec![answer(0, 5), answer(8, 4), answer(9, 30), answer(41, 50)]);
        assert_eq!(answers.longest((at(10), at(20))), Duration::from_millis(30));
        assert_eq!(answers.longest((at(6), at(7))), Duration::ZERO);
        let (rate, p99) = answers.in_time((at(0), at(40)));
        assert_eq!((rate, p99), (75.0, 30_000.0));
    }
}
