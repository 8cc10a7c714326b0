//! `--fork` and `--daemonize`: the server is a process of its own, and the one that was started ends when clients can connect.
//!
//! A process with threads cannot be copied safely: the program is started once more with the same words.

use std::ffi::OsString;
use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::AsFd;
use std::os::unix::process::CommandExt;
use std::process::{Command, ExitCode, Stdio};

use rustix::process::{chdir, setsid};
use rustix::stdio::{dup2_stderr, dup2_stdin, dup2_stdout};
use tool::failure::{FAILED, Failure};

/// Set for the second process. Its standard output is then a pipe to the first.
const MARK: &str = "COWHAND_IN_BACKGROUND";

/// The process that continues in the background.
#[derive(Debug)]
pub struct Background(());

/// Which of both processes this is.
#[derive(Debug)]
pub enum Side {
    /// The one that was started: it ends with this, as the other one is ready or has ended.
    Started(ExitCode),
    /// The one that serves.
    Serving(Background),
}

impl Background {
    /// Starts the second process, or finds that this is it.
    ///
    /// # Errors
    /// When there can be no second process.
    pub fn begin() -> Result<Side, Failure> {
        if std::env::var_os(MARK).is_some() {
            // It fails where this is the first of a session already, and then there is nothing to leave.
            let _ = setsid();
            return Ok(Side::Serving(Self(())));
        }
        let started =
            second().map_err(|error| Failure::because("cannot start the server in the background", &error));
        started.map(Side::Started)
    }

    /// Clients can connect: notifies the first process, and leaves its terminal and its directory.
    ///
    /// # Errors
    /// When the system does not let us.
    pub fn ready(self) -> Result<(), Failure> {
        let leave = || -> io::Result<()> {
            // The first process may have ended.
            let _ = io::stdout().write_all(b"1").and_then(|()| io::stdout().flush());
            let null = File::options().read(true).write(true).open("/dev/null")?;
            dup2_stdin(&null)?;
            dup2_stdout(&null)?;
            dup2_stderr(&null)?;
            Ok(chdir("/")?)
        };
        leave().map_err(|error| Failure::because("cannot go into the background", &error))
    }
}

/// The background process, while the first one still waits for it.
#[derive(Debug)]
pub struct Waiting {
    reported: File,
    null: File,
}

impl Waiting {
    /// Notifies the first process, and leaves standard error, too. The sandbox permits that.
    pub fn ready(mut self) {
        // The first process may have ended.
        let _ = self.reported.write_all(b"1");
        let _ = dup2_stderr(&self.null);
    }
}

impl Background {
    /// Leaves the terminal and the directory, but not standard error: what clients need is not all there yet,
    /// and may fail.
    ///
    /// # Errors
    /// When the system does not let us.
    pub fn leave(self) -> Result<Waiting, Failure> {
        let leave = || -> io::Result<Waiting> {
            let reported = File::from(io::stdout().as_fd().try_clone_to_owned()?);
            let null = File::options().read(true).write(true).open("/dev/null")?;
            dup2_stdin(&null)?;
            dup2_stdout(&null)?;
            chdir("/")?;
            Ok(Waiting { reported, null })
        };
        leave().map_err(|error| Failure::because("cannot go into the background", &error))
    }

    /// As [`Background::ready`], but keeps the working directory and standard error: a service manager logs
    /// what is written there.
    ///
    /// # Errors
    /// When the system does not let us.
    pub fn ready_here(self) -> Result<(), Failure> {
        let leave = || -> io::Result<()> {
            // The first process may have ended.
            let _ = io::stdout().write_all(b"1").and_then(|()| io::stdout().flush());
            let null = File::options().read(true).write(true).open("/dev/null")?;
            dup2_stdin(&null)?;
            Ok(dup2_stdout(&null)?)
        };
        leave().map_err(|error| Failure::because("cannot go into the background", &error))
    }
}

fn second() -> io::Result<ExitCode> {
    let mut words = std::env::args_os();
    let name = words.next().unwrap_or_else(|| OsString::from(tool::voice::name()));
    let mut command = Command::new(std::env::current_exe()?);
    command.arg0(name).args(words).env(MARK, "1").stdin(Stdio::null()).stdout(Stdio::piped());
    let mut child = command.spawn()?;
    let mut reported = [0];
    if child.stdout.take().is_some_and(|mut pipe| matches!(pipe.read(&mut reported), Ok(1))) {
        return Ok(ExitCode::SUCCESS);
    }
    let code = child.wait()?.code().and_then(|code| u8::try_from(code).ok());
    Ok(ExitCode::from(code.filter(|code| *code != 0).unwrap_or(FAILED)))
}
