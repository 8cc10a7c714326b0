//! An image over a disk that clients go on writing: what they overwrite is written to the image first.
//!
//! A vendor's backup reads the image. A read that finds nothing in the image, and then reads the disk, comes too late if a client has written
//! there in between: the backup would have the client's new bytes.

#![expect(clippy::unwrap_used, reason = "a test stops at what it did not expect")]

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};

use block::{Block, BlockFuture, BlockStatus, Error, Raw, ReadKind, ZeroOptions};
use qcow2::{CreateOptions, Files, Options, Qcow2, create};
use storage::{Hints, IoBuf, IoBytes, IoVec, MemoryStorage};

use crate::on_reactor::{Loop, reactor_run};

const CLUSTER: u64 = 64 << 10;
const SIZE: u64 = 16 * CLUSTER;
const OLD: u8 = 1;
const NEW: u8 = 2;

/// A disk that a client overwrites, one cluster after the other from the second on, each time between a look at the image and a look at the disk.
#[derive(Debug)]
struct Overwritten {
    disk: Arc<dyn Block>,
    image: OnceLock<Qcow2>,
    written: AtomicUsize,
    /// The client writes zeroes, of which a map tells.
    zeroes: bool,
}

impl Overwritten {
    async fn is_overwritten(&self) {
        let at = 1 + self.written.fetch_add(1, Ordering::Relaxed) as u64;
        if at >= 4 {
            return;
        }
        let bytes = |value: u8| IoVec::from(IoBytes::copy_from(&[value; CLUSTER as usize]));
        let image = self.image.get().unwrap();
        image.write(at * CLUSTER, bytes(OLD), Hints::NONE).await.unwrap();
        match self.zeroes {
            true => self.disk.zero(at * CLUSTER, CLUSTER, ZeroOptions::default()).await.unwrap(),
            false => self.disk.write(at * CLUSTER, bytes(NEW), Hints::NONE).await.unwrap(),
        }
    }
}

impl Block for Overwritten {
    fn driver(&self) -> &'static str {
        "overwritten"
    }

    fn over(&self) -> Option<&Arc<dyn Block>> {
        Some(&self.disk)
    }

    fn changes(&self) -> bool {
        true
    }

    fn try_read(&self, _: u64, _: &mut [u8], _: Hints) -> Option<ReadKind> {
        None
    }

    fn read(
        &self,
        offset: u64,
        buf: IoBuf,
        hints: Hints,
    ) -> BlockFuture<'_, (Result<ReadKind, Error>, IoBuf)> {
        Box::pin(async move {
            self.is_overwritten().await;
            self.disk.read(offset, buf, hints).await
        })
    }

    fn block_status(&self, offset: u64, len: u64) -> BlockFuture<'_, Result<BlockStatus, Error>> {
        Box::pin(async move {
            self.is_overwritten().await;
            let status = self.disk.block_status(offset, len).await?;
            // What a raw disk in memory does not know.
            Ok(match self.zeroes {
                true => BlockStatus { zero: true, data: false, present: true, ..status },
                false => status,
            })
        })
    }
}

async fn image_over_overwritten(zeroes: bool) -> (Qcow2, Arc<Overwritten>) {
    let file = Arc::new(MemoryStorage::new(0));
    create(&*file, None, &CreateOptions { size: SIZE, ..CreateOptions::default() }).await.unwrap();
    let bytes = MemoryStorage::from_bytes(&[OLD; SIZE as usize]);
    let disk = Arc::new(Raw::new(Arc::new(bytes)));
    let below = Arc::new(Overwritten { disk, image: OnceLock::new(), written: AtomicUsize::new(0), zeroes });
    let files = Files { file, data: None, backing: Some(Arc::clone(&below) as Arc<dyn Block>) };
    let options = Options { writable: true, ..Options::default() };
    let image = Qcow2::open(files, options, Arc::new(Loop)).await.unwrap();
    image.await_backing();
    below.image.set(image.clone()).unwrap();
    (image, below)
}

#[test]
fn a_read_that_a_client_of_the_disk_below_overtakes_finds_what_was_there() {
    for zeroes in [false, true] {
        reactor_run(async {
            let (image, below) = image_over_overwritten(zeroes).await;
            let (result, buf) = image.read(0, IoBuf::uninit(SIZE as usize), Hints::NONE).await;
            result.unwrap();
            let wrong = buf.iter().position(|byte| *byte != OLD);
            assert_eq!(wrong, None, "bytes of the client");
            assert!(below.written.load(Ordering::Relaxed) > 3, "the client wrote in between");
        });
    }
}

#[test]
fn a_status_that_a_client_of_the_disk_below_overtakes_does_not_call_data_zeroes() {
    reactor_run(async {
        let (image, below) = image_over_overwritten(true).await;
        let status = image.block_status(CLUSTER, CLUSTER).await.unwrap();
        assert!(status.data && !status.zero, "{status:?}");
        assert!(below.written.load(Ordering::Relaxed) > 0);
    });
}

#[test]
fn a_part_of_a_cluster_that_is_written_keeps_what_was_there_around_it() {
    reactor_run(async {
        let (image, _) = image_over_overwritten(false).await;
        // Copies the rest of its cluster, while the client overwrites others.
        let data = IoVec::from(IoBytes::copy_from(&[7; 100]));
        image.write(8 * CLUSTER + 5, data, Hints::NONE).await.unwrap();
        let (result, buf) = image.read(8 * CLUSTER, IoBuf::uninit(CLUSTER as usize), Hints::NONE).await;
        result.unwrap();
        let mut expected = vec![OLD; CLUSTER as usize];
        expected[5..105].fill(7);
        assert!(buf[..] == expected);
    });
}

/// What reads as zeroes because the disk below does is not zeroes for ever: a copy of such bytes must be in the image before the disk changes.
#[test]
fn zeroes_that_are_written_hide_what_the_disk_below_becomes() {
    for len in [100, CLUSTER, 2 * CLUSTER + 100] {
        reactor_run(async {
            let (image, below) = image_over_overwritten(true).await;
            below.written.store(100, Ordering::Relaxed);
            below.disk.zero(0, SIZE, ZeroOptions::default()).await.unwrap();
            assert!(Block::awaits_backing(&image), "its zeroes are no proof");
            let status = image.block_status(0, CLUSTER).await.unwrap();
            assert!(status.zero && !status.present, "{status:?}");
            image.zero(CLUSTER, len, ZeroOptions { unmap: true, fast_only: false }).await.unwrap();
            let new = IoVec::from(IoBytes::copy_from(&[NEW; SIZE as usize]));
            below.disk.write(0, new, Hints::NONE).await.unwrap();
            let (result, buf) = image.read(CLUSTER, IoBuf::uninit(len as usize), Hints::NONE).await;
            result.unwrap();
            assert!(buf.iter().all(|byte| *byte == 0), "{len} bytes: the client's are seen");
        });
    }
}
