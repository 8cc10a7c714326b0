//! Names of files on HTTP servers.

use std::fmt;

/// Bytes of a URL at most: servers take 8 KiB, signed names have some hundred.
const URL_BYTES_MAX: usize = 8 << 10;

/// How a server is spoken to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scheme {
    /// As it is.
    Http,
    /// Over TLS.
    Https,
}

impl Scheme {
    /// What stands before the colon.
    pub fn name(self) -> &'static str {
        match self {
            Self::Http => "http",
            Self::Https => "https",
        }
    }

    /// The port of a URL without one.
    pub fn port_default(self) -> u16 {
        match self {
            Self::Http => 80,
            Self::Https => 443,
        }
    }
}

/// A server: what credentials are for, and what a connection leads to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Origin {
    /// How it is spoken to.
    pub scheme: Scheme,
    /// Its name or address, in lower case; of IPv6 without brackets.
    pub host: String,
    /// Its port.
    pub port: u16,
}

impl Origin {
    /// Host and port as a request names them: without the port that the scheme has anyway.
    pub fn authority(&self) -> String {
        let host = if self.host.contains(':') { format!("[{}]", self.host) } else { self.host.clone() };
        if self.port == self.scheme.port_default() { host } else { format!("{host}:{}", self.port) }
    }
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}://{}", self.scheme.name(), self.authority())
    }
}

/// A file on a server. It is shown without its query: a name that is signed has the signature there.
#[derive(Clone, PartialEq, Eq)]
pub struct Url {
    origin: Origin,
    /// From the slash on, as it is sent.
    path: String,
    query: Option<String>,
}

/// A name that means no file on a server.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum UrlError {
    /// It has another shape.
    #[error("http://HOST[:PORT]/PATH or https://HOST[:PORT]/PATH")]
    Shape,
    /// The port is no number.
    #[error("a port from 1 to 65535")]
    Port,
    /// A password in a name is seen by everybody who sees the name.
    #[error("a URL without user and password: give username and password-secret")]
    User,
    /// Another protocol.
    #[error("http:// and https://")]
    Scheme,
    /// Bytes that a URL cannot have.
    #[error("a URL of at most {URL_BYTES_MAX} bytes in ASCII, with %XX for spaces and other characters")]
    Bytes,
}

impl Url {
    /// Reads a name. What stands behind `#` is not the server's and is left out.
    ///
    /// # Errors
    /// When it is none; the message says what is allowed.
    pub fn parse(name: &str) -> Result<Self, UrlError> {
        if name.len() > URL_BYTES_MAX || !name.bytes().all(|byte| byte.is_ascii_graphic()) {
            return Err(UrlError::Bytes);
        }
        let (scheme, rest) = name.split_once("://").ok_or(UrlError::Shape)?;
        let scheme = match scheme.to_ascii_lowercase().as_str() {
            "http" => Scheme::Http,
            "https" => Scheme::Https,
            _ => return Err(UrlError::Shape),
        };
        let rest = rest.split_once('#').map_or(rest, |(rest, _)| rest);
        let end = rest.find(['/', '?']).unwrap_or(rest.len());
        let (authority, target) = rest.split_at(end);
        if authority.contains('@') {
            return Err(UrlError::User);
        }
        let (host, port) = host_and_port(authority)?;
        let port = match port {
            None => scheme.port_default(),
            Some(port) => port.parse().ok().filter(|port| *port > 0).ok_or(UrlError::Port)?,
        };
        let origin = Origin { scheme, host: host.to_ascii_lowercase(), port };
        Ok(Self::at(origin, target))
    }

    /// The file at `target` (path and query) of a server.
    pub fn at(origin: Origin, target: &str) -> Self {
        let (path, query) = match target.split_once('?') {
            Some((path, query)) => (path, Some(query.to_owned())),
            None => (target, None),
        };
        let slash = if path.starts_with('/') { "" } else { "/" };
        Self { origin, path: format!("{slash}{path}"), query }
    }

    /// Where an answer that says `Location: location` leads (RFC 9110, 10.2.2).
    ///
    /// # Errors
    /// When that is no file on a server.
    pub fn join(&self, location: &str) -> Result<Self, UrlError> {
        let location = location.split_once('#').map_or(location, |(location, _)| location);
        if let Some(same_scheme) = location.strip_prefix("//") {
            return Self::parse(&format!("{}://{same_scheme}", self.origin.scheme.name()));
        }
        if let Some(scheme) = Self::scheme_of(location) {
            let is_ours = ["http", "https"].iter().any(|name| scheme.eq_ignore_ascii_case(name));
            return if is_ours { Self::parse(location) } else { Err(UrlError::Scheme) };
        }
        if location.len() > URL_BYTES_MAX || !location.bytes().all(|byte| byte.is_ascii_graphic()) {
            return Err(UrlError::Bytes);
        }
        let directory = self.path.rsplit_once('/').map_or("", |(directory, _)| directory);
        Ok(match location.starts_with('/') {
            true => Self::at(self.origin.clone(), location),
            false => Self::at(self.origin.clone(), &format!("{directory}/{location}")),
        })
    }

