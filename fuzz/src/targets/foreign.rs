//! Images of other hypervisors: edits of a valid one, or any bytes. Opened, everything is asked and read, and where there is a check it runs. Sums
//! are made right behind the edits, or nothing would get past them.

use std::io::Write;
use std::sync::Arc;

use block::Block;
use flate2::Compression;
use flate2::write::DeflateEncoder;
use formats::sink::{NewImage, Stamp, VmdkOptions, VmdkSubformat, VpcOptions};
use formats::{Kind, vhdx, vmdk};
use storage::{Hints, IoBuf, IoBytes, Storage};

use super::disk::READ_BYTES_MAX;
use crate::executor::block_on;
use crate::input::Input;
use crate::medium::Medium;

/// Questions for the state of a disk: enough for every block of one that is no larger than the file.
const QUESTIONS_MAX: u32 = 2_000;
/// Bytes of a valid image that are kept: its tables, and some of the data. What a file that was cut short lacks reads as zeroes.
const BASE_BYTES: usize = 6 << 10;
/// Most edits of a case.
const EDITS_MAX: u8 = 8;
/// Numbers at which limits lie.
const EDGES: [u64; 14] = [
    0,
    1,
    2,
    511,
    512,
    513,
    0xffff,
    0x7fff_ffff,
    0xffff_fffe,
    0xffff_ffff,
    1 << 32,
    1 << 62,
    1 << 63,
    u64::MAX,
];

/// A valid image, and what has to be right behind the edits.
struct Base {
    bytes: Vec<u8>,
    /// What is worth editing: first byte, and length.
    regions: Vec<(usize, usize)>,
    /// Where headers with a sum are.
    sums: &'static [Sum],
}

/// A header with a sum: its first byte, its length, the place of the sum in it, and what kind of sum it is.
struct Sum(usize, usize, usize, SumKind);

#[derive(Clone, Copy)]
enum SumKind {
    /// The complement of the sum of all bytes, big-endian.
    Complement,
    /// CRC-32C, little-endian.
    Crc32c,
}

pub(super) fn vdi(data: &[u8]) {
    run(Kind::Vdi, data, |_| {
        let mut bytes = vec![7; BASE_BYTES];
        bytes[..1024].fill(0);
        let fields = [
            (0x40, 0xbeda_107f),
            (0x44, 0x0001_0001),
            (0x4c, 1),
            (0x154, 512),
            (0x158, 1024),
            (0x168, 512),
            (0x170, 3 << 20),
            (0x178, 1 << 20),
            (0x180, 3),
            (0x184, 1),
            (512, u32::MAX),
            (516, 0),
            (520, u32::MAX - 1),
        ];
        for (at, value) in fields {
            bytes[at..at + 4].copy_from_slice(&value.to_le_bytes());
        }
        Base { bytes, regions: vec![(0, 1024)], sums: &[] }
    });
}

pub(super) fn vpc(data: &[u8]) {
    run(Kind::Vpc, data, |_| {
        let image = NewImage::Vpc(VpcOptions::default());
        let mut bytes = written(&image, &[(0, vec![1; 512]), (3 << 20, vec![2; 512])]);
        bytes.truncate(BASE_BYTES);
        Base {
            bytes,
            regions: vec![(0, 2048)],
            sums: &[Sum(0, 512, 0x40, SumKind::Complement), Sum(512, 1024, 0x24, SumKind::Complement)],
        }
    });
}

pub(super) fn qcow(data: &[u8]) {
    run(Kind::Qcow, data, |_| {
        const PACKED_AT: usize = 2048 + 3;
        let mut encoder = DeflateEncoder::new(Vec::new(), Compression::default());
        let packed = encoder.write_all(&[3; 512]).and_then(|()| encoder.finish()).expect("memory");
        let mut bytes = vec![1; PACKED_AT + packed.len()];
        bytes[..1024].fill(0);
        let mut put = |at: usize, field: &[u8]| bytes[at..at + field.len()].copy_from_slice(field);
        put(0, b"QFI\xfb\0\0\0\x01");
        put(8, &56_u64.to_be_bytes());
        put(16, &4_u32.to_be_bytes());
        put(24, &4096_u64.to_be_bytes());
        put(32, &[9, 6]);
        put(40, &48_u64.to_be_bytes());
        put(48, &512_u64.to_be_bytes());
        put(56, b"base");
        put(520, &1024_u64.to_be_bytes());
        put(528, &1536_u64.to_be_bytes());
        put(536, &(1 << 63 | (packed.len() as u64) << 54 | PACKED_AT as u64).to_be_bytes());
        put(PACKED_AT, &packed);
        Base { bytes, regions: vec![(0, 60), (512, 64), (PACKED_AT, packed.len())], sums: &[] }
    });
}

