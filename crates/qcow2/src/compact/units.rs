//! What one place of the file leads to: header fields, entries of directories and of the refcount table.

use qcow2_layout::{
    BitmapEntry, BitmapTableEntry, BitmapsExtension, HostOffset, RecordExtension, decode_bitmap_directory,
    decode_snapshots_dropping_extra,
};

use super::layout::{Layout, MOVES_MAX};
use super::{CompactError, Compaction, require_sound};
use crate::check::change::{Change, Copy, lower, raise};
use crate::check::pass::Pass;
use crate::check::{CheckError, Owner};
use crate::table_io::{PIECE_BYTES, read_bytes, write_bytes};

/// Fields of the header.
const L1_OFFSET_AT: u64 = 40;
const REFCOUNT_TABLE_OFFSET_AT: u64 = 48;
const SNAPSHOTS_OFFSET_AT: u64 = 64;

/// What is moved in one round, the first that has something to be moved. Nothing of one kind lies in what another of that kind
/// leads to.
pub(super) const KINDS: [Owner; 8] = [
    Owner::L1,
    Owner::SnapshotTable,
    Owner::RefcountTable,
    Owner::BitmapDirectory,
    Owner::BitmapTable,
    Owner::BitmapData,
    Owner::ChangeRecord,
    Owner::RefcountBlock,
];

/// Clusters that follow each other, and the one place that leads to them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Unit {
    /// Offset of the eight bytes that say where they are.
    pointer: u64,
    /// The first byte.
    pub(super) start: u64,
    /// Bytes.
    pub(super) len: u64,
}

/// A unit's new place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Moved {
    unit: Unit,
    to: u64,
}

impl Compaction<'_> {
    /// Moves metadata of one kind; false if none can.
    pub(super) async fn move_units(
        &mut self,
        pass: &mut Pass<'_>,
        layout: &Layout,
    ) -> Result<bool, CompactError> {
        for kind in KINDS {
            let moved = plan(pass, layout, kind).await?;
            if moved.is_empty() {
                continue;
            }
            let change = change(pass, &moved);
            match kind {
                Owner::RefcountBlock => self.move_blocks(pass, &moved, &change).await?,
                _ => {
                    let lead = async |pass: &mut Pass<'_>| write_pointers(pass, &moved).await;
                    self.make(pass, &change, lead).await?;
                }
            }
            return Ok(true);
        }
        Ok(false)
    }

    /// As [`Compaction::make`], but for refcount blocks: they are copied when the new places are counted, in whichever of them
    /// that is, and count the old places no more when the table leads to the copies.
    async fn move_blocks(
        &mut self,
        pass: &mut Pass<'_>,
        moved: &[Moved],
        change: &Change,
    ) -> Result<(), CompactError> {
        raise(pass, change).await?;
        self.copy_all(pass, &change.copies).await?;
        pass.flush().await?;
        write_pointers(pass, moved).await?;
        pass.flush().await?;
        for (_, place) in &mut pass.comparison.blocks {
            if let Some(moved) = moved.iter().find(|moved| moved.unit.start == place.0) {
                *place = HostOffset(moved.to);
            }
        }
        lower(pass, change).await?;
        self.report.moved_bytes += change.copies.iter().map(|copy| copy.len).sum::<u64>();
        Ok(())
    }
}

/// What of a kind reaches behind the end, and where it goes.
async fn plan(pass: &mut Pass<'_>, layout: &Layout, kind: Owner) -> Result<Vec<Moved>, CompactError> {
    let mut room = layout.room();
    let end = pass.offset_of(layout.end).0;
    let mut moved = Vec::new();
    for unit in units(pass, kind).await? {
        let clusters = pass.geometry.clusters_for(unit.len);
        if unit.start + pass.offset_of(clusters).0 <= end || moved.len() >= MOVES_MAX {
            continue;
        }
        if let Some(cluster) = room.take(clusters) {
            moved.push(Moved { unit, to: pass.offset_of(cluster).0 });
        }
    }
    require_sound(pass)?;
    // A run of free clusters may lie behind what is before the end in part.
    moved.retain(|moved| moved.to < moved.unit.start);
    Ok(moved)
}

fn change(pass: &Pass<'_>, moved: &[Moved]) -> Change {
    let mut change = Change::default();
    for Moved { unit, to } in moved {
        let clusters = pass.geometry.clusters_for(unit.len);
        change.copy(Copy { from: unit.start, to: *to, len: pass.offset_of(clusters).0, data: false });
        for index in 0..clusters {
            change.gain(pass.cluster_of(*to) + index, 1);
            change.lose(pass.cluster_of(unit.start) + index, 1);
        }
    }
    change
}

/// Each pointer lies in one sector: it leads to the old place or to the new one.
async fn write_pointers(pass: &mut Pass<'_>, moved: &[Moved]) -> Result<(), CheckError> {
    for Moved { unit, to } in moved {
        let written = write_bytes(pass.file, unit.pointer, &to.to_be_bytes()).await;
        written.map_err(pass.io("write where metadata is", unit.pointer))?;
    }
    Ok(())
}

