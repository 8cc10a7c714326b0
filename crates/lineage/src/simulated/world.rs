//! A lineage in the simulation: its files, the processes at work on it, and the model of what its disks and checkpoints read as.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use qcow2_layout::{Compression, Version};
use sim::Rng;

use super::Scope;
use super::files::{Fate, Files, User, mount};
use super::images::{Access, Chain, Content, Named, SECTOR, make, run};
use crate::files::{FileSystem, LockGuard};
use crate::{CheckpointName, LayerId, Merging, Place, Shape};

/// Where the lineage is.
pub const DIRECTORY: &str = "/l";
/// Disks of a lineage at most: more find nothing new.
pub const DISKS_MAX: usize = 6;

/// First sector, how many, and what is written to them.
pub type Write = (u64, u64, u32);

/// What a checkpoint is.
#[derive(Clone, Debug)]
pub struct Checkpoint {
    pub disk: String,
    pub name: Option<CheckpointName>,
    pub content: Content,
    pub deleted: bool,
    /// Its name before it was deleted, by a command that did not end: a power cut may take that back.
    pub undeleted: Option<Option<CheckpointName>>,
    /// What the manifest said of it was lost.
    pub is_nameless: bool,
    /// It was deleted, a power cut took back its removal and not that of the layer below, and the manifest, which said so, was lost.
    pub is_broken: bool,
}

/// What ended the process of a command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Crash {
    Kill,
    PowerCut,
}

/// A layer that a command is sealing.
#[derive(Clone, Debug)]
pub struct Sealing {
    pub disk: String,
    pub id: LayerId,
    pub name: Option<CheckpointName>,
    /// What the disk reads as behind a rollback.
    pub to: Option<Content>,
    /// What the layer reads as, from the switch on.
    pub sealed: Option<Content>,
}

/// What was looked at.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    pub commands: u64,
    pub kills: u64,
    pub power_cuts: u64,
    pub failures: u64,
    pub merges: u64,
    pub done: u64,
    pub lost_manifests: u64,
    pub guest_writes: u64,
}

impl Counts {
    pub fn add(&mut self, other: &Self) {
        self.commands += other.commands;
        self.kills += other.kills;
        self.power_cuts += other.power_cuts;
        self.failures += other.failures;
        self.merges += other.merges;
        self.done += other.done;
        self.lost_manifests += other.lost_manifests;
        self.guest_writes += other.guest_writes;
    }
}

impl fmt::Display for Counts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { commands, done, kills, power_cuts, failures, .. } = self;
        let Self { merges, lost_manifests, guest_writes, .. } = self;
        write!(
            f,
            "{commands} commands on lineages, {done} of them done, {kills} killed, {power_cuts} cut off from power, "
        )?;
        write!(
            f,
            "{failures} without room; {merges} merges, {lost_manifests} lost manifests, {guest_writes} writes of guests beside"
        )
    }
}

#[derive(Debug)]
pub struct World {
    pub files: Files,
    pub rng: Rng,
    pub place: Place,
    pub disks: BTreeMap<String, Content>,
    pub checkpoints: BTreeMap<LayerId, Checkpoint>,
    /// Forks of commands that were killed: nothing has made their names durable yet, and nothing was reported done.
    pub fragile: BTreeSet<String>,
    /// Disks that a server has open.
    pub served: BTreeMap<String, Chain>,
    /// Layers that another process has open.
    pub readers: Vec<User>,
    /// A merge of another manager, which is copied.
    pub merging: Option<Merging>,
    /// Now, since 1970.
    pub time: Duration,
    /// Nothing happens to processes.
    pub is_calm: bool,
    /// What its commands are.
    pub scope: Scope,
    pub trace: Vec<String>,
    pub counts: Counts,
    /// What chains of files read as that have not changed since.
    pub known: BTreeMap<Vec<(u64, i64)>, Content>,
    stamp: u32,
}

/// A world that commands reach as the host of their changes.
pub struct Machine<'a> {
    pub world: RefCell<&'a mut World>,
    pub sealings: RefCell<Vec<Sealing>>,
    /// What the process keeps others out of, but for the disks that it serves.
    pub held: RefCell<Vec<LockGuard>>,
}

