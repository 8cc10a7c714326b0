//! The tables of the disk and of its snapshots: which they are, and entries with other words.

use qcow2_layout::L1Entry;

use super::CheckError;
use super::copied::Edited;
use super::counts::Counts;
use super::pass::Pass;
use super::report::Owner;
use super::tables::l2_words;
use crate::lists;
use crate::table_io::PIECE_BYTES;

/// Offset and bytes of each L1 table: the disk's, then those of snapshots.
pub(crate) fn l1_tables(pass: &Pass<'_>) -> Vec<(u64, u64)> {
    let disk = (pass.header.l1_table_offset.0, u64::from(pass.header.l1_size) * 8);
    let snapshots = pass.snapshots.entries.iter();
    let snapshots = snapshots.map(|entry| (entry.l1_table_offset.0, u64::from(entry.l1_size) * 8));
    std::iter::once(disk).chain(snapshots).collect()
}

/// The clusters of all L2 tables, each once: those of the disk in the guest's order, then those that only snapshots have. With each
/// the index of the first L1 entry that leads there.
pub(crate) async fn placed_l2_tables(pass: &mut Pass<'_>) -> Result<Vec<(u64, u64)>, CheckError> {
    let mut seen = Counts::new(pass.l2_tables.bytes_max());
    let full = pass.full(seen.bytes_max());
    let mut found = Vec::new();
    each_l1_entry(pass, |index, cluster| {
        if seen.add(cluster, 1).map_err(&full)? == 0 {
            lists::push(&mut found, (cluster, index))
                .map_err(|_| CheckError::NoMemory { what: "the list of L2 tables" })?;
        }
        Ok(())
    })
    .await?;
    Ok(found)
}

/// The clusters of all L2 tables, as [`placed_l2_tables`] has them.
pub(crate) async fn l2_tables(pass: &mut Pass<'_>) -> Result<Vec<u64>, CheckError> {
    let tables = placed_l2_tables(pass).await?;
    Ok(tables.into_iter().map(|(table, _)| table).collect())
}

/// Tells of every entry of every L1 table that leads to a table: its index, and the table's cluster.
pub(crate) async fn each_l1_entry(
    pass: &mut Pass<'_>,
    mut seen: impl FnMut(u64, u64) -> Result<(), CheckError>,
) -> Result<(), CheckError> {
    for (start, bytes) in l1_tables(pass) {
        for offset in (start..start + bytes).step_by(PIECE_BYTES as usize) {
            let len = PIECE_BYTES.min(start + bytes - offset);
            let Some(piece) = pass.read_piece(Owner::L1, offset, len).await else { continue };
            for (index, word) in ((offset - start) / 8..).zip(piece.as_chunks::<8>().0) {
                let entry = L1Entry::decode(u64::from_be_bytes(*word), &pass.geometry);
                if let Some(table) = entry.ok().and_then(|entry| entry.table) {
                    seen(index, pass.cluster_of(table.0))?;
                }
            }
        }
    }
    Ok(())
}

/// Gives entries of L1 tables the word that `new` has for them, by their index.
pub(crate) async fn edit_l1_tables(
    pass: &mut Pass<'_>,
    new: impl Fn(u64, L1Entry) -> Option<L1Entry>,
) -> Result<(), CheckError> {
    for (start, bytes) in l1_tables(pass) {
        for offset in (start..start + bytes).step_by(PIECE_BYTES as usize) {
            let len = PIECE_BYTES.min(start + bytes - offset);
            let Some(bytes) = pass.read_piece(Owner::L1, offset, len).await else { continue };
            let mut edited = Edited { offset, bytes, changed: None };
            let words = edited.bytes.as_chunks::<8>().0.iter().map(|word| u64::from_be_bytes(*word));
            let edits: Vec<(u64, u64)> = (0..)
                .step_by(8)
                .zip(words)
                .filter_map(|(at, word)| {
                    let entry = L1Entry::decode(word, &pass.geometry).ok()?;
                    Some((at, new((offset - start + at) / 8, entry)?.encode()))
                })
                .collect();
            edits.into_iter().for_each(|(at, word)| edited.set(at, word));
            pass.write_back(edited).await?;
        }
    }
    Ok(())
}

/// Gives entries of the L2 tables in these clusters the words that `new` has for them, by the table's cluster and their place in it.
pub(crate) async fn edit_l2_tables(
    pass: &mut Pass<'_>,
    tables: &[u64],
    new: impl Fn(u64, u64, [u64; 2]) -> Option<[u64; 2]>,
) -> Result<(), CheckError> {
    for &table in tables {
        let offset = pass.offset_of(table).0;
        let Some(bytes) = pass.read_piece(Owner::L2, offset, pass.geometry.cluster_size()).await else {
            continue;
        };
        let mut edited = Edited { offset, bytes, changed: None };
        let extended = pass.geometry.extended_l2;
        let edits: Vec<(u64, [u64; 2])> = l2_words(&edited.bytes, extended)
            .filter_map(|(at, words)| new(table, at, words).map(|words| (at, words)))
            .collect();
        for (at, [entry, bitmap]) in edits {
            edited.set(at, entry);
            if extended {
                edited.set(at + 8, bitmap);
            }
        }
        pass.write_back(edited).await?;
    }
    Ok(())
}
