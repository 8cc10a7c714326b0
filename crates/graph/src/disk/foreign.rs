//! Requests on memory of others (a guest's), which is filled and written in place where the blocks below can.

use block::pace::{Pace, step_bytes};
use block::{Error, ReadKind};
use storage::{ForeignBytes, Hints};
use throttle::Request;

use super::Disk;
use crate::front::{Charge, Kind};
use crate::options::DetectZeroes;

impl Disk {
    /// As [`Disk::try_read`], into memory of others.
    pub fn try_read_into(&self, offset: u64, memory: &ForeignBytes, hints: Hints) -> Option<ReadKind> {
        self.read_inline(offset, memory.len() as u64, |top| top.try_read_into(offset, memory, hints))
    }

    /// As [`Disk::read_paced`], into memory of others, which holds anything after a failure.
    pub async fn read_into(
        &self,
        offset: u64,
        memory: ForeignBytes,
        hints: Hints,
        pace: &impl Pace,
    ) -> Result<ReadKind, Error> {
        let bytes = memory.len() as u64;
        self.front.note(Kind::Read, offset, bytes);
        let inside = self.front.begin(Kind::Read, Charge::Whole(Request::read(bytes)), pace).await;
        inside.end(self.read_into_in_steps(offset, memory, hints, pace).await, bytes)
    }

    async fn read_into_in_steps(
        &self,
        offset: u64,
        memory: ForeignBytes,
        hints: Hints,
        pace: &impl Pace,
    ) -> Result<ReadKind, Error> {
        let layers = self.layers();
        let (mut done, mut kind) = (0, ReadKind::Zeroes);
        while done < memory.len() {
            let at = offset + done as u64;
            let step = step_bytes(pace, at, (memory.len() - done) as u64);
            pace.step(step).await;
            // At most what is left of `memory`.
            let end = done + step as usize;
            if layers.top.read_into(at, memory.slice(done, end), hints).await? == ReadKind::Data {
                kind = ReadKind::Data;
            }
            done = end;
        }
        Ok(kind)
    }

    /// As [`Disk::write_paced`], of memory of others. Where zeroes are detected the bytes are copied first: what was found to be zero
    /// could be something else by the time it is written.
    pub async fn write_from(
        &self,
        offset: u64,
        memory: ForeignBytes,
        fua: bool,
        hints: Hints,
        pace: &impl Pace,
    ) -> Result<(), Error> {
        let bytes = memory.len() as u64;
        self.front.note(Kind::Write, offset, bytes);
        let inside = self.front.begin(Kind::Write, Charge::Whole(Request::write(bytes)), pace).await;
        inside.end(self.write_from_inside(offset, memory, fua, hints, pace).await, bytes)
    }

    async fn write_from_inside(
        &self,
        offset: u64,
        memory: ForeignBytes,
        fua: bool,
        hints: Hints,
        pace: &impl Pace,
    ) -> Result<(), Error> {
        if self.writable_now()?.detect_zeroes != DetectZeroes::Off {
            let copy = memory.to_bytes().map_err(|why| block::not_copied(&self.name, why))?;
            return self.write_inside(offset, copy.into(), fua, hints, pace).await;
        }
        // The block below looks at one step at a time.
        self.check_inside(offset, memory.len() as u64)?;
        let layers = self.layers();
        let mut done = 0;
        while done < memory.len() {
            let at = offset + done as u64;
            let step = step_bytes(pace, at, (memory.len() - done) as u64);
            pace.step(step).await;
            // At most what is left of `memory`.
            let end = done + step as usize;
            layers.top.write_from(at, memory.slice(done, end), hints).await?;
            done = end;
        }
        self.settle(fua).await
    }
}
