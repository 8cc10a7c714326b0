//! The laws of the contract, held against every driver, way to the kernel and file system at hand.

#![expect(clippy::unwrap_used, reason = "a test that fails to set up has failed")]

use std::cell::Cell;
use std::future::Future;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::task::{Context, Waker};
use std::time::Duration;

use futures_util::future::join_all;
use reactor::{Backend, Reactor};
use storage::{
    Allocation, ExtentKind, FileOptions, FileStorage, ForeignBytes, Hints, IoBuf, IoBytes, IoVec,
    MemoryStorage, Storage, Zeroing,
};
use tempfile::TempDir;

/// A loop, the way of the file on it, and whether it goes beside the page cache.
const WAYS: [(Backend, Backend); 3] =
    [(Backend::Ring, Backend::Ring), (Backend::Ring, Backend::Threads), (Backend::Threads, Backend::Threads)];

fn scratch_places() -> [PathBuf; 2] {
    [PathBuf::from(env!("CARGO_TARGET_TMPDIR")), PathBuf::from("/dev/shm")]
}

fn open(dir: &Path, direct: bool, aio: Backend) -> FileStorage {
    let options = FileOptions { direct, read_only: false, no_flush: false, aio };
    FileStorage::create_new(dir.join("image"), &options).unwrap()
}

/// Runs `law` on an empty storage of every kind.
fn on_all(law: impl AsyncFn(&dyn Storage)) {
    Reactor::new(Backend::Ring).unwrap().run(law(&MemoryStorage::new(0)));
    for place in scratch_places() {
        for (of_loop, of_file) in WAYS {
            for direct in [false, true] {
                let dir = TempDir::new_in(&place).unwrap();
                let storage = open(dir.path(), direct, of_file);
                assert_eq!(storage.is_direct(), direct);
                Reactor::new(of_loop).unwrap().run(law(&storage));
            }
        }
    }
}

async fn bytes(storage: &dyn Storage, offset: u64, len: usize) -> Vec<u8> {
    let mut dirty = IoBuf::uninit(len);
    dirty.fill(0xee);
    let (result, buf) = storage.read(offset, dirty, Hints::NONE).await;
    result.unwrap();
    buf.to_vec()
}

fn pattern(len: usize, seed: u8) -> IoVec {
    let bytes: Vec<u8> = (0..len).map(|at| (at as u8).wrapping_mul(31).wrapping_add(seed) | 1).collect();
    IoBytes::copy_from(&bytes).into()
}

#[test]
fn what_is_written_is_read_back_and_the_length_grows() {
    on_all(async |storage| {
        assert_eq!(storage.length(), 0);
        for (offset, len) in [(0u64, 4096usize), (4096, 100), (100_000, 65536), (7, 3), (165_533, 9000)] {
            let data = pattern(len, offset as u8);
            let end = storage.length().max(offset + len as u64);
            storage.write(offset, data.clone(), Hints::NONE).await.unwrap();
            assert_eq!(storage.length(), end);
            assert_eq!(bytes(storage, offset, len).await, data.to_bytes()[..]);
        }
        assert!(bytes(storage, 5000, 90_000).await.iter().all(|&byte| byte == 0));
        storage.flush().await.unwrap();
    });
}

/// Memory of others with something in it, `len` bytes in three parts that lie anywhere.
fn scattered(len: usize) -> ForeignBytes {
    let memory = ForeignBytes::zeroed(len + 8192);
    memory.copy_from(0, &vec![0xee; len + 8192]);
    let (first, second) = (len / 3, len / 2);
    let part = |skip: usize, from: usize, to: usize| memory.slice(skip + from, skip + to);
    part(4097, 0, first).join(part(1, first, second)).join(part(4100, second, len))
}

/// As [`scattered`], in one aligned part.
fn aligned(len: usize) -> ForeignBytes {
    let memory = ForeignBytes::zeroed(len);
    memory.copy_from(0, &vec![0xee; len]);
    memory
}

