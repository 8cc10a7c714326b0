//! Bitmaps that are kept up to date while a disk changes: exact after a close, true after a crash.

#![expect(clippy::unwrap_used, reason = "a test stops at what it did not expect")]

use crate::common::faulty::Faulty;
use crate::on_reactor;

use std::sync::Arc;

use on_reactor::{Loop, reactor_run};
use qcow2::bitmap::{Bitmap, BitmapChange, NewBitmap};
use qcow2::{CreateOptions, Files, Options, Qcow2, ResizeOptions, ZeroOptions, create};
use qcow2_layout::{Autoclear, BitmapFlags, HostOffset};
use storage::{Hints, IoBytes, MemoryStorage, Storage};

const K: u64 = 1 << 10;
const M: u64 = 1 << 20;
const DISK: u64 = 16 * M;

async fn made(size: u64, cluster_size: u64) -> Arc<MemoryStorage> {
    let file = Arc::new(MemoryStorage::new(0));
    let options = CreateOptions { size, cluster_size, ..CreateOptions::default() };
    create(&*file, None, &options).await.unwrap();
    file
}

async fn open<S: Storage + 'static>(file: &Arc<S>, options: Options) -> Qcow2 {
    let files = Files { file: Arc::clone(file) as Arc<dyn Storage>, data: None, backing: None };
    Qcow2::open(files, options, Arc::new(Loop)).await.unwrap()
}

fn writable() -> Options {
    Options { writable: true, discard: true, ..Options::default() }
}

fn new(granularity: u64) -> NewBitmap {
    NewBitmap { granularity_bytes: Some(granularity), recording: true, persistent: true }
}

fn in_memory(granularity: u64) -> NewBitmap {
    NewBitmap { persistent: false, ..new(granularity) }
}

fn named(image: &Qcow2, name: &str) -> Option<Arc<Bitmap>> {
    image.bitmaps().into_iter().find(|bitmap| bitmap.name() == name)
}

async fn write(image: &Qcow2, offset: u64, len: u64) {
    image.write(offset, IoBytes::copy_from(&vec![7; len as usize]).into(), Hints::NONE).await.unwrap();
}

/// Dirty ranges, start and end, neighbours joined.
async fn dirty(image: &Qcow2, name: &str) -> Vec<(u64, u64)> {
    let bitmap = named(image, name).unwrap_or_else(|| panic!("{name} is not there, or inconsistent"));
    let (mut at, mut found) = (0, Vec::<(u64, u64)>::new());
    while at < image.size() {
        let said = bitmap.status(at, image.size() - at).await.unwrap();
        if said.dirty {
            match found.last_mut() {
                Some((_, end)) if *end == at => *end += said.len,
                _ => found.push((at, at + said.len)),
            }
        }
        at += said.len;
    }
    found
}

/// An image with a bitmap "b", and what it has as dirty after `work` and a clean close, as the next who opens it for reading sees it.
async fn after_close(granularity: u64, work: impl AsyncFnOnce(&Qcow2)) -> Vec<(u64, u64)> {
    let file = made(DISK, 4 * K).await;
    let image = open(&file, writable()).await;
    image.change_bitmap("b", BitmapChange::Add(new(granularity))).await.unwrap();
    work(&image).await;
    let live = dirty(&image, "b").await;
    image.close().await.unwrap();
    let header = qcow2::read_header(&*file).await.unwrap();
    assert!(header.extensions.record.is_none() && !header.autoclear.contains(Autoclear::BITMAP_RECORD));
    let entries = qcow2::bitmap::list(&*file, &header).await.unwrap();
    assert!(entries.iter().all(|entry| !entry.flags.contains(BitmapFlags::IN_USE)), "{entries:?}");
    let image = open(&file, Options::default()).await;
    assert_eq!(dirty(&image, "b").await, live, "stored as it was in memory");
    live
}

#[test]
fn every_kind_of_change_sets_its_bits_and_no_others() {
    reactor_run(async {
        let found = after_close(4 * K, async |image| {
            write(image, 5 * K, 512).await;
            write(image, M - 1, 2).await;
            image.zero(2 * M + 100, 8 * K, ZeroOptions::default()).await.unwrap();
            image.discard(4 * M, 64 * K).await.unwrap();
            image.flush().await.unwrap();
            write(image, DISK - 1, 1).await;
        });
        let expected = [
            (4 * K, 8 * K),
            (M - 4 * K, M + 4 * K),
            (2 * M, 2 * M + 12 * K),
            (4 * M, 4 * M + 64 * K),
            (DISK - 4 * K, DISK),
        ];
        assert_eq!(found.await, expected);
    });
}

