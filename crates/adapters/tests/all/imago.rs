//! Disks through imago's own interface.

use std::future::Future;
use std::pin::pin;
use std::task::{Context, Poll, Waker};

use cowhand_adapters::imago::{DiskStorage, access, open};
use futures_executor::block_on;
use imago::io_buffers::{IoVector, IoVectorMut};
use imago::storage::PreallocateMode;
use imago::{Storage, StorageExt};

use crate::scratch::{SIZE_BYTES, Scratch, bytes_at};

#[test]
fn an_image_of_imago_reads_and_writes_the_disk() {
    let scratch = Scratch::new();
    let disk = scratch.open();
    let image = block_on(access(disk.clone())).unwrap();
    assert_eq!(image.size(), SIZE_BYTES);
    let data: Vec<u8> = (0..100_000u32).map(|index| (index / 7) as u8).collect();
    block_on(async {
        image.write(&data[..], 12345).await.unwrap();
        image.write_zeroes(20_000, 5000).await.unwrap();
        let mut back = vec![0xee; data.len()];
        image.read(&mut back[..], 12345).await.unwrap();
        let mut expected = data.clone();
        expected[20_000 - 12345..25_000 - 12345].fill(0);
        assert!(back == expected);
        image.flush().await.unwrap();
        image.sync().await.unwrap();
    });
    drop(image);
    disk.close().wait().unwrap();
    let disk = scratch.open();
    assert_eq!(bytes_at(&disk, 12345, 5000), data[..5000]);
    disk.close().wait().unwrap();
}

#[test]
fn storage_does_what_its_trait_says() {
    let scratch = Scratch::new();
    let storage = DiskStorage::new(scratch.open()).unwrap();
    assert_eq!(storage.get_filename(), Some(scratch.path()));
    assert!(storage.to_string().starts_with("cowhand:"));
    block_on(async {
        // A read at the end of the file is filled up with zeroes; a write there fails, for the disk has a size.
        let mut back = vec![0xee; 1024];
        storage.read(&mut back[..], SIZE_BYTES - 512).await.unwrap();
        assert_eq!(back, [0; 1024]);
        storage.write(&[7; 1024][..], SIZE_BYTES - 512).await.unwrap_err();

        storage.write(&[7; 131_072][..], 0).await.unwrap();
        storage.write_allocated_zeroes(0, 65536).await.unwrap();
        storage.discard(65536, 65536).await.unwrap();
        storage.resize(SIZE_BYTES * 2, PreallocateMode::Zero).await.unwrap();
        assert_eq!(storage.size().unwrap(), SIZE_BYTES * 2);
        storage.resize(SIZE_BYTES, PreallocateMode::None).await.unwrap();
        assert_eq!(storage.size().unwrap(), SIZE_BYTES);
    });
    let extents = storage.disk().extents(0, 131_072).wait().unwrap();
    assert!(extents.iter().all(|extent| extent.zero && !extent.data), "{extents:?}");
    assert!(!extents[0].hole, "allocated zeroes keep their space: {extents:?}");
    storage.disk().close().wait().unwrap();
    assert!(block_on(storage.sync()).is_err());
}

/// A write whose future was dropped must have ended before its place is used for something else.
#[test]
fn settling_waits_for_writes_whose_futures_were_dropped() {
    let scratch = Scratch::new();
    let disk = scratch.options().limit("iops-total", 1).open().wait().unwrap();
    let storage = DiskStorage::new(disk.clone()).unwrap();
    for number in 0..8u8 {
        let mut cx = Context::from_waker(Waker::noop());
        let data = [number + 1; 512];
        let write = pin!(storage.write(IoVector::from(&data[..]), u64::from(number) * 512));
        // Dropped after it was submitted.
        let _ = write.poll(&mut cx);
    }
    let mut cx = Context::from_waker(Waker::noop());
    let mut settled = pin!(storage.settle_writes());
    assert!(settled.as_mut().poll(&mut cx).is_pending(), "the limit holds writes back");
    disk.set_limits(&[]).unwrap();
    block_on(settled).unwrap();
    let expected: Vec<u8> = (0..8u8).flat_map(|number| [number + 1; 512]).collect();
    assert_eq!(bytes_at(&disk, 0, 4096), expected);
    assert!(matches!(pin!(storage.settle_writes()).poll(&mut cx), Poll::Ready(Ok(()))));
    disk.close().wait().unwrap();
}

#[test]
fn a_disk_that_is_read_only_is_an_image_that_is_not_written() {
    let scratch = Scratch::new();
    let image = block_on(open(scratch.options().read_only(true))).unwrap();
    let mut bytes = [0xee; 16];
    block_on(image.readv(IoVectorMut::from(&mut bytes[..]), 0)).unwrap();
    assert_eq!(bytes, [0; 16]);
    assert!(block_on(image.write(&[1; 16][..], 0)).is_err());
}