#[test]
fn memory_of_others_is_written_and_filled_as_ours_is() {
    let inline = std::cell::Cell::new(0);
    on_all(async |storage| {
        for (offset, len) in [(0u64, 8192usize), (8192, 65536), (3, 5000), (100_001, 300_000), (5, 1)] {
            for make in [scattered, aligned] {
                let data = pattern(len, len as u8).to_bytes();
                let memory = make(len);
                memory.copy_from(0, &data);
                let end = storage.length().max(offset + len as u64);
                storage.write_from(offset, memory, Hints::NONE).await.unwrap();
                assert_eq!(storage.length(), end);
                assert_eq!(bytes(storage, offset, len).await, data[..]);
                // Also where the last bytes lie beyond the end.
                for at in [offset, offset.saturating_sub(4096), end - 1] {
                    let memory = make(len);
                    storage.read_into(at, memory.clone(), Hints::NONE).await.unwrap();
                    assert_eq!(memory.to_bytes().unwrap()[..], bytes(storage, at, len).await);
                    // What is read without waiting is the same, where it is.
                    let memory = make(len);
                    if storage.try_read_into(at, &memory, Hints::NONE) {
                        assert_eq!(memory.to_bytes().unwrap()[..], bytes(storage, at, len).await);
                        inline.set(inline.get() + 1);
                    }
                }
            }
        }
        storage.write_from(1 << 20, ForeignBytes::zeroed(0), Hints::NONE).await.unwrap();
        assert!(storage.length() < 1 << 20, "nothing was written");
    });
    assert!(inline.get() > 0, "nothing was read without waiting");
}

#[test]
fn a_vectored_write_is_one_range() {
    on_all(async |storage| {
        for lens in [vec![512, 4096, 1024], vec![1, 2, 3], vec![100; 1500]] {
            let mut data = IoVec::new();
            for (at, &len) in lens.iter().enumerate() {
                data.append(pattern(len, at as u8));
            }
            for offset in [0, 512, 4096, 77] {
                storage.write(offset, data.clone(), Hints::NONE).await.unwrap();
                assert_eq!(bytes(storage, offset, data.len()).await, data.to_bytes()[..]);
            }
        }
    });
}

#[test]
fn bytes_beyond_the_end_read_as_zeroes() {
    on_all(async |storage| {
        storage.write(0, pattern(5000, 1), Hints::NONE).await.unwrap();
        let read = bytes(storage, 4990, 10_000).await;
        assert_eq!(read[..10], pattern(5000, 1).to_bytes()[4990..]);
        assert!(read[10..].iter().all(|&byte| byte == 0));
        assert!(bytes(storage, 1 << 40, 5000).await.iter().all(|&byte| byte == 0));
        assert_eq!(storage.length(), 5000);
        let mut buf = [0xee; 100];
        if storage.try_read(4950, &mut buf, Hints::NONE) {
            assert!(buf[..50].iter().all(|&byte| byte != 0) && buf[50..].iter().all(|&byte| byte == 0));
        }
    });
}

#[test]
fn a_zeroed_range_reads_as_zeroes_and_grows_the_length() {
    on_all(async |storage| {
        for how in [Zeroing::Keep, Zeroing::Unmap, Zeroing::FastOnly] {
            storage.shorten_to(0).await.unwrap();
            storage.write(0, pattern(300_000, 3), Hints::NONE).await.unwrap();
            for (offset, len) in [(0u64, 10u64), (65536, 65536), (5001, 12_345), (299_000, 123_456)] {
                match storage.zero(offset, len, how).await {
                    Ok(()) => {
                        assert!(bytes(storage, offset, len as usize).await.iter().all(|&byte| byte == 0));
                        assert!(storage.length() >= offset + len);
                    }
                    Err(error) => {
                        assert_eq!((how, error.kind()), (Zeroing::FastOnly, std::io::ErrorKind::Unsupported));
                    }
                }
            }
            assert_eq!(bytes(storage, 10, 4991).await, pattern(300_000, 3).to_bytes()[10..5001]);
        }
    });
}

