//! The snapshot table of an image, read in parts: only what a caller keeps of its entries takes memory.

use block::{Blame, BlockFuture};
use qcow2_layout::{
    DecodedSnapshot, Header, SNAPSHOT_ENTRY_BYTES_MAX, SNAPSHOT_TABLE_BYTES_MAX, SnapshotEntry,
    SnapshotError, Version, decode_snapshot,
};
use storage::Storage;

use crate::Error;
use crate::table_io::read_bytes;

/// Bytes of the snapshot table that are read first.
const FIRST_BYTES: u64 = 64 << 10;
/// And at a time later: at least one entry is whole.
const PART_BYTES: u64 = 1 << 20;
const _: () = assert!(SNAPSHOT_ENTRY_BYTES_MAX < PART_BYTES as usize);

/// The snapshot table of an image, and its length in bytes.
pub(crate) async fn read_table(
    file: &dyn Storage,
    header: &Header,
    blame: &Blame,
) -> Result<(Vec<SnapshotEntry>, u64), Error> {
    let mut entries = Vec::new();
    let keep = |entry: SnapshotEntry| {
        entries.try_reserve(1).map_err(|_| no_memory(blame))?;
        entries.push(entry);
        Ok(())
    };
    let bytes = each_entry(file, header, blame, keep).await?;
    Ok((entries, bytes))
}

fn no_memory(blame: &Blame) -> Error {
    blame.no_memory("the snapshot table")
}

/// Calls `take` with each entry of the snapshot table, in order. Gives the table's length, which stands nowhere in the image. Holds 1 MiB of it at a time.
pub(crate) async fn each_entry(
    file: &dyn Storage,
    header: &Header,
    blame: &Blame,
    mut take: impl FnMut(SnapshotEntry) -> Result<(), Error>,
) -> Result<u64, Error> {
    let start = header.snapshots_offset.0;
    // QEMU does not write the padding behind the last entry: the file may end before it.
    let there = file.length().saturating_sub(start).next_multiple_of(8).min(SNAPSHOT_TABLE_BYTES_MAX);
    let corrupt = |error: &SnapshotError| blame.corrupt(format!("the snapshot table: {error}"));
    let (mut index, mut at, mut len) = (0, 0, FIRST_BYTES);
    while index < header.snapshots {
        let part = len.min(there - at);
        let window =
            read_bytes(file, start + at, part).await.map_err(blame.io("reading the snapshot table"))?;
        let mut done = 0;
        while index < header.snapshots {
            match decode_snapshot(window.get(done..).unwrap_or_default(), index) {
                Ok(DecodedSnapshot { mut entry, bytes, .. }) => {
                    if header.version == Version::V3 {
                        // Version 3 has to say a size. An entry without one is of the disk as it is, as for QEMU, and is written so.
                        entry.disk_size = entry.disk_size.or(Some(header.size));
                    }
                    take(entry)?;
                    done += bytes;
                    index += 1;
                }
                Err(SnapshotError::NoMemory(_)) => return Err(no_memory(blame)),
                // The next part begins with this entry, and is long enough for it.
                Err(SnapshotError::Truncated { .. })
                    if part < there - at && (done > 0 || len < PART_BYTES) =>
                {
                    break;
                }
                Err(SnapshotError::Truncated { index, needed, .. }) => {
                    let needed = at + done as u64 + needed;
                    return Err(corrupt(&match needed > SNAPSHOT_TABLE_BYTES_MAX {
                        true => SnapshotError::TableTooLarge { bytes: needed },
                        false => SnapshotError::Truncated { index, needed, len: there as usize },
                    }));
                }
                Err(error) => return Err(corrupt(&error)),
            }
        }
        at += done as u64;
        len = PART_BYTES;
    }
    Ok(at)
}

/// The internal snapshots of the image in `file`.
pub fn list<'a>(
    file: &'a dyn Storage,
    header: &'a Header,
) -> BlockFuture<'a, Result<Vec<SnapshotEntry>, Error>> {
    Box::pin(async move {
        if header.snapshots == 0 {
            return Ok(Vec::new());
        }
        read_table(file, header, &Blame::new(file.name())).await.map(|(entries, _)| entries)
    })
}
