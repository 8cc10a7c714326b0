//! Checkpoints, rollbacks and forks of one moment, at random.

use std::cell::RefCell;
use std::pin::pin;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use super::commands::{CHANGES, Ended};
use super::images::{Access, Chain, in_words, run};
use super::law::Allowed;
use super::world::{Checkpoint, DISKS_MAX, Machine, Sealing, World, Write};
use crate::{
    Action, Change, CheckpointName, CheckpointRef, DiskPlace, Error, Labels, LayerId, NewCheckpoint,
};

/// Names of checkpoints: few, so that they are taken.
const NAMES: [&str; 4] = ["a", "b", "c", "d"];

/// What was asked of a lineage at one moment, and what comes of it.
#[derive(Default)]
struct Transaction {
    actions: Vec<Action>,
    sealings: Vec<Sealing>,
    /// New disks, and what they are to read as.
    forks: Vec<(String, Vec<u32>)>,
}

impl Transaction {
    fn add_checkpoint(&mut self, disk: DiskPlace, new: NewCheckpoint) {
        let (id, name) = (new.id, new.name.clone());
        self.sealings.push(Sealing { disk: disk.name.clone(), id, name, to: None, sealed: None });
        self.actions.push(Action::Checkpoint { disk, new });
    }
}

impl World {
    /// Checkpoints of one disk, one over the other, of which some are deleted: what is merged.
    pub fn prepare_chain(&mut self) -> Result<(), String> {
        let Some(disk) = self.some_disk() else { return Ok(()) };
        self.is_calm = true;
        for _ in 0..3 + self.rng.below(3) {
            self.write_offline(&disk)?;
            let new = NewCheckpoint { name: None, ..self.new_checkpoint()? };
            let mut asked = Transaction::default();
            asked.add_checkpoint(self.place.disk(&disk).map_err(in_words)?, new);
            self.do_all(asked)?;
        }
        for _ in 0..2 {
            self.delete()?;
        }
        self.is_calm = false;
        Ok(())
    }

    fn new_checkpoint(&mut self) -> Result<NewCheckpoint, String> {
        let name = self.rng.chance(1, 2).then(|| self.rng.pick(&NAMES));
        Ok(NewCheckpoint {
            id: LayerId::new().map_err(in_words)?,
            name: name.map(CheckpointName::parse).transpose().map_err(in_words)?,
            labels: Labels::default(),
            time: self.time,
        })
    }

    /// Checkpoints, rollbacks and forks of one moment.
    pub fn transact(&mut self) -> Result<(), String> {
        let mut asked = Transaction::default();
        for _ in 0..1 + self.rng.below(3) {
            self.add_action(&mut asked)?;
        }
        if asked.actions.is_empty() { Ok(()) } else { self.do_all(asked) }
    }

