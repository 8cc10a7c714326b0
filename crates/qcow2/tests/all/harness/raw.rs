//! A raw disk as the simulation sees it: the layer that serves one, over a simulated file, with or without a file for its bitmaps.

use std::sync::Arc;

use block::{Block, Error, ErrorKind, Raw, ZeroOptions};
use qcow2::bitmap::{BitmapChange, NewBitmap};
use qcow2::{CreateOptions, Files, Options, Qcow2, WithBitmaps, create};
use sim::{
    Abilities, Content, CrashState, DiscardedReads, DiskLock, Durability, Management, Model, SECTOR_BYTES,
    SimStorage, Subject, Target, World,
};
use storage::{Capabilities, Hints, IoBuf, IoVec, Role, Zeroing, open_locked};

use super::bitmaps::covers;
use super::target::Machine;

/// Bytes of the disk.
const SIZE: u64 = 256 << 10;

/// The file of the disk, and that of its bitmaps.
const DISK: usize = 0;
const BITMAPS: usize = 1;

/// Bytes of regions in the record of changes before bitmaps are stored.
const SLACK_BYTES: u64 = 64 << 10;

/// A raw disk in a regular file.
pub struct RawTarget {
    /// A persistent bitmap, in a file of its own.
    pub has_bitmap: bool,
}

/// One without bitmaps.
pub const RAW: RawTarget = RawTarget { has_bitmap: false };
/// One with a bitmap.
pub const RAW_WITH_BITMAP: RawTarget = RawTarget { has_bitmap: true };

/// An open one, and the locks on its files.
pub struct RawDisk(Arc<dyn Block>, Vec<DiskLock>);

async fn open_bitmaps(file: SimStorage, writable: bool) -> Result<Qcow2, Error> {
    let files = Files { file: Arc::new(file), data: None, backing: None };
    let options = Options {
        writable,
        allocation_reserve: Some(0),
        bitmap_slack: Some(SLACK_BYTES),
        ..Options::default()
    };
    Qcow2::open(files, options, Arc::new(Machine)).await
}

impl RawTarget {
    /// What the disk with the bitmaps of `image` is.
    async fn tracked(file: SimStorage, image: SimStorage) -> Result<WithBitmaps, Error> {
        let file = Arc::new(file);
        let raw = Arc::new(Raw::new(Arc::clone(&file) as _));
        WithBitmaps::new(raw, file, open_bitmaps(image, true).await?).await
    }

    async fn make_bitmap(world: &World) -> Result<(), Error> {
        let image = world.add_disk("disk.bitmaps", Capabilities::REGULAR_FILE, Content::zeroed(0));
        let options = CreateOptions { size: SIZE, cluster_size: 4096, ..CreateOptions::default() };
        create(&image, None, &options).await.expect("an image");
        let disk = Self::tracked(world.open(DISK), image).await?;
        let new = NewBitmap { granularity_bytes: Some(4096), recording: true, persistent: true };
        disk.bitmaps().change_bitmap("b", BitmapChange::Add(new)).await?;
        disk.close().await
    }

    /// The bitmap has as dirty what is not as it was, which is zeroes; gives whether it is there and to be trusted.
    async fn bitmap_is_true(world: &World) -> Result<bool, String> {
        let image = match open_bitmaps(world.open(BITMAPS), false).await {
            Err(error) if error.kind() == ErrorKind::Refused => return Ok(false),
            opened => opened.map_err(|error| error.to_string())?,
        };
        let mut bytes = vec![0; SIZE as usize];
        world.current(DISK).read(0, &mut bytes);
        let sectors = (0..).step_by(SECTOR_BYTES as usize).zip(bytes.chunks(SECTOR_BYTES as usize));
        let changed = sectors.filter(|(_, bytes)| bytes.iter().any(|byte| *byte != 0)).map(|(at, _)| at);
        let changed: Vec<u64> = changed.collect();
        let bitmaps = image.bitmaps();
        for bitmap in &bitmaps {
            covers(bitmap, &changed).await?;
        }
        Ok(!bitmaps.is_empty())
    }

