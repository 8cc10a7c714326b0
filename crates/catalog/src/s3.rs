//! `s3`, `gs` and `az`: an object of a store (S3 and its likes, Google Cloud Storage, Azure Blob Storage), which is only read.

use std::any::Any;
use std::io;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use remote::s3::{
    Addressing, Credentials, Environment, KnownError, ObjectName, Place, Service, Settings, Signer, Store,
    StoreOptions, account, azure_endpoint,
};
use storage::{IoFuture, Storage};

use super::not_built::prefixes;
use super::over_http::{self, Reading, Trust};
use super::remote::ON_REMOTE_ERROR;
use super::store::{secret, wrong};
use graph::drive::{Entry as Given, OptionTree};
use graph::drivers::{Access, Elsewhere, StorageDriver, StorageKind, Target, storage_of};
use graph::options::entry::{at, choice_at, first_fixed_of, in_group, read_all};
use graph::options::{Entry, Group, OptionError, Reader, Spec};

/// The driver of a service.
const fn driver(
    name: &'static str,
    prefixes: &'static [&'static str],
    specs: fn() -> Vec<&'static Spec>,
    read: fn(&mut Reader) -> Result<Arc<dyn Target>, OptionError>,
) -> StorageDriver {
    let kind = StorageKind::Elsewhere(Elsewhere {
        specs,
        options_of,
        shown: str::to_owned,
        read,
        is_within_process: false,
    });
    StorageDriver { name, prefixes, kind }
}

pub(super) const S3: StorageDriver =
    driver("s3", prefixes::S3, || specs(Service::S3), |reader| read(Service::S3, reader));

pub(super) const GS: StorageDriver =
    driver("gs", prefixes::GS, || specs(Service::Google), |reader| read(Service::Google, reader));

pub(super) const AZ: StorageDriver =
    driver("az", prefixes::AZ, || specs(Service::Azure), |reader| read(Service::Azure, reader));

/// AWS's, and what most other stores take.
const REGION_DEFAULT: &str = "us-east-1";

/// The options of the driver.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct S3 {
    /// Whose interface the store has.
    pub(super) service: Service,
    /// `bucket`.
    bucket: Option<String>,
    /// `key`.
    key: Option<String>,
    /// `account`.
    pub(super) account: Option<String>,
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

/// Options that each service has, with those of `$own` in between.
macro_rules! options {
    ($driver:literal, $bucket:literal $(, $own:expr)*) => {
        &in_group(
            Group::Storage($driver),
            [
                Entry::text("bucket", at!(S3, bucket), $bucket).needed(),
                Entry::text("key", at!(S3, key), "the object in it").needed(),
                $($own,)*
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
        )
    };
}

/// The part of the table of `s3`.
pub const S3_OPTIONS: &[Entry<S3>] = options!(
    "s3",
    "the bucket",
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
        .default_follows("AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY and AWS_SESSION_TOKEN, the profile AWS_PROFILE (keys, SSO, credential_process), AWS_WEB_IDENTITY_TOKEN_FILE, the container's credentials, or the instance's metadata; without them requests are not signed")
);

/// The part of the table of `gs`.
pub const GS_OPTIONS: &[Entry<S3>] = options!(
    "gs",
    "the bucket",
    Entry::text("endpoint", at!(S3, endpoint), "the store, as https://HOST[:PORT]")
        .default_follows("STORAGE_EMULATOR_HOST, or Google's"),
    Entry::text(
        "key-secret",
        at!(S3, key_secret),
        "the secret (--object secret,id=NAME) that holds a file of credentials of Google's (JSON)",
    )
    .default_follows("GOOGLE_APPLICATION_CREDENTIALS, gcloud's credentials, or the machine's metadata; without them requests are not signed")
);

/// The part of the table of `az`.
pub const AZ_OPTIONS: &[Entry<S3>] = options!(
    "az",
    "the container",
    Entry::text("endpoint", at!(S3, endpoint), "the store, as https://HOST[:PORT][/ACCOUNT]")
        .default_follows("AZURE_STORAGE_SERVICE_ENDPOINT, or Azure's of the account"),
    Entry::text("account", at!(S3, account), "the storage account")
        .default_follows("the one of key-secret, AZURE_STORAGE_ACCOUNT_NAME, or AZURE_STORAGE_ACCOUNT"),
    Entry::text(
        "key-secret",
        at!(S3, key_secret),
        "the secret (--object secret,id=NAME) that holds ACCOUNT:KEY, or a SAS token",
    )
    .default_follows("AZURE_STORAGE_ACCOUNT_KEY, AZURE_STORAGE_SAS_TOKEN, AZURE_CLIENT_SECRET, AZURE_FEDERATED_TOKEN_FILE, Azure's tool, or the machine's metadata")
);

fn options_of(name: &str) -> Result<OptionTree, String> {
    let ObjectName { bucket, key, .. } = ObjectName::parse(name).map_err(|allowed| allowed.to_string())?;
    let mut tree = OptionTree::default();
    for (option, value) in [("bucket", bucket), ("key", key)] {
        tree.insert(option, Given::Value(value.into())).map_err(|error| error.to_string())?;
    }
    Ok(tree)
}

/// The part of the table of a service's driver.
fn table(service: Service) -> &'static [Entry<S3>] {
    match service {
        Service::S3 => S3_OPTIONS,
        Service::Google => GS_OPTIONS,
        Service::Azure => AZ_OPTIONS,
    }
}

