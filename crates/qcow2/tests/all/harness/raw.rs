//! A raw disk as the simulation sees it: the layer that serves one, over a simulated file.

use std::sync::Arc;

use block::{Block, Error, Raw, ZeroOptions};
use sim::{
    Abilities, Content, DiscardedReads, DiskLock, Durability, Management, Model, SECTOR_BYTES, Subject,
    Target, World,
};
use storage::{Capabilities, Hints, IoBuf, IoVec, Role, Zeroing, open_locked};

/// Bytes of the disk.
const SIZE: u64 = 256 << 10;

/// A raw disk in a regular file.
pub struct RawTarget;

/// An open one, and the lock on its file.
pub struct RawDisk(Raw, DiskLock);

impl Target for RawTarget {
    type Subject = RawDisk;

    fn name(&self) -> String {
        "raw".into()
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
        Ok(())
    }

    async fn open(&self, world: &World, _variant: u32) -> Result<RawDisk, Error> {
        let opened = open_locked(&world.find(0), Role::Writer, world).await;
        let (file, lock) = opened.expect("the other holder gives it back");
        Ok(RawDisk(Raw::new(Arc::new(file)), lock))
    }

    async fn check(&self, world: &World) -> Result<u64, String> {
        match world.current(0).length() {
            SIZE => Ok(0),
            length => Err(format!("the file has {length} bytes, the disk {SIZE}")),
        }
    }
}

impl Subject for RawDisk {
    type Error = Error;

    fn size(&self) -> u64 {
        self.0.size
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
