//! Which checkpoint an image is of.

use serde::{Deserialize, Serialize};

use crate::chunked::error::Error;
use crate::chunked::place::{MANIFEST_SUFFIX, Place};
use crate::s3::{Depth, Listed, StoreError};

/// Digits of an id.
const ID_DIGITS: usize = 16;
/// Bytes of a name at most.
const NAME_BYTES_MAX: usize = 128;
/// Objects of a folder that are looked at for checkpoints: ten requests at AWS.
const LISTED_MAX: usize = 10_000;

/// A checkpoint of a disk: what a sealed layer reads as. The same id is the same bytes.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct Checkpoint {
    /// Of its layer: 16 hexadecimal digits in lower case.
    pub id: String,
    /// What its user called it when it was published.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
}

impl Checkpoint {
    /// Whether it can be one. A name has no character that means something to a terminal, a shell or a URL.
    pub(crate) fn is_sound(&self) -> bool {
        let is_name = |name: &String| {
            let is_allowed = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.:+".contains(&byte);
            (1..=NAME_BYTES_MAX).contains(&name.len()) && name.bytes().all(is_allowed)
        };
        is_id(&self.id) && self.name.as_ref().is_none_or(is_name)
    }
}

/// Whose checkpoints are listed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Of {
    /// Of this image.
    Image,
    /// Of all images of the folder.
    Folder,
}

/// Why a list ends.
enum Ended {
    Enough,
    Failed(StoreError),
}

impl From<StoreError> for Ended {
    fn from(error: StoreError) -> Self {
        Self::Failed(error)
    }
}

impl Place {
    /// Where the checkpoint `name` stays that was published to this image, by its name or id; an id is not looked for.
    ///
    /// # Errors
    /// As [`Place::read`]; when the image has no checkpoint of this name.
    pub async fn of_checkpoint_named(&self, name: &str) -> Result<Self, Error> {
        if is_id(name) {
            return Ok(self.of_checkpoint(name));
        }
        let found = self.read().await?.manifest;
        let none = || Error::NoCheckpoint { image: self.image(), name: name.to_owned() };
        found.checkpoint(name).map(|checkpoint| self.of_checkpoint(&checkpoint.id)).ok_or_else(none)
    }

    /// Where checkpoints with an id that `is_wanted` takes stay in the folder, by the store's list alone: nothing of them is read. The first
    /// 10,000 objects in the order of their names count.
    ///
    /// # Errors
    /// When the store does not answer, or refuses to list the folder.
    pub async fn checkpoints(&self, of: Of, is_wanted: impl Fn(&str) -> bool) -> Result<Vec<Self>, Error> {
        let (store, prefix) = self.bucket()?;
        let listed_prefix = match of {
            Of::Image => format!("{prefix}{}@", self.manifest_name()),
            Of::Folder => prefix.to_owned(),
        };
        let (mut found, mut listed) = (Vec::new(), 0);
        let of_page = |page: Vec<Listed>| {
            listed += page.len();
            let names =
                page.iter().filter_map(|one| one.key.strip_prefix(prefix)?.strip_suffix(MANIFEST_SUFFIX));
            let places = names.map(|name| self.named(name));
            found.extend(places.filter(|place| place.checkpoint().is_some_and(&is_wanted)));
            if listed < LISTED_MAX { Ok(()) } else { Err(Ended::Enough) }
        };
        match store.list(&listed_prefix, Depth::Here, of_page).await {
            Ok(()) | Err(Ended::Enough) => Ok(found),
            Err(Ended::Failed(error)) => Err(error.into()),
        }
    }
}

/// Whether this is the id of a checkpoint.
pub(crate) fn is_id(text: &str) -> bool {
    text.len() == ID_DIGITS && text.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'))
}
