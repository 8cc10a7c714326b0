//! Hand-made images: blocks, logs of writers that died, sectors of 4096 bytes, and what contradicts itself.

use std::sync::Arc;

use block::{Block, Error, ErrorKind};
use futures_executor::block_on;
use memory::IoBuf;
use storage::{Hints, MemoryStorage};

use super::crc::sum_but;
use super::header::guid;
use super::{Vhdx, check, open};

const MIB: usize = 1 << 20;
const LOG: usize = MIB;
const METADATA: usize = 2 * MIB;
const BAT: usize = 3 * MIB;
const DATA: usize = 4 * MIB;
const SECTOR: usize = 4096;
const LOG_GUID: [u8; 16] = [7; 16];

fn put<const N: usize>(bytes: &mut [u8], at: usize, value: [u8; N]) {
    bytes[at..at + N].copy_from_slice(&value);
}

fn id(number: u128) -> [u8; 16] {
    // It is its own inverse.
    guid(number.to_be_bytes())
}

fn seal(bytes: &mut [u8], at: usize, len: usize) {
    let sum = sum_but(&bytes[at..at + len], 4);
    put(bytes, at + 4, sum.to_le_bytes());
}

fn set_header(bytes: &mut [u8], at: usize, sequence: u64, log_guid: [u8; 16]) {
    put(bytes, at, *b"head");
    put(bytes, at + 8, sequence.to_le_bytes());
    put(bytes, at + 48, log_guid);
    put(bytes, at + 66, 1_u16.to_le_bytes());
    put(bytes, at + 68, (MIB as u32).to_le_bytes());
    put(bytes, at + 72, (LOG as u64).to_le_bytes());
    seal(bytes, at, SECTOR);
}

fn set_regions(bytes: &mut [u8], at: usize) {
    put(bytes, at, *b"regi");
    put(bytes, at + 8, 2_u32.to_le_bytes());
    let regions = [
        (0x2dc2_7766_f623_4200_9d64_115e_9bfd_4a08, BAT),
        (0x8b7c_a206_4790_4b9a_b8fe_575f_050f_886e, METADATA),
    ];
    for (index, (number, offset)) in regions.into_iter().enumerate() {
        let entry = at + 16 + 32 * index;
        put(bytes, entry, id(number));
        put(bytes, entry + 16, (offset as u64).to_le_bytes());
        put(bytes, entry + 24, (MIB as u32).to_le_bytes());
        put(bytes, entry + 28, 1_u32.to_le_bytes());
    }
    seal(bytes, at, 64 << 10);
}

/// A disk of `size` bytes with these entries of its table, before `data`.
fn image(size: u64, block_bytes: u32, sector_bytes: u32, entries: &[u64], data: &[u8]) -> Vec<u8> {
    let mut bytes = vec![0; DATA];
    put(&mut bytes, 0, *b"vhdxfile");
    set_header(&mut bytes, 64 << 10, 4, [0; 16]);
    set_header(&mut bytes, 128 << 10, 5, [0; 16]);
    set_regions(&mut bytes, 192 << 10);
    set_regions(&mut bytes, 256 << 10);
    put(&mut bytes, METADATA, *b"metadata");
    put(&mut bytes, METADATA + 10, 3_u16.to_le_bytes());
    let items: [(u128, &[u8]); 3] = [
        (0xcaa1_6737_fa36_4d43_b3b6_33f0_aa44_e76b, &u64::from(block_bytes).to_le_bytes()),
        (0x2fa5_4224_cd1b_4876_b211_5dbe_d83b_f4b8, &size.to_le_bytes()),
        (0x8141_bf1d_a96f_4709_ba47_f233_a8fa_ab5f, &sector_bytes.to_le_bytes()),
    ];
    for (index, (number, value)) in items.into_iter().enumerate() {
        let (entry, place) = (METADATA + 32 + 32 * index, (64 << 10) + 16 * index);
        put(&mut bytes, entry, id(number));
        put(&mut bytes, entry + 16, (place as u32).to_le_bytes());
        put(&mut bytes, entry + 20, (value.len() as u32).to_le_bytes());
        put(&mut bytes, entry + 24, 6_u32.to_le_bytes());
        bytes[METADATA + place..METADATA + place + value.len()].copy_from_slice(value);
    }
    for (index, entry) in entries.iter().enumerate() {
        put(&mut bytes, BAT + 8 * index, entry.to_le_bytes());
    }
    bytes.extend_from_slice(data);
    bytes
}

