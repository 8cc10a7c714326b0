//! The daemon under test, from start to end.

use std::ffi::OsStr;
use std::fs::File;
use std::os::fd::OwnedFd;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

use crate::client::Client;
use crate::ready;
use crate::run::{Run, descriptors, ended, peak_rss, pidfd, tail};
use crate::scratch::Scratch;
use crate::{Outcome, program};

/// How long the daemon may take to listen, or to end: loading a machine fully must not fail a test.
const PATIENCE: Duration = Duration::from_secs(60);

/// How often it is looked whether something has happened.
const LOOK: Duration = Duration::from_millis(1);

/// A running `cowhand serve`. Killed when dropped; [`Server::stop`] ends it in order.
#[derive(Debug)]
pub struct Server {
    child: Child,
    end: OwnedFd,
    started: Instant,
    command: String,
    socket: PathBuf,
    /// The daemon is the child of the child.
    unseeing: bool,
    stdout: PathBuf,
    stderr: PathBuf,
    // Last: removed after the process.
    _scratch: Scratch,
}

/// How a start went wrong: the process ended before it listened.
#[derive(Debug)]
pub struct NotStarted(pub Outcome);

/// A daemon about to be started.
#[derive(Debug)]
pub struct Start {
    run: Run,
    socket: Option<PathBuf>,
    unseeing: bool,
}

impl Start {
    /// Of `cowhand serve ARGS`, listening on a socket in a directory of its own.
    pub fn new<S: AsRef<OsStr>>(args: impl IntoIterator<Item = S>) -> Self {
        Self { run: Run::new(program::path()).arg("serve").args(args), socket: None, unseeing: false }
    }

    /// As [`Start::new`], by way of another program that becomes cowhand: `arguments` are that one's.
    pub fn under<S: AsRef<OsStr>, T: AsRef<OsStr>>(
        program: &str,
        arguments: impl IntoIterator<Item = S>,
        args: impl IntoIterator<Item = T>,
    ) -> Self {
        let run = Run::new(program).args(arguments).arg(program::path()).arg("serve").args(args);
        Self { run, socket: None, unseeing: false }
    }

    /// One more argument.
    #[must_use]
    pub fn arg(mut self, arg: impl AsRef<OsStr>) -> Self {
        self.run = self.run.arg(arg);
        self
    }

    /// More arguments.
    #[must_use]
    pub fn args<S: AsRef<OsStr>>(mut self, args: impl IntoIterator<Item = S>) -> Self {
        self.run = self.run.args(args);
        self
    }

    /// It sees no process but itself ([`Run::unseeing`]).
    #[must_use]
    pub fn unseeing(self) -> Self {
        Self { unseeing: true, ..self }
    }

    /// The socket is this one, and the arguments already say so.
    #[must_use]
    pub fn listening_on(mut self, socket: impl AsRef<Path>) -> Self {
        self.socket = Some(socket.as_ref().to_owned());
        self
    }

    /// Its socket is this one, for instance where another server may connect to it.
    #[must_use]
    pub fn socket(self, socket: impl AsRef<Path>) -> Self {
        self.arg("--socket").arg(socket.as_ref()).listening_on(socket)
    }

    /// An environment variable.
    #[must_use]
    pub fn env(mut self, name: &str, value: impl AsRef<OsStr>) -> Self {
        self.run = self.run.env(name, value);
        self
    }

    /// The directory it runs in.
    #[must_use]
    pub fn current_dir(mut self, directory: &Path) -> Self {
        self.run = self.run.current_dir(directory);
        self
    }

    /// Starts it without waiting for anything.
    pub fn spawn(self) -> Server {
        let scratch = Scratch::new();
        let run = if self.unseeing { self.run.unseeing() } else { self.run };
        let mut command = run.command();
        let socket = self.socket.unwrap_or_else(|| {
            let socket = scratch.file("nbd.sock");
            command.arg("--socket").arg(&socket);
            socket
        });
        let (stdout, stderr) = (scratch.file("stdout"), scratch.file("stderr"));
        let create = |path: &Path| File::create(path).expect("cannot create a file");
        command.stdin(Stdio::null()).stdout(create(&stdout)).stderr(create(&stderr));
        let started = Instant::now();
        let child = command.spawn().expect("cannot run cowhand");
        let end = pidfd(&child);
        let command = format!("{command:?}");
        let unseeing = self.unseeing;
        Server { child, end, started, command, socket, unseeing, stdout, stderr, _scratch: scratch }
    }

    /// Starts it and waits until it accepts connections, or has ended.
    pub fn listen(self) -> Result<Server, NotStarted> {
        self.spawn().listening()
    }
}

impl Server {
    /// Starts `cowhand serve ARGS` and insists that it listens.
    pub fn start<S: AsRef<OsStr>>(args: impl IntoIterator<Item = S>) -> Self {
        match Start::new(args).listen() {
            Ok(server) => server,
            Err(NotStarted(outcome)) => panic!("cowhand does not serve: {outcome}"),
        }
    }

    /// Starts `cowhand serve ARGS` and insists that it ends with an orderly error; gives what it said.
    pub fn refuses<S: AsRef<OsStr>>(args: impl IntoIterator<Item = S>) -> String {
        match Start::new(args).listen() {
            Ok(server) => panic!("it should not serve: {}", server.command),
            Err(NotStarted(outcome)) => {
                assert!(outcome.status.code().is_some_and(|code| code != 0), "{outcome}");
                outcome.stderr
            }
        }
    }

