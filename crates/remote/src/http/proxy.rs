//! Proxies: which one leads to a server, as the environment says.
//!
//! The variables are those of curl: `https_proxy` and `http_proxy` by the scheme of the server, else `all_proxy`, and `no_proxy` for servers that
//! are connected to directly. All but `http_proxy` may be written in capitals. No proxy leads to this machine, nor to addresses of the
//! link, where clouds have their metadata.

use std::net::IpAddr;
use std::sync::{Arc, OnceLock};

use memory::secret::Secret;
use percent_encoding::percent_decode_str;
use wire::http::{Fields, Origin, Scheme, Url, basic_authorization};

use crate::http::errors::Error;

/// What a variable may name.
const ALLOWED: &str = "http://[USER:PASSWORD@]HOST[:PORT]";
/// The port of a proxy without one, as curl has it.
const PORT_DEFAULT: u16 = 1080;

/// A proxy.
#[derive(Debug)]
pub(crate) struct Proxy {
    pub(crate) origin: Origin,
    authorization: Option<Secret>,
}

/// A proxy on the way of one file's requests.
#[derive(Clone, Debug)]
pub(crate) struct Way {
    pub(crate) proxy: &'static Proxy,
    /// The file's own user and password, instead of those that the environment names.
    login: Option<Arc<Secret>>,
}

/// What the environment says.
#[derive(Debug, Default)]
struct Proxies {
    /// Each with the variable that names it.
    http: Option<(String, Option<Proxy>)>,
    https: Option<(String, Option<Proxy>)>,
    direct: Vec<Direct>,
}

/// Servers that are connected to directly.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Direct {
    All,
    /// A host, and those below it.
    Host {
        name: String,
        port: Option<u16>,
    },
    Net {
        address: IpAddr,
        bits: u32,
    },
}

/// The proxy on the way to a server; `None`: it is connected to directly.
///
/// # Errors
/// When the variable names none.
pub(crate) fn of(origin: &Origin) -> Result<Option<&'static Proxy>, Error> {
    static PROXIES: OnceLock<Proxies> = OnceLock::new();
    PROXIES.get_or_init(|| Proxies::of_environment(|name| std::env::var(name).ok())).of(origin)
}

impl Proxies {
    fn of_environment(get: impl Fn(&str) -> Option<String>) -> Self {
        let get = |name: &str| get(name).filter(|value| !value.is_empty());
        let proxy = |names: [&str; 4]| {
            let found = names.iter().find_map(|name| Some(((*name).to_owned(), get(name)?)));
            found.map(|(name, value)| (name, Proxy::parse(&value)))
        };
        let direct = get("no_proxy").or_else(|| get("NO_PROXY")).unwrap_or_default();
        Self {
            // Web servers pass the field Proxy of a request to their programs as HTTP_PROXY.
            http: proxy(["http_proxy", "all_proxy", "ALL_PROXY", ""]),
            https: proxy(["https_proxy", "HTTPS_PROXY", "all_proxy", "ALL_PROXY"]),
            direct: direct.split([',', ' ']).filter(|word| !word.is_empty()).map(Direct::parse).collect(),
        }
    }

    fn of(&self, origin: &Origin) -> Result<Option<&Proxy>, Error> {
        let chosen = match origin.scheme {
            Scheme::Http => &self.http,
            Scheme::Https => &self.https,
        };
        let Some((variable, proxy)) = chosen else { return Ok(None) };
        if is_near(&origin.host) || self.direct.iter().any(|direct| direct.has(origin)) {
            return Ok(None);
        }
        let wrong = || Error::Proxy { variable: variable.clone(), allowed: ALLOWED };
        proxy.as_ref().map(Some).ok_or_else(wrong)
    }
}

impl Way {
    pub(crate) fn new(proxy: &'static Proxy, login: Option<Arc<Secret>>) -> Self {
        Self { proxy, login }
    }

    fn login(&self) -> Option<&Secret> {
        self.login.as_deref().or(self.proxy.authorization.as_ref())
    }