    /// No crash makes a bitmap inconsistent.
    pub fn keeps_its_bitmap(&self, state: &CrashState) -> Result<(), String> {
        if !self.has_bitmap {
            return Ok(());
        }
        let (world, _disks) = state.boot(1);
        let found = sim::run(&world, 1, async |sim| Self::bitmap_is_true(sim.world()).await);
        match found.map_err(|stuck| stuck.to_string())?? {
            false => Err("the bitmap is lost".into()),
            true => Ok(()),
        }
    }
}

impl Target for RawTarget {
    type Subject = RawDisk;

    fn name(&self) -> String {
        if self.has_bitmap { "raw_with_bitmap".into() } else { "raw".into() }
    }

    fn abilities(&self) -> Abilities {
        Abilities {
            size: SIZE,
            unit: 4096,
            alignment: 1,
            discarded: DiscardedReads::ZeroesInUnits(SECTOR_BYTES),
            variants: 1,
            resize: false,
            snapshots: false,
            change: false,
            second_writer: true,
        }
    }

    async fn build(&self, world: &World, _model: &mut Model) -> Result<(), String> {
        world.add_disk("disk.raw", Capabilities::REGULAR_FILE, Content::zeroed(SIZE));
        match self.has_bitmap {
            true => Self::make_bitmap(world).await.map_err(|error| error.to_string()),
            false => Ok(()),
        }
    }

    async fn open(&self, world: &World, _variant: u32) -> Result<RawDisk, Error> {
        let (mut files, mut locks) = (Vec::new(), Vec::new());
        for disk in 0..world.disks() {
            let opened = open_locked(&world.find(disk), Role::Writer, world).await;
            let (file, lock) = opened.expect("the other holder gives it back");
            files.push(file);
            locks.push(lock);
        }
        let block: Arc<dyn Block> = match (files.pop(), files.pop()) {
            (Some(image), Some(file)) => Arc::new(Self::tracked(file, image).await?),
            (Some(file), None) => Arc::new(Raw::new(Arc::new(file))),
            (None, _) => unreachable!("there is a disk"),
        };
        Ok(RawDisk(block, locks))
    }

    async fn check(&self, world: &World) -> Result<u64, String> {
        if self.has_bitmap {
            Self::bitmap_is_true(world).await?;
        }
        match world.current(DISK).length() {
            SIZE => Ok(0),
            length => Err(format!("the file has {length} bytes, the disk {SIZE}")),
        }
    }
}

impl Subject for RawDisk {
    type Error = Error;

    fn size(&self) -> u64 {
        self.0.size()
    }

    async fn read(&self, offset: u64, buf: IoBuf) -> (Result<(), Error>, IoBuf) {
        let (result, buf) = self.0.read(offset, buf, Hints::NONE).await;
        (result.map(drop), buf)
    }

    async fn write(&self, offset: u64, data: IoVec, durability: Durability) -> Result<(), Error> {
        self.0.write(offset, data, Hints::NONE).await?;
        self.durable(durability).await
    }

    async fn zero(&self, offset: u64, len: u64, how: Zeroing, durability: Durability) -> Result<(), Error> {
        let options = match how {
            Zeroing::Keep => ZeroOptions::default(),
            Zeroing::Unmap => ZeroOptions { unmap: true, fast_only: false },
            Zeroing::FastOnly => ZeroOptions { unmap: true, fast_only: true },
        };
        self.0.zero(offset, len, options).await?;
        self.durable(durability).await
    }

    async fn discard(&self, offset: u64, len: u64) -> Result<(), Error> {
        self.0.discard(offset, len).await
    }

    async fn flush(&self) -> Result<(), Error> {
        self.0.flush().await
    }

    async fn manage(&self, operation: Management) -> Result<(), Error> {
        unreachable!("a raw disk has no {operation:?}")
    }

    fn background_errors(&self) -> u64 {
        let status = self.0.downcast_ref::<WithBitmaps>().map(|disk| disk.bitmaps().status());
        status.map_or(0, |status| status.leaked_clusters + status.bitmaps_put_off)
    }

    async fn close(&self) -> Result<(), Error> {
        self.0.close().await
    }
}

impl RawDisk {
    async fn durable(&self, durability: Durability) -> Result<(), Error> {
        match durability {
            Durability::AtFlush => Ok(()),
            Durability::AtReply => self.0.flush().await,
        }
    }
}
