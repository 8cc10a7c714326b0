//! A guest of a flat array of bytes: what it writes is noted there, and whatever it reads is compared.

use block::{Block, ReadKind, ZeroOptions};
use sim::{Rng, fill};
use storage::{Hints, IoBuf, IoBytes};

use super::shape::Case;

/// All that a block reads as.
pub async fn read_all(block: &dyn Block) -> Result<Vec<u8>, String> {
    read(block, 0, block.size() as usize).await
}

async fn read(block: &dyn Block, at: u64, len: usize) -> Result<Vec<u8>, String> {
    let (read, bytes) = block.read(at, IoBuf::zeroed(len), Hints::NONE).await;
    // What reads as zeroes need not be in the buffer.
    Ok(match read.map_err(|error| error.to_string())? {
        ReadKind::Zeroes => vec![0; len],
        ReadKind::Data => bytes.to_vec(),
    })
}

/// Writes the runs of sectors of `bytes` that differ from those of `before`.
pub async fn write_bytes(block: &dyn Block, bytes: &[u8], before: &[u8]) -> Result<(), String> {
    let sectors: Vec<bool> =
        bytes.chunks(512).zip(before.chunks(512)).map(|(bytes, before)| bytes != before).collect();
    let mut first = 0;
    for run in sectors.chunk_by(|a, b| a == b) {
        let range = first * 512..((first + run.len()) * 512).min(bytes.len());
        first += run.len();
        if run[0] {
            let at = range.start as u64;
            let written = block.write(at, IoBytes::copy_from(&bytes[range]).into(), Hints::NONE).await;
            written.map_err(|error| error.to_string())?;
        }
    }
    Ok(())
}

/// Where two arrays differ first, for people.
pub fn same(found: &[u8], expected: &[u8], what: &str) -> Result<(), String> {
    if found == expected {
        return Ok(());
    }
    let pairs = found.iter().zip(expected);
    let Some(at) = pairs.clone().position(|(found, expected)| found != expected) else {
        return Err(format!("{what} has {} bytes and not {}", found.len(), expected.len()));
    };
    let end = at + pairs.skip(at).position(|(found, expected)| found == expected).unwrap_or(1);
    let sector = at / 512 * 512;
    let named = |bytes: &[u8]| match bytes.get(sector..sector + 512).map(<[u8; 512]>::try_from) {
        Some(Ok(bytes)) => sim::SectorContent::in_sector(&bytes).to_string(),
        _ => "a part of a sector".into(),
    };
    Err(format!("{what} reads wrong at {at:#x}..{end:#x}: {} and not {}", named(found), named(expected)))
}

/// Whole clusters that are written compressed at a time, unless one alone is larger.
const PACKED_BYTES_MAX: u64 = 256 << 10;

/// As [`fill`], of sectors that begin as those do and then repeat themselves: they become much smaller, so that several clusters share one
/// of the file. `at` is where a sector begins.
fn packable(disk: u32, version: u64, at: u64, len: usize) -> Vec<u8> {
    let mut bytes = fill(disk, version, at, len);
    for sector in bytes.chunks_mut(512) {
        let (first, rest) = sector.split_at_mut(sector.len().min(32));
        rest.chunks_mut(8).for_each(|chunk| chunk.copy_from_slice(&first[24..24 + chunk.len()]));
    }
    bytes
}

/// One guest.
pub struct Guest {
    rng: Rng,
    case: Case,
    units: Vec<u64>,
    disk: u32,
    version: u64,
    /// What it has written so far, to whichever image.
    written: Vec<(u64, u64)>,
    /// What of it was written compressed.
    packed: Vec<(u64, u64)>,
    /// Which bytes it ever changed, if that is needed.
    pub touched: Option<Vec<bool>>,
}

impl Guest {
    /// One whose data carries the number `disk`.
    pub fn new(rng: Rng, case: Case, disk: u32) -> Self {
        let formats = case.layers().into_iter().map(|(format, _)| format).chain(case.target());
        let mut units: Vec<u64> = formats.map(|format| format.cluster).collect();
        let parts: Vec<u64> = units.iter().map(|unit| (unit / 32).max(512)).collect();
        units.extend(parts);
        units.extend([512, 4096, 64 << 10]);
        Self { rng, case, units, disk, version: 0, written: Vec::new(), packed: Vec::new(), touched: None }
    }

    /// A range around the boundaries of the clusters of some image.
    fn range(&mut self, size: u64) -> (u64, u64) {
        let unit = self.rng.pick(&self.units);
        let spot = self.rng.below(size / unit + 1) * unit;
        let at = match self.rng.below(4) {
            0 | 1 => spot,
            2 => (spot + 512 * self.rng.below(4)).saturating_sub(512 * self.rng.below(4)),
            _ => spot + self.rng.below(700),
        };
        let at = at.min(size - 1);
        let len = match self.rng.below(6) {
            0 => unit,
            1 => 512,
            2 => 512 * (1 + self.rng.below(8)),
            3 => 1 + self.rng.below(2000),
            4 => 4096,
            _ => self.rng.pick(&self.units) * (1 + self.rng.below(2)),
        };
        (at, len.min(96 << 10).min(size - at))
    }

