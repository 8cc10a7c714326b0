//! O_DIRECT: any request is honoured, whatever the file demands; and opening.

#![expect(clippy::unwrap_used, reason = "a test that fails to set up has failed")]

use std::path::PathBuf;
use std::rc::Rc;

use reactor::{Backend, Reactor, spawn, yield_now};
use storage::{FileOptions, FileStorage, Hints, IoBuf, IoBytes, IoVec, OpenError, Storage, Zeroing};
use tempfile::TempDir;

fn scratch() -> TempDir {
    TempDir::new_in(PathBuf::from(env!("CARGO_TARGET_TMPDIR"))).unwrap()
}

fn direct(aio: Backend) -> FileOptions {
    FileOptions { direct: true, read_only: false, no_flush: false, aio }
}

/// Numbers from a seed (splitmix64).
struct Numbers(u64);

impl Numbers {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    fn below(&mut self, limit: u64) -> u64 {
        self.next() % limit
    }
}

fn data(numbers: &mut Numbers, len: usize) -> IoVec {
    let mut vec = IoVec::new();
    let mut rest = len;
    while rest > 0 {
        let step = (1 + numbers.below(8192) as usize).min(rest);
        // Parts start anywhere in memory, as a receive buffer's do.
        let mut part = IoBuf::uninit(step + 600);
        part.fill(numbers.next() as u8);
        let from = numbers.below(600) as usize;
        vec.push(part.freeze().slice(from, from + step));
        rest -= step;
    }
    vec
}

fn put(model: &mut Vec<u8>, offset: usize, bytes: &[u8]) {
    model.resize(model.len().max(offset + bytes.len()), 0);
    model[offset..offset + bytes.len()].copy_from_slice(bytes);
}

#[test]
fn random_unaligned_requests_agree_with_a_model_and_with_the_file() {
    for (seed, aio) in [(1, Backend::Ring), (2, Backend::Threads), (3, Backend::Ring)] {
        let dir = scratch();
        let path = dir.path().join("image");
        let storage = FileStorage::create_new(&path, &direct(aio)).unwrap();
        let mut numbers = Numbers(seed);
        let mut model: Vec<u8> = Vec::new();
        Reactor::new(Backend::Ring).unwrap().run(async {
            for _ in 0..400 {
                let offset = numbers.below(200_000);
                let len = 1 + numbers.below(20_000) as usize;
                match numbers.below(8) {
                    0..4 => {
                        let data = data(&mut numbers, len);
                        storage.write(offset, data.clone(), Hints::NONE).await.unwrap();
                        put(&mut model, offset as usize, &data.to_bytes());
                    }
                    4 => {
                        let how = [Zeroing::Keep, Zeroing::Unmap][numbers.below(2) as usize];
                        storage.zero(offset, len as u64, how).await.unwrap();
                        put(&mut model, offset as usize, &vec![0; len]);
                    }
                    5 => {
                        storage.shorten_to(offset).await.unwrap();
                        storage.grow_to(offset).await.unwrap();
                        model.resize(offset as usize, 0);
                    }
                    _ => {
                        let mut buf = IoBuf::uninit(len + 512).split_off(numbers.below(512) as usize);
                        buf.truncate(len);
                        let (result, buf) = storage.read(offset, buf, Hints::NONE).await;
                        result.unwrap();
                        for (at, &byte) in buf.iter().enumerate() {
                            assert_eq!(byte, model.get(offset as usize + at).copied().unwrap_or(0));
                        }
                    }
                }
                assert_eq!(storage.length(), model.len() as u64, "seed {seed}");
            }
        });
        drop(storage);
        assert!(std::fs::read(&path).unwrap() == model, "seed {seed}: the file differs from the model");
    }
}