const fn at(offset: usize) -> u64 {
    offset as u64 | 6
}

/// 4 MiB in blocks of 1 MiB: one that was written, behind it one of zeroes, one that was never written, and one before the first.
fn small(sector_bytes: u32) -> Vec<u8> {
    let entries = [at(DATA + MIB), 2, 0, at(DATA)];
    image(4 << 20, MIB as u32, sector_bytes, &entries, &[vec![3; MIB], vec![1; MIB]].concat())
}

fn small_disk() -> Vec<u8> {
    [vec![1; MIB], vec![0; 2 * MIB], vec![3; MIB]].concat()
}

async fn opened(bytes: &[u8]) -> Result<Vhdx, Error> {
    open(Arc::new(MemoryStorage::from_bytes(bytes))).await
}

fn read(bytes: &[u8]) -> Result<Vec<u8>, Error> {
    block_on(async {
        let image = opened(bytes).await?;
        let (result, buf) = image.read(0, IoBuf::uninit(image.size() as usize), Hints::NONE).await;
        result.map(|_| buf.to_vec())
    })
}

#[test]
fn blocks_are_read_from_where_the_table_says() {
    for sector_bytes in [512, 4096] {
        assert!(
            read(&small(sector_bytes)).expect("a good image") == small_disk(),
            "sectors of {sector_bytes}"
        );
    }
    block_on(async {
        let image = opened(&small(512)).await.unwrap();
        assert_eq!(check(&image).await.unwrap(), 0);
        let mut found = Vec::new();
        let mut place = 0;
        while place < image.size() {
            let status = image.block_status(place, image.size() - place).await.unwrap();
            found.push((place as usize / MIB, status.present, status.data, status.offset));
            place += status.len;
        }
        let place = |mib: usize| Some((DATA + mib * MIB) as u64);
        let expected = [
            (0, true, true, place(1)),
            (1, true, false, None),
            (2, false, false, None),
            (3, true, true, place(0)),
        ];
        assert_eq!(found, expected);
        let (result, buf) = image.read(3 * MIB as u64 - 2, IoBuf::uninit(4), Hints::NONE).await;
        assert!(result.is_ok() && buf[..] == [0, 0, 3, 3]);
    });
}

/// A fixed image of QEMU's ends where its disk does, within the last block.
#[test]
fn the_last_block_needs_no_more_than_the_disk_has() {
    let size = MIB + MIB / 2;
    let bytes = image(size as u64, MIB as u32, 512, &[at(DATA), at(DATA + MIB)], &vec![9; size]);
    assert!(read(&bytes).expect("a good image") == vec![9; size]);
    assert_eq!(block_on(async { check(&opened(&bytes).await.unwrap()).await.unwrap() }), 0);
    let cut = &bytes[..bytes.len() - 1];
    assert_eq!(read(cut).unwrap_err().kind(), ErrorKind::Corrupt);
    assert_eq!(block_on(async { check(&opened(cut).await.unwrap()).await.unwrap() }), 1);
}

/// With blocks of 256 MiB each 17th entry is one of a bitmap.
#[test]
fn entries_of_bitmaps_are_passed_over() {
    let mut entries = [0; 22];
    (entries[16], entries[17]) = (7, 2);
    let block = 256_u64 << 20;
    block_on(async {
        let image = opened(&image(20 * block, block as u32, 512, &entries, &[])).await.unwrap();
        let before = image.block_status(0, image.size()).await.unwrap();
        assert_eq!((before.len, before.present), (16 * block, false));
        let zeroes = image.block_status(16 * block, 4 * block).await.unwrap();
        assert_eq!((zeroes.len, zeroes.present, zeroes.zero), (block, true, true));
    });
}

