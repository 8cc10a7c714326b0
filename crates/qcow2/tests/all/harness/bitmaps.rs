//! Whether persistent bitmaps tell the truth: what changed since they were made is dirty, and little else.

use std::sync::Arc;

use block::ErrorKind;
use qcow2::Options;
use qcow2::bitmap::Bitmap;
use sim::{CLIENT_DISK, CrashState, World, fill};
use storage::{Hints, IoBuf};

use super::config::Config;
use super::judge;
use super::target::Qcow2Target;

const SECTOR: usize = 512;

/// Bytes of regions in the record of changes before bitmaps are stored.
pub const SLACK_BYTES: u64 = 256 << 10;

/// The most that one request adds to them: it spans nearly the whole disk in regions of 64 KiB, and the regions ahead.
const SLACK_OF_A_REQUEST: u64 = (2 << 20) + (8 << 16);

/// What the disk held when its bitmaps were made.
fn before(config: &Config, preloads: &[(u64, u64)]) -> Vec<u8> {
    let mut bytes = vec![0; config.size as usize];
    for (version, &(offset, len)) in (1u64..).zip(preloads) {
        let range = offset as usize..(offset + len) as usize;
        bytes[range].copy_from_slice(&fill(CLIENT_DISK, version, offset, len as usize));
    }
    bytes
}

/// The sectors that differ from what they were. Those that read as zeroes on a disk whose size changes may have been cut off and have come
/// back: then they are clean.
fn changed(config: &Config, before: &[u8], now: &[u8]) -> Vec<u64> {
    let zeroes = [0; SECTOR];
    let sectors = (0..).step_by(SECTOR).zip(now.chunks(SECTOR));
    let differs = |(at, bytes): &(usize, &[u8])| {
        let was = before.get(*at..at + bytes.len()).unwrap_or(&zeroes);
        *bytes != was && !(config.resized && *bytes == zeroes)
    };
    sectors.filter(differs).map(|(at, _)| at as u64).collect()
}

/// Whether `bitmap` has all these sectors as dirty.
pub async fn covers(bitmap: &Bitmap, sectors: &[u64]) -> Result<(), String> {
    let mut clean_up_to = 0;
    for &at in sectors {
        if at < clean_up_to {
            continue;
        }
        let said = bitmap.status(at, SECTOR as u64).await.map_err(|error| error.to_string())?;
        if !said.dirty {
            return Err(format!("{at:#x} changed, and bitmap {:?} says that it is clean", bitmap.name()));
        }
        clean_up_to = at + said.len;
    }
    Ok(())
}

impl Qcow2Target {
    /// Each bitmap that is to be trusted has as dirty what changed; gives how many those are.
    pub async fn bitmaps_are_true(&self, world: &World) -> Result<usize, String> {
        let options = Options { writable: false, ..Options::default() };
        let image = match self.open_with(world, options).await {
            Err(error) if error.kind() == ErrorKind::Refused => return Ok(0),
            opened => opened.map_err(|error| error.to_string())?,
        };
        let (read, now) = image.read(0, IoBuf::zeroed(image.size() as usize), Hints::NONE).await;
        read.map_err(|error| error.to_string())?;
        let before = before(self.config(), self.preloads());
        let sectors = changed(self.config(), &before, &now);
        let bitmaps: Vec<Arc<Bitmap>> = image.bitmaps();
        for bitmap in &bitmaps {
            covers(bitmap, &sectors).await?;
        }
        self.record_is_short(world)?;
        Ok(bitmaps.len())
    }

    /// The record of changes, which a crash makes dirty, is bounded.
    fn record_is_short(&self, world: &World) -> Result<(), String> {
        let file = world.current(0);
        let header = judge::header(&file)?;
        let (Some(record), Some(_)) = (header.extensions.record, header.extensions.bitmaps) else {
            return Ok(());
        };
        let mut bytes = vec![0; record.len as usize];
        file.read(record.offset.0, &mut bytes);
        let regions: u64 = bytes[SECTOR..].iter().map(|byte| u64::from(byte.count_ones())).sum();
        match regions << record.region_bits <= SLACK_BYTES + SLACK_OF_A_REQUEST {
            true => Ok(()),
            false => Err(format!("{regions} regions of {} bytes are recorded", 1u64 << record.region_bits)),
        }
    }

    /// No crash makes a bitmap inconsistent.
    pub fn keeps_its_bitmaps(&self, state: &CrashState) -> Result<(), String> {
        if !self.config().bitmap {
            return Ok(());
        }
        let (world, _disks) = state.boot(1);
        let found = sim::run(&world, 1, async |sim| self.bitmaps_are_true(sim.world()).await);
        match found.map_err(|stuck| stuck.to_string())?? {
            0 => Err("the bitmap is lost".into()),
            _ => Ok(()),
        }
    }
}