#[test]
fn neighbours_in_one_block_do_not_undo_each_other() {
    // Every writer owns every 64th byte range of 100 bytes and writes it again and again, some of
    // them dropped on the way; aligned writers own whole blocks between. No write is lost.
    for aio in [Backend::Ring, Backend::Threads] {
        let dir = scratch();
        let path = dir.path().join("image");
        let storage = Rc::new(FileStorage::create_new(&path, &direct(aio)).unwrap());
        Reactor::new(Backend::Ring).unwrap().run(async {
            let small = |writer: u64| {
                let storage = Rc::clone(&storage);
                spawn(async move {
                    for round in 0..20u64 {
                        let bytes = IoBytes::copy_from(&[(writer + round) as u8 | 1; 100]);
                        storage.write(writer * 100, bytes.clone().into(), Hints::NONE).await.unwrap();
                        let (result, buf) = storage.read(writer * 100, IoBuf::zeroed(100), Hints::NONE).await;
                        result.unwrap();
                        assert_eq!(buf[..], bytes[..], "writer {writer}");
                    }
                })
            };
            let whole = |block: u64| {
                let storage = Rc::clone(&storage);
                spawn(async move {
                    for round in 0..20u64 {
                        let bytes = IoBytes::copy_from(&[(block + round) as u8 | 1; 4096]);
                        storage.write(block * 4096, bytes.clone().into(), Hints::NONE).await.unwrap();
                        let (result, buf) =
                            storage.read(block * 4096, IoBuf::zeroed(4096), Hints::NONE).await;
                        result.unwrap();
                        assert_eq!(buf[..], bytes[..], "block {block}");
                    }
                })
            };
            // Bytes 0..16,300 belong to the small ones; their last block reaches 16,384.
            let writers: Vec<_> = (0..163).map(small).chain((4..12).map(whole)).collect();
            for writer in writers {
                writer.await;
            }
            let (result, buf) = storage.read(0, IoBuf::zeroed(16_384), Hints::NONE).await;
            result.unwrap();
            for (at, &byte) in buf.iter().enumerate() {
                let expected = if at < 16_300 { (at as u64 / 100 + 19) as u8 | 1 } else { 0 };
                assert_eq!(byte, expected, "byte {at}");
            }
        });
        assert_eq!(storage.length(), 12 * 4096);
        assert_eq!(std::fs::metadata(&path).unwrap().len(), 12 * 4096);
    }
}

#[test]
fn a_dropped_unaligned_write_never_lands_on_a_later_one() {
    let dir = scratch();
    let storage = FileStorage::create_new(dir.path().join("image"), &direct(Backend::Ring)).unwrap();
    Reactor::new(Backend::Ring).unwrap().run(async {
        storage.write(0, IoBytes::copy_from(&[1; 8192]).into(), Hints::NONE).await.unwrap();
        for round in 0..100usize {
            let dropped = storage.write(100, IoBytes::copy_from(&[2; 50]).into(), Hints::NONE);
            let mut dropped = Box::pin(dropped);
            for _ in 0..round % 7 {
                if futures_util::poll!(&mut dropped).is_ready() {
                    break;
                }
                yield_now().await;
            }
            drop(dropped);
            let fresh = round as u8 | 1;
            storage.write(1000, IoBytes::copy_from(&[fresh; 50]).into(), Hints::NONE).await.unwrap();
            for _ in 0..3 {
                yield_now().await;
                let (_, buf) = storage.read(0, IoBuf::zeroed(4096), Hints::NONE).await;
                assert!(buf[1000..1050].iter().all(|&byte| byte == fresh));
            }
        }
    });
}

#[test]
fn tails_grow_the_file_to_the_byte_while_others_append() {
    let dir = scratch();
    let path = dir.path().join("image");
    let storage = Rc::new(FileStorage::create_new(&path, &direct(Backend::Ring)).unwrap());
    Reactor::new(Backend::Ring).unwrap().run(async {
        let writers: Vec<_> = (0..100u64)
            .map(|at| {
                let storage = Rc::clone(&storage);
                spawn(async move {
                    // Odd ones end inside a block, even ones are whole blocks.
                    let (offset, len) = (at * 4096, if at % 2 == 1 { 777 } else { 4096 });
                    storage
                        .write(offset, IoBytes::copy_from(&vec![at as u8 + 1; len]).into(), Hints::NONE)
                        .await
                        .unwrap();
                })
            })
            .collect();
        for writer in writers {
            writer.await;
        }
    });
    let file = std::fs::read(&path).unwrap();
    assert_eq!((file.len() as u64, storage.length()), (99 * 4096 + 777, 99 * 4096 + 777));
    for (at, block) in file.chunks(4096).enumerate() {
        let len = if at % 2 == 1 { 777 } else { 4096 };
        assert!(block[..len].iter().all(|&byte| byte == at as u8 + 1), "block {at}");
        assert!(block[len..].iter().all(|&byte| byte == 0), "block {at}");
    }
}

#[test]
fn a_file_without_direct_requests_is_a_clear_error() {
    let options = FileOptions { direct: true, read_only: true, no_flush: false, aio: Backend::Ring };
    let error = FileStorage::open("/proc/version", &options).unwrap_err();
    assert!(matches!(error, OpenError::NoDirect { .. }), "{error:?}");
    let text = error.to_string();
    assert!(text.contains("cache.direct=on") && text.contains("/proc/version") && text.contains("writeback"));
}

