//! `cowhand rbd-starter` and `cowhand rbd-worker`: the processes that have librbd. Programs that open RBD images start them; people do not.
//!
//! Standard input of both is a socket over which they are asked. They end when it is closed, and not by the signals that end the server: disks
//! may be written until then.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::process::ExitCode;
use std::sync::Arc;

use monitor::sandbox;
use signal_hook::consts::{SIGHUP, SIGINT, SIGQUIT, SIGTERM};
use tool::failure::Failure;

/// Starts workers until the other end of standard input is closed.
///
/// # Errors
/// When standard input is no socket.
pub fn start() -> Result<ExitCode, Failure> {
    let serve = || remote::rbd::starter::serve(&socket()?);
    serve().map(|()| ExitCode::SUCCESS).map_err(failed)
}

/// Serves an image until the other end of standard input is closed.
///
/// # Errors
/// When standard input is no socket, or the image cannot be closed.
pub fn work() -> Result<ExitCode, Failure> {
    let serve = || remote::rbd::worker::serve(socket()?, sandbox::enter_as_rbd_worker);
    serve().map(|()| ExitCode::SUCCESS).map_err(failed)
}

fn socket() -> io::Result<OwnedFd> {
    for signal in [SIGHUP, SIGINT, SIGQUIT, SIGTERM] {
        signal_hook::flag::register(signal, Arc::default())?;
    }
    io::stdin().as_fd().try_clone_to_owned()
}

fn failed(error: io::Error) -> Failure {
    Failure::because("standard input is no socket of a program that opens RBD images", &error)
}