fn specs(service: Service) -> Vec<&'static Spec> {
    table(service).iter().map(Entry::spec).collect()
}

fn read(service: Service, reader: &mut Reader) -> Result<Arc<dyn Target>, OptionError> {
    let mut s3 = S3 { service, ..S3::default() };
    read_all(table(service), reader, &mut s3)?;
    Ok(Arc::new(s3))
}

impl S3 {
    fn object(&self) -> io::Result<ObjectName> {
        let given = |option: &Option<String>| {
            let driver = self.service.scheme();
            option.clone().ok_or_else(|| wrong(format!("driver {driver} needs a bucket and a key")))
        };
        let (bucket, key) = (given(&self.bucket)?, given(&self.key)?);
        let refused = |allowed| {
            wrong(format!("options file.bucket and file.key are {bucket:?} and {key:?}; allowed: {allowed}"))
        };
        ObjectName::new(self.service, &bucket, &key).map_err(refused)
    }

    /// The same for a store of another service.
    pub(super) fn of_service(&self, service: Service) -> Self {
        Self { service, ..self.clone() }
    }

    /// Where the store is, and the credentials for it.
    async fn store(&self) -> io::Result<(Place, Credentials)> {
        let (service, failed) = (self.service, |error: KnownError| wrong(error.to_string()));
        let known = reactor::blocking(move || Settings::look_up(service, &Environment::of_process())).await;
        let known = known.map_err(failed)?;
        let secret = self.key_secret.as_deref().map(secret).transpose()?;
        let credentials = match &secret {
            Some(secret) => Credentials::new(service, Environment::of_process(), Some(secret)),
            None => Ok(Credentials::of_process(service)),
        };
        let mut endpoint = self.endpoint.clone();
        if service == Service::Azure && endpoint.is_none() {
            let own = self.account.clone().or_else(|| secret.as_ref().and_then(account).map(str::to_owned));
            // An account that is named is not that of the environment's endpoint.
            endpoint = own.as_deref().map(azure_endpoint).or(known.endpoint.clone());
            endpoint = endpoint.or_else(|| known.account.as_deref().map(azure_endpoint));
            endpoint.as_ref().ok_or_else(|| failed(KnownError::NoAccount))?;
        }
        let region = self.region.clone().or(known.region).unwrap_or_else(|| REGION_DEFAULT.to_owned());
        let endpoint = endpoint.or(known.endpoint);
        let place = Place { service, endpoint, region, addressing: self.addressing };
        Ok((place, credentials.map_err(failed)?))
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

/// The bucket of the object that `name` (`s3://BUCKET/KEY`, or the same with `gs` or `az`) means, for writing, and the object's key. Does
/// not connect. `None` for other names.
///
/// # Errors
/// When the name means no object, or what is known of the store makes no sense.
pub async fn object_store(name: &str) -> Option<io::Result<(Store, String)>> {
    let service = storage_of(Path::new(name)).and_then(|driver| Service::of_scheme(driver.name))?;
    let found = async {
        let refused = |allowed| wrong(format!("{name}: allowed: {allowed}"));
        let ObjectName { bucket, key, .. } = ObjectName::parse(name).map_err(refused)?;
        let s3 = S3 { service, ..S3::default() };
        let (_, remote_timeout) = s3.reading.times();
        Ok((s3.bucket(bucket, remote_timeout).await?, key))
    };
    Some(found.await)
}

impl Target for S3 {
    fn name(&self) -> String {
        self.object().map_or_else(|_| format!("{}:", self.service.scheme()), |object| object.to_string())
    }

    fn first_difference(&self, other: &dyn Target) -> Option<String> {
        match (other as &dyn Any).downcast_ref::<Self>() {
            Some(other) if other.service == self.service => first_fixed_of(table(self.service), self, other),
            _ => Some("file.driver".to_owned()),
        }
    }

    fn check(&self) -> IoFuture<'_, io::Result<()>> {
        Box::pin(async {
            let object = self.object()?;
            // Missing credentials are reported when it is opened.
            let Ok((place, _)) = self.store().await else { return Ok(()) };
            let url = place.url(&object).map_err(|error| wrong(error.to_string()))?;
            remote::http::check_reachable(&url)
        })
    }

    fn open(&self, access: Access) -> IoFuture<'_, io::Result<Arc<dyn Storage>>> {
        Box::pin(async move {
            let object = self.object()?;
            let (place, credentials) = self.store().await?;
            let url = place.url(&object).map_err(|error| wrong(error.to_string()))?;
            let signer = Signer::new(credentials, &place.region);
            over_http::open((self.name(), url), (Arc::new(signer), None), &self.reading, &self.trust, access)
                .await
        })
    }
}
