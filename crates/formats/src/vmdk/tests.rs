//! Hand-made images: what VMware's products write and qemu-img does not, and what contradicts itself.

use std::io::Write;
use std::sync::Arc;

use block::{Block, Error, ErrorKind};
use flate2::Compression;
use flate2::write::ZlibEncoder;
use futures_executor::block_on;
use memory::IoBuf;
use storage::{Hints, MemoryStorage, Storage};

use super::{Vmdk, check, describe, open};

const SECTOR: usize = 512;
/// Grains of 4 KiB, tables of 16 entries: 64 KiB each.
const GRAIN: usize = 8 * SECTOR;
const TABLE_ENTRIES: usize = 16;
const DIRECTORY: usize = 21;
const FIRST_TABLE: usize = 22;
const FIRST_GRAIN: usize = 32;
/// 20 grains, so two tables.
const GRAINS: usize = 20;
const DESCRIPTOR: &str = "# Disk DescriptorFile\nversion=1\nCID=12345678\nparentCID=ffffffff\ncreateType=\"monolithicSparse\"\n\
    RW 160 SPARSE \"x.vmdk\"\n";

fn put<const N: usize>(bytes: &mut [u8], at: usize, value: [u8; N]) {
    bytes[at..at + N].copy_from_slice(&value);
}

fn header(version: u32, flags: u32, compression: u16) -> Vec<u8> {
    let mut header = vec![0; SECTOR];
    put(&mut header, 0, *b"KDMV");
    put(&mut header, 4, version.to_le_bytes());
    put(&mut header, 8, flags.to_le_bytes());
    for (at, value) in
        [(12, GRAINS * 8), (20, 8), (28, 1), (36, 20), (48, 0), (56, DIRECTORY), (64, FIRST_GRAIN)]
    {
        put(&mut header, at, (value as u64).to_le_bytes());
    }
    put(&mut header, 44, (TABLE_ENTRIES as u32).to_le_bytes());
    put(&mut header, 73, *b"\n \r\n");
    put(&mut header, 77, compression.to_le_bytes());
    header
}

/// An image with these entries, before data from [`FIRST_GRAIN`] on. A table that says nothing is not there.
fn image(header: &[u8], descriptor: &str, entries: [u32; GRAINS], data: &[u8]) -> Vec<u8> {
    let mut bytes = vec![0; FIRST_GRAIN * SECTOR];
    bytes[..SECTOR].copy_from_slice(header);
    bytes[SECTOR..SECTOR + descriptor.len()].copy_from_slice(descriptor.as_bytes());
    for (table, entries) in entries.chunks(TABLE_ENTRIES).enumerate() {
        if entries.iter().all(|entry| *entry == 0) {
            continue;
        }
        let place = FIRST_TABLE + table;
        put(&mut bytes, DIRECTORY * SECTOR + 4 * table, (place as u32).to_le_bytes());
        for (index, entry) in entries.iter().enumerate() {
            put(&mut bytes, place * SECTOR + 4 * index, entry.to_le_bytes());
        }
    }
    bytes.extend_from_slice(data);
    bytes
}

/// Grains 0 and 1 are side by side, 2 has zeroes by its entry, 3 is before them, 17 was written too.
fn entries() -> [u32; GRAINS] {
    let mut entries = [0; GRAINS];
    let place = |grain: usize| (FIRST_GRAIN + 8 * grain) as u32;
    (entries[0], entries[1], entries[2], entries[3], entries[17]) =
        (place(1), place(2), 1, place(0), place(3));
    entries
}

fn data() -> Vec<u8> {
    [3, 10, 11, 17].map(|byte| vec![byte; GRAIN]).concat()
}

fn disk() -> Vec<u8> {
    let mut disk = vec![0; GRAINS * GRAIN];
    for (grain, byte) in [(0, 10), (1, 11), (3, 3), (17, 17)] {
        disk[grain * GRAIN..(grain + 1) * GRAIN].fill(byte);
    }
    disk
}

