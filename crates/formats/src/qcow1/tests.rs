//! Hand-made images: tables lead to clusters, compressed ones are unpacked within bounds, and headers that lie are refused.

use std::io::Write;

use block::{ErrorKind, Raw};
use flate2::Compression;
use flate2::write::DeflateEncoder;
use futures_executor::block_on;
use storage::MemoryStorage;

use super::*;

const CLUSTER: usize = 512;
const PACKED_AT: usize = 2048 + 3;

fn deflate(bytes: &[u8]) -> Vec<u8> {
    let mut encoder = DeflateEncoder::new(Vec::new(), Compression::default());
    encoder.write_all(bytes).expect("memory");
    encoder.finish().expect("memory")
}

/// A disk of 8 clusters of 512 bytes: 1 and 2 are data that lie together, 3 is compressed and lies at no multiple of anything, the others were never
/// written. The backing file's name is `base`.
fn image(packed: &[u8]) -> Vec<u8> {
    let mut bytes = vec![0; PACKED_AT + packed.len()];
    let mut put = |at: usize, field: &[u8]| bytes[at..at + field.len()].copy_from_slice(field);
    put(0, &MAGIC);
    put(4, &1_u32.to_be_bytes());
    put(8, &56_u64.to_be_bytes());
    put(16, &4_u32.to_be_bytes());
    put(24, &(8 * CLUSTER as u64).to_be_bytes());
    put(32, &[9, 6]);
    put(40, &48_u64.to_be_bytes());
    put(48, &512_u64.to_be_bytes());
    put(56, b"base");
    put(512 + 8, &1024_u64.to_be_bytes());
    put(512 + 16, &1536_u64.to_be_bytes());
    let entry = COMPRESSED | (packed.len() as u64) << (63 - 9) | PACKED_AT as u64;
    put(512 + 24, &entry.to_be_bytes());
    put(1024, &[1; CLUSTER]);
    put(1536, &[2; CLUSTER]);
    put(PACKED_AT, packed);
    bytes
}

fn storage(bytes: &[u8]) -> Arc<dyn Storage> {
    Arc::new(MemoryStorage::from_bytes(bytes))
}

fn read(bytes: &[u8]) -> Result<Vec<u8>, ErrorKind> {
    block_on(async {
        let backing = Arc::new(Raw::new(storage(&[9; 5 * CLUSTER])));
        let image = open(storage(bytes), Some(backing)).await.map_err(|error| error.kind())?;
        let len = image.size().min(64 << 10) as usize;
        let (result, buf) = image.read(0, IoBuf::uninit(len), Hints::NONE).await;
        result.map(|_| buf.to_vec()).map_err(|error| error.kind())
    })
}

#[test]
fn clusters_are_read_from_where_the_tables_lead_and_others_from_the_backing_file() {
    let bytes = image(&deflate(&[3; CLUSTER]));
    let described = block_on(describe(&*storage(&bytes))).expect("a good image");
    let backing = Some("base".to_owned());
    assert_eq!(described, Description { size: 4096, cluster_bytes: 512, backing });
    let expected: Vec<u8> = [9, 1, 2, 3, 9, 0, 0, 0].into_iter().flat_map(|byte| [byte; CLUSTER]).collect();
    assert!(read(&bytes) == Ok(expected));
    block_on(async {
        let image = open(storage(&bytes), None).await.expect("a good image");
        let (result, buf) = image.read(3 * 512 - 2, IoBuf::uninit(4), Hints::NONE).await;
        assert!(result.is_ok() && buf[..] == [2, 2, 3, 3]);
        let status = async |cluster: u64| {
            let status = image.block_status(cluster * 512, 4096 - cluster * 512).await.expect("inside");
            (status.len, status.data, status.compressed, status.offset)
        };
        assert_eq!(status(0).await, (512, false, false, None));
        assert_eq!(status(1).await, (1024, true, false, Some(1024)));
        assert_eq!(status(3).await, (512, true, true, None));
        assert_eq!(status(4).await, (2048, false, false, None));
    });
}

#[test]
fn a_compressed_cluster_is_exactly_a_cluster() {
    for len in [0, CLUSTER - 1] {
        assert_eq!(read(&image(&deflate(&vec![3; len]))), Err(ErrorKind::Corrupt), "{len} bytes");
    }
    // What stands behind a whole cluster is not unpacked, as in QEMU.
    assert!(read(&image(&deflate(&[3; 100 * CLUSTER]))).is_ok());
    assert_eq!(read(&image(&[0xff; 9])), Err(ErrorKind::Corrupt));
}

#[test]
fn headers_that_lie_are_refused() {
    let good = image(&deflate(&[3; CLUSTER]));
    let table: [(usize, &[u8], ErrorKind); 12] = [
        (4, &2_u32.to_be_bytes(), ErrorKind::Corrupt),
        (16, &1024_u32.to_be_bytes(), ErrorKind::Corrupt),
        (24, &1_u64.to_be_bytes(), ErrorKind::Corrupt),
        (24, &u64::MAX.to_be_bytes(), ErrorKind::Corrupt),
        (24, &(1_u64 << 40).to_be_bytes(), ErrorKind::Corrupt),
        (32, &[8], ErrorKind::Corrupt),
        (32, &[17], ErrorKind::Corrupt),
        (33, &[14], ErrorKind::Corrupt),
        (33, &[0xff], ErrorKind::Corrupt),
        (36, &1_u32.to_be_bytes(), ErrorKind::Unsupported),
        (40, &u64::MAX.to_be_bytes(), ErrorKind::Corrupt),
        (48, &(u64::MAX - 7).to_be_bytes(), ErrorKind::Corrupt),
    ];
    for (at, field, kind) in table {
        let mut bytes = good.clone();
        bytes[at..at + field.len()].copy_from_slice(field);
        assert_eq!(read(&bytes), Err(kind), "{field:?} at {at}");
    }
    for len in [0, 47, 48, 55, 1000] {
        assert_eq!(read(&good[..len]), Err(ErrorKind::Corrupt), "{len} bytes");
    }
}
