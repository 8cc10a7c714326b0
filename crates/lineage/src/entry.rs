//! What is recorded of one layer.

use std::sync::OnceLock;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::checkpoint_name::CheckpointName;
use crate::files::FileFacts;
use crate::labels::Labels;
use crate::layer_id::LayerId;

/// The disk of layers whose manifest was lost: they may have had names.
pub(crate) const UNKNOWN_DISK: &str = "unknown";

/// What is recorded of a layer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct Entry {
    /// The layer.
    pub id: LayerId,
    /// The layer that it is backed by, if that is one of the lineage.
    pub parent: Option<LayerId>,
    /// The file name of the disk whose active layer it was.
    pub disk: String,
    /// What its user calls it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<CheckpointName>,
    /// When it was sealed, in seconds since 1970.
    pub time_sec: u64,
    /// And the part of a second: a sandbox takes several in one.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub time_nsec: u32,
    /// Words of its user.
    #[serde(default, skip_serializing_if = "Labels::is_empty")]
    pub labels: Labels,
    /// Its file when it was sealed; `None` before.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub seal: Option<Seal>,
    /// Its user has no use for it: it goes when nothing is backed by it.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub deleted: bool,
}

impl Entry {
    /// When it was sealed, since 1970.
    pub fn time(&self) -> Duration {
        // A manifest may say anything: more than a second is cut off.
        Duration::new(self.time_sec, self.time_nsec.min(999_999_999))
    }
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes a reference")]
fn is_zero(number: &u32) -> bool {
    *number == 0
}

/// What a sealed file looks like from outside. `cp -a` and `rsync -a` keep it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct Seal {
    /// Its length.
    pub bytes: u64,
    /// When it was last written, in seconds since 1970.
    pub modified_sec: i64,
    /// And the part of a second.
    pub modified_nsec: i64,
}

impl Seal {
    /// That of the file that `found` describes.
    pub fn of(found: &FileFacts) -> Self {
        let FileFacts { bytes, modified_sec, modified_nsec, .. } = *found;
        Self { bytes, modified_sec, modified_nsec }
    }

    /// Why the file that `found` describes is another one.
    pub fn difference(&self, found: &FileFacts) -> Option<String> {
        let now = Self::of(found);
        if now.bytes != self.bytes {
            return Some(format!("it has {} bytes, and had {}", now.bytes, self.bytes));
        }
        // File systems and archives keep parts of a second to 100 ns, to 1 us, or not at all.
        let is_rounded = |unit: i64| now.modified_nsec == self.modified_nsec - self.modified_nsec % unit;
        let is_same = now.modified_sec == self.modified_sec
            && [1, 100, 1_000, 1_000_000_000].into_iter().any(is_rounded);
        (!is_same).then(|| {
            format!(
                "it was written at {}.{:09} (seconds since 1970), and before at {}.{:09}",
                now.modified_sec, now.modified_nsec, self.modified_sec, self.modified_nsec
            )
        })
    }
}

/// An entry of a manifest, with its text once that was written: of a thousand entries a checkpoint changes one.
#[derive(Clone, Debug, Eq)]
pub(crate) struct Recorded {
    entry: Entry,
    text: OnceLock<Box<str>>,
}

impl PartialEq for Recorded {
    fn eq(&self, other: &Self) -> bool {
        self.entry == other.entry
    }
}

impl Recorded {
    pub(crate) fn new(entry: Entry) -> Self {
        Self { entry, text: OnceLock::new() }
    }

    pub(crate) fn entry(&self) -> &Entry {
        &self.entry
    }

    /// The entry, to be changed.
    pub(crate) fn entry_mut(&mut self) -> &mut Entry {
        self.text = OnceLock::new();
        &mut self.entry
    }

    pub(crate) fn into_entry(self) -> Entry {
        self.entry
    }

    /// The entry as JSON.
    pub(crate) fn text(&self) -> serde_json::Result<&str> {
        if let Some(text) = self.text.get() {
            return Ok(text);
        }
        let text = serde_json::to_string(&self.entry)?.into_boxed_str();
        Ok(self.text.get_or_init(|| text))
    }
}

#[cfg(test)]
mod tests {
    use std::fs::File;

    use super::*;

    /// A copy by rsync of an older version keeps whole seconds, and the lineage did not open any more.
    #[test]
    fn a_copy_that_keeps_times_is_the_same_file() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("f");
        std::fs::write(&path, "abc").unwrap();
        let file = File::options().write(true).open(&path).unwrap();
        let set = |nsec: u32| {
            let time = std::time::UNIX_EPOCH + std::time::Duration::new(1_000_000, nsec);
            file.set_modified(time).unwrap();
            FileFacts::from(path.metadata().unwrap())
        };
        let seal = Seal::of(&set(123_456_789));
        for kept in [123_456_789, 123_456_700, 123_456_000, 0] {
            assert_eq!(seal.difference(&set(kept)), None, "{kept}");
        }
        assert!(seal.difference(&set(123_456_788)).is_some());
        file.set_len(4).unwrap();
        assert!(seal.difference(&path.metadata().unwrap().into()).unwrap().contains("4 bytes"));
    }
}