/// All units of a kind.
pub(super) async fn units(pass: &mut Pass<'_>, kind: Owner) -> Result<Vec<Unit>, CompactError> {
    let cluster = pass.geometry.cluster_size();
    Ok(match kind {
        Owner::L1 => l1_tables(pass).await?,
        Owner::SnapshotTable if pass.snapshots.bytes > 0 => {
            let start = pass.header.snapshots_offset.0;
            vec![Unit { pointer: SNAPSHOTS_OFFSET_AT, start, len: pass.snapshots.bytes }]
        }
        Owner::RefcountTable => {
            let start = pass.header.refcount_table_offset.0;
            let len = u64::from(pass.header.refcount_table_clusters) * cluster;
            vec![Unit { pointer: REFCOUNT_TABLE_OFFSET_AT, start, len }]
        }
        Owner::RefcountBlock => {
            let table = pass.header.refcount_table_offset.0;
            let blocks = pass.comparison.blocks.iter();
            blocks.map(|(index, at)| Unit { pointer: table + index * 8, start: at.0, len: cluster }).collect()
        }
        Owner::BitmapDirectory => bitmap_directory(pass).await?.into_iter().collect(),
        Owner::BitmapTable => bitmap_tables(pass).await?,
        Owner::BitmapData => bitmap_data(pass).await?,
        Owner::ChangeRecord => change_record(pass).await?.into_iter().collect(),
        // The LUKS header of an image whose data is encrypted, which is not moved; data and L2 tables have many that lead to them.
        Owner::SnapshotTable | Owner::Luks | Owner::Header | Owner::L2 | Owner::Data => Vec::new(),
    })
}

async fn l1_tables(pass: &mut Pass<'_>) -> Result<Vec<Unit>, CompactError> {
    let (start, len) = (pass.header.l1_table_offset.0, u64::from(pass.header.l1_size) * 8);
    let mut found = vec![Unit { pointer: L1_OFFSET_AT, start, len }];
    let table = pass.header.snapshots_offset.0;
    let bytes = read(pass, "read the snapshot table", table, pass.snapshots.bytes).await?;
    let snapshots = decode_snapshots_dropping_extra(&bytes, pass.header.snapshots).unwrap_or_default();
    let mut pointer = table;
    for snapshot in snapshots {
        let (start, len) = (snapshot.entry.l1_table_offset.0, u64::from(snapshot.entry.l1_size) * 8);
        found.push(Unit { pointer, start, len });
        pointer += snapshot.bytes as u64;
    }
    found.retain(|unit| unit.len > 0);
    Ok(found)
}

async fn bitmap_directory(pass: &mut Pass<'_>) -> Result<Option<Unit>, CompactError> {
    let Some(bitmaps) = pass.header.extensions.bitmaps else { return Ok(None) };
    let first = read(pass, "read the header", 0, pass.geometry.cluster_size()).await?;
    let pointer = BitmapsExtension::directory_offset_at(&first);
    let (start, len) = (bitmaps.directory_offset.0, bitmaps.directory_size);
    Ok(pointer.map(|pointer| Unit { pointer, start, len }))
}

async fn change_record(pass: &mut Pass<'_>) -> Result<Option<Unit>, CompactError> {
    let Some(record) = pass.header.extensions.record else { return Ok(None) };
    let first = read(pass, "read the header", 0, pass.geometry.cluster_size()).await?;
    let pointer = RecordExtension::offset_at(&first);
    Ok(pointer.map(|pointer| Unit { pointer, start: record.offset.0, len: record.len }))
}

async fn bitmap_tables(pass: &mut Pass<'_>) -> Result<Vec<Unit>, CompactError> {
    let Some(bitmaps) = pass.header.extensions.bitmaps else { return Ok(Vec::new()) };
    let mut pointer = bitmaps.directory_offset.0;
    let bytes = read(pass, "read the bitmap directory", pointer, bitmaps.directory_size).await?;
    let entries = decode_bitmap_directory(&bytes, bitmaps.count, &pass.geometry).unwrap_or_default();
    let mut found = Vec::new();
    for entry in entries {
        let (start, len) = (entry.table_offset.0, u64::from(entry.table_entries) * 8);
        found.push(Unit { pointer, start, len });
        pointer += BitmapEntry::encoded_bytes(&entry.name, entry.extra.len());
    }
    Ok(found)
}

async fn bitmap_data(pass: &mut Pass<'_>) -> Result<Vec<Unit>, CompactError> {
    let mut found = Vec::new();
    for table in bitmap_tables(pass).await? {
        for offset in (table.start..table.start + table.len).step_by(PIECE_BYTES as usize) {
            let len = PIECE_BYTES.min(table.start + table.len - offset);
            let Some(piece) = pass.read_piece(Owner::BitmapTable, offset, len).await else { continue };
            for (pointer, word) in (offset..).step_by(8).zip(piece.as_chunks::<8>().0) {
                let entry = BitmapTableEntry::decode(u64::from_be_bytes(*word), &pass.geometry);
                if let Ok(BitmapTableEntry::Data(host)) = entry {
                    found.push(Unit { pointer, start: host.0, len: pass.geometry.cluster_size() });
                }
            }
        }
    }
    Ok(found)
}

async fn read(
    pass: &Pass<'_>,
    doing: &'static str,
    offset: u64,
    len: u64,
) -> Result<storage::IoBuf, CheckError> {
    read_bytes(pass.file, offset, len).await.map_err(pass.io(doing, offset))
}