#[test]
fn what_is_no_file_is_refused_without_waiting_for_it() {
    let dir = scratch();
    let pipe = dir.path().join("pipe");
    rustix::fs::mknodat(
        rustix::fs::CWD,
        &pipe,
        rustix::fs::FileType::Fifo,
        rustix::fs::Mode::from_raw_mode(0o600),
        0,
    )
    .unwrap();
    let options = FileOptions { read_only: true, ..FileOptions::default() };
    for (path, found) in [
        (pipe, "pipe"),
        ("/dev/ptmx".into(), "character device without an end"),
        (dir.path().into(), "directory"),
    ] {
        let error = FileStorage::open(&path, &options).unwrap_err();
        assert!(error.to_string().contains(found), "{error}");
    }
    let error = FileStorage::open(dir.path().join("missing"), &options).unwrap_err();
    assert_eq!(error.io().unwrap().kind(), std::io::ErrorKind::NotFound);
}

#[test]
fn nothing_existing_is_created_anew_and_nothing_read_only_is_changed() {
    let dir = scratch();
    let path = dir.path().join("image");
    std::fs::write(&path, b"precious").unwrap();
    let error = FileStorage::create_new(&path, &FileOptions::default()).unwrap_err();
    assert_eq!(error.io().unwrap().kind(), std::io::ErrorKind::AlreadyExists);
    let options = FileOptions { read_only: true, ..FileOptions::default() };
    let storage = FileStorage::open(&path, &options).unwrap();
    assert!(storage.capabilities().read_only);
    Reactor::new(Backend::Ring).unwrap().run(async {
        assert!(storage.write(0, IoBytes::copy_from(b"x").into(), Hints::NONE).await.is_err());
        assert!(storage.zero(0, 1, Zeroing::Keep).await.is_err());
        assert!(storage.discard(0, 1).await.is_err());
        assert!(storage.shorten_to(0).await.is_err());
        storage.flush().await.unwrap();
    });
    assert_eq!(std::fs::read(&path).unwrap(), b"precious");
}

#[test]
fn several_loops_share_one_file() {
    for direct in [false, true] {
        let dir = scratch();
        let options = FileOptions { direct, read_only: false, no_flush: false, aio: Backend::Ring };
        let storage = FileStorage::create_new(dir.path().join("image"), &options).unwrap();
        std::thread::scope(|scope| {
            for thread in 0..3u64 {
                let storage = &storage;
                scope.spawn(move || {
                    Reactor::new(Backend::Ring).unwrap().run(async {
                        for round in 0..50u64 {
                            // Neighbours of the other threads in the same blocks.
                            let offset = round * 3000 + thread * 1000;
                            let bytes = IoBytes::copy_from(&[thread as u8 + 1; 1000]);
                            storage.write(offset, bytes.into(), Hints::NONE).await.unwrap();
                        }
                    });
                });
            }
        });
        Reactor::new(Backend::Ring).unwrap().run(async {
            let (result, buf) = storage.read(0, IoBuf::zeroed(150_000), Hints::NONE).await;
            result.unwrap();
            assert!(buf.iter().enumerate().all(|(at, &byte)| byte == (at / 1000 % 3) as u8 + 1));
        });
    }
}

#[test]
fn a_dropped_write_writes_its_own_bytes_or_none() {
    const LEN: usize = 1 << 20;
    for direct in [false, true] {
        for aio in [Backend::Ring, Backend::Threads] {
            let dir = scratch();
            let options = FileOptions { direct, read_only: false, no_flush: false, aio };
            let storage = FileStorage::create_new(dir.path().join("image"), &options).unwrap();
            Reactor::new(Backend::Ring).unwrap().run(async {
                storage.write(0, IoBytes::copy_from(&vec![1; 4 * LEN]).into(), Hints::NONE).await.unwrap();
                let mut dropped = 0;
                for round in 0..20u64 {
                    let offset = round % 4 * LEN as u64;
                    let mut write =
                        storage.write(offset, IoBytes::copy_from(&vec![2; LEN]).into(), Hints::NONE);
                    dropped += u32::from(futures_util::poll!(&mut write).is_pending());
                    drop(write);
                    // Would be the very memory of the write, if that had gone back to the pool.
                    let mut later: Vec<IoBuf> = (0..4).map(|_| IoBuf::uninit(LEN)).collect();
                    later.iter_mut().for_each(|buf| buf.fill(3));
                    yield_now().await;
                }
                assert!(dropped > 0, "no write was in flight when it was dropped");
                let (result, buf) = storage.read(0, IoBuf::zeroed(4 * LEN), Hints::NONE).await;
                result.unwrap();
                assert!(buf.iter().all(|&byte| byte == 1 || byte == 2));
            });
        }
    }
}
