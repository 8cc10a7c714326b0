//! The contract, kept by requests for ranges.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use async_lock::OnceCell;
use futures_util::future::join_all;
use memory::IoBuf;
use memory::secret::Secret;
use net::tls::ClientCredentials;
use storage::{Extent, ExtentKind, Hints, IoFuture, Storage};
use wire::http::{Origin, Scheme, Url};

use crate::http::authorize::Authorize;
use crate::http::connection::address_of;
use crate::http::errors::Error;
use crate::http::judge::Pinned;
use crate::http::proxy;
use crate::http::readahead::{Readahead, Window};
use crate::http::remote::{Remote, Timeouts};

/// Asked for when a file is opened: the header of an image and what follows it.
const FIRST_BYTES: usize = 64 << 10;
/// Longer reads are several requests: what is cut short is fetched once more from its start.
const REQUEST_BYTES_MAX: usize = 4 << 20;
/// The most that is read ahead: eight windows of a file have that.
pub const READAHEAD_BYTES_MAX: u64 = 16 << 20;

/// How a file is opened.
#[derive(Debug)]
pub struct Options {
    /// What messages call it.
    pub name: String,
    /// The file.
    pub url: Url,
    /// Whose certificates servers must show; needed for https.
    pub tls: Option<ClientCredentials>,
    /// Credentials.
    pub authorize: Arc<dyn Authorize>,
    /// What a proxy is shown instead of the user and password that the environment names: a value of `Proxy-Authorization`
    /// ([`wire::http::basic_authorization`]).
    pub proxy_login: Option<Arc<Secret>>,
    /// How long a server may be silent in an attempt.
    pub timeout: Duration,
    /// How long opening may take with all its attempts. `None`: for ever.
    pub open_timeout: Option<Duration>,
    /// How long a read may take with all its attempts. `None`: for ever, a guest then waits until the server is back.
    pub remote_timeout: Option<Duration>,
    /// Bytes that are fetched for short reads one after the other; 0: none besides those that are read.
    pub readahead: u64,
    /// It will be written: that is refused.
    pub writable: bool,
}

/// A file on an HTTP server as storage. It is only read, and its length is fixed.
#[derive(Debug)]
pub struct HttpStorage {
    name: String,
    remote: Remote,
    file: Pinned,
    readahead: Readahead,
}

impl HttpStorage {
    /// Asks for the start of the file.
    ///
    /// # Errors
    /// When no server answers within `remote_timeout`, the server refuses, knows no ranges or names no version of the file; or the file is
    /// to be written.
    pub async fn open(options: Options) -> Result<Self, Error> {
        let Options { name, url, tls, authorize, proxy_login, readahead, writable, .. } = options;
        let Options { timeout, open_timeout, remote_timeout, .. } = options;
        if writable {
            return Err(Error::ReadOnly { url });
        }
        name_addresses(&url)?;
        let timeouts = Timeouts { timeout, open_timeout, remote_timeout };
        let remote = Remote::new(url, tls, authorize, timeouts).with_proxy_login(proxy_login);
        let (found, mut start) = remote.fetch(0, IoBuf::uninit(FIRST_BYTES), None).await;
        let (len, file) = found?;
        if file.version.is_empty() && file.length > 0 {
            return Err(Error::NoVersion { url: remote.url });
        }
        if i64::try_from(file.length).is_err() {
            let what = format!("it has {} bytes; allowed are {}", file.length, i64::MAX);
            return Err(Error::Broken { url: remote.url, what });
        }
        start.truncate(usize::try_from(len).unwrap_or(FIRST_BYTES).min(FIRST_BYTES));
        let readahead = Readahead::new(readahead.min(READAHEAD_BYTES_MAX), start.freeze());
        Ok(Self { name, remote, file, readahead })
    }

    /// What the server calls the version that was opened, in one line, if no other version is called so: a strong ETag, or when it was
    /// modified last.
    pub fn version(&self) -> Option<String> {
        let etag = self.file.version.strong_etag().map(|etag| format!("ETag {etag}"));
        etag.or_else(|| self.file.version.last_modified.as_ref().map(|date| format!("Last-Modified {date}")))
    }

