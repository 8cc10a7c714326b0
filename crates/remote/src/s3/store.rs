//! Whole objects of a bucket: asked for, got, put.

use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use memory::IoBytes;
use net::tls::ClientCredentials;
use wire::http::hash::escaped;
use wire::http::{Fields, Get, Url};

use crate::http::{Client, ClientOptions, Reply, Sent};
use crate::s3::name::{NameError, ObjectName};
use crate::s3::place::{Place, PlaceError};
use crate::s3::service::Service;
use crate::s3::signer::{Credentials, Signer};

/// Names the version that is to be replaced at Google Cloud Storage: 0 is none.
const GENERATION: &str = "x-goog-if-generation-match";
/// Answers that say something have less, but those that are objects.
const ANSWER_BYTES_MAX: u64 = 1 << 20;

/// Why an object was not got or put.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// The store, or the way to it.
    #[error(transparent)]
    Http(#[from] crate::http::Error),
    /// The key cannot be one.
    #[error("the object {key:?} of bucket {bucket:?}; allowed: {allowed}")]
    Name {
        /// The bucket.
        bucket: String,
        /// The key.
        key: String,
        /// What is one.
        allowed: NameError,
    },
    /// Endpoint or region cannot be one.
    #[error(transparent)]
    Place(#[from] PlaceError),
    /// There is an object already.
    #[error("{name}: there is an object already; it stays as it is")]
    Exists {
        /// The object.
        name: ObjectName,
    },
    /// The object is not the version that was to be replaced.
    #[error("{name}: the object was changed by another process meanwhile; it stays as it is")]
    Changed {
        /// The object.
        name: ObjectName,
    },
    /// The store does not know the field by which it would keep what another process makes meanwhile.
    #[error(
        "{name}: the store does not know {field} (it answers 501): it cannot keep what another process makes meanwhile"
    )]
    Unconditional {
        /// The object.
        name: ObjectName,
        /// The field of the request.
        field: &'static str,
    },
    /// The answer does not say what it must.
    #[error("{url}: the store's answer {what}")]
    Answer {
        /// What was asked for.
        url: Url,
        /// What is wrong with it.
        what: String,
    },
    /// A store has no object of so many parts.
    #[error("{name}: the object would have more than {parts_max} parts of {part_bytes} bytes")]
    TooLong {
        /// The object.
        name: ObjectName,
        /// Parts at most.
        parts_max: usize,
        /// Bytes of each.
        part_bytes: usize,
    },
    /// No random bytes.
    #[error("no random bytes: {0}")]
    Random(getrandom::Error),
}

impl StoreError {
    /// The status of the answer, where the store refused the request.
    pub fn status(&self) -> Option<u16> {
        match self {
            Self::Http(crate::http::Error::Refused { status, .. }) => Some(*status),
            _ => None,
        }
    }
}

/// What becomes of an object of the same name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Present {
    /// It stays, and the new one is refused. A store that does not know `If-None-Match` takes the new one all the same, unless it was
    /// asked for the object before.
    Keep,
    /// The new one takes its place, when it is whole.
    Replace,
    /// The new one takes its place if it still is the version with this ETag, and is refused otherwise. A store that does not know
    /// `If-Match` takes the new one all the same.
    ReplaceVersion(String),
}

impl Present {
    /// The same with the ETag as it stands between its quotation marks.
    fn with_a_bare_etag(&self) -> Option<Self> {
        match self {
            Self::ReplaceVersion(etag) => {
                Some(Self::ReplaceVersion(etag.strip_prefix('"')?.strip_suffix('"')?.to_owned()))
            }
            Self::Keep | Self::Replace => None,
        }
    }

    /// The field that says so to a store of this service, and its value.
    fn condition(&self, service: Service) -> Option<(&'static str, &str)> {
        match (self, service) {
            (Self::Replace, _) => None,
            (Self::Keep, Service::Google) => Some((GENERATION, "0")),
            (Self::ReplaceVersion(generation), Service::Google) => Some((GENERATION, generation)),
            (Self::Keep, Service::S3 | Service::Azure) => Some(("If-None-Match", "*")),
            (Self::ReplaceVersion(etag), Service::S3 | Service::Azure) => Some(("If-Match", etag)),
        }
    }
}

/// How a bucket is reached.
#[derive(Debug)]
pub struct StoreOptions {
    /// Where the store is.
    pub place: Place,
    /// The bucket.
    pub bucket: String,
    /// With which requests are signed.
    pub credentials: Credentials,
    /// Whose certificates are believed; needed for https.
    pub tls: Option<ClientCredentials>,
    /// How long the store may be silent.
    pub timeout: Duration,
    /// How long a request may take with all its attempts. `None`: for ever.
    pub remote_timeout: Option<Duration>,
}

