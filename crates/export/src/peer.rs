//! What a client is called in log messages.

use std::os::fd::AsFd;

use rustix::net::SocketAddrAny;

/// The address of a TCP client, the process behind a unix socket.
pub fn name(socket: impl AsFd) -> String {
    let address = rustix::net::getpeername(&socket).ok().flatten();
    match address.as_ref().map(SocketAddrAny::address_family) {
        Some(rustix::net::AddressFamily::UNIX) => match rustix::net::sockopt::socket_peercred(&socket) {
            Ok(peer) => format!("process {}", peer.pid.as_raw_nonzero()),
            Err(_) => "unix socket".into(),
        },
        Some(_) => match address.and_then(|address| std::net::SocketAddr::try_from(address).ok()) {
            Some(address) => address.to_string(),
            None => "unknown address".into(),
        },
        None => "unknown peer".into(),
    }
}