    /// What is written: now and then all or a part of what was written compressed before, perhaps to a lower image.
    fn range_to_write(&mut self, size: u64) -> (u64, u64) {
        if self.packed.is_empty() || self.rng.chance(2, 3) {
            return self.range(size);
        }
        let (at, len) = self.rng.pick(&self.packed);
        let skip = if self.rng.chance(1, 3) { 0 } else { self.rng.below(len) };
        let (at, len) = (at + skip, len - skip);
        let len = if self.rng.chance(1, 3) { len } else { 1 + self.rng.below(len) };
        if at < size { (at, len.min(size - at)) } else { self.range(size) }
    }

    /// Half of the time what was written before, perhaps to a lower image: zeroes that hide something are those that matter.
    fn range_to_clear(&mut self, size: u64) -> (u64, u64) {
        match self.written.is_empty() || self.rng.chance(1, 2) {
            true => self.range(size),
            false => {
                let (at, len) = self.rng.pick(&self.written);
                if at < size { (at, len.min(size - at)) } else { self.range(size) }
            }
        }
    }

    /// Writes all of the block.
    pub async fn fill(&mut self, block: &dyn Block, flat: &mut [u8]) -> Result<(), String> {
        self.version += 1;
        flat.copy_from_slice(&fill(self.disk, self.version, 0, flat.len()));
        let data = IoBytes::copy_from(flat).into();
        block.write(0, data, Hints::NONE).await.map_err(|error| error.to_string())
    }

    /// Writes whole clusters to a block that compresses them.
    pub async fn pack(&mut self, block: &dyn Block, cluster: u64, flat: &mut [u8]) -> Result<(), String> {
        let size = flat.len() as u64;
        let clusters = (PACKED_BYTES_MAX / cluster).clamp(1, 5);
        let at = self.rng.below(size.div_ceil(cluster)) * cluster;
        let len = (cluster * (1 + self.rng.below(clusters))).min(size - at);
        self.version += 1;
        self.written.push((at, len));
        self.packed.push((at, len));
        let bytes = packable(self.disk, self.version, at, len as usize);
        let data = IoBytes::copy_from(&bytes).into();
        block.write(at, data, Hints::NONE).await.map_err(|error| error.to_string())?;
        flat[at as usize..(at + len) as usize].copy_from_slice(&bytes);
        Ok(())
    }

    /// Does something to the block, and the same to the array.
    pub async fn change(&mut self, block: &dyn Block, flat: &mut [u8]) -> Result<(), String> {
        let (write, zero, discard) = self.case.guests();
        let chosen = self.rng.below(write + zero + discard);
        let (at, len) = match chosen < write {
            true => self.range_to_write(flat.len() as u64),
            false => self.range_to_clear(flat.len() as u64),
        };
        let range = at as usize..(at + len) as usize;
        if let Some(touched) = &mut self.touched {
            // Version 2 has no zero flag: over nothing, zeroes are not recorded there (docs/internals/copies.md).
            let records_zeroes = !self.case.layers()[0].0.is_v2;
            touched[range.clone()].fill(chosen < write || (chosen < write + zero && records_zeroes));
        }
        if chosen < write {
            self.version += 1;
            self.written.push((at, len));
            let bytes = fill(self.disk, self.version, at, len as usize);
            let data = IoBytes::copy_from(&bytes).into();
            block.write(at, data, Hints::NONE).await.map_err(|error| error.to_string())?;
            flat[range].copy_from_slice(&bytes);
        } else if chosen < write + zero {
            let options = ZeroOptions { unmap: self.rng.chance(1, 2), fast_only: false };
            block.zero(at, len, options).await.map_err(|error| error.to_string())?;
            flat[range].fill(0);
        } else {
            block.discard(at, len).await.map_err(|error| error.to_string())?;
            // What it reads as is the block's choice: the old bytes or zeroes.
            let found = read(block, at, len as usize).await?;
            let is_wrong = |(now, old): (&u8, &u8)| *now != 0 && now != old;
            if found.iter().zip(&flat[range.clone()]).any(is_wrong) {
                return Err(format!("{at:#x}+{len:#x} reads as something else since it was discarded"));
            }
            flat[range].copy_from_slice(&found);
        }
        Ok(())
    }

    /// The block reads as the array.
    pub async fn same(&self, block: &dyn Block, flat: &[u8], what: &str) -> Result<(), String> {
        same(&read_all(block).await?, flat, what)
    }
}
