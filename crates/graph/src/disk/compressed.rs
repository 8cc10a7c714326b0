//! Writes whose whole clusters become compressed.

use std::thread::available_parallelism;

use block::pace::Unpaced;
use block::{Blame, Block, Error};
use qcow2::Compressing;
use storage::{Hints, IoVec};
use throttle::Request;

use super::Disk;
use crate::front::{Charge, Kind};

impl Disk {
    /// The image of the disk, to be written compressed on all cores.
    ///
    /// # Errors
    /// When it is no qcow2 image, or one that cannot have compressed clusters.
    pub fn compressing(&self) -> Result<Compressing, Error> {
        let image = self.image();
        let image = image.ok_or_else(|| {
            Blame::new(self.root().name()).unsupported("a raw disk has no compressed clusters")
        })?;
        Compressing::new(image, available_parallelism().map_or(1, usize::from))
    }

    /// As [`Disk::write`]; whole clusters are stored compressed where the image can do that and they get smaller.
    pub async fn write_compressed(&self, offset: u64, data: IoVec, hints: Hints) -> Result<(), Error> {
        let bytes = data.len() as u64;
        self.front.note(Kind::Write, offset, bytes);
        let inside = self.front.begin(Kind::Write, Charge::Whole(Request::write(bytes)), &Unpaced).await;
        inside.end(self.write_compressed_inside(offset, data, hints).await, bytes)
    }

    async fn write_compressed_inside(&self, offset: u64, data: IoVec, hints: Hints) -> Result<(), Error> {
        self.writable_now()?;
        self.check_inside(offset, data.len() as u64)?;
        let layers = self.layers();
        match layers.compressing() {
            Some(compressing) => Block::write(compressing, offset, data, hints).await?,
            // A job's filter, or another one, is over the image.
            None => layers.top.write_compressed(offset, data, hints).await?,
        }
        self.settle(false).await
    }
}
