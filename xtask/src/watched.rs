//! A test program with a limit for each of its tests: one that hangs is named and ended, with all that it started, instead of holding up the run.
//!
//! The harness says on standard output which tests have been running for long, and which have ended. With one thread it says each test's name first
//! and the result later, on one line.

use std::collections::BTreeMap;
use std::io::{self, Read};
use std::process::{Child, Command, ExitStatus};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::{Duration, Instant};

/// How long one test may take beside others; the longest takes about two minutes.
pub const TEST_MAX: Duration = Duration::from_secs(20 * 60);

/// How long one test may take that gets a processor only while no other program wants it.
pub const IDLE_TEST_MAX: Duration = Duration::from_secs(90 * 60);

/// `COWHAND_TEST_MINUTES` is the limit for tests that were asked for more work than usual.
const MINUTES: &str = "COWHAND_TEST_MINUTES";

/// Time between two looks at a program that says nothing.
const LOOK: Duration = Duration::from_millis(200);

/// Programs that a test left may keep its standard output open: so long what comes is read after its end.
const LEFT_OPEN: Duration = Duration::from_secs(2);

/// After this long the harness calls a test a slow one.
const HARNESS_WAITS: Duration = Duration::from_secs(60);

/// Runs `program`, whose standard output comes from `output`, to its end; each of its tests may take `limit`. `said` gets what it prints.
///
/// # Errors
/// When it cannot be run; names the tests that took too long.
pub fn run(
    program: &mut Command,
    output: impl Read + Send + 'static,
    limit: Duration,
    said: &mut dyn FnMut(&[u8]),
) -> io::Result<ExitStatus> {
    let minutes = std::env::var(MINUTES).ok().and_then(|minutes| minutes.parse().ok());
    let limit = minutes.map_or(limit, |minutes: u64| Duration::from_secs(60 * minutes));
    let mut child = program.spawn()?;
    // The command has its end of a pipe, which would never be closed.
    program.stdout(std::process::Stdio::null()).stderr(std::process::Stdio::null());
    let pieces = pieces(output);
    let mut tests = Running::default();
    let mut ended = None;
    loop {
        match pieces.recv_timeout(LOOK) {
            Ok(piece) => {
                tests.hear(&piece, Instant::now());
                said(&piece);
            }
            Err(RecvTimeoutError::Disconnected) => return child.wait(),
            Err(RecvTimeoutError::Timeout) if ended.is_some_and(|at: Instant| at.elapsed() > LEFT_OPEN) => {
                return child.wait();
            }
            Err(RecvTimeoutError::Timeout) => {}
        }
        if ended.is_none() && child.try_wait()?.is_some() {
            ended = Some(Instant::now());
        }
        let late = tests.late(Instant::now(), limit);
        if ended.is_none() && !late.is_empty() {
            end_with_all(&mut child)?;
            let what = format!("took longer than {} min: {}", limit.as_secs() / 60, late.join(", "));
            return Err(io::Error::new(io::ErrorKind::TimedOut, what));
        }
    }
}

/// What comes out of `output`, piece by piece.
fn pieces(mut output: impl Read + Send + 'static) -> Receiver<Vec<u8>> {
    let (sender, receiver) = channel();
    std::thread::spawn(move || {
        let mut buffer = [0; 16 << 10];
        while let Ok(len @ 1..) = output.read(&mut buffer) {
            if sender.send(buffer[..len].to_vec()).is_err() {
                return;
            }
        }
    });
    receiver
}

/// Kills a program and all that descends from it.
fn end_with_all(child: &mut Child) -> io::Result<()> {
    let mut all = vec![child.id()];
    let mut at = 0;
    while let Some(pid) = all.get(at) {
        let tasks = std::fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
        let lists: Vec<String> =
            tasks.filter_map(|task| std::fs::read_to_string(task.path().join("children")).ok()).collect();
        all.extend(
            lists.iter().flat_map(|list| list.split_whitespace()).filter_map(|pid| pid.parse::<u32>().ok()),
        );
        at += 1;
    }
    for pid in all.iter().skip(1).filter_map(|pid| rustix::process::Pid::from_raw(i32::try_from(*pid).ok()?))
    {
        // It may have ended.
        let _ = rustix::process::kill_process(pid, rustix::process::Signal::KILL);
    }
    child.kill()?;
    child.wait().map(drop)
}

