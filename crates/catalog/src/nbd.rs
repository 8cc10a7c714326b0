//! `nbd`: the export of an NBD server.

use std::any::Any;
use std::io;
use std::net::{IpAddr, ToSocketAddrs};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use net::tls::{ClientFiles, ClientTls};
use remote::nbd::{
    AbstractName, Credentials, ExportName, Listing, NamedTls, NbdStorage, PORT_DEFAULT, Server,
};
use serde_json::{Map, Value, json};
use storage::{IoFuture, Storage};

use super::not_built::prefixes;
use super::remote::{ON_REMOTE_ERROR, OnRemoteError};
use super::tls_credentials::TlsCredentials;
use graph::drive::{Entry as Given, OptionTree};
use graph::drivers::{Access, Elsewhere, StorageDriver, StorageKind, Target};
use graph::options::entry::{at, choice_at, first_fixed_of, in_group, read_all};
use graph::options::{Entry, Group, OptionError, Reader, Spec};

pub(super) const NBD: StorageDriver = StorageDriver {
    name: "nbd",
    prefixes: prefixes::NBD,
    kind: StorageKind::Elsewhere(Elsewhere {
        specs,
        options_of,
        shown: str::to_owned,
        read,
        is_within_process: false,
    }),
};

fn specs() -> Vec<&'static Spec> {
    NBD_OPTIONS.iter().map(Entry::spec).collect()
}

fn options_of(name: &str) -> Result<OptionTree, String> {
    let ExportName { server, export, tls } =
        ExportName::parse(name).map_err(|allowed| allowed.to_string())?;
    let mut tree = OptionTree::default();
    let mut insert = |name: &str, value: String| {
        tree.insert(name, Given::Value(value.into())).map_err(|error| error.to_string())
    };
    match server {
        Server::Unix(path) => insert("server.path", path.display().to_string())?,
        Server::Abstract(name) => {
            let (path, tight) = name.parts();
            insert("server.path", path.to_owned())?;
            insert("server.abstract", "on".to_owned())?;
            insert("server.tight", if tight { "on" } else { "off" }.to_owned())?;
        }
        Server::Tcp { host, port } => {
            insert("server.host", host)?;
            insert("server.port", port.to_string())?;
        }
        Server::Passed(name) => insert("server.str", name)?,
    }
    if !export.is_empty() {
        insert("export", export)?;
    }
    if let Some(NamedTls { credentials, hostname }) = tls {
        match credentials {
            Credentials::Id(id) => insert("tls-creds", id)?,
            Credentials::Directory(path) => insert("tls-certificates", path.display().to_string())?,
        }
        hostname.map_or(Ok(()), |hostname| insert("tls-hostname", hostname))?;
    }
    Ok(tree)
}

fn read(reader: &mut Reader) -> Result<Arc<dyn Target>, OptionError> {
    let mut nbd = Nbd::default();
    read_all(NBD_OPTIONS, reader, &mut nbd)?;
    let is_unix = nbd.address == Some(AddressType::Unix)
        || nbd.path.is_some()
        || nbd.has_no_path
        || nbd.tight.is_some();
    let is_inet = nbd.address == Some(AddressType::Inet) || nbd.host.is_some() || nbd.port.is_some();
    if is_unix && is_inet {
        return Err(OptionError::Conflict {
            option: "file.server.path".to_owned(),
            other: "file.server.host".to_owned(),
            rule: "a server listens at a unix socket (path) or at a TCP port (host, port); give one of them",
        });
    }
    if is_unix && (nbd.ipv4.is_some() || nbd.ipv6.is_some()) {
        return Err(OptionError::Conflict {
            option: "file.server.path".to_owned(),
            other: if nbd.ipv4.is_some() { "file.server.ipv4" } else { "file.server.ipv6" }.to_owned(),
            rule: "only a server at a TCP port is reached over IPv4 or IPv6",
        });
    }
    let is_passed = nbd.address == Some(AddressType::Fd) || nbd.passed.is_some();
    if is_passed && (is_unix || is_inet) {
        return Err(OptionError::Conflict {
            option: "file.server.str".to_owned(),
            other: if is_unix { "file.server.path" } else { "file.server.host" }.to_owned(),
            rule: "a connection is made, or was handed over under a name (str); give one of them",
        });
    }
    if !nbd.families().any() {
        return Err(OptionError::Conflict {
            option: "file.server.ipv4".to_owned(),
            other: "file.server.ipv6".to_owned(),
            rule: "both are off: no address is left to connect to",
        });
    }
    if nbd.tls_creds.is_some() && nbd.tls_certificates.is_some() {
        return Err(OptionError::Conflict {
            option: "file.tls-creds".to_owned(),
            other: "file.tls-certificates".to_owned(),
            rule: "both say whose certificates are good; give one of them",
        });
    }
    Ok(Arc::new(nbd))
}

