//! What systemd does for a service: sockets opened beforehand, and being told how it goes.

use std::net::TcpListener;
use std::os::unix::net::UnixListener;

use listenfd::ListenFd;
use sd_notify::NotifyState;

use crate::failure::Failure;

/// A listening socket that was handed over.
#[derive(Debug)]
pub enum Inherited {
    /// A Unix socket.
    Unix(UnixListener),
    /// A TCP socket.
    Tcp(TcpListener),
}

/// Takes all sockets that were handed over (`LISTEN_FDS`); none if we were started otherwise.
///
/// # Errors
/// When something was handed over that is not a listening stream socket.
pub fn take_sockets() -> Result<Vec<Inherited>, Failure> {
    let mut handed = ListenFd::from_env();
    (0..handed.len()).map(|index| take(&mut handed, index)).collect()
}

fn take(handed: &mut ListenFd, index: usize) -> Result<Inherited, Failure> {
    if let Ok(Some(listener)) = handed.take_unix_listener(index) {
        return Ok(Inherited::Unix(listener));
    }
    match handed.take_tcp_listener(index) {
        Ok(Some(listener)) => Ok(Inherited::Tcp(listener)),
        Ok(None) => Err(Failure::new(format!("socket {index} that systemd handed over is gone"))),
        Err(error) => Err(Failure::because(
            format!("socket {index} that systemd handed over is neither a Unix nor a TCP stream socket"),
            &error,
        )),
    }
}

/// Tells systemd that clients can connect now. Nothing happens where nobody asked.
pub fn ready(status: &str) {
    tell(&[NotifyState::Ready, NotifyState::Status(status)]);
}

/// Tells systemd that this process serves in the place of another one of the same service.
pub fn ready_in_place(status: &str) {
    tell(&[NotifyState::MainPid(std::process::id()), NotifyState::Ready, NotifyState::Status(status)]);
}

/// Tells systemd that we are on the way out.
pub fn stopping() {
    tell(&[NotifyState::Stopping]);
}

fn tell(states: &[NotifyState<'_>]) {
    if let Err(error) = sd_notify::notify(false, states) {
        tracing::warn!(%error, "systemd could not be told");
    }
}
