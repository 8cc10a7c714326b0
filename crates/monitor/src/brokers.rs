//! The processes that make connections for a server that is about to enter its sandbox.

use std::ffi::OsString;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};

use net::dial::{Allowed, Target};
use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};
use tool::failure::Failure;

/// One is asked; a second takes over when it has ended, since a process in the sandbox starts none.
const BROKERS: usize = 2;
/// What of the environment says how names are looked up, and libraries found. The rest may hold credentials.
const ENVIRONMENT: [&str; 3] = ["RES_OPTIONS", "LOCALDOMAIN", "LD_LIBRARY_PATH"];

/// Starts them for the servers that are known by now, if there are any: connections go through them from here on, and the list is closed.
///
/// # Errors
/// When no process can be started.
pub fn start() -> Result<(), Failure> {
    let allowed = net::dial::allowed();
    let count = if allowed.is_empty() { 0 } else { BROKERS };
    let started: io::Result<Vec<OwnedFd>> = (0..count).map(|_| spawn(&allowed)).collect();
    let failed =
        |error: io::Error| Failure::because("cannot start the process that makes connections", &error);
    net::dial::through(started.map_err(failed)?);
    Ok(())
}

/// The server's end of a new broker's socket. The broker ends when that is closed: it is neither killed nor
/// waited for.
fn spawn(allowed: &Allowed) -> io::Result<OwnedFd> {
    let (own, theirs) = socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)?;
    let kept = ENVIRONMENT.into_iter().filter_map(|name| Some((name, std::env::var_os(name)?)));
    Command::new("/proc/self/exe")
        // The program may have been started under a name of QEMU's.
        .arg0("cowhand")
        .arg("broker")
        .args(words(allowed))
        .env_clear()
        .envs(kept)
        .current_dir("/")
        .stdin(theirs)
        .stdout(Stdio::null())
        // A terminal's signals are for the server.
        .process_group(0)
        .spawn()?;
    Ok(own)
}

/// The arguments of `cowhand broker`.
pub fn words(allowed: &Allowed) -> Vec<OsString> {
    let below = allowed.directories.iter().filter_map(|directory| std::path::absolute(directory).ok());
    let below = below.flat_map(|directory| [OsString::from("--below"), directory.into_os_string()]);
    let targets = allowed.targets.iter().map(|target| match target {
        Target::Tcp(address) => address.to_string().into(),
        Target::Abstract(name) => name.to_string().into(),
        // Not as it is shown: a path need not be text.
        Target::Unix(path) => {
            let mut word = OsString::from("unix:");
            word.push(path);
            word
        }
    });
    below.chain([OsString::from("--")]).chain(targets).collect()
}
