//! `cowhand broker`: the processes that make connections for a server in its sandbox. Servers start them; people do not.
//!
//! Standard input is a socket over which is asked, the arguments are the addresses that may be connected to. Nothing else of the disks is known
//! here: no credentials, no bytes. They end when the server has ended, and not by the signals that end the server: disks may be written until then.
//!
//! # Two processes
//! The one that connects is behind fences, and reads no files but those that say how names are looked up. A fence knows files, not names: when one of
//! them is replaced, as `resolv.conf` is with every new network, the new one is out of reach. So another process starts it, and starts it again
//! when it ends for that reason. That process takes no question and reads nothing that anybody sends.

use std::ffi::{OsStr, OsString};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use monitor::brokers::words;
use monitor::sandbox::{self, LOOKUP_FILES};
use net::dial::broker::End;
use net::dial::{Address, Allowed, Target};
use rustix::process::{Pid, Signal, getpid, getppid, set_parent_process_death_signal};
use signal_hook::consts::{SIGHUP, SIGINT, SIGQUIT, SIGTERM};
use tool::failure::Failure;

/// The exit code of one that connects, for another one to be started.
const OUTDATED: u8 = 75;
/// Least time between two starts: files that are replaced all the time cost connections, not processor time.
const PAUSE: Duration = Duration::from_secs(1);

/// Arguments.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// The process that started this one to connect
    #[arg(long, value_name = "PID")]
    kept_by: Option<i32>,

    /// Unix sockets in this directory, and below, may be connected to
    #[arg(long, value_name = "DIR")]
    below: Vec<PathBuf>,

    /// Servers that may be connected to
    #[arg(value_name = "HOST:PORT|unix:PATH|abstract:NAME")]
    targets: Vec<OsString>,
}

/// Connects until the other end of standard input is closed.
///
/// # Errors
/// When standard input is no socket, or no process can be started.
pub fn run(args: Args) -> Result<ExitCode, Failure> {
    let failed = |error: std::io::Error| Failure::because("cannot connect for a server", &error);
    for signal in [SIGHUP, SIGINT, SIGQUIT, SIGTERM] {
        signal_hook::flag::register(signal, Arc::default()).map_err(failed)?;
    }
    let targets = args.targets.into_iter().map(target).collect::<Result<_, _>>().map_err(failed)?;
    let allowed = Allowed { targets, directories: args.below };
    match args.kept_by {
        None if looks_names_up(&allowed) => keep(&allowed).map_err(failed),
        None => connect(&allowed).map_err(failed),
        Some(keeper) => end_with(keeper)
            .and_then(|lives| lives.map_or(Ok(ExitCode::SUCCESS), |()| connect(&allowed)))
            .map_err(failed),
    }
}

/// Keeps one process that connects, and restarts it when the files have been replaced.
fn keep(allowed: &Allowed) -> std::io::Result<ExitCode> {
    loop {
        let begun = Instant::now();
        let ended = Command::new("/proc/self/exe")
            .arg0("cowhand")
            .args(["broker", "--kept-by", &getpid().as_raw_nonzero().to_string()])
            .args(words(allowed))
            .stdin(Stdio::inherit())
            .status()?;
        match ended.code() {
            Some(0) => return Ok(ExitCode::SUCCESS),
            Some(code) if code == i32::from(OUTDATED) => {}
            // The server has a spare one.
            _ => return Err(std::io::Error::other(format!("the process that connects ended: {ended}"))),
        }
        std::thread::sleep(PAUSE.saturating_sub(begun.elapsed()));
    }
}

/// Ties this process's life to the one that started it; `None` if that has ended already, and would not end
/// this one.
fn end_with(keeper: i32) -> std::io::Result<Option<()>> {
    set_parent_process_death_signal(Some(Signal::KILL))?;
    Ok((getppid().map(Pid::as_raw_pid) == Some(keeper)).then_some(()))
}

/// A server as an argument names it: the path of a socket need not be text.
fn target(word: OsString) -> std::io::Result<Target> {
    if let Some(path) = word.as_bytes().strip_prefix(b"unix:") {
        return Ok(Target::Unix(OsStr::from_bytes(path).into()));
    }
    let target = word.to_str().and_then(|word| word.parse().ok());
    target.ok_or_else(|| std::io::Error::other("an address makes no sense"))
}

/// Whether files say where what is allowed is.
fn looks_names_up(allowed: &Allowed) -> bool {
    allowed.targets.iter().any(|target| target.address().is_some())
}

/// Connects, while the files are those that can be read.
fn connect(allowed: &Allowed) -> std::io::Result<ExitCode> {
    let socket: OwnedFd = std::io::stdin().as_fd().try_clone_to_owned()?;
    let ports: Vec<u16> = allowed.targets.iter().filter_map(Target::address).map(Address::port).collect();
    // Before the fences: what is replaced between the two is noticed.
    let known = identities();
    let is_abstract = |target: &Target| matches!(target, Target::Abstract(_));
    sandbox::enter_as_broker(&ports, allowed.targets.iter().any(is_abstract));
    match net::dial::broker::serve_while(&socket, allowed, || {
        !looks_names_up(allowed) || identities() == known
    })? {
        End::Unused => Ok(ExitCode::SUCCESS),
        End::Outdated => Ok(ExitCode::from(OUTDATED)),
    }
}

/// Which files the names lead to: device and number; `None` for a missing file. The fences permit
/// that query.
fn identities() -> Vec<(OsString, Option<(u64, u64)>)> {
    let identity = |path: &&str| {
        let found = Path::new(path).metadata().ok();
        (OsString::from(path), found.map(|found| (found.dev(), found.ino())))
    };
    LOOKUP_FILES.iter().map(identity).collect()
}