#[test]
fn a_disabled_bitmap_stays_as_it_is_and_an_enabled_one_goes_on() {
    reactor_run(async {
        let found = after_close(64 * K, async |image| {
            write(image, 0, 1).await;
            image.change_bitmap("b", BitmapChange::Record(false)).await.unwrap();
            write(image, M, 1).await;
            image.change_bitmap("b", BitmapChange::Record(true)).await.unwrap();
            write(image, 2 * M, 1).await;
        });
        assert_eq!(found.await, [(0, 64 * K), (2 * M, 2 * M + 64 * K)]);
        let cleared = after_close(64 * K, async |image| {
            write(image, 0, 1).await;
            image.change_bitmap("b", BitmapChange::Clear).await.unwrap();
            write(image, M, 1).await;
        });
        assert_eq!(cleared.await, [(M, M + 64 * K)]);
    });
}

#[test]
fn bitmaps_in_memory_are_merged_into_those_in_the_file_and_back() {
    reactor_run(async {
        let found = after_close(64 * K, async |image| {
            image.change_bitmap("m", BitmapChange::Add(in_memory(4 * K))).await.unwrap();
            image.change_bitmap("b", BitmapChange::Record(false)).await.unwrap();
            write(image, M, 1).await;
            assert_eq!(dirty(image, "m").await, [(M, M + 4 * K)]);
            let source = named(image, "m").unwrap();
            image.change_bitmap("b", BitmapChange::Merge(source)).await.unwrap();
            image.change_bitmap("m", BitmapChange::Clear).await.unwrap();
            assert_eq!(dirty(image, "m").await, []);
            let source = named(image, "b").unwrap();
            image.change_bitmap("m", BitmapChange::Merge(source)).await.unwrap();
            assert_eq!(dirty(image, "m").await, [(M, M + 64 * K)]);
            for (name, bitmap) in [("m", new(4 * K)), ("b", in_memory(4 * K))] {
                let error = image.change_bitmap(name, BitmapChange::Add(bitmap)).await.unwrap_err();
                assert!(error.to_string().contains("already"), "{error}");
            }
            image.change_bitmap("m", BitmapChange::Remove).await.unwrap();
            assert!(named(image, "m").is_none());
        });
        assert_eq!(found.await, [(M, M + 64 * K)]);
    });
}

#[test]
fn a_disk_of_another_size_keeps_its_bitmaps() {
    reactor_run(async {
        let found = after_close(64 * K, async |image| {
            image.change_bitmap("m", BitmapChange::Add(in_memory(4 * K))).await.unwrap();
            write(image, M, 1).await;
            write(image, 9 * M, 1).await;
            let options = ResizeOptions { shrink: true, bitmaps: true, ..ResizeOptions::default() };
            image.resize(8 * M, options).await.unwrap();
            image.resize(600 * M, options).await.unwrap();
            write(image, 500 * M, 1).await;
            assert_eq!(dirty(image, "m").await, [(M, M + 4 * K), (500 * M, 500 * M + 4 * K)]);
        });
        assert_eq!(found.await, [(M, M + 64 * K), (500 * M, 500 * M + 64 * K)]);
    });
}

/// The image is dropped as a killed process drops it, and opened by the next.
#[test]
fn who_is_killed_leaves_bitmaps_that_have_all_that_changed_and_little_more() {
    reactor_run(async {
        let file = made(DISK, 4 * K).await;
        let image = open(&file, writable()).await;
        image.change_bitmap("b", BitmapChange::Add(new(4 * K))).await.unwrap();
        write(&image, 0, 1).await;
        image.close().await.unwrap();
        let image = open(&file, writable()).await;
        write(&image, M + 5, 1).await;
        write(&image, 3 * M, 200 * K).await;
        drop(image);
        let record = (M, M + 64 * K);
        let expected = vec![(0, 4 * K), record, (3 * M, 3 * M + 256 * K)];
        // A reader that only looks, twice, and then a writer that is killed before its first change.
        for options in [Options::default(), Options::default(), writable(), writable()] {
            assert_eq!(dirty(&open(&file, options).await, "b").await, expected);
        }
        let image = open(&file, writable()).await;
        write(&image, 8 * M, 1).await;
        drop(image);
        let more = [expected, vec![(8 * M, 8 * M + 64 * K)]].concat();
        let image = open(&file, writable()).await;
        assert_eq!(dirty(&image, "b").await, more);
        image.close().await.unwrap();
        assert!(qcow2::read_header(&*file).await.unwrap().extensions.record.is_none());
        assert_eq!(dirty(&open(&file, writable()).await, "b").await, more);
    });
}

