//! `s3`: an object of an S3-compatible store, which is only read.

use std::any::Any;
use std::io;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use storage::{IoFuture, Storage};
use storage_s3::{
    Addressing, Credentials, Environment, ObjectName, Place, Settings, Signer, Store, StoreOptions,
    credentials_of_secret,
};

use super::not_built::prefixes;
use super::over_http::{self, Reading, Trust};
use super::remote::ON_REMOTE_ERROR;
use super::store::{secret, wrong};
use super::{Access, Elsewhere, StorageDriver, StorageKind, Target, storage_of};
use crate::drive::{Entry as Given, OptionTree};
use crate::options::entry::{at, choice_at, first_fixed_of, in_group, read_all};
use crate::options::{Entry, Group, OptionError, Reader};

pub(super) const S3: StorageDriver = StorageDriver {
    name: "s3",
    prefixes: prefixes::S3,
    kind: StorageKind::Elsewhere(Elsewhere {
        specs: || S3_OPTIONS.iter().map(Entry::spec).collect(),
        options_of,
        shown: str::to_owned,
        read,
    }),
};

/// AWS's, and what most other stores take.
const REGION_DEFAULT: &str = "us-east-1";

/// The options of the driver.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct S3 {
    /// `bucket`.
    bucket: Option<String>,
    /// `key`.
    key: Option<String>,
    /// `endpoint`.
    pub(super) endpoint: Option<String>,
    /// `region`.
    pub(super) region: Option<String>,
    /// `addressing`.
    pub(super) addressing: Option<Addressing>,
    /// `key-secret`.
    pub(super) key_secret: Option<String>,
    pub(super) reading: Reading,
    pub(super) trust: Trust,
}

pub(super) const ADDRESSINGS: [(&str, Addressing); 2] =
    [("path", Addressing::Path), ("virtual-host", Addressing::VirtualHost)];

/// The driver's part of the table.
pub const S3_OPTIONS: &[Entry<S3>] = &in_group(
    Group::Storage("s3"),
    [
        Entry::text("bucket", at!(S3, bucket), "the bucket").needed(),
        Entry::text("key", at!(S3, key), "the object in it").needed(),
        Entry::text("endpoint", at!(S3, endpoint), "the store, as https://HOST[:PORT]")
            .default_follows("AWS_ENDPOINT_URL_S3, AWS_ENDPOINT_URL, the profile's endpoint_url, or AWS in the region"),
        Entry::text("region", at!(S3, region), "its region, which signatures are for")
            .default_follows("AWS_REGION, AWS_DEFAULT_REGION, the profile's region, or us-east-1"),
        Entry::choice(
            "addressing",
            choice_at!(S3, ADDRESSINGS, addressing),
            "where the bucket's name stands: in the URL's path, or in front of the host's name",
        )
        .default_follows("virtual-host at AWS, path elsewhere"),
        Entry::text(
            "key-secret",
            at!(S3, key_secret),
            "the secret (--object secret,id=NAME) that holds ACCESS_KEY_ID:SECRET_ACCESS_KEY[:SESSION_TOKEN]",
        )
        .default_follows("AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY and AWS_SESSION_TOKEN, or the profile AWS_PROFILE; without them requests are not signed"),
        Entry::size(
            "readahead",
            at!(S3, reading.readahead),
            "bytes that are fetched for short reads one after the other, at most, and a quarter of it at first; up to 16M",
        )
        .default("256K"),
        Entry::whole(
            "timeout",
            at!(S3, reading.timeout_s),
            "seconds for which the store may be silent before a request is sent again",
        )
        .default("5"),
        Entry::whole(
            "remote-timeout",
            at!(S3, reading.remote_timeout_s),
            "seconds within which a read must succeed, all attempts together, or it fails; 0: any time",
        )
        .default_follows("60, or any time with on-remote-error=wait"),
        Entry::choice(
            "on-remote-error",
            choice_at!(S3, ON_REMOTE_ERROR, reading.on_remote_error),
            "what a read does while the server is lost: report has it fail within remote-timeout, wait has it wait for the server (with remote-timeout, so long)",
        )
        .default("report"),
        Entry::path(
            "cache-file",
            at!(S3, reading.cache.file),
            "keeps what was read in this file of this machine, a qcow2 image: it is made if nothing is there, and begins anew when the file on the server has changed; disks that name the same one share it",
        )
        .default_follows("none"),
        Entry::size(
            "cache-size",
            at!(S3, reading.cache.bytes_max),
            "bytes of the cache: what was not used for the longest is given up beyond; at least 16M, 0: any number",
        )
        .default("10G"),
        Entry::path(
            "prefetch-trace",
            at!(S3, reading.cache.trace),
            "fetches into the cache what this trace (serve --trace) says that earlier starts read, while no reader waits for the server; it needs cache-file",
        )
        .default_follows("none"),
        Entry::switch("sslverify", at!(S3, trust.sslverify), "the store's certificate must be believed")
            .default("on"),
        Entry::path(
            "tls-certificates",
            at!(S3, trust.tls_certificates),
            "believes the authorities in this directory: ca-cert.pem",
        )
        .default_follows("the authorities that this machine believes"),
    ],
);

