//! `http` and `https`: a file on an HTTP server, which is only read.

use std::any::Any;
use std::fmt;
use std::io;
use std::sync::Arc;

use luks::Secret;
use remote::http::{Authorize, Fixed};
use storage::{IoFuture, Storage};
use wire::http::{Scheme, Url, basic_authorization};

use super::not_built::prefixes;
use super::over_http::{self, Reading, Trust};
use super::remote::ON_REMOTE_ERROR;
use super::store::{secret, wrong};
use graph::drive::{Entry as Given, OptionTree};
use graph::drivers::{Access, Elsewhere, StorageDriver, StorageKind, Target};
use graph::options::entry::{at, choice_at, first_fixed_of, in_group, read_all};
use graph::options::{Entry, Group, OptionError, Reader};

pub(super) const HTTP: StorageDriver = StorageDriver {
    name: "http",
    prefixes: prefixes::HTTP,
    kind: StorageKind::Elsewhere(Elsewhere {
        specs: || HTTP_OPTIONS.iter().map(Entry::spec).collect(),
        options_of,
        shown: wire::http::shown,
        read: |reader| read(HTTP_OPTIONS, Scheme::Http, reader),
        is_within_process: false,
    }),
};

pub(super) const HTTPS: StorageDriver = StorageDriver {
    name: "https",
    prefixes: prefixes::HTTPS,
    kind: StorageKind::Elsewhere(Elsewhere {
        specs: || HTTPS_OPTIONS.iter().map(Entry::spec).collect(),
        options_of,
        shown: wire::http::shown,
        read: |reader| read(HTTPS_OPTIONS, Scheme::Https, reader),
        is_within_process: false,
    }),
};

/// Text that is or may contain credentials: it is never shown.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct Hidden(Option<String>);

impl fmt::Debug for Hidden {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.0.is_some() { "hidden" } else { "none" })
    }
}

impl From<String> for Hidden {
    fn from(text: String) -> Self {
        Self(Some(text))
    }
}

impl From<Hidden> for Option<String> {
    fn from(hidden: Hidden) -> Self {
        hidden.0
    }
}

/// The options of the drivers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Http {
    scheme: Scheme,
    /// `url`. Its query may be a signature.
    url: Hidden,
    reading: Reading,
    /// `force-range`, which has no effect.
    force_range: bool,
    /// `username`.
    username: Option<String>,
    /// `password-secret`.
    password_secret: Option<String>,
    /// `proxy-username`.
    proxy_username: Option<String>,
    /// `proxy-password-secret`.
    proxy_password_secret: Option<String>,
    /// `cookie`.
    cookie: Hidden,
    /// `cookie-secret`.
    cookie_secret: Option<String>,
    trust: Trust,
}

/// Options of both drivers, and more options of one of them.
macro_rules! options {
    ($driver:literal $(, $more:expr)*) => {
        &in_group(
            Group::Storage($driver),
            [
                Entry::text("url", at!(Http, url), "the file's name, as http://HOST/PATH").needed(),
                Entry::size(
                    "readahead",
                    at!(Http, reading.readahead),
                    "bytes that are fetched for short reads one after the other, at most, and a quarter of it at first; up to 16M",
                )
                .default("256K"),
                Entry::whole(
                    "timeout",
                    at!(Http, reading.timeout_s),
                    "seconds for which the server may be silent before a request is sent again",
                )
                .default("5"),
                Entry::whole(
                    "remote-timeout",
                    at!(Http, reading.remote_timeout_s),
                    "seconds within which a read must succeed, all attempts together, or it fails; 0: any time",
                )
                .default_follows("60, or any time with on-remote-error=wait"),
                Entry::choice(
                    "on-remote-error",
                    choice_at!(Http, ON_REMOTE_ERROR, reading.on_remote_error),
                    "what a read does while the server is lost: report has it fail within remote-timeout, wait has it wait for the server (with remote-timeout, so long)",
                )
                .default("report"),
                Entry::path(
                    "cache-file",
                    at!(Http, reading.cache.file),
                    "keeps what was read in this file of this machine, a qcow2 image: it is made if nothing is there, and begins anew when the file on the server has changed; disks that name the same one share it",
                )
                .default_follows("none"),
                Entry::size(
                    "cache-size",
                    at!(Http, reading.cache.bytes_max),
                    "bytes of the cache: what was not used for the longest is given up beyond; at least 16M, 0: any number",
                )
                .default("10G"),
                Entry::path(
                    "prefetch-trace",
                    at!(Http, reading.cache.trace),
                    "fetches into the cache what this trace (serve --trace) says that earlier starts read, while no reader waits for the server; it needs cache-file",
                )
                .default_follows("none"),
                Entry::text("username", at!(Http, username), "the user name (basic authentication)")
                    .default_follows("none"),
                Entry::text(
                    "password-secret",
                    at!(Http, password_secret),
                    "the secret (--object secret,id=NAME) that holds the password of username",
                )
                .default_follows("an empty password"),
                Entry::text(
                    "proxy-username",
                    at!(Http, proxy_username),
                    "the user name for the proxy that http_proxy or https_proxy names (basic authentication)",
                )
                .default_follows("that in http_proxy or https_proxy"),
                Entry::text(
                    "proxy-password-secret",
                    at!(Http, proxy_password_secret),
                    "the secret that holds the password of proxy-username",
                )
                .default_follows("an empty password"),
                Entry::text("cookie", at!(Http, cookie), "cookies that are sent, as NAME=VALUE; NAME=VALUE")
                    .default_follows("none"),
                Entry::text("cookie-secret", at!(Http, cookie_secret), "the secret that holds them")
                    .default_follows("none"),
                Entry::switch("force-range", at!(Http, force_range), "no effect: every request asks for a range"),
                $($more),*
            ],
        )
    };
}

