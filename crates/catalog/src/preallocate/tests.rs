//! Space is reserved ahead, is not visible above the driver, and is given back.

use std::ffi::OsStr;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use ::storage::{FileOptions, FileStorage, Hints, IoBuf, IoBytes, IoVec, MemoryStorage};

use super::*;
use graph::drive::parse_drive;
use graph::options::DiskOptions;
use graph::{OpenRules, open};

const MIB: u64 = 1 << 20;

fn options(drive: &str) -> Result<DiskOptions, String> {
    let tree = parse_drive(OsStr::new(drive), |_| false).map_err(|error| error.to_string())?;
    DiskOptions::of_tree(tree).map_err(|error| error.to_string())
}

fn run<T>(future: impl Future<Output = T>) -> T {
    reactor::Reactor::new(reactor::Backend::Ring).unwrap().run(future)
}

fn bytes(value: u8, len: usize) -> IoVec {
    IoVec::from(IoBytes::copy_from(&vec![value; len]))
}

async fn read(storage: &dyn Storage, offset: u64, len: usize) -> Vec<u8> {
    let (result, buf) = storage.read(offset, IoBuf::uninit(len), Hints::NONE).await;
    result.unwrap();
    buf.to_vec()
}

#[test]
fn room_is_reserved_behind_a_write_and_given_back_at_the_end() {
    run(async {
        let below: Arc<dyn Storage> = Arc::new(MemoryStorage::new(512));
        let storage = Preallocate::new(Arc::clone(&below), MIB, 10 * MIB);
        assert_eq!((storage.length(), below.length()), (512, 512));
        storage.write(1000, bytes(7, 100), Hints::NONE).await.unwrap();
        assert_eq!((storage.length(), below.length()), (1100, 11 * MIB));
        // As long as there is room nothing is asked of the file below.
        storage.grow_to(5 * MIB).await.unwrap();
        storage.write(11 * MIB - 1, bytes(8, 1), Hints::NONE).await.unwrap();
        assert_eq!((storage.length(), below.length()), (11 * MIB, 11 * MIB));
        storage.grow_to(11 * MIB + 1).await.unwrap();
        assert_eq!((storage.length(), below.length()), (11 * MIB + 1, 22 * MIB));
        storage.end_writing().await.unwrap();
        assert_eq!((storage.length(), below.length()), (11 * MIB + 1, 11 * MIB + 1));
        // Reads still work, and so does a later write.
        assert_eq!(read(&storage, 11 * MIB - 1, 2).await, [8, 0]);
        storage.zero(12 * MIB, 5, ::storage::Zeroing::Keep).await.unwrap();
        assert_eq!((storage.length(), below.length()), (12 * MIB + 5, 23 * MIB));
    });
}

#[test]
fn room_that_cannot_be_had_keeps_nobody_from_writing() {
    run(async {
        let below: Arc<dyn Storage> = Arc::new(MemoryStorage::new(0));
        let storage = Preallocate::new(Arc::clone(&below), MIB, u64::MAX);
        storage.write(0, bytes(7, 100), Hints::NONE).await.unwrap();
        assert_eq!((storage.length(), below.length()), (100, 100));
    });
}

#[test]
fn what_was_cut_off_reads_as_zeroes_when_the_length_grows_again() {
    run(async {
        let below: Arc<dyn Storage> = Arc::new(MemoryStorage::new(0));
        let storage = Preallocate::new(Arc::clone(&below), MIB, MIB);
        storage.write(0, bytes(7, 8192), Hints::NONE).await.unwrap();
        storage.shorten_to(4096).await.unwrap();
        assert_eq!((storage.length(), below.length()), (4096, 4096));
        storage.grow_to(8192).await.unwrap();
        assert_eq!(read(&storage, 0, 8192).await, [[7; 4096], [0; 4096]].concat());
    });
}

#[test]
fn a_file_that_is_read_stays_as_it_is() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("file");
    std::fs::write(&path, [7; 1000]).unwrap();
    run(async {
        let file = FileStorage::open(&path, &FileOptions { read_only: true, ..FileOptions::default() });
        let storage = Preallocate::new(Arc::new(file.unwrap()), MIB, MIB);
        assert!(storage.write(1000, bytes(1, 1), Hints::NONE).await.is_err());
        storage.end_writing().await.unwrap();
    });
    assert_eq!(std::fs::metadata(&path).unwrap().len(), 1000);
}

/// Length of the file and its bytes in use.
fn room(path: &Path) -> (u64, u64) {
    let meta = std::fs::metadata(path).unwrap();
    (meta.len(), meta.blocks() * 512)
}

#[test]
fn a_raw_disk_that_grows_has_room_and_ends_where_it_ends() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("disk");
    std::fs::write(&path, vec![0; MIB as usize]).unwrap();
    let drive = format!(
        "driver=raw,file.driver=preallocate,file.prealloc-size=8M,file.file.filename={}",
        path.display()
    );
    run(async {
        let disk = open(&options(&drive).unwrap(), &OpenRules::default()).await.unwrap();
        let storage = disk.root().downcast_ref::<block::Raw>().unwrap().storage.clone();
        storage.grow_to(2 * MIB).await.unwrap();
        assert_eq!((storage.length(), room(&path).0), (2 * MIB, 10 * MIB));
        assert!(room(&path).1 >= 9 * MIB, "{:?}", room(&path));
        disk.close().await.unwrap();
    });
    assert_eq!(room(&path).0, 2 * MIB);
}

#[test]
fn options_are_checked() {
    for (drive, refused) in [
        (
            "file.driver=preallocate",
            "option file.file is \"\"; allowed: the path of a file, or options that name one",
        ),
        (
            "file.driver=preallocate,file.filename=x",
            "option file.filename is \"x\"; allowed: none; the file below is given as file.file.filename",
        ),
        (
            "file.driver=preallocate,file.file=x,file.prealloc-align=1000",
            "option file.prealloc-align is \"1000\"; allowed: multiples of 512",
        ),
    ] {
        assert_eq!(options(drive).map(drop), Err(refused.to_owned()), "{drive}");
    }
    let alone = options("driver=preallocate,file.driver=file,file.filename=x,prealloc-size=1M").unwrap();
    let whole =
        "driver=raw,file.driver=preallocate,file.file.driver=file,file.file.filename=x,file.prealloc-size=1M";
    assert_eq!(alone.layer, options(whole).unwrap().layer);
}
