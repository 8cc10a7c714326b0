//! nbd-server-start, nbd-server-stop.

use std::net::{SocketAddr, ToSocketAddrs};
use std::rc::Rc;
use std::time::Duration;

use control::{Data, QmpError, arguments, variants};
use door_nbd::{Admission, TlsPolicy};
use export::Removal;
use graph::Change;
use net::tls::ServerFiles;
use rustix::net::sockopt;

use crate::endpoint::{Endpoint, UnixAddress, check_tcp};
use crate::inventory::Inventory;
use crate::inventory::objects::{Endpoint as Side, ObjectKind};
use crate::listening::Listening;
use crate::sandbox::Sandbox;

arguments! {
    /// The NBD server to be.
    pub struct Start {
        addr: Address, tls_creds: Option<String>, tls_authz: Option<String>,
        handshake_max_seconds: Option<u32>, max_connections: Option<u32>,
    }

    /// A TCP port.
    pub struct Inet {
        host: String, port: String, "numeric": Option<bool>, ipv4: Option<bool>, ipv6: Option<bool>,
        to: Option<u16>, keep_alive: Option<bool>, keep_alive_count: Option<u32>,
        keep_alive_idle: Option<u32>, keep_alive_interval: Option<u32>,
    }
}

variants! {
    /// Where a server listens.
    pub enum Address by "type" { Inet(Data<Inet>), Unix(Data<UnixAddress>) }
}

impl Address {
    /// As an endpoint, whose clients may have to use `tls`.
    ///
    /// # Errors
    /// When the name has no address, or the port may not be opened.
    pub fn endpoint(&self, inventory: &Inventory, tls: bool) -> Result<Endpoint, QmpError> {
        match self {
            Self::Unix(Data { data }) => Endpoint::unix(data),
            Self::Inet(Data { data }) => inet(inventory, data, tls),
        }
    }
}

/// Opens the NBD server's socket.
pub fn start(inventory: &Inventory, given: &Start) -> Result<(), QmpError> {
    if inventory.doors.is_open() {
        return Err(QmpError::generic("the NBD server listens already; stop it first (nbd-server-stop)"));
    }
    let tls = match &given.tls_creds {
        None => TlsPolicy::Off,
        Some(id) => credentials(inventory, id)?,
    };
    let admission = admission(inventory, given, tls)?;
    let endpoint = given.addr.endpoint(inventory, !matches!(admission.tls, TlsPolicy::Off))?;
    let inet = match &given.addr {
        Address::Inet(Data { data }) => Some(data),
        Address::Unix(_) => None,
    };
    let listening = listen(inventory, endpoint, inet.and_then(|inet| inet.to))?;
    if let Some(data) = inet.filter(|inet| inet.keep_alive == Some(true)) {
        keep_alive(&listening, data)
            .map_err(|error| QmpError::because("cannot keep connections alive", &error))?;
    }
    inventory.doors.open(listening, admission);
    inventory.doors.accept();
    Ok(())
}

/// Closes the socket and takes all exports from their clients. When this ends they are gone and their nodes are free: managers remove those next.
/// Others may change the graph while requests of clients end.
pub async fn stop(inventory: &Rc<Inventory>, change: Change<'_>) -> Result<(), QmpError> {
    if !inventory.doors.close() {
        return Err(QmpError::generic("the NBD server does not listen"));
    }
    let exports: Vec<_> = inventory.exports().into_iter().filter(|export| export.is_nbd()).collect();
    for export in exports.iter().filter(|export| !export.shutting_down.get()) {
        inventory.remove_export(&export.id, Removal::Hard)?;
    }
    drop(change);
    for export in &exports {
        inventory.export_gone(export).await;
    }
    Ok(())
}

/// Opens the socket: at the first port that is free, up to `last_port`.
fn listen(inventory: &Inventory, endpoint: Endpoint, last_port: Option<u16>) -> Result<Listening, QmpError> {
    let mut next = Some(endpoint);
    loop {
        let endpoint = next.take().ok_or_else(|| QmpError::generic("there is no port to listen at"))?;
        match (Listening::start(&endpoint, inventory.socket_mode, Vec::new()), endpoint) {
            (Ok(listening), _) => return Ok(listening),
            (Err(_), Endpoint::Tcp(mut address)) if last_port.is_some_and(|last| address.port() < last) => {
                address.set_port(address.port() + 1);
                next = Some(Endpoint::Tcp(address));
            }
            (Err(failure), _) => return Err(inventory.no_socket(&failure)),
        }
    }
}

