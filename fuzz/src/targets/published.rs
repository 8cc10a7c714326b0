//! Published disks: a manifest that is accepted is written down and read again, and its tables and chunks cover the disk once.

use storage_chunked::{DISK_BYTES_MAX, Manifest, Table};

pub(super) fn run(data: &[u8]) {
    let table = Table::decode(data);
    assert_eq!(table.chunks.len(), data.len() / 32);
    assert_eq!(Some(&*table.encode()), data.get(..table.chunks.len() * 32), "what was written is read again");
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