fn options_of(name: &str) -> Result<OptionTree, String> {
    let ObjectName { bucket, key } = ObjectName::parse(name).map_err(|allowed| allowed.to_string())?;
    let mut tree = OptionTree::default();
    for (option, value) in [("bucket", bucket), ("key", key)] {
        tree.insert(option, Given::Value(value.into())).map_err(|error| error.to_string())?;
    }
    Ok(tree)
}

fn read(reader: &mut Reader) -> Result<Arc<dyn Target>, OptionError> {
    let mut s3 = S3::default();
    read_all(S3_OPTIONS, reader, &mut s3)?;
    Ok(Arc::new(s3))
}

impl S3 {
    fn object(&self) -> io::Result<ObjectName> {
        let given = |option: &Option<String>| {
            option.clone().ok_or_else(|| wrong("driver s3 needs a bucket and a key"))
        };
        let (bucket, key) = (given(&self.bucket)?, given(&self.key)?);
        let refused = |allowed| {
            wrong(format!("options file.bucket and file.key are {bucket:?} and {key:?}; allowed: {allowed}"))
        };
        ObjectName::new(&bucket, &key).map_err(refused)
    }

    /// Where the store is, and the credentials for it.
    async fn store(&self) -> io::Result<(Place, Option<Credentials>)> {
        let known = reactor::blocking(|| Settings::look_up(&Environment::of_process())).await;
        let known = known.map_err(|error| wrong(error.to_string()))?;
        let credentials = match &self.key_secret {
            Some(id) => Some(credentials_of_secret(&secret(id)?).map_err(|error| wrong(error.to_string()))?),
            None => known.credentials,
        };
        let region = self.region.clone().or(known.region).unwrap_or_else(|| REGION_DEFAULT.to_owned());
        let endpoint = self.endpoint.clone().or(known.endpoint);
        Ok((Place { endpoint, region, addressing: self.addressing }, credentials))
    }

    /// A bucket of the store. Does not connect. A request takes `remote_timeout` at most.
    pub(super) async fn bucket(&self, bucket: String, remote_timeout: Option<Duration>) -> io::Result<Store> {
        let (place, credentials) = self.store().await?;
        let scheme = place.scheme().map_err(|error| wrong(error.to_string()))?;
        let tls = self.trust.credentials(scheme).await?;
        let (timeout, _) = self.reading.times();
        let options = StoreOptions { place, bucket, credentials, tls, timeout, remote_timeout };
        Store::new(options).map_err(|error| wrong(error.to_string()))
    }
}

/// The bucket of the object that `name` (`s3://BUCKET/KEY`) means, for writing, and the object's key. Does
/// not connect. `None` for other names.
///
/// # Errors
/// When the name means no object, or what is known of the store makes no sense.
pub async fn object_store(name: &str) -> Option<io::Result<(Store, String)>> {
    let is_object = storage_of(Path::new(name)).is_some_and(|driver| *driver == S3);
    if !is_object {
        return None;
    }
    let found = async {
        let refused = |allowed| wrong(format!("{name}: allowed: {allowed}"));
        let ObjectName { bucket, key } = ObjectName::parse(name).map_err(refused)?;
        let s3 = S3::default();
        let (_, remote_timeout) = s3.reading.times();
        Ok((s3.bucket(bucket, remote_timeout).await?, key))
    };
    Some(found.await)
}

impl Target for S3 {
    fn name(&self) -> String {
        self.object().map_or_else(|_| "s3:".to_owned(), |object| object.to_string())
    }

    fn first_difference(&self, other: &dyn Target) -> Option<String> {
        match (other as &dyn Any).downcast_ref() {
            Some(other) => first_fixed_of(S3_OPTIONS, self, other),
            None => Some("file.driver".to_owned()),
        }
    }

    fn check(&self) -> IoFuture<'_, io::Result<()>> {
        Box::pin(async {
            let object = self.object()?;
            // Missing credentials are reported when it is opened.
            let Ok((place, _)) = self.store().await else { return Ok(()) };
            let url = place.url(&object).map_err(|error| wrong(error.to_string()))?;
            storage_http::check_reachable(&url)
        })
    }

    fn open(&self, access: Access) -> IoFuture<'_, io::Result<Arc<dyn Storage>>> {
        Box::pin(async move {
            let object = self.object()?;
            let (place, credentials) = self.store().await?;
            let url = place.url(&object).map_err(|error| wrong(error.to_string()))?;
            let signer = Signer::new(credentials, place.region);
            over_http::open((self.name(), url), Arc::new(signer), &self.reading, &self.trust, access).await
        })
    }
}