/// QEMU clears autoclear bits that it does not know before it writes, and keeps the extension: what it wrote is in no record.
#[test]
fn a_record_that_another_program_wrote_past_is_not_believed() {
    reactor_run(async {
        let file = made(DISK, 4 * K).await;
        let image = open(&file, writable()).await;
        image.change_bitmap("b", BitmapChange::Add(new(4 * K))).await.unwrap();
        write(&image, M, 1).await;
        drop(image);
        let (result, mut bits) = file.read(88, storage::IoBuf::zeroed(8), Hints::NONE).await;
        result.unwrap();
        assert_eq!(bits[0], 0x80, "the record is vouched for");
        bits[0] = 0;
        file.write(88, bits.freeze().into(), Hints::NONE).await.unwrap();
        let image = open(&file, writable()).await;
        assert!(named(&image, "b").is_none());
        assert_eq!(image.inconsistent_bitmaps().len(), 1);
        write(&image, 2 * M, 1).await;
        assert!(image.bitmaps_out_of_date().is_empty(), "that is no news");
        image.change_bitmap("b", BitmapChange::Remove).await.unwrap();
        image.change_bitmap("b", BitmapChange::Add(new(4 * K))).await.unwrap();
        write(&image, 3 * M, 1).await;
        drop(image);
        let image = open(&file, writable()).await;
        assert_eq!(dirty(&image, "b").await, [(3 * M, 3 * M + 64 * K)]);
    });
}

/// A bitmap that was inconsistent before is not made consistent by the record of another.
#[test]
fn a_record_is_of_those_bitmaps_alone_that_were_true_when_it_began() {
    reactor_run(async {
        let file = made(DISK, 4 * K).await;
        let image = open(&file, writable()).await;
        // The newest is the first in the directory.
        for name in ["b", "lost"] {
            image.change_bitmap(name, BitmapChange::Add(new(4 * K))).await.unwrap();
        }
        image.close().await.unwrap();
        let header = qcow2::read_header(&*file).await.unwrap();
        let place = header.extensions.bitmaps.unwrap().directory_offset;
        // Flags of the first entry.
        file.write(place.0 + 12, IoBytes::copy_from(&3u32.to_be_bytes()).into(), Hints::NONE).await.unwrap();
        let image = open(&file, writable()).await;
        write(&image, M, 1).await;
        drop(image);
        let image = open(&file, writable()).await;
        assert_eq!(dirty(&image, "b").await, [(M, M + 64 * K)]);
        assert!(named(&image, "lost").is_none());
    });
}

/// A record that a full device left vouched for bitmaps while the next writer, who found no room for one of its own, recorded nothing: a
/// backup missed what that writer changed.
#[test]
fn without_room_for_a_new_record_the_one_that_was_left_goes_on() {
    reactor_run(async {
        let file = made(DISK, 4 * K).await;
        let image = open(&file, writable()).await;
        write(&image, 15 * M, 200 * K).await;
        image.change_bitmap("b", BitmapChange::Add(new(4 * K))).await.unwrap();
        image.close().await.unwrap();
        let mut bytes = file.to_bytes();
        bytes.resize(bytes.len() + (256 * K) as usize, 0);
        let device = Arc::new(Faulty::device(&bytes));
        let options = || Options { allocation_reserve: Some(0), ..writable() };
        let image = open(&device, options()).await;
        let mut filled = 0;
        // What was freed for the new record has room for more behind a flush.
        for _ in 0..4 {
            while filled < 14 * M
                && image.write(filled, IoBytes::copy_from(&[7; 4096]).into(), Hints::NONE).await.is_ok()
            {
                filled += 4 * K;
            }
            image.flush().await.unwrap();
        }
        drop(image);
        assert!((4 * K..14 * M).contains(&filled), "{filled}");
        for changed in [15 * M, 15 * M + 128 * K] {
            let image = open(&device, options()).await;
            write(&image, changed, 1).await;
            assert_eq!(image.status().bitmaps_put_off, 1, "there is no room for a new record");
            drop(image);
            let image = open(&device, Options::default()).await;
            let found = dirty(&image, "b").await;
            let is_dirty = |at: u64| found.iter().any(|(start, end)| (*start..*end).contains(&at));
            assert!(is_dirty(0) && is_dirty(15 * M) && is_dirty(changed), "{changed}: {found:?}");
            assert!(!is_dirty(DISK - 4 * K), "{found:?}");
        }
    });
}

