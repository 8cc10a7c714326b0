//! File names that mean an export.

use std::fmt;
use std::path::PathBuf;

use net::dial::AbstractName;
use percent_encoding::percent_decode_str;

/// The port of a server that is named without one.
pub const PORT_DEFAULT: u16 = 10809;

/// Where a server listens.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Server {
    /// At a unix socket.
    Unix(PathBuf),
    /// At a unix socket without a path.
    Abstract(AbstractName),
    /// At a TCP port.
    Tcp {
        /// A name or an address; of IPv6 without brackets.
        host: String,
        /// The port.
        port: u16,
    },
    /// A connection that was handed over under this name ([`net::dial::pass`]). When it is lost it does not come back.
    Passed(String),
}

impl fmt::Display for Server {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unix(path) => write!(f, "{}", path.display()),
            Self::Abstract(name) => write!(f, "{name}"),
            Self::Tcp { host, port } if host.contains(':') => write!(f, "[{host}]:{port}"),
            Self::Tcp { host, port } => write!(f, "{host}:{port}"),
            Self::Passed(name) => write!(f, "fd:{name}"),
        }
    }
}

/// An export, and where its server is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ExportName {
    /// Where it listens.
    pub server: Server,
    /// The export; empty for the server's default.
    pub export: String,
    /// The connection is encrypted (`nbds`).
    pub tls: Option<NamedTls>,
}

/// What a name says of encryption.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NamedTls {
    /// Whom to believe, and what to show.
    pub credentials: Credentials,
    /// The name in the server's certificate, where it is not the host's.
    pub hostname: Option<String>,
}

/// Where certificates come from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Credentials {
    /// An object of this id.
    Id(String),
    /// Files of fixed names in this directory.
    Directory(PathBuf),
}

/// A name that means no export.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NameError {
    /// It has another shape.
    #[error(
        "nbd://HOST[:PORT][/EXPORT], nbd+unix:///[EXPORT]?socket=PATH, nbd:HOST:PORT[:exportname=EXPORT] or nbd:unix:PATH[:exportname=EXPORT]"
    )]
    Shape,
    /// It asks for TLS and does not say whose certificates are good.
    #[error(
        "with nbds, ?tls-certificates=DIR or ?tls-creds=ID of an --object tls-creds-x509,id=ID,endpoint=client,dir=DIR behind the export \
         (DIR holds ca-cert.pem)"
    )]
    Credentials,
    /// The port is no number.
    #[error("a port from 1 to 65535")]
    Port,
    /// `%` without two digits, or bytes that are no text.
    #[error("UTF-8 text, with %XX for special characters")]
    Escape,
}

impl ExportName {
    /// Reads a name: a URI of NBD, or the older form of QEMU (`nbd:`).
    ///
    /// # Errors
    /// When it is neither; the message says what is allowed.
    pub fn parse(name: &str) -> Result<Self, NameError> {
        match name.split_once("://") {
            Some(("nbd" | "nbd+tcp", rest)) => tcp(rest, false),
            Some(("nbds" | "nbds+tcp", rest)) => tcp(rest, true),
            Some(("nbd+unix", rest)) => unix(rest, false),
            Some(("nbds+unix", rest)) => unix(rest, true),
            _ => plain(name.strip_prefix("nbd:").ok_or(NameError::Shape)?),
        }
    }
}

/// As QEMU writes it, without what it says of certificates.
impl fmt::Display for ExportName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let scheme = if self.tls.is_some() { "nbds" } else { "nbd" };
        match &self.server {
            Server::Unix(path) => {
                write!(f, "{scheme}+unix://{}?socket={}", in_path(&self.export), path.display())
            }
            // As QEMU shows it; such a name leads to the path.
            Server::Abstract(name) => {
                write!(f, "{scheme}+unix://{}?socket={}", in_path(&self.export), name.parts().0)
            }
            tcp @ (Server::Tcp { .. } | Server::Passed(_)) => {
                write!(f, "{scheme}://{tcp}{}", in_path(&self.export))
            }
        }
    }
}

fn in_path(export: &str) -> String {
    if export.is_empty() { String::new() } else { format!("/{export}") }
}

