//! Who is at work in a folder: pushes, which rely on chunks that nothing leads to yet, and the process that removes those.
//!
//! A push makes an object of its own before it asks for the first chunk, and then looks whether a process removes chunks. Who removes chunks makes
//! an object first, and then looks for pushes. A store answers with what was made before, so one of the two sees the other.

use std::time::Duration;

use async_lock::OnceCell;
use memory::IoBytes;
use parking_lot::Mutex;

use crate::chunked::error::Error;
use crate::s3::{Depth, Listed, Present, Store, StoreError, is_unique, unique};

/// Objects of pushes.
const PUSHES: &str = "pushing/";
/// The object of the process that removes chunks.
const REMOVAL: &str = "removing";
/// A removal that began so long ago has been killed: it ends by itself within [`REMOVAL_WITHIN`].
const REMOVAL_DEAD_S: u64 = 24 * 3600;
/// How long a removal may take.
pub(crate) const REMOVAL_WITHIN: Duration = Duration::from_secs(12 * 3600);

/// What a push has said of itself in the folder.
#[derive(Debug, Default)]
pub(crate) struct Announcement {
    /// Its object, from before it is made.
    key: Mutex<Option<String>>,
    is_made: OnceCell<()>,
}

impl Announcement {
    /// Says so before the first chunk is asked for, once.
    ///
    /// # Errors
    /// When the store does not take it, or a process removes chunks: then no chunk may be relied on.
    pub(crate) async fn make(&self, store: &Store, prefix: &str) -> Result<(), Error> {
        let made = self.is_made.get_or_try_init(async || {
            let new = format!("{prefix}{PUSHES}{}", unique()?);
            // Who waits for a chunk while another attempt fails makes no second one.
            let key = self.key.lock().get_or_insert(new).clone();
            store.put(&key, IoBytes::zeroed(0), &Present::Replace).await?;
            match removal(store, prefix).await? {
                Some(begun_s) => Err(Error::Removing { object: name(store, &removal_key(prefix)), begun_s }),
                None => Ok(()),
            }
        });
        made.await.map(drop)
    }

    /// The push has ended, or failed.
    ///
    /// # Errors
    /// When the store does not remove the object: the push is taken for one that goes on.
    pub(crate) async fn end(&self, store: &Store) -> Result<(), StoreError> {
        let key = self.key.lock().take();
        match key {
            Some(key) => store.remove(&key).await,
            None => Ok(()),
        }
    }
}

/// A push that has not ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Push {
    pub(crate) key: String,
    /// How long ago it began; `None` if the store does not say.
    pub(crate) begun_s: Option<u64>,
}

/// The pushes of a folder.
///
/// # Errors
/// When the store does not list them.
pub(crate) async fn pushes(store: &Store, prefix: &str) -> Result<Vec<Push>, StoreError> {
    let mut found = Vec::new();
    let of_pushes = format!("{prefix}{PUSHES}");
    // A folder of this name may have images, too.
    let is_push = |key: &str| key.strip_prefix(&of_pushes).is_some_and(is_unique);
    let listed = |page: Vec<Listed>| {
        let pushes = page.into_iter().filter(|one| is_push(&one.key));
        found.extend(pushes.map(|Listed { key, age_s, .. }| Push { key, begun_s: age_s }));
        Ok::<(), StoreError>(())
    };
    store.list(&of_pushes, Depth::Here, listed).await?;
    Ok(found)
}

/// Says that chunks are removed.
///
/// # Errors
/// When another process removes some, or the store does not take it.
pub(crate) async fn begin_removal(store: &Store, prefix: &str) -> Result<(), Error> {
    let key = removal_key(prefix);
    let other = |begun_s| Error::Removing { object: name(store, &key), begun_s };
    if let Some(begun_s) = removal(store, prefix).await? {
        return Err(other(begun_s));
    }
    // What is there has been killed.
    store.remove(&key).await?;
    match store.put(&key, IoBytes::zeroed(0), &Present::Keep).await {
        Err(StoreError::Exists { .. }) => Err(other(None)),
        Err(StoreError::Unconditional { .. }) => {
            Ok(store.put(&key, IoBytes::zeroed(0), &Present::Replace).await?)
        }
        made => Ok(made?),
    }
}

/// Chunks are removed no more.
///
/// # Errors
/// When the store does not remove the object: pushes are refused for [`REMOVAL_DEAD_S`].
pub(crate) async fn end_removal(store: &Store, prefix: &str) -> Result<(), StoreError> {
    store.remove(&removal_key(prefix)).await
}

/// How long ago a removal began that goes on; `Some(None)` if the store does not say.
async fn removal(store: &Store, prefix: &str) -> Result<Option<Option<u64>>, StoreError> {
    let Some(found) = store.look(&removal_key(prefix)).await? else { return Ok(None) };
    let begun_s = found.modified_s.and_then(|then| Some(found.date_s?.saturating_sub(then)));
    Ok((begun_s.is_none_or(|begun_s| begun_s < REMOVAL_DEAD_S)).then_some(begun_s))
}

fn removal_key(prefix: &str) -> String {
    format!("{prefix}{REMOVAL}")
}

fn name(store: &Store, key: &str) -> String {
    store.object(key).map_or_else(|_| key.to_owned(), |name| name.to_string())
}
