//! The engine as the simulation sees it.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::Arc;

use block::{Block, Raw};
use luks::Secret;
use qcow2::cache_sizes::CacheRequest;
use qcow2::snapshot::{NewSnapshot, SnapshotName};
use qcow2::{
    Compressing, Error, Files, Host, Options, Progress, Qcow2, ReadKind, Repair, ResizeOptions, Work,
    ZeroOptions, check,
};
use qcow2_layout::SnapshotEntry;
use sim::{
    Abilities, Content, CrashState, DiscardedReads, DiskLock, Durability, Management, Model, SimStorage,
    Subject, Target, World,
};
use storage::{Capabilities, Hints, IoBuf, IoVec, Role, Storage, Zeroing, open_locked};

use super::base::{Base, base};
use super::config::{Below, CHAIN_FILES, Config, DataIn, Discard};
use super::judge;
use super::qemu::{Bench, PASSWORD};

/// The host of a simulated machine.
#[derive(Debug)]
pub struct Machine;

impl Host for Machine {
    fn spawn(&self, work: Work) {
        sim::spawn(work);
    }
}

/// A configuration of the engine.
pub struct Qcow2Target {
    config: Config,
    base: Arc<Base>,
    bench: RefCell<Option<Bench>>,
}

/// The opened image, how often reading its map ahead failed, what it is, and the locks on its files.
pub struct Disk(pub Qcow2, Rc<Cell<u64>>, Config, RefCell<Vec<DiskLock>>, Option<Compressing>);

impl Qcow2Target {
    pub fn new(config: Config) -> Self {
        Self { config, base: base(&config), bench: RefCell::default() }
    }

    /// The same with an image that was tampered with.
    pub fn patched(config: Config, patch: impl FnOnce(&mut Content)) -> Self {
        let made = base(&config);
        let mut disks = made.disks.clone();
        patch(&mut disks[0].1);
        disks[0].1.settle();
        let base = Base { disks, preloads: made.preloads.clone(), frozen: made.frozen.clone() };
        Self { config, base: Arc::new(base), bench: RefCell::default() }
    }

    /// Guest ranges that hold stamped data from the start, in the order of their versions.
    pub fn preloads(&self) -> &[(u64, u64)] {
        &self.base.preloads
    }

    pub fn config(&self) -> &Config {
        &self.config
    }

    /// `qemu-img check` on the disks of a world.
    pub fn asked_of_qemu(&self, disks: &[Content]) -> Result<(), String> {
        self.with_bench(|bench| bench.check(disks))
    }

    /// An open and a close after a crash that the header tells of leave no leak.
    pub fn gives_the_reserve_back(&self, state: &CrashState) -> Result<(), String> {
        let Config { reserve, compressed, snapshots, snapshotted, .. } = self.config;
        // Where clusters are shared a crash may also leave one counted too often, which is a leak for a check.
        let shared = compressed || snapshots > 0 || snapshotted;
        let (world, _disks) = state.boot(1);
        let image = world.current(0);
        if reserve == 0 || shared || judge::is_dirty(&image) || !judge::tells_of_a_reserve(&image) {
            return Ok(());
        }
        let leaks = sim::run(&world, 1, async |sim| {
            let image = self
                .open_with(sim.world(), self.config.options(0))
                .await
                .map_err(|error| error.to_string())?;
            image.close().await.map_err(|error| error.to_string())?;
            self.checked(sim.world()).await
        });
        match leaks.map_err(|stuck| stuck.to_string())?? {
            0 => Ok(()),
            leaks => Err(format!("{leaks} clusters of the reserve were not given back")),
        }
    }