/// `HOST[:PORT][/EXPORT][?QUERY]`
fn tcp(rest: &str, is_tls: bool) -> Result<ExportName, NameError> {
    let (place, query) = rest.split_once('?').unwrap_or((rest, ""));
    let (authority, export) = place.split_once('/').unwrap_or((place, ""));
    let Query { socket: None, tls } = Query::parse(query, is_tls)? else { return Err(NameError::Shape) };
    if rest.contains('#') || authority.contains('@') || (rest.contains('?') && !is_tls) {
        return Err(NameError::Shape);
    }
    let (host, port) = match authority.strip_prefix('[') {
        Some(bracketed) => {
            let (host, rest) = bracketed.split_once(']').ok_or(NameError::Shape)?;
            (host, if rest.is_empty() { None } else { Some(rest.strip_prefix(':').ok_or(NameError::Shape)?) })
        }
        None => match authority.split_once(':') {
            Some((host, port)) => (host, Some(port)),
            None => (authority, None),
        },
    };
    let host = if host.is_empty() { "localhost" } else { host }.to_owned();
    let port = port.map_or(Ok(PORT_DEFAULT), number)?;
    Ok(ExportName { server: Server::Tcp { host, port }, export: unescaped(export)?, tls })
}

/// `/[EXPORT]?socket=PATH[&QUERY]`
fn unix(rest: &str, is_tls: bool) -> Result<ExportName, NameError> {
    let (path, query) = rest.split_once('?').ok_or(NameError::Shape)?;
    let Query { socket: Some(socket), tls } = Query::parse(query, is_tls)? else {
        return Err(NameError::Shape);
    };
    let export = match path.split_once('/') {
        Some(("", export)) => export,
        None if path.is_empty() => "",
        _ => return Err(NameError::Shape),
    };
    Ok(ExportName { server: Server::Unix(socket.into()), export: unescaped(export)?, tls })
}

/// `HOST:PORT[:exportname=EXPORT]`, `unix:PATH[:exportname=EXPORT]`
fn plain(rest: &str) -> Result<ExportName, NameError> {
    let (place, export) = rest.split_once(":exportname=").unwrap_or((rest, ""));
    let server = match place.strip_prefix("unix:") {
        Some("") => return Err(NameError::Shape),
        Some(path) => Server::Unix(path.into()),
        None => {
            let (host, port) = place.rsplit_once(':').ok_or(NameError::Shape)?;
            let host = host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(host);
            let host = if host.is_empty() { "localhost" } else { host }.to_owned();
            Server::Tcp { host, port: number(port)? }
        }
    };
    Ok(ExportName { server, export: export.to_owned(), tls: None })
}

/// What stands behind `?`.
struct Query {
    socket: Option<String>,
    tls: Option<NamedTls>,
}

impl Query {
    /// Each name once, none without a value; those of TLS where `is_tls`, and then with certificates.
    fn parse(text: &str, is_tls: bool) -> Result<Self, NameError> {
        let (mut socket, mut id, mut directory, mut hostname) = (None, None, None, None);
        for part in text.split('&').filter(|_| !text.is_empty()) {
            let (name, value) = part.split_once('=').ok_or(NameError::Shape)?;
            let place = match name {
                "socket" => &mut socket,
                "tls-creds" if is_tls => &mut id,
                "tls-certificates" if is_tls => &mut directory,
                "tls-hostname" if is_tls => &mut hostname,
                _ => return Err(NameError::Shape),
            };
            let value = unescaped(value)?;
            if value.is_empty() || place.replace(value).is_some() {
                return Err(NameError::Shape);
            }
        }
        let credentials = match (id, directory) {
            (Some(_), Some(_)) => return Err(NameError::Credentials),
            (None, None) if is_tls => return Err(NameError::Credentials),
            (None, None) => return Ok(Self { socket, tls: None }),
            (Some(id), None) => Credentials::Id(id),
            (None, Some(directory)) => Credentials::Directory(directory.into()),
        };
        Ok(Self { socket, tls: Some(NamedTls { credentials, hostname }) })
    }
}

fn number(port: &str) -> Result<u16, NameError> {
    port.parse().ok().filter(|&port| port > 0).ok_or(NameError::Port)
}

