//! The images of a case: made on a simulated machine, written by guests through all that lies below, and what each reads as.

use std::sync::Arc;

use block::{Block, Raw};
use filter::Compress;
use qcow2::bitmap::{BitmapChange, NewBitmap};
use qcow2::{Compressing, CreateOptions, Files, Host, Options, Qcow2, create};
use qcow2_layout::{Compression, Version};
use sim::{Content, Order, Rng, World};
use storage::{Capabilities, Storage};

use super::guest::{Guest, read_all, write_bytes};
use super::judge;
use super::machine::Machine;
use super::shape::{Backing, Case, Format, Kind, Packing};

/// Operations of guests on each layer.
const OPERATIONS: usize = 9;
/// Runs of compressed clusters that are written to an image that has some, before all else.
const PACKED_RUNS: usize = 3;
/// The bitmap of an incremental backup.
pub const BITMAP: &str = "changes";
/// Processors of the simulated machine, for what compresses.
const PROCESSORS: usize = 2;

/// An image, and which disks of the machine it is made of.
#[derive(Clone, Debug)]
pub struct Image {
    pub name: String,
    pub format: Format,
    pub disk: usize,
    pub data: Option<usize>,
}

/// An open one.
#[derive(Clone, Debug)]
pub struct Layer {
    /// Its number among the images.
    pub image: usize,
    pub block: Arc<dyn Block>,
    pub qcow2: Option<Qcow2>,
    /// What writes compressed clusters to it, if it takes any.
    packs: Option<Arc<Compressing>>,
}

impl Layer {
    fn new(image: usize, block: Arc<dyn Block>) -> Self {
        let qcow2 = block.downcast_ref::<Qcow2>().cloned();
        // One that keeps its data in another file takes none.
        let packs = qcow2.clone().and_then(|image| Compressing::new(image, PROCESSORS).ok());
        Self { image, block, qcow2, packs: packs.map(Arc::new) }
    }

    /// The filter `compress` over it, as a graph puts it: what takes no compressed clusters is written as it is.
    pub fn compressing(&self) -> Arc<dyn Block> {
        match &self.packs {
            Some(packs) => Arc::new(Compress::new(Arc::clone(packs) as Arc<dyn Block>)),
            None => Arc::clone(&self.block),
        }
    }

    /// What writes compressed clusters to it, for one job or tool.
    pub fn packer(&self) -> Result<Compressing, String> {
        let image = self.qcow2.clone().ok_or("a raw disk has no compressed clusters")?;
        Compressing::new(image, PROCESSORS).map_err(|error| error.to_string())
    }

    pub async fn flush(&self) -> Result<(), String> {
        let flushed = match &self.packs {
            Some(packs) => packs.flush().await,
            None => self.block.flush().await,
        };
        flushed.map_err(|error| error.to_string())
    }

    pub async fn close(&self) -> Result<(), String> {
        let closed = match &self.packs {
            Some(packs) => packs.close().await,
            None => self.block.close().await,
        };
        closed.map_err(|error| error.to_string())
    }
}

/// All images of a case as they are at the start.
#[derive(Debug)]
pub struct Images {
    pub case: Case,
    pub list: Vec<Image>,
    /// The layers of the disk come first, so many.
    pub depth: usize,
    pub target: Option<usize>,
    /// What the target is over by itself: not a layer of the disk.
    pub under_target: Option<usize>,
    /// What each image reads as with what its header names below it.
    pub flats: Vec<Vec<u8>>,
    /// The disk when its bitmap was made.
    pub point: Vec<u8>,
    disks: Vec<(String, Content)>,
}

impl Images {
    /// What the target of a copy of a part is over in the end.
    pub fn below_target(&self) -> usize {
        match self.under_target {
            Some(under) => under,
            // It has nothing but what guests write meanwhile.
            None if self.is_over_disk() => 0,
            None => 1,
        }
    }

    /// The target is put over the disk's uppermost image.
    pub fn is_over_disk(&self) -> bool {
        self.case.kind() == Kind::MirrorNone && self.case.backing() != Backing::Opened
    }

    /// Makes those of a seed.
    pub fn make(case: Case, seed: u64) -> Result<Self, String> {
        let world = World::new(seed, Order::Immediate);
        let made = sim::run(&world, seed, async |sim| {
            let maker = Maker { world: sim.world().clone(), rng: Rng::new(seed ^ 0x6d61_6b65), case };
            maker.make().await
        });
        made.map_err(|stuck| stuck.to_string())?
    }

