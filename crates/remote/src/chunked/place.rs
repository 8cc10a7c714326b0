//! Where the objects of an image lie: its manifest `NAME.json`, and beside it `chunks/`, which images of one folder share.

use std::fmt;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use memory::IoBytes;
use wire::http::{Fields, Get, Url};

use crate::chunked::checkpoint::is_id;
use crate::chunked::chunk_name::ChunkName;
use crate::chunked::error::Error;
use crate::chunked::in_use::Announcement;
use crate::chunked::key::ImageKey;
use crate::chunked::manifest::{Compression, MANIFEST_BYTES_MAX, Manifest};
use crate::chunked::writing::{ObjectKind, WithoutConditions, Writing};
use crate::http::{Client, Reply, Sent};
use crate::s3::{Present, Store, StoreError};

/// What stands behind the name of an image.
pub(crate) const MANIFEST_SUFFIX: &str = ".json";

/// Where the objects of an image lie.
#[derive(Debug)]
pub struct Place {
    folder: Folder,
    /// The manifest's name in the folder.
    manifest: String,
    /// The key of its image, if it is encrypted.
    key: Option<Arc<ImageKey>>,
    /// The store has answered that it knows no conditions.
    knows_no_conditions: AtomicBool,
    /// What those who remove chunks see of a push.
    announcement: Announcement,
}

#[derive(Clone, Debug)]
enum Folder {
    /// Of a bucket. `prefix` ends with a slash, or is empty.
    Bucket { store: Arc<Store>, prefix: String },
    /// Of a server. `url` is that of the manifest.
    Server { client: Arc<Client>, url: Url },
}

/// A manifest that is there.
#[derive(Clone, Debug)]
pub struct Published {
    /// What it says.
    pub manifest: Manifest,
    /// What the store calls this version of it.
    pub etag: Option<String>,
    /// The hash of its bytes. Two that are equal are of the same disk.
    pub version: ChunkName,
}

impl Place {
    /// The image `key` of a bucket. Slashes at its end are left out.
    pub fn in_bucket(store: Arc<Store>, key: &str) -> Self {
        let key = key.trim_end_matches('/');
        let (prefix, name) = key.split_at(key.rfind('/').map_or(0, |slash| slash + 1));
        let folder = Folder::Bucket { store, prefix: prefix.to_owned() };
        Self::new(folder, format!("{name}{MANIFEST_SUFFIX}"))
    }

    /// The image at `url` of a server. Slashes at its end are left out, and what stands behind a question mark, which is for one file.
    pub fn on_server(client: Client, url: &Url) -> Self {
        let path = url.path().trim_end_matches('/');
        let manifest = format!("{}.json", path.rsplit('/').next().unwrap_or_default());
        let url = Url::at(url.origin().clone(), &format!("{path}.json"));
        let folder = Folder::Server { client: Arc::new(client), url };
        Self::new(folder, manifest)
    }

    fn new(folder: Folder, manifest: String) -> Self {
        let (knows_no_conditions, announcement) = (AtomicBool::new(false), Announcement::default());
        Self { folder, manifest, key: None, knows_no_conditions, announcement }
    }

    /// The same for an image that is encrypted with a key, or for one that is not.
    #[must_use]
    pub fn with_key(self, key: Option<Arc<ImageKey>>) -> Self {
        Self { key, ..self }
    }

    /// The key of the image.
    pub fn key(&self) -> Option<Arc<ImageKey>> {
        self.key.clone()
    }

    /// Where a checkpoint of this image stays, whatever is published to the image's name later: `NAME@ID` in the same folder.
    pub fn of_checkpoint(&self, id: &str) -> Self {
        self.named(&format!("{}@{id}", self.published_name()))
    }

    /// The name to which its checkpoints are published: the image's own, without the id of one that stays.
    pub(crate) fn published_name(&self) -> &str {
        let name = self.manifest_name();
        self.checkpoint().and_then(|own| name.strip_suffix(own)?.strip_suffix('@')).unwrap_or(name)
    }

    /// The id of the checkpoint that stays here; `None` if another one may be published here.
    pub fn checkpoint(&self) -> Option<&str> {
        self.manifest_name().rsplit_once('@').map(|(_, id)| id).filter(|id| is_id(id))
    }

