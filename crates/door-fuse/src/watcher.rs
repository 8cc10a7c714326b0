//! A second process that takes a mount away when the server ends, however it does: also killed, and also from inside a sandbox, where
//! nothing can be unmounted and no program run.
//!
//! It is this program once more, instructed by its environment, and waits until its standard input ends: the server holds the other end of the pipe,
//! which the kernel closes with the process.

use std::ffi::{OsStr, OsString};
use std::io::{self, Read};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Child, Command, ExitCode, Stdio};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

use crate::limits::PROGRAM_PATIENCE;
use crate::mount::{MountPoint, unmount};

/// What tells a process that it is one: the mount's device number, a blank, the place.
const MARK: &str = "COWHAND_UNMOUNT";

/// How often its end is looked for.
const LOOK: Duration = Duration::from_millis(5);

/// The signals by which terminals, users and supervisors end programs: the server ends in order, and needs its mount until then.
const OUTLIVED: [i32; 4] = [
    signal_hook::consts::SIGHUP,
    signal_hook::consts::SIGINT,
    signal_hook::consts::SIGTERM,
    signal_hook::consts::SIGQUIT,
];

/// The process that watches.
#[derive(Debug)]
pub struct Watcher {
    child: Child,
    point: MountPoint,
}

impl Watcher {
    /// Has `point` taken away when this process ends. To be called before a sandbox is entered.
    ///
    /// # Errors
    /// When no process can be started.
    pub fn start(point: MountPoint) -> io::Result<Self> {
        let mut mark = OsString::from(&point.device);
        mark.push(" ");
        mark.push(&point.path);
        // The file of this program may have been replaced meanwhile; this is the one that runs.
        let mut command = Command::new("/proc/self/exe");
        // Ctrl-C on a terminal goes to all of its group, and it keeps no directory busy.
        command.arg0("cowhand-unmount").env(MARK, mark).process_group(0).current_dir("/");
        let child = command.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null()).spawn()?;
        Ok(Self { child, point })
    }

    /// What is watched.
    pub fn point(&self) -> &MountPoint {
        &self.point
    }

    /// Has the mount taken away now, and waits for it. Blocks; the mount is to be served meanwhile.
    ///
    /// # Errors
    /// When it is still there.
    pub fn finish(mut self) -> io::Result<()> {
        drop(self.child.stdin.take());
        let until = Instant::now() + PROGRAM_PATIENCE;
        loop {
            match self.child.try_wait()? {
                Some(status) if status.success() => return Ok(()),
                Some(status) => return Err(io::Error::other(format!("the process that unmounts: {status}"))),
                None if Instant::now() >= until => return Err(io::ErrorKind::TimedOut.into()),
                None => std::thread::sleep(LOOK),
            }
        }
    }
}

/// The whole of a watching process, if this is one: to be asked first by a program that starts them.
pub fn run_if_asked() -> Option<ExitCode> {
    let point = point(&std::env::var_os(MARK)?)?;
    Some(match watch(&point) {
        Ok(()) => ExitCode::SUCCESS,
        Err(_) => ExitCode::FAILURE,
    })
}

fn point(mark: &OsStr) -> Option<MountPoint> {
    let at = mark.as_bytes().iter().position(|&byte| byte == b' ')?;
    let (device, path) = mark.as_bytes().split_at(at);
    let path = PathBuf::from(OsStr::from_bytes(path.get(1..)?));
    Some(MountPoint { device: String::from_utf8_lossy(device).into_owned(), path })
}

fn watch(point: &MountPoint) -> io::Result<()> {
    for signal in OUTLIVED {
        signal_hook::flag::register(signal, Arc::new(AtomicBool::new(false)))?;
    }
    // Nothing is ever written: it ends with the server.
    let mut stdin = io::stdin().lock();
    let mut byte = [0];
    loop {
        match stdin.read(&mut byte) {
            Ok(0) => return unmount(point),
            Ok(_) => {}
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_place_with_blanks_is_one_place() {
        let expected = MountPoint { device: "0:57".to_owned(), path: PathBuf::from("/a b/c") };
        assert_eq!(point(OsStr::new("0:57 /a b/c")), Some(expected));
        assert_eq!(point(OsStr::new("0:57")), None);
    }
}
