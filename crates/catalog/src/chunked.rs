//! `chunked`: the disk of a chunked image in an object store or on a web server, which is only read.

use std::any::Any;
use std::fmt;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use luks::Secret;
use remote::cache::CachedStorage;
use remote::chunked::{
    ChunkedStorage, ImageKey, KeyId, MEMORY_BYTES_DEFAULT, MEMORY_BYTES_MAX, Options, PREFIX, Place,
    split_key, without_prefix,
};
use remote::http::{Client, ClientOptions, Fixed};
use remote::s3::{ObjectName, Service};
use storage::{IoFuture, Storage};
use wire::http::Url;

use super::cached::{self, Remote};
use super::http::Hidden;
use super::not_built::prefixes;
use super::remote::ON_REMOTE_ERROR;
use super::s3::{ADDRESSINGS, S3};
use super::store::{secret, wrong};
use graph::Secrets;
use graph::drive::{Entry as Given, OptionTree};
use graph::drivers::{Access, Elsewhere, StorageDriver, StorageKind, Target};
use graph::options::entry::{at, choice_at, first_fixed_of, in_group, read_all};
use graph::options::{Entry, Group, OptionError, Reader};

/// What a URL may be.
const ALLOWED: &str =
    "s3://BUCKET/FOLDER/NAME (or gs, or az), http://HOST/FOLDER/NAME or https://HOST/FOLDER/NAME";

pub(super) const CHUNKED: StorageDriver = StorageDriver {
    name: "chunked",
    prefixes: prefixes::CHUNKED,
    kind: StorageKind::Elsewhere(Elsewhere {
        specs: || CHUNKED_OPTIONS.iter().map(Entry::spec).collect(),
        options_of,
        shown: |name| {
            let (key, url) = split_key(without_prefix(name));
            named(key, wire::http::shown(url))
        },
        read,
        is_within_process: false,
    }),
};

/// The options of the driver.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Chunked {
    /// `url`. Its query may be a signature.
    url: Hidden,
    /// `chunk-memory`, in bytes.
    memory_bytes: u64,
    /// `encrypt-key-secret`.
    encrypt_key_secret: Option<String>,
    /// `encrypt-key-id`.
    encrypt_key_id: Option<String>,
    /// How the store is reached. Its bucket and key are those of `url`.
    store: S3,
}

impl Default for Chunked {
    fn default() -> Self {
        Self {
            url: Hidden::default(),
            memory_bytes: MEMORY_BYTES_DEFAULT,
            encrypt_key_secret: None,
            encrypt_key_id: None,
            store: S3::default(),
        }
    }
}

/// The driver's part of the table.
pub const CHUNKED_OPTIONS: &[Entry<Chunked>] = &in_group(
    Group::Storage("chunked"),
    [
        Entry::text(
            "url",
            at!(Chunked, url),
            "the image that cowhand push made, as s3://BUCKET/FOLDER/NAME (or gs, or az), or http://HOST/FOLDER/NAME where its folder lies on a web server",
        )
        .needed(),
        Entry::size(
            "chunk-memory",
            at!(Chunked, memory_bytes),
            "bytes of memory for the chunks that were used last, and for those that are fetched ahead of a start (cowhand pack); at most 1G, and one chunk is always kept",
        )
        .default("32M"),
        Entry::text(
            "encrypt-key-secret",
            at!(Chunked, encrypt_key_secret),
            "the secret (--object secret,id=NAME) that holds the key of an encrypted image; one that is not encrypted is refused then. A cache-file keeps what was read as it is",
        )
        .default_follows("the one whose key encrypt-key-id names"),
        Entry::text(
            "encrypt-key-id",
            at!(Chunked, encrypt_key_id),
            "the image is encrypted with the key of this id, which one of the secrets (--object secret) holds; chunked:encrypted=ID:URL says it, too",
        )
        .default_follows("the key of encrypt-key-secret; without both the image is not encrypted"),
        Entry::text("endpoint", at!(Chunked, store.endpoint), "the store, as https://HOST[:PORT]")
            .default_follows("AWS_ENDPOINT_URL_S3, AWS_ENDPOINT_URL, the profile's endpoint_url, or AWS in the region; gs and az as their drivers"),
        Entry::text("region", at!(Chunked, store.region), "its region, which signatures are for")
            .default_follows("AWS_REGION, AWS_DEFAULT_REGION, the profile's region, or us-east-1"),
        Entry::choice(
            "addressing",
            choice_at!(Chunked, ADDRESSINGS, store.addressing),
            "where the bucket's name stands: in the URL's path, or in front of the host's name",
        )
        .default_follows("virtual-host at AWS, path elsewhere"),
        Entry::text(
            "key-secret",
            at!(Chunked, store.key_secret),
            "the secret (--object secret,id=NAME) that holds the store's credentials, as the drivers s3, gs and az take them",
        )
        .default_follows("what the environment leads to; without credentials requests are not signed"),
        Entry::whole(
            "timeout",
            at!(Chunked, store.reading.timeout_s),
            "seconds for which the store may be silent before a request is sent again",
        )
        .default("5"),
        Entry::whole(
            "remote-timeout",
            at!(Chunked, store.reading.remote_timeout_s),
            "seconds within which a chunk must be got, all attempts together, or the read fails; 0: any time",
        )
        .default_follows("60, or any time with on-remote-error=wait"),
        Entry::choice(
            "on-remote-error",
            choice_at!(Chunked, ON_REMOTE_ERROR, store.reading.on_remote_error),
            "what a read does while the server is lost: report has it fail within remote-timeout, wait has it wait for the server (with remote-timeout, so long)",
        )
        .default("report"),
        Entry::path(
            "cache-file",
            at!(Chunked, store.reading.cache.file),
            "keeps what was read in this file of this machine, a qcow2 image: it is made if nothing is there, and begins anew when another disk was pushed to the name; disks that name the same one share it",
        )
        .default_follows("none"),
        Entry::size(
            "cache-size",
            at!(Chunked, store.reading.cache.bytes_max),
            "bytes of the cache: what was not used for the longest is given up beyond; at least 16M, 0: any number",
        )
        .default("10G"),
        Entry::path(
            "prefetch-trace",
            at!(Chunked, store.reading.cache.trace),
            "fetches into the cache what this trace (serve --trace) says that earlier starts read, while no reader waits for the server; it needs cache-file",
        )
        .default_follows("none"),
        Entry::switch("sslverify", at!(Chunked, store.trust.sslverify), "the store's certificate must be believed")
            .default("on"),
        Entry::path(
            "tls-certificates",
            at!(Chunked, store.trust.tls_certificates),
            "believes the authorities in this directory: ca-cert.pem",
        )
        .default_follows("the authorities that this machine believes"),
    ],
);

