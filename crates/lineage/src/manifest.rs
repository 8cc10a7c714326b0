//! What the images do not say: names, times and labels of layers, and whether a layer is what it was when it was sealed.

use std::collections::BTreeMap;
use std::io;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::checkpoint_name::CheckpointName;
use crate::deliberate::{Bug, has};
use crate::error::Error;
use crate::files::{FileFacts, OpenFile, Purpose, files, remove_if_there};
use crate::forget::Policy;
use crate::labels::Labels;
use crate::layer_id::LayerId;
use crate::place::{Place, is_file_name};

/// The number of its newest form. A newer one is refused: what it says of layers that are still needed is not known here.
pub const MANIFEST_VERSION: u64 = 2;
/// That of a manifest without a policy, which older programs read, too.
const VERSION_WITHOUT_POLICY: u64 = 1;
/// A larger file is none of ours: an entry takes some 250 bytes, 10 KiB with all labels.
const BYTES_MAX: u64 = 64 << 20;

/// The entries, by layer. A copy shares them until one of the two changes: the steps of a command have several.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Manifest {
    layers: Arc<BTreeMap<LayerId, Entry>>,
    policy: Option<Policy>,
}

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

/// The file, read.
#[derive(Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
struct Text {
    #[serde(rename = "cowhand-lineage")]
    version: u64,
    layers: Vec<Entry>,
    #[serde(default)]
    policy: Option<Policy>,
}

/// What every version of the file has.
#[derive(Deserialize)]
#[serde(rename_all = "kebab-case")]
struct Version {
    #[serde(default)]
    cowhand_lineage: Option<u64>,
}

/// The file, to be written.
#[derive(Serialize)]
#[serde(rename_all = "kebab-case")]
struct NewText<'a> {
    cowhand_lineage: u64,
    layers: Vec<&'a Entry>,
    #[serde(skip_serializing_if = "Option::is_none")]
    policy: Option<&'a Policy>,
}

impl Manifest {
    /// Reads that of the lineage; `None` where there is no file.
    ///
    /// # Errors
    /// When it is of a newer version, or no manifest.
    pub fn read(place: &Place) -> Result<Option<Self>, Error> {
        let path = place.manifest();
        let text = match files().read(&path, BYTES_MAX + 1) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            read => read.map_err(Error::io("cannot read", &path))?,
        };
        Self::parse(&text).map(Some).map_err(|reason| Error::Manifest { path, reason })
    }

    /// Reads the text of one.
    ///
    /// # Errors
    /// Says why it is none, or not one for this program.
    pub fn parse(text: &[u8]) -> Result<Self, String> {
        if text.len() as u64 > BYTES_MAX {
            return Err(format!("it is longer than {BYTES_MAX} bytes"));
        }
        let rebuilt = "; without it, it is rebuilt from the images, without names and labels";
        let read: Result<Text, _> = serde_json::from_slice(text);
        // Another version has other fields: that is looked at alone.
        let found = match &read {
            Ok(read) => Some(read.version),
            Err(_) => {
                let found: Version = serde_json::from_slice(text)
                    .map_err(|error| format!("it is no manifest ({error}){rebuilt}"))?;
                found.cowhand_lineage
            }
        };
        match found {
            Some(VERSION_WITHOUT_POLICY..=MANIFEST_VERSION) => {}
            Some(0) => return Err(format!("its version is 0: it is no manifest{rebuilt}")),
            Some(found) => {
                return Err(format!(
                    "its version is {found}; this program knows {MANIFEST_VERSION}, and changes nothing of a newer one"
                ));
            }
            None => return Err(format!("it has no version{rebuilt}")),
        }
        let Text { layers, policy, .. } = read.map_err(|error| format!("{error}{rebuilt}"))?;
        let mut manifest = Self { policy, ..Self::default() };
        for entry in layers {
            if !is_file_name(&entry.disk) {
                return Err(format!(
                    "layer {} is of the disk {:?}, which is no file's name",
                    entry.id, entry.disk
                ));
            }
            let id = entry.id;
            if manifest.put(entry).is_some() {
                return Err(format!("layer {id} is there twice"));
            }
        }
        Ok(manifest)
    }

    /// Writes it: beside, durably, and then in place of the one before.
    pub(crate) fn write(&self, place: &Place) -> io::Result<()> {
        let beside = place.layers().join(Place::NEW_MANIFEST);
        let policy = self.policy.as_ref();
        let version = if policy.is_some() { MANIFEST_VERSION } else { VERSION_WITHOUT_POLICY };
        let text = NewText { cowhand_lineage: version, layers: self.layers.values().collect(), policy };
        let mut text = serde_json::to_vec(&text).map_err(io::Error::other)?;
        text.push(b'\n');
        let file = new_beside(&beside, &place.manifest())?;
        file.write_at(&text, 0)?;
        if !has(Bug::ManifestNotAwaited) {
            file.sync()?;
        }
        files().rename(&beside, &place.manifest())?;
        files().sync(&place.layers())
    }

    /// The entry of a layer.
    pub fn entry(&self, id: LayerId) -> Option<&Entry> {
        self.layers.get(&id)
    }

    /// The entry of a layer, to be changed.
    pub(crate) fn entry_mut(&mut self, id: LayerId) -> Option<&mut Entry> {
        Arc::make_mut(&mut self.layers).get_mut(&id)
    }

    /// What is to be kept of the lineage.
    pub fn policy(&self) -> Option<&Policy> {
        self.policy.as_ref()
    }

    pub(crate) fn set_policy(&mut self, policy: Option<Policy>) {
        self.policy = policy;
    }

    /// All entries.
    pub fn entries(&self) -> impl Iterator<Item = &Entry> {
        self.layers.values()
    }

    /// Puts an entry in; gives the one that was there.
    pub fn put(&mut self, entry: Entry) -> Option<Entry> {
        Arc::make_mut(&mut self.layers).insert(entry.id, entry)
    }

    /// Takes an entry out.
    pub(crate) fn take(&mut self, id: LayerId) -> Option<Entry> {
        Arc::make_mut(&mut self.layers).remove(&id)
    }
}