impl Nbd {
    /// How the connection is encrypted, if it is.
    fn tls(&self) -> Option<NamedTls> {
        let credentials = match (&self.tls_creds, &self.tls_certificates) {
            (Some(id), _) => Credentials::Id(id.clone()),
            (None, Some(directory)) => Credentials::Directory(directory.clone()),
            (None, None) => return None,
        };
        Some(NamedTls { credentials, hostname: self.tls_hostname.clone() })
    }

    /// Over which families of addresses it is connected. As in QEMU, one that is named alone and on is the only one.
    fn families(&self) -> Families {
        let is_on = |own: Option<bool>, other: Option<bool>| own.unwrap_or(other != Some(true));
        Families { v4: is_on(self.ipv4, self.ipv6), v6: is_on(self.ipv6, self.ipv4) }
    }

    /// How long requests wait for a lost connection.
    fn reconnect_delay(&self) -> Duration {
        let seconds = match (self.on_remote_error, self.reconnect_delay_s) {
            // Longer than any server runs.
            (OnRemoteError::Wait, 0) => u32::MAX,
            (OnRemoteError::Report | OnRemoteError::Wait, seconds) => seconds,
        };
        Duration::from_secs(seconds.into())
    }

    fn export_name(&self) -> Result<ExportName, io::Error> {
        let wrong = |what: String| io::Error::new(io::ErrorKind::InvalidInput, what);
        let server = match (&self.passed, &self.path, &self.host, &self.port) {
            (Some(name), ..) => Server::Passed(name.clone()),
            (None, Some(path), ..) if self.has_no_path => {
                let name = AbstractName::new(path, self.tight.unwrap_or(true));
                Server::Abstract(name.map_err(|error| wrong(format!("option file.server.path: {error}")))?)
            }
            (None, Some(path), ..) => Server::Unix(path.into()),
            (None, None, None, None) => {
                let what = "driver nbd needs a server: server.path, or server.host and server.port";
                return Err(wrong(what.to_owned()));
            }
            (None, None, host, port) => {
                let parsed = port.as_ref().map_or(Some(PORT_DEFAULT), |port| port.parse().ok());
                let port = parsed.filter(|port| *port > 0).ok_or_else(|| {
                    let found = port.clone().unwrap_or_default();
                    wrong(format!("option file.server.port is {found:?}; allowed: a port from 1 to 65535"))
                })?;
                Server::Tcp { host: host.clone().unwrap_or_else(|| "localhost".to_owned()), port }
            }
        };
        Ok(ExportName { server, export: self.export.clone().unwrap_or_default(), tls: self.tls() })
    }
}

/// How long a server may take to say what it has.
const LISTED_WITHIN: Duration = Duration::from_secs(30);

/// What the server has that `name` is of; its export does not matter.
///
/// # Errors
/// When it cannot be reached, or does not say it.
pub async fn nbd_exports(name: ExportName) -> io::Result<Listing> {
    let tls = match name.tls {
        Some(named) => Some(client_tls(named, &name.server).await?),
        None => None,
    };
    Ok(remote::nbd::list_exports(&name.server, tls, LISTED_WITHIN).await?)
}

/// Finds the certificates, and the name that the server's must have.
async fn client_tls(named: NamedTls, server: &Server) -> Result<ClientTls, io::Error> {
    let wrong = |what: &dyn std::error::Error| io::Error::new(io::ErrorKind::InvalidInput, what.to_string());
    let host = match (&named.hostname, server) {
        (Some(hostname), _) => hostname,
        (None, Server::Tcp { host, .. }) => host,
        (None, Server::Unix(_) | Server::Abstract(_) | Server::Passed(_)) => {
            let what = "the certificate of a server at a unix socket is for a name that only you know; give tls-hostname";
            return Err(io::Error::new(io::ErrorKind::InvalidInput, what));
        }
    };
    let credentials = match named.credentials {
        Credentials::Id(id) => TlsCredentials::default().get(&id).map_err(|error| wrong(&error))?,
        Credentials::Directory(directory) => {
            let read = reactor::blocking(move || ClientFiles::of_directory(&directory, true).read()).await;
            read.map_err(|error| wrong(&error))?
        }
    };
    ClientTls::new(&credentials, host).map_err(|error| wrong(&error))
}

