//! SIGHUP, SIGINT, SIGTERM and SIGQUIT as descriptors that become readable.
//!
//! The first of them asks for an orderly end. Losing a terminal sends several (the kernel and the shell both send SIGHUP), a supervisor
//! may send SIGTERM and SIGHUP: more of these change nothing. Only a person who presses Ctrl-C again and again wants haste.

use std::cell::Cell;
use std::io;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use memory::IoBuf;
use reactor::net::Stream;
use signal_hook::consts::{SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGXFSZ};
use signal_hook::low_level::pipe;

/// So many SIGINT or SIGQUIT end the process at once: one may come from the terminal and one from a script around us, for one key.
const INTERRUPTS_FOR_HASTE: u32 = 3;

/// Signals of this process from [`watch`] on.
#[derive(Debug)]
pub struct Signals {
    /// A byte for each signal that asks for the end.
    end: UnixStream,
    /// A byte for each that a key sends.
    interrupts: UnixStream,
}

/// The same on an event loop.
#[derive(Debug)]
pub struct SignalStreams {
    end: Stream,
    interrupts: Stream,
    interrupts_seen: Cell<u32>,
}

/// Starts to catch the signals that end the program. SIGHUP, SIGINT and SIGQUIT stay ignored if the parent process ignores them
/// (nohup, `&` in a script).
///
/// # Errors
/// When the process may not have more descriptors.
pub fn watch() -> io::Result<Signals> {
    let (end, end_sender) = UnixStream::pair()?;
    let (interrupts, interrupt_sender) = UnixStream::pair()?;
    let is_ignored = ignored_now();
    for signal in [SIGHUP, SIGINT, SIGTERM, SIGQUIT] {
        if signal == SIGTERM || !is_ignored(signal) {
            pipe::register(signal, end_sender.try_clone()?)?;
        }
    }
    for signal in [SIGINT, SIGQUIT] {
        if !is_ignored(signal) {
            pipe::register(signal, interrupt_sender.try_clone()?)?;
        }
    }
    // A write beyond RLIMIT_FSIZE is an error of that request. Unhandled, this signal would kill the process.
    signal_hook::flag::register(SIGXFSZ, Arc::new(AtomicBool::new(false)))?;
    Ok(Signals { end, interrupts })
}

/// Says of a signal whether the process ignores it now.
pub fn ignored_now() -> impl Fn(i32) -> bool {
    let ignored = ignored_signals(&std::fs::read_to_string("/proc/self/status").unwrap_or_default());
    move |signal| ignored >> (signal - 1) & 1 == 1
}

/// The mask of ignored signals in the text of /proc/self/status; none where there is no such line.
fn ignored_signals(status: &str) -> u64 {
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).unwrap_or(0)
}

impl Signals {
    /// To be awaited on an event loop.
    pub fn on_loop(self) -> SignalStreams {
        SignalStreams {
            end: Stream::from_fd(self.end.into()),
            interrupts: Stream::from_fd(self.interrupts.into()),
            interrupts_seen: Cell::new(0),
        }
    }
}

impl SignalStreams {
    /// Waits for the first signal that asks for the end.
    pub async fn end(&self) {
        // The other end is the signal handlers' and never closes; should it fail, nothing could end us
        // in order any more, so that is taken for a signal too.
        let (_, _) = self.end.recv(IoBuf::uninit(1)).await;
    }

    /// Waits for `INTERRUPTS_FOR_HASTE` interrupts. Calls `reported` after each but the first and the last, with how many more
    /// it takes.
    pub async fn haste(&self, reported: impl Fn(u32)) {
        while self.interrupts_seen.get() < INTERRUPTS_FOR_HASTE {
            let (received, _) = self.interrupts.recv(IoBuf::uninit(1)).await;
            if !matches!(received, Ok(1..)) {
                // No keys can be read any more: the orderly end continues.
                return std::future::pending().await;
            }
            self.interrupts_seen.set(self.interrupts_seen.get() + 1);
            if (2..INTERRUPTS_FOR_HASTE).contains(&self.interrupts_seen.get()) {
                reported(INTERRUPTS_FOR_HASTE - self.interrupts_seen.get());
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::Read;

    use rustix::process::{Signal, getpid, kill_process};

    use super::*;

    #[test]
    fn each_signal_that_ends_becomes_a_byte() {
        // Also when the tests run under nohup or behind `&` in a script.
        let is_ignored = ignored_now();
        let mut signals = watch().unwrap();
        let mut keys = 0;
        for signal in [Signal::HUP, Signal::INT, Signal::TERM, Signal::QUIT] {
            kill_process(getpid(), signal).unwrap();
            if !is_ignored(signal.as_raw()) {
                signals.end.read_exact(&mut [0; 1]).unwrap();
                keys += usize::from([Signal::INT, Signal::QUIT].contains(&signal));
            }
        }
        signals.end.set_nonblocking(true).unwrap();
        assert!(signals.end.read(&mut [0; 1]).is_err());
        // Only the keys are counted.
        signals.interrupts.read_exact(&mut vec![0; keys]).unwrap();
        signals.interrupts.set_nonblocking(true).unwrap();
        assert!(signals.interrupts.read(&mut [0; 1]).is_err());
        kill_process(getpid(), Signal::XFSZ).unwrap();
    }

    #[test]
    fn haste_takes_three_interrupts_and_the_second_says_what_a_third_does() {
        use std::io::Write;

        let ((end, _), (interrupts, mut keys)) = (UnixStream::pair().unwrap(), UnixStream::pair().unwrap());
        let reactor = reactor::Reactor::new(reactor::Backend::Ring).unwrap();
        let signals = Signals { end, interrupts }.on_loop();
        let reported = Cell::new(0);
        keys.write_all(b"XXX").unwrap();
        reactor.run(signals.haste(|more| {
            assert_eq!((more, reported.get()), (1, 0));
            reported.set(reported.get() + 1);
        }));
        assert_eq!(reported.get(), 1);
    }

    #[test]
    fn the_mask_of_ignored_signals_is_read_from_status() {
        let status = "Name:\tcowhand\nSigBlk:\t0000000000000000\nSigIgn:\t0000000000001001\nSigCgt:\t0\n";
        assert_eq!(ignored_signals(status), 0x1001);
        assert_eq!(ignored_signals("Name:\tcowhand\n"), 0);
    }
}