pub(super) fn vmdk(data: &[u8]) {
    run(Kind::Vmdk, data, |input| match input.byte() % 3 {
        0 => {
            let options = VmdkOptions { subformat: VmdkSubformat::StreamOptimized, ..VmdkOptions::default() };
            let bytes = written(&NewImage::Vmdk(options), &[(0, vec![1; 65536]), (3 << 20, vec![2; 65536])]);
            let end = bytes.len() - 65536;
            Base { bytes, regions: vec![(0, 80), (512, 1024), (65536, end)], sums: &[] }
        }
        1 => sparse(),
        _ => {
            let extents = "RW 8 FLAT \"a\" 0\nRW 9 ZERO\nRW 8 SPARSE \"b\"\nRW 5 VMFS \"c\"\n";
            let bytes = descriptor("vmfs", extents).into_bytes();
            let len = bytes.len();
            Base { bytes, regions: vec![(0, len)], sums: &[] }
        }
    });
}

/// Where the parts of the image of [`vhdx`] are: their places are whole MiB.
const VHDX_LOG: usize = 1 << 20;
const VHDX_METADATA: usize = 2 << 20;
const VHDX_TABLE: usize = 3 << 20;
const VHDX_DATA: usize = 4 << 20;
/// Bytes of an entry of the log: a sector with its descriptors, and one of data.
const VHDX_ENTRY: usize = 8192;

/// A disk of 4 MiB in blocks of 1 MiB: one with data, one of zeroes. Half of them have a log that was not replayed.
pub(super) fn vhdx(data: &[u8]) {
    const CRC: SumKind = SumKind::Crc32c;
    const LOG_GUID: [u8; 16] = [7; 16];
    run(Kind::Vhdx, data, |input| {
        let has_log = input.flag();
        let mut bytes = vec![0; VHDX_DATA + 512];
        let mut put = |at: usize, field: &[u8]| bytes[at..at + field.len()].copy_from_slice(field);
        put(0, b"vhdxfile");
        for (at, sequence) in [(64 << 10, 6_u64), (128 << 10, 5)] {
            put(at, b"head");
            put(at + 8, &sequence.to_le_bytes());
            put(at + 48, if has_log { &LOG_GUID } else { &[0; 16] });
            put(at + 66, &[1, 0]);
            put(at + 68, &(1_u32 << 20).to_le_bytes());
            put(at + 72, &(VHDX_LOG as u64).to_le_bytes());
        }
        for at in [192 << 10, 256 << 10] {
            put(at, b"regi\0\0\0\0\x02");
            for (entry, guid, place) in [
                (at + 16, *b"\x66\x77\xc2\x2d\x23\xf6\x00\x42\x9d\x64\x11\x5e\x9b\xfd\x4a\x08", VHDX_TABLE),
                (
                    at + 48,
                    *b"\x06\xa2\x7c\x8b\x90\x47\x9a\x4b\xb8\xfe\x57\x5f\x05\x0f\x88\x6e",
                    VHDX_METADATA,
                ),
            ] {
                put(entry, &guid);
                put(entry + 16, &(place as u64).to_le_bytes());
                put(entry + 24, &(1_u32 << 20).to_le_bytes());
                put(entry + 28, &[1]);
            }
        }
        put(VHDX_METADATA, b"metadata\0\0\x03");
        let items: [(&[u8; 16], &[u8]); 3] = [
            (b"\x37\x67\xa1\xca\x36\xfa\x43\x4d\xb3\xb6\x33\xf0\xaa\x44\xe7\x6b", &[0, 0, 16, 0, 0, 0, 0, 0]),
            (b"\x24\x42\xa5\x2f\x1b\xcd\x76\x48\xb2\x11\x5d\xbe\xd8\x3b\xf4\xb8", &[0, 0, 64, 0, 0, 0, 0, 0]),
            (b"\x1d\xbf\x41\x81\x6f\xa9\x09\x47\xba\x47\xf2\x33\xa8\xfa\xab\x5f", &[0, 2, 0, 0]),
        ];
        for (index, (guid, value)) in items.into_iter().enumerate() {
            let (entry, place) = (VHDX_METADATA + 32 + 32 * index, (64 << 10) + 16 * index);
            put(entry, guid);
            put(entry + 16, &(place as u32).to_le_bytes());
            put(entry + 20, &(value.len() as u32).to_le_bytes());
            put(entry + 24, &[6]);
            put(VHDX_METADATA + place, value);
        }
        put(VHDX_TABLE, &(VHDX_DATA as u64 | 6).to_le_bytes());
        put(VHDX_TABLE + 8, &[2]);
        put(VHDX_LOG, b"loge");
        let sequence = 8_u32.to_le_bytes();
        for (at, field) in
            [(8, VHDX_ENTRY as u32), (16, 8), (24, 1), (48, VHDX_DATA as u32), (56, VHDX_DATA as u32 + 512)]
        {
            put(VHDX_LOG + at, &field.to_le_bytes());
        }
        put(VHDX_LOG + 32, &LOG_GUID);
        put(VHDX_LOG + 64, b"desc");
        put(VHDX_LOG + 64 + 16, &(VHDX_TABLE as u64).to_le_bytes());
        put(VHDX_LOG + 64 + 24, &sequence);
        put(VHDX_LOG + 4096, b"data");
        put(VHDX_LOG + VHDX_ENTRY - 4, &sequence);
        let table = [(64 << 10, 80), (192 << 10, 80), (VHDX_LOG, 96), (VHDX_METADATA, 128)];
        let values = [(VHDX_METADATA + (64 << 10), 48), (VHDX_TABLE, 32), (VHDX_LOG + 4096, 16)];
        Base {
            bytes,
            regions: table.into_iter().chain(values).collect(),
            sums: &[
                Sum(64 << 10, 4096, 4, CRC),
                Sum(128 << 10, 4096, 4, CRC),
                Sum(192 << 10, 64 << 10, 4, CRC),
                Sum(256 << 10, 64 << 10, 4, CRC),
                Sum(VHDX_LOG, VHDX_ENTRY, 4, CRC),
            ],
        }
    });
}

