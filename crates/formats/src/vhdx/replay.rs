//! A file as it is after the replay of its log, of which nothing is written.

use std::collections::BTreeMap;
use std::io;
use std::sync::Arc;

use memory::IoBuf;
use storage::{Capabilities, Extent, ExtentKind, Hints, IoFuture, Storage};

use super::log::{Change, Replay, SECTOR_BYTES, sector};

/// The file with the changes of its log.
#[derive(Debug)]
pub struct Replayed {
    below: Arc<dyn Storage>,
    log: IoBuf,
    changes: Changes,
    length: u64,
}

/// Changes by the place where they begin; no two overlap.
#[derive(Debug, Default)]
struct Changes(BTreeMap<u64, Change>);

impl Change {
    fn bytes(&self) -> u64 {
        match self {
            Self::Zeroes(len) => *len,
            Self::Sector { .. } => SECTOR_BYTES as u64,
        }
    }
}

impl Changes {
    /// Makes a change, which counts more than those before. All begin and end at multiples of a sector, so only zeroes are cut.
    fn put(&mut self, start: u64, change: Change) {
        let end = start + change.bytes();
        if let Some((before, old)) = self.0.range(..start).next_back().map(|(at, old)| (*at, *old)) {
            let old_end = before + old.bytes();
            if old_end > start {
                self.0.insert(before, Change::Zeroes(start - before));
                if old_end > end {
                    self.0.insert(end, Change::Zeroes(old_end - end));
                }
            }
        }
        while let Some((at, old)) = self.0.range(start..end).next().map(|(at, old)| (*at, *old)) {
            self.0.remove(&at);
            let old_end = at + old.bytes();
            if old_end > end {
                self.0.insert(end, Change::Zeroes(old_end - end));
            }
        }
        self.0.insert(start, change);
    }

    /// Changes of the range, in its order.
    fn within(&self, start: u64, end: u64) -> impl Iterator<Item = (u64, Change)> {
        let before = self.0.range(..start).next_back().filter(|(at, change)| *at + change.bytes() > start);
        before.into_iter().chain(self.0.range(start..end)).map(|(at, change)| (*at, *change))
    }
}

impl Replayed {
    pub fn new(below: Arc<dyn Storage>, Replay { log, changes: list, length }: Replay) -> Self {
        let (mut changes, mut length) = (Changes::default(), length.max(below.length()));
        for (at, change) in list {
            changes.put(at, change);
            length = length.max(at + change.bytes());
        }
        Self { below, log, changes, length }
    }

    fn change(&self, offset: u64, buf: &mut [u8]) {
        let end = offset + buf.len() as u64;
        for (at, change) in self.changes.within(offset, end) {
            let (from, to) = (at.max(offset), (at + change.bytes()).min(end));
            let Some(part) = buf.get_mut((from - offset) as usize..(to - offset) as usize) else { continue };
            match change {
                Change::Zeroes(_) => part.fill(0),
                Change::Sector { leading, trailing, data_at } => {
                    let bytes = sector(&self.log, leading, trailing, data_at);
                    let inside = (from - at) as usize;
                    part.copy_from_slice(&bytes[inside..inside + part.len()]);
                }
            }
        }
    }
}

impl Storage for Replayed {
    fn name(&self) -> &str {
        self.below.name()
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities { alignment: self.below.capabilities().alignment, ..Capabilities::READ_ONLY }
    }

    fn length(&self) -> u64 {
        self.length
    }

    fn read(&self, offset: u64, buf: IoBuf, hints: Hints) -> IoFuture<'_, (io::Result<()>, IoBuf)> {
        Box::pin(async move {
            let (result, mut buf) = self.below.read(offset, buf, hints).await;
            if result.is_ok() {
                self.change(offset, &mut buf);
            }
            (result, buf)
        })
    }

    fn extent(&self, offset: u64, len: u64) -> IoFuture<'_, io::Result<Extent>> {
        Box::pin(async move {
            let end = offset.saturating_add(len).min(self.length);
            match self.changes.within(offset, end).next() {
                Some((at, change)) if at <= offset => {
                    let kind = match change {
                        Change::Zeroes(_) => ExtentKind::Hole,
                        Change::Sector { .. } => ExtentKind::Data,
                    };
                    Ok(Extent { len: (at + change.bytes()).min(end) - offset, kind })
                }
                next => {
                    let end = next.map_or(end, |(at, _)| at);
                    let there = self.below.length().saturating_sub(offset).min(end - offset);
                    match there {
                        0 => Ok(Extent { len: end - offset, kind: ExtentKind::Hole }),
                        there => self.below.extent(offset, there).await,
                    }
                }
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn later_changes_cut_earlier_ones() {
        let sector = Change::Sector { leading: [1; 8], trailing: [2; 4], data_at: 8 };
        let mut changes = Changes::default();
        for (at, change) in [
            (0, Change::Zeroes(40960)),
            (8192, sector),
            (12288, Change::Zeroes(4096)),
            (4096, Change::Zeroes(8192)),
            (36864, Change::Zeroes(8192)),
        ] {
            changes.put(at, change);
        }
        let expected = [
            (0, Change::Zeroes(4096)),
            (4096, Change::Zeroes(8192)),
            (12288, Change::Zeroes(4096)),
            (16384, Change::Zeroes(20480)),
            (36864, Change::Zeroes(8192)),
        ];
        assert_eq!(changes.0.into_iter().collect::<Vec<_>>(), expected);
    }
}