/// The tests of which the harness has said that they run.
#[derive(Debug, Default)]
struct Running {
    since: BTreeMap<String, Instant>,
    /// The beginning of a line.
    line: Vec<u8>,
}

impl Running {
    fn hear(&mut self, piece: &[u8], now: Instant) {
        for byte in piece {
            match byte {
                b'\n' => {
                    let line = std::mem::take(&mut self.line);
                    self.hear_line(&String::from_utf8_lossy(&line), now);
                }
                byte => self.line.push(*byte),
            }
        }
        let begun = String::from_utf8_lossy(&self.line);
        if let Some((name, "")) = test_of(&begun) {
            self.since.entry(name.to_owned()).or_insert(now);
        }
    }

    fn hear_line(&mut self, line: &str, now: Instant) {
        const SLOW: &str = " has been running for over ";
        match (test_of(line), line.strip_prefix("test ").and_then(|rest| rest.split_once(SLOW))) {
            (_, Some((name, _))) => {
                self.since.insert(name.to_owned(), now.checked_sub(HARNESS_WAITS).unwrap_or(now));
            }
            (Some((name, _)), None) => drop(self.since.remove(name)),
            (None, None) => {}
        }
    }

    fn late(&self, now: Instant, limit: Duration) -> Vec<String> {
        let late = self.since.iter().filter(|(_, since)| now.duration_since(**since) > limit);
        late.map(|(name, _)| name.clone()).collect()
    }
}

/// The name and the result of a line `test NAME ... RESULT`.
fn test_of(line: &str) -> Option<(&str, &str)> {
    line.strip_prefix("test ")?.split_once(" ... ")
}

#[cfg(test)]
mod tests {
    use std::process::Stdio;

    use super::*;

    #[test]
    fn tests_run_from_the_harnesss_word_to_their_result() {
        let start = Instant::now() + Duration::from_secs(600);
        let at = |seconds| start + Duration::from_secs(seconds);
        let mut running = Running::default();
        let minute = Duration::from_secs(60);
        running.hear(b"\nrunning 3 tests\ntest a::b ... ok\ntest c has been running for over 60 sec", at(60));
        running.hear(b"onds\ntest d has been running for over 60 seconds\n", at(60));
        assert_eq!(running.late(at(60), minute), Vec::<String>::new());
        assert_eq!(running.late(at(61), minute), ["c", "d"]);
        running.hear(b"test c ... FAILED\n", at(62));
        assert_eq!(running.late(at(90), minute), ["d"]);
        running.hear(b"test d ... ok\ntest alone ... ", at(100));
        assert_eq!(running.late(at(161), minute), ["alone"], "one thread");
        running.hear(b"ok\n", at(162));
        assert!(running.late(at(1000), minute).is_empty());
    }

    fn ran(script: &str, limit: Duration) -> (io::Result<ExitStatus>, String) {
        let (reader, writer) = io::pipe().unwrap();
        let mut command = Command::new("sh");
        command.args(["-c", script]).stdin(Stdio::null()).stdout(writer);
        let mut said = Vec::new();
        let ended = run(&mut command, reader, limit, &mut |piece| said.extend_from_slice(piece));
        (ended, String::from_utf8(said).unwrap())
    }

    /// A test waited for a server that ignored the signal which was to end it, and the whole run with it, for ever and without a name.
    #[test]
    fn a_test_that_hangs_is_named_and_ended_with_what_it_started() {
        let (ended, said) = ran("sleep 1000 & echo $!; printf 'test one::hangs ... '; wait", Duration::ZERO);
        assert!(ended.unwrap_err().to_string().ends_with(": one::hangs"));
        let started = said.lines().next().unwrap();
        // It was killed, which takes effect when it gets a processor; if it was not, this test hangs.
        let is_left = || {
            let stat = std::fs::read_to_string(format!("/proc/{started}/stat")).unwrap_or_default();
            !stat.is_empty() && !stat.contains(") Z ")
        };
        while is_left() {
            std::thread::yield_now();
        }
    }

    #[test]
    fn a_program_that_ends_has_said_everything_also_when_it_leaves_another() {
        let (ended, said) = ran("echo one; echo two; exit 3", TEST_MAX);
        assert_eq!((ended.unwrap().code(), &*said), (Some(3), "one\ntwo\n"));
        let (ended, said) = ran("sleep 20 & echo one", TEST_MAX);
        assert_eq!((ended.unwrap().code(), &*said), (Some(0), "one\n"));
    }
}
