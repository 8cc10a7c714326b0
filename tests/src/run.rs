//! A process that is watched: what it said, how long it took, how much it held, and an end to it.

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::{Read, Seek, SeekFrom, Write};
use std::os::fd::OwnedFd;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, pidfd_open};

use crate::default_signals;

/// What QEMU's tools say, now and then, when they make a key: the kernel's count of CPU time went back. They are to try again.
const NO_CPU_TIME: &str = "Unable to get accurate CPU usage";

/// How long a process may take unless said otherwise: far beyond what any needs, short enough to
/// learn of a hang from the test that hung.
const LIMIT: Duration = Duration::from_secs(60);

/// How often memory and descriptors are looked at. What a process takes in its last instant before
/// the end is not seen: at memory speed some megabytes.
const SAMPLE: Duration = Duration::from_millis(1);

/// A process to be run.
#[derive(Debug)]
pub struct Run {
    program: OsString,
    args: Vec<OsString>,
    environment: Vec<(OsString, OsString)>,
    directory: Option<PathBuf>,
    input: Vec<u8>,
    limit: Duration,
}

/// How it went.
#[derive(Clone, Debug)]
pub struct Outcome {
    /// What was run, for messages.
    pub command: String,
    /// How it ended.
    pub status: ExitStatus,
    /// It was killed because it took longer than its limit.
    pub timed_out: bool,
    /// Standard output.
    pub stdout: String,
    /// Standard error.
    pub stderr: String,
    /// From start to end.
    pub wall: Duration,
    /// The most memory it held at once, in bytes (`VmHWM`).
    pub peak_rss_bytes: u64,
    /// The most descriptors that were seen open at once.
    pub descriptors_max: usize,
}

impl Run {
    /// `program` without arguments.
    pub fn new(program: impl AsRef<OsStr>) -> Self {
        Self {
            program: program.as_ref().to_owned(),
            args: Vec::new(),
            environment: Vec::new(),
            directory: None,
            input: Vec::new(),
            limit: LIMIT,
        }
    }

    /// The same in a PID namespace of its own: it sees no process outside, and takes the locks of those for the
    /// locks of no process. It is the only child of the process that is then run, and dies with it.
    #[must_use]
    pub fn unseeing(mut self) -> Self {
        let apart = ["--map-root-user", "--pid", "--fork", "--mount-proc", "--kill-child", "--"];
        let program = std::mem::replace(&mut self.program, "unshare".into());
        let all = apart.into_iter().map(OsString::from).chain([program]);
        self.args.splice(0..0, all);
        self
    }

    /// One more argument.
    #[must_use]
    pub fn arg(mut self, arg: impl AsRef<OsStr>) -> Self {
        self.args.push(arg.as_ref().to_owned());
        self
    }

    /// More arguments.
    #[must_use]
    pub fn args<S: AsRef<OsStr>>(mut self, args: impl IntoIterator<Item = S>) -> Self {
        self.args.extend(args.into_iter().map(|arg| arg.as_ref().to_owned()));
        self
    }

    /// An environment variable.
    #[must_use]
    pub fn env(mut self, name: &str, value: impl AsRef<OsStr>) -> Self {
        self.environment.push((name.into(), value.as_ref().to_owned()));
        self
    }

    /// The directory it runs in.
    #[must_use]
    pub fn current_dir(mut self, directory: impl AsRef<Path>) -> Self {
        self.directory = Some(directory.as_ref().to_owned());
        self
    }

    /// Its standard input.
    #[must_use]
    pub fn input(mut self, bytes: impl Into<Vec<u8>>) -> Self {
        self.input = bytes.into();
        self
    }

    /// It is killed after this long.
    #[must_use]
    pub fn limit(mut self, limit: Duration) -> Self {
        self.limit = limit;
        self
    }

    /// Runs it to its end.
    pub fn outcome(self) -> Outcome {
        loop {
            let outcome = self.once(|_| ());
            if !outcome.stderr.contains(NO_CPU_TIME) {
                return outcome;
            }
        }
    }

    /// The same; `started` gets its process id at once.
    pub fn outcome_telling(self, started: impl FnOnce(u32)) -> Outcome {
        self.once(started)
    }

    /// The same, with a SIGINT as soon as `ready` returns.
    pub fn interrupted_when(self, ready: impl FnOnce()) -> Outcome {
        self.outcome_telling(|pid| {
            ready();
            Run::new("kill").args(["-INT", &pid.to_string()]).ok();
        })
    }

    /// Kills it (SIGKILL) after `delay`. Whether it had not ended by itself.
    pub fn killed_after(self, delay: Duration) -> bool {
        let outcome = self.outcome_telling(|pid| {
            std::thread::sleep(delay);
            Run::new("kill").args(["-KILL", &pid.to_string()]).outcome();
        });
        outcome.status.signal().is_some()
    }

    fn once(&self, started: impl FnOnce(u32)) -> Outcome {
        let (stdout, stderr) = (temporary(), temporary());
        let mut child = self.spawn(&stdout, &stderr);
        started(child.id());
        let start = Instant::now();
        let watched = watch(&mut child, start, self.limit);
        let outcome = Outcome {
            command: self.to_string(),
            status: watched.status,
            timed_out: watched.timed_out,
            stdout: text(stdout),
            stderr: text(stderr),
            wall: start.elapsed(),
            peak_rss_bytes: watched.peak_rss_bytes,
            descriptors_max: watched.descriptors_max,
        };
        assert!(!outcome.panicked(), "it panicked: {outcome}");
        outcome
    }