    /// What QEMU reads of the closed disks of a world, as the oracle judges it.
    pub fn read_by_qemu(&self, world: &World, model: &Model) -> Result<(), String> {
        let disks: Vec<Content> = (0..world.disks()).map(|disk| world.current(disk)).collect();
        let ranges = model.ranges(model.size());
        let read = self.with_bench(|bench| bench.read(&disks, &ranges))?;
        let now = world.tick();
        for ((offset, _), bytes) in ranges.iter().zip(read) {
            model
                .check_read(*offset, &bytes, now, now)
                .map_err(|mismatch| format!("QEMU reads {mismatch}"))?;
        }
        self.asked_of_qemu(&disks)
    }

    fn with_bench<T>(&self, ask: impl FnOnce(&Bench) -> T) -> T {
        let names: Vec<&'static str> = self.base.disks.iter().map(|(name, _)| *name).collect();
        ask(self.bench.borrow_mut().get_or_insert_with(|| Bench::new(&names, self.config.encrypted)))
    }

    /// A world with the images of this configuration.
    pub fn world(&self, seed: u64) -> World {
        let world = World::new(seed, sim::Order::Immediate);
        self.add_disks(&world);
        world
    }

    fn add_disks(&self, world: &World) {
        for (name, content) in &self.base.disks {
            let device = Capabilities {
                grows_zeroed: false,
                discards_to_zero: false,
                resizable: false,
                ..Capabilities::REGULAR_FILE
            };
            let file = if self.config.device.is_some() { device } else { Capabilities::REGULAR_FILE };
            let capabilities = Capabilities { read_only: name.starts_with("below"), ..file };
            world.add_disk(name, capabilities, content.clone());
        }
        if self.config.device.is_none() {
            world.expect_room_first(0, self.config.cluster());
        }
    }

    /// Opens the image of a world with any options.
    pub async fn open_with(&self, world: &World, options: Options) -> Result<Qcow2, Error> {
        self.open_over(world, options, |disk| world.open(disk)).await
    }

    /// The same over files that the caller has opened.
    async fn open_over(
        &self,
        world: &World,
        options: Options,
        file: impl Fn(usize) -> SimStorage,
    ) -> Result<Qcow2, Error> {
        let second = || Arc::new(file(1));
        let backing: Option<Arc<dyn Block>> = match self.config.below {
            Below::Nothing => None,
            Below::Raw(_) => Some(Arc::new(Raw::new(second()))),
            Below::Qcow2(_) => {
                let files = Files { file: second(), data: None, backing: None };
                let options = Options { writable: false, ..options };
                Some(Arc::new(Qcow2::open(files, options, Arc::new(Machine)).await?))
            }
            Below::Chain(_) => Some(self.open_chain(world, options).await?),
        };
        let data = (self.config.data_in != DataIn::Image).then(|| second() as Arc<dyn Storage>);
        let files = Files { file: Arc::new(file(0)), data, backing };
        match self.config.encrypted {
            false => Qcow2::open(files, options, Arc::new(Machine)).await,
            true => {
                let password = Secret::new(PASSWORD.to_vec());
                Qcow2::open_encrypted(files, &password, options, Arc::new(Machine)).await
            }
        }
    }

    /// All files as the opener of images opens them: each lock first.
    async fn locked_files(&self, world: &World) -> (RefCell<Vec<Option<SimStorage>>>, Vec<DiskLock>) {
        let (mut files, mut locks) = (Vec::new(), Vec::new());
        for disk in 0..world.disks() {
            let role = if world.capabilities(disk).read_only { Role::Reader } else { Role::Writer };
            let opened = open_locked(&world.find(disk), role, world).await;
            let (file, lock) = opened.expect("the other holder gives it back");
            files.push(Some(file));
            locks.push(lock);
        }
        (RefCell::new(files), locks)
    }

    async fn open_chain(&self, world: &World, options: Options) -> Result<Arc<dyn Block>, Error> {
        let lowest = CHAIN_FILES.len();
        let mut layer: Arc<dyn Block> = Arc::new(Raw::new(Arc::new(world.open(lowest))));
        for disk in (1..lowest).rev() {
            let files = Files { file: Arc::new(world.open(disk)), data: None, backing: Some(layer) };
            let options = Options { writable: false, ..options };
            layer = Arc::new(Qcow2::open(files, options, Arc::new(Machine)).await?);
        }
        Ok(layer)
    }

