//! File names that mean an export.

use std::fmt;
use std::path::PathBuf;

/// The port of a server that is named without one.
pub const PORT_DEFAULT: u16 = 10809;

/// Where a server listens.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Server {
    /// At a unix socket.
    Unix(PathBuf),
    /// At a TCP port.
    Tcp {
        /// A name or an address; of IPv6 without brackets.
        host: String,
        /// The port.
        port: u16,
    },
}

impl fmt::Display for Server {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unix(path) => write!(f, "{}", path.display()),
            Self::Tcp { host, port } if host.contains(':') => write!(f, "[{host}]:{port}"),
            Self::Tcp { host, port } => write!(f, "{host}:{port}"),
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
    pub tls: bool,
}

/// A name that means no export.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NameError {
    /// It has another shape.
    #[error(
        "nbd://HOST[:PORT][/EXPORT], nbd+unix:///[EXPORT]?socket=PATH, nbd:HOST:PORT[:exportname=EXPORT] or nbd:unix:PATH[:exportname=EXPORT]"
    )]
    Shape,
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

/// As QEMU writes it.
impl fmt::Display for ExportName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let scheme = if self.tls { "nbds" } else { "nbd" };
        match &self.server {
            Server::Unix(path) => {
                write!(f, "{scheme}+unix://{}?socket={}", in_path(&self.export), path.display())
            }
            tcp @ Server::Tcp { .. } => write!(f, "{scheme}://{tcp}{}", in_path(&self.export)),
        }
    }
}

fn in_path(export: &str) -> String {
    if export.is_empty() { String::new() } else { format!("/{export}") }
}

/// `HOST[:PORT][/EXPORT]`
fn tcp(rest: &str, tls: bool) -> Result<ExportName, NameError> {
    let (authority, export) = rest.split_once('/').unwrap_or((rest, ""));
    if rest.contains(['?', '#']) || authority.contains('@') {
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

/// `/[EXPORT]?socket=PATH`
fn unix(rest: &str, tls: bool) -> Result<ExportName, NameError> {
    let (path, query) = rest.split_once('?').ok_or(NameError::Shape)?;
    let socket = query.strip_prefix("socket=").filter(|socket| !socket.is_empty() && !socket.contains('&'));
    let socket = unescaped(socket.ok_or(NameError::Shape)?)?;
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
    Ok(ExportName { server, export: export.to_owned(), tls: false })
}

fn number(port: &str) -> Result<u16, NameError> {
    port.parse().ok().filter(|&port| port > 0).ok_or(NameError::Port)
}

/// The text that percent-encoding stands for.
fn unescaped(text: &str) -> Result<String, NameError> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut parts = text.split('%');
    bytes.extend_from_slice(parts.next().unwrap_or_default().as_bytes());
    for part in parts {
        let (digits, rest) = part.split_at_checked(2).ok_or(NameError::Escape)?;
        if !digits.bytes().all(|digit| digit.is_ascii_hexdigit()) {
            return Err(NameError::Escape);
        }
        bytes.push(u8::from_str_radix(digits, 16).map_err(|_| NameError::Escape)?);
        bytes.extend_from_slice(rest.as_bytes());
    }
    String::from_utf8(bytes).map_err(|_| NameError::Escape)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tcp(host: &str, port: u16, export: &str, tls: bool) -> Result<ExportName, NameError> {
        let server = Server::Tcp { host: host.to_owned(), port };
        Ok(ExportName { server, export: export.to_owned(), tls })
    }

    fn unix(path: &str, export: &str, tls: bool) -> Result<ExportName, NameError> {
        Ok(ExportName { server: Server::Unix(path.into()), export: export.to_owned(), tls })
    }

    #[test]
    fn names_mean_what_they_mean_to_qemu() {
        for (name, meant) in [
            ("nbd://host", tcp("host", 10809, "", false)),
            ("nbd://", tcp("localhost", 10809, "", false)),
            ("nbds://host:7/a%20b/c", tcp("host", 7, "a b/c", true)),
            ("nbd+tcp://[::1]:7/x", tcp("::1", 7, "x", false)),
            ("nbd://[::1]", tcp("::1", 10809, "", false)),
            ("nbd+unix:///?socket=/run/a b", unix("/run/a b", "", false)),
            ("nbd+unix://?socket=/run/s", unix("/run/s", "", false)),
            ("nbds+unix:///disk%3f?socket=/run/%73", unix("/run/s", "disk?", true)),
            ("nbd:host:7", tcp("host", 7, "", false)),
            ("nbd:[::1]:7:exportname=a:b", tcp("::1", 7, "a:b", false)),
            ("nbd:unix:/run/s:exportname=disk", unix("/run/s", "disk", false)),
            ("nbd:unix:/run/s", unix("/run/s", "", false)),
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
            ("nbds+unix:///d?socket=/run/s", "nbds+unix:///d?socket=/run/s"),
        ] {
            assert_eq!(ExportName::parse(name).unwrap().to_string(), shown);
        }
    }
}