fn file(bytes: &[u8]) -> Arc<dyn Storage> {
    Arc::new(MemoryStorage::from_bytes(bytes))
}

async fn opened(bytes: &[u8], files: &[&[u8]], backing: Option<Arc<dyn Block>>) -> Result<Vmdk, Error> {
    let image = file(bytes);
    let description = describe(&*image).await?;
    open(image, &description, files.iter().map(|bytes| file(bytes)).collect(), backing).await
}

fn read_of(bytes: &[u8], files: &[&[u8]]) -> Result<Vec<u8>, Error> {
    block_on(async {
        let image = opened(bytes, files, None).await?;
        let (result, buf) = image.read(0, IoBuf::uninit(image.size() as usize), Hints::NONE).await;
        result.map(|_| buf.to_vec())
    })
}

#[test]
fn grains_are_read_from_where_tables_say_and_zeroes_elsewhere() {
    for version in 1..=3 {
        let bytes = image(&header(version, 7, 0), DESCRIPTOR, entries(), &data());
        assert!(read_of(&bytes, &[]).expect("a good image") == disk(), "version {version}");
    }
    block_on(async {
        let image =
            opened(&image(&header(1, 7, 0), DESCRIPTOR, entries(), &data()), &[], None).await.unwrap();
        assert!(check(&image).await.is_ok());
        let mut found = Vec::new();
        let mut at = 0;
        while at < image.size() {
            let status = image.block_status(at, image.size() - at).await.unwrap();
            found.push((
                at as usize / GRAIN,
                status.len as usize / GRAIN,
                status.present,
                status.data,
                status.offset,
            ));
            at += status.len;
        }
        let place = |grain: usize| Some(((FIRST_GRAIN + 8 * grain) * SECTOR) as u64);
        let expected = [
            (0, 2, true, true, place(1)),
            (2, 1, true, false, None),
            (3, 1, true, true, place(0)),
            (4, 12, false, false, None),
            (16, 1, false, false, None),
            (17, 1, true, true, place(3)),
            (18, 2, false, false, None),
        ];
        assert_eq!(found, expected);
    });
}

/// Entry 1 is a place where the header does not say that it means zeroes.
#[test]
fn an_entry_of_one_is_a_grain_of_zeroes_only_with_the_flag() {
    let bytes = image(&header(1, 3, 0), DESCRIPTOR, entries(), &data());
    let disk = read_of(&bytes, &[]).expect("a good image");
    assert!(disk[2 * GRAIN..3 * GRAIN] == bytes[SECTOR..SECTOR + GRAIN]);
}

fn packed(grain: usize, bytes: &[u8]) -> Vec<u8> {
    let mut stream = ZlibEncoder::new(Vec::new(), Compression::default());
    stream.write_all(bytes).unwrap();
    let stream = stream.finish().unwrap();
    let marker = [&(8 * grain as u64).to_le_bytes()[..], &(stream.len() as u32).to_le_bytes()].concat();
    let mut stored = [marker, stream].concat();
    stored.resize(stored.len().next_multiple_of(SECTOR), 0);
    stored
}

/// As OVF tools write it: the header does not know where the directory is, the footer does.
fn stream_optimized() -> Vec<u8> {
    let (first, second) = (packed(0, &[10; GRAIN]), packed(17, &[17; GRAIN]));
    let mut entries = [0; GRAINS];
    entries[0] = FIRST_GRAIN as u32;
    entries[17] = (FIRST_GRAIN + first.len() / SECTOR) as u32;
    let mut begin = header(3, 0x3_0001, 1);
    let footer = begin.clone();
    put(&mut begin, 56, u64::MAX.to_le_bytes());
    let mut marker = vec![0; SECTOR];
    put(&mut marker, 12, 3_u32.to_le_bytes());
    let end = [marker, footer, vec![0; SECTOR]].concat();
    image(&begin, DESCRIPTOR, entries, &[first, second, end].concat())
}

