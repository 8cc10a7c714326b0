//! Stored bitmaps, as a backup reads them.

#![expect(clippy::unwrap_used, reason = "a test stops at what it did not expect")]

use crate::on_reactor;

use std::sync::Arc;

use on_reactor::{Loop, reactor_run};
use qcow2::bitmap::Bitmap;
use qcow2::{CreateOptions, Files, Options, Qcow2, create};
use qcow2_layout::{
    Autoclear, BitmapEntry, BitmapFlags, BitmapTableEntry, BitmapsExtension, HostOffset,
    encode_bitmap_directory,
};
use storage::{Hints, IoBytes, MemoryStorage, Storage};

const CLUSTER: u64 = 512;

/// Bits of 512 bytes: what a cluster of them stands for.
const PER_CLUSTER: u64 = CLUSTER * 8 * 512;

/// The last cluster of bits is half of one.
const DISK: u64 = 4 * PER_CLUSTER + PER_CLUSTER / 2;

/// An image with one bitmap: `table` as given, and `bits` behind it. Gives also where the bits are.
async fn with_bitmap(table: &[u64], bits: &[u8]) -> (Arc<MemoryStorage>, u64) {
    with_flags(BitmapFlags::default(), table, bits).await
}

async fn with_flags(flags: BitmapFlags, table: &[u64], bits: &[u8]) -> (Arc<MemoryStorage>, u64) {
    let file = Arc::new(MemoryStorage::new(0));
    let options = CreateOptions { size: DISK, cluster_size: CLUSTER, ..CreateOptions::default() };
    create(&*file, None, &options).await.unwrap();
    let mut header = qcow2::read_header(&*file).await.unwrap();
    let directory_at = file.length().next_multiple_of(CLUSTER);
    let (table_at, bits_at) = (directory_at + CLUSTER, directory_at + 2 * CLUSTER);
    let entry = BitmapEntry {
        table_offset: HostOffset(table_at),
        table_entries: table.len() as u32,
        flags,
        granularity_bits: 9,
        name: "changed".to_owned(),
        extra: Vec::new(),
    };
    let directory = encode_bitmap_directory(&[entry], &header.geometry().unwrap()).unwrap();
    header.extensions.bitmaps = Some(BitmapsExtension {
        count: 1,
        directory_size: directory.len() as u64,
        directory_offset: HostOffset(directory_at),
    });
    header.autoclear.insert(Autoclear::BITMAPS);
    let words: Vec<u8> = table.iter().flat_map(|word| word.to_be_bytes()).collect();
    let pieces = [(0, header.encode().unwrap()), (directory_at, directory), (table_at, words)];
    for (at, bytes) in pieces.into_iter().chain([(bits_at, bits.to_vec())]) {
        file.write(at, IoBytes::copy_from(&bytes).into(), Hints::NONE).await.unwrap();
    }
    (file, bits_at)
}

async fn bitmap(file: &Arc<MemoryStorage>) -> Arc<Bitmap> {
    let files = Files { file: Arc::clone(file) as Arc<dyn Storage>, data: None, backing: None };
    let image = Qcow2::open(files, Options::default(), Arc::new(Loop)).await.unwrap();
    image.bitmaps().remove(0)
}

/// Where the first bitmap's bits would be.
async fn bits_at() -> u64 {
    with_bitmap(&[0], &[]).await.1
}

/// Everything that is said of the disk, neighbours that agree joined.
async fn ranges(bitmap: &Bitmap, from: u64, end: u64) -> Result<Vec<(u64, bool)>, qcow2::Error> {
    let (mut at, mut found) = (from, Vec::<(u64, bool)>::new());
    while at < end {
        let said = bitmap.status(at, end - at).await?;
        assert!(said.len > 0 && said.len <= end - at, "{said:?} of {}", end - at);
        match found.last_mut() {
            Some((len, dirty)) if *dirty == said.dirty => *len += said.len,
            _ => found.push((said.len, said.dirty)),
        }
        at += said.len;
    }
    Ok(found)
}

#[test]
fn every_form_of_a_cluster_of_bits_says_what_it_means() {
    reactor_run(async {
        let at = bits_at().await;
        let table = [
            BitmapTableEntry::Ones.encode(),
            BitmapTableEntry::Zeroes.encode(),
            BitmapTableEntry::Data(HostOffset(at)).encode(),
            BitmapTableEntry::Ones.encode(),
            BitmapTableEntry::Ones.encode(),
        ];
        let mut bits = vec![0; CLUSTER as usize];
        bits[0] = 0b0000_0110;
        bits[CLUSTER as usize - 1] = 0x80;
        let (file, _) = with_bitmap(&table, &bits).await;
        let bitmap = bitmap(&file).await;
        let last = PER_CLUSTER - 4 * 512;
        let whole = [
            (PER_CLUSTER, true),
            (PER_CLUSTER + 512, false),
            (1024, true),
            (last, false),
            (512 + DISK - 3 * PER_CLUSTER, true),
        ];
        assert_eq!(ranges(&bitmap, 0, DISK).await.unwrap(), whole);
        // From the middle of a bit to the middle of another.
        let from = 2 * PER_CLUSTER + 600;
        assert_eq!(ranges(&bitmap, from, from + 1000).await.unwrap(), [(936, true), (64, false)]);
        assert!(!bitmap.is_recording() && bitmap.name() == "changed");
    });
}

#[test]
fn bits_that_are_gone_are_an_error_and_not_clean() {
    reactor_run(async {
        let at = bits_at().await;
        let data = BitmapTableEntry::Data(HostOffset(at)).encode();
        let failed = async |table: &[u64], length: Option<u64>| {
            let (file, _) = with_bitmap(table, &[0xff; CLUSTER as usize]).await;
            if let Some(length) = length {
                file.shorten_to(length).await.unwrap();
            }
            ranges(&*bitmap(&file).await, 0, DISK).await.unwrap_err().to_string()
        };
        for (table, length, word) in [
            (vec![data; 5], Some(at), "past the end"),
            (vec![data; 5], Some(at - CLUSTER), "past the end"),
            (vec![data; 4], None, "shorter than the disk"),
            (vec![data | 2; 5], None, "bitmap table"),
        ] {
            let error = failed(&table, length).await;
            assert!(error.contains(word), "{word}: {error}");
        }
    });
}