    async fn read_inside(&self, offset: u64, mut buf: IoBuf) -> (io::Result<()>, IoBuf) {
        if buf.is_empty() {
            return (Ok(()), buf);
        }
        let wanted = offset..offset + buf.len() as u64;
        if let Some(window) = self.readahead.window(&wanted, self.file.length) {
            let copied = self.copy_from(&window, offset, &mut buf).await;
            return (copied.map_err(Into::into), buf);
        }
        let (mut parts, mut rest) = (Vec::new(), buf);
        while rest.len() > REQUEST_BYTES_MAX {
            let behind = rest.split_off(REQUEST_BYTES_MAX);
            parts.push(std::mem::replace(&mut rest, behind));
        }
        parts.push(rest);
        let places = (offset..).step_by(REQUEST_BYTES_MAX);
        let fetches =
            parts.into_iter().zip(places).map(|(part, at)| self.remote.fetch(at, part, Some(&self.file)));
        let (mut result, mut whole) = (Ok(()), None::<IoBuf>);
        for (fetched, part) in join_all(fetches).await {
            result = result.and(fetched.map(drop));
            match &mut whole {
                None => whole = Some(part),
                Some(before) => before.rejoin(part),
            }
        }
        (result.map_err(Into::into), whole.unwrap_or_else(|| IoBuf::uninit(0)))
    }

    async fn copy_from(&self, window: &Arc<Window>, offset: u64, buf: &mut IoBuf) -> Result<(), Error> {
        let Window { range, bytes, .. } = &**window;
        let len = usize::try_from(range.end - range.start).unwrap_or(usize::MAX);
        let fetch = async || {
            let (fetched, fresh) = self.remote.fetch(range.start, IoBuf::uninit(len), Some(&self.file)).await;
            fetched.map(|_| fresh.freeze())
        };
        let bytes = OnceCell::get_or_try_init(bytes, fetch).await?;
        let from = usize::try_from(offset - range.start).unwrap_or(usize::MAX);
        if let Some(there) = bytes.get(from..from.saturating_add(buf.len())) {
            buf.copy_from_slice(there);
        }
        Ok(())
    }
}

/// Says where the file is read from later, too: its server, and the port for https there, to which redirects from http lead.
pub(crate) fn name_addresses(url: &Url) -> Result<(), Error> {
    let origin = url.origin();
    let wrong = |error: io::Error| Error::Broken { url: url.clone(), what: error.to_string() };
    net::dial::name(address_of(origin).map_err(wrong)?);
    if let Some(proxy) = proxy::of(origin)? {
        net::dial::name(address_of(&proxy.origin).map_err(wrong)?);
    }
    let encrypted = Origin { scheme: Scheme::Https, port: Scheme::Https.port_default(), ..origin.clone() };
    if origin.port == Scheme::Http.port_default() {
        net::dial::name(address_of(&encrypted).map_err(wrong)?);
    }
    Ok(())
}

impl Storage for HttpStorage {
    fn name(&self) -> &str {
        &self.name
    }

    fn length(&self) -> u64 {
        self.file.length
    }

    fn read(&self, offset: u64, mut buf: IoBuf, _hints: Hints) -> IoFuture<'_, (io::Result<()>, IoBuf)> {
        Box::pin(async move {
            let inside = self.length().saturating_sub(offset).min(buf.len() as u64);
            let inside = usize::try_from(inside).unwrap_or(usize::MAX);
            if inside == buf.len() {
                return self.read_inside(offset, buf).await;
            }
            let mut beyond = buf.split_off(inside);
            beyond.fill(0);
            let (result, mut buf) = self.read_inside(offset, buf).await;
            buf.rejoin(beyond);
            (result, buf)
        })
    }

    fn extent(&self, offset: u64, len: u64) -> IoFuture<'_, io::Result<Extent>> {
        // No server says what of a file is a hole.
        let len = len.min(self.length().saturating_sub(offset)).max(1);
        Box::pin(async move { Ok(Extent { len, kind: ExtentKind::Data }) })
    }

    fn refusal(&self) -> io::Error {
        Error::ReadOnly { url: self.remote.url.clone() }.into()
    }
}
