//! Tools: they copy between images that no other process has open.

use std::sync::Arc;

use block::Block;
use job::{Content, Copy, CopyOptions, Counters, Dirty, Marked, Zeroes, copies};
use qcow2::bitmap::{BitmapChange, NewBitmap};
use qcow2::{CompactOptions, Qcow2, ResizeOptions, compact};
use sim::{Order, Rng, World};

use super::guest::{Guest, read_all, same};
use super::images::{BITMAP, Images, Layer, format_name, make_empty, options};
use super::law::{Laws, after_crashes};
use super::shape::{Case, Kind};

/// Points of a backup.
const POINTS: usize = 3;
/// Operations of guests between two of them.
const OPERATIONS: usize = 6;
/// How often guests write and images are compacted after it.
const ROUNDS: usize = 3;
/// Of the crash states of a tool one in so many is looked at.
const SHARE: (u64, u64) = (160, 1);

/// A tool at work.
struct Tool {
    images: Images,
    world: World,
    laws: Laws,
    rng: Rng,
}

fn reported(error: impl std::fmt::Display) -> String {
    error.to_string()
}

/// Runs the tool of a seed, and looks at what is there afterwards and after crashes; gives how many crash states that were.
pub fn run(case: Case, seed: u64) -> Result<u64, String> {
    let mut images = Images::make(case, seed)?;
    if case.kind() == Kind::BackupTool {
        images.add_points(POINTS);
    }
    let world = World::new(seed, Order::Immediate);
    images.add_to(&world);
    world.start_recording();
    world.set_order(Order::Shuffled);
    let mut laws = Laws::default();
    for image in 0..images.list.len() {
        if Some(image) != images.target && !images.flats[image].is_empty() {
            laws.begin(image, &images.flats[image]);
        }
    }
    let tool = Tool { images, world: world.clone(), laws, rng: Rng::new(seed ^ 0x746f_6f6c) };
    let done = sim::run(&world, seed, async |_| tool.done().await).map_err(reported)?;
    let Tool { images, laws, .. } = done?;
    world.drain();
    world.set_order(Order::Immediate);
    let now = world.tick();
    let judged = sim::run(&world, seed, async |sim| laws.judge(&images, sim.world(), now).await);
    judged.map_err(reported)??;
    after_crashes(&images, &laws, &world, seed, SHARE)
}

impl Tool {
    async fn done(mut self) -> Result<Self, String> {
        match self.images.case.kind() {
            Kind::Flatten => self.flatten(None).await?,
            Kind::FlattenToBase => self.flatten(Some(self.images.depth - 1)).await?,
            Kind::Rebase => self.rebase().await?,
            Kind::RebaseUnsafe => self.rebase_unsafe().await?,
            Kind::ConvertOver => self.convert().await?,
            Kind::Commit => self.commit(1).await?,
            Kind::CommitToBase => self.commit(self.images.depth - 1).await?,
            Kind::Compact => self.compact_in_turns().await?,
            _ => self.backup().await?,
        }
        self.compact(4).await?;
        Ok(self)
    }

    async fn chain(&self, top: usize, writes: usize) -> Result<Vec<Layer>, String> {
        self.images.open_chain(&self.world, top, &|image| options(image == writes, 0), &Arc::default()).await
    }

    fn top(layers: &[Layer]) -> Result<Qcow2, String> {
        layers[0].qcow2.clone().ok_or_else(|| "it is raw".into())
    }

    /// What the copy is written through: with `-c` what compresses.
    fn copied_to(&self, image: &Layer) -> Result<Arc<dyn Block>, String> {
        match self.images.case.compresses_copy() {
            true => Ok(Arc::new(image.packer()?)),
            false => Ok(Arc::clone(&image.block)),
        }
    }

    /// What guests write to an image through.
    fn written(&self, image: &Layer) -> Arc<dyn Block> {
        if self.images.case.compresses_writes() { image.compressing() } else { Arc::clone(&image.block) }
    }

    fn backing(&self, image: usize) -> (Option<String>, Option<String>) {
        let image = &self.images.list[image];
        (Some(image.name.clone()), Some(format_name(image)))
    }

    async fn flatten(&mut self, base: Option<usize>) -> Result<(), String> {
        let layers = self.chain(0, 0).await?;
        let image = Self::top(&layers)?;
        let below = match base {
            Some(base) => Some((Arc::clone(&self.chain(base, usize::MAX).await?[0].block), base as u32)),
            None => None,
        };
        let below = below.as_ref().map(|(block, above)| (&**block, *above));
        let target = self.copied_to(&layers[0])?;
        done(&copies::flatten(&*layers[0].block, &*target, below, CopyOptions::default())).await?;
        let (name, format) = base.map_or((None, None), |base| self.backing(base));
        image.set_backing_name(name, format).await.map_err(reported)?;
        image.close().await.map_err(reported)
    }