    /// Waits until it accepts connections, or has ended.
    pub fn listening(mut self) -> Result<Self, NotStarted> {
        let socket = self.socket.clone();
        match self.wait_until(|_| ready::unix(&socket).then_some(())) {
            Some(()) => Ok(self),
            None => Err(NotStarted(self.outcome())),
        }
    }

    /// The socket that it listens on.
    pub fn socket(&self) -> &Path {
        &self.socket
    }

    /// The process.
    pub fn pid(&self) -> u32 {
        let child = self.child.id();
        if !self.unseeing {
            return child;
        }
        let children = std::fs::read_to_string(format!("/proc/{child}/task/{child}/children"));
        children.ok().and_then(|text| text.split_whitespace().next()?.parse().ok()).unwrap_or(child)
    }

    /// The URI of one of its exports.
    pub fn uri(&self, export: &str) -> String {
        format!("nbd+unix:///{export}?socket={}", self.socket.display())
    }

    /// A client of one of its exports; the empty name is the first.
    pub fn client(&self, export: &str) -> Client {
        Client::connect(&self.socket, export)
            .unwrap_or_else(|error| panic!("cannot connect to {export:?}: {error}\n{}", self.said()))
    }

    /// Standard output so far.
    pub fn stdout(&self) -> String {
        read(&self.stdout)
    }

    /// Standard error so far.
    pub fn stderr(&self) -> String {
        read(&self.stderr)
    }

    /// The most memory that it held so far, in bytes.
    pub fn peak_rss_bytes(&self) -> u64 {
        peak_rss(self.pid())
    }

    /// How many descriptors it has.
    pub fn descriptors(&self) -> usize {
        descriptors(self.pid())
    }

    /// What its descriptors lead to.
    pub fn open_files(&self) -> Vec<PathBuf> {
        let links = std::fs::read_dir(format!("/proc/{}/fd", self.pid())).expect("it runs");
        links.filter_map(|link| std::fs::read_link(link.ok()?.path()).ok()).collect()
    }

    /// Looks again and again until `look` finds something; `None` if the process ends first. Fails
    /// when neither happens.
    pub fn wait_until<T>(&mut self, mut look: impl FnMut(&Self) -> Option<T>) -> Option<T> {
        let start = Instant::now();
        loop {
            if let Some(found) = look(self) {
                return Some(found);
            }
            if ended(&self.end, LOOK) {
                return None;
            }
            assert!(start.elapsed() < PATIENCE, "nothing happens: {}", self.said());
        }
    }

    /// Asks it to end.
    pub fn signal(&self, signal: Signal) {
        let pid = Pid::from_raw(i32::try_from(self.pid()).expect("a process id")).expect("a process id");
        kill_process(pid, signal).expect("cannot signal the daemon");
    }

    /// Ends it with SIGTERM and insists on exit code 0 and no panic; gives what it printed.
    pub fn stop(self) -> String {
        self.stop_with(Signal::TERM)
    }

    /// Ends it with SIGTERM; gives all that it said on standard error.
    pub fn stderr_at_end(mut self) -> String {
        self.signal(Signal::TERM);
        let outcome = self.outcome();
        assert!(outcome.status.success(), "{outcome}");
        outcome.stderr
    }

    /// The same with another signal.
    pub fn stop_with(mut self, signal: Signal) -> String {
        self.signal(signal);
        let outcome = self.outcome();
        assert!(outcome.status.success(), "{outcome}");
        outcome.stdout
    }

    /// Kills it in the middle of whatever it does.
    pub fn kill(mut self) {
        self.child.kill().expect("cannot kill the daemon");
        let outcome = self.outcome();
        assert_eq!(outcome.status.signal(), Some(9), "{outcome}");
    }

    /// Waits for its end and says how it went. Fails if it does not end, or panicked.
    pub fn outcome(&mut self) -> Outcome {
        let peak_rss_bytes = self.peak_rss_bytes();
        assert!(ended(&self.end, PATIENCE), "it does not end: {}", self.said());
        let status: ExitStatus = self.child.wait().expect("cannot wait for the daemon");
        let outcome = Outcome {
            command: self.command.clone(),
            status,
            timed_out: false,
            stdout: self.stdout(),
            stderr: self.stderr(),
            wall: self.started.elapsed(),
            peak_rss_bytes,
            descriptors_max: 0,
        };
        assert!(!outcome.panicked(), "it panicked: {outcome}");
        outcome
    }

    fn said(&self) -> String {
        let (stdout, stderr) = (self.stdout(), self.stderr());
        format!("{}\n--- stdout\n{}\n--- stderr\n{}", self.command, tail(&stdout), tail(&stderr))
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // Does nothing to a process that was waited for.
        let _ = self.child.kill();
        let _ = self.child.wait();
        if std::thread::panicking() {
            eprintln!("{}", self.said());
        }
    }
}

fn read(path: &Path) -> String {
    let bytes = std::fs::read(path).unwrap_or_default();
    String::from_utf8_lossy(&bytes).into_owned()
}