    /// What the first user of an image after a crash does: a dirty one is repaired. `check` may then
    /// find nothing worse than leaks; their number is given.
    async fn checked(&self, world: &World) -> Result<u64, String> {
        let repair = if judge::is_dirty(&world.current(0)) { Repair::All } else { Repair::None };
        let mut found = Vec::new();
        let mut listen = |seen: Progress<'_>| {
            if let Progress::Found(finding) = seen {
                found.push(finding.to_string());
            }
        };
        let report = check(&world.open(0), repair, &mut listen).await.map_err(|error| error.to_string())?;
        match (report.corruptions, report.check_errors) {
            (0, 0) => Ok(report.leaks),
            _ => Err(format!("{report:?}: {}", found.join("; "))),
        }
    }
}

impl Target for Qcow2Target {
    type Subject = Disk;

    fn name(&self) -> String {
        self.config.name.into()
    }

    fn abilities(&self) -> Abilities {
        let v2_above_something = self.config.is_v2() && self.config.below != Below::Nothing;
        let discarded = match self.config.discard {
            Discard::Ignored => DiscardedReads::ZeroesOrOld,
            _ if v2_above_something => DiscardedReads::ZeroesOrOld,
            _ => DiscardedReads::ZeroesInUnits(self.config.cluster()),
        };
        Abilities {
            size: self.config.size,
            unit: self.config.cluster(),
            alignment: 1,
            discarded,
            variants: 5,
            resize: self.config.resized,
            snapshots: self.config.snapshotted,
            change: self.config.changed,
            second_writer: self.config.second_writer,
        }
    }

    async fn build(&self, world: &World, model: &mut Model) -> Result<(), String> {
        self.add_disks(world);
        for (offset, len) in &self.base.preloads {
            model.preload(*offset, *len);
        }
        Ok(())
    }

    async fn open(&self, world: &World, variant: u32) -> Result<Disk, Error> {
        let (files, locks) = self.locked_files(world).await;
        let file = |disk: usize| files.borrow_mut()[disk].take().expect("a file is opened once");
        let image = self.open_over(world, self.config.options(variant), file).await?;
        let failed = Rc::new(Cell::new(0));
        if self.config.prefetch != (variant == 4) {
            let (image, failed) = (image.clone(), Rc::clone(&failed));
            sim::spawn(async move {
                if image.prefetch().await.is_err() {
                    failed.set(failed.get() + 1);
                }
            });
        }
        let packs = match self.config.packs {
            true => Some(Compressing::new(image.clone(), 2)?),
            false => None,
        };
        Ok(Disk(image, failed, self.config, RefCell::new(locks), packs))
    }

    fn read_alone(&self) -> Option<usize> {
        (self.config.data_in == DataIn::RawFile).then_some(1)
    }

    async fn check(&self, world: &World) -> Result<u64, String> {
        if self.config.bitmap {
            self.bitmaps_are_true(world).await?;
        }
        let leaks = self.checked(world).await?;
        // The table moves with every snapshot that comes or goes.
        let frozen = if self.config.snapshotted { &[][..] } else { &self.base.frozen };
        judge::check(&world.current(0), frozen)?;
        Ok(leaks)
    }
}

impl Subject for Disk {
    type Error = Error;

    fn size(&self) -> u64 {
        self.0.size()
    }

    async fn read(&self, offset: u64, mut buf: IoBuf) -> (Result<(), Error>, IoBuf) {
        // As a door does it: first what is in memory.
        match self.0.try_read(offset, &mut buf, Hints::NONE) {
            None => {
                let (result, buf) = self.0.read(offset, buf, Hints::NONE).await;
                return (result.map(drop), buf);
            }
            Some(ReadKind::Data) => {}
            Some(ReadKind::Zeroes) => buf.fill(0),
        }
        (Ok(()), buf)
    }