/// A record that a crash left went on vouching for a bitmap that could not be read, and in which no changes were noted.
#[test]
fn a_record_vouches_for_no_bitmap_that_misses_a_change() {
    reactor_run(async {
        let file = made(DISK, 4 * K).await;
        let image = open(&file, writable()).await;
        write(&image, 8 * M, 200 * K).await;
        image.change_bitmap("bad", BitmapChange::Add(new(4 * K))).await.unwrap();
        write(&image, 8 * M, 1).await;
        drop(image);
        let header = qcow2::read_header(&*file).await.unwrap();
        assert!(header.extensions.record.is_some());
        let table = qcow2::bitmap::list(&*file, &header).await.unwrap()[0].table_offset;
        let (result, word) = file.read(table.0, storage::IoBuf::zeroed(8), Hints::NONE).await;
        result.unwrap();
        let beyond = HostOffset(1 << 40).0.to_be_bytes();
        file.write(table.0, IoBytes::copy_from(&beyond).into(), Hints::NONE).await.unwrap();
        let image = open(&file, writable()).await;
        assert!(named(&image, "bad").is_none());
        write(&image, 8 * M + 128 * K, 1).await;
        drop(image);
        file.write(table.0, word.freeze().into(), Hints::NONE).await.unwrap();
        let image = open(&file, writable()).await;
        assert!(named(&image, "bad").is_none(), "it misses a change");
        assert_eq!(image.inconsistent_bitmaps().len(), 1);
    });
}

/// A megabyte a region, random writes: the record is full again and again, and each time bitmaps are stored.
#[test]
fn after_a_crash_at_most_a_hundredth_of_a_terabyte_is_dirty_for_nothing() {
    reactor_run(async {
        const TERABYTE: u64 = 1 << 40;
        let file = made(TERABYTE, 64 * K).await;
        let image = open(&file, writable()).await;
        image.change_bitmap("b", BitmapChange::Add(new(64 * K))).await.unwrap();
        let places: Vec<u64> =
            (0..1200u64).map(|number| number * 7919 * 104_729 % (TERABYTE / 4096) * 4096).collect();
        for &place in &places {
            write(&image, place, 512).await;
        }
        drop(image);
        let image = open(&file, writable()).await;
        let found = dirty(&image, "b").await;
        let is_dirty = |place: &u64| found.iter().any(|(start, end)| (start..end).contains(&place));
        assert!(places.iter().all(is_dirty), "what changed is dirty");
        let bytes: u64 = found.iter().map(|(start, end)| end - start).sum();
        let for_nothing = bytes - 1200 * 64 * K;
        assert!(for_nothing <= TERABYTE / 100, "{} GiB", for_nothing >> 30);
        println!("dirty for nothing: {} MiB of 1 TiB", for_nothing >> 20);
    });
}

/// Why it cannot be kept up to date was reported when the image was opened; from the first change on it is of no use.
#[test]
fn a_bitmap_that_cannot_be_read_is_out_of_date_from_the_first_change_on() {
    reactor_run(async {
        let file = made(DISK, 4 * K).await;
        let image = open(&file, writable()).await;
        // The newest is the first in the directory.
        for name in ["good", "bad"] {
            image.change_bitmap(name, BitmapChange::Add(new(4 * K))).await.unwrap();
        }
        image.close().await.unwrap();
        let header = qcow2::read_header(&*file).await.unwrap();
        let entries = qcow2::bitmap::list(&*file, &header).await.unwrap();
        let table = entries[0].table_offset;
        let beyond = HostOffset(1 << 40).0.to_be_bytes();
        file.write(table.0, IoBytes::copy_from(&beyond).into(), Hints::NONE).await.unwrap();
        let image = open(&file, writable()).await;
        assert!(named(&image, "bad").is_some() && image.bitmaps_out_of_date().is_empty());
        for offset in [0, M] {
            write(&image, offset, 1).await;
            assert_eq!(image.bitmaps_out_of_date(), ["bad"]);
        }
        assert!(named(&image, "bad").is_none());
        image.close().await.unwrap();
        let image = open(&file, Options::default()).await;
        assert!(named(&image, "bad").is_none());
        assert_eq!(dirty(&image, "good").await, [(0, 4 * K), (M, M + 4 * K)]);
    });
}

#[test]
fn bitmaps_that_would_take_too_much_memory_are_refused() {
    reactor_run(async {
        let file = made(1 << 40, 64 * K).await;
        let image = open(&file, writable()).await;
        for bitmap in [new(512), in_memory(512)] {
            // 256 MiB of bits.
            image.change_bitmap("large", BitmapChange::Add(bitmap)).await.unwrap();
            let error = image.change_bitmap("one more", BitmapChange::Add(bitmap)).await.unwrap_err();
            assert!(error.to_string().contains("larger granularity"), "{error}");
            image.change_bitmap("large", BitmapChange::Remove).await.unwrap();
        }
    });
}
