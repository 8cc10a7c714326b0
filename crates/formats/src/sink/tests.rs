//! What a sink writes is what the format's reader reads, and its pieces keep the promises of [`Sink`].

use std::io::Read;
use std::sync::Arc;

use flate2::read::ZlibDecoder;
use futures_executor::block_on;
use memory::{IoBuf, IoBytes};
use storage::{Hints, MemoryStorage};

use super::*;
use crate::{Kind, open};

const MIB: u64 = 1 << 20;

fn stamp() -> Stamp {
    Stamp { unix_seconds: 1_700_000_000, id: [7; 16], file_name: "disk.img".to_owned() }
}

/// The file that `image` makes of a disk of `size` bytes with `data`.
fn made(image: &NewImage, size: u64, data: &[(u64, Vec<u8>)]) -> Result<Vec<u8>, SinkError> {
    let mut sink = image.sink(stamp());
    let mut pieces = sink.begin(size)?;
    for (offset, bytes) in data {
        let stored = match sink.packing() {
            Some(packing) => packing(bytes).expect("memory"),
            None => bytes.clone(),
        };
        pieces.extend(sink.data(*offset, IoBytes::copy_from(&stored))?);
    }
    pieces.extend(sink.finish()?);
    let (mut file, mut sequential) = (Vec::new(), true);
    for Piece { at, bytes } in &pieces {
        let at = usize::try_from(*at).expect("a small file");
        sequential &= at >= file.len();
        file.resize(file.len().max(at + bytes.len()), 0);
        file[at..at + bytes.len()].copy_from_slice(bytes);
    }
    assert!(sequential || !sink.is_sequential(), "a piece lies before an earlier one");
    Ok(file)
}

fn read(kind: Kind, file: &[u8], len: usize) -> Vec<u8> {
    block_on(async {
        let image = open(kind, Arc::new(MemoryStorage::from_bytes(file))).await.expect("a good image");
        let (result, buf) = image.read(0, IoBuf::uninit(len), Hints::NONE).await;
        result.expect("a good image");
        buf.to_vec()
    })
}

#[test]
fn a_vhd_reads_as_what_was_written_and_blocks_without_data_take_no_space() {
    let data = [(512, vec![1; 1024]), (2 * MIB - 512, vec![2; 1024]), (9 * MIB, vec![3; 512])];
    let mut disk = vec![0; 10 * MIB as usize];
    for (at, bytes) in &data {
        let at = usize::try_from(*at).expect("a small disk");
        disk[at..at + bytes.len()].copy_from_slice(bytes);
    }
    for subformat in [VpcSubformat::Dynamic, VpcSubformat::Fixed] {
        for force_size in [false, true] {
            let image = NewImage::Vpc(VpcOptions { subformat, force_size });
            let file = made(&image, 10 * MIB, &data).expect("a size that there is");
            assert!(read(Kind::Vpc, &file, disk.len()) == disk, "{subformat:?}");
            // 302 cylinders, 4 heads, 17 sectors.
            let size = if force_size { 10 * MIB } else { 302 * 4 * 17 * 512 };
            let expected = match subformat {
                VpcSubformat::Fixed => size + 512,
                VpcSubformat::Dynamic => 1536 + 512 + 3 * (2 * MIB + 512) + 512,
            };
            assert_eq!(file.len() as u64, expected, "{subformat:?}");
        }
    }
}

#[test]
fn a_disk_that_the_format_does_not_hold_is_refused_before_anything_is_allocated() {
    let vmdk = VmdkOptions { subformat: VmdkSubformat::StreamOptimized, ..VmdkOptions::default() };
    for (image, max) in [(NewImage::Vpc(VpcOptions::default()), 2040 << 30), (NewImage::Vmdk(vmdk), 64 << 40)]
    {
        assert!(image.sink(stamp()).begin(max).is_ok());
        let is_vmdk = matches!(image, NewImage::Vmdk(_));
        assert_eq!(image.sink(stamp()).begin(0).is_err(), is_vmdk, "of no bytes");
        let refused = image.sink(stamp()).begin(max + 512);
        let is_disk =
            |error: &SinkError| matches!(error, SinkError::Disk { max: found, .. } if *found == max);
        assert!(refused.as_ref().is_err_and(is_disk), "{refused:?}");
    }
}

