//! The snapshot table of an image.

use block::{Blame, BlockFuture};
use qcow2_layout::{
    DecodedSnapshot, Header, SNAPSHOT_TABLE_BYTES_MAX, SnapshotEntry, SnapshotError, Version,
    decode_snapshots,
};
use storage::Storage;

use crate::table_io::read_bytes;
use crate::{Error, lists};

/// Bytes of the snapshot table that are read first; the table says its length only entry by entry.
const FIRST_BYTES: u64 = 64 << 10;

/// The snapshot table of an image, and its length in bytes.
pub(crate) async fn read_table(
    file: &dyn Storage,
    header: &Header,
    blame: &Blame,
) -> Result<(Vec<SnapshotEntry>, u64), Error> {
    let offset = header.snapshots_offset.0;
    // QEMU does not write the padding behind the last entry: the file may end before it.
    let there = file.length().saturating_sub(offset).next_multiple_of(8).min(SNAPSHOT_TABLE_BYTES_MAX);
    let mut len = there.min(FIRST_BYTES);
    let no_memory = || blame.no_memory("the snapshot table");
    loop {
        // At most the limit on snapshot tables, and never more than the file holds.
        let bytes = read_bytes(file, offset, len).await.map_err(blame.io("reading the snapshot table"))?;
        match decode_snapshots(&bytes, header.snapshots) {
            Ok(decoded) => {
                let bytes = decoded.iter().map(|snapshot| snapshot.bytes as u64).sum();
                let entries = decoded.into_iter().map(|DecodedSnapshot { entry, .. }| entry);
                let mut entries = lists::collect(entries).map_err(|_| no_memory())?;
                if header.version == Version::V3 {
                    // Version 3 has to say a size. An entry without one is of the disk as it is, as for QEMU, and is written so.
                    let size = Some(header.size);
                    entries.iter_mut().for_each(|entry| entry.disk_size = entry.disk_size.or(size));
                }
                return Ok((entries, bytes));
            }
            Err(SnapshotError::NoMemory(_)) => return Err(no_memory()),
            Err(_) if len < there => len = (len * 8).min(there),
            Err(error) => return Err(blame.corrupt(format!("the snapshot table: {error}"))),
        }
    }
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