impl World {
    /// A directory with some disks, of which none has a checkpoint.
    pub fn new(seed: u64) -> Result<Self, String> {
        let mut rng = Rng::new(seed);
        let files = Files::new(rng.next_u64());
        mount(Some(files.clone()));
        files.make_directory(Path::new(DIRECTORY)).map_err(super::images::in_words)?;
        files.sync(Path::new("/")).map_err(super::images::in_words)?;
        let place = Place::of(Path::new(DIRECTORY)).map_err(super::images::in_words)?;
        let mut world = Self {
            files,
            rng,
            place,
            disks: BTreeMap::new(),
            checkpoints: BTreeMap::new(),
            fragile: BTreeSet::new(),
            served: BTreeMap::new(),
            readers: Vec::new(),
            merging: None,
            time: Duration::from_secs(1_800_000_000),
            is_calm: false,
            scope: Scope::Any,
            trace: Vec::new(),
            counts: Counts::default(),
            known: BTreeMap::new(),
            stamp: 0,
        };
        for number in 0..=world.rng.below(2) {
            world.make_disk(&format!("d{number}.qcow2"))?;
        }
        Ok(world)
    }

    /// A disk of any shape, perhaps over a base beside it.
    fn make_disk(&mut self, name: &str) -> Result<(), String> {
        let shape = self.shape();
        let base = match self.rng.below(4) {
            0 => Some((format!("base-{name}"), "qcow2")),
            1 => Some((format!("base-{name}.raw"), "raw")),
            _ => None,
        };
        let mut content = Content::new();
        if let Some((base, format)) = &base {
            content = self.make_base(base, *format == "raw")?;
        }
        let path = self.path(name);
        let named = base.map(|(name, format)| (name, Some(format.to_owned())));
        run(make(&self.files, &path, (&shape, 0o644), named))?;
        content.resize(usize::try_from(shape.disk_bytes / SECTOR).unwrap_or(0), 0);
        self.disks.insert(name.to_owned(), content);
        self.write_offline(name)
    }

    fn make_base(&mut self, name: &str, is_raw: bool) -> Result<Content, String> {
        let (path, shape) = (self.path(name), self.shape());
        let stamp = self.next_stamp();
        let sectors = usize::try_from(shape.disk_bytes / SECTOR).unwrap_or(0);
        if is_raw {
            let bytes = stamp.to_le_bytes().repeat(sectors * 128);
            let node = self.files.make_file(&path, 0o644).map_err(super::images::in_words)?;
            self.files.write(node, 0, &bytes).map_err(super::images::in_words)?;
            self.files.sync_node(node).map_err(super::images::in_words)?;
        } else {
            run(async {
                make(&self.files, &path, (&shape, 0o644), None).await?;
                let chain = Chain::open(&self.files, &path, Access::Write).await?;
                chain.write(0, sectors as u64, stamp).await?;
                chain.close().await
            })?;
        }
        Ok(vec![stamp; sectors])
    }

    /// Clusters, refcounts, version, compression and size of an image.
    pub fn shape(&mut self) -> Shape {
        let rng = &mut self.rng;
        let version = if rng.chance(1, 6) { Version::V2 } else { Version::V3 };
        let extended_l2 = version == Version::V3 && rng.chance(1, 12);
        let cluster_bytes = if extended_l2 { 16 << 10 } else { rng.pick(&[512, 1024, 2048, 4096]) };
        Shape {
            disk_bytes: (8 + rng.below(40)) * SECTOR,
            version,
            cluster_bytes,
            refcount_bits: if version == Version::V2 { 16 } else { rng.pick(&[1, 8, 16, 64]) },
            extended_l2,
            compression: match version {
                Version::V3 if rng.chance(1, 4) => Compression::Zstd,
                _ => Compression::Deflate,
            },
        }
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.place.directory().join(name)
    }

    fn next_stamp(&mut self) -> u32 {
        self.stamp += 1;
        self.stamp
    }

