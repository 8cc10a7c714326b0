//! Reads and writes in steps, so that others get between.

use block::pace::{Pace, step_bytes};
use block::{Error, ReadKind};
use storage::{Hints, IoBuf, IoVec};

use super::Disk;

impl Disk {
    pub(super) async fn read_in_steps(
        &self,
        offset: u64,
        mut buf: IoBuf,
        hints: Hints,
        pace: &impl Pace,
    ) -> (Result<ReadKind, Error>, IoBuf) {
        let len = buf.len() as u64;
        let first = step_bytes(pace, offset, len);
        pace.step(first).await;
        let layers = self.layers();
        if first == len {
            return layers.top.read(offset, buf, hints).await;
        }
        let (mut done, mut step, mut kind) = (0, first, ReadKind::Zeroes);
        loop {
            // Both fit a length in memory, `len`.
            let mut part = buf.split_off(done as usize);
            let rest = part.split_off(step as usize);
            let (result, part) = layers.top.read(offset + done, part, hints).await;
            buf.rejoin(part);
            buf.rejoin(rest);
            match result {
                Ok(ReadKind::Data) => kind = ReadKind::Data,
                Ok(ReadKind::Zeroes) => {}
                Err(error) => return (Err(error), buf),
            }
            done += step;
            if done == len {
                return (Ok(kind), buf);
            }
            step = step_bytes(pace, offset + done, len - done);
            pace.step(step).await;
        }
    }

    pub(super) async fn write_in_steps(
        &self,
        offset: u64,
        data: IoVec,
        hints: Hints,
        pace: &impl Pace,
    ) -> Result<(), Error> {
        let len = data.len() as u64;
        // The block below looks at one step at a time.
        self.check_inside(offset, len)?;
        let layers = self.layers();
        let mut done = 0;
        while done < len {
            let step = step_bytes(pace, offset + done, len - done);
            pace.step(step).await;
            // Both fit a length in memory, `len`.
            let part =
                if step == len { data.clone() } else { data.slice(done as usize, (done + step) as usize) };
            layers.top.write(offset + done, part, hints).await?;
            done += step;
        }
        Ok(())
    }
}
