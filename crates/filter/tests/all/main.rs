//! The laws of filters, in a simulated world: requests end in any order, and the machine dies at any moment.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod copies;
mod crashes;

use std::sync::Arc;

use block::{Block, Raw};
use memory::{IoBuf, IoBytes, IoVec};
use qcow2::{Host, Work};
use sim::World;
use storage::{Hints, Storage};

/// Runs what an image starts beside requests.
#[derive(Debug)]
pub struct Machine;

impl Host for Machine {
    fn spawn(&self, work: Work) {
        sim::spawn(work);
    }
}

/// A disk of the world as a raw one.
pub fn raw(world: &World, disk: usize) -> Arc<dyn Block> {
    let storage: Arc<dyn Storage> = Arc::new(world.open(disk));
    let size = storage.length();
    Arc::new(Raw::part(storage, 0, size))
}

/// `len` bytes of this value.
pub fn bytes(value: u8, len: u64) -> IoVec {
    IoVec::from(IoBytes::copy_from(&vec![value; len as usize]))
}

/// What is at `at`.
pub async fn read(block: &dyn Block, at: u64, len: u64) -> Vec<u8> {
    let (result, buf) = block.read(at, IoBuf::uninit(len as usize), Hints::NONE).await;
    result.unwrap();
    buf.to_vec()
}
