//! nbd-server-start, nbd-server-stop.

use std::net::{SocketAddr, ToSocketAddrs};
use std::path::PathBuf;
use std::rc::Rc;

use control::{Arguments, QmpError};
use door_nbd::TlsPolicy;
use export::Removal;
use graph::Change;
use serde_json::{Value, json};
use tls::ServerFiles;

use crate::serve::endpoint::{Endpoint, check_tcp};
use crate::serve::inventory::Inventory;
use crate::serve::inventory::objects::{Endpoint as Side, ObjectKind};
use crate::serve::listening::Listening;
use crate::serve::sandbox::Sandbox;

/// Opens the NBD server's socket.
pub fn start(inventory: &Inventory, arguments: Arguments<'_>) -> Result<Value, QmpError> {
    if inventory.doors.is_open() {
        return Err(QmpError::generic("the NBD server listens already; stop it first (nbd-server-stop)"));
    }
    let tls = match arguments.maybe_text("tls-creds") {
        None => TlsPolicy::Off,
        Some(id) => credentials(inventory, id)?,
    };
    let endpoint = endpoint(inventory, arguments, !matches!(tls, TlsPolicy::Off))?;
    let most = match arguments.maybe_whole("max-connections") {
        None | Some(0) => usize::MAX,
        Some(most) => usize::try_from(most).unwrap_or(usize::MAX),
    };
    let listening = Listening::start(&endpoint, inventory.socket_mode, Vec::new())
        .map_err(|failure| inventory.no_socket(&failure))?;
    inventory.doors.open(listening, tls, most);
    inventory.doors.accept();
    Ok(json!({}))
}

/// Closes the socket and takes all exports from their clients. When this ends they are gone and their nodes are free: managers remove those next.
/// Others may change the graph while requests of clients end.
pub async fn stop(inventory: &Rc<Inventory>, change: Change<'_>) -> Result<Value, QmpError> {
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
    Ok(json!({}))
}

fn endpoint(inventory: &Inventory, arguments: Arguments<'_>, tls: bool) -> Result<Endpoint, QmpError> {
    let missing = || QmpError::generic("argument 'addr.data' is missing");
    let address = arguments.maybe_object("addr").ok_or_else(missing)?;
    let data = address.maybe_object("data").ok_or_else(missing)?;
    if address.text("type")? == "unix" {
        return Ok(Endpoint::Socket(PathBuf::from(data.text("path")?)));
    }
    if inventory.sandbox == Sandbox::On {
        return Err(QmpError::generic(
            "the sandbox lets no TCP socket be made: give --listen at the start, or --sandbox off",
        ));
    }
    let (host, port) = (data.text("host")?, data.text("port")?);
    let wrong = || QmpError::generic(format!("{host}:{port} is no address to listen at"));
    let number = port.parse().map_err(|_| wrong())?;
    let (ipv4, ipv6) = (data.maybe_switch("ipv4"), data.maybe_switch("ipv6"));
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
    let object = inventory.object(id)?;
    let ObjectKind::TlsCredentials { directory, verify_peer, endpoint: Side::Server } = &object.kind else {
        return Err(QmpError::generic(format!(
            "object {id:?} holds no TLS credentials of a server (tls-creds-x509 with endpoint=server)"
        )));
    };
    let files = ServerFiles {
        certificate: directory.join("server-cert.pem"),
        key: directory.join("server-key.pem"),
        client_ca: verify_peer.then(|| directory.join("ca-cert.pem")),
    };
    files.config().map(TlsPolicy::Required).map_err(|error| QmpError::because("cannot set up TLS", &error))
}