fn options_of(name: &str) -> Result<OptionTree, String> {
    let (key, url) = split_key(without_prefix(name));
    Image::parse(url).map_err(|allowed| format!("{PREFIX}URL with {allowed}"))?;
    let mut tree = OptionTree::default();
    if let Some(key) = key {
        check_key_id(key).map_err(|error| error.to_string())?;
        tree.insert("encrypt-key-id", Given::Value(key.into())).map_err(|error| error.to_string())?;
    }
    tree.insert("url", Given::Value(url.into())).map_err(|error| error.to_string())?;
    Ok(tree)
}

fn read(reader: &mut Reader) -> Result<Arc<dyn Target>, OptionError> {
    let mut chunked = Chunked::default();
    read_all(CHUNKED_OPTIONS, reader, &mut chunked)?;
    Ok(Arc::new(chunked))
}

/// The name of the image at `url`, which is encrypted with the key of this id if there is one.
fn named(key: Option<&str>, url: impl fmt::Display) -> String {
    key.map_or_else(|| format!("{PREFIX}{url}"), |key| format!("{PREFIX}encrypted={key}:{url}"))
}

fn check_key_id(id: &str) -> io::Result<()> {
    match KeyId::parse(id) {
        Some(_) => Ok(()),
        None => Err(wrong(format!("key id {id:?}; allowed: 16 hexadecimal digits in lower case"))),
    }
}

/// What a URL means.
enum Image {
    InBucket(ObjectName),
    OnServer(Url),
}

impl Image {
    /// Otherwise what is allowed.
    fn parse(url: &str) -> Result<Self, String> {
        if Service::of_name(url).is_some() {
            return ObjectName::parse(url).map(Self::InBucket).map_err(|allowed| allowed.to_string());
        }
        Url::parse(url).map(Self::OnServer).map_err(|_| ALLOWED.to_owned())
    }
}

impl Chunked {
    fn image(&self) -> io::Result<Image> {
        let url: Option<String> = self.url.clone().into();
        let url = url.ok_or_else(|| wrong("driver chunked needs a url"))?;
        Image::parse(&url).map_err(|allowed| {
            wrong(format!("option file.url is {:?}; allowed: {allowed}", wire::http::shown(&url)))
        })
    }

