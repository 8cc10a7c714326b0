//! Memory in proportion to an image is asked for, and where it is not given the operation fails in words, and
//! nothing else: the image is as before, and the operation goes well when there is memory again.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use std::sync::Arc;

use cowhand_fuzz::base::files;
use cowhand_fuzz::executor::{block_on, host};
use cowhand_fuzz::memory::refusing;
use qcow2::snapshot::{NewSnapshot, SnapshotName};
use qcow2::{CreateOptions, Options, Qcow2, Repair, ResizeOptions};
use qcow2_layout::{
    BitmapEntry, BitmapFlags, BitmapsExtension, Header, HostOffset, SnapshotEntry, encode_bitmap_directory,
    encode_snapshots,
};
use storage::{Hints, IoBytes, MemoryStorage, Storage};

/// Beyond the largest cluster, the pieces in which tables are read and written, and what threads keep for reuse.
const LARGE_BYTES: usize = (4 << 20) + 1;

/// With clusters of 512 bytes each entry of L1 stands for 32 KiB.
const BYTES_PER_L1_ENTRY: u64 = 32 << 10;

/// A table of 5 MiB.
const L1_ENTRIES: u64 = 5 << 17;

/// The largest table there is, and its largest piece in memory.
const L1_ENTRIES_MAX: u64 = 4 << 20;
const L1_PIECE_BYTES: usize = 4 << 20;

/// A table of as many entries as there can be: count and bytes of a name. Large entries are read in parts, which are small.
const TABLES: [(u32, usize); 1] = [(65_535, 6)];

type Image = Arc<MemoryStorage>;

fn image() -> Image {
    image_with(L1_ENTRIES)
}

fn image_with(l1_entries: u64) -> Image {
    let file = Arc::new(MemoryStorage::new(0));
    let size = l1_entries * BYTES_PER_L1_ENTRY;
    let options = CreateOptions { size, cluster_size: 512, ..CreateOptions::default() };
    block_on(qcow2::create(&*file, None, &options)).unwrap();
    file
}

fn copy(image: &Image) -> Image {
    Arc::new(MemoryStorage::from_bytes(&image.to_bytes()))
}

async fn open(image: &Image, writable: bool) -> Result<Qcow2, String> {
    let header = qcow2::read_header(&**image).await.map_err(|error| error.to_string())?;
    let file = Arc::clone(image) as Arc<dyn Storage>;
    let options = Options { writable, ..Options::default() };
    let files = files(file, Arc::new(MemoryStorage::new(0)), &header);
    Qcow2::open(files, options, host()).await.map_err(|error| error.to_string())
}

/// What a check finds besides leaks: those of a change that was given up are fine.
fn faults(image: &Image) -> (u64, u64) {
    let report = block_on(qcow2::check(&**image, Repair::None, &mut |_| {})).unwrap();
    (report.corruptions, report.check_errors)
}

/// Every large request of `act` is refused once, each in a run of its own.
fn refuse_each(image: &Image, act: impl AsyncFn(&Image) -> Result<(), String>) {
    refuse_each_of(LARGE_BYTES, image, act);
}

fn refuse_each_of(bytes_min: usize, image: &Image, act: impl AsyncFn(&Image) -> Result<(), String>) {
    let run = |image: &Image, nth| refusing(bytes_min, nth, || block_on(act(image)));
    let (result, large) = run(&copy(image), u64::MAX);
    assert_eq!(result, Ok(()), "with memory");
    assert!(large > 0, "nothing large was asked for: the test is about nothing");
    let before = faults(image);
    for nth in 1..=large {
        let image = copy(image);
        let (refused, _) = run(&image, nth);
        let error = refused.expect_err("a refusal is reported");
        assert!(error.contains("memory"), "request {nth} of {large}: {error}");
        assert_eq!(faults(&image), before, "after request {nth} of {large}");
        assert_eq!(run(&image, u64::MAX).0, Ok(()), "with memory again, after request {nth} of {large}");
        assert_eq!(faults(&image), before, "with memory again, after request {nth} of {large}");
    }
}

/// A check that gets no memory for something says that it could not look at it.
fn check_without(image: &Image) {
    let check =
        |nth| refusing(LARGE_BYTES, nth, || block_on(qcow2::check(&**image, Repair::None, &mut |_| {})));
    let (whole, large) = check(u64::MAX);
    let errors = whole.unwrap().check_errors;
    assert!(large > 0, "nothing large was asked for: the test is about nothing");
    for nth in 1..=large {
        match check(nth).0 {
            Ok(report) => assert!(report.check_errors > errors, "request {nth} of {large}: {report:?}"),
            Err(error) => assert!(error.to_string().contains("memory"), "{error}"),
        }
    }
}