    /// Adds them to a world.
    pub fn add_to(&self, world: &World) {
        for (name, content) in &self.disks {
            world.add_disk(name, Capabilities::REGULAR_FILE, content.clone());
        }
    }

    /// Adds the images of a backup, which are files without content yet.
    pub fn add_points(&mut self, points: usize) {
        for point in 0..points {
            let format = Format::PLAIN;
            self.list.push(Image {
                name: format!("point{point}"),
                format,
                disk: self.disks.len(),
                data: None,
            });
            self.flats.push(Vec::new());
            self.disks.push((format!("point{point}"), Content::zeroed(0)));
        }
    }

    /// Disks that they are made of.
    pub fn disks(&self) -> usize {
        self.disks.len()
    }

    pub fn number(&self, name: &str) -> Option<usize> {
        self.list.iter().position(|image| image.name == name)
    }

    /// What the header of an image names below it.
    pub fn named_below(&self, world: &World, image: usize) -> Result<Option<usize>, String> {
        let found = &self.list[image];
        if found.format.raw {
            return Ok(None);
        }
        let header = judge::header(&world.current(found.disk))?;
        let Some(name) = header.backing else { return Ok(None) };
        self.number(&name).map(Some).ok_or_else(|| format!("{} is over {name:?}", found.name))
    }

    /// Opens an image over `below`.
    pub async fn open(
        &self,
        world: &World,
        image: usize,
        options: Options,
        below: Option<Arc<dyn Block>>,
        host: &Arc<Machine>,
    ) -> Result<Layer, String> {
        open(world, (image, &self.list[image]), options, below, host).await
    }

    /// Opens the chain of an image as the headers name it, from the upper to the lower.
    pub async fn open_chain(
        &self,
        world: &World,
        top: usize,
        options: &dyn Fn(usize) -> Options,
        host: &Arc<Machine>,
    ) -> Result<Vec<Layer>, String> {
        let mut numbers = vec![top];
        while let Some(below) = self.named_below(world, numbers[numbers.len() - 1])? {
            numbers.push(below);
        }
        let mut layers: Vec<Layer> = Vec::new();
        for image in numbers.into_iter().rev() {
            let below = layers.last().map(|below| Arc::clone(&below.block));
            layers.push(self.open(world, image, options(image), below, host).await?);
        }
        layers.reverse();
        Ok(layers)
    }

    /// All that an image reads as, by itself and as its header has it.
    pub async fn read(&self, world: &World, image: usize) -> Result<Vec<u8>, String> {
        let options = |_| Options { writable: false, ..Options::default() };
        let layers = self.open_chain(world, image, &options, &Arc::default()).await?;
        read_all(&*layers[0].block).await
    }
}

/// How images of guests are open.
pub fn options(writable: bool, reserve: u64) -> Options {
    Options {
        writable,
        discard: true,
        pass_discard_request: true,
        pass_discard_other: true,
        allocation_reserve: Some(reserve),
        ..Options::default()
    }
}

async fn open(
    world: &World,
    (number, image): (usize, &Image),
    options: Options,
    below: Option<Arc<dyn Block>>,
    host: &Arc<Machine>,
) -> Result<Layer, String> {
    let file = Arc::new(world.open(image.disk)) as Arc<dyn Storage>;
    if image.format.raw {
        return Ok(Layer::new(number, Arc::new(Raw::new(file))));
    }
    let data = image.data.map(|data| Arc::new(world.open(data)) as Arc<dyn Storage>);
    let files = Files { file, data, backing: below };
    let opened = Qcow2::open(files, options, Arc::clone(host) as Arc<dyn Host>).await;
    let opened = opened.map_err(|error| format!("{}: {error}", image.name))?;
    Ok(Layer::new(number, Arc::new(opened)))
}

/// Makes an image that holds nothing.
pub async fn make_empty(
    world: &World,
    image: &Image,
    size: u64,
    below: Option<&Image>,
) -> Result<(), String> {
    if image.format.raw {
        return Ok(());
    }
    let Format { cluster, is_v2, subclusters, data_file, raw_data, packing, .. } = image.format;
    let options = CreateOptions {
        size,
        version: if is_v2 { Version::V2 } else { Version::V3 },
        cluster_size: cluster,
        extended_l2: subclusters,
        data_file: data_file.then(|| format!("{}.data", image.name)),
        data_file_raw: raw_data,
        compression: match packing {
            Packing::Plain | Packing::Zlib => Compression::Deflate,
            Packing::Zstd => Compression::Zstd,
        },
        backing_file: below.map(|below| below.name.clone()),
        backing_format: below.map(format_name),
        ..CreateOptions::default()
    };
    let data = image.data.map(|data| world.open(data));
    let data = data.as_ref().map(|data| data as &dyn Storage);
    create(&world.open(image.disk), data, &options).await.map_err(|error| format!("{}: {error}", image.name))
}

