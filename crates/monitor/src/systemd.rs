//! systemd's part in a service: sockets opened beforehand, and notifications of its state.

use std::ffi::OsStr;
use std::io;
use std::net::TcpListener;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram, UnixListener};
use std::sync::OnceLock;
use std::time::Duration;

use listenfd::ListenFd;
use sd_notify::NotifyState;
use tool::failure::Failure;

/// A notice is not worth more.
const WAITS_FOR_SYSTEMD: Duration = Duration::from_secs(5);

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

/// Notifies systemd that clients can connect now. Does nothing if systemd did not ask for it.
pub fn ready(status: &str) {
    tell(&[NotifyState::Ready, NotifyState::Status(status)]);
}

/// Notifies systemd that this process serves in the place of another one of the same service.
pub fn ready_in_place(status: &str) {
    tell(&[NotifyState::MainPid(std::process::id()), NotifyState::Ready, NotifyState::Status(status)]);
}

/// Notifies systemd that the service is stopping.
pub fn stopping() {
    tell(&[NotifyState::Stopping]);
}

/// The socket over which systemd is notified. It is connected once: in the sandbox nothing is.
static NOTIFIED: OnceLock<Option<UnixDatagram>> = OnceLock::new();

/// Connects to systemd, where it started this process and waits for notices.
pub fn connect() {
    NOTIFIED.get_or_init(|| {
        let name = std::env::var_os("NOTIFY_SOCKET")?;
        connect_to(&name).inspect_err(|error| tracing::warn!(%error, "systemd cannot be notified")).ok()
    });
}

/// `@` begins the name of an abstract socket.
fn connect_to(name: &OsStr) -> io::Result<UnixDatagram> {
    let address = match name.as_bytes() {
        [b'@', rest @ ..] => SocketAddr::from_abstract_name(rest)?,
        path => SocketAddr::from_pathname(OsStr::from_bytes(path))?,
    };
    let socket = UnixDatagram::unbound()?;
    socket.connect_addr(&address)?;
    // A socket that takes nothing is not to hold up serving.
    socket.set_write_timeout(Some(WAITS_FOR_SYSTEMD))?;
    Ok(socket)
}

fn tell(states: &[NotifyState<'_>]) {
    connect();
    let Some(Some(socket)) = NOTIFIED.get() else { return };
    let message: String = states.iter().map(|state| format!("{state}\n")).collect();
    if let Err(error) = socket.send(message.as_bytes()) {
        tracing::warn!(%error, "systemd could not be notified");
    }
}