    /// The request that has the proxy pass on what follows.
    pub(crate) fn connect_to(&self, origin: &Origin) -> Vec<u8> {
        let host = if origin.host.contains(':') { format!("[{}]", origin.host) } else { origin.host.clone() };
        let server = format!("{host}:{}", origin.port);
        let head = format!("CONNECT {server} HTTP/1.1\r\nHost: {server}\r\n");
        match self.login() {
            None => [head.as_bytes(), b"\r\n"].concat(),
            Some(login) => [head.as_bytes(), b"Proxy-Authorization: ", login.bytes(), b"\r\n\r\n"].concat(),
        }
    }

    /// Adds the user and password to a request that the proxy reads.
    pub(crate) fn authorize(&self, fields: &mut Fields) -> Result<(), Error> {
        if let Some(login) = self.login() {
            fields.add("Proxy-Authorization", String::from_utf8_lossy(login.bytes()))?;
        }
        Ok(())
    }
}

impl Proxy {
    fn parse(value: &str) -> Option<Self> {
        let (scheme, rest) = value.split_once("://").unwrap_or(("http", value));
        let (login, server) =
            rest.rsplit_once('@').map_or((None, rest), |(login, server)| (Some(login), server));
        let mut url = Url::parse(&format!("{scheme}://{server}")).ok()?.origin().clone();
        let has_port =
            server.trim_end_matches('/').rsplit_once(':').is_some_and(|(_, port)| !port.contains(']'));
        if url.scheme != Scheme::Http {
            return None;
        }
        if !has_port {
            url.port = PORT_DEFAULT;
        }
        let authorization = login.map(|login| {
            let (user, password) = login.split_once(':').unwrap_or((login, ""));
            basic_authorization(&String::from_utf8_lossy(&plain(user)), &plain(password))
        });
        Some(Self { origin: url, authorization })
    }
}

impl Direct {
    fn parse(word: &str) -> Self {
        if word == "*" {
            return Self::All;
        }
        if let Some((address, bits)) = word.split_once('/')
            && let (Ok(address), Ok(bits)) = (address.parse(), bits.parse())
        {
            return Self::Net { address, bits };
        }
        let bare = word.trim_start_matches('.').to_ascii_lowercase();
        let with_port = bare.rsplit_once(':').filter(|(host, _)| !host.contains(':') || host.ends_with(']'));
        let (name, port) = match with_port.map(|(host, port)| (host, port.parse())) {
            Some((host, Ok(port))) => (host.to_owned(), Some(port)),
            _ => (bare, None),
        };
        Self::Host { name: name.trim_matches(['[', ']']).to_owned(), port }
    }

    fn has(&self, origin: &Origin) -> bool {
        match self {
            Self::All => true,
            Self::Host { name, port } => {
                let above = origin.host.strip_suffix(name.as_str());
                let is_it = above.is_some_and(|above| above.is_empty() || above.ends_with('.'));
                is_it && port.is_none_or(|port| port == origin.port)
            }
            Self::Net { address, bits } => match (address, origin.host.parse()) {
                (IpAddr::V4(net), Ok(IpAddr::V4(found))) => {
                    same_start(net.to_bits().into(), found.to_bits().into(), 32, *bits)
                }
                (IpAddr::V6(net), Ok(IpAddr::V6(found))) => {
                    same_start(net.to_bits(), found.to_bits(), 128, *bits)
                }
                _ => false,
            },
        }
    }
}

/// Whether the first `bits` of two addresses of `width` bits are equal.
fn same_start(one: u128, other: u128, width: u32, bits: u32) -> bool {
    bits <= width && (one ^ other).checked_shr(width - bits).unwrap_or(0) == 0
}

/// This machine, and addresses of the link.
fn is_near(host: &str) -> bool {
    match host.parse() {
        Ok(IpAddr::V4(address)) => address.is_loopback() || address.is_link_local(),
        Ok(IpAddr::V6(address)) => address.is_loopback() || address.is_unicast_link_local(),
        Err(_) => host == "localhost" || host.ends_with(".localhost"),
    }
}

