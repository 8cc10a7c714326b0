//! What users call checkpoints: `DISK@NAME`.

use std::ffi::{OsStr, OsString};
use std::fmt;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::layer_id::LayerId;

/// Longer names are no use in a listing.
const BYTES_MAX: usize = 128;

/// The name of a checkpoint, unique among those of one disk. Letters, digits and `-_.:+` of ASCII, a letter or a digit first: safe in a terminal, a
/// shell, a file name and a URL.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct CheckpointName(String);

/// Why a checkpoint cannot be called so.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NameError {
    /// Characters or length.
    #[error(
        "the name {name:?} of a checkpoint: must be 1 to {BYTES_MAX} letters, digits or -_.:+ of ASCII, a letter or a digit first"
    )]
    Malformed {
        /// What was found.
        name: String,
    },
    /// It would be taken for a layer's id.
    #[error("the name {name:?} of a checkpoint: 16 hexadecimal digits are the id of a layer")]
    LooksLikeId {
        /// What was found.
        name: String,
    },
    /// No `@` with a name behind it.
    #[error("{text:?} names no checkpoint: must be DISK@NAME")]
    NoCheckpoint {
        /// What was found.
        text: String,
    },
}

impl CheckpointName {
    /// Checks a name.
    ///
    /// # Errors
    /// When a checkpoint cannot be called so.
    pub fn parse(name: &str) -> Result<Self, NameError> {
        let is_allowed = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.:+".contains(&byte);
        let first = name.bytes().next().is_some_and(|byte| byte.is_ascii_alphanumeric());
        if !first || name.len() > BYTES_MAX || !name.bytes().all(is_allowed) {
            return Err(NameError::Malformed { name: name.to_owned() });
        }
        match LayerId::parse(name) {
            Some(_) => Err(NameError::LooksLikeId { name: name.to_owned() }),
            None => Ok(Self(name.to_owned())),
        }
    }

    /// The text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for CheckpointName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl TryFrom<String> for CheckpointName {
    type Error = NameError;

    fn try_from(name: String) -> Result<Self, NameError> {
        Self::parse(&name)
    }
}

impl From<CheckpointName> for String {
    fn from(name: CheckpointName) -> Self {
        name.0
    }
}

/// A checkpoint of a disk, by name or by the id of its layer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CheckpointRef {
    /// By name.
    Name(CheckpointName),
    /// By the id of its layer.
    Id(LayerId),
}

impl CheckpointRef {
    /// A name or an id.
    ///
    /// # Errors
    /// When it is neither.
    pub fn parse(text: &str) -> Result<Self, NameError> {
        match LayerId::parse(text) {
            Some(id) => Ok(Self::Id(id)),
            None => CheckpointName::parse(text).map(Self::Name),
        }
    }

    /// `DISK@NAME`: the path of the disk, and the checkpoint. The last `@` counts.
    ///
    /// # Errors
    /// When there is no `@` with a name behind it.
    pub fn split(text: &OsStr) -> Result<(PathBuf, Self), NameError> {
        let none = || NameError::NoCheckpoint { text: text.to_string_lossy().into_owned() };
        let bytes = text.as_bytes();
        let at = bytes.iter().rposition(|byte| *byte == b'@').ok_or_else(none)?;
        let (disk, name) = (&bytes[..at], &bytes[at + 1..]);
        let name = std::str::from_utf8(name).map_err(|_| none())?;
        match disk.is_empty() || disk.ends_with(b"/") {
            true => Err(none()),
            false => Ok((PathBuf::from(OsString::from_vec(disk.to_vec())), Self::parse(name)?)),
        }
    }

    /// As a user writes it.
    pub fn shown(&self, disk: &Path) -> String {
        format!("{}@{self}", disk.display())
    }
}

impl fmt::Display for CheckpointRef {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Name(name) => name.fmt(f),
            Self::Id(id) => id.fmt(f),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hostile_text_is_no_name() {
        for good in ["clean", "2026-11-28T08:27:24", "v1.2+3", "a", &"x".repeat(128)] {
            assert!(CheckpointName::parse(good).is_ok(), "{good}");
        }
        for wrong in [
            "",
            ".",
            "..",
            "-rf",
            "a/b",
            "a@b",
            "a b",
            "a\n",
            "\u{1b}[2J",
            "é",
            "a\0",
            "%s%n",
            &"x".repeat(129),
        ] {
            assert!(matches!(CheckpointName::parse(wrong), Err(NameError::Malformed { .. })), "{wrong}");
        }
        assert!(matches!(CheckpointName::parse("0123456789abcdef"), Err(NameError::LooksLikeId { .. })));
    }

    #[test]
    fn the_last_at_sign_parts_disk_and_name() {
        let split = |text: &str| CheckpointRef::split(OsStr::new(text));
        let name = |name: &str| CheckpointRef::Name(CheckpointName::parse(name).unwrap());
        assert_eq!(split("/a@b/d.qcow2@x"), Ok(("/a@b/d.qcow2".into(), name("x"))));
        assert_eq!(split("d@x@y"), Ok(("d@x".into(), name("y"))));
        assert!(matches!(split("d@0123456789abcdef"), Ok((_, CheckpointRef::Id(_)))));
        for wrong in ["", "d", "@x", "d/@x", "d@", "d@../x", "a@b/d.qcow2"] {
            assert!(split(wrong).is_err(), "{wrong}");
        }
    }
}
