//! What is simulated: each kind of job.

use std::rc::Rc;
use std::sync::Arc;

use block::Block;
use qcow2::{Files, Host, Options, Qcow2};
use sim::{Abilities, DiscardedReads, Model, Target, World};
use storage::{Capabilities, Storage};

use super::disk::{Disk, Parts};
use super::images::{BASE, CLUSTER, COPY, FILES, MIDDLE, SIZE, TOP, images, number};
use super::judge;
use super::machine::Machine;
use super::note::{BYTES, NOTE, Note};
use crate::harness;

/// What a job does with the chain of top, middle and base.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// An overlay is put over it.
    Snapshot,
    /// The top takes over everything.
    Stream,
    /// The top takes over the middle.
    StreamToBase,
    /// The middle takes over the base, below the top.
    StreamMiddle,
    /// The middle goes into the base, below the top.
    CommitMiddle,
    /// Top and middle go into the base, which then backs the disk.
    CommitTop,
    /// All of it is copied, and the disk then is backed by the copy.
    Mirror,
    /// Likewise; guests write to both from the beginning.
    MirrorBlocking,
    /// What it is at the start is copied.
    Backup,
}

/// A disk with one kind of job.
pub struct JobTarget(pub Kind);

/// How images of guests are open.
pub fn options(variant: u32) -> Options {
    Options {
        writable: true,
        discard: true,
        pass_discard_request: true,
        pass_discard_other: true,
        allocation_reserve: Some(if variant & 1 == 0 { 0 } else { 4 * CLUSTER }),
        bitmap_slack: Some(harness::bitmaps::SLACK_BYTES),
        ..Options::default()
    }
}

/// Opens an image without what lies below it.
pub async fn open_alone(
    world: &World,
    disk: usize,
    options: Options,
    host: Arc<Machine>,
) -> Result<Qcow2, String> {
    let files = Files { file: Arc::new(world.open(disk)), data: None, backing: None };
    Qcow2::open(files, options, host).await.map_err(|error| error.to_string())
}

/// Opens the chain of an image as the headers name it, from the upper to the lower.
pub async fn open_chain(
    world: &World,
    top: usize,
    options: impl Fn(usize) -> Options,
    host: &Arc<Machine>,
) -> Result<Vec<(usize, Qcow2)>, String> {
    let mut disks = vec![top];
    while let Some(disk) = disks.last().copied() {
        let header = harness::judge::header(&world.current(disk))?;
        let Some(name) = header.backing else { break };
        let below = number(&name).ok_or_else(|| format!("{} is over {name:?}", FILES[disk]))?;
        disks.push(below);
    }
    let mut layers: Vec<(usize, Qcow2)> = Vec::new();
    for disk in disks.into_iter().rev() {
        let backing = layers.last().map(|(_, below)| Arc::new(below.clone()) as Arc<dyn Block>);
        let file = Arc::new(world.open(disk)) as Arc<dyn Storage>;
        let files = Files { file, data: None, backing };
        let image = Qcow2::open(files, options(disk), Arc::clone(host) as Arc<dyn Host>).await;
        layers.push((disk, image.map_err(|error| format!("{}: {error}", FILES[disk]))?));
    }
    layers.reverse();
    Ok(layers)
}

impl Kind {
    /// Whether the job writes to this image, beside the one that guests write to.
    fn writes_to(self, disk: usize) -> bool {
        match self {
            Self::StreamMiddle => disk == MIDDLE,
            Self::CommitMiddle | Self::CommitTop => disk == BASE,
            _ => false,
        }
    }

    /// Whether something is copied to the target.
    pub fn copies(self) -> bool {
        matches!(self, Self::Mirror | Self::MirrorBlocking | Self::Backup)
    }
}

impl Target for JobTarget {
    type Subject = Disk;

    fn name(&self) -> String {
        format!("{:?}", self.0)
    }

    fn abilities(&self) -> Abilities {
        Abilities {
            size: SIZE,
            unit: CLUSTER,
            alignment: 1,
            discarded: DiscardedReads::ZeroesInUnits(CLUSTER),
            variants: 4,
            resize: false,
            snapshots: false,
            change: false,
            second_writer: false,
        }
    }

    async fn build(&self, world: &World, model: &mut Model) -> Result<(), String> {
        for (name, content) in FILES.iter().zip(&images().disks) {
            world.add_disk(name, Capabilities::REGULAR_FILE, content.clone());
        }
        // There is always room for the note.
        let mut content = sim::Content::zeroed(BYTES as u64);
        content.reserve(0, BYTES as u64);
        let note = world.add_disk("note", Capabilities::REGULAR_FILE, content);
        debug_assert_eq!(note.disk(), NOTE);
        for &(_, offset, len) in &images().preloads {
            model.preload(offset, len);
        }
        Ok(())
    }

    async fn open(&self, world: &World, variant: u32) -> Result<Disk, String> {
        let note = Note::of(world);
        let host = Arc::default();
        let options_of = |disk| match disk {
            disk if disk == note.stands_on || self.0.writes_to(disk) => options(variant),
            _ => Options { writable: false, ..options(variant) },
        };
        let layers = open_chain(world, note.stands_on, options_of, &host).await?;
        let has_job = match self.0 {
            Kind::Snapshot | Kind::CommitTop | Kind::Mirror | Kind::MirrorBlocking => note.stands_on == TOP,
            Kind::Stream => layers.len() > 1,
            Kind::StreamToBase | Kind::StreamMiddle | Kind::CommitMiddle => layers.len() > 2,
            Kind::Backup => true,
        };
        let copy = match has_job && self.0.copies() {
            true => Some(open_alone(world, COPY, options(variant), Arc::default()).await?),
            false => None,
        };
        let parts = Parts::new(self.0, world.clone(), (layers, host), copy, variant);
        Disk::start(Rc::new(parts), has_job, note).await
    }

    async fn check(&self, world: &World) -> Result<u64, String> {
        let leaks = judge::images_are_sound(world).await?;
        judge::bitmaps_are_true(world).await?;
        judge::whole_copy_is_whole(world).await?;
        Ok(leaks)
    }
}
