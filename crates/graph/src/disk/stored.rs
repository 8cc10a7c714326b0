//! Copying data from one disk to another in its stored form.

use block::pace::Unpaced;
use block::{Error, Stored, Takes};
use throttle::Request;

use super::Disk;
use crate::front::{Charge, Kind};
use crate::options::DetectZeroes;

impl Disk {
    /// How the bytes at `offset` lie where they are; see [`block::Block::stored`]. Under limits nothing is said: what is read is charged,
    /// and this is a way around.
    pub(super) async fn stored(&self, offset: u64, len: u64, wanted: Takes) -> Result<Option<Stored>, Error> {
        if self.front.is_limited() {
            return Ok(None);
        }
        let inside = self.front.begin(Kind::Status, Charge::Free, &Unpaced).await;
        let stored = self.layers().top.stored(offset, len, wanted).await;
        inside.end(stored, len)
    }

    pub(super) fn takes(&self) -> Option<Takes> {
        let runtime = self.runtime.get();
        let as_it_is = !runtime.read_only && runtime.detect_zeroes == DetectZeroes::Off;
        if as_it_is { self.layers.load().top.takes() } else { None }
    }

    /// See [`block::Block::take`]. Costs what a write of as many bytes costs.
    pub(super) async fn take(&self, offset: u64, stored: Stored) -> Result<(), Error> {
        let bytes = stored.disk_bytes();
        self.front.note(Kind::Write, offset, bytes);
        let inside = self.front.begin(Kind::Write, Charge::Whole(Request::write(bytes)), &Unpaced).await;
        let taken = async {
            self.writable_now()?;
            self.layers().top.take(offset, stored).await?;
            self.settle(false).await
        };
        inside.end(taken.await, bytes)
    }
}
