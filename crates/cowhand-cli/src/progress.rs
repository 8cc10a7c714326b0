//! How far a tool is, on a terminal: percent and rate, one line that is written over.

use std::io::{self, IsTerminal, Write};
use std::time::{Duration, Instant};

use graph::size::human_size;

use crate::output::tell;

/// Often enough to be seen moving, seldom enough to cost nothing.
const INTERVAL: Duration = Duration::from_millis(200);

/// The line on standard error. Where that is no terminal, nothing is ever written.
#[derive(Debug)]
pub struct Progress {
    shown: bool,
    /// Something stands on the line.
    written: bool,
    total_bytes: u64,
    started: Instant,
    told: Option<Instant>,
}

impl Progress {
    /// Begins now. `wanted`: the user asked for it.
    pub fn begin(wanted: bool, total_bytes: u64, now: Instant) -> Self {
        let shown = wanted && io::stderr().is_terminal();
        Self { shown, written: false, total_bytes, started: now, told: None }
    }

    /// So many bytes are done.
    pub fn at(&mut self, done_bytes: u64, now: Instant) {
        let is_due = self.told.is_none_or(|told| now.duration_since(told) >= INTERVAL);
        if self.shown && is_due {
            self.told = Some(now);
            self.written = true;
            let line = line(done_bytes, self.total_bytes, now.duration_since(self.started));
            let _ = write!(io::stderr(), "\r{line}\x1b[K");
        }
    }

    /// Says on a line of its own how far it is, wherever standard error goes: somebody asked by a signal.
    pub fn tell(&mut self, done_bytes: u64, now: Instant) {
        self.end();
        tell(format_args!("{}", line(done_bytes, self.total_bytes, now.duration_since(self.started))));
    }

    /// Takes the line away.
    pub fn end(&mut self) {
        if std::mem::take(&mut self.written) {
            let _ = write!(io::stderr(), "\r\x1b[K");
        }
    }
}

fn line(done_bytes: u64, total_bytes: u64, elapsed: Duration) -> String {
    let percent = u128::from(done_bytes) * 100 / u128::from(total_bytes.max(1));
    let per_second = u128::from(done_bytes) * 1000 / elapsed.as_millis().max(1);
    let rate = human_size(u64::try_from(per_second).unwrap_or(u64::MAX));
    format!("{percent:3} %  {rate}/s")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_line_has_percent_and_rate_at_any_size() {
        assert_eq!(line(1 << 30, 4 << 30, Duration::from_secs(2)), " 25 %  512 MiB/s");
        assert_eq!(line(0, 0, Duration::ZERO), "  0 %  0 B/s");
        assert_eq!(line(u64::MAX, u64::MAX, Duration::ZERO).split(' ').next(), Some("100"));
    }

    #[test]
    fn nothing_is_shown_that_nobody_asked_for() {
        let now = Instant::now();
        let mut progress = Progress::begin(false, 10, now);
        progress.at(5, now);
        assert!(!progress.shown && !progress.written);
    }
}
