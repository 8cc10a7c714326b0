//! One line that says what the server is doing, rewritten in place, on a terminal only.

use std::io::{IsTerminal, Write};
use std::time::Duration;

use graph::size::human_size;

/// What is counted, since the start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Totals {
    /// Requests answered.
    pub requests: u64,
    /// Bytes read and written.
    pub bytes: u64,
    /// Map lookups that the cache answered.
    pub hits: u64,
    /// Map lookups that had to read the disk.
    pub misses: u64,
    /// Bytes of disk that the cached map covers.
    pub covered_bytes: u64,
    /// Bytes of all disks.
    pub disk_bytes: u64,
    /// Connections open now.
    pub connections: u64,
}

/// The line for what happened between two counts.
pub fn line(before: &Totals, now: &Totals, elapsed: Duration) -> String {
    let milliseconds = elapsed.as_millis().max(1);
    let rate = |before: u64, now: u64| -> u64 {
        u64::try_from(u128::from(now.saturating_sub(before)) * 1000 / milliseconds).unwrap_or(u64::MAX)
    };
    let (hits, misses) = (now.hits.saturating_sub(before.hits), now.misses.saturating_sub(before.misses));
    let cache = match hits + misses {
        0 => "cache idle".to_owned(),
        lookups => format!("cache hits {}", percent(hits, lookups)),
    };
    format!(
        "{} requests/s  {}/s  {cache}  map covers {} of {}  {} connections",
        rate(before.requests, now.requests),
        human_size(rate(before.bytes, now.bytes)),
        human_size(now.covered_bytes),
        human_size(now.disk_bytes),
        now.connections,
    )
}

fn percent(part: u64, whole: u64) -> String {
    let tenths = u128::from(part) * 1000 / u128::from(whole.max(1));
    format!("{}.{} %", tenths / 10, tenths % 10)
}

/// Standard error, if a person is looking at it.
#[derive(Debug)]
pub struct StatusLine {
    before: Totals,
    shown: bool,
}

impl StatusLine {
    /// `None` if standard error is no terminal.
    pub fn on_terminal() -> Option<Self> {
        std::io::stderr().is_terminal().then(|| Self { before: Totals::default(), shown: false })
    }

    /// Replaces the line.
    pub fn show(&mut self, now: Totals, elapsed: Duration) {
        let text = line(&self.before, &now, elapsed);
        self.before = now;
        if !in_foreground() {
            return;
        }
        self.shown = true;
        // The line is an extra: that it cannot be shown stops nothing.
        let _ = write!(std::io::stderr(), "\r\x1b[2K{text}");
    }
}

/// Whether the terminal is ours to write on. In the background (`&`) it belongs to the shell, and a person types there.
fn in_foreground() -> bool {
    rustix::termios::tcgetpgrp(std::io::stderr()).is_ok_and(|group| group == rustix::process::getpgrp())
}

/// Clears the line for the output that follows.
impl Drop for StatusLine {
    fn drop(&mut self) {
        if self.shown && in_foreground() {
            let _ = write!(std::io::stderr(), "\r\x1b[2K");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_are_of_the_time_that_passed() {
        let before = Totals { requests: 100, bytes: 1 << 20, hits: 10, misses: 10, ..Totals::default() };
        let now = Totals {
            requests: 1100,
            bytes: 5 << 20,
            hits: 1000,
            misses: 20,
            covered_bytes: 8 << 30,
            disk_bytes: 20 << 30,
            connections: 2,
        };
        assert_eq!(
            line(&before, &now, Duration::from_millis(500)),
            "2000 requests/s  8 MiB/s  cache hits 99.0 %  map covers 8 GiB of 20 GiB  2 connections"
        );
        assert!(line(&now, &now, Duration::ZERO).starts_with("0 requests/s  0 B/s  cache idle"));
    }
}