/// The format of an image as headers name it.
pub fn format_name(image: &Image) -> String {
    if image.format.raw { "raw".into() } else { "qcow2".into() }
}

/// What guests write to an image through that has compressed clusters.
fn written(opened: &Layer, format: Format) -> Arc<dyn Block> {
    match format.packing {
        Packing::Plain => Arc::clone(&opened.block),
        Packing::Zlib | Packing::Zstd => opened.compressing(),
    }
}

struct Maker {
    world: World,
    rng: Rng,
    case: Case,
}

impl Maker {
    async fn make(mut self) -> Result<Images, String> {
        let (case, size) = (self.case, self.case.size());
        let layers = case.layers();
        let (depth, kind) = (layers.len(), case.kind());
        let mut list: Vec<Image> = Vec::new();
        for (number, (format, length)) in layers.iter().enumerate() {
            list.push(self.add(&format!("layer{number}"), *format, *length));
        }
        let mut flats: Vec<Vec<u8>> = vec![Vec::new(); depth];
        let mut guest = Guest::new(self.rng.fork(), case, 10);
        let mut below: Option<Arc<dyn Block>> = None;
        for number in (0..depth).rev() {
            let is_over = number + 1 < depth && kind != Kind::RebaseUnsafe;
            let named = is_over.then(|| &list[number + 1]);
            make_empty(&self.world, &list[number], layers[number].1, named).await?;
            let mut flat = if is_over { flats[number + 1].clone() } else { Vec::new() };
            flat.resize(layers[number].1.next_multiple_of(512) as usize, 0);
            below = below.filter(|_| is_over);
            below = Some(self.filled(&mut guest, number, &list[number], below, &mut flat).await?);
            flats[number] = flat;
        }
        let point = flats[0].clone();
        let mut images =
            Images { case, list, depth, target: None, under_target: None, flats, point, disks: Vec::new() };
        if kind == Kind::BackupIncremental {
            self.make_point(&mut guest, &mut images).await?;
        }
        if let Some(format) = case.target() {
            self.make_target(&mut guest, &mut images, format, size).await?;
        }
        for disk in 0..self.world.disks() {
            let name = self.world.disk_name(disk);
            images.disks.push((name, self.world.current(disk)));
        }
        Ok(images)
    }

    fn add(&mut self, name: &str, format: Format, length: u64) -> Image {
        let name = format!("{name}.{}", if format.raw { "raw" } else { "qcow2" });
        let bytes = if format.raw { length } else { 0 };
        let disk = self.world.add_disk(&name, Capabilities::REGULAR_FILE, Content::zeroed(bytes)).disk();
        let data = format.data_file.then(|| {
            let name = format!("{name}.data");
            self.world.add_disk(&name, Capabilities::REGULAR_FILE, Content::zeroed(0)).disk()
        });
        Image { name, format, disk, data }
    }

    /// Guests write to an image over `below`; afterwards it is open for reading.
    async fn filled(
        &mut self,
        guest: &mut Guest,
        number: usize,
        image: &Image,
        below: Option<Arc<dyn Block>>,
        flat: &mut [u8],
    ) -> Result<Arc<dyn Block>, String> {
        let host = Arc::default();
        let opened = open(&self.world, (number, image), options(true, 0), below.clone(), &host).await?;
        // Data is everywhere below what is copied, half of the time.
        if number > 0 && below.is_none() && self.rng.chance(1, 2) {
            guest.fill(&*written(&opened, image.format), flat).await?;
        }
        self.change(guest, &opened, image.format, flat).await?;
        guest.same(&*opened.block, flat, &image.name).await?;
        opened.close().await?;
        Ok(open(&self.world, (number, image), options(false, 0), below, &host).await?.block)
    }