    /// The image that is called so, if it is in the same folder of a bucket. `chunked:` may stand before its name, and `encrypted=ID:` behind that.
    pub fn beside(&self, image: &str) -> Option<Self> {
        let (_, image) = split_key(without_prefix(image));
        let image = image.trim_end_matches('/');
        let (own, (folder, name)) = (self.image(), image.rsplit_once('/')?);
        let is_here = own.rsplit_once('/').is_some_and(|(own, _)| own == folder);
        let is_bucket = matches!(self.folder, Folder::Bucket { .. });
        (is_here && is_bucket && !name.is_empty()).then(|| self.named(name))
    }

    /// The image `name` of the same folder.
    pub(crate) fn named(&self, name: &str) -> Self {
        Self::new(self.folder.clone(), format!("{name}{MANIFEST_SUFFIX}")).with_key(self.key())
    }

    /// What messages and images call it: `s3://BUCKET/FOLDER/NAME`, or a URL.
    pub fn image(&self) -> String {
        let manifest = self.to_string();
        manifest.strip_suffix(MANIFEST_SUFFIX).unwrap_or(&manifest).to_owned()
    }

    pub(crate) fn manifest_name(&self) -> &str {
        self.manifest.strip_suffix(MANIFEST_SUFFIX).unwrap_or(&self.manifest)
    }

    /// The manifest that is there; `None` if there is none.
    ///
    /// # Errors
    /// When the store does not answer, what is there is no manifest, it is of another key ([`Error::is_of_another_key`]), or it was not
    /// written here with the key.
    pub async fn find(&self) -> Result<Option<Published>, Error> {
        let Some((published, mac)) = self.find_unproven().await? else { return Ok(None) };
        let image = || self.image();
        match (published.manifest.key_id(), &self.key) {
            (None, None) => {}
            (None, Some(_)) => return Err(Error::NotEncrypted { image: image() }),
            (Some(key), None) => return Err(Error::Encrypted { image: image(), key }),
            (Some(key), Some(own)) if own.id() != key => {
                return Err(Error::OtherKey { image: image(), key, given: own.id() });
            }
            (Some(key), Some(own)) => {
                let proven = published.manifest.proven(self.manifest_name());
                if !mac.is_some_and(|mac| own.is_proof(mac, &proven)) {
                    return Err(Error::Unproven { manifest: self.to_string(), key });
                }
            }
        }
        Ok(Some(published))
    }

    /// As [`Place::find`], with its proof, which is not looked at: for what it leads to no key is needed.
    pub(crate) async fn find_unproven(&self) -> Result<Option<(Published, Option<ChunkName>)>, Error> {
        let Some(Reply { body, etag, .. }) = self.get(&self.manifest, MANIFEST_BYTES_MAX).await? else {
            return Ok(None);
        };
        let read = Manifest::decode(&body);
        let (manifest, mac) =
            read.map_err(|source| Error::Manifest { manifest: self.to_string(), source })?;
        Ok(Some((Published { manifest, etag, version: ChunkName::of(&body) }, mac)))
    }

    /// As [`Place::find`], of an image that must be there.
    ///
    /// # Errors
    /// Also when there is none.
    pub async fn read(&self) -> Result<Published, Error> {
        self.find().await?.ok_or_else(|| Error::NoImage { manifest: self.to_string() })
    }

    /// From here on, and until [`Place::end_push`], those who remove chunks leave the folder alone: what an image there leads to stays.
    ///
    /// # Errors
    /// When the store does not take it, or a process removes chunks of the folder.
    pub async fn begin_push(&self) -> Result<(), Error> {
        let (store, prefix) = self.bucket()?;
        self.announcement.make(store, prefix).await
    }

