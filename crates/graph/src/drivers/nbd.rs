//! `nbd`: the export of an NBD server.

use std::any::Any;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use storage::{IoFuture, Storage};
use storage_nbd::{ExportName, NbdStorage, PORT_DEFAULT, Server};

use super::{Access, Elsewhere, StorageDriver, StorageKind, Target};
use crate::drive::{Entry as Given, OptionTree};
use crate::options::entry::{at, choice_at, first_fixed_of, in_group, read_all};
use crate::options::{Entry, Group, OptionError, Reader, Spec};

pub(super) const NBD: StorageDriver = StorageDriver {
    name: "nbd",
    prefixes: &["nbd:", "nbd+tcp:", "nbd+unix:", "nbds:", "nbds+tcp:", "nbds+unix:"],
    kind: StorageKind::Elsewhere(Elsewhere { specs, options_of, read }),
};

/// The options of the driver.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Nbd {
    /// `server.type`; `None`: by what else is given.
    address: Option<AddressType>,
    /// `server.host`.
    host: Option<String>,
    /// `server.port`.
    port: Option<String>,
    /// `server.path`.
    path: Option<String>,
    /// `export`.
    export: Option<String>,
    /// `reconnect-delay`, in seconds.
    reconnect_delay_s: u32,
    /// `open-timeout`, in seconds.
    open_timeout_s: u32,
}

/// What kind of address a server has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum AddressType {
    Inet,
    Unix,
}

const TYPES: [(&str, AddressType); 2] = [("inet", AddressType::Inet), ("unix", AddressType::Unix)];

/// The driver's part of the table.
pub const NBD_OPTIONS: &[Entry<Nbd>] = &in_group(
    Group::Storage("nbd"),
    [
        Entry::choice("server.type", choice_at!(Nbd, TYPES, address), "where the server listens")
            .default_follows("unix with server.path, else inet"),
        Entry::text("server.host", at!(Nbd, host), "name or address of the server")
            .default_follows("localhost"),
        Entry::text("server.port", at!(Nbd, port), "its TCP port").default_follows("10809"),
        Entry::text("server.path", at!(Nbd, path), "its unix socket").default_follows("none"),
        Entry::text("export", at!(Nbd, export), "name of the export").default_follows("the server's default"),
        Entry::whole(
            "reconnect-delay",
            at!(Nbd, reconnect_delay_s),
            "seconds for which requests wait for a lost connection to come back; 0: they fail",
        )
        .default("0"),
        Entry::whole(
            "open-timeout",
            at!(Nbd, open_timeout_s),
            "seconds for which opening tries to connect; 0: once",
        )
        .default("0"),
    ],
);

fn specs() -> Vec<&'static Spec> {
    NBD_OPTIONS.iter().map(Entry::spec).collect()
}

fn options_of(name: &str) -> Result<OptionTree, String> {
    let ExportName { server, export, tls } =
        ExportName::parse(name).map_err(|allowed| allowed.to_string())?;
    if tls {
        return Err("nbd and nbd+unix (no client here speaks TLS)".to_owned());
    }
    let mut tree = OptionTree::default();
    let mut insert = |name: &str, value: String| {
        tree.insert(name, Given::Value(value.into())).map_err(|error| error.to_string())
    };
    match server {
        Server::Unix(path) => insert("server.path", path.display().to_string())?,
        Server::Tcp { host, port } => {
            insert("server.host", host)?;
            insert("server.port", port.to_string())?;
        }
    }
    if !export.is_empty() {
        insert("export", export)?;
    }
    Ok(tree)
}

fn read(reader: &mut Reader) -> Result<Arc<dyn Target>, OptionError> {
    let mut nbd = Nbd::default();
    read_all(NBD_OPTIONS, reader, &mut nbd)?;
    let is_unix = nbd.address == Some(AddressType::Unix) || nbd.path.is_some();
    let is_inet = nbd.address == Some(AddressType::Inet) || nbd.host.is_some() || nbd.port.is_some();
    if is_unix && is_inet {
        return Err(OptionError::Conflict {
            option: "file.server.path".to_owned(),
            other: "file.server.host".to_owned(),
            rule: "a server listens at a unix socket (path) or at a TCP port (host, port); give one of them",
        });
    }
    Ok(Arc::new(nbd))
}

impl Nbd {
    fn export_name(&self) -> Result<ExportName, io::Error> {
        let wrong = |what: String| io::Error::new(io::ErrorKind::InvalidInput, what);
        let server = match (&self.path, &self.host, &self.port) {
            (Some(path), ..) => Server::Unix(path.into()),
            (None, None, None) => {
                let what = "driver nbd needs a server: server.path, or server.host and server.port";
                return Err(wrong(what.to_owned()));
            }
            (None, host, port) => {
                let parsed = port.as_ref().map_or(Some(PORT_DEFAULT), |port| port.parse().ok());
                let port = parsed.filter(|port| *port > 0).ok_or_else(|| {
                    let found = port.clone().unwrap_or_default();
                    wrong(format!("option file.server.port is {found:?}; allowed: a port from 1 to 65535"))
                })?;
                Server::Tcp { host: host.clone().unwrap_or_else(|| "localhost".to_owned()), port }
            }
        };
        Ok(ExportName { server, export: self.export.clone().unwrap_or_default(), tls: false })
    }
}

impl Target for Nbd {
    fn name(&self) -> String {
        self.export_name().map_or_else(|_| "nbd:".to_owned(), |name| name.to_string())
    }

    fn first_difference(&self, other: &dyn Target) -> Option<String> {
        match (other as &dyn Any).downcast_ref() {
            Some(other) => first_fixed_of(NBD_OPTIONS, self, other),
            None => Some("file.driver".to_owned()),
        }
    }

    /// A server covers its exports; an export, itself.
    fn covers(&self, other: &dyn Target) -> bool {
        let other = (other as &dyn Any).downcast_ref().map(Self::export_name);
        match (self.export_name(), other) {
            (Ok(own), Some(Ok(other))) => {
                own.server == other.server && (own.export.is_empty() || own.export == other.export)
            }
            _ => false,
        }
    }

    fn open(&self, access: Access) -> IoFuture<'_, io::Result<Arc<dyn Storage>>> {
        Box::pin(async move {
            let ExportName { server, export, .. } = self.export_name()?;
            let storage = NbdStorage::open(storage_nbd::Options {
                name: self.name(),
                server,
                export,
                writable: access.writable,
                no_flush: access.no_flush,
                reconnect_delay: Duration::from_secs(self.reconnect_delay_s.into()),
                open_timeout: Duration::from_secs(self.open_timeout_s.into()),
            });
            Ok(Arc::new(storage.await?) as Arc<dyn Storage>)
        })
    }
}
