//! `--log`: what is logged on standard error.

use std::ffi::OsStr;
use std::io::{self, IsTerminal, Write};

use tool::failure::Failure;
use tracing_subscriber::EnvFilter;

use super::log_filter;

/// Starts logging what `filter` selects.
///
/// # Errors
/// When the filter names what there is not.
pub fn start(filter: &str) -> Result<(), Failure> {
    let filter = log_filter::parse(filter)?;
    let parsed = EnvFilter::try_new(&filter)
        .map_err(|error| Failure::because(format!("--log {filter} cannot be understood"), &error))?;
    let terminal = io::stderr().is_terminal();
    let colours =
        colours(terminal, std::env::var_os("NO_COLOR").as_deref(), std::env::var_os("TERM").as_deref());
    let subscriber =
        tracing_subscriber::fmt().with_env_filter(parsed).with_ansi(colours).with_writer(|| Stderr);
    // In tests another subscriber may be set already.
    let _ = subscriber.try_init();
    Ok(())
}

/// Whether the log has colours: only on a terminal that can show them, and not with NO_COLOR (no-color.org).
fn colours(terminal: bool, no_color: Option<&OsStr>, term: Option<&OsStr>) -> bool {
    terminal && no_color.is_none_or(OsStr::is_empty) && term.is_some_and(|term| term != "dumb")
}

/// Standard error, even after it is closed. An error of writing (the terminal is gone, the pipe closed, the
/// log's disk full) is not returned to the subscriber: it would panic, and end the program with its disks.
struct Stderr;

impl Write for Stderr {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        // One call has a whole line.
        let text = String::from_utf8_lossy(bytes);
        let _ = io::stderr()
            .write_all(control::text::shown_lines(&memory::secret::without_credentials(&text)).as_bytes());
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_malformed_filter_is_an_error() {
        assert!(start("qcow2=loud").is_err());
        assert!(start("wran").is_err());
        assert!(start("warn,qcow2=debug").is_ok());
    }

    #[test]
    fn only_a_terminal_that_shows_them_gets_colours() {
        let text = |text: &'static str| Some(OsStr::new(text));
        assert!(colours(true, None, text("xterm")) && colours(true, text(""), text("xterm")));
        assert!(!colours(false, None, text("xterm")));
        assert!(!colours(true, text("1"), text("xterm")) && !colours(true, None, text("dumb")));
    }
}
