//! What holds of a lineage after each command, however it ended.

use std::collections::BTreeSet;
use std::path::Path;
use std::time::Duration;

use super::Scope;
use super::files::Fate;
use super::images::{in_words, run};
use super::world::World;
use crate::files::FileSystem;
use crate::{Change, Error, LayerId, Survey};

/// Names of files in the directory of the layers that are no layers.
const OURS: [&str; 4] = ["layers", "lineage.json", "lock", "merge.lock"];
/// Of so many changes of files one is the last of a command that finds a crash.
const CHANGES: u64 = 12;

/// What the last command may have done to checkpoints that were there.
#[derive(Clone, Debug)]
pub struct Allowed {
    /// These may be deleted.
    pub deleted: BTreeSet<LayerId>,
    /// They must be.
    pub must: bool,
    /// The command ended well: what it deleted stays deleted.
    pub is_certain: bool,
}

impl Allowed {
    pub fn nothing() -> Self {
        Self { deleted: BTreeSet::new(), must: false, is_certain: true }
    }
}

impl World {
    /// The next command begins after one that was killed or failed. It may be killed, too.
    pub fn recover(&mut self, last: &Result<(), Error>) -> Result<(), String> {
        if last.is_err() && self.rng.chance(1, if self.scope == Scope::Any { 3 } else { 1 }) {
            let at = self.rng.below(CHANGES);
            self.files.set_fate(Some((at, Fate::Killed)));
            let begun = Change::begin(&self.place, Duration::ZERO);
            self.files.set_fate(None);
            drop(begun);
            self.end_process(false);
        }
        self.begin().map(drop)?;
        // What a command found and completed is durable when it has begun.
        if last.is_err() && self.rng.chance(1, 4) {
            self.cut_power();
            self.begin().map(drop)?;
        }
        Ok(())
    }

    /// The power is cut while no command runs.
    pub fn cut_power(&mut self) {
        self.trace.push("    the power is cut".into());
        self.counts.power_cuts += 1;
        (self.readers, self.merging) = (Vec::new(), None);
        self.served.clear();
        self.known.clear();
        self.files.cut_power();
    }

    /// A command begins; `None` before the first checkpoint. It is refused while a server writes a layer: then that ends.
    fn begin(&mut self) -> Result<Option<Change>, String> {
        let mut begun = Change::begin(&self.place, Duration::ZERO);
        if let Err(Error::Busy { path, .. }) = &begun
            && path.parent() == Some(&self.place.layers())
            && !self.served.is_empty()
        {
            self.trace.push(format!("    the servers end, of which one writes {}", path.display()));
            self.served.clear();
            begun = Change::begin(&self.place, Duration::ZERO);
        }
        match begun {
            Err(Error::NoLineage { .. }) if self.checkpoints.is_empty() => Ok(None),
            begun => begun.map(Some).map_err(|error| format!("the next command fails: {error}")),
        }
    }

    pub fn check(&mut self, allowed: &Allowed) -> Result<(), String> {
        if let Some(change) = self.begin()? {
            let survey = change.survey().map_err(|error| format!("the images cannot be read: {error}"))?;
            drop(change);
            self.check_layers(&survey)?;
            self.check_checkpoints(&survey, allowed)?;
        }
        for name in self.fragile.clone() {
            if !self.files.exists(&self.path(&name)) {
                self.disks.remove(&name);
                self.fragile.remove(&name);
            }
        }
        let read = self.disks.clone();
        for (name, wanted) in read {
            let found = self.read(&self.path(&name));
            let found = found.map_err(|error| format!("{name} does not open: {error}"))?;
            same(&name, &found, &wanted)?;
        }
        // A deleted one may be left without what it was backed by, if nothing is backed by it: it goes next.
        let read: Vec<_> = self
            .checkpoints
            .iter()
            .filter(|(_, one)| !one.deleted && !one.is_broken)
            .map(|(id, one)| (*id, one.clone()))
            .collect();
        for (id, checkpoint) in read {
            let found = self.read(&self.place.layer(id));
            let found = found.map_err(|error| format!("layer {id} does not open: {error}"))?;
            same(&id.to_string(), &found, &checkpoint.content)?;
        }
        self.files.drop_unnamed();
        Ok(())
    }

