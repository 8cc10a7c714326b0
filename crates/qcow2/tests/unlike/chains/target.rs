//! A case as the simulation sees it.

use std::rc::Rc;
use std::sync::Arc;

use sim::{Abilities, DiscardedReads, Model, Target, World};
use storage::Capabilities;

use super::disk::{Disk, Parts};
use super::guest::same;
use super::images::{Images, make_empty, options};
use super::law::are_sound;
use super::note::{BYTES, Note, hash};
use super::shape::{Backing, Case, Kind};

/// The disk of a case with its job.
pub struct Unlike(Rc<Images>);

impl Unlike {
    /// Makes the images of a seed.
    pub fn new(case: Case, seed: u64) -> Result<Self, String> {
        Images::make(case, seed).map(|images| Self(Rc::new(images)))
    }

    fn kind(&self) -> Kind {
        self.0.case.kind()
    }

    /// The layer that the job writes to, beside the one that guests write to.
    fn written(&self) -> Option<usize> {
        match self.kind() {
            Kind::StreamMiddle | Kind::StreamMiddleToBase | Kind::CommitTop => Some(1),
            Kind::CommitSeveral => Some(self.0.depth - 1),
            Kind::CommitMiddle => Some(2),
            Kind::CommitSeveralMiddle => Some(3),
            _ => None,
        }
    }

    /// Whether what reads through this layer, below the uppermost one, reads the same at each moment.
    fn stays(&self, image: usize) -> bool {
        match (self.kind(), self.written()) {
            (Kind::CommitTop | Kind::CommitSeveral, Some(base)) => image > base,
            (Kind::CommitMiddle | Kind::CommitSeveralMiddle, Some(base)) => image == 1 || image > base,
            _ => true,
        }
    }

    /// What the base of a commit of middle layers reads as, when the layer above them names it.
    fn committed(&self, world: &World) -> Result<Option<(usize, Vec<u8>)>, String> {
        let (Kind::CommitMiddle | Kind::CommitSeveralMiddle, Some(base)) = (self.kind(), self.written())
        else {
            return Ok(None);
        };
        if self.0.named_below(world, 0)? != Some(base) {
            return Ok(None);
        }
        let mut bytes = self.0.flats[1].clone();
        // The disk reads zeroes behind the end of a short layer.
        let seen = (self.0.case.size() as usize).min(self.0.flats[base].len());
        bytes.resize(bytes.len().max(seen), 0);
        bytes.extend(self.0.flats[base].iter().skip(bytes.len()));
        Ok(Some((base, bytes)))
    }

    /// The last run of a job left in a target what it read: a platform makes a new one, unless all of it is written again.
    async fn renew_target(&self, world: &World, note: Note) -> Result<(), String> {
        let (images, kind) = (&self.0, self.kind());
        let Some(target) = images.target.filter(|_| !kind.copies_everything()) else { return Ok(()) };
        Note { whole: None, ..note }.write(world, images.disks()).await?;
        let below = images.below_target();
        let named = (images.case.backing() != Backing::NamedAtTheEnd).then(|| &images.list[below]);
        make_empty(world, &images.list[target], images.case.size(), named).await
    }

    fn note(&self, world: &World) -> Note {
        Note::of(world, self.0.disks())
    }

    fn has_job(&self, note: Note, layers: usize) -> bool {
        match self.kind() {
            _ if note.root != 0 => false,
            Kind::MirrorNone | Kind::BackupNone => !note.is_begun,
            Kind::Stream => layers > 1,
            Kind::StreamToBase | Kind::CommitMiddle => layers > 2 && layers == self.0.depth,
            Kind::StreamMiddle => layers > 2,
            Kind::StreamMiddleToBase | Kind::CommitSeveralMiddle => layers > 3,
            _ => true,
        }
    }
}

impl Target for Unlike {
    type Subject = Disk;

    fn name(&self) -> String {
        format!("{:?}", self.0.case)
    }

    fn abilities(&self) -> Abilities {
        let case = self.0.case;
        Abilities {
            size: case.size(),
            unit: case.layers()[0].0.cluster.clamp(4096, 64 << 10),
            alignment: 1,
            discarded: DiscardedReads::ZeroesOrOld,
            variants: 2,
            resize: false,
            snapshots: false,
            change: false,
            second_writer: false,
        }
    }

    async fn build(&self, world: &World, model: &mut Model) -> Result<(), String> {
        self.0.add_to(world);
        let mut content = sim::Content::zeroed(BYTES as u64);
        content.reserve(0, BYTES as u64);
        world.add_disk("note", Capabilities::REGULAR_FILE, content);
        *model = model.restarted(self.0.case.size(), &[(0, self.0.flats[0].clone())]);
        Ok(())
    }

    async fn open(&self, world: &World, variant: u32) -> Result<Disk, String> {
        let (images, note) = (&self.0, self.note(world));
        let reserve = if variant & 1 == 0 { 0 } else { 16 << 10 };
        let options_of = |image| options(image == note.root || self.written() == Some(image), reserve);
        let host = Arc::default();
        let layers = images.open_chain(world, note.root, &options_of, &host).await?;
        let has_job = self.has_job(note, layers.len());
        if has_job && note.is_begun {
            self.renew_target(world, note).await?;
        }
        let target = match images.target.filter(|_| has_job) {
            None => None,
            Some(target) => {
                let below = match (images.case.backing(), images.under_target) {
                    (Backing::Opened, Some(under)) => {
                        let opened = images.open_chain(world, under, &|_| options(false, 0), &host).await?;
                        Some(Arc::clone(&opened[0].block))
                    }
                    (Backing::Opened, None) => Some(Arc::clone(&layers[1].block)),
                    _ => None,
                };
                Some(images.open(world, target, options(true, reserve), below, &Arc::default()).await?)
            }
        };
        let parts = Parts::new(Rc::clone(images), world.clone(), (layers, host), target, variant);
        Disk::start(Rc::new(parts), has_job, note).await
    }

    async fn check(&self, world: &World) -> Result<u64, String> {
        let (images, note) = (&self.0, self.note(world));
        let is_made = |image| images.target != Some(image) || note.whole.is_some() || note.root == image;
        let leaks = are_sound(images, world, &is_made).await?;
        let layers = (1..images.depth).filter(|image| self.stays(*image));
        for image in layers.chain(images.under_target) {
            same(&images.read(world, image).await?, &images.flats[image], &images.list[image].name)?;
        }
        if let Some((base, bytes)) = self.committed(world)? {
            same(&images.read(world, base).await?, &bytes, &images.list[base].name)?;
        }
        if let (Some(expected), Some(target)) = (note.whole, images.target) {
            let found = images.read(world, target).await?;
            if hash(&found) != expected {
                return Err(format!(
                    "{} is called whole and is not what the disk was",
                    images.list[target].name
                ));
            }
        }
        Ok(leaks)
    }
}
