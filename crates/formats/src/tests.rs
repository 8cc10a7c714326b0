//! Hand-made images: what the table says is read, and what contradicts itself is refused before anything is allocated for it.

use std::sync::Arc;

use block::ErrorKind;
use futures_executor::block_on;
use memory::IoBuf;
use storage::{Hints, MemoryStorage};

use crate::{Kind, open};

const MIB: usize = 1 << 20;

/// A vdi disk of 3 MiB: block 1 is filled with 7, block 0 was never written, block 2 was given back.
fn vdi() -> Vec<u8> {
    let mut bytes = vec![0; 1024 + MIB];
    let mut put = |at: usize, value: u32| bytes[at..at + 4].copy_from_slice(&value.to_le_bytes());
    for (at, value) in [
        (0x40, 0xbeda_107f),
        (0x44, 0x0001_0001),
        (0x4c, 1),
        (0x154, 512),
        (0x158, 1024),
        (0x168, 512),
        (0x170, 3 * MIB as u32),
        (0x178, MIB as u32),
        (0x180, 3),
        (512, u32::MAX),
        (516, 0),
        (520, u32::MAX - 1),
    ] {
        put(at, value);
    }
    bytes[1024..].fill(7);
    bytes
}

fn with_sum(bytes: &mut [u8], at: usize) {
    bytes[at..at + 4].fill(0);
    let sum = !bytes.iter().map(|byte| u32::from(*byte)).sum::<u32>();
    bytes[at..at + 4].copy_from_slice(&sum.to_be_bytes());
}

/// A dynamic VHD of 2 blocks of 4 KiB, of which the second has data.
fn vpc(kind: u32) -> Vec<u8> {
    let mut footer = vec![0; 512];
    footer[..8].copy_from_slice(b"conectix");
    footer[0x10..0x18].copy_from_slice(&512_u64.to_be_bytes());
    footer[0x1c..0x20].copy_from_slice(b"win ");
    footer[0x30..0x38].copy_from_slice(&8192_u64.to_be_bytes());
    footer[0x3c..0x40].copy_from_slice(&kind.to_be_bytes());
    with_sum(&mut footer, 0x40);
    let mut header = vec![0; 1024];
    header[..8].copy_from_slice(b"cxsparse");
    header[0x10..0x18].copy_from_slice(&1536_u64.to_be_bytes());
    header[0x1c..0x20].copy_from_slice(&2_u32.to_be_bytes());
    header[0x20..0x24].copy_from_slice(&4096_u32.to_be_bytes());
    with_sum(&mut header, 0x24);
    let mut table = vec![0xff; 512];
    table[4..8].copy_from_slice(&4_u32.to_be_bytes());
    let block = [vec![0xff; 512], vec![9; 4096]].concat();
    [footer.clone(), header, table, block, footer].concat()
}

fn read(kind: Kind, bytes: &[u8]) -> Result<Vec<u8>, ErrorKind> {
    block_on(async {
        let image =
            open(kind, Arc::new(MemoryStorage::from_bytes(bytes))).await.map_err(|error| error.kind())?;
        let (result, buf) = image.read(0, IoBuf::uninit(image.size() as usize), Hints::NONE).await;
        result.map_err(|error| error.kind())?;
        Ok(buf.to_vec())
    })
}

#[test]
fn blocks_without_data_read_as_zeroes_and_others_from_their_place() {
    let disk = read(Kind::Vdi, &vdi()).expect("a good image");
    assert!(disk == [vec![0; MIB], vec![7; MIB], vec![0; MIB]].concat());
    let disk = read(Kind::Vpc, &vpc(3)).expect("a good image");
    assert!(disk == [vec![0; 4096], vec![9; 4096]].concat());
}

#[test]
fn a_request_over_a_border_of_blocks_reads_both() {
    block_on(async {
        let image = open(Kind::Vdi, Arc::new(MemoryStorage::from_bytes(&vdi()))).await.expect("a good image");
        let (result, buf) = image.read(MIB as u64 - 3, IoBuf::uninit(6), Hints::NONE).await;
        assert!(result.is_ok() && buf[..] == [0, 0, 0, 7, 7, 7]);
        let status = image.block_status(MIB as u64 + 5, 10).await.expect("inside");
        assert_eq!((status.len, status.data, status.offset), (10, true, Some(1029)));
        let beyond = image.read(3 * MIB as u64, IoBuf::uninit(1), Hints::NONE).await.0;
        assert_eq!(beyond.map_err(|error| error.kind()), Err(ErrorKind::PastEnd));
    });
}

#[test]
fn vdi_headers_that_lie_are_refused() {
    let table: [(usize, u32, ErrorKind); 9] = [
        (0x44, 2, ErrorKind::Unsupported),
        (0x4c, 4, ErrorKind::Unsupported),
        (0x154, 513, ErrorKind::Corrupt),
        (0x154, 0xffff_fe00, ErrorKind::Corrupt),
        (0x168, 4096, ErrorKind::Unsupported),
        (0x174, u32::MAX, ErrorKind::Corrupt),
        (0x180, u32::MAX, ErrorKind::Corrupt),
        (0x1b8, 1, ErrorKind::Unsupported),
        (516, 1, ErrorKind::Corrupt),
    ];
    for (at, value, kind) in table {
        let mut bytes = vdi();
        bytes[at..at + 4].copy_from_slice(&value.to_le_bytes());
        assert_eq!(read(Kind::Vdi, &bytes).err(), Some(kind), "{value:#x} at {at:#x}");
    }
    for len in [0, 511, 520] {
        assert_eq!(read(Kind::Vdi, &vdi()[..len]).err(), Some(ErrorKind::Corrupt), "{len} bytes");
    }
}

#[test]
fn vhd_headers_that_lie_are_refused() {
    assert_eq!(read(Kind::Vpc, &vpc(4)).err(), Some(ErrorKind::Unsupported));
    assert_eq!(read(Kind::Vpc, &vpc(7)).err(), Some(ErrorKind::Unsupported));
    let table: [(usize, u32); 5] =
        [(0x10, u32::MAX), (0x1c, 1), (0x1c, u32::MAX), (0x20, 3), (0x20, 1 << 31)];
    for (at, value) in table {
        let mut bytes = vpc(3);
        bytes[512 + at..512 + at + 4].copy_from_slice(&value.to_be_bytes());
        with_sum(&mut bytes[512..1536], 0x24);
        assert_eq!(read(Kind::Vpc, &bytes).err(), Some(ErrorKind::Corrupt), "{value:#x} at {at:#x}");
    }
    let mut bytes = vpc(3);
    bytes[0x50] = 1;
    assert_eq!(read(Kind::Vpc, &bytes).err(), Some(ErrorKind::Corrupt));
    assert_eq!(read(Kind::Vpc, b"conectix").err(), Some(ErrorKind::Corrupt));
}

#[test]
fn a_fixed_vhd_is_what_stands_before_its_footer() {
    let mut footer = vpc(2)[..512].to_vec();
    footer[0x10..0x18].fill(0xff);
    with_sum(&mut footer, 0x40);
    let disk = vec![5; 8192];
    assert!(read(Kind::Vpc, &[disk.clone(), footer.clone()].concat()) == Ok(disk));
    assert_eq!(read(Kind::Vpc, &[vec![5; 4096], footer].concat()).err(), Some(ErrorKind::Corrupt));
}