#[test]
fn compressed_grains_are_read_by_the_footer() {
    let bytes = stream_optimized();
    let mut disk = vec![0; GRAINS * GRAIN];
    disk[..GRAIN].fill(10);
    disk[17 * GRAIN..18 * GRAIN].fill(17);
    assert!(read_of(&bytes, &[]).expect("a good image") == disk);
    block_on(async {
        let image = opened(&bytes, &[], None).await.unwrap();
        let (result, buf) = image.read(17 * GRAIN as u64 - 3, IoBuf::uninit(6), Hints::NONE).await;
        assert!(result.is_ok() && buf[..] == [0, 0, 0, 17, 17, 17]);
        let status = image.block_status(0, image.size()).await.unwrap();
        assert_eq!((status.len, status.compressed, status.offset), (GRAIN as u64, true, None));
    });
    // Cut short, the footer is not where it must be.
    let cut = read_of(&bytes[..bytes.len() - SECTOR], &[]).unwrap_err();
    assert!(cut.kind() == ErrorKind::Corrupt && cut.to_string().contains("footer"), "{cut}");
    let mut damaged = bytes.clone();
    damaged[FIRST_GRAIN * SECTOR + 12..][..4].fill(0xff);
    assert_eq!(read_of(&damaged, &[]).unwrap_err().kind(), ErrorKind::Corrupt);
    for len in [0, 2 * GRAIN as u32 + 1, u32::MAX] {
        let mut damaged = bytes.clone();
        put(&mut damaged, FIRST_GRAIN * SECTOR + 8, len.to_le_bytes());
        assert_eq!(read_of(&damaged, &[]).unwrap_err().kind(), ErrorKind::Corrupt, "a grain of {len} bytes");
    }
}

#[test]
fn a_grain_that_unpacks_to_more_than_a_grain_is_refused() {
    let mut bytes = stream_optimized();
    let bomb = packed(0, &vec![0; 64 * GRAIN]);
    bytes.splice(
        FIRST_GRAIN * SECTOR..FIRST_GRAIN * SECTOR + bomb.len().min(SECTOR),
        bomb.into_iter().take(SECTOR),
    );
    assert_eq!(read_of(&bytes, &[]).unwrap_err().kind(), ErrorKind::Corrupt);
}

fn descriptor(create_type: &str, extents: &str) -> Vec<u8> {
    let text = format!(
        "# Disk DescriptorFile\nversion=1\nCID=1\nparentCID=ffffffff\ncreateType=\"{create_type}\"\n{extents}"
    );
    text.into_bytes()
}

/// ESX's sparse extent: tables of 4,096 entries. Grain 2 has data.
fn cowd() -> Vec<u8> {
    let mut bytes = vec![0; 64 * SECTOR];
    put(&mut bytes, 0, *b"COWD");
    for (at, value) in [(4, 1_u32), (8, 3), (12, 32), (16, 8), (20, 4), (24, 1)] {
        put(&mut bytes, at, value.to_le_bytes());
    }
    put(&mut bytes, 4 * SECTOR, 8_u32.to_le_bytes());
    put(&mut bytes, 8 * SECTOR + 8, 50_u32.to_le_bytes());
    bytes[50 * SECTOR..50 * SECTOR + GRAIN].fill(5);
    bytes
}