/// Without `%XX`.
fn plain(escaped: &str) -> Vec<u8> {
    percent_decode_str(escaped).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn proxies(known: &'static [(&str, &str)]) -> Proxies {
        Proxies::of_environment(|name| {
            known.iter().find(|(known, _)| *known == name).map(|(_, value)| (*value).to_owned())
        })
    }

    fn way(proxies: &Proxies, url: &str) -> Result<Option<String>, String> {
        let found = proxies.of(Url::parse(url).unwrap().origin());
        found.map(|proxy| proxy.map(|proxy| proxy.origin.to_string())).map_err(|error| error.to_string())
    }

    #[test]
    fn the_scheme_of_the_server_chooses_the_proxy_and_near_ones_have_none() {
        let proxies = proxies(&[
            ("HTTPS_PROXY", "http://p:3128"),
            ("http_proxy", "q"),
            ("NO_PROXY", "corp.example, .in.example,host:81,10.0.0.0/8,fd00::/8,192.168.1.7"),
        ]);
        let (of_https, of_http) =
            (Ok(Some("http://p:3128".to_owned())), Ok(Some("http://q:1080".to_owned())));
        for (url, expected) in [
            ("https://s3.example/x", &of_https),
            ("http://s3.example/x", &of_http),
            ("https://notcorp.example/x", &of_https),
            ("http://host:82/x", &of_http),
            ("http://11.0.0.1/x", &of_http),
        ] {
            assert_eq!(&way(&proxies, url), expected, "{url}");
        }
        for url in [
            "https://corp.example/x",
            "https://a.corp.example/x",
            "https://a.in.example/x",
            "http://host:81/x",
            "http://10.9.8.7/x",
            "http://[fd00::1]/x",
            "http://192.168.1.7/x",
            "http://127.0.0.1:9000/x",
            "http://localhost/x",
            "http://[::1]/x",
            "http://169.254.169.254/latest/api/token",
        ] {
            assert_eq!(way(&proxies, url), Ok(None), "{url}");
        }
    }

    #[test]
    fn a_variable_that_names_no_proxy_is_an_error_without_its_password() {
        for value in ["socks5://me:hush@p", "https://me:hush@p", "http://me:hush@p:0", "http://me:hush@"] {
            let known = move |name: &str| (name == "ALL_PROXY").then(|| value.to_owned());
            let error = way(&Proxies::of_environment(known), "https://s3.example/x").unwrap_err();
            assert_eq!(error, format!("ALL_PROXY names no proxy that can be used; allowed: {ALLOWED}"));
        }
        // A program of a web server gets it from a client.
        assert_eq!(way(&proxies(&[("HTTP_PROXY", "http://p")]), "http://s3.example/x"), Ok(None));
        assert_eq!(way(&proxies(&[("https_proxy", "http://p"), ("no_proxy", "*")]), "https://h/x"), Ok(None));
    }

    #[test]
    fn a_proxy_is_asked_for_the_server_with_its_own_password() {
        let proxy: &'static Proxy = Box::leak(Box::new(Proxy::parse("http://me:h%40ush@p:3128/").unwrap()));
        let files_own = Arc::new(basic_authorization("a", b"b"));
        for (way, login) in
            [(Way::new(proxy, None), "bWU6aEB1c2g="), (Way::new(proxy, Some(files_own)), "YTpi")]
        {
            let asked = way.connect_to(Url::parse("https://s3.example/x").unwrap().origin());
            let expected = format!(
                "CONNECT s3.example:443 HTTP/1.1\r\nHost: s3.example:443\r\n\
                Proxy-Authorization: Basic {login}\r\n\r\n"
            );
            assert_eq!(String::from_utf8(asked).unwrap(), expected);
            assert!(!format!("{way:?}").contains(login));
        }
    }
}
