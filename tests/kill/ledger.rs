//! What was sent, what was acknowledged, what was made durable: and so what a restart may show.

use black_box::Random;

/// Bytes of a block: what one request covers.
pub const BLOCK_BYTES: usize = 4096;

/// Bytes that are never torn.
pub const SECTOR_BYTES: usize = 512;

const SECTORS: usize = BLOCK_BYTES / SECTOR_BYTES;

/// Zeroes carry this version.
const ZERO: u64 = 0;

/// Something that was done to a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change {
    /// The stamp of this version was written.
    Write(u64),
    /// Zeroes were written.
    Zero,
    /// Given up: zeroes, or whatever was there.
    Trim,
}

/// A change, and when it was acknowledged: a number in the sequence of all acknowledgements.
#[derive(Clone, Copy, Debug)]
struct Sent {
    change: Change,
    acknowledged: Option<u64>,
    /// Durable by itself (FUA, or a mode that makes every write so).
    durable: bool,
}

/// One block: what its sectors were when the server started, and what was sent since.
#[derive(Clone, Debug, Default)]
struct Block {
    base: [u64; SECTORS],
    sent: Vec<Sent>,
}

/// All blocks of a disk.
#[derive(Debug)]
pub struct Ledger {
    blocks: Vec<Block>,
    versions: u64,
    acknowledgements: u64,
    /// Everything acknowledged up to here is durable.
    flushed: u64,
}

impl Ledger {
    /// A disk of `blocks` blocks of zeroes.
    pub fn new(blocks: usize) -> Self {
        Self { blocks: vec![Block::default(); blocks], versions: 0, acknowledgements: 0, flushed: 0 }
    }

    /// Blocks of the disk.
    pub fn blocks(&self) -> usize {
        self.blocks.len()
    }

    /// Requests acknowledged since the last restart.
    pub fn acknowledgements(&self) -> u64 {
        self.acknowledgements
    }

    /// A version never used before.
    pub fn next_version(&mut self) -> u64 {
        self.versions += 1;
        self.versions
    }

    /// A change of `block` is about to be sent.
    pub fn send(&mut self, block: usize, change: Change, durable: bool) {
        self.blocks[block].sent.push(Sent { change, acknowledged: None, durable });
    }

    /// The last change of `block` was acknowledged.
    pub fn acknowledge(&mut self, block: usize) {
        self.acknowledgements += 1;
        let last = self.blocks[block].sent.last_mut().expect("something was sent");
        last.acknowledged = Some(self.acknowledgements);
    }

    /// A flush that was sent when so many acknowledgements had arrived has succeeded.
    pub fn flush(&mut self, acknowledgements: u64) {
        self.flushed = self.flushed.max(acknowledgements);
    }

    /// Compares the disk after a restart, and goes on from what it holds.
    pub fn restart(&mut self, disk: &[u8]) -> Result<(), String> {
        for (index, found) in disk.chunks(BLOCK_BYTES).enumerate() {
            for (sector, found) in found.chunks(SECTOR_BYTES).enumerate() {
                let version = self.judge(index, sector, found)?;
                self.blocks[index].base[sector] = version;
            }
            self.blocks[index].sent.clear();
        }
        (self.acknowledgements, self.flushed) = (0, 0);
        Ok(())
    }

    /// The version of a sector, if it may be there.
    fn judge(&self, index: usize, sector: usize, found: &[u8]) -> Result<u64, String> {
        let block = &self.blocks[index];
        let allowed = self.allowed(block, sector);
        let version = version_of(found);
        let intact = found == stamp(index, sector, version);
        if intact && allowed.contains(&version) {
            return Ok(version);
        }
        Err(format!(
            "block {index}, sector {sector} (offset {:#x}): {} version {version}, allowed {allowed:?}; \
             base {}, sent {:?}, flushed up to acknowledgement {}",
            index * BLOCK_BYTES + sector * SECTOR_BYTES,
            if intact { "intact" } else { "garbled" },
            block.base[sector],
            block.sent,
            self.flushed
        ))
    }

    /// Versions that a sector may have: from the last durable one to the last sent.
    fn allowed(&self, block: &Block, sector: usize) -> Vec<u64> {
        let is_durable =
            |sent: &Sent| sent.acknowledged.is_some_and(|number| sent.durable || number <= self.flushed);
        let floor = block.sent.iter().rposition(is_durable);
        let mut allowed: Vec<u64> = Vec::new();
        // Behind a trim shows what was before it.
        let mut from = floor;
        while let Some(at) = from.filter(|&at| block.sent[at].change == Change::Trim) {
            from = at.checked_sub(1);
        }
        if from.is_none() {
            allowed.push(block.base[sector]);
        }
        allowed.extend(block.sent[from.unwrap_or(0)..].iter().map(|sent| match sent.change {
            Change::Write(version) => version,
            Change::Zero | Change::Trim => ZERO,
        }));
        allowed
    }
}

/// The bytes of a whole block.
pub fn stamp_block(index: usize, version: u64) -> Vec<u8> {
    (0..SECTORS).flat_map(|sector| stamp(index, sector, version)).collect()
}

/// A sector that says where it belongs and which version it is; every further byte follows from that.
fn stamp(index: usize, sector: usize, version: u64) -> Vec<u8> {
    let mut bytes = vec![0; SECTOR_BYTES];
    if version == ZERO {
        return bytes;
    }
    let address = (index * SECTORS + sector) as u64;
    Random::new(address ^ version.rotate_left(32)).fill(&mut bytes);
    bytes[..8].copy_from_slice(&version.to_le_bytes());
    bytes[8..16].copy_from_slice(&address.to_le_bytes());
    bytes
}

fn version_of(sector: &[u8]) -> u64 {
    u64::from_le_bytes(sector[..8].try_into().expect("eight bytes"))
}