fn descriptor(create_type: &str, extents: &str) -> String {
    format!(
        "# Disk DescriptorFile\nversion=1\nCID=7e5b80a7\nparentCID=ffffffff\ncreateType=\"{create_type}\"\n\n{extents}\nddb.adapterType = \"ide\"\n"
    )
}

/// A monolithic sparse image of 1 MiB in grains of 4 KiB: one with data, one of zeroes.
fn sparse() -> Base {
    let mut bytes = vec![0; 8192];
    let mut put = |at: usize, field: &[u8]| bytes[at..at + field.len()].copy_from_slice(field);
    put(0, b"KDMV");
    let fields: [(usize, u32); 9] =
        [(4, 2), (8, 5), (12, 2048), (20, 8), (28, 1), (36, 2), (44, 512), (56, 3), (64, 8)];
    for (at, value) in fields {
        put(at, &value.to_le_bytes());
    }
    put(73, b"\n \r\n");
    put(512, descriptor("monolithicSparse", "RW 2048 SPARSE \"case\"\n").as_bytes());
    put(1536, &4_u32.to_le_bytes());
    put(2048, &8_u32.to_le_bytes());
    put(2056, &1_u32.to_le_bytes());
    put(4096, &[7; 4096]);
    Base { bytes, regions: vec![(0, 80), (512, 1024), (1536, 1024)], sums: &[] }
}

/// An image for a disk of 5 MiB with `data`.
fn written(image: &NewImage, data: &[(u64, Vec<u8>)]) -> Vec<u8> {
    let stamp = Stamp { unix_seconds: 1 << 30, id: [5; 16], file_name: "case".to_owned() };
    let mut sink = image.sink(stamp);
    let mut pieces = sink.begin(5 << 20).expect("a size that there is");
    for (offset, bytes) in data {
        let stored = sink.packing().map_or(bytes.clone(), |packing| packing(bytes).expect("memory"));
        pieces.extend(sink.data(*offset, IoBytes::copy_from(&stored)).expect("a short file"));
    }
    pieces.extend(sink.finish().expect("a short file"));
    let mut file = Vec::new();
    for piece in pieces {
        let at = usize::try_from(piece.at).expect("a short file");
        file.resize(file.len().max(at + piece.bytes.len()), 0);
        file[at..at + piece.bytes.len()].copy_from_slice(&piece.bytes);
    }
    file
}