    /// Files, headers and manifest agree, and nothing else is there.
    fn check_layers(&self, survey: &Survey) -> Result<(), String> {
        for disk in &survey.disks {
            let chain = survey.chain(&disk.image.path, &disk.image.backing).map_err(in_words)?.0;
            survey.check_sealed(&chain).map_err(in_words)?;
        }
        for (id, layer) in &survey.layers {
            let found = layer.image.metadata();
            let entry = layer.entry.as_ref().ok_or_else(|| format!("layer {id} has no entry"))?;
            if entry.seal.is_none() || entry.parent != layer.image.backing.layer() {
                return Err(format!("the entry of layer {id} is {entry:?}"));
            }
            if found.access.mode & 0o222 != 0 {
                return Err(format!("layer {id} can be written: {:o}", found.access.mode));
            }
            if let Some(disk) = survey.disks.iter().find(|disk| disk.image.is_same_file(found)) {
                return Err(format!("layer {id} is the disk {}", disk.name));
            }
        }
        for name in self.files.names(&self.place.layers()).map_err(in_words)? {
            let name = name.to_string_lossy();
            let is_merged = name.starts_with("merged-") && self.merging.is_some();
            let is_base = name.starts_with("base-");
            if LayerId::of_file_name(&name).is_none() && !OURS.contains(&&*name) && !is_merged && !is_base {
                return Err(format!("{name} was left, and the next command does not remove it"));
            }
        }
        Ok(())
    }

    /// What the manifest says, and which layers are there; the model has it from then on.
    fn check_checkpoints(&mut self, survey: &Survey, allowed: &Allowed) -> Result<(), String> {
        if let Some(id) = survey.layers.keys().find(|id| !self.checkpoints.contains_key(id)) {
            return Err(format!("layer {id} is of no command"));
        }
        let mut gone = Vec::new();
        for (id, checkpoint) in &mut self.checkpoints {
            let may_go = checkpoint.deleted || allowed.deleted.contains(id);
            let entry = survey.layers.get(id).and_then(|layer| layer.entry.as_ref());
            let Some(entry) = entry else {
                if !may_go {
                    return Err(format!("layer {id} is needed and gone"));
                }
                gone.push(*id);
                continue;
            };
            if checkpoint.deleted
                && !entry.deleted
                && let Some(name) = checkpoint.undeleted.take()
            {
                (checkpoint.deleted, checkpoint.name) = (false, name);
            }
            if entry.deleted != checkpoint.deleted && !(entry.deleted && may_go) {
                return Err(format!("layer {id} is deleted: {}", entry.deleted));
            }
            if allowed.must && allowed.deleted.contains(id) && !entry.deleted {
                return Err(format!("checkpoint {id} was deleted, and is there"));
            }
            if entry.deleted && !checkpoint.deleted {
                let name = checkpoint.name.take();
                checkpoint.undeleted = (!allowed.is_certain).then_some(name);
                checkpoint.deleted = true;
            }
            if entry.name != checkpoint.name {
                return Err(format!("layer {id} is called {:?}, not {:?}", entry.name, checkpoint.name));
            }
        }
        gone.iter().for_each(|id| drop(self.checkpoints.remove(id)));
        Ok(())
    }

    /// At the end: what nothing needs goes, and what stays is sound.
    pub fn check_at_the_end(&mut self) -> Result<(), String> {
        self.readers.clear();
        self.served.clear();
        self.merging = None;
        let Some(change) = self.begin()? else { return Ok(()) };
        let collected = change.collect(false, usize::MAX).and_then(|(plan, _)| change.apply(&plan));
        collected.map_err(in_words)?;
        drop(change);
        self.check(&Allowed::nothing())?;
        let survey = Survey::look(&self.place).map_err(in_words)?;
        let users = survey.all_users();
        let is_left = |id: &&LayerId| self.checkpoints.get(id).is_some_and(|one| one.deleted);
        if let Some(id) = survey.layers.keys().filter(is_left).find(|id| !users.contains_key(id)) {
            return Err(format!("layer {id} was deleted, nothing is backed by it, and it is there"));
        }
        let images = survey.layers.values().map(|layer| &layer.image);
        for image in images.chain(survey.disks.iter().map(|disk| &disk.image)) {
            self.check_image(&image.path)?;
        }
        Ok(())
    }

    fn check_image(&self, path: &Path) -> Result<(), String> {
        let report = run(super::images::check(&self.files, path))?;
        match report.corruptions {
            0 => Ok(()),
            found => Err(format!("{}: {found} corruptions", path.display())),
        }
    }
}

fn same(name: &str, found: &[u32], wanted: &[u32]) -> Result<(), String> {
    if found.len() != wanted.len() {
        return Err(format!("{name} has {} sectors, not {}", found.len(), wanted.len()));
    }
    match found.iter().zip(wanted).position(|(found, wanted)| found != wanted) {
        None => Ok(()),
        Some(at) => Err(format!("{name} reads {} in sector {at}, not {}", found[at], wanted[at])),
    }
}