/// `act` on the opened image, which works on and is closed whatever comes of it.
async fn on_open(
    image: &Image,
    act: impl AsyncFnOnce(&Qcow2) -> Result<(), qcow2::Error>,
) -> Result<(), String> {
    let disk = open(image, true).await?;
    let result = act(&disk).await.map_err(|error| error.to_string());
    let data = IoBytes::copy_from(&[7; 700]);
    disk.write(1000, data.into(), Hints::NONE)
        .await
        .map_err(|error| format!("a write afterwards: {error}"))?;
    disk.close().await.map_err(|error| format!("close: {error}"))?;
    result
}

#[test]
fn l1_tables_that_memory_does_not_hold_are_refused_in_words() {
    // Without entries a table takes memory only where it may be written.
    let image = image_with(L1_ENTRIES_MAX);
    refuse_each_of(L1_PIECE_BYTES, &image, async |image| open(image, true).await.map(drop));
}

#[test]
fn a_disk_whose_longer_l1_table_memory_does_not_hold_stays_as_long_as_it_was() {
    let size = (L1_ENTRIES + (1 << 17)) * BYTES_PER_L1_ENTRY;
    refuse_each(&image(), async |image| {
        on_open(image, async |disk| disk.resize(size, ResizeOptions::default()).await).await
    });
}

#[test]
fn snapshots_whose_tables_memory_does_not_hold_come_and_go_later() {
    let image = image();
    let name = || "one".to_owned();
    let create = async |disk: &Qcow2| {
        disk.create_snapshot(NewSnapshot { name: name(), ..NewSnapshot::default() }).await.map(drop)
    };
    refuse_each(&image, async |image| on_open(image, create).await);
    block_on(on_open(&image, create)).unwrap();
    refuse_each(&image, async |image| {
        on_open(image, async |disk| disk.apply_snapshot(SnapshotName::Name(name())).await).await
    });
    // A second run finds the snapshot gone if the first one, refused or not, took it away.
    refuse_each(&image, async |image| {
        let delete = async |disk: &Qcow2| disk.delete_snapshot(SnapshotName::Name(name())).await.map(drop);
        on_open(image, delete).await
    });
}

/// Puts `table` behind everything else, and lets `change` lead there from the header.
fn with_table(table: &[u8], change: impl FnOnce(&mut Header, HostOffset)) -> Image {
    let image = Arc::new(MemoryStorage::new(0));
    let options = CreateOptions { size: 1 << 20, cluster_size: 4096, ..CreateOptions::default() };
    block_on(async {
        qcow2::create(&*image, None, &options).await.unwrap();
        let at = image.length().next_multiple_of(4096);
        image.write(at, IoBytes::copy_from(table).into(), Hints::NONE).await.unwrap();
        let mut header = qcow2::read_header(&*image).await.unwrap();
        change(&mut header, HostOffset(at));
        let header = header.encode().unwrap();
        image.write(0, IoBytes::copy_from(&header).into(), Hints::NONE).await.unwrap();
    });
    image
}

#[test]
fn a_snapshot_table_that_memory_does_not_hold_is_refused_in_words() {
    let plain = with_table(&[], |_, _| {});
    let header = block_on(qcow2::read_header(&*plain)).unwrap();
    for (count, name_len) in TABLES {
        let entry = |number: u32| SnapshotEntry {
            l1_table_offset: HostOffset(4096),
            id: number.to_string().into_bytes(),
            name: vec![b'n'; name_len],
            disk_size: Some(1 << 20),
            ..SnapshotEntry::default()
        };
        let entries: Vec<SnapshotEntry> = (0..count).map(entry).collect();
        let table = encode_snapshots(&entries, header.version).unwrap();
        let image = with_table(&table, |header, at| {
            header.snapshots = entries.len() as u32;
            header.snapshots_offset = at;
        });
        refuse_each(&image, async |image| {
            let disk = open(image, false).await?;
            disk.snapshots().await.map(drop).map_err(|error| error.to_string())
        });
        check_without(&image);
    }
}

#[test]
fn a_bitmap_directory_that_memory_does_not_hold_is_refused_in_words() {
    let plain = with_table(&[], |_, _| {});
    let geometry = block_on(qcow2::read_header(&*plain)).unwrap().geometry().unwrap();
    for (count, name_len) in TABLES {
        let entry = |number: u32| BitmapEntry {
            table_offset: HostOffset(4096),
            table_entries: 1,
            flags: BitmapFlags::default(),
            granularity_bits: 16,
            name: format!("{number:0name_len$}"),
            extra: Vec::new(),
        };
        let entries: Vec<BitmapEntry> = (0..count).map(entry).collect();
        let table = encode_bitmap_directory(&entries, &geometry).unwrap();
        let image = with_table(&table, |header, directory_offset| {
            let (count, directory_size) = (entries.len() as u32, table.len() as u64);
            header.extensions.bitmaps = Some(BitmapsExtension { count, directory_size, directory_offset });
            header.autoclear.insert(qcow2_layout::Autoclear::BITMAPS);
        });
        refuse_each(&image, async |image| {
            let header = qcow2::read_header(&**image).await.map_err(|error| error.to_string())?;
            qcow2::bitmap::list(&**image, &header).await.map(drop).map_err(|error| error.to_string())
        });
        check_without(&image);
    }
}