    fn do_all(&mut self, asked: Transaction) -> Result<(), String> {
        let is_first = asked.actions.iter().any(|action| matches!(action, Action::Checkpoint { .. }));
        let is_server = asked.sealings.iter().any(|sealing| self.served.contains_key(&sealing.disk));
        let shown: Vec<String> = asked.actions.iter().map(shown).collect();
        self.trace.push(shown.join("; "));
        let changes = self.rng.pick(&CHANGES);
        self.choose_fate(changes);
        let place = self.place.clone();
        let machine = Machine {
            world: RefCell::new(self),
            sealings: RefCell::new(asked.sealings),
            held: RefCell::default(),
        };
        let result = (|| {
            let change = match is_first {
                true => Change::begin_first(&place, Duration::ZERO),
                false => Change::begin(&place, Duration::ZERO),
            }?;
            machine.hold_disks()?;
            let plan = change.plan(&asked.actions)?;
            // It waits for nothing but that what it does at the same time takes turns.
            let mut run = pin!(change.run(plan, &machine));
            loop {
                if let Poll::Ready(done) = run.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
                    return done.map(drop);
                }
            }
        })();
        let Machine { sealings, held, .. } = machine;
        drop(held);
        let sealings = sealings.into_inner();
        self.settle_transaction(result, sealings, asked.forks, is_server)
    }

    fn add_action(&mut self, asked: &mut Transaction) -> Result<(), String> {
        let Some(disk) = self.some_disk() else { return Ok(()) };
        let named = |world: &Self, name: &str| world.place.disk(name).map_err(in_words);
        let is_new = asked.sealings.iter().all(|sealing| sealing.disk != disk);
        match (self.rng.below(4), self.some_layer()) {
            (0, Some(id)) if self.disks.len() + asked.forks.len() < DISKS_MAX => {
                let content = self.checkpoints[&id].content.clone();
                let of = named(self, &self.checkpoints[&id].disk.clone())?;
                let name = format!("f{}.qcow2", self.rng.below(9));
                if self.files.exists(&self.path(&name)) || asked.forks.iter().any(|(fork, _)| *fork == name) {
                    return Ok(());
                }
                let disks = vec![named(self, &name)?];
                asked.actions.push(Action::Fork { of, to: CheckpointRef::Id(id), disks });
                asked.forks.push((name, content));
            }
            (1, Some(id)) if is_new => {
                let to = self.checkpoints[&id].content.clone();
                // Of another size it is refused by the graph, which is not here.
                if self.served.contains_key(&disk) && to.len() != self.disks[&disk].len() {
                    return Ok(());
                }
                let new = self.new_checkpoint()?;
                let of = named(self, &self.checkpoints[&id].disk.clone())?;
                let sealing =
                    Sealing { disk: disk.clone(), id: new.id, name: None, to: Some(to), sealed: None };
                let new = NewCheckpoint { name: None, ..new };
                let disk = named(self, &disk)?;
                asked.actions.push(Action::Rollback { disk, of, to: CheckpointRef::Id(id), new });
                asked.sealings.push(sealing);
            }
            _ if is_new => {
                let new = self.new_checkpoint()?;
                asked.add_checkpoint(named(self, &disk)?, new);
            }
            _ => {}
        }
        Ok(())
    }

    /// After a kill a server opens a disk before any other command runs; a guest writes and flushes, and perhaps the power is cut. Gives what was written.
    fn write_before_recovery(
        &mut self,
        forks: &[(String, Vec<u32>)],
    ) -> Result<Option<(String, Write)>, String> {
        let forks = forks.iter().map(|(name, _)| name).filter(|name| self.files.exists(&self.path(name)));
        let disks: Vec<String> =
            self.disks.keys().chain(forks).filter(|name| !self.served.contains_key(*name)).cloned().collect();
        if disks.is_empty() {
            return Ok(None);
        }
        let disk = disks[self.rng.index(disks.len())].clone();
        let chain = run(Chain::open(&self.files, &self.path(&disk), Access::Write))?;
        let write = self.some_write(chain.sectors());
        run(chain.write(write.0, write.1, write.2))?;
        drop(chain);
        self.trace.push(format!("    {disk} is written before the next command"));
        if self.rng.chance(1, 2) {
            self.cut_power();
        }
        Ok(Some((disk, write)))
    }

    fn settle_transaction(
        &mut self,
        result: Result<(), Error>,
        sealings: Vec<Sealing>,
        forks: Vec<(String, Vec<u32>)>,
        is_server: bool,
    ) -> Result<(), String> {
        let outcome = self.ended(&result, is_server)?;
        let late = match outcome {
            Ended::Killed if self.rng.chance(1, 4) => self.write_before_recovery(&forks)?,
            _ => None,
        };
        // What was begun is completed or undone by the next command, whatever it is.
        self.recover(&result)?;
        let layers = self.layers();
        let expected = |exists: bool| match outcome {
            Ended::Done => exists,
            Ended::Refused => !exists,
            Ended::Killed => true,
        };
        for Sealing { disk, id, name, to, sealed } in sealings {
            let exists = layers.contains(&id);
            if !expected(exists) {
                return Err(format!("{result:?}, and layer {id} is there: {exists}"));
            }
            if !exists && sealed.is_some() {
                return Err(format!("guests were switched to an overlay of {id}, which is not there"));
            }
            if !exists {
                continue;
            }
            let content = match sealed {
                Some(content) => Some(content),
                None => {
                    let before = self.disks.get(&disk).cloned();
                    if let Some(to) = to {
                        self.disks.insert(disk.clone(), to);
                    }
                    before
                }
            };
            let content = content.ok_or("a layer of no disk")?;
            let checkpoint = Checkpoint {
                disk,
                name,
                content,
                deleted: false,
                undeleted: None,
                is_nameless: false,
                is_broken: false,
            };
            self.checkpoints.insert(id, checkpoint);
        }
        for (name, content) in forks {
            let exists = self.files.exists(&self.path(&name));
            if !expected(exists) {
                return Err(format!("{result:?}, and {name} is there: {exists}"));
            }
            if exists {
                if outcome == Ended::Killed {
                    self.fragile.insert(name.clone());
                }
                self.disks.insert(name, content);
            }
        }
        if outcome == Ended::Done {
            self.fragile.clear();
        }
        if let Some((disk, write)) = late {
            self.fragile.remove(&disk);
            self.note(&disk, write);
        }
        self.check(&Allowed::nothing())
    }
}

fn shown(action: &Action) -> String {
    match action {
        Action::Checkpoint { disk, new } => format!("checkpoint {}@{}", disk.name, new.called()),
        Action::Rollback { disk, to, new, .. } => {
            format!("rollback {} to {to}, sealing {}", disk.name, new.id)
        }
        Action::Fork { to, disks, .. } => format!("fork {to} as {}", disks[0].name),
    }
}