    async fn rebase(&mut self) -> Result<(), String> {
        let layers = self.chain(0, 0).await?;
        let image = Self::top(&layers)?;
        let target = if self.rng.chance(1, 5) { None } else { self.images.target };
        let below = match target {
            Some(target) => Some(Arc::clone(&self.chain(target, usize::MAX).await?[0].block)),
            None => None,
        };
        if below.is_some() {
            image.await_backing();
        }
        let written = self.copied_to(&layers[0])?;
        done(&copies::rebase(&*layers[0].block, &*written, below.as_deref(), CopyOptions::default())).await?;
        let (name, format) = target.map_or((None, None), |target| self.backing(target));
        image.set_backing_name(name, format).await.map_err(reported)?;
        image.close().await.map_err(reported)
    }

    /// An image is written without a backing file, and then put over one: what was written stays, zeroes too.
    async fn rebase_unsafe(&mut self) -> Result<(), String> {
        let layers = self.chain(0, 0).await?;
        let image = Self::top(&layers)?;
        let mut guest = Guest::new(self.rng.fork(), self.images.case, 20);
        let mut flat = self.images.flats[0].clone();
        let mut touched = Some(vec![false; flat.len()]);
        let written = self.written(&layers[0]);
        self.laws.end(0, &self.world);
        for _ in 0..2 * OPERATIONS {
            guest.touched = touched.take();
            guest.change(&*written, &mut flat).await?;
            touched = guest.touched.take();
        }
        let touched = touched.unwrap_or_default();
        let (name, format) = self.backing(1);
        image.set_backing_name(name, format).await.map_err(reported)?;
        layers[0].close().await?;
        let found = read_all(&*self.chain(0, usize::MAX).await?[0].block).await?;
        let mut expected = flat.clone();
        let base = &self.images.flats[1];
        for (at, byte) in expected.iter_mut().enumerate().filter(|(at, _)| !touched[*at] && flat[*at] == 0) {
            // What was not written is what was there, or the base's.
            let below = base.get(at).copied().unwrap_or(0);
            *byte = if found[at] == below { below } else { 0 };
        }
        self.laws.add(0, &expected, &self.world);
        same(&found, &expected, "an image that was put over a base")
    }

    async fn convert(&mut self) -> Result<(), String> {
        let layers = self.chain(0, usize::MAX).await?;
        let target = self.images.target.ok_or("no target")?;
        let over = Some(Arc::clone(&self.chain(1, usize::MAX).await?[0].block));
        let opened = self.images.open(&self.world, target, options(true, 0), over, &Arc::default()).await?;
        let cluster = opened.block.capabilities().cluster_bytes.unwrap_or(1);
        let is_compressed = self.images.case.compresses_copy();
        let (detected, align_bytes) = if is_compressed { (cluster, cluster) } else { (4096, 1) };
        let zeroes = self.rng.pick(&[Zeroes::Detect(detected), Zeroes::ByMap, Zeroes::Write]);
        let options = CopyOptions { zeroes, align_bytes, ..CopyOptions::default() };
        let written = self.copied_to(&opened)?;
        done(&copies::overlay(&*layers[0].block, &*written, Content::Unknown, options)).await?;
        opened.close().await?;
        self.laws.add(target, &self.images.flats[0], &self.world);
        Ok(())
    }

    async fn commit(&mut self, base: usize) -> Result<(), String> {
        let empties = base == 1;
        // The layers above the base, without it.
        let mut above: Option<Layer> = None;
        for image in (0..base).rev() {
            let below = above.map(|layer: Layer| layer.block);
            let writes = empties && image == 0;
            above =
                Some(self.images.open(&self.world, image, options(writes, 0), below, &Arc::default()).await?);
        }
        let above = above.ok_or("no layer")?;
        for image in 1..=base {
            self.laws.end(image, &self.world);
        }
        let layers = self.chain(base, base).await?;
        grow(&layers[0], self.images.case.size()).await?;
        done(&copies::commit(&*above.block, base as u32, &*layers[0].block, CopyOptions::default())).await?;
        layers[0].block.close().await.map_err(reported)?;
        let mut flat = self.images.flats[0].clone();
        flat.extend(self.images.flats[base].iter().skip(flat.len()));
        self.laws.add(base, &flat, &self.world);
        if let Some(image) = above.qcow2.filter(|_| empties) {
            image.make_empty().await.map_err(reported)?;
            image.close().await.map_err(reported)?;
        }
        Ok(())
    }

