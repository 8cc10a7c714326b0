//! Which checkpoint an image is of.

use serde::{Deserialize, Serialize};

/// Checkpoints that a manifest names at most: no chain of layers is longer.
pub const CHECKPOINTS_MAX: usize = 1000;
/// Digits of an id.
const ID_DIGITS: usize = 16;
/// Bytes of a name at most.
const NAME_BYTES_MAX: usize = 128;

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

/// Whether this is the id of a checkpoint.
pub(crate) fn is_id(text: &str) -> bool {
    text.len() == ID_DIGITS && text.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'))
}