/// The part of the table of `http`.
pub const HTTP_OPTIONS: &[Entry<Http>] = options!("http");

/// The part of the table of `https`.
pub const HTTPS_OPTIONS: &[Entry<Http>] = options!(
    "https",
    Entry::switch("sslverify", at!(Http, trust.sslverify), "the server's certificate must be believed").default("on"),
    Entry::text(
        "tls-creds",
        at!(Http, trust.tls_creds),
        "believes, and shows, the certificates of this object (tls-creds-x509, endpoint=client)",
    )
    .default_follows("the authorities that this machine believes"),
    Entry::path(
        "tls-certificates",
        at!(Http, trust.tls_certificates),
        "likewise those in this directory: ca-cert.pem, and client-cert.pem with client-key.pem for servers that ask",
    )
    .default_follows("the authorities that this machine believes")
);

fn options_of(name: &str) -> Result<OptionTree, String> {
    Url::parse(name).map_err(|allowed| allowed.to_string())?;
    let mut tree = OptionTree::default();
    tree.insert("url", Given::Value(name.into())).map_err(|error| error.to_string())?;
    Ok(tree)
}

fn read(
    entries: &'static [Entry<Http>],
    scheme: Scheme,
    reader: &mut Reader,
) -> Result<Arc<dyn Target>, OptionError> {
    let mut http = Http {
        scheme,
        url: Hidden::default(),
        reading: Reading::default(),
        force_range: false,
        username: None,
        password_secret: None,
        proxy_username: None,
        proxy_password_secret: None,
        cookie: Hidden::default(),
        cookie_secret: None,
        trust: Trust::default(),
    };
    read_all(entries, reader, &mut http)?;
    let both = |option: &str, other: &str, rule| {
        Err(OptionError::Conflict { option: format!("file.{option}"), other: format!("file.{other}"), rule })
    };
    if http.cookie.0.is_some() && http.cookie_secret.is_some() {
        return both("cookie", "cookie-secret", "both are what is sent; give one of them");
    }
    if http.trust.tls_creds.is_some() && http.trust.tls_certificates.is_some() {
        return both(
            "tls-creds",
            "tls-certificates",
            "both say whose certificates are good; give one of them",
        );
    }
    Ok(Arc::new(http))
}

/// A user, and the password of the secret that is named: options of these names.
fn login<'a>(
    (user_option, user): (&str, &'a Option<String>),
    (password_option, id): (&str, &Option<String>),
) -> io::Result<Option<(&'a str, Secret)>> {
    let password = id.as_deref().map(secret).transpose()?;
    match (user, password) {
        (None, Some(_)) => {
            Err(wrong(format!("option file.{password_option} is for a user; give {user_option} with it")))
        }
        (None, None) => Ok(None),
        (Some(user), password) => Ok(Some((user, password.unwrap_or_else(|| Secret::copy_of(b""))))),
    }
}

impl Http {
    fn url(&self) -> io::Result<Url> {
        let driver = self.scheme.name();
        let given = self.url.0.as_deref().ok_or_else(|| wrong(format!("driver {driver} needs a url")))?;
        let refused = |allowed: String| {
            wrong(format!("option file.url is {:?}; allowed: {allowed}", wire::http::shown(given)))
        };
        let url = Url::parse(given).map_err(|allowed| refused(allowed.to_string()))?;
        match url.origin().scheme == self.scheme {
            true => Ok(url),
            false => Err(refused(format!("{driver}:// with driver {driver}"))),
        }
    }