    /// Runs it, insists that it succeeds, gives its standard output.
    pub fn ok(self) -> String {
        let outcome = self.outcome();
        assert!(outcome.status.success(), "{outcome}");
        outcome.stdout
    }

    /// Runs it, insists that it fails in an orderly way (an exit code, no signal, no time-out), gives
    /// its standard error.
    pub fn fails(self) -> String {
        let outcome = self.outcome();
        assert!(outcome.status.code().is_some_and(|code| code != 0), "it should fail: {outcome}");
        outcome.stderr
    }

    /// Runs it, insists that it succeeds and prints JSON.
    pub fn json(self) -> serde_json::Value {
        let command = self.to_string();
        let text = self.ok();
        serde_json::from_str(&text).unwrap_or_else(|error| panic!("{command}: not JSON ({error}): {text}"))
    }

    /// What is to be run, without its standard streams.
    pub(crate) fn command(&self) -> Command {
        default_signals::default_in_programs(&default_signals::SENT);
        let mut command = Command::new(&self.program);
        command.args(&self.args).envs(self.environment.iter().map(|(name, value)| (name, value)));
        if let Some(directory) = &self.directory {
            command.current_dir(directory);
        }
        command
    }

    fn spawn(&self, stdout: &File, stderr: &File) -> Child {
        let clone = |file: &File| Stdio::from(file.try_clone().expect("cannot duplicate a descriptor"));
        let mut command = self.command();
        command.stdin(input(&self.input)).stdout(clone(stdout)).stderr(clone(stderr));
        command.spawn().unwrap_or_else(|error| {
            panic!("cannot run {self}: {error} (`cargo xtask test` as root installs what is missing)")
        })
    }
}

impl std::fmt::Display for Run {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}", self.program.display())?;
        self.args.iter().try_for_each(|arg| match arg.to_str() {
            Some(word) if word.contains([' ', '\'', '&', '?', '{']) => write!(f, " '{word}'"),
            _ => write!(f, " {}", arg.display()),
        })
    }
}

impl Outcome {
    /// A bug of ours, whatever else it says.
    pub fn panicked(&self) -> bool {
        self.status.code() == Some(101) || self.stderr.contains("panicked at")
    }
}

impl std::fmt::Display for Outcome {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let late = if self.timed_out { ", killed for taking too long" } else { "" };
        let (wall, rss) = (self.wall, self.peak_rss_bytes >> 20);
        writeln!(f, "{}\n{}{late} after {wall:?}, {rss} MiB", self.command, self.status)?;
        writeln!(f, "--- stdout\n{}", tail(&self.stdout))?;
        write!(f, "--- stderr\n{}", tail(&self.stderr))
    }
}

/// The last part of a long text.
pub fn tail(text: &str) -> &str {
    const BYTES_MAX: usize = 16 << 10;
    let start = text.len().saturating_sub(BYTES_MAX);
    let start = (start..text.len()).find(|&at| text.is_char_boundary(at)).unwrap_or(start);
    &text[start..]
}

struct Watched {
    status: ExitStatus,
    timed_out: bool,
    peak_rss_bytes: u64,
    descriptors_max: usize,
}

fn watch(child: &mut Child, start: Instant, limit: Duration) -> Watched {
    let descriptor = pidfd(child);
    let (mut peak_rss_bytes, mut descriptors_max, mut timed_out) = (0, 0, false);
    while !ended(&descriptor, SAMPLE) {
        peak_rss_bytes = peak_rss_bytes.max(peak_rss(child.id()));
        descriptors_max = descriptors_max.max(descriptors(child.id()));
        if start.elapsed() > limit && !timed_out {
            timed_out = true;
            child.kill().expect("cannot kill a child");
        }
    }
    let status = child.wait().expect("cannot wait for a child");
    Watched { status, timed_out, peak_rss_bytes, descriptors_max }
}

/// A descriptor that becomes readable when the child ends.
pub fn pidfd(child: &Child) -> OwnedFd {
    let pid = Pid::from_raw(i32::try_from(child.id()).expect("a process id")).expect("a process id");
    pidfd_open(pid, PidfdFlags::empty()).expect("cannot watch a child")
}

/// Waits at most `wait` for the end of a process; says whether it has ended.
pub fn ended(descriptor: &OwnedFd, wait: Duration) -> bool {
    let wait = Timespec::try_from(wait).expect("a short wait");
    let mut fds = [PollFd::new(descriptor, PollFlags::IN)];
    matches!(poll(&mut fds, Some(&wait)), Ok(1..))
}

/// The most memory that the process held so far, in bytes; 0 if it is gone.
pub fn peak_rss(pid: u32) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    let kib = line.and_then(|line| line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok());
    kib.unwrap_or(0) << 10
}

/// Open descriptors of the process now; 0 if it is gone.
pub fn descriptors(pid: u32) -> usize {
    std::fs::read_dir(format!("/proc/{pid}/fd")).map_or(0, Iterator::count)
}

/// A file without a name.
fn temporary() -> File {
    tempfile::tempfile().expect("cannot make a temporary file")
}

fn input(bytes: &[u8]) -> Stdio {
    if bytes.is_empty() {
        return Stdio::null();
    }
    let mut file = temporary();
    file.write_all(bytes).and_then(|()| file.rewind()).expect("cannot write a temporary file");
    Stdio::from(file)
}

fn text(mut file: File) -> String {
    let mut bytes = Vec::new();
    file.seek(SeekFrom::Start(0))
        .and_then(|_| file.read_to_end(&mut bytes))
        .expect("cannot read what a process said");
    String::from_utf8_lossy(&bytes).into_owned()
}
