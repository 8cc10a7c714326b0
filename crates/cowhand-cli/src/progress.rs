//! How far a tool is, on a terminal: percent and rate, one line that is written over.

use std::io::{self, IsTerminal, Write};
use std::time::{Duration, Instant};

use graph::size::human_size;
use tool::output::tell;
use tool::voice;

/// Often enough to be seen moving, seldom enough to cost nothing.
const INTERVAL: Duration = Duration::from_millis(200);

/// The line on standard error. Where that is no terminal, nothing is ever written, but under qemu-img's name, whose form goes to
/// standard output.
#[derive(Debug)]
pub struct Progress {
    shown: bool,
    /// In qemu-img's form, on standard output: programs read it.
    qemu: bool,
    /// The line has text.
    written: bool,
    total_bytes: u64,
    started: Instant,
    reported: Option<Instant>,
    reported_bytes: u64,
}

impl Progress {
    /// Begins now. `wanted`: the user asked for it.
    pub fn begin(wanted: bool, total_bytes: u64, now: Instant) -> Self {
        let qemu = voice::is_qemu();
        let shown = wanted && (qemu || io::stderr().is_terminal());
        let mut progress = Self {
            shown,
            qemu,
            written: false,
            total_bytes,
            started: now,
            reported: None,
            reported_bytes: 0,
        };
        if qemu {
            progress.at(0, now);
        }
        progress
    }

    /// Whether anything is written.
    pub fn is_shown(&self) -> bool {
        self.shown
    }

    /// Another total than was known.
    pub fn set_total(&mut self, total_bytes: u64) {
        self.total_bytes = total_bytes;
    }

    /// So many bytes are done.
    pub fn at(&mut self, done_bytes: u64, now: Instant) {
        if !self.shown || !self.is_due(done_bytes, now) {
            return;
        }
        (self.reported, self.reported_bytes, self.written) = (Some(now), done_bytes, true);
        if self.qemu {
            let mut out = io::stdout();
            let _ = write!(out, "{}\r", share(done_bytes, self.total_bytes)).and_then(|()| out.flush());
        } else {
            let line = line(done_bytes, self.total_bytes, now.duration_since(self.started));
            let _ = write!(io::stderr(), "\r{line}\x1b[K");
        }
    }

    /// qemu-img prints each percent, whatever the time.
    fn is_due(&self, done_bytes: u64, now: Instant) -> bool {
        let Some(reported) = self.reported else { return true };
        match self.qemu {
            true => done_bytes.saturating_sub(self.reported_bytes) >= (self.total_bytes / 100).max(1),
            false => now.duration_since(reported) >= INTERVAL,
        }
    }

    /// Prints the progress on a line of its own, also where standard error is no terminal: a signal asked for
    /// it.
    pub fn tell(&mut self, done_bytes: u64, now: Instant) {
        if self.qemu {
            tell(format_args!("{}", share(done_bytes, self.total_bytes)));
            return;
        }
        self.end();
        tell(format_args!("{}", line(done_bytes, self.total_bytes, now.duration_since(self.started))));
    }

    /// Prints on a line of its own that all is done.
    pub fn tell_whole(&mut self, now: Instant) {
        // Nothing to do is all of it.
        self.total_bytes = self.total_bytes.max(1);
        self.tell(self.total_bytes, now);
    }

    /// All is done. qemu-img says so whatever it said before.
    pub fn whole(&mut self, now: Instant) {
        if self.qemu {
            self.reported = None;
        }
        self.at(self.total_bytes, now);
    }

    /// Takes the line away.
    pub fn end(&mut self) {
        if !std::mem::take(&mut self.written) {
            return;
        }
        let _ = match self.qemu {
            true => writeln!(io::stdout()),
            false => write!(io::stderr(), "\r\x1b[K"),
        };
    }
}

/// How qemu-img says it.
#[expect(clippy::cast_precision_loss, reason = "two digits are shown")]
fn share(done_bytes: u64, total_bytes: u64) -> String {
    let percent = if total_bytes == 0 { 100.0 } else { done_bytes as f64 * 100.0 / total_bytes as f64 };
    format!("    ({percent:.2}/100%)")
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
    fn qemu_imgs_form_has_two_digits_and_the_whole() {
        let shown = [(0, 8), (1, 3), (8, 8), (0, 0)].map(|(done, total)| share(done, total));
        let expected = ["    (0.00/100%)", "    (33.33/100%)", "    (100.00/100%)", "    (100.00/100%)"];
        assert_eq!(shown, expected);
    }

    #[test]
    fn nothing_is_shown_that_nobody_asked_for() {
        let now = Instant::now();
        let mut progress = Progress::begin(false, 10, now);
        progress.at(5, now);
        assert!(!progress.shown && !progress.written);
    }
}