/// A bucket.
#[derive(Debug)]
pub struct Store {
    bucket: String,
    place: Place,
    client: Client,
}

impl Store {
    /// Connects to no server yet.
    ///
    /// # Errors
    /// When bucket, endpoint or region cannot be one.
    pub fn new(options: StoreOptions) -> Result<Self, StoreError> {
        let StoreOptions { place, bucket, credentials, tls, timeout, remote_timeout } = options;
        let url = place.url(&object(place.service, &bucket, "any")?)?;
        let authorize = Arc::new(Signer::new(credentials, &place.region));
        let client = Client::new(ClientOptions { url, tls, authorize, timeout, remote_timeout })?;
        Ok(Self { bucket, place, client })
    }

    /// What messages call an object.
    ///
    /// # Errors
    /// When it cannot be called so.
    pub fn object(&self, key: &str) -> Result<ObjectName, StoreError> {
        object(self.service(), &self.bucket, key)
    }

    /// Which interface it has.
    pub(crate) fn service(&self) -> Service {
        self.place.service
    }

    /// An object of `bytes_max` bytes at most, with its ETag; `None` if there is none.
    ///
    /// # Errors
    /// When the store does not answer, or refuses.
    pub async fn get(&self, key: &str, bytes_max: u64) -> Result<Option<Reply>, StoreError> {
        let (url, fields, body) = (self.url(key)?, Fields::default(), IoBytes::zeroed(0));
        let sent = self.send_to(&url, "GET", fields, body, bytes_max).await;
        found(sent.map_err(StoreError::from))
    }

    /// These bytes of an object, at least one; `None` if there is none. A store that knows no ranges answers with the whole object ([`Reply::is_part`]), of
    /// `bytes_max` bytes at most.
    ///
    /// # Errors
    /// When the store does not answer, or refuses: also a range that begins behind the end.
    pub async fn get_range(
        &self,
        key: &str,
        range: &Range<u64>,
        bytes_max: u64,
    ) -> Result<Option<Reply>, StoreError> {
        let url = self.url(key)?;
        let last = range.end.saturating_sub(1);
        let fields = Get { url: &url, first: range.start, last, version: None }.fields();
        let sent = self.send_to(&url, "GET", fields, IoBytes::zeroed(0), bytes_max).await;
        found(sent.map_err(StoreError::from))
    }

    /// What is known of an object; `None` if there is none.
    ///
    /// # Errors
    /// When the store does not answer, or refuses.
    pub async fn look(&self, key: &str) -> Result<Option<Reply>, StoreError> {
        found(self.send("HEAD", key, &[], Fields::default(), IoBytes::zeroed(0)).await)
    }

    /// Puts an object, which is whole or not there at all.
    ///
    /// # Errors
    /// When the store does not answer, or refuses; [`StoreError::Exists`], [`StoreError::Changed`] and [`StoreError::Unconditional`] as `present` says.
    pub async fn put(&self, key: &str, bytes: IoBytes, present: &Present) -> Result<(), StoreError> {
        let put = self.put_once(key, bytes.clone(), present).await;
        let (Err(StoreError::Changed { .. }), Some(bare)) = (&put, present.with_a_bare_etag()) else {
            return put;
        };
        let there = self.look(key).await?.and_then(|there| there.etag);
        match *present == Present::ReplaceVersion(there.unwrap_or_default()) {
            // It is that version: the store compares with the ETag as it keeps it, which at radosgw has no quotation marks.
            true => self.put_once(key, bytes, &bare).await,
            false => put,
        }
    }

    async fn put_once(&self, key: &str, bytes: IoBytes, present: &Present) -> Result<(), StoreError> {
        let mut fields = Fields::default();
        let mark = mark(&mut fields, self.service())?;
        self.condition(&mut fields, present)?;
        if self.service() == Service::Azure {
            fields.add("x-ms-blob-type", "BlockBlob").map_err(crate::http::Error::from)?;
        }
        let put = self.send("PUT", key, &[], fields, bytes).await;
        self.made(key, &mark, present, put.map(drop)).await
    }

    /// Removes an object; it may be gone already.
    ///
    /// # Errors
    /// When the store does not answer, or refuses.
    pub async fn remove(&self, key: &str) -> Result<(), StoreError> {
        found(self.send("DELETE", key, &[], Fields::default(), IoBytes::zeroed(0)).await).map(drop)
    }

