//! A published checkpoint, of which a disk is to begin.

use catalog::chunked_place;
use remote::chunked::{Error, KeyId, PREFIX, Place, Published, without_prefix};

use super::error::PublishError;

/// A disk ends with a sector.
const SECTOR_BYTES: u64 = 512;
/// Names that a message lists at most.
const NAMES_SHOWN_MAX: usize = 20;
/// The verb of messages.
const DOING: &str = "restore";

/// What is restored.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Source {
    /// The image in the store, which stays what it is.
    pub name: String,
    /// Bytes of the disk.
    pub size: u64,
    /// The key that it is encrypted with.
    pub key: Option<KeyId>,
}

impl Source {
    /// The checkpoint that `name` leads to, where it stays what it is, or the one `at` below that, by its name or id. `key` is the secret of an encrypted image.
    ///
    /// # Errors
    /// When there is none, or the store does not answer.
    pub async fn find(name: &str, at: Option<&str>, key: Option<&str>) -> Result<Self, PublishError> {
        Self::look(name, at, key, false).await
    }

    /// As [`Source::find`]; of an image that was pushed the one that is there now, which is copied at once.
    ///
    /// # Errors
    /// As there.
    pub async fn find_any(name: &str, at: Option<&str>, key: Option<&str>) -> Result<Self, PublishError> {
        Self::look(name, at, key, true).await
    }

    async fn look(
        name: &str,
        at: Option<&str>,
        key: Option<&str>,
        is_copied: bool,
    ) -> Result<Self, PublishError> {
        let name = without_prefix(name);
        // Its query may be a signature.
        let image = || graph::drive::shown(format!("{PREFIX}{name}").as_ref()).to_string();
        let failed =
            |error: Error| PublishError::Store { doing: DOING, image: image(), source: error.into() };
        let place = chunked_place(name, key).await;
        let place =
            place.map_err(|source| PublishError::Settings { doing: DOING, image: image(), source })?;
        let found = place.read().await.map_err(failed)?;
        let (place, found) = match lasting(&place, &found, at, is_copied)? {
            Some(lasting) => {
                let there = lasting.read().await.map_err(failed)?;
                (lasting, there)
            }
            None => (place, found),
        };
        let size = found.manifest.size().next_multiple_of(SECTOR_BYTES);
        Ok(Self { name: place.image(), size, key: found.manifest.key_id() })
    }

    /// The name of the backing file of a disk that begins so.
    pub fn backing(&self) -> String {
        match self.key {
            None => format!("{PREFIX}{}", self.name),
            Some(key) => format!("{PREFIX}encrypted={key}:{}", self.name),
        }
    }
}

/// Where the image is that stays what it is; `None` if it is that already, or is copied at once.
fn lasting(
    place: &Place,
    found: &Published,
    at: Option<&str>,
    is_copied: bool,
) -> Result<Option<Place>, PublishError> {
    let Some(first) = found.manifest.checkpoints().first() else {
        return match (is_copied, at) {
            (true, None) => Ok(None),
            _ => Err(PublishError::NotPublished { image: place.image(), at: at.map(str::to_owned) }),
        };
    };
    let id = match at {
        None => &first.id,
        Some(at) => &found.manifest.checkpoint(at).ok_or_else(|| has_no(at, place, found))?.id,
    };
    Ok(Some(place.of_checkpoint(id)))
}

/// That an image has no such checkpoint.
fn has_no(at: &str, place: &Place, found: &Published) -> PublishError {
    let known = found.manifest.checkpoints().iter().filter_map(|one| one.name.as_deref());
    let known: Vec<&str> = known.take(NAMES_SHOWN_MAX).collect();
    let known = if known.is_empty() { "none has a name".to_owned() } else { known.join(", ") };
    PublishError::NoCheckpoint { image: place.image(), at: at.to_owned(), known }
}