impl Target for Nbd {
    fn name(&self) -> String {
        self.export_name().map_or_else(|_| "nbd:".to_owned(), |name| name.to_string())
    }

    /// As in QEMU, a URL does not say over which families of addresses the server is reached, nor that its socket is abstract.
    fn beyond_name(&self) -> Option<Map<String, Value>> {
        if self.ipv4.or(self.ipv6).is_none() && !self.has_no_path {
            return None;
        }
        let port = || json!(self.port.clone().unwrap_or_else(|| PORT_DEFAULT.to_string()));
        let options = [
            ("driver", Some(json!("nbd"))),
            ("server.type", Some(json!(if self.has_no_path { "unix" } else { "inet" }))),
            ("server.host", self.host.as_ref().map(|host| json!(host))),
            ("server.port", (!self.has_no_path).then(port)),
            ("server.ipv4", self.ipv4.map(|is_on| json!(is_on))),
            ("server.ipv6", self.ipv6.map(|is_on| json!(is_on))),
            ("server.path", self.path.as_ref().map(|path| json!(path))),
            ("server.abstract", self.has_no_path.then_some(json!(true))),
            ("server.tight", self.tight.map(|is_on| json!(is_on))),
            ("export", self.export.as_ref().map(|export| json!(export))),
            ("tls-creds", self.tls_creds.as_ref().map(|id| json!(id))),
            ("tls-hostname", self.tls_hostname.as_ref().map(|name| json!(name))),
        ];
        Some(options.into_iter().filter_map(|(name, value)| Some((name.to_owned(), value?))).collect())
    }

    fn first_difference(&self, other: &dyn Target) -> Option<String> {
        match (other as &dyn Any).downcast_ref() {
            Some(other) => first_fixed_of(NBD_OPTIONS, self, other),
            None => Some("file.driver".to_owned()),
        }
    }

    /// A server covers its exports; an export, itself. What is allowed encrypted is so with the same certificates only: an image says
    /// neither that TLS is left out nor whom to believe.
    fn covers(&self, other: &dyn Target) -> bool {
        let other = (other as &dyn Any).downcast_ref().map(Self::export_name);
        match (self.export_name(), other) {
            (Ok(own), Some(Ok(other))) => {
                own.server == other.server
                    && own.tls == other.tls
                    && (own.export.is_empty() || own.export == other.export)
            }
            _ => false,
        }
    }

    fn check(&self) -> IoFuture<'_, io::Result<()>> {
        Box::pin(async { remote::nbd::check_reachable(&self.export_name()?.server) })
    }

    fn is_overwritable(&self) -> bool {
        true
    }

    fn create(&self, bytes: u64) -> IoFuture<'_, io::Result<()>> {
        Box::pin(async move {
            let access = Access { writable: true, direct: false, no_flush: false };
            prepare_to_overwrite(&*self.open(access).await?, bytes).await
        })
    }

    fn open(&self, access: Access) -> IoFuture<'_, io::Result<Arc<dyn Storage>>> {
        Box::pin(async move {
            let ExportName { server, export, tls } = self.export_name()?;
            let tls = match tls {
                Some(named) => Some(client_tls(named, &server).await?),
                None if self.tls_hostname.is_some() => {
                    let what =
                        "option file.tls-hostname is for an encrypted connection; give tls-creds with it";
                    return Err(io::Error::new(io::ErrorKind::InvalidInput, what));
                }
                None => None,
            };
            let server = self.families().choose(server).await?;
            let storage = NbdStorage::open(remote::nbd::Options {
                name: self.name(),
                server,
                export,
                bitmap: self.bitmap.clone(),
                tls,
                writable: access.writable,
                no_flush: access.no_flush,
                reconnect_delay: self.reconnect_delay(),
                open_timeout: Duration::from_secs(self.open_timeout_s.into()),
                remote_timeout: (self.remote_timeout_s > 0)
                    .then(|| Duration::from_secs(self.remote_timeout_s.into())),
            });
            Ok(Arc::new(storage.await?) as Arc<dyn Storage>)
        })
    }
}

/// Prepares storage for a new image of `bytes` bytes that is written over it: its first sector is zeroed, so that nothing takes it for the old one.
///
/// # Errors
/// When it is too short, and when it cannot be written.
async fn prepare_to_overwrite(storage: &dyn Storage, bytes: u64) -> io::Result<()> {
    let length = storage.length();
    if length < bytes {
        let what = format!(
            "the export has {length} bytes; {bytes} are needed, and the client cannot make it longer"
        );
        return Err(io::Error::new(io::ErrorKind::InvalidInput, what));
    }
    storage.zero(0, length.min(block::SECTOR_BYTES), storage::Zeroing::Keep).await?;
    storage.flush().await?;
    storage.end_writing().await
}

