//! Commands at random, and what each may have done when it ends, fails or is killed.

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::time::Duration;

use super::images::{Access, Chain, Named, in_words, make, make_merged, run};
use super::law::Allowed;
use super::world::{DISKS_MAX, World};
use crate::{Change, CheckpointRef, Error, LayerId, Place, Policy};

/// Changes of files that commands make: without a disk, with one or two, and with a copy.
pub const CHANGES: [u64; 3] = [16, 40, 90];

impl World {
    /// One command, or what users do beside commands; then the law.
    pub fn step(&mut self) -> Result<(), String> {
        self.time += Duration::from_secs(self.rng.below(7200));
        // The first of them make and remove layers.
        match self.scope.draw(&mut self.rng) {
            0..16 => self.transact(),
            16..23 => self.delete(),
            23..25 => self.collect(),
            25..29 => self.forget(),
            29..37 => self.merge(),
            37..40 => self.serve(),
            40 => self.resize(),
            41 => self.lose_manifest(),
            42 => self.remove_disk(),
            43 => self.read_a_layer(),
            44 => self.fork_by_another_program(),
            _ => self.write(),
        }
    }

    pub fn some_disk(&mut self) -> Option<String> {
        let names: Vec<String> = self.disks.keys().cloned().collect();
        (!names.is_empty()).then(|| names[self.rng.index(names.len())].clone())
    }

    fn some_checkpoint(&mut self) -> Option<LayerId> {
        let ids: Vec<LayerId> =
            self.checkpoints.iter().filter(|(_, one)| !one.deleted).map(|(id, _)| *id).collect();
        (!ids.is_empty()).then(|| ids[self.rng.index(ids.len())])
    }

    /// Also one that is deleted, if it is there with all that it is backed by.
    pub fn some_layer(&mut self) -> Option<LayerId> {
        let is_whole = |id: &LayerId| Named::by(&self.files, &self.place.layer(*id)).is_ok();
        let ids: Vec<LayerId> = self.checkpoints.keys().copied().filter(is_whole).collect();
        (!ids.is_empty()).then(|| ids[self.rng.index(ids.len())])
    }

    pub fn delete(&mut self) -> Result<(), String> {
        let Some(id) = self.some_checkpoint() else { return Ok(()) };
        let disk = self.place.disk(&self.checkpoints[&id].disk).map_err(in_words)?;
        let name = self.checkpoints[&id].name.clone();
        let wanted = match name {
            Some(name) if self.rng.chance(1, 2) => CheckpointRef::Name(name),
            _ => CheckpointRef::Id(id),
        };
        self.trace.push(format!("delete {} ({id})", wanted.shown(&disk.path())));
        let deleted = RefCell::new(BTreeSet::new());
        self.apply(
            &Allowed { must: true, ..Allowed::nothing() },
            |change| {
                // Of two of one name the disk's chain says which.
                deleted.borrow_mut().insert(change.survey()?.find(&disk, &wanted)?);
                Ok(change.delete(&[(disk, wanted)])?.0)
            },
            &deleted,
        )
    }

    fn collect(&mut self) -> Result<(), String> {
        let (unnamed, max) = (self.rng.chance(1, 3), if self.rng.chance(1, 3) { 1 } else { usize::MAX });
        self.trace.push(format!("collect, unnamed {unnamed}, up to {max}"));
        let nameless = self.checkpoints.iter().filter(|(_, one)| unnamed && one.name.is_none());
        let may_go: BTreeSet<LayerId> = nameless.map(|(id, _)| *id).collect();
        self.apply(
            &Allowed { deleted: may_go, ..Allowed::nothing() },
            |change| Ok(change.collect(unnamed, max)?.0),
            &RefCell::default(),
        )
    }

    fn forget(&mut self) -> Result<(), String> {
        let keeps = ["last:0", "last:2", "hourly:3", "hourly:2,daily:2"];
        let keep = self.rng.chance(2, 3).then(|| self.rng.pick(&keeps));
        let policy = Policy {
            keep: keep.map(str::parse).transpose()?,
            depth_max: self.rng.chance(1, 3).then(|| 1 + self.rng.index(4)),
            waste_max: None,
        };
        let disk = if self.rng.chance(1, 2) { self.some_disk() } else { None };
        let disk = disk.map(|name| self.place.disk(&name)).transpose().map_err(in_words)?;
        self.trace.push(format!("forget {policy:?} of {disk:?}"));
        let nameless = self.checkpoints.iter().filter(|(_, one)| one.name.is_none() && !one.is_nameless);
        let may_go: BTreeSet<LayerId> = nameless.map(|(id, _)| *id).collect();
        let deleted = RefCell::default();
        self.apply(
            &Allowed { deleted: may_go, ..Allowed::nothing() },
            |change| Ok(change.forget(disk.as_ref(), &policy)?.0),
            &deleted,
        )
    }