fn run(kind: Kind, data: &[u8], base: impl Fn(&mut Input<'_>) -> Base) {
    let mut input = Input::new(data);
    let bytes = match input.byte() % 4 {
        0 => input.rest().to_vec(),
        which => {
            let mut base = base(&mut input);
            edit(&mut input, &mut base);
            if which != 1 {
                base.sums.iter().for_each(|sum| put_sum(&mut base.bytes, sum));
            }
            base.bytes
        }
    };
    block_on(look_at(kind, Arc::new(Medium::new(&bytes))));
}

/// Other numbers in places of the file, other bytes, another length.
fn edit(input: &mut Input<'_>, Base { bytes, regions, .. }: &mut Base) {
    for _ in 0..input.byte() % (EDITS_MAX + 1) {
        let (start, len) = *input.pick(regions);
        let at = start + usize::try_from(input.number(2)).unwrap_or(0) % len;
        let kind = input.byte();
        let width = [1, 2, 4, 8][usize::from(kind >> 6)];
        // Fields begin at multiples of four bytes, but for a few.
        let at = if kind & 8 == 0 { at & !3 } else { at };
        let Some(field) = bytes.get_mut(at..at + width) else { continue };
        let value = match kind % 4 {
            0 => input.number(width),
            1 => *input.pick(&EDGES),
            2 => 1 << input.below(64),
            _ => {
                let length = usize::try_from(input.number(2)).unwrap_or(0);
                bytes.truncate(length.max(1));
                continue;
            }
        };
        match kind & 4 {
            0 => field.copy_from_slice(&value.to_le_bytes()[..width]),
            _ => field.copy_from_slice(&value.to_be_bytes()[8 - width..]),
        }
    }
}

fn put_sum(bytes: &mut [u8], Sum(start, len, at, kind): &Sum) {
    let Some(header) = bytes.get_mut(*start..start + len) else { return };
    header[*at..at + 4].fill(0);
    let sum = match kind {
        SumKind::Complement => (!header.iter().map(|byte| u32::from(*byte)).sum::<u32>()).to_be_bytes(),
        SumKind::Crc32c => vhdx::checksum(header, *at).to_le_bytes(),
    };
    header[*at..at + 4].copy_from_slice(&sum);
}

async fn look_at(kind: Kind, medium: Arc<Medium>) {
    if let Ok(image) = open(kind, &medium).await {
        read(&*image).await;
        let mut findings = 0;
        if let Ok(corruptions) = formats::check(&*image, &mut |_| findings += 1).await {
            assert!(findings <= corruptions, "findings that were not counted");
        }
        let _ = image.close().await;
    }
    assert_eq!(medium.changes(), 0, "an image that is only read was written");
}

/// A disk that is in several files has the same one for each.
async fn open(kind: Kind, medium: &Arc<Medium>) -> Result<Arc<dyn Block>, block::Error> {
    let file = || Arc::clone(medium) as Arc<dyn Storage>;
    if kind == Kind::Qcow {
        formats::qcow1::describe(&**medium).await?;
    }
    if kind != Kind::Vmdk {
        return formats::open(kind, file()).await;
    }
    let description = vmdk::describe(&**medium).await?;
    let has_file = |line: &&vmdk::ExtentLine| !line.file.is_empty();
    let files = description.extents().iter().filter(has_file).map(|_| file()).collect();
    Ok(Arc::new(vmdk::open(file(), &description, files, None).await?))
}

async fn read(image: &dyn Block) {
    let size = image.size();
    let (mut at, mut questions) = (0, 0);
    while at < size && questions < QUESTIONS_MAX {
        let Ok(status) = image.block_status(at, size - at).await else { break };
        assert!(status.len > 0 && status.len <= size - at, "status at {at} of {size}: {status:?}");
        (at, questions) = (at + status.len, questions + 1);
    }
    let end = size.min(READ_BYTES_MAX);
    for start in [0, size / 2, size - end] {
        let len = end.min(size - start);
        let (_, buf) = image.read(start, IoBuf::zeroed(len as usize), Hints::NONE).await;
        assert_eq!(buf.len() as u64, len, "bytes that did not come back");
    }
    let beyond = image.read(size, IoBuf::zeroed(1), Hints::NONE).await.0;
    assert!(beyond.is_err(), "a read behind the end");
}
