//! Hosts with ports.

use std::fmt;
use std::str::FromStr;

/// Bytes of a host's name at most: DNS has 253.
pub(crate) const HOST_BYTES_MAX: usize = 255;

/// Where a server listens: the name or the address of a host, in lower case, and a port. It is shown as `HOST:PORT`, IPv6 in brackets.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Address {
    host: String,
    port: u16,
}

/// No address.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("HOST:PORT, with a port from 1 to 65535 (IPv6 as [ADDRESS]:PORT)")]
pub struct AddressError;

impl Address {
    /// A host as it was given, IPv6 without brackets.
    ///
    /// # Errors
    /// For a host without a name, or with one that is no text in one line, or for port 0.
    pub fn new(host: &str, port: u16) -> Result<Self, AddressError> {
        let is_name = |byte: u8| byte.is_ascii_graphic() || !byte.is_ascii();
        if host.is_empty() || host.len() > HOST_BYTES_MAX || !host.bytes().all(is_name) || port == 0 {
            return Err(AddressError);
        }
        Ok(Self { host: host.to_ascii_lowercase(), port })
    }

    /// The name or the address, IPv6 without brackets.
    pub fn host(&self) -> &str {
        &self.host
    }

    /// The port.
    pub fn port(&self) -> u16 {
        self.port
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { host, port } = self;
        if host.contains(':') { write!(f, "[{host}]:{port}") } else { write!(f, "{host}:{port}") }
    }
}

impl FromStr for Address {
    type Err = AddressError;

    fn from_str(text: &str) -> Result<Self, AddressError> {
        let (host, port) = text.rsplit_once(':').ok_or(AddressError)?;
        let port = port.parse().map_err(|_| AddressError)?;
        match host.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')) {
            Some(host) => Self::new(host, port),
            None if host.contains(':') => Err(AddressError),
            None => Self::new(host, port),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_is_read_as_it_is_shown_and_nothing_else_is_one() {
        for (text, shown) in
            [("h:1", "h:1"), ("Images.Example:443", "images.example:443"), ("[::1]:80", "[::1]:80")]
        {
            assert_eq!(text.parse::<Address>().unwrap().to_string(), shown);
        }
        for text in ["", "h", "h:", "h:0", "h:65536", ":1", "::1:80", "a b:1", "[::1]", "http://h:1/x"] {
            assert_eq!(text.parse::<Address>(), Err(AddressError), "{text}");
        }
    }
}