/// An empty file at `path` that takes the place of `old`, and is no more open than that.
fn new_beside(path: &Path, old: &Path) -> io::Result<Box<dyn OpenFile>> {
    remove_if_there(path)?;
    let old = match files().look(old) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => None,
        found => Some(found?),
    };
    let mode = if old.is_some() { 0o600 } else { 0o666 };
    let file = files().open(path, Purpose::Make(mode))?;
    if let Some(FileFacts { access, .. }) = old {
        // Root alone may give a file away; who cannot keeps it.
        let _ = file.give(access.owner, access.group);
        file.set_mode(access.mode)?;
    }
    Ok(file)
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::os::unix::fs::{MetadataExt, PermissionsExt};

    use super::*;

    #[test]
    fn a_new_manifest_is_no_more_open_than_the_one_before() {
        let directory = tempfile::tempdir().unwrap();
        let place = Place::of(directory.path()).unwrap();
        std::fs::create_dir(place.layers()).unwrap();
        Manifest::default().write(&place).unwrap();
        for mode in [0o600, 0o640] {
            let own = std::fs::Permissions::from_mode(mode);
            std::fs::set_permissions(place.manifest(), own).unwrap();
            // What a killed command left does not lend its mode.
            std::fs::write(place.layers().join(Place::NEW_MANIFEST), b"left").unwrap();
            Manifest::default().write(&place).unwrap();
            assert_eq!(place.manifest().metadata().unwrap().mode() & 0o777, mode);
        }
    }

    fn text(version: u64, layer: &str) -> String {
        format!(r#"{{"cowhand-lineage":{version},"layers":[{layer}]}}"#)
    }

    const LAYER: &str =
        r#"{"id":"0123456789abcdef","parent":null,"disk":"d.qcow2","name":"clean","time-sec":1}"#;

    #[test]
    fn what_another_wrote_leads_nowhere_and_a_newer_version_is_refused() {
        let parse = |text: &str| Manifest::parse(text.as_bytes());
        assert_eq!(parse(&text(1, LAYER)).unwrap().entries().count(), 1);
        for (wrong, why) in [
            (text(3, ""), "newer"),
            (text(0, ""), "version is 0"),
            (text(1, &format!("{LAYER},{LAYER}")), "twice"),
            (text(1, &LAYER.replace("d.qcow2", "../d.qcow2")), "no file's name"),
            (text(1, &LAYER.replace("0123456789abcdef", "../../etc/passwd")), "hexadecimal"),
            (text(1, &LAYER.replace("clean", "a@b")), "must be 1 to"),
            (text(1, &LAYER.replace("null", "\"x\"")), "hexadecimal"),
            (text(1, &LAYER.replace("time-sec", "time")), "unknown field"),
            ("{}".to_owned(), "no version"),
            ("\0".to_owned(), "no manifest"),
        ] {
            let found = parse(&wrong).expect_err("it is wrong");
            assert!(found.contains(why), "{found}");
        }
    }

    /// `cowhand log` waited for ever.
    #[test]
    fn a_pipe_is_no_manifest() {
        let directory = tempfile::tempdir().unwrap();
        let place = Place::of(directory.path()).unwrap();
        std::fs::create_dir(place.layers()).unwrap();
        assert!(std::process::Command::new("mkfifo").arg(place.manifest()).status().unwrap().success());
        assert!(Manifest::read(&place).unwrap_err().to_string().contains("no regular file"));
    }

    #[test]
    fn a_manifest_reads_as_it_was_written() {
        let directory = tempfile::tempdir().unwrap();
        let place = Place::of(directory.path()).unwrap();
        std::fs::create_dir(place.layers()).unwrap();
        assert_eq!(Manifest::read(&place).unwrap(), None);
        let mut manifest = Manifest::parse(text(1, LAYER).as_bytes()).unwrap();
        let id = LayerId::parse("0123456789abcdef").unwrap();
        let entry = manifest.entry_mut(id).unwrap();
        entry.labels = Labels::parse(["owner=me"]).unwrap();
        entry.seal = Some(Seal { bytes: 1, modified_sec: -1, modified_nsec: 5 });
        entry.deleted = true;
        // Programs that know no policies read one without, and no other.
        let policy = Policy { keep: Some("last:2".parse().unwrap()), depth_max: Some(9), waste_max: Some(5) };
        for (policy, version) in [(None, 1), (Some(policy), 2)] {
            manifest.set_policy(policy);
            manifest.write(&place).unwrap();
            assert_eq!(Manifest::read(&place).unwrap().as_ref(), Some(&manifest));
            let text = std::fs::read_to_string(place.manifest()).unwrap();
            assert!(text.starts_with(&format!("{{\"cowhand-lineage\":{version},")), "{text}");
        }
    }

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