    /// A command that switches no disk.
    fn apply(
        &mut self,
        allowed: &Allowed,
        plan: impl FnOnce(&Change) -> Result<crate::Plan, Error>,
        more: &RefCell<BTreeSet<LayerId>>,
    ) -> Result<(), String> {
        self.choose_fate(CHANGES[0]);
        let place = self.place.clone();
        let result = Change::begin(&place, Duration::ZERO)
            .and_then(|change| plan(&change).and_then(|plan| change.apply(&plan)));
        let ended = self.ended(&result, false)?;
        self.recover(&result)?;
        let mut allowed = allowed.clone();
        allowed.deleted.extend(more.borrow().iter());
        allowed.must &= ended == Ended::Done;
        allowed.is_certain = ended == Ended::Done;
        if ended == Ended::Refused && !matches!(result, Err(Error::Io { .. })) {
            allowed = Allowed::nothing();
        }
        self.check(&allowed)
    }

    /// A merge begins or ends; between the two other commands run.
    fn merge(&mut self) -> Result<(), String> {
        match self.merging.take() {
            Some(merging) => self.end_merge(merging),
            None => self.begin_merge(),
        }
    }

    fn begin_merge(&mut self) -> Result<(), String> {
        self.trace.push("begin a merge".into());
        self.choose_fate(CHANGES[2]);
        let place = self.place.clone();
        let begun = Change::begin(&place, Duration::ZERO).and_then(|change| {
            let oldest = change.merges()?.into_iter().next();
            oldest.map_or(Ok(None), |merge| change.begin_merge(&merge))
        });
        let mut made = Ok(());
        let result = begun.map(|merging| {
            if let Some(merging) = merging {
                made = run(make_merged(&self.files, &merging.at(), merging.merged()));
                self.merging = Some(merging);
            }
        });
        let had_fate = self.files.set_fate(None).is_some();
        let has_failed = made.is_err() && !had_fate;
        let ended = self.ended(&result, false)?;
        if ended == Ended::Killed {
            self.merging = None;
        } else if let Err(error) = made {
            if let Some(merging) = self.merging.take() {
                merging.abandon();
            }
            if !has_failed {
                return Err(format!("layers cannot be merged: {error}"));
            }
        }
        self.recover(&result)?;
        self.check(&Allowed::nothing())
    }

    fn end_merge(&mut self, merging: crate::Merging) -> Result<(), String> {
        self.trace.push(format!(
            "end the merge of {:?} into {}",
            merging.merge().going,
            merging.merge().into
        ));
        self.choose_fate(CHANGES[0]);
        let result = merging.put_in_place(Duration::ZERO);
        if result.as_ref().is_ok_and(|placed| *placed) {
            self.counts.merges += 1;
        }
        if self.files.is_dead() {
            drop(merging);
        } else {
            self.files.set_fate(None);
            merging.abandon();
        }
        let result = result.map(drop);
        self.ended(&result, false)?;
        self.recover(&result)?;
        self.check(&Allowed::nothing())
    }

    fn serve(&mut self) -> Result<(), String> {
        let Some(disk) = self.some_disk() else { return Ok(()) };
        if self.served.remove(&disk).is_some() {
            self.trace.push(format!("{disk} is not served any more"));
            return Ok(());
        }
        self.trace.push(format!("{disk} is served"));
        let chain = run(Chain::open(&self.files, &self.path(&disk), Access::Write))?;
        self.served.insert(disk, chain);
        Ok(())
    }

    fn write(&mut self) -> Result<(), String> {
        let Some(disk) = self.some_disk() else { return Ok(()) };
        if self.served.contains_key(&disk) {
            return self.write_served();
        }
        self.trace.push(format!("write {disk}"));
        self.write_offline(&disk)
    }