/// Families of addresses, of which one at least is allowed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Families {
    v4: bool,
    v6: bool,
}

impl Families {
    fn any(self) -> bool {
        self.v4 || self.v6
    }

    fn allow(self, address: IpAddr) -> bool {
        if address.is_ipv4() { self.v4 } else { self.v6 }
    }

    /// `server`, by an address of an allowed family where not both are. A name is looked up when the disk is opened, and not again.
    async fn choose(self, server: Server) -> io::Result<Server> {
        let Server::Tcp { host, port } = server else { return Ok(server) };
        if self.v4 && self.v6 {
            return Ok(Server::Tcp { host, port });
        }
        let name = host.clone();
        let found = match host.parse::<IpAddr>() {
            Ok(address) => vec![address],
            Err(_) => {
                let found = reactor::blocking(move || (host.as_str(), port).to_socket_addrs()).await?;
                found.map(|found| found.ip()).collect()
            }
        };
        let address = found.into_iter().find(|address| self.allow(*address)).ok_or_else(|| {
            let family = if self.v4 { "IPv4" } else { "IPv6" };
            io::Error::new(io::ErrorKind::AddrNotAvailable, format!("{name} has no {family} address"))
        })?;
        Ok(Server::Tcp { host: address.to_string(), port })
    }
}

/// The options of the driver.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Nbd {
    /// `server.type`; `None`: by what else is given.
    address: Option<AddressType>,
    /// `server.host`.
    host: Option<String>,
    /// `server.port`.
    port: Option<String>,
    /// `server.ipv4`.
    ipv4: Option<bool>,
    /// `server.ipv6`.
    ipv6: Option<bool>,
    /// `server.path`.
    path: Option<String>,
    /// `server.abstract`.
    has_no_path: bool,
    /// `server.tight`.
    tight: Option<bool>,
    /// `server.str`.
    passed: Option<String>,
    /// `export`.
    export: Option<String>,
    /// `x-dirty-bitmap`.
    bitmap: Option<String>,
    /// `reconnect-delay`, in seconds.
    reconnect_delay_s: u32,
    /// `open-timeout`, in seconds.
    open_timeout_s: u32,
    /// `on-remote-error`.
    on_remote_error: OnRemoteError,
    /// `remote-timeout`, in seconds; 0 is none.
    remote_timeout_s: u32,
    /// `tls-creds`.
    tls_creds: Option<String>,
    /// `tls-certificates`.
    tls_certificates: Option<PathBuf>,
    /// `tls-hostname`.
    tls_hostname: Option<String>,
}

/// What kind of address a server has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum AddressType {
    Inet,
    Unix,
    Fd,
}

const TYPES: [(&str, AddressType); 3] =
    [("inet", AddressType::Inet), ("unix", AddressType::Unix), ("fd", AddressType::Fd)];

