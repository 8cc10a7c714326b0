//! Requests with a method of their own: whole files, sent and received.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use memory::IoBytes;
use net::tls::ClientCredentials;
use wire::http::{Fields, Url};

use crate::http::authorize::Authorize;
use crate::http::errors::Error;
use crate::http::file::name_addresses;
use crate::http::remote::exchange::Exchange;
use crate::http::remote::{Remote, Timeouts};

/// How a server is spoken to.
#[derive(Debug)]
pub struct ClientOptions {
    /// Any file of it.
    pub url: Url,
    /// Whose certificates servers must show; needed for https.
    pub tls: Option<ClientCredentials>,
    /// Credentials.
    pub authorize: Arc<dyn Authorize>,
    /// How long the server may be silent in an attempt.
    pub timeout: Duration,
    /// How long a request may take with all its attempts. `None`: for ever.
    pub remote_timeout: Option<Duration>,
}

/// A request.
#[derive(Clone, Debug)]
pub struct Sent<'a> {
    /// `GET`, `HEAD`, `PUT`, `POST` or `DELETE`.
    pub method: &'static str,
    /// A file of the server.
    pub url: &'a Url,
    /// What it says besides.
    pub fields: Fields,
    /// What follows. It is kept until the request has succeeded.
    pub body: IoBytes,
    /// An answer with more bytes is an error.
    pub answer_bytes_max: u64,
}

/// The answer to a request that succeeded.
#[derive(Clone, PartialEq, Eq)]
pub struct Reply {
    /// The version of the file (`ETag`).
    pub etag: Option<String>,
    /// The same as conditions name it at Google Cloud Storage.
    pub generation: Option<String>,
    /// When the file was made or changed (`Last-Modified`), in seconds since 1970.
    pub modified_s: Option<u64>,
    /// When the server answered (`Date`), by the same clock.
    pub date_s: Option<u64>,
    /// Which upload made the file.
    pub upload: Option<String>,
    /// Bytes of the file, as the server says before it sends them (`Content-Length`).
    pub bytes: Option<u64>,
    /// It is of the range alone that was asked for (206). A server that knows no ranges answers with the whole.
    pub is_part: bool,
    /// What followed.
    pub body: Vec<u8>,
}

impl fmt::Debug for Reply {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Reply {{ etag: {:?}, body: {} bytes }}", self.etag, self.body.len())
    }
}

/// One server. Its connections are kept and used again by any loop; at most 16 requests are at work, others wait.
#[derive(Debug)]
pub struct Client(Remote);

impl Client {
    /// Connects to no server yet.
    ///
    /// # Errors
    /// When the server's name is none.
    pub fn new(options: ClientOptions) -> Result<Self, Error> {
        let ClientOptions { url, tls, authorize, timeout, remote_timeout } = options;
        name_addresses(&url)?;
        let timeouts = Timeouts { timeout, open_timeout: remote_timeout, remote_timeout };
        Ok(Self(Remote::new(url, tls, authorize, timeouts)))
    }

    /// Sends a request until it succeeds: what is said of reading is tried again (see the crate). A request that changes something may
    /// have been carried out several times. Costs memory for the answer's body.
    ///
    /// # Errors
    /// When the server cannot be reached at first, does not answer within `remote_timeout`, leads elsewhere, or answers with anything but
    /// 200 to 299 ([`Error::Refused`]); the message has the server's word for it and nothing else of its answer.
    pub async fn send(&self, sent: &Sent<'_>) -> Result<Reply, Error> {
        let exchange = Exchange::new(sent).await;
        self.0.exchange(&exchange).await
    }
}