    fn resize(&mut self) -> Result<(), String> {
        let Some(disk) = self.some_disk().filter(|disk| !self.served.contains_key(disk)) else {
            return Ok(());
        };
        let sectors = 8 + self.rng.below(40);
        self.trace.push(format!("resize {disk} to {sectors}"));
        let chain = run(Chain::open(&self.files, &self.path(&disk), Access::Write))?;
        // Version 2 cannot hide the rest of a backing file.
        let is_resized = run(chain.resize(sectors)).is_ok();
        run(chain.close())?;
        if let Some(content) = self.disks.get_mut(&disk).filter(|_| is_resized) {
            content.resize(usize::try_from(sectors).map_err(in_words)?, 0);
        }
        self.check(&Allowed::nothing())
    }

    fn lose_manifest(&mut self) -> Result<(), String> {
        use crate::files::FileSystem;

        if self.rng.chance(1, 2) || self.files.remove(&self.place.manifest()).is_err() {
            return Ok(());
        }
        self.files.sync(&self.place.layers()).map_err(in_words)?;
        self.counts.lost_manifests += 1;
        self.trace.push("the manifest is lost".into());
        for (id, checkpoint) in &mut self.checkpoints {
            let is_whole = Named::by(&self.files, &self.place.layer(*id)).is_ok();
            checkpoint.is_broken |= checkpoint.deleted && !is_whole;
            (checkpoint.name, checkpoint.deleted, checkpoint.is_nameless) = (None, false, true);
        }
        self.check(&Allowed::nothing())
    }

    fn remove_disk(&mut self) -> Result<(), String> {
        use crate::files::FileSystem;

        let Some(disk) = self.some_disk().filter(|disk| !self.served.contains_key(disk)) else {
            return Ok(());
        };
        self.trace.push(format!("{disk} is removed"));
        self.files.remove(&self.path(&disk)).map_err(in_words)?;
        self.files.sync(self.place.directory()).map_err(in_words)?;
        self.disks.remove(&disk);
        self.check(&Allowed::nothing())
    }

    /// Another process opens a layer, or closes what it had open.
    fn read_a_layer(&mut self) -> Result<(), String> {
        let Some(id) = self.some_checkpoint() else { return Ok(()) };
        if self.readers.pop().is_none() {
            self.trace.push(format!("a process opens {id}"));
            let chain = run(Chain::open(&self.files, &self.place.layer(id), Access::Look))?;
            self.readers.extend(chain.nodes.iter().map(|node| self.files.user(*node, false)));
        }
        Ok(())
    }

    /// `qemu-img create -b layers/ID.qcow2`, with clusters and a size of its own.
    fn fork_by_another_program(&mut self) -> Result<(), String> {
        let Some(id) = self.some_layer().filter(|_| self.disks.len() < DISKS_MAX) else {
            return Ok(());
        };
        let name = format!("q{}.qcow2", self.rng.below(9));
        let path = self.path(&name);
        if self.files.exists(&path) {
            return Ok(());
        }
        let shape = self.shape();
        self.trace.push(format!("{name} is made over {id}, {shape:?}"));
        let backing = (Place::name_in_images(id), Some("qcow2".to_owned()));
        run(make(&self.files, &path, (&shape, 0o644), Some(backing)))?;
        let mut content = self.checkpoints[&id].content.clone();
        content.resize(usize::try_from(shape.disk_bytes / 512).map_err(in_words)?, 0);
        self.disks.insert(name, content);
        self.check(&Allowed::nothing())
    }

    /// How a command ended; an error that nothing in the simulation explains is a fault.
    pub fn ended(&mut self, result: &Result<(), Error>, is_server: bool) -> Result<Ended, String> {
        self.files.set_fate(None);
        let has_failed = self.files.has_failed();
        if self.end_process(is_server).is_some() {
            return Ok(Ended::Killed);
        }
        match result {
            Ok(()) => {
                self.counts.done += 1;
                Ok(Ended::Done)
            }
            Err(Error::Unfinished { .. }) if has_failed => Ok(Ended::Done),
            Err(Error::Io { .. }) if has_failed => {
                self.counts.failures += 1;
                self.trace.push("    fails for want of room".into());
                Ok(Ended::Refused)
            }
            Err(
                Error::Invalid(_)
                | Error::NameTaken { .. }
                | Error::NoCheckpoint { .. }
                | Error::NoLineage { .. }
                | Error::TooLong { .. }
                | Error::Busy { .. },
            ) => Ok(if has_failed { Ended::Killed } else { Ended::Refused }),
            Err(error) => Err(format!("a command fails: {error:?}")),
        }
    }
}

/// How a command ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ended {
    Done,
    Refused,
    /// Each disk is as before or as after it; also where it failed, and to undo it failed, too.
    Killed,
}