    /// Makes the object of these bytes unless it is there; gives the bytes that were sent if it made it. What is there is not read. The first one
    /// begins a push ([`Place::begin_push`]).
    ///
    /// # Errors
    /// When the store does not take it, a process removes chunks of the folder, or [`StoreError::Unconditional`] as `how` says.
    pub async fn add(
        &self,
        kind: ObjectKind,
        name: ChunkName,
        bytes: IoBytes,
        how: Writing,
    ) -> Result<Option<u64>, Error> {
        let (store, prefix) = self.bucket()?;
        self.announcement.make(store, prefix).await?;
        let (key, key_of_it) = (format!("{prefix}{}", name.object()), self.key_of(kind));
        let present = match store.look(&key).await? {
            None => Present::Keep,
            // One that is encrypted is read by no reader of version 1.
            Some(there) if key_of_it.is_some() || how.takes(there.bytes, bytes.len() as u64) => {
                return Ok(None);
            }
            Some(_) => Present::Replace,
        };
        let is_encrypted = key_of_it.is_some();
        let bytes = how.body(name, bytes, key_of_it).await?;
        let sent = Some(bytes.len() as u64);
        // The process that makes it meanwhile makes the same, or a frame of it.
        match self.put(store, &key, bytes.clone(), present, how.without).await {
            Ok(()) => Ok(sent),
            Err(StoreError::Exists { .. }) if how.compression == Compression::None && !is_encrypted => {
                Ok(store.put(&key, bytes, &Present::Replace).await.map(|()| sent)?)
            }
            Err(StoreError::Exists { .. }) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    /// Sends an object. What the store said of conditions is remembered: nothing is sent twice for that but the first object.
    pub(crate) async fn put(
        &self,
        store: &Store,
        key: &str,
        bytes: IoBytes,
        present: Present,
        without: WithoutConditions,
    ) -> Result<(), StoreError> {
        let writes = without == WithoutConditions::Write;
        if writes && self.knows_no_conditions.load(Ordering::Relaxed) {
            return store.put(key, bytes, &Present::Replace).await;
        }
        match store.put(key, bytes.clone(), &present).await {
            Err(StoreError::Unconditional { .. }) if writes => {
                self.knows_no_conditions.store(true, Ordering::Relaxed);
                store.put(key, bytes, &Present::Replace).await
            }
            sent => sent,
        }
    }

    /// Makes `manifest` the image's: the first one, or in place of `old` as that was read.
    ///
    /// # Errors
    /// When the store does not take it; [`StoreError::Exists`] and [`StoreError::Changed`] if another one was published meanwhile;
    /// [`StoreError::Unconditional`] as `without` says.
    pub async fn publish(
        &self,
        manifest: &Manifest,
        old: Option<&Published>,
        without: WithoutConditions,
    ) -> Result<(), Error> {
        let (store, prefix) = self.bucket()?;
        let present = match old {
            None => Present::Keep,
            Some(Published { etag: Some(etag), .. }) => Present::ReplaceVersion(etag.clone()),
            Some(Published { etag: None, .. }) => Present::Replace,
        };
        debug_assert_eq!(manifest.key_id(), self.key.as_ref().map(|key| key.id()), "it is read with its key");
        let bytes = IoBytes::copy_from(&manifest.encode(self.manifest_name(), self.key.as_deref()));
        Ok(self.put(store, &format!("{prefix}{}", self.manifest), bytes, present, without).await?)
    }

    /// A push has ended, or failed: chunks may be removed again that no image leads to.
    ///
    /// # Errors
    /// When the store does not answer or refuses. The push is taken for one that goes on then.
    pub async fn end_push(&self) -> Result<(), Error> {
        match &self.folder {
            Folder::Bucket { store, .. } => Ok(self.announcement.end(store).await?),
            Folder::Server { .. } => Ok(()),
        }
    }

    pub(crate) fn bucket(&self) -> Result<(&Store, &str), Error> {
        match &self.folder {
            Folder::Bucket { store, prefix } => Ok((store, prefix)),
            Folder::Server { .. } => Err(Error::ReadOnly { image: self.to_string() }),
        }
    }

    /// An object of the folder, of `bytes_max` bytes at most; `None` if there is none.
    pub(crate) async fn get(&self, object: &str, bytes_max: u64) -> Result<Option<Reply>, Error> {
        match &self.folder {
            Folder::Bucket { store, prefix } => {
                Ok(store.get(&format!("{prefix}{object}"), bytes_max).await?)
            }
            Folder::Server { client, url } => {
                get_of(client, &beside(url, object), Fields::default(), bytes_max).await
            }
        }
    }

    /// These bytes of an object of the folder, at least one, or the first of them if it ends before; `None` if there is none. A server that knows no ranges is
    /// believed to have `bytes_max` bytes at most.
    pub(crate) async fn get_range(
        &self,
        object: &str,
        range: Range<u64>,
        bytes_max: u64,
    ) -> Result<Option<Vec<u8>>, Error> {
        let reply = match &self.folder {
            Folder::Bucket { store, prefix } => {
                store.get_range(&format!("{prefix}{object}"), &range, bytes_max).await.map_err(Error::from)
            }
            Folder::Server { client, url } => {
                let url = beside(url, object);
                let last = range.end.saturating_sub(1);
                let fields = Get { url: &url, first: range.start, last, version: None }.fields();
                get_of(client, &url, fields, bytes_max).await
            }
        };
        let Some(Reply { is_part, mut body, .. }) = (match reply {
            // It ends before the range begins.
            Err(error) if error.status() == Some(416) => return Ok(Some(Vec::new())),
            reply => reply?,
        }) else {
            return Ok(None);
        };
        if !is_part {
            body.drain(..usize::try_from(range.start).unwrap_or(usize::MAX).min(body.len()));
        }
        body.truncate(usize::try_from(range.end - range.start).unwrap_or(usize::MAX));
        Ok(Some(body))
    }

    /// What messages call an object of the folder.
    pub(crate) fn name_of(&self, object: &str) -> String {
        match &self.folder {
            Folder::Bucket { store, prefix } => {
                let key = format!("{prefix}{object}");
                store.object(&key).map_or(key, |name| name.to_string())
            }
            Folder::Server { url, .. } => beside(url, object).name(),
        }
    }
}

/// What the name of an image begins with where names of other drivers may stand.
pub const PREFIX: &str = "chunked:";

/// The name of an image, without [`PREFIX`] if it begins with that.
pub fn without_prefix(name: &str) -> &str {
    name.strip_prefix(PREFIX).unwrap_or(name)
}

/// The id of the key that a name of an image begins with, if it does (`encrypted=ID:URL`), and the rest.
pub fn split_key(name: &str) -> (Option<&str>, &str) {
    let parts = name.strip_prefix("encrypted=").and_then(|rest| rest.split_once(':'));
    parts.map_or((None, name), |(id, rest)| (Some(id), rest))
}

/// The file at `url` of a server, or a part of it as `fields` say; `None` if there is none.
async fn get_of(client: &Client, url: &Url, fields: Fields, bytes_max: u64) -> Result<Option<Reply>, Error> {
    let sent = Sent { method: "GET", url, fields, body: IoBytes::zeroed(0), answer_bytes_max: bytes_max };
    match client.send(&sent).await {
        Ok(reply) => Ok(Some(reply)),
        Err(crate::http::Error::Refused { status: 404 | 410, .. }) => Ok(None),
        Err(error) => Err(error.into()),
    }
}

/// The file `object` in the folder of `url`.
fn beside(url: &Url, object: &str) -> Url {
    let folder = url.path().rsplit_once('/').map_or("", |(folder, _)| folder);
    Url::at(url.origin().clone(), &format!("{folder}/{object}"))
}

/// The manifest's.
impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.name_of(&self.manifest))
    }
}