#[test]
fn a_discard_never_changes_the_length_nor_bytes_outside() {
    on_all(async |storage| {
        storage.write(0, pattern(200_000, 9), Hints::NONE).await.unwrap();
        storage.discard(1000, 100_000).await.unwrap();
        storage.discard(150_000, 1 << 30).await.unwrap();
        storage.discard(1 << 30, 4096).await.unwrap();
        assert_eq!(storage.length(), 200_000);
        assert!(storage.capabilities().discards_to_zero);
        assert!(bytes(storage, 1000, 100_000).await.iter().all(|&byte| byte == 0));
        assert!(bytes(storage, 150_000, 50_000).await.iter().all(|&byte| byte == 0));
        assert_eq!(bytes(storage, 0, 1000).await, pattern(200_000, 9).to_bytes()[..1000]);
        assert_eq!(bytes(storage, 101_000, 49_000).await, pattern(200_000, 9).to_bytes()[101_000..150_000]);
    });
}

#[test]
fn what_is_cut_off_does_not_come_back() {
    on_all(async |storage| {
        storage.write(0, pattern(200_000, 5), Hints::NONE).await.unwrap();
        storage.shorten_to(100_001).await.unwrap();
        assert_eq!(storage.length(), 100_001);
        storage.grow_to(300_000).await.unwrap();
        assert_eq!(bytes(storage, 0, 100_001).await, pattern(200_000, 5).to_bytes()[..100_001]);
        assert!(bytes(storage, 100_001, 199_999).await.iter().all(|&byte| byte == 0));
    });
}

#[test]
fn allocation_grows_the_length_and_keeps_what_is_there() {
    on_all(async |storage| {
        storage.write(0, pattern(10_000, 5), Hints::NONE).await.unwrap();
        storage.allocate(5000, 1 << 20, Allocation::Reserve).await.unwrap();
        assert_eq!(storage.length(), 5000 + (1 << 20));
        assert_eq!(bytes(storage, 0, 10_000).await, pattern(10_000, 5).to_bytes()[..]);
        assert!(storage.allocated_bytes().unwrap() >= 1 << 20);
        storage.allocate(1 << 20, 1 << 20, Allocation::Write).await.unwrap();
        assert_eq!(storage.length(), 2 << 20);
        assert!(bytes(storage, 1 << 20, 1 << 20).await.iter().all(|&byte| byte == 0));
    });
}

#[test]
fn extents_tell_data_from_holes_and_end_with_the_length() {
    on_all(async |storage| {
        storage.grow_to(3 << 20).await.unwrap();
        storage.write(1 << 20, pattern(1 << 20, 1), Hints::NONE).await.unwrap();
        storage.flush().await.unwrap();
        let mut at = 0;
        let mut seen = Vec::new();
        while at < storage.length() {
            let extent = storage.extent(at, u64::MAX).await.unwrap();
            seen.push((at, extent.len, extent.kind));
            at += extent.len;
        }
        let mib = 1 << 20;
        let expected = [(0, ExtentKind::Hole), (mib, ExtentKind::Data), (2 * mib, ExtentKind::Hole)];
        assert_eq!(seen, expected.map(|(at, kind)| (at, mib, kind)));
        assert_eq!(storage.extent(mib + 5, 10).await.unwrap().len, 10);
        assert!(storage.extent(3 * mib, 1).await.is_err());
    });
}

#[test]
fn a_range_that_no_file_can_have_is_refused_not_wrapped() {
    on_all(async |storage| {
        let (result, buf) = storage.read(u64::MAX - 10, IoBuf::zeroed(100), Hints::NONE).await;
        assert_eq!((result.unwrap_err().kind(), buf.len()), (std::io::ErrorKind::InvalidInput, 100));
        assert!(storage.write(u64::MAX - 10, pattern(100, 0), Hints::NONE).await.is_err());
        assert!(storage.zero(u64::MAX, 2, Zeroing::Unmap).await.is_err());
        assert!(storage.discard(1 << 63, 1 << 63).await.is_err());
        assert!(storage.grow_to(u64::MAX).await.is_err());
        assert!(!storage.try_read(u64::MAX - 1, &mut [0; 16], Hints::NONE));
        assert_eq!(storage.length(), 0);
    });
}