/// TCP keepalive: the kernel checks that clients are still there. Connections inherit it from the listening
/// socket.
fn keep_alive(listening: &Listening, options: &Inet) -> rustix::io::Result<()> {
    let seconds = |given: Option<u32>| given.filter(|n| *n > 0).map(|n| Duration::from_secs(n.into()));
    for listener in &listening.listeners {
        sockopt::set_socket_keepalive(listener, true)?;
        if let Some(idle) = seconds(options.keep_alive_idle) {
            sockopt::set_tcp_keepidle(listener, idle)?;
        }
        if let Some(interval) = seconds(options.keep_alive_interval) {
            sockopt::set_tcp_keepintvl(listener, interval)?;
        }
        if let Some(count) = options.keep_alive_count.filter(|count| *count > 0) {
            sockopt::set_tcp_keepcnt(listener, count)?;
        }
    }
    Ok(())
}

/// Which clients come in, and how long they have to choose an export.
fn admission(inventory: &Inventory, given: &Start, tls: TlsPolicy) -> Result<Admission, QmpError> {
    let authz = given.tls_authz.as_deref();
    if authz.is_some() && matches!(tls, TlsPolicy::Off) {
        return Err(QmpError::generic(
            "argument 'tls-authz' admits clients by their certificates: give 'tls-creds', too",
        ));
    }
    let mut admission = inventory.doors.admission(tls);
    admission.authorization = authz.map(|id| inventory.objects.authorizations.by(id));
    if let Some(most) = given.max_connections.filter(|most| *most > 0) {
        admission.clients_max = usize::try_from(most).unwrap_or(usize::MAX);
    }
    match given.handshake_max_seconds {
        Some(0) => admission.handshake_timeout = None,
        Some(seconds) => admission.handshake_timeout = Some(Duration::from_secs(seconds.into())),
        None => {}
    }
    Ok(admission)
}

/// The TCP port that a command describes.
///
/// # Errors
/// When the name has no address, or the port may not be opened.
fn inet(inventory: &Inventory, data: &Inet, tls: bool) -> Result<Endpoint, QmpError> {
    if inventory.sandbox == Sandbox::On {
        return Err(QmpError::generic(
            "the sandbox lets no TCP socket be made: give --listen at the start, or --sandbox off",
        ));
    }
    let (host, port) = (data.host.as_str(), &data.port);
    let wrong = || QmpError::generic(format!("{host}:{port} is no address to listen at"));
    let number = port.parse().map_err(|_| wrong())?;
    let (ipv4, ipv6) = (data.ipv4, data.ipv6);
    let found = (host, number).to_socket_addrs().map_err(|_| wrong())?;
    // As in QEMU, a family that is named alone and on is the only one.
    let is_allowed = |address: &SocketAddr| match address {
        SocketAddr::V4(_) => ipv4.unwrap_or(ipv6 != Some(true)),
        SocketAddr::V6(_) => ipv6.unwrap_or(ipv4 != Some(true)),
    };
    let address = found.into_iter().find(is_allowed).ok_or_else(wrong)?;
    check_tcp(address, inventory.protection(tls))
        .map_err(|failure| QmpError::generic(failure.to_string()))?;
    Ok(Endpoint::Tcp(address))
}

/// What clients must show, by the object `id`.
///
/// # Errors
/// When there is no such object, or its files are not what they should be.
pub fn credentials(inventory: &Inventory, id: &str) -> Result<TlsPolicy, QmpError> {
    let object = inventory.objects.find(id)?;
    let ObjectKind::TlsCredentials { directory, verify_peer, endpoint: Side::Server, terms } = &object.kind
    else {
        return Err(QmpError::generic(format!(
            "object {id:?} holds no TLS credentials of a server (tls-creds-x509 with endpoint=server)"
        )));
    };
    let files = ServerFiles {
        certificate: directory.join("server-cert.pem"),
        key: directory.join("server-key.pem"),
        client_ca: verify_peer.then(|| directory.join("ca-cert.pem")),
        terms: terms.clone(),
    };
    files.config().map(TlsPolicy::Required).map_err(|error| QmpError::because("cannot set up TLS", &error))
}
