//! Signals of the programs that tests start: what ends them ends them, however the tests were started.
//!
//! A job of a script in the background ignores SIGINT and SIGQUIT, one under nohup SIGHUP, and programs inherit that: a server that was to be ended
//! by SIGINT never ended, and its test waited for ever. A signal that is caught is not inherited: a program that is started gets the default.

use std::sync::Once;

use signal_hook::consts::{SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGUSR1};

/// What tests send.
pub const SENT: [i32; 5] = [SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGUSR1];

/// Programs that are started from now on have the default action for these signals. This process goes on to ignore those that it ignores.
pub fn default_in_programs(signals: &[i32]) {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let status = std::fs::read_to_string("/proc/self/status").expect("/proc is there");
        for signal in signals.iter().filter(|signal| is_ignored(&status, **signal)) {
            signal_hook::flag::register(*signal, std::sync::Arc::default()).expect("it can be caught");
        }
    });
}

/// Whether a process with this `/proc/PID/status` ignores a signal.
pub fn is_ignored(status: &str, signal: i32) -> bool {
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    let mask = mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).expect("a mask");
    mask & (1 << (signal - 1)) != 0
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;

    /// The tests' own program once more, started as a job in the background is.
    #[test]
    fn a_program_that_a_test_starts_ignores_nothing_that_tests_send() {
        const STARTED: &str = "COWHAND_STARTED_IGNORING";
        if std::env::var_os(STARTED).is_some() {
            let own = std::fs::read_to_string("/proc/self/status").expect("it is there");
            assert!([SIGHUP, SIGINT, SIGQUIT].into_iter().all(|signal| is_ignored(&own, signal)));
            default_in_programs(&SENT);
            let status = Command::new("cat").arg("/proc/self/status").output().expect("it runs").stdout;
            let status = String::from_utf8(status).expect("text");
            assert!(SENT.into_iter().all(|signal| !is_ignored(&status, signal)), "{status}");
            return;
        }
        let own = std::env::current_exe().expect("a path");
        let name = "a_program_that_a_test_starts_ignores_nothing_that_tests_send";
        let script = format!("trap '' HUP INT QUIT; exec {} {name}", own.display());
        let output = Command::new("sh").args(["-c", &script]).env(STARTED, "1").output().expect("a shell");
        let said = String::from_utf8_lossy(&output.stdout);
        assert!(output.status.success() && said.contains("1 passed"), "{said}");
    }
}