/// A reader that follows the markers alone, as programs that import OVAs do: grains by number, and where tables, directory and footer are.
#[derive(Debug, Default)]
struct Stream {
    grains: Vec<(u64, Vec<u8>)>,
    metadata: Vec<(u32, usize)>,
}

impl Stream {
    fn of(file: &[u8]) -> Self {
        let le = |at: usize, len: usize| {
            file[at..at + len].iter().rev().fold(0_u64, |number, byte| number << 8 | u64::from(*byte))
        };
        let (mut stream, mut at) = (Self::default(), 64 << 10);
        loop {
            let (number, len, kind) = (le(at, 8), le(at + 8, 4) as usize, le(at + 12, 4) as u32);
            if len > 0 {
                let mut grain = Vec::new();
                ZlibDecoder::new(&file[at + 12..at + 12 + len]).read_to_end(&mut grain).expect("zlib");
                stream.grains.push((number, grain));
                at = (at + 12 + len).next_multiple_of(512);
                continue;
            }
            stream.metadata.push((kind, at + 512));
            at += 512 * (1 + number as usize);
            if kind == 0 {
                assert_eq!(at, file.len(), "the end of the stream is that of the file");
                return stream;
            }
        }
    }
}

#[test]
fn a_stream_has_markers_tables_behind_their_grains_and_a_footer_that_finds_them() {
    let options = VmdkOptions {
        subformat: VmdkSubformat::StreamOptimized,
        adapter: Adapter::LsiLogic,
        ..VmdkOptions::default()
    };
    let image = NewImage::Vmdk(options);
    // The third table has no grains; the last grain is short.
    let data = [(0, vec![1; 65536]), (33 * MIB, vec![2; 65536]), (96 * MIB, vec![3; 512])];
    let file = made(&image, 96 * MIB + 512, &data).expect("a size that there is");
    let stream = Stream::of(&file);
    let short = [vec![3; 512], vec![0; 65024]].concat();
    let grains = [(0, vec![1; 65536]), (33 * 2048, vec![2; 65536]), (96 * 2048, short)];
    assert!(stream.grains == grains);
    let kinds: Vec<u32> = stream.metadata.iter().map(|(kind, _)| *kind).collect();
    assert_eq!(kinds, [1, 1, 1, 2, 3, 0]);
    let places: Vec<u32> = stream.metadata.iter().map(|(_, at)| (at / 512) as u32).collect();
    let le32 = |at: usize| u32::from_le_bytes(file[at..at + 4].try_into().expect("four bytes"));
    let directory = places[3] as usize * 512;
    let found: Vec<u32> = (0..4).map(|entry| le32(directory + 4 * entry)).collect();
    assert_eq!(found, [places[0], places[1], 0, places[2]]);
    let entry = places[1] as usize * 512 + 4 * (MIB as usize / 65536);
    assert_eq!(u64::from(le32(entry)) * 512, u64::from(places[0]) * 512 + 2048);
    let footer = &file[places[4] as usize * 512..][..512];
    assert_eq!(footer[56..64], u64::from(places[3]).to_le_bytes());
    assert_eq!((&file[..56], &file[56..64], &file[64..512]), (&footer[..56], &[0xff; 8][..], &footer[64..]));
    let text = String::from_utf8_lossy(&file[512..1536]);
    for line in
        ["createType=\"streamOptimized\"", "ddb.adapterType = \"lsilogic\"", "ddb.geometry.heads = \"255\""]
    {
        assert!(text.contains(line), "{text}");
    }
}

#[test]
fn a_sparse_vmdk_reads_as_what_was_written() {
    let image = NewImage::Vmdk(VmdkOptions::default());
    // The third table has no grains; the last grain is short.
    let data = [(0, vec![1; 131_072]), (33 * MIB, vec![2; 65536]), (96 * MIB, vec![3; 512])];
    let size = 96 * MIB + 512;
    let file = made(&image, size, &data).expect("a size that there is");
    assert_eq!(file.len(), (64 << 10) * 5);
    let mut disk = vec![0; size as usize];
    for (at, bytes) in &data {
        let at = usize::try_from(*at).expect("a small disk");
        disk[at..at + bytes.len()].copy_from_slice(bytes);
    }
    assert!(read(Kind::Vmdk, &file, disk.len()) == disk);
    // Both copies of the tables are the same, but for where they are.
    assert!(file[22 * 512..38 * 512] == file[39 * 512..55 * 512]);
}