    /// Sectors and what is written to them.
    pub fn some_write(&mut self, sectors: u64) -> Write {
        let first = self.rng.below(sectors);
        let count = (1 + self.rng.below(12)).min(sectors - first);
        let stamp = if self.rng.chance(1, 5) { 0 } else { self.next_stamp() };
        (first, count, stamp)
    }

    pub fn note(&mut self, disk: &str, (first, count, stamp): Write) {
        let at = |sector| usize::try_from(sector).unwrap_or(usize::MAX);
        if let Some(content) = self.disks.get_mut(disk) {
            content[at(first)..at(first + count)].fill(stamp);
        }
    }

    /// A program writes a disk that no other process has open.
    pub fn write_offline(&mut self, disk: &str) -> Result<(), String> {
        let chain = run(Chain::open(&self.files, &self.path(disk), Access::Write))?;
        for _ in 0..1 + self.rng.below(3) {
            let write = self.some_write(chain.sectors());
            run(chain.write(write.0, write.1, write.2))?;
            self.note(disk, write);
        }
        run(chain.close())
    }

    /// Guests write to a disk that is served, and flush: while a command is at work on it, say.
    pub fn write_served(&mut self) -> Result<(), String> {
        let names: Vec<String> = self.served.keys().cloned().collect();
        if names.is_empty() || self.files.is_dead() {
            return Ok(());
        }
        let name = &names[self.rng.index(names.len())];
        let Some(sectors) = self.served.get(name).map(Chain::sectors) else { return Ok(()) };
        let write = self.some_write(sectors);
        // Crashes inside writes are those of the engine's own simulation.
        let fate = self.files.set_fate(None);
        let written =
            self.served.get(name).map_or(Ok(()), |chain| run(chain.write(write.0, write.1, write.2)));
        self.files.set_fate(fate);
        self.note(name, write);
        self.counts.guest_writes += 1;
        written
    }

    /// Decides what becomes of the process of a command.
    pub fn choose_fate(&mut self, changes: u64) {
        let at = self.rng.below(changes);
        let fate = match self.rng.below(8) {
            _ if self.is_calm => None,
            0..2 => None,
            2..4 if self.scope == Scope::Any => None,
            2..4 if self.scope == Scope::Transactions => Some((at, Fate::NoSpace)),
            2..7 => Some((at, Fate::Killed)),
            _ => Some((at, Fate::NoSpace)),
        };
        self.files.set_fate(fate);
    }

    /// The process of a command has ended. What ended with it, if it was killed: the server, if it was that; everything, if the power was cut.
    pub fn end_process(&mut self, is_server: bool) -> Option<Crash> {
        self.counts.commands += 1;
        let is_dead = self.files.begin_process();
        if !is_dead {
            return None;
        }
        let crash = if self.rng.chance(1, 2) { Crash::Kill } else { Crash::PowerCut };
        match crash {
            Crash::Kill => self.counts.kills += 1,
            Crash::PowerCut => {
                self.counts.power_cuts += 1;
                (self.readers, self.merging) = (Vec::new(), None);
                self.known.clear();
            }
        }
        if is_server || crash == Crash::PowerCut {
            self.served.clear();
        }
        if crash == Crash::PowerCut {
            self.files.cut_power();
        }
        self.trace.push(format!("    {crash:?}"));
        Some(crash)
    }

    /// What an image reads as.
    pub fn read(&mut self, path: &Path) -> Result<Content, String> {
        let named = Named::by(&self.files, path)?;
        let files: Vec<(u64, i64)> =
            named.nodes.iter().map(|node| (*node, self.files.written(*node))).collect();
        if let Some(known) = self.known.get(&files) {
            return Ok(known.clone());
        }
        let chain = run(Chain::open(&self.files, path, Access::Look))?;
        let content = run(chain.read()).map_err(|error| format!("{}: {error}", path.display()))?;
        self.known.insert(files, content.clone());
        Ok(content)
    }

    /// Layers that are there, by their names.
    pub fn layers(&self) -> BTreeSet<LayerId> {
        let names = self.files.names(&self.place.layers()).unwrap_or_default();
        names.iter().filter_map(|name| LayerId::of_file_name(name.to_str()?)).collect()
    }
}