#[test]
fn extents_of_all_kinds_follow_one_another() {
    let text = descriptor(
        "twoGbMaxExtentSparse",
        "RW 160 SPARSE \"a\"\nRW 16 FLAT \"b\" 2\nRW 8 ZERO\nRDONLY 32 VMFSSPARSE \"c\"\nRW 4 VMFS \"d\"\n",
    );
    let sparse = image(&header(1, 7, 0), DESCRIPTOR, entries(), &data());
    let flat = [vec![1; 2 * SECTOR], vec![2; 16 * SECTOR], vec![3; SECTOR]].concat();
    let short = vec![4; 3 * SECTOR];
    let mut expected =
        [disk(), vec![2; 16 * SECTOR], vec![0; 8 * SECTOR], vec![0; 32 * SECTOR], short.clone()].concat();
    let cowd_at = disk().len() + 24 * SECTOR;
    expected[cowd_at + 2 * GRAIN..cowd_at + 3 * GRAIN].fill(5);
    expected.resize(expected.len() + SECTOR, 0);
    let files = [&sparse[..], &flat, &cowd(), &short];
    assert!(read_of(&text, &files).expect("a good image") == expected);
    block_on(async {
        let image = opened(&text, &files, None).await.unwrap();
        assert!(check(&image).await.is_ok());
        assert_eq!(image.capabilities().cluster_bytes, None);
        let (result, buf) = image.read(disk().len() as u64 - 1, IoBuf::uninit(2), Hints::NONE).await;
        assert!(result.is_ok() && buf[..] == [0, 2]);
    });
    let few = read_of(&text, &files[..2]).unwrap_err();
    assert_eq!(few.kind(), ErrorKind::Unsupported, "{few}");
}

#[test]
fn a_descriptor_in_place_of_an_extent_is_refused() {
    let text = descriptor("twoGbMaxExtentSparse", "RW 160 SPARSE \"a\"\n");
    assert_eq!(read_of(&text, &[&text]).unwrap_err().kind(), ErrorKind::Corrupt);
    let mut nested = header(1, 3, 0);
    put(&mut nested, 12, 0_u64.to_le_bytes());
    let nested = image(&nested, std::str::from_utf8(&text).unwrap(), [0; GRAINS], &[]);
    assert_eq!(read_of(&text, &[&nested]).unwrap_err().kind(), ErrorKind::Corrupt);
    // As an image, such a file is what its descriptor says.
    let good = image(&header(1, 7, 0), DESCRIPTOR, entries(), &data());
    assert!(read_of(&nested, &[&good]).expect("a good image") == disk());
}

#[test]
fn what_was_never_written_is_the_backing_files() {
    block_on(async {
        let text =
            DESCRIPTOR.replace("parentCID=ffffffff", "parentCID=12345678\nparentFileNameHint=\"base.vmdk\"");
        let bytes = image(&header(1, 7, 0), &text, entries(), &data());
        let description = describe(&*file(&bytes)).await.unwrap();
        assert_eq!(description.descriptor.parent(), Some("base.vmdk"));
        let mut below = [0; GRAINS];
        (below[2], below[4]) = (FIRST_GRAIN as u32, FIRST_GRAIN as u32 + 8);
        let base = |descriptor: &str| {
            image(&header(1, 7, 0), descriptor, below, &[vec![40; GRAIN], vec![50; GRAIN]].concat())
        };
        let base_block = opened(&base(DESCRIPTOR), &[], None).await.unwrap();
        let image = opened(&bytes, &[], Some(Arc::new(base_block))).await.unwrap();
        let mut expected = disk();
        expected[4 * GRAIN..5 * GRAIN].fill(50);
        let (result, buf) = image.read(0, IoBuf::uninit(expected.len()), Hints::NONE).await;
        assert!(result.is_ok() && buf[..] == expected);
        let status = image.block_status(4 * GRAIN as u64, 2 * GRAIN as u64).await.unwrap();
        assert_eq!((status.len, status.depth, status.data), (GRAIN as u64, 1, true));
        let changed = opened(&base(&DESCRIPTOR.replace("12345678", "87654321")), &[], None).await.unwrap();
        let refused = opened(&bytes, &[], Some(Arc::new(changed))).await.unwrap_err();
        assert!(refused.kind() == ErrorKind::Corrupt && refused.to_string().contains("CID"), "{refused}");
    });
}

