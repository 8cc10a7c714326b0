//! A lineage in a scratch directory; what its disks read as, by the engine.

use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use cowhand::{Disk, Existing, Format, NewImage, OpenOptions, create};
use futures_executor::block_on;
use lineage::{
    Action, Change, CheckpointName, CheckpointRef, DiskPlace, Error, Host, Labels, LayerId, MergedLayer,
    NewCheckpoint, NewOverlay, Place, Plan, Step, Switched,
};

pub const DISK_BYTES: u64 = 1 << 20;

/// Makes overlays; no process has the disks open.
pub struct Offline;

impl Host for Offline {
    type Error = Error;

    async fn make_overlay(&self, at: &Path, overlay: &NewOverlay) -> Result<(), Error> {
        make_overlay(at, overlay);
        Ok(())
    }

    async fn switch(&self, _disks: &[Switched]) -> Result<(), Error> {
        Ok(())
    }

    async fn close_sealed(&self, _disks: &[Switched]) {}
}

pub fn make_overlay(at: &Path, overlay: &NewOverlay) {
    let mut image = NewImage::overlay(overlay.shape.disk_bytes, &overlay.backing_name, Format::Qcow2);
    image.options.cluster_size = overlay.shape.cluster_bytes;
    image.existing = Existing::Refuse;
    create(at, image).wait().unwrap();
    std::fs::set_permissions(at, std::fs::Permissions::from_mode(overlay.access.mode)).unwrap();
}

/// Made of what the uppermost layer reads as where that is not what it is backed by: slow, and without the engine's maps.
pub fn make_merged(at: &Path, merged: &MergedLayer) {
    let mut image = NewImage::qcow2(merged.shape.disk_bytes);
    image.options.cluster_size = merged.shape.cluster_bytes;
    if let Some((name, format)) = &merged.backing {
        (image.options.backing_file, image.options.backing_format) = (Some(name.clone()), format.clone());
    }
    image.existing = Existing::Refuse;
    create(at, image).wait().unwrap();
    let source = OpenOptions::new(&merged.top).read_only(true).open().wait().unwrap();
    let target = Disk::open(at).wait().unwrap();
    let (mut wanted, mut found) = ([0; 4096], [0; 4096]);
    for offset in (0..merged.shape.disk_bytes).step_by(wanted.len()) {
        source.read_at(offset, &mut wanted).unwrap();
        target.read_at(offset, &mut found).unwrap();
        if wanted != found {
            target.write_at(offset, &wanted).unwrap();
        }
    }
    source.close().wait().unwrap();
    target.close().wait().unwrap();
}

pub struct World {
    pub scratch: tempfile::TempDir,
}

impl World {
    /// With a disk `d.qcow2` whose content is 1.
    pub fn new() -> Self {
        let world = Self { scratch: tempfile::tempdir().unwrap() };
        create(world.path("d.qcow2"), NewImage::qcow2(DISK_BYTES)).wait().unwrap();
        world.write("d.qcow2", 1);
        world
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.scratch.path().join(name)
    }

    pub fn place(&self) -> Place {
        Place::of(self.scratch.path()).unwrap()
    }

    pub fn disk(&self, name: &str) -> DiskPlace {
        self.place().disk(name).unwrap()
    }

    pub fn write(&self, name: &str, content: u8) {
        let disk = Disk::open(self.path(name)).wait().unwrap();
        disk.write_at(u64::from(content) * 4096, &[content; 4096]).unwrap();
        disk.write_at(0, &[content; 512]).unwrap();
        disk.close().wait().unwrap();
    }

    pub fn read(&self, name: &str) -> u8 {
        read(&self.path(name))
    }

    pub fn begin(&self) -> Change {
        Change::begin_first(&self.place(), Duration::ZERO).unwrap()
    }

    pub fn checkpoint(&self, disk: &str, name: &str) -> LayerId {
        let new = new_checkpoint(Some(name));
        let id = new.id;
        self.act(&[self.checkpoint_of(disk, new)]);
        id
    }

    pub fn rollback(&self, disk: &str, to: &str) -> LayerId {
        let new = new_checkpoint(None);
        let id = new.id;
        self.act(&[self.rollback_of(disk, to, new)]);
        id
    }

    pub fn fork(&self, of: &str, checkpoint: &str, new: &[&str]) {
        self.act(&[self.fork_of(of, checkpoint, new)]);
    }

    /// Deletes checkpoints without removing layers that are needed.
    pub fn delete(&self, disk: &str, names: &[&str]) {
        let change = self.begin();
        let names: Vec<_> = names.iter().map(|name| (self.disk(disk), named(name))).collect();
        let (plan, _) = change.delete(&names).unwrap();
        run(change, plan);
    }

    pub fn act(&self, actions: &[Action]) {
        let change = self.begin();
        let plan = change.plan(actions).unwrap();
        run(change, plan);
    }

    pub fn checkpoint_of(&self, disk: &str, new: NewCheckpoint) -> Action {
        Action::Checkpoint { disk: self.disk(disk), new }
    }

    pub fn rollback_of(&self, disk: &str, to: &str, new: NewCheckpoint) -> Action {
        Action::Rollback { disk: self.disk(disk), of: self.disk(disk), to: named(to), new }
    }

    pub fn fork_of(&self, of: &str, checkpoint: &str, new: &[&str]) -> Action {
        let disks = new.iter().map(|name| self.disk(name)).collect();
        Action::Fork { of: self.disk(of), to: named(checkpoint), disks }
    }
}

/// The content of a disk; its blocks below that are there as well.
pub fn read(path: &Path) -> u8 {
    let disk = OpenOptions::new(path).read_only(true).open().wait().unwrap();
    let mut bytes = [0; 512];
    disk.read_at(0, &mut bytes).unwrap();
    let mut block = [0; 4096];
    disk.read_at(u64::from(bytes[0]) * 4096, &mut block).unwrap();
    assert!(block.iter().all(|byte| *byte == bytes[0]), "{}: a block is lost", path.display());
    disk.close().wait().unwrap();
    bytes[0]
}

pub fn named(name: &str) -> CheckpointRef {
    CheckpointRef::parse(name).unwrap()
}

pub fn new_checkpoint(name: Option<&str>) -> NewCheckpoint {
    NewCheckpoint {
        id: LayerId::new().unwrap(),
        name: name.map(|name| CheckpointName::parse(name).unwrap()),
        labels: Labels::default(),
        time: Duration::from_secs(1_800_000_000),
    }
}

pub fn run(change: Change, plan: Plan) {
    block_on(change.run(plan, &Offline)).unwrap();
}

/// Does one step.
pub fn step(step: &Step) {
    match step {
        Step::MakeOverlay { at, overlay } => make_overlay(at, overlay),
        step => step.run().unwrap(),
    }
}

/// Mode of a file.
pub fn mode(path: &Path) -> u32 {
    path.metadata().unwrap().permissions().mode() & 0o7777
}
