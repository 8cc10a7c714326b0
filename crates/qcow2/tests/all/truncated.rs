//! A file that was cut short: what is gone is an error, never zeroes.

#![expect(clippy::unwrap_used, reason = "a test stops at what it did not expect")]

use crate::on_reactor;

use std::sync::Arc;

use on_reactor::{Loop, reactor_run};
use qcow2::{CreateOptions, Files, Options, Preallocation, Prefetch, Qcow2, create};
use qcow2_layout::L1Entry;
use storage::{Hints, IoBuf, IoBytes, MemoryStorage, Storage};

const CLUSTER: u64 = 512;

/// Bytes that each L2 table maps.
const PER_TABLE: u64 = 64 * CLUSTER;

const TABLES: u64 = 16;

/// All clusters of the disk are mapped; where its L2 tables are.
async fn mapped() -> (Vec<u8>, Vec<u64>) {
    let file = MemoryStorage::new(0);
    let options = CreateOptions {
        size: TABLES * PER_TABLE,
        cluster_size: CLUSTER,
        preallocation: Preallocation::Metadata,
        ..CreateOptions::default()
    };
    create(&file, None, &options).await.unwrap();
    let header = qcow2::read_header(&file).await.unwrap();
    let geometry = header.geometry().unwrap();
    let bytes = file.to_bytes();
    let l1 = &bytes[header.l1_table_offset.0 as usize..][..8 * TABLES as usize];
    let words = l1.as_chunks::<8>().0.iter().map(|word| u64::from_be_bytes(*word));
    let tables = words.map(|word| L1Entry::decode(word, &geometry).unwrap().table.unwrap().0).collect();
    (bytes, tables)
}

async fn open(bytes: &[u8], options: Options) -> Qcow2 {
    let file = Arc::new(MemoryStorage::from_bytes(bytes)) as Arc<dyn Storage>;
    Qcow2::open(Files { file, data: None, backing: None }, options, Arc::new(Loop)).await.unwrap()
}

#[test]
fn a_map_that_is_gone_is_an_error_however_it_is_read() {
    reactor_run(async {
        let (bytes, tables) = mapped().await;
        let neighbours = tables.windows(2).filter(|pair| pair[1] == pair[0] + CLUSTER).count();
        assert!(neighbours > 2, "tables that lie together are read together: {tables:?}");
        for prefetch in [Prefetch::Off, Prefetch::Table, Prefetch::All] {
            for &cut in &tables {
                let image = open(&bytes[..cut as usize], Options { prefetch, ..Options::default() }).await;
                // As far as it goes.
                let _ = image.prefetch().await;
                for (guest, &table) in (0..).step_by(PER_TABLE as usize).zip(&tables) {
                    let (result, _) = image.read(guest, IoBuf::uninit(CLUSTER as usize), Hints::NONE).await;
                    let what = format!("{prefetch:?}: cut at {cut:#x}, table at {table:#x}: {result:?}");
                    assert_eq!(result.is_ok(), table < cut, "{what}");
                }
            }
        }
    });
}

#[test]
fn a_table_of_a_snapshot_that_is_gone_is_not_written_anew_as_an_empty_one() {
    reactor_run(async {
        let (mut bytes, tables) = mapped().await;
        let header = qcow2::read_header(&MemoryStorage::from_bytes(&bytes)).await.unwrap();
        // Without COPIED a table must be copied before it may be written.
        for entry in 0..TABLES as usize {
            bytes[header.l1_table_offset.0 as usize + entry * 8] &= 0x7f;
        }
        let cut = *tables.iter().max().unwrap();
        let last = tables.iter().position(|&table| table == cut).unwrap() as u64;
        let image = open(&bytes[..cut as usize], Options { writable: true, ..Options::default() }).await;
        let data = IoBytes::copy_from(&[7; CLUSTER as usize]);
        let written = image.write(last * PER_TABLE, data.into(), Hints::NONE).await;
        assert!(written.unwrap_err().to_string().contains("past the end"), "the map cannot be read");
        drop(image);
    });
}