    async fn write(&self, offset: u64, data: IoVec, durability: Durability) -> Result<(), Error> {
        match &self.4 {
            Some(packs) => Block::write(packs, offset, data, Hints::NONE).await?,
            None => self.0.write(offset, data, Hints::NONE).await?,
        }
        self.durable(durability).await
    }

    async fn zero(&self, offset: u64, len: u64, how: Zeroing, durability: Durability) -> Result<(), Error> {
        let options = ZeroOptions { unmap: how == Zeroing::Unmap, fast_only: false };
        self.0.zero(offset, len, options).await?;
        self.durable(durability).await
    }

    async fn discard(&self, offset: u64, len: u64) -> Result<(), Error> {
        self.0.discard(offset, len).await
    }

    /// What an administrator does while requests run: caches dropped, made tiny, ample, or cut otherwise.
    async fn tidy(&self, how: u32) -> Result<(), Error> {
        let sizes =
            |l2_bytes, l2_entry_bytes| CacheRequest { l2_bytes, l2_entry_bytes, ..CacheRequest::default() };
        match how {
            0 => self.0.set_caches(sizes(Some(1), None)).await.map(drop),
            1 => self.0.set_caches(sizes(None, None)).await.map(drop),
            2 => self.0.set_caches(sizes(None, Some(512))).await.map(drop),
            3..=5 => self.0.hand_to_kernel().await,
            _ => {
                self.0.clean_cache();
                Ok(())
            }
        }
    }

    async fn flush(&self) -> Result<(), Error> {
        self.0.flush().await
    }

    async fn manage(&self, operation: Management) -> Result<(), Error> {
        match operation {
            Management::Resize(size) => {
                let options =
                    ResizeOptions { shrink: true, bitmaps: self.2.bitmap, ..ResizeOptions::default() };
                self.0.resize(size, options).await
            }
            Management::SnapshotCreate(number) => {
                let new = NewSnapshot { name: named(number), ..NewSnapshot::default() };
                self.0.create_snapshot(new).await.map(drop)
            }
            Management::SnapshotApply(number) => {
                self.0.apply_snapshot(SnapshotName::Name(named(number))).await
            }
            Management::SnapshotDelete(number) => {
                self.0.delete_snapshot(SnapshotName::Name(named(number))).await.map(drop)
            }
            Management::Change(variant) => {
                let options = self.2.options(variant);
                self.0.set_lazy_refcounts(options.lazy_refcounts).await?;
                self.0.set_overlap_check(options.overlap_check).await?;
                self.0.set_caches(options.cache).await.map(drop)
            }
        }
    }

    async fn snapshots(&self) -> Result<Option<Vec<u32>>, Error> {
        let found = self.0.snapshots().await?;
        let number = |entry: &SnapshotEntry| entry.name_text().strip_prefix(CLIENTS)?.parse().ok();
        Ok(Some(found.iter().filter_map(number).collect()))
    }

    fn background_errors(&self) -> u64 {
        let status = self.0.status();
        status.leaked_clusters + status.bitmaps_put_off + self.1.get()
    }

    async fn close(&self) -> Result<(), Error> {
        let closed = match &self.4 {
            Some(packs) => Block::close(packs).await,
            None => self.0.close().await,
        };
        self.3.borrow_mut().clear();
        closed
    }
}

/// Before the number of a snapshot that a client took; those made with the image have none.
const CLIENTS: &str = "client's ";

fn named(number: u32) -> String {
    format!("{CLIENTS}{number}")
}

impl Disk {
    async fn durable(&self, durability: Durability) -> Result<(), Error> {
        match durability {
            Durability::AtFlush => Ok(()),
            Durability::AtReply => self.0.flush().await,
        }
    }
}
