//! What is there: `length`, `info`, `alloc`, `map`.

use std::io::Write;

use block::{Block, SECTOR_BYTES};
use graph::Disk;

use super::failed::Failed;
use super::report::{reason, size};
use super::words::bytes;
use crate::info::show_specific;

/// `length`: the size of the disk.
pub fn length(disk: &Disk, out: &mut dyn Write) -> Result<(), Failed> {
    Ok(writeln!(out, "{}", size(disk.size()))?)
}

/// `info`: the format, and what a header says. `bare`: the driver of a disk that is a file without a format, of which qemu-io has nothing but that, twice.
pub async fn info(disk: &Disk, bare: Option<&str>, out: &mut dyn Write) -> Result<(), Failed> {
    if let Some(driver) = bare {
        writeln!(out, "format name: {driver}\nformat name: {driver}")?;
        return Err(Failed::Shown);
    }
    writeln!(out, "format name: {}", Block::driver(disk))?;
    let Some(image) = disk.image() else {
        writeln!(out, "cluster size: 0 bytes")?;
        return Ok(writeln!(out, "vm state offset: 0 bytes")?);
    };
    let geometry = image.geometry();
    writeln!(out, "cluster size: {}", size(geometry.cluster_size()))?;
    // Behind the disk, where the next table of the map begins.
    let behind = disk.size().next_multiple_of(geometry.bytes_per_l2_table());
    writeln!(out, "vm state offset: {}", size(behind))?;
    let header = image.header().await;
    let bitmaps = qcow2::bitmap::list(&**image.file(), &header).await;
    let bitmaps = bitmaps.map_err(|error| Failed::because("cannot read the bitmap directory", &error))?;
    Ok(show_specific(out, &header, &bitmaps)?)
}

/// A part of the disk that is allocated, or not, in the uppermost image.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Part {
    len: u64,
    allocated: bool,
}

async fn part(disk: &Disk, offset: u64, len: u64) -> Result<Part, block::Error> {
    let status = disk.block_status(offset, len).await?;
    Ok(Part { len: status.len, allocated: status.present && status.depth == 0 })
}

/// `alloc`: how many bytes of a range are allocated. `words` are an offset and perhaps a length.
pub async fn alloc(disk: &Disk, words: &[&str], out: &mut dyn Write) -> Result<(), Failed> {
    let number = |place: usize, what| words.get(place).map(|text| bytes(text, what)).transpose();
    let offset = number(0, "offset")?.unwrap_or(0);
    let asked = number(1, "length")?.unwrap_or(SECTOR_BYTES);
    let len = asked.min(disk.size().saturating_sub(offset));
    let (mut at, end, mut sum) = (offset, offset + len, 0);
    while at < end {
        match part(disk, at, end - at).await {
            Ok(part) => {
                sum += if part.allocated { part.len } else { 0 };
                at += part.len;
            }
            Err(error) => return cannot_ask(&error, out),
        }
    }
    Ok(writeln!(out, "{sum}/{len} bytes allocated at offset {}", size(offset))?)
}

/// `map`: all parts of the disk.
pub async fn map(disk: &Disk, out: &mut dyn Write) -> Result<(), Failed> {
    let end = disk.size();
    let (mut at, mut last) = (0, None::<(u64, Part)>);
    while at < end {
        let next = match part(disk, at, end - at).await {
            Ok(next) => next,
            Err(error) => return cannot_ask(&error, out),
        };
        last = match last {
            Some((start, part)) if part.allocated == next.allocated => {
                Some((start, Part { len: part.len + next.len, ..part }))
            }
            other => {
                other.map_or(Ok(()), |(start, part)| show_part(start, part, out))?;
                Some((at, next))
            }
        };
        at += next.len;
    }
    Ok(last.map_or(Ok(()), |(start, part)| show_part(start, part, out))?)
}

fn show_part(start: u64, Part { len, allocated }: Part, out: &mut dyn Write) -> std::io::Result<()> {
    let words = if allocated { "    allocated" } else { "not allocated" };
    writeln!(out, "{} ({len:#x}) bytes {words} at offset {} ({start:#x})", size(len), size(start))
}

fn cannot_ask(error: &block::Error, out: &mut dyn Write) -> Result<(), Failed> {
    writeln!(out, "is_allocated failed: {}", reason(error))?;
    Err(Failed::Shown)
}