    /// Sends a request about an object. `query` is what stands behind its name.
    ///
    /// # Errors
    /// When the store does not answer, or refuses; the message has its word for that.
    pub(crate) async fn send(
        &self,
        method: &'static str,
        key: &str,
        query: &[(&str, &str)],
        fields: Fields,
        body: IoBytes,
    ) -> Result<Reply, StoreError> {
        let url = Self::with_query(self.url(key)?, query);
        Ok(self.send_to(&url, method, fields, body, ANSWER_BYTES_MAX).await?)
    }

    pub(crate) async fn send_to(
        &self,
        url: &Url,
        method: &'static str,
        fields: Fields,
        body: IoBytes,
        answer_bytes_max: u64,
    ) -> Result<Reply, crate::http::Error> {
        let reply = self.client.send(&Sent { method, url, fields, body, answer_bytes_max }).await?;
        Ok(match self.service() {
            // Its conditions name versions by this.
            Service::Google => Reply { etag: reply.generation.clone().or(reply.etag.clone()), ..reply },
            Service::S3 | Service::Azure => reply,
        })
    }

    /// Says what becomes of an object of the same name.
    pub(crate) fn condition(&self, fields: &mut Fields, present: &Present) -> Result<(), StoreError> {
        match present.condition(self.service()) {
            Some((field, value)) => Ok(fields.add(field, value).map_err(crate::http::Error::from)?),
            None => Ok(()),
        }
    }

    pub(crate) fn with_query(url: Url, query: &[(&str, &str)]) -> Url {
        let query: Vec<String> =
            query.iter().map(|(name, value)| format!("{name}={}", escaped(value, false))).collect();
        match query.is_empty() {
            true => url,
            false => Url::at(url.origin().clone(), &format!("{}?{}", url.path(), query.join("&"))),
        }
    }

    pub(crate) fn bucket_url(&self) -> Result<Url, StoreError> {
        Ok(self.place.bucket_url(&self.bucket)?)
    }

    pub(crate) fn url(&self, key: &str) -> Result<Url, StoreError> {
        Ok(self.place.url(&self.object(key)?)?)
    }

    /// What the last request for a new object means. It may have been sent again because the first answer was lost: then the object
    /// that is there has our mark.
    pub(crate) async fn made(
        &self,
        key: &str,
        mark: &str,
        present: &Present,
        made: Result<(), StoreError>,
    ) -> Result<(), StoreError> {
        let Err(error) = made else { return Ok(()) };
        if let (Some(501), Some((field, _))) = (error.status(), present.condition(self.service())) {
            return Err(StoreError::Unconditional { name: self.object(key)?, field });
        }
        // Azure drops the blocks of an upload when another one of the same blob ends.
        let is_dropped = error.status() == Some(400) && self.service() == Service::Azure;
        let Some(status @ (400 | 404 | 409 | 412)) = error.status() else { return Err(error) };
        if status == 400 && !(is_dropped && *present == Present::Keep) {
            return Err(error);
        }
        let there = self.look(key).await?;
        match there.and_then(|there| there.upload) {
            Some(upload) if upload == mark => Ok(()),
            _ if matches!(present, Present::ReplaceVersion(_)) => {
                Err(StoreError::Changed { name: self.object(key)? })
            }
            None if status == 400 => Err(error),
            _ if status == 404 => Err(error),
            _ => Err(StoreError::Exists { name: self.object(key)? }),
        }
    }
}

/// 32 hexadecimal digits that no other process has.
///
/// # Errors
/// When the system has no random bytes.
pub fn unique() -> Result<String, StoreError> {
    let mut bytes = [0; 16];
    getrandom::fill(&mut bytes).map_err(StoreError::Random)?;
    Ok(bytes.iter().map(|byte| format!("{byte:02x}")).collect())
}

/// Whether this can have come from [`unique`].
pub fn is_unique(text: &str) -> bool {
    text.len() == 32 && text.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'))
}

/// Marks the object that a request makes, and gives the mark.
pub(crate) fn mark(fields: &mut Fields, service: Service) -> Result<String, StoreError> {
    let mark = unique()?;
    fields.add(service.upload_field(), mark.as_str()).map_err(crate::http::Error::from)?;
    Ok(mark)
}

fn object(service: Service, bucket: &str, key: &str) -> Result<ObjectName, StoreError> {
    ObjectName::new(service, bucket, key).map_err(|allowed| StoreError::Name {
        bucket: bucket.to_owned(),
        key: key.to_owned(),
        allowed,
    })
}

fn found(sent: Result<Reply, StoreError>) -> Result<Option<Reply>, StoreError> {
    match sent {
        Err(error) if error.status() == Some(404) => Ok(None),
        sent => sent.map(Some),
    }
}