/// The text that percent-encoding stands for.
fn unescaped(text: &str) -> Result<String, NameError> {
    let is_escape = |part: &str| {
        part.get(..2).is_some_and(|digits| digits.bytes().all(|digit| digit.is_ascii_hexdigit()))
    };
    match text.split('%').skip(1).all(is_escape) {
        true => percent_decode_str(text).decode_utf8().map(Into::into).map_err(|_| NameError::Escape),
        false => Err(NameError::Escape),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn named(credentials: Credentials, hostname: Option<&str>) -> Option<NamedTls> {
        Some(NamedTls { credentials, hostname: hostname.map(str::to_owned) })
    }

    fn tcp(host: &str, port: u16, export: &str, tls: Option<NamedTls>) -> Result<ExportName, NameError> {
        let server = Server::Tcp { host: host.to_owned(), port };
        Ok(ExportName { server, export: export.to_owned(), tls })
    }

    fn unix(path: &str, export: &str, tls: Option<NamedTls>) -> Result<ExportName, NameError> {
        Ok(ExportName { server: Server::Unix(path.into()), export: export.to_owned(), tls })
    }

    fn id(id: &str) -> Credentials {
        Credentials::Id(id.to_owned())
    }

    #[test]
    fn names_mean_what_they_mean_to_qemu() {
        for (name, meant) in [
            ("nbd://host", tcp("host", 10809, "", None)),
            ("nbd://", tcp("localhost", 10809, "", None)),
            ("nbds://host:7/a%20b/c?tls-creds=t", tcp("host", 7, "a b/c", named(id("t"), None))),
            (
                "nbds://[::1]?tls-certificates=/e%74c&tls-hostname=h",
                tcp("::1", 10809, "", named(Credentials::Directory("/etc".into()), Some("h"))),
            ),
            ("nbd+tcp://[::1]:7/x", tcp("::1", 7, "x", None)),
            ("nbd://[::1]", tcp("::1", 10809, "", None)),
            ("nbd+unix:///?socket=/run/a b", unix("/run/a b", "", None)),
            ("nbd+unix://?socket=/run/s", unix("/run/s", "", None)),
            (
                "nbds+unix:///disk%3f?tls-creds=t&socket=/run/%73&tls-hostname=h",
                unix("/run/s", "disk?", named(id("t"), Some("h"))),
            ),
            ("nbds://host", Err(NameError::Credentials)),
            ("nbds+unix:///?socket=/s", Err(NameError::Credentials)),
            ("nbds://host?tls-creds=a&tls-certificates=b", Err(NameError::Credentials)),
            ("nbds://host?tls-creds=a&tls-creds=b", Err(NameError::Shape)),
            ("nbds://host?tls-creds=", Err(NameError::Shape)),
            ("nbds://host?tls-verify=off&tls-creds=a", Err(NameError::Shape)),
            ("nbd://host?tls-creds=a", Err(NameError::Shape)),
            ("nbd://host?", Err(NameError::Shape)),
            ("nbd:host:7", tcp("host", 7, "", None)),
            ("nbd:[::1]:7:exportname=a:b", tcp("::1", 7, "a:b", None)),
            ("nbd:unix:/run/s:exportname=disk", unix("/run/s", "disk", None)),
            ("nbd:unix:/run/s", unix("/run/s", "", None)),
            ("nbd:host", Err(NameError::Shape)),
            ("nbd:", Err(NameError::Shape)),
            ("nbd:unix:", Err(NameError::Shape)),
            ("nbd+unix:///disk", Err(NameError::Shape)),
            ("nbd+unix://host/disk?socket=/s", Err(NameError::Shape)),
            ("nbd+unix:///disk?socket=/s&x=1", Err(NameError::Shape)),
            ("nbd://user@host/", Err(NameError::Shape)),
            ("nbd://host/?socket=/s", Err(NameError::Shape)),
            ("nbd://host:0/", Err(NameError::Port)),
            ("nbd:host:x", Err(NameError::Port)),
            ("nbd://host/%4", Err(NameError::Escape)),
            ("nbd://host/%zz", Err(NameError::Escape)),
            ("nbd://host/%+1", Err(NameError::Escape)),
            ("nbd://host/%ff", Err(NameError::Escape)),
        ] {
            assert_eq!(ExportName::parse(name), meant, "{name}");
        }
    }

    #[test]
    fn a_name_is_shown_as_a_uri() {
        for (name, shown) in [
            ("nbd:host:7:exportname=a", "nbd://host:7/a"),
            ("nbd://[::1]", "nbd://[::1]:10809"),
            ("nbd:unix:/run/s", "nbd+unix://?socket=/run/s"),
            ("nbds+unix:///d?socket=/run/s&tls-creds=t", "nbds+unix:///d?socket=/run/s"),
        ] {
            assert_eq!(ExportName::parse(name).unwrap().to_string(), shown);
        }
    }
}