    /// Guests write compressed clusters, if the image has any, and then all that they may, there and elsewhere.
    async fn change(
        &mut self,
        guest: &mut Guest,
        opened: &Layer,
        format: Format,
        flat: &mut [u8],
    ) -> Result<(), String> {
        let written = written(opened, format);
        if format.packing != Packing::Plain {
            for _ in 0..PACKED_RUNS {
                guest.pack(&*written, format.cluster, flat).await?;
            }
        }
        for _ in 0..OPERATIONS {
            let is_packed = self.rng.chance(1, 3);
            guest.change(if is_packed { &*written } else { &*opened.block }, flat).await?;
        }
        Ok(())
    }

    /// An image that has all of the disk, and then a bitmap that knows what changed since.
    async fn make_point(&mut self, guest: &mut Guest, images: &mut Images) -> Result<(), String> {
        let format = self.case.layers()[images.depth - 1].0;
        let full = self.add("full", format, images.point.len() as u64);
        make_empty(&self.world, &full, images.point.len() as u64, None).await?;
        let opened = open(&self.world, (0, &full), options(true, 0), None, &Arc::default()).await?;
        write_bytes(&*written(&opened, format), &images.point, &vec![0; images.point.len()]).await?;
        opened.close().await?;
        images.under_target = Some(images.list.len());
        images.list.push(full);
        images.flats.push(images.point.clone());
        let opened =
            images.open_chain(&self.world, 0, &|image| options(image == 0, 0), &Arc::default()).await?;
        let top = opened[0].qcow2.clone().ok_or("a raw disk has no bitmap")?;
        let granularity_bytes = Some(self.case.bitmap_granularity());
        let new = NewBitmap { granularity_bytes, recording: true, persistent: true };
        top.change_bitmap(BITMAP, BitmapChange::Add(new)).await.map_err(|error| error.to_string())?;
        let mut flat = images.flats[0].clone();
        for _ in 0..OPERATIONS {
            guest.change(&*opened[0].block, &mut flat).await?;
        }
        images.flats[0] = flat;
        top.close().await.map_err(|error| error.to_string())
    }

    async fn make_target(
        &mut self,
        guest: &mut Guest,
        images: &mut Images,
        format: Format,
        size: u64,
    ) -> Result<(), String> {
        let (kind, backing) = (self.case.kind(), self.case.backing());
        if kind.copies_everything() && backing != Backing::None {
            let junk = Format { raw: true, ..format };
            let junk = self.add("junk", Format { data_file: false, raw_data: false, ..junk }, size);
            let bytes = sim::fill(9, 1, 0, size as usize);
            let opened = open(&self.world, (0, &junk), options(true, 0), None, &Arc::default()).await?;
            write_bytes(&*opened.block, &bytes, &vec![0; size as usize]).await?;
            images.under_target = Some(images.list.len());
            images.list.push(junk);
            images.flats.push(bytes);
        }
        // What a target is put over has another size than the disk, now and then.
        let is_base = kind == Kind::Rebase;
        let length = if is_base && self.rng.chance(1, 3) { size / 2 / 4096 * 4096 + 512 } else { size };
        let target = self.add("target", format, length);
        let below = match kind {
            Kind::BackupNone => Some(0),
            Kind::MirrorNone if images.is_over_disk() => Some(0),
            Kind::MirrorTop | Kind::MirrorNone | Kind::BackupTop | Kind::ConvertOver => Some(1),
            _ => images.under_target,
        };
        let named = below.filter(|_| backing != Backing::NamedAtTheEnd).map(|below| &images.list[below]);
        make_empty(&self.world, &target, length, named).await?;
        let number = images.list.len();
        images.target = Some(number);
        images.list.push(target);
        let mut flat = below.map_or_else(Vec::new, |below| images.flats[below].clone());
        flat.resize(length as usize, 0);
        let has_own_data = is_base || kind.copies_everything() && self.rng.chance(1, 2);
        // A mirror of nothing whose target has a backing layer of its own: all of the disk was copied before.
        let is_filled = kind == Kind::MirrorNone && !images.is_over_disk();
        if has_own_data || is_filled {
            let over = match below {
                Some(below) => Some(
                    images.open_chain(&self.world, below, &|_| options(false, 0), &Arc::default()).await?,
                ),
                None => None,
            };
            let over = over.map(|layers| Arc::clone(&layers[0].block));
            let opened = images.open(&self.world, number, options(true, 0), over, &Arc::default()).await?;
            if is_filled {
                write_bytes(&*opened.block, &images.flats[0], &flat).await?;
                flat.clone_from(&images.flats[0]);
            }
            if has_own_data {
                self.change(guest, &opened, format, &mut flat).await?;
            }
            opened.close().await?;
        }
        images.flats.push(flat);
        Ok(())
    }
}