/// The driver's part of the table.
pub const NBD_OPTIONS: &[Entry<Nbd>] = &in_group(
    Group::Storage("nbd"),
    [
        Entry::choice("server.type", choice_at!(Nbd, TYPES, address), "where the server listens")
            .default_follows("unix with server.path, fd with server.str, else inet"),
        Entry::text("server.host", at!(Nbd, host), "name or address of the server")
            .alias("host")
            .default_follows("localhost"),
        Entry::text("server.port", at!(Nbd, port), "its TCP port").alias("port").default_follows("10809"),
        Entry::switch("server.ipv4", at!(Nbd, ipv4), "connect over IPv4")
            .default_follows("on; off with server.ipv6=on"),
        Entry::switch("server.ipv6", at!(Nbd, ipv6), "connect over IPv6")
            .default_follows("on; off with server.ipv4=on"),
        Entry::text("server.path", at!(Nbd, path), "its unix socket").alias("path").default_follows("none"),
        Entry::switch(
            "server.abstract",
            at!(Nbd, has_no_path),
            "server.path is the name of an abstract socket, which is no file",
        )
        .default("off"),
        Entry::switch(
            "server.tight",
            at!(Nbd, tight),
            "the abstract socket's name is not filled up with zeroes to the length that addresses have",
        )
        .default_follows("on"),
        Entry::text(
            "server.str",
            at!(Nbd, passed),
            "the name under which getfd (QMP) handed over a connection to it; when that is lost it does not come back",
        )
        .default_follows("none"),
        Entry::text("export", at!(Nbd, export), "name of the export").default_follows("the server's default"),
        Entry::text(
            "x-dirty-bitmap",
            at!(Nbd, bitmap),
            "a metadata context of the export, qemu:dirty-bitmap:NAME: map shows what is dirty there as no data",
        )
        .default_follows("none: holes are shown"),
        Entry::whole(
            "reconnect-delay",
            at!(Nbd, reconnect_delay_s),
            "seconds for which requests wait for a lost connection to come back; 0: they fail",
        )
        .default("0"),
        Entry::whole(
            "open-timeout",
            at!(Nbd, open_timeout_s),
            "seconds for which opening tries to connect; 0: once, and an answer is waited for a minute",
        )
        .default("0"),
        Entry::whole(
            "remote-timeout",
            at!(Nbd, remote_timeout_s),
            "seconds within which the server must answer a request, or its connection counts as lost; 0: any time",
        )
        .default("0"),
        Entry::choice(
            "on-remote-error",
            choice_at!(Nbd, ON_REMOTE_ERROR, on_remote_error),
            "what requests do while the connection is lost: report has them fail, after reconnect-delay; wait has them wait for the server (with reconnect-delay, so long)",
        )
        .default("report"),
        Entry::text(
            "tls-creds",
            at!(Nbd, tls_creds),
            "encrypts the connection, with the certificates of this object (tls-creds-x509, endpoint=client)",
        )
        .default_follows("none"),
        Entry::path(
            "tls-certificates",
            at!(Nbd, tls_certificates),
            "encrypts it, with the certificates in this directory: ca-cert.pem, and client-cert.pem with client-key.pem for servers that ask",
        )
        .default_follows("none"),
        Entry::text("tls-hostname", at!(Nbd, tls_hostname), "the name that the server's certificate must have")
            .default_follows("server.host"),
    ],
);

#[cfg(test)]
mod tests {
    use super::*;
    use graph::drivers::target_of;

    #[test]
    fn a_name_says_all_but_the_families_and_that_a_socket_is_abstract() {
        let nbd = Nbd { host: Some("::1".to_owned()), export: Some("x".to_owned()), ..Nbd::default() };
        assert_eq!(nbd.beyond_name(), None);
        let found = Nbd { ipv4: Some(false), ipv6: Some(true), ..nbd }.beyond_name();
        let expected = json!({ "driver": "nbd", "server.type": "inet", "server.host": "::1", "server.port": "10809",
            "server.ipv4": false, "server.ipv6": true, "export": "x" });
        assert_eq!(found.map(Value::Object), Some(expected));
        let found = Nbd { path: Some("s".to_owned()), has_no_path: true, ..Nbd::default() }.beyond_name();
        let expected =
            json!({ "driver": "nbd", "server.type": "unix", "server.path": "s", "server.abstract": true });
        assert_eq!(found.map(Value::Object), Some(expected));
    }

    #[test]
    fn a_server_is_reached_over_the_families_that_are_on() {
        let of = |ipv4, ipv6| {
            let families = Nbd { ipv4, ipv6, ..Nbd::default() }.families();
            (families.v4, families.v6)
        };
        let table = [
            ((None, None), (true, true)),
            ((Some(true), None), (true, false)),
            ((None, Some(true)), (false, true)),
            ((Some(false), None), (false, true)),
            ((Some(true), Some(true)), (true, true)),
            ((Some(false), Some(false)), (false, false)),
        ];
        for ((ipv4, ipv6), expected) in table {
            assert_eq!(of(ipv4, ipv6), expected, "{ipv4:?} {ipv6:?}");
        }
    }

    #[test]
    fn what_is_allowed_through_tls_is_not_reached_without_or_with_other_certificates() {
        let target = |name: &str| target_of(name).unwrap().unwrap().1;
        let covers = |allowed: &str, found: &str| target(allowed).covers(&*target(found));
        let encrypted = "nbds://h/disk?tls-certificates=/a";
        assert!(covers("nbd://h", "nbd://h/disk") && covers(encrypted, encrypted));
        assert!(covers("nbds://h?tls-certificates=/a", encrypted));
        for found in ["nbd://h/disk", "nbds://h/disk?tls-certificates=/b", "nbds://h/disk?tls-creds=a"] {
            assert!(!covers(encrypted, found), "{found}");
        }
        assert!(!covers("nbd://h", encrypted));
        assert!(!covers(encrypted, "nbds://h/disk?tls-certificates=/a&tls-hostname=other"));
    }
}
