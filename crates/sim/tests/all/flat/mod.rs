//! A disk that is a file: nothing can be simpler, so whatever the harness says against it is wrong.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::io;
use std::rc::Rc;

use sim::{
    Abilities, Content, DiscardedReads, Durability, Management, Model, SimStorage, Subject, Target, World,
};
use storage::{Capabilities, Hints, IoBuf, IoBytes, IoVec, Storage, Zeroing};

const SIZE: u64 = 64 << 10;

/// The file, with copies of it as snapshots; those live in memory only.
#[derive(Default)]
pub struct FlatTarget {
    pub snapshots: bool,
    copies: Rc<RefCell<BTreeMap<u32, Vec<u8>>>>,
}

impl FlatTarget {
    pub fn with_snapshots() -> Self {
        Self { snapshots: true, ..Self::default() }
    }
}

pub struct Flat {
    disk: SimStorage,
    copies: Rc<RefCell<BTreeMap<u32, Vec<u8>>>>,
}

impl Target for FlatTarget {
    type Subject = Flat;

    fn name(&self) -> String {
        "flat".into()
    }

    fn abilities(&self) -> Abilities {
        Abilities {
            size: SIZE,
            unit: 4096,
            alignment: 1,
            discarded: DiscardedReads::ZeroesInUnits(1),
            variants: 1,
            resize: true,
            snapshots: self.snapshots,
            change: false,
            second_writer: false,
        }
    }

    async fn build(&self, world: &World, model: &mut Model) -> Result<(), String> {
        let version = model.preload(0, 8192);
        let mut content = Content::zeroed(SIZE);
        content.write(0, &model.bytes(version, 0, 8192));
        world.add_disk("flat", Capabilities::REGULAR_FILE, content);
        self.copies.borrow_mut().clear();
        Ok(())
    }

    async fn open(&self, world: &World, _variant: u32) -> Result<Flat, io::Error> {
        Ok(Flat { disk: world.open(0), copies: Rc::clone(&self.copies) })
    }

    async fn check(&self, _world: &World) -> Result<u64, String> {
        Ok(0)
    }
}

impl Flat {
    async fn resize(&self, size: u64) -> io::Result<()> {
        self.disk.shorten_to(size).await?;
        self.disk.grow_to(size).await
    }
}

impl Subject for Flat {
    type Error = io::Error;

    fn size(&self) -> u64 {
        self.disk.length()
    }

    async fn read(&self, offset: u64, buf: IoBuf) -> (io::Result<()>, IoBuf) {
        self.disk.read(offset, buf, Hints::NONE).await
    }

    async fn write(&self, offset: u64, data: IoVec, durability: Durability) -> io::Result<()> {
        self.disk.write(offset, data, Hints::NONE).await?;
        if durability == Durability::AtReply { self.disk.flush().await } else { Ok(()) }
    }

    async fn zero(&self, offset: u64, len: u64, how: Zeroing, durability: Durability) -> io::Result<()> {
        self.disk.zero(offset, len, how).await?;
        if durability == Durability::AtReply { self.disk.flush().await } else { Ok(()) }
    }

    async fn discard(&self, offset: u64, len: u64) -> io::Result<()> {
        self.disk.discard(offset, len).await
    }

    async fn flush(&self) -> io::Result<()> {
        self.disk.flush().await
    }

    async fn manage(&self, operation: Management) -> io::Result<()> {
        match operation {
            Management::Resize(size) => self.resize(size).await,
            Management::SnapshotCreate(name) => {
                let (result, buf) =
                    self.disk.read(0, IoBuf::zeroed(self.disk.length() as usize), Hints::NONE).await;
                self.copies.borrow_mut().insert(name, buf.to_vec());
                result
            }
            Management::Change(_) => Ok(()),
            Management::SnapshotApply(name) => {
                let copy = self.copies.borrow().get(&name).cloned().ok_or(io::ErrorKind::NotFound)?;
                self.resize(copy.len() as u64).await?;
                self.disk.write(0, IoBytes::copy_from(&copy).into(), Hints::NONE).await
            }
            Management::SnapshotDelete(name) => {
                let gone = self.copies.borrow_mut().remove(&name);
                gone.map(drop).ok_or_else(|| io::ErrorKind::NotFound.into())
            }
        }
    }

    async fn close(&self) -> io::Result<()> {
        Ok(())
    }
}