#[cfg(test)]
impl Place {
    /// In a bucket that no server has.
    pub(crate) fn nowhere(key: &str) -> Self {
        let (service, endpoint) = (crate::s3::Service::S3, Some("http://127.0.0.1:1".to_owned()));
        let options = crate::s3::StoreOptions {
            place: crate::s3::Place { service, endpoint, region: "us-east-1".to_owned(), addressing: None },
            bucket: "images".to_owned(),
            credentials: crate::s3::Credentials::none(service),
            tls: None,
            timeout: std::time::Duration::from_secs(1),
            remote_timeout: None,
        };
        Self::in_bucket(Arc::new(Store::new(options).unwrap()), key)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_checkpoint_stays_beside_the_name_that_it_was_published_to() {
        let (one, other) = ("0123456789abcdef", "fedcba9876543210");
        let image = Place::nowhere("vms/d");
        assert_eq!((image.image(), image.checkpoint()), ("s3://images/vms/d".to_owned(), None));
        let lasting = image.of_checkpoint(one);
        assert_eq!(lasting.to_string(), format!("s3://images/vms/d@{one}.json"));
        assert_eq!(lasting.checkpoint(), Some(one));
        assert_eq!(lasting.of_checkpoint(other).image(), format!("s3://images/vms/d@{other}"));
        // What only looks like one is part of the name.
        assert_eq!(Place::nowhere("a@b").of_checkpoint(one).image(), format!("s3://images/a@b@{one}"));
        assert_eq!(Place::nowhere("a@b").checkpoint(), None);
    }

    #[test]
    fn only_images_of_one_folder_are_beside_each_other() {
        let image = Place::nowhere("vms/d");
        let beside = |name: &str| image.beside(name).map(|place| place.image());
        for name in ["s3://images/vms/e@0123456789abcdef", "s3://images/vms/d"] {
            assert_eq!(beside(name), Some(name.to_owned()));
            for prefix in ["chunked:", "chunked:encrypted=0123456789abcdef:"] {
                assert_eq!(beside(&format!("{prefix}{name}/")), Some(name.to_owned()));
            }
        }
        for other in
            ["", "d", "vms/d", "s3://images/d", "s3://images/vms/x/d", "s3://other/vms/d", "s3://images/vms/"]
        {
            assert_eq!(beside(other), None, "{other}");
        }
    }
}