/// An entry of the log: each change of a sector, or zeroes.
fn log_entry(sequence: u64, tail: usize, changes: &[(u64, Option<u8>)], length: u64) -> Vec<u8> {
    let first = (64 + 32 * changes.len()).next_multiple_of(SECTOR);
    let mut entry = vec![0; first];
    put(&mut entry, 0, *b"loge");
    put(&mut entry, 12, (tail as u32).to_le_bytes());
    put(&mut entry, 16, sequence.to_le_bytes());
    put(&mut entry, 24, (changes.len() as u32).to_le_bytes());
    put(&mut entry, 32, LOG_GUID);
    put(&mut entry, 48, (DATA as u64).to_le_bytes());
    put(&mut entry, 56, length.to_le_bytes());
    for (index, (place, byte)) in changes.iter().enumerate() {
        let descriptor = 64 + 32 * index;
        put(&mut entry, descriptor, if byte.is_some() { *b"desc" } else { *b"zero" });
        match byte {
            Some(byte) => {
                put(&mut entry, descriptor + 4, [*byte; 4]);
                put(&mut entry, descriptor + 8, [*byte; 8]);
            }
            None => put(&mut entry, descriptor + 8, (SECTOR as u64).to_le_bytes()),
        }
        put(&mut entry, descriptor + 16, place.to_le_bytes());
        put(&mut entry, descriptor + 24, sequence.to_le_bytes());
        if let Some(byte) = byte {
            let mut data = vec![*byte; SECTOR];
            put(&mut data, 0, *b"data");
            put(&mut data, 4, ((sequence >> 32) as u32).to_le_bytes());
            put(&mut data, SECTOR - 4, (sequence as u32).to_le_bytes());
            entry.extend_from_slice(&data);
        }
    }
    let len = entry.len() as u32;
    put(&mut entry, 8, len.to_le_bytes());
    let whole = entry.len();
    seal(&mut entry, 0, whole);
    entry
}

/// The image with a log that was not replayed, of entries at places of it.
fn dirty(entries: &[(usize, Vec<u8>)]) -> Vec<u8> {
    let mut bytes = small(512);
    set_header(&mut bytes, 64 << 10, 6, LOG_GUID);
    for (place, entry) in entries {
        for (index, byte) in entry.iter().enumerate() {
            bytes[LOG + (place + index) % MIB] = *byte;
        }
    }
    bytes
}

/// The disk after changes of its last block, which is first in the data.
fn changed(changes: &[(usize, u8)]) -> Vec<u8> {
    let mut disk = small_disk();
    for (sector, byte) in changes {
        disk[3 * MIB + sector * SECTOR..][..SECTOR].fill(*byte);
    }
    disk
}

fn place(sector: usize) -> u64 {
    (DATA + sector * SECTOR) as u64
}

#[test]
fn a_log_is_replayed_in_memory() {
    let length = (DATA + 2 * MIB) as u64;
    let first = log_entry(8, 0, &[(place(0), Some(80)), (place(1), None), (place(2), Some(82))], length);
    let second = log_entry(9, 0, &[(place(2), Some(92))], length);
    let next = first.len();
    let both = [(0, first.clone()), (next, second.clone())];
    assert!(read(&dirty(&both)).expect("a good image") == changed(&[(0, 80), (1, 0), (2, 92)]));
    // The last entry says that the first one has reached its place.
    let only = [(0, first.clone()), (next, log_entry(9, next, &[(place(2), Some(92))], length))];
    assert!(read(&dirty(&only)).expect("a good image") == changed(&[(2, 92)]));
    // An older sequence, behind the newer one, is not replayed; and a ring begins anew behind its end.
    let older = (64 << 10, log_entry(5, 64 << 10, &[(place(5), Some(55))], length));
    assert!(
        read(&dirty(&[both[0].clone(), both[1].clone(), older])).unwrap()
            == changed(&[(0, 80), (1, 0), (2, 92)])
    );
    let start = MIB - SECTOR;
    let wrapped = [(start, log_entry(8, start, &[(place(0), Some(80)), (place(2), Some(82))], length))];
    assert!(read(&dirty(&wrapped)).expect("a good image") == changed(&[(0, 80), (2, 82)]));
}

#[test]
fn entries_that_are_not_intact_are_not_replayed() {
    let length = (DATA + 2 * MIB) as u64;
    let entry = || log_entry(8, 0, &[(place(0), Some(80))], length);
    let next = entry().len();
    let torn: [fn(&mut Vec<u8>); 6] = [
        |entry| entry[SECTOR + 100] ^= 1,
        |entry| put(entry, 16, 0_u64.to_le_bytes()),
        |entry| put(entry, 32, [8; 16]),
        |entry| put(entry, 8, 12_u32.to_le_bytes()),
        |entry| put(entry, 24, u32::MAX.to_le_bytes()),
        |entry| {
            put(entry, 64 + 24, 7_u64.to_le_bytes());
            let whole = entry.len();
            seal(entry, 0, whole);
        },
    ];
    for (index, tear) in torn.iter().enumerate() {
        let mut second = log_entry(9, 0, &[(place(1), Some(91))], length);
        tear(&mut second);
        let bytes = dirty(&[(0, entry()), (next, second.clone())]);
        assert!(read(&bytes).expect("a good image") == changed(&[(0, 80)]), "{index}");
        // A writer that died in its first entry has changed nothing.
        assert!(read(&dirty(&[(0, second)])).expect("a good image") == small_disk(), "{index}");
    }
}

