//! Published disks: a manifest, table of deltas or start list that is accepted is written down and read again; tables and chunks of a manifest cover the disk once, and a
//! start list asks for no more than it may.

use remote::chunked::{
    ChunkSize, DISK_BYTES_MAX, DeltaTable, Manifest, PACK_BYTES_MAX, START_CHUNKS_MAX, StartList, Table,
};

/// What encryption adds to the chunks of a pack at most: 28 bytes to each of the smallest ones.
const OVERHEAD_MAX: u64 = 16 * 28;

pub(super) fn run(data: &[u8]) {
    let table = Table::decode(data);
    assert_eq!(table.chunks.len(), data.len() / 32);
    assert_eq!(Some(&*table.encode()), data.get(..table.chunks.len() * 32), "what was written is read again");
    if let Ok(deltas) = DeltaTable::decode(data, ChunkSize::default()) {
        let again = DeltaTable::decode(&deltas.encode(), ChunkSize::default());
        assert_eq!(again.expect("it was accepted before"), deltas, "what was written is read again");
    }
    if let Ok(list) = StartList::decode(data) {
        assert!(list.packs.iter().all(|pack| pack.bytes() <= PACK_BYTES_MAX + OVERHEAD_MAX));
        assert!(list.packs.iter().map(|pack| pack.chunks.len()).sum::<usize>() <= START_CHUNKS_MAX);
        assert_eq!(StartList::decode(&list.encode()).expect("it was accepted before"), list);
    }
    let Ok((manifest, proof)) = Manifest::decode(data) else { return };
    assert!(manifest.size() <= DISK_BYTES_MAX);
    assert_eq!(proof.is_some(), manifest.key_id().is_some(), "encrypted images have a proof, and only they");
    let mut end = 0;
    for table in 0..manifest.tables() {
        let chunks = manifest.chunks_of(table);
        assert!(chunks.start == end && chunks.end > end, "table {table} has the chunks {chunks:?}");
        end = chunks.end;
    }
    assert_eq!(end, manifest.chunks());
    assert!(end == 0 || manifest.range(end - 1).end == manifest.size());
    if manifest.key_id().is_none() {
        let again = Manifest::decode(&manifest.encode("d", None));
        assert_eq!(again.expect("it was accepted before").0, manifest, "what was written is read again");
    }
}