    /// Guests write, and then each image is made smaller, again and again.
    async fn compact_in_turns(&mut self) -> Result<(), String> {
        let mut guest = Guest::new(self.rng.fork(), self.images.case, 40);
        let mut flat = self.images.flats[0].clone();
        for _ in 0..ROUNDS {
            let layers = self.chain(0, 0).await?;
            self.laws.end(0, &self.world);
            let written = self.written(&layers[0]);
            for _ in 0..OPERATIONS {
                guest.change(&*written, &mut flat).await?;
            }
            layers[0].close().await?;
            self.laws.add(0, &flat, &self.world);
            self.compact(1).await?;
        }
        Ok(())
    }

    /// Makes one in so many of the images smaller.
    async fn compact(&mut self, one_in: u64) -> Result<(), String> {
        for image in 0..self.images.list.len() {
            let format = self.images.list[image].format;
            if !format.raw && !format.data_file && self.rng.chance(1, one_in) {
                self.compact_one(image).await?;
            }
        }
        Ok(())
    }

    async fn compact_one(&mut self, image: usize) -> Result<(), String> {
        let file = self.world.open(self.images.list[image].disk);
        let asked = CompactOptions {
            detect_zeroes: self.rng.chance(1, 2),
            defragment: self.rng.chance(1, 2),
            dry_run: false,
        };
        let mut look = |_| std::ops::ControlFlow::Continue(());
        compact(&file, None, asked, &mut look).await.map(drop).map_err(reported)
    }

    /// A full point, and then what changed, by a bitmap.
    async fn backup(&mut self) -> Result<(), String> {
        let mut guest = Guest::new(self.rng.fork(), self.images.case, 30);
        let mut flat = self.images.flats[0].clone();
        for point in 0..POINTS {
            let layers = self.chain(0, 0).await?;
            let top = Self::top(&layers)?;
            self.laws.end(0, &self.world);
            let number = self.images.list.len() - POINTS + point;
            let image = self.images.list[number].clone();
            let below = (point > 0).then(|| &self.images.list[number - 1]);
            make_empty(&self.world, &image, flat.len() as u64, below).await?;
            let next = format!("{BITMAP}{point}");
            let granularity_bytes = Some(self.images.case.bitmap_granularity());
            let new = NewBitmap { granularity_bytes, recording: true, persistent: true };
            top.change_bitmap(&next, BitmapChange::Add(new)).await.map_err(reported)?;
            self.take_point(point, number, &top).await?;
            self.laws.add(number, &flat, &self.world);
            let written = self.written(&layers[0]);
            for _ in 0..OPERATIONS {
                guest.change(&*written, &mut flat).await?;
            }
            layers[0].close().await?;
            self.laws.add(0, &flat, &self.world);
        }
        Ok(())
    }

    async fn take_point(&self, point: usize, number: usize, top: &Qcow2) -> Result<(), String> {
        let target = self.images.open(&self.world, number, options(true, 0), None, &Arc::default()).await?;
        let over = Arc::new(top.clone()) as Arc<dyn Block>;
        let old = format!("{BITMAP}{}", point.wrapping_sub(1));
        let bitmap = top.bitmaps().into_iter().find(|bitmap| bitmap.name() == old);
        match bitmap {
            None => {
                done(&copies::whole(&*over, &*target.block, Content::Zeroes, CopyOptions::default())).await?
            }
            Some(bitmap) => {
                let marks = Dirty::new(top.size(), 64 << 10);
                bitmap
                    .dirty_ranges()
                    .await
                    .map_err(reported)?
                    .into_iter()
                    .for_each(|range| marks.mark(range));
                let marked = Marked { over, marks };
                done(&copies::incremental(&marked, &*target.block, CopyOptions::default())).await?;
            }
        }
        target.block.close().await.map_err(reported)
    }
}

async fn done(copy: &Copy<'_>) -> Result<(), String> {
    copy.run(&Counters::default()).await.map_err(reported)
}

/// Makes a base as long as what is committed to it.
pub async fn grow(base: &Layer, size: u64) -> Result<(), String> {
    if base.block.size() >= size {
        return Ok(());
    }
    match &base.qcow2 {
        Some(image) => image.resize(size, ResizeOptions::default()).await.map_err(reported),
        None => match base.block.downcast_ref::<block::Raw>() {
            Some(raw) => raw.resize(size, None, async || ()).await.map_err(reported),
            None => Err("a base that cannot become longer".into()),
        },
    }
}