    /// The scheme with which `location` begins, if it does (RFC 3986, 3.1 and 4.2): `nbd+unix`, too, which is no path.
    pub fn scheme_of(location: &str) -> Option<&str> {
        let is_part = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'+' | b'-' | b'.');
        let (scheme, _) = location.split_once(':')?;
        let begins = scheme.bytes().next().is_some_and(|byte| byte.is_ascii_alphabetic());
        (begins && scheme.bytes().all(is_part)).then_some(scheme)
    }

    /// Its server.
    pub fn origin(&self) -> &Origin {
        &self.origin
    }

    /// From the slash on, without the query.
    pub fn path(&self) -> &str {
        &self.path
    }

    /// What stands behind the question mark.
    pub fn query(&self) -> Option<&str> {
        self.query.as_deref()
    }

    /// What a request asks its server for.
    pub fn target(&self) -> String {
        match &self.query {
            Some(query) => format!("{}?{query}", self.path),
            None => self.path.clone(),
        }
    }

    /// A name that is another one for another URL, and says nothing of the query but that there is one.
    pub fn name(&self) -> String {
        let shown = format!("{}{}", self.origin, self.path);
        match &self.query {
            None => shown,
            Some(query) => {
                let digest = ring::digest::digest(&ring::digest::SHA256, query.as_bytes());
                let start: String =
                    digest.as_ref().iter().take(4).map(|byte| format!("{byte:02x}")).collect();
                format!("{shown}?(hidden:{start})")
            }
        }
    }
}

/// What messages call a name that may be no URL: without query, user and password.
pub fn shown(name: &str) -> String {
    if let Ok(url) = Url::parse(name) {
        return url.name();
    }
    let name = name.split_once('?').map_or(name, |(name, _)| name);
    let (scheme, rest) = name.split_once("://").unwrap_or(("", name));
    let rest = rest.rsplit_once('@').map_or(rest, |(_, rest)| rest);
    if scheme.is_empty() { rest.to_owned() } else { format!("{scheme}://{rest}") }
}

impl fmt::Display for Url {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.name())
    }
}

impl fmt::Debug for Url {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.name())
    }
}

fn host_and_port(authority: &str) -> Result<(&str, Option<&str>), UrlError> {
    let (host, port) = match authority.strip_prefix('[') {
        Some(bracketed) => {
            let (host, rest) = bracketed.split_once(']').ok_or(UrlError::Shape)?;
            match rest {
                "" => (host, None),
                _ => (host, Some(rest.strip_prefix(':').ok_or(UrlError::Shape)?)),
            }
        }
        None => match authority.split_once(':') {
            Some((host, port)) => (host, Some(port)),
            None => (authority, None),
        },
    };
    let is_bracketed = authority.starts_with('[');
    let is_one = |byte: u8| {
        byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'-' | b'_') || (is_bracketed && byte == b':')
    };
    if host.is_empty() || !host.bytes().all(is_one) {
        return Err(UrlError::Shape);
    }
    Ok((host, port))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_a_server_and_what_it_is_asked_for() {
        for (name, origin, target) in [
            ("http://h", "http://h", "/"),
            ("http://H:80/a/b.qcow2", "http://h", "/a/b.qcow2"),
            ("https://h:8443/a?b=c/d#e", "https://h:8443", "/a?b=c/d"),
            ("https://[fe80::1]:1/x", "https://[fe80::1]:1", "/x"),
            ("http://h?q", "http://h", "/?q"),
        ] {
            let url = Url::parse(name).unwrap();
            assert_eq!(
                (url.origin().to_string().as_str(), url.target().as_str()),
                (origin, target),
                "{name}"
            );
        }
        for (name, error) in [
            ("ftp://h/x", UrlError::Shape),
            ("http:///x", UrlError::Shape),
            ("http://h:/x", UrlError::Port),
            ("http://h:0/x", UrlError::Port),
            ("http://[::1/x", UrlError::Shape),
            ("http://a b/x", UrlError::Bytes),
            ("http://h/\r\nHost: x", UrlError::Bytes),
            ("http://user:word@h/x", UrlError::User),
            ("http://h,x/x", UrlError::Shape),
        ] {
            assert_eq!(Url::parse(name), Err(error), "{name}");
        }
    }

    #[test]
    fn a_redirect_leads_to_a_whole_name_a_path_or_a_neighbour() {
        let from = Url::parse("https://h:8443/a/b?c").unwrap();
        for (location, to) in [
            ("http://other/x?y", "http://other/x?y"),
            ("//other/x", "https://other/x"),
            ("/x", "https://h:8443/x"),
            ("x?y=http://z", "https://h:8443/a/x?y=http://z"),
        ] {
            assert_eq!(from.join(location).unwrap(), Url::parse(to).unwrap(), "{location}");
        }
        assert_eq!(from.join("file:///etc/passwd"), Err(UrlError::Scheme));
    }

    /// A name that is signed lets everybody in who sees its query.
    #[test]
    fn a_query_is_never_shown_and_still_tells_names_apart() {
        let url = |query: &str| Url::parse(&format!("https://h/x?X-Amz-Signature={query}")).unwrap();
        for shown in [url("c0ffee").to_string(), format!("{:?}", url("c0ffee"))] {
            assert!(shown.starts_with("https://h/x?(hidden:") && !shown.contains("c0ffee"), "{shown}");
        }
        assert_ne!(url("a").name(), url("b").name());
    }
}