    fn key(&self) -> io::Result<Option<Arc<ImageKey>>> {
        let given = self.encrypt_key_secret.as_deref().map(image_key).transpose()?;
        let Some(id) = &self.encrypt_key_id else { return Ok(given) };
        check_key_id(id)?;
        let is_it = |key: &ImageKey| key.id().to_string() == *id;
        match given {
            Some(key) if is_it(&key) => Ok(Some(key)),
            Some(key) => {
                let given = key.id();
                Err(wrong(format!("encrypt-key-id is {id}, and encrypt-key-secret holds the key {given}")))
            }
            None => {
                let found =
                    |secret: &Secret| ImageKey::of_secret(secret.bytes()).ok().filter(|key| is_it(key));
                let key = Secrets::default().find(found);
                let none =
                    || wrong(format!("no secret holds the key {id}; give --object secret,id=ID,file=PATH"));
                key.map(Arc::new).ok_or_else(none).map(Some)
            }
        }
    }

    /// Where the image is. A request takes `remote_timeout` at most.
    async fn place(&self, remote_timeout: Option<Duration>) -> io::Result<Place> {
        let key = self.key()?;
        let place = match self.image()? {
            Image::InBucket(ObjectName { service, bucket, key }) => {
                let options = self.store.of_service(service);
                let store = options.bucket(bucket, remote_timeout).await?;
                Place::in_bucket(Arc::new(store), &key)
            }
            Image::OnServer(url) => {
                let tls = self.store.trust.credentials(url.origin().scheme).await?;
                let (timeout, _) = self.store.reading.times();
                let authorize = Arc::new(Fixed::default());
                let options = ClientOptions { url: url.clone(), tls, authorize, timeout, remote_timeout };
                Place::on_server(Client::new(options)?, &url)
            }
        };
        Ok(place.with_key(key))
    }

    async fn open_image(&self, access: Access) -> io::Result<Arc<dyn Storage>> {
        if self.memory_bytes > MEMORY_BYTES_MAX {
            let found = self.memory_bytes;
            return Err(wrong(format!(
                "option file.chunk-memory is {found}; allowed: at most {MEMORY_BYTES_MAX}"
            )));
        }
        let reading = &self.store.reading;
        reading.check()?;
        let trace = cached::open_trace(&reading.cache)?;
        let published = self.place(reading.open_timeout()).await?.read().await?;
        let (_, remote_timeout) = reading.times();
        let name = self.name();
        let storage = ChunkedStorage::new(Options {
            name: name.clone(),
            place: self.place(remote_timeout).await?,
            published,
            memory_bytes: self.memory_bytes,
            writable: access.writable,
        })?;
        let version = Some(format!("SHA-256 {}", storage.version()));
        let piece_bytes = storage.chunk_bytes();
        let remote = Remote { storage: Arc::new(storage), name, version, piece_bytes };
        cached::cached(remote, &reading.cache, trace).await
    }
}

/// A guest is going to read `file`: if that is a chunked image, what a start reads of it is fetched ahead.
pub(crate) fn expect_guest(file: &dyn Storage) {
    let below = file.downcast_ref::<CachedStorage>().map_or(file, |cached| &**cached.remote());
    if let Some(image) = below.downcast_ref::<ChunkedStorage>() {
        image.expect_guest();
    }
}

/// The key of encrypted images that a secret holds.
///
/// # Errors
/// When there is no such secret, or it is too short.
pub fn image_key(id: &str) -> io::Result<Arc<ImageKey>> {
    let key = ImageKey::of_secret(secret(id)?.bytes());
    key.map(Arc::new).map_err(|error| wrong(format!("encrypt-key-secret {id:?}: {error}")))
}

/// Where the chunked image is that `url` means (`encrypted=ID:` may stand before it), whose key `key_secret` holds if it is encrypted. Does not connect.
///
/// # Errors
/// When the name means no image, what is known of the store makes no sense, or there is no such secret.
pub async fn chunked_place(url: &str, key_secret: Option<&str>) -> io::Result<Place> {
    let (encrypt_key_id, url) = split_key(url);
    let chunked = Chunked {
        url: url.to_owned().into(),
        encrypt_key_secret: key_secret.map(str::to_owned),
        encrypt_key_id: encrypt_key_id.map(str::to_owned),
        ..Chunked::default()
    };
    let (_, remote_timeout) = chunked.store.reading.times();
    chunked.place(remote_timeout).await
}

impl Target for Chunked {
    fn name(&self) -> String {
        match self.image() {
            Ok(Image::InBucket(object)) => named(self.encrypt_key_id.as_deref(), object),
            Ok(Image::OnServer(url)) => named(self.encrypt_key_id.as_deref(), url.name()),
            Err(_) => PREFIX.to_owned(),
        }
    }

    fn first_difference(&self, other: &dyn Target) -> Option<String> {
        match (other as &dyn Any).downcast_ref() {
            Some(other) => first_fixed_of(CHUNKED_OPTIONS, self, other),
            None => Some("file.driver".to_owned()),
        }
    }

    fn open(&self, access: Access) -> IoFuture<'_, io::Result<Arc<dyn Storage>>> {
        Box::pin(self.open_image(access))
    }
}