#[test]
fn a_log_that_lies_is_refused() {
    let length = (DATA + 2 * MIB) as u64;
    let mut cut = log_entry(8, 0, &[(place(0), Some(80))], length);
    put(&mut cut, 48, (1_u64 << 40).to_le_bytes());
    let whole = cut.len();
    seal(&mut cut, 0, whole);
    let table = [cut, log_entry(8, 0, &[(1, Some(1))], length), log_entry(8, 0, &[(!4095, Some(1))], length)];
    for (index, entry) in table.into_iter().enumerate() {
        assert_eq!(read(&dirty(&[(0, entry)])).unwrap_err().kind(), ErrorKind::Corrupt, "{index}");
    }
    // Heads of entries that all claim the whole log.
    let mut bytes = dirty(&[]);
    for sector in 0..MIB / SECTOR {
        let mut head = log_entry(sector as u64 + 1, 0, &[], length);
        put(&mut head, 8, (MIB as u32).to_le_bytes());
        bytes[LOG + sector * SECTOR..][..SECTOR].copy_from_slice(&head);
    }
    assert_eq!(read(&bytes).unwrap_err().kind(), ErrorKind::Corrupt);
    let mut large = dirty(&[]);
    put(&mut large, (64 << 10) + 68, (1_u32 << 30).to_le_bytes());
    seal(&mut large, 64 << 10, SECTOR);
    assert_eq!(read(&large).unwrap_err().kind(), ErrorKind::Unsupported);
}

#[test]
fn the_intact_copy_of_a_header_and_of_the_regions_counts() {
    for damaged in [64 << 10, 128 << 10, 192 << 10, 256 << 10] {
        let mut bytes = small(512);
        bytes[damaged + 9] ^= 1;
        assert!(read(&bytes).expect("a good image") == small_disk(), "{damaged:#x}");
    }
    for damaged in [[64 << 10, 128 << 10], [192 << 10, 256 << 10]] {
        let mut bytes = small(512);
        damaged.iter().for_each(|at| bytes[at + 9] ^= 1);
        assert_eq!(read(&bytes).unwrap_err().kind(), ErrorKind::Corrupt, "{damaged:x?}");
    }
}

#[test]
fn metadata_that_lies_is_refused() {
    let items = METADATA + (64 << 10);
    let table: [(usize, &[u8], ErrorKind); 12] = [
        (items, &3_u32.to_le_bytes(), ErrorKind::Corrupt),
        (items, &(512_u32 << 20).to_le_bytes(), ErrorKind::Corrupt),
        (items + 4, &2_u32.to_le_bytes(), ErrorKind::Unsupported),
        (items + 16, &u64::MAX.to_le_bytes(), ErrorKind::Corrupt),
        (items + 16, &(32_u64 << 40).to_le_bytes(), ErrorKind::Corrupt),
        (items + 32, &1024_u32.to_le_bytes(), ErrorKind::Corrupt),
        (METADATA + 10, &u16::MAX.to_le_bytes(), ErrorKind::Corrupt),
        (METADATA + 32 + 16, &u32::MAX.to_le_bytes(), ErrorKind::Corrupt),
        (METADATA + 32, &[1], ErrorKind::Unsupported),
        (BAT, &at(1 << 40).to_le_bytes(), ErrorKind::Corrupt),
        (BAT, &at(BAT).to_le_bytes(), ErrorKind::Corrupt),
        (BAT, &7_u64.to_le_bytes(), ErrorKind::Corrupt),
    ];
    for (place, value, kind) in table {
        let mut bytes = small(512);
        bytes[place..place + value.len()].copy_from_slice(value);
        assert_eq!(read(&bytes).err().map(|error| error.kind()), Some(kind), "{value:x?} at {place:#x}");
        if place == BAT {
            let wrong = block_on(async { check(&opened(&bytes).await.unwrap()).await.unwrap() });
            assert_eq!(wrong, 1, "{value:x?}");
        }
    }
    for len in [0, 8, 64 << 10, 300 << 10, METADATA + 8, BAT + 8] {
        assert_eq!(read(&small(512)[..len]).unwrap_err().kind(), ErrorKind::Corrupt, "{len} bytes");
    }
}
