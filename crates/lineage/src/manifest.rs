//! What the images do not say: names, times and labels of layers, and whether a layer is what it was when it was sealed.

use std::collections::BTreeMap;
use std::io;
use std::path::Path;
use std::sync::Arc;

use serde::Deserialize;

use crate::deliberate::{Bug, has};
use crate::entry::{Entry, Recorded};
use crate::error::Error;
use crate::files::{FileFacts, OpenFile, Purpose, files, remove_if_there};
use crate::keep::Policy;
use crate::kept;
use crate::layer_id::LayerId;
use crate::place::{Place, is_file_name};

/// The number of its newest form. A newer one is refused: what it says of layers that are still needed is not known here.
pub const MANIFEST_VERSION: u64 = 2;
/// That of a manifest without a policy, which older programs read, too.
const VERSION_WITHOUT_POLICY: u64 = 1;
/// A larger file is none of ours: an entry takes some 250 bytes, 10 KiB with all labels.
const BYTES_MAX: u64 = 64 << 20;

/// The entries, by layer. A copy shares them until one of the two changes, and those that have not changed after that: the steps of a command have several.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Manifest {
    layers: Arc<BTreeMap<LayerId, Arc<Recorded>>>,
    policy: Option<Policy>,
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

impl Manifest {
    /// Reads that of the lineage; `None` where there is no file. Costs no more than its bytes where they are what this process wrote last.
    ///
    /// # Errors
    /// When it is of a newer version, or no manifest.
    pub fn read(place: &Place) -> Result<Option<Self>, Error> {
        let path = place.manifest();
        let text = match files().read(&path, BYTES_MAX + 1) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            read => read.map_err(Error::io("cannot read", &path))?,
        };
        if let Some(manifest) = kept::written(&path, &text) {
            return Ok(Some(manifest));
        }
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

    /// Writes it: beside, durably, and then in place of the one before. Until the directory of the layers is durable, a power cut may bring that back.
    pub(crate) fn write(&self, place: &Place) -> io::Result<()> {
        self.write_beside(place)?;
        Self::put_in_place(place)
    }

    /// The first half of [`Manifest::write`]: the new file is durable, under its other name.
    pub(crate) fn write_beside(&self, place: &Place) -> io::Result<()> {
        let beside = place.layers().join(Place::NEW_MANIFEST);
        let text = self.text().map_err(io::Error::other)?;
        let file = new_beside(&beside, &place.manifest())?;
        file.write_at(text.as_bytes(), 0)?;
        if !has(Bug::ManifestNotAwaited) {
            file.sync()?;
        }
        // Kept for a file with this text, whenever it is in its place.
        kept::keep(place.manifest(), text, self);
        Ok(())
    }

    /// The second half: the new file replaces the manifest.
    pub(crate) fn put_in_place(place: &Place) -> io::Result<()> {
        files().rename(&place.layers().join(Place::NEW_MANIFEST), &place.manifest())
    }

    /// The file's content. Costs the entries that have changed, and a copy of the others.
    fn text(&self) -> serde_json::Result<String> {
        let version = if self.policy.is_some() { MANIFEST_VERSION } else { VERSION_WITHOUT_POLICY };
        let mut text = format!(r#"{{"cowhand-lineage":{version},"layers":["#);
        for (at, recorded) in self.layers.values().enumerate() {
            if at > 0 {
                text.push(',');
            }
            text.push_str(recorded.text()?);
        }
        text.push(']');
        if let Some(policy) = &self.policy {
            text.push_str(",\"policy\":");
            text.push_str(&serde_json::to_string(policy)?);
        }
        text.push_str("}\n");
        Ok(text)
    }

    /// The entry of a layer.
    pub fn entry(&self, id: LayerId) -> Option<&Entry> {
        self.layers.get(&id).map(|recorded| recorded.entry())
    }

    /// The entry of a layer, to be changed.
    pub(crate) fn entry_mut(&mut self, id: LayerId) -> Option<&mut Entry> {
        let recorded = Arc::make_mut(&mut self.layers).get_mut(&id)?;
        Some(Arc::make_mut(recorded).entry_mut())
    }

    /// What is to be kept of the lineage.
    pub fn policy(&self) -> Option<&Policy> {
        self.policy.as_ref()
    }

    pub(crate) fn set_policy(&mut self, policy: Option<Policy>) {
        self.policy = policy;
    }

    /// All entries.
    pub fn entries(&self) -> impl ExactSizeIterator<Item = &Entry> {
        self.layers.values().map(|recorded| recorded.entry())
    }

    /// Puts an entry in; gives the one that was there.
    pub fn put(&mut self, entry: Entry) -> Option<Entry> {
        let before = Arc::make_mut(&mut self.layers).insert(entry.id, Arc::new(Recorded::new(entry)));
        before.map(Arc::unwrap_or_clone).map(Recorded::into_entry)
    }

    /// Takes an entry out.
    pub(crate) fn take(&mut self, id: LayerId) -> Option<Entry> {
        let before = Arc::make_mut(&mut self.layers).remove(&id);
        before.map(Arc::unwrap_or_clone).map(Recorded::into_entry)
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
    use std::os::unix::fs::{MetadataExt, PermissionsExt};

    use super::*;
    use crate::entry::Seal;
    use crate::labels::Labels;

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
            kept::forget_all();
            assert_eq!(Manifest::read(&place).unwrap().as_ref(), Some(&manifest));
            let text = std::fs::read_to_string(place.manifest()).unwrap();
            assert!(text.starts_with(&format!("{{\"cowhand-lineage\":{version},")), "{text}");
        }
    }
}
