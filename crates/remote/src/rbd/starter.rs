//! The process that starts workers: a server in its sandbox starts none itself.
//!
//! One for this process, started when the first image is opened, which is before the sandbox is entered. It is asked over a socket with one end of a new
//! pair of sockets, which becomes a worker's standard input. It knows nothing of images and keys.

use std::ffi::OsString;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;

use parking_lot::Mutex;
use reactor::net::Stream;
use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};

use crate::rbd::packet;

/// The subcommand of the program that serves workers, and that of the one that starts them.
pub const WORKER: &str = "rbd-worker";
/// See [`WORKER`].
pub const STARTER: &str = "rbd-starter";

/// Workers of one starter at a time: more images than a server has.
const WORKERS_MAX: usize = 4096;

/// What of the environment says where Ceph's configuration is, how names are looked up, and libraries found. The rest may hold credentials.
const ENVIRONMENT: [&str; 4] = ["CEPH_CONF", "RES_OPTIONS", "LOCALDOMAIN", "LD_LIBRARY_PATH"];

static STATE: Mutex<State> = Mutex::new(State { program: None, starter: None });

struct State {
    /// `None`: `cowhand`, where programs are looked for.
    program: Option<OsString>,
    starter: Option<Stream>,
}

/// The program that has the subcommands [`WORKER`] and [`STARTER`]; a program that does not say so has `cowhand` started.
pub fn start_with(program: impl Into<OsString>) {
    STATE.lock().program = Some(program.into());
}

/// This program's end of a new worker's socket. The worker ends when that is closed.
///
/// # Errors
/// When the starter has ended and cannot be started, as in the sandbox.
pub(crate) fn worker() -> io::Result<OwnedFd> {
    let (own, theirs) = pair()?;
    let mut state = STATE.lock();
    let ask = |starter: &Stream| starter.send_with_fds_now(&[0], &[theirs.as_fd()]);
    if let Some(starter) = &state.starter {
        match ask(starter) {
            Ok(()) => return Ok(own),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Err(error),
            Err(_) => tracing::warn!("the process that starts workers for RBD images has ended"),
        }
    }
    let program = state.program.clone().unwrap_or_else(|| "cowhand".into());
    let starter = spawn_starter(&program).map_err(|error| {
        let program = program.display();
        let what = format!(
            "cannot start a process for RBD images ({program}): {error}; a server in its sandbox starts none unless a drive of its command line is one: name it there, or serve with --sandbox off"
        );
        io::Error::new(io::ErrorKind::PermissionDenied, what)
    })?;
    ask(&starter)?;
    state.starter = Some(starter);
    Ok(own)
}

fn pair() -> io::Result<(OwnedFd, OwnedFd)> {
    Ok(socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)?)
}

/// It ends when its socket is closed: no task has to end it, and it is not waited for.
fn spawn_starter(program: &OsString) -> io::Result<Stream> {
    let (own, theirs) = pair()?;
    let kept = ENVIRONMENT.into_iter().filter_map(|name| Some((name, std::env::var_os(name)?)));
    let mut command = Command::new(program);
    command.env_clear().envs(kept);
    spawn(command, STARTER, theirs)?;
    Ok(Stream::from_fd(own))
}

fn spawn(mut command: Command, subcommand: &str, socket: OwnedFd) -> io::Result<Child> {
    command
        // The program may have been started under a name of QEMU's.
        .arg0("cowhand")
        .arg(subcommand)
        .current_dir("/")
        .stdin(socket)
        .stdout(Stdio::null())
        // What librbd logs there is dropped: errors come as answers.
        .stderr(Stdio::null())
        // A terminal's signals are for the server.
        .process_group(0)
        .spawn()
}

/// Starts a worker for each socket that comes over `socket`, until no task can ask any more.
///
/// # Errors
/// When the socket is none.
pub fn serve(socket: &OwnedFd) -> io::Result<()> {
    let workers = Arc::new(());
    let mut message = [0; 1];
    while let Some((_, theirs)) = packet::receive_with_file(socket, &mut message)? {
        let Some(theirs) = theirs.filter(|_| Arc::strong_count(&workers) <= WORKERS_MAX) else { continue };
        // Without a process the socket is closed, and the task that asked is notified.
        let Ok(mut child) = spawn(Command::new("/proc/self/exe"), WORKER, theirs) else { continue };
        let counted = Arc::clone(&workers);
        let wait = move || {
            let _ = child.wait();
            drop(counted);
        };
        // Without a thread it stays a zombie until this process ends.
        let _ = std::thread::Builder::new().name("worker".to_owned()).spawn(wait);
    }
    Ok(())
}