    fn authorization(&self) -> io::Result<Fixed> {
        let cookie = match (&self.cookie.0, &self.cookie_secret) {
            (Some(cookie), _) => Some(Secret::copy_of(cookie.as_bytes())),
            (None, Some(id)) => Some(secret(id)?),
            (None, None) => None,
        };
        let login = login(("username", &self.username), ("password-secret", &self.password_secret))?;
        Ok(Fixed::new(cookie, login.as_ref().map(|(user, password)| (*user, password))))
    }

    /// What proxies are shown.
    fn proxy_login(&self) -> io::Result<Option<Arc<Secret>>> {
        let password = ("proxy-password-secret", &self.proxy_password_secret);
        let login = login(("proxy-username", &self.proxy_username), password)?;
        Ok(login.map(|(user, password)| Arc::new(basic_authorization(user, password.bytes()))))
    }
}

impl Target for Http {
    fn name(&self) -> String {
        self.url().map_or_else(|_| format!("{}:", self.scheme.name()), |url| url.name())
    }

    fn first_difference(&self, other: &dyn Target) -> Option<String> {
        match (other as &dyn Any).downcast_ref::<Self>() {
            Some(other) if other.scheme == self.scheme => first_fixed_of(HTTPS_OPTIONS, self, other),
            _ => Some("file.driver".to_owned()),
        }
    }

    /// A server covers its files; a file, itself. A name in an image brings neither credentials nor trusted
    /// certificates.
    fn covers(&self, other: &dyn Target) -> bool {
        let other = (other as &dyn Any).downcast_ref().map(Self::url);
        match (self.url(), other) {
            (Ok(own), Some(Ok(other))) => {
                let is_server = own.path() == "/" && own.query().is_none();
                own.origin() == other.origin() && (is_server || own == other)
            }
            _ => false,
        }
    }

    fn check(&self) -> IoFuture<'_, io::Result<()>> {
        Box::pin(async { remote::http::check_reachable(&self.url()?) })
    }

    fn open(&self, access: Access) -> IoFuture<'_, io::Result<Arc<dyn Storage>>> {
        Box::pin(async move {
            let (url, authorize) = (self.url()?, Arc::new(self.authorization()?));
            let logins = (authorize as Arc<dyn Authorize>, self.proxy_login()?);
            over_http::open((self.name(), url), logins, &self.reading, &self.trust, access).await
        })
    }
}

#[cfg(test)]
mod tests {
    use std::ffi::OsStr;

    use graph::drive::parse_drive;
    use graph::drivers::target_of;
    use graph::options::DiskOptions;
    use graph::{OpenRules, open};

    #[test]
    fn a_server_that_is_allowed_covers_its_files_and_no_other_server() {
        let target = |name: &str| target_of(name).unwrap().unwrap().1;
        let covers = |allowed: &str, found: &str| target(allowed).covers(&*target(found));
        for (allowed, found, is_covered) in [
            ("http://h", "http://h/a", true),
            ("http://h/", "http://H:80/a?b", true),
            ("http://h/a", "http://h/a", true),
            ("http://h/a", "http://h/ab", false),
            ("http://h/a", "http://h/a?b", false),
            ("http://h", "http://h:81/a", false),
            ("http://h", "https://h/a", false),
            ("https://h", "http://h/a", false),
            ("http://h", "http://h.elsewhere/a", false),
        ] {
            assert_eq!(covers(allowed, found), is_covered, "{allowed} {found}");
        }
    }

    /// A signed name, or a password in a name, is a credential for everyone who reads it.
    #[test]
    fn no_message_and_no_description_shows_what_lets_in() {
        let reactor = reactor::Reactor::new(reactor::Backend::Ring).unwrap();
        for drive in [
            "read-only=on,file=http://127.0.0.1:1/x?sig=hush",
            "read-only=on,file=http://me:hush@127.0.0.1:1/x",
            "read-only=on,file=http://127.0.0.1:1/%gg x?hush",
            "read-only=on,file.driver=http,file.url=ftp://me:hush@h/x?hush",
            "read-only=on,file.driver=https,file.url=http://127.0.0.1:1/x?hush",
            "read-only=on,file.driver=http,file.url=http://127.0.0.1:1/x?hush,file.cookie=hush",
            "read-only=on,file.driver=http,file.url=http://127.0.0.1:1/x?hush,file.password-secret=none",
        ] {
            let tree = parse_drive(OsStr::new(drive), |_| false).unwrap();
            let message = match DiskOptions::of_tree(tree) {
                Err(error) => error.to_string(),
                Ok(options) => {
                    assert!(!format!("{options:?}").contains("hush"), "{options:?}");
                    reactor.run(open(&options, &OpenRules::default())).unwrap_err().to_string()
                }
            };
            assert!(!message.contains("hush"), "{message}");
        }
    }
}