#[test]
fn headers_that_lie_are_refused() {
    let good = image(&header(1, 7, 0), DESCRIPTOR, entries(), &data());
    let table: [(usize, &[u8], ErrorKind); 15] = [
        (4, &4_u32.to_le_bytes(), ErrorKind::Unsupported),
        (4, &0_u32.to_le_bytes(), ErrorKind::Unsupported),
        (12, &u64::MAX.to_le_bytes(), ErrorKind::Corrupt),
        (12, &(1_u64 << 50).to_le_bytes(), ErrorKind::Corrupt),
        (20, &0_u64.to_le_bytes(), ErrorKind::Corrupt),
        (20, &u64::MAX.to_le_bytes(), ErrorKind::Corrupt),
        (28, &0_u64.to_le_bytes(), ErrorKind::Corrupt),
        (28, &u64::MAX.to_le_bytes(), ErrorKind::Corrupt),
        (44, &0_u32.to_le_bytes(), ErrorKind::Corrupt),
        (44, &513_u32.to_le_bytes(), ErrorKind::Corrupt),
        (56, &0_u64.to_le_bytes(), ErrorKind::Corrupt),
        (56, &u64::MAX.to_le_bytes(), ErrorKind::Corrupt),
        (64, &u64::MAX.to_le_bytes(), ErrorKind::Corrupt),
        (77, &2_u16.to_le_bytes(), ErrorKind::Unsupported),
        (FIRST_TABLE * SECTOR, &u32::MAX.to_le_bytes(), ErrorKind::Corrupt),
    ];
    for (at, value, kind) in table {
        let mut bytes = good.clone();
        bytes[at..at + value.len()].copy_from_slice(value);
        assert_eq!(read_of(&bytes, &[]).err().map(|error| error.kind()), Some(kind), "{value:?} at {at}");
    }
    for len in [0, 4, 511, 512, 20 * SECTOR] {
        assert_eq!(read_of(&good[..len], &[]).unwrap_err().kind(), ErrorKind::Corrupt, "{len} bytes");
    }
    for create_type in ["custom", "fullDevice", "monolithicSparse"] {
        let text = descriptor(create_type, "RW 8 FLAT \"a\" 0\n");
        assert_eq!(read_of(&text, &[&good]).unwrap_err().kind(), ErrorKind::Unsupported, "{create_type}");
    }
    assert_eq!(read_of(&descriptor("vmfs", ""), &[]).unwrap_err().kind(), ErrorKind::Corrupt);
    let huge = "RW 9007199254740992 ZERO\n".repeat(3);
    assert_eq!(read_of(&descriptor("vmfs", &huge), &[]).unwrap_err().kind(), ErrorKind::Corrupt);
}

#[test]
fn the_redundant_directory_counts_where_the_first_is_not_in_the_file() {
    let mut begin = header(1, 7, 0);
    put(&mut begin, 48, (DIRECTORY as u64).to_le_bytes());
    put(&mut begin, 56, (1_u64 << 40).to_le_bytes());
    assert!(read_of(&image(&begin, DESCRIPTOR, entries(), &data()), &[]).expect("a good image") == disk());
    let mut without = header(1, 5, 0);
    put(&mut without, 48, (DIRECTORY as u64).to_le_bytes());
    put(&mut without, 56, (1_u64 << 40).to_le_bytes());
    assert!(read_of(&image(&without, DESCRIPTOR, entries(), &data()), &[]).is_err());
}

/// Every byte of the metadata takes several values: each image is read or refused, and nothing panics.
#[test]
fn damaged_metadata_is_an_error_at_worst() {
    for good in [image(&header(1, 7, 0), DESCRIPTOR, entries(), &data()), stream_optimized()] {
        for at in
            (0..80).chain(SECTOR..SECTOR + DESCRIPTOR.len()).chain(DIRECTORY * SECTOR..DIRECTORY * SECTOR + 8)
        {
            for value in [0, 1, 0x7f, 0xff] {
                let mut bytes = good.clone();
                bytes[at] = value;
                block_on(async {
                    let Ok(image) = opened(&bytes, &[], None).await else { return };
                    let len = image.size().min(1 << 20);
                    let _ = image.read(0, IoBuf::uninit(len as usize), Hints::NONE).await;
                    let _ = image.block_status(0, image.size()).await;
                });
            }
        }
    }
}