#[test]
fn empty_requests_change_nothing() {
    on_all(async |storage| {
        storage.write(1000, IoVec::new(), Hints::NONE).await.unwrap();
        storage.zero(1000, 0, Zeroing::Keep).await.unwrap();
        storage.discard(1000, 0).await.unwrap();
        storage.allocate(1000, 0, Allocation::Reserve).await.unwrap();
        let (result, _) = storage.read(1000, IoBuf::zeroed(0), Hints::NONE).await;
        result.unwrap();
        assert_eq!(storage.length(), 0);
    });
}

#[test]
fn writes_made_together_beside_the_loop_all_land_and_are_reported() {
    const WRITES: u64 = 100;
    on_all(async |storage| {
        let hints = Hints::MORE_WAITING;
        let writes = (0..WRITES).map(|at| storage.write(at * 1000, pattern(1000, at as u8), hints));
        for result in join_all(writes).await {
            result.unwrap();
        }
        assert_eq!(storage.length(), WRITES * 1000);
        for at in 0..WRITES {
            assert_eq!(bytes(storage, at * 1000, 1000).await, pattern(1000, at as u8).to_bytes()[..]);
        }
    });
}

#[test]
fn a_write_that_is_dropped_on_its_way_harms_no_other() {
    on_all(async |storage| {
        for round in 0..20u64 {
            let hints = Hints::MORE_WAITING;
            let mut dropped = storage.write(4096 * round, pattern(4096, 1), hints);
            let kept = storage.write(4096 * (round + 100), pattern(4096, round as u8), hints);
            let _ = dropped.as_mut().poll(&mut Context::from_waker(Waker::noop()));
            let mut kept = Box::pin(kept);
            if kept.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending() {
                drop(dropped);
                kept.await.unwrap();
            }
            assert_eq!(
                bytes(storage, 4096 * (round + 100), 4096).await,
                pattern(4096, round as u8).to_bytes()[..]
            );
        }
    });
}

#[test]
fn a_loop_that_ends_with_writes_in_the_queue_waits_for_them() {
    let dir = TempDir::new_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let storage = open(dir.path(), false, Backend::Ring);
    Reactor::new(Backend::Ring).unwrap().run(async {
        for at in 0..50u64 {
            let mut write = storage.write(at * 4096, pattern(4096, at as u8), Hints::MORE_WAITING);
            let _ = write.as_mut().poll(&mut Context::from_waker(Waker::noop()));
        }
    });
    let file = std::fs::read(dir.path().join("image")).unwrap();
    for at in 0..50u64 {
        let start = at as usize * 4096;
        assert_eq!(file[start..start + 4096], pattern(4096, at as u8).to_bytes()[..]);
    }
}

#[test]
fn a_stream_of_writes_does_not_starve_other_tasks() {
    for place in scratch_places() {
        for (of_loop, of_file) in WAYS {
            let dir = TempDir::new_in(&place).unwrap();
            let storage = Rc::new(open(dir.path(), false, of_file));
            let stop = Rc::new(Cell::new(false));
            Reactor::new(of_loop).unwrap().run(async {
                let writer = reactor::spawn({
                    let (storage, stop) = (Rc::clone(&storage), Rc::clone(&stop));
                    async move {
                        while !stop.get() {
                            storage.write(0, pattern(512, 1), Hints::NONE).await.unwrap();
                        }
                    }
                });
                reactor::sleep(Duration::from_millis(2)).await;
                reactor::blocking(|| ()).await;
                stop.set(true);
                writer.await;
            });
        }
    }
}
