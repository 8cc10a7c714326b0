//! Open for writing, random operations, close, check.
//!
//! Of an image that was clean before, everything is asked: reads give what was written, and the check finds
//! no corruption afterwards. Of any other, that nothing panics, hangs or takes memory.

use std::sync::Arc;

use block::Block as _;
use qcow2::cache_sizes::CacheRequest;
use qcow2::{Error, Options, OverlapCheck, Qcow2, ReadKind, ZeroOptions};
use storage::{Hints, IoBuf, IoBytes, IoVec, Storage};

use super::disk;
use crate::executor::block_on;
use crate::input::Input;
use crate::medium::Medium;
use crate::mutate;

/// Most operations of a case.
const OPERATIONS_MAX: u32 = 48;

pub(super) fn run(data: &[u8]) {
    let mut input = Input::new(data);
    let options = options(&mut input);
    let medium = Arc::new(mutate::image(&mut input).medium);
    block_on(async {
        let clean = disk::check(&medium).await.is_some_and(|report| report.is_clean());
        let data = disk::empty();
        let Ok(image) = disk::open_with(&medium, &data, options).await else { return };
        let mut session = Session { image, model: None, medium: Arc::clone(&medium), data, options };
        if clean {
            session.start_model().await;
        }
        for _ in 0..OPERATIONS_MAX {
            if input.is_empty() || !session.step(&mut input).await {
                break;
            }
        }
        session.finish().await;
    });
}

fn options(input: &mut Input<'_>) -> Options {
    let bits = input.byte();
    let bit = |number: u8| bits >> number & 1 == 1;
    let small = CacheRequest {
        l2_bytes: Some(2048),
        l2_entry_bytes: Some(512),
        refcount_bytes: Some(2048),
        ..CacheRequest::default()
    };
    Options {
        writable: true,
        cache: if bit(0) { small } else { CacheRequest::default() },
        lazy_refcounts: bit(1).then_some(bit(2)),
        overlap_check: if bit(3) { OverlapCheck::default() } else { OverlapCheck::ALL },
        discard: !bit(4),
        pass_discard_request: bit(5),
        pass_discard_other: bit(6),
        discard_no_unref: bit(7),
        ..Options::default()
    }
}

/// An open image, and what its disk must read as if that is known.
struct Session {
    image: Qcow2,
    model: Option<Vec<u8>>,
    medium: Arc<Medium>,
    data: Arc<dyn Storage>,
    options: Options,
}

impl Session {
    async fn start_model(&mut self) {
        if self.image.size() <= disk::READ_BYTES_MAX {
            self.model = disk::read(&self.image, 0, self.image.size()).await.ok();
        }
    }

    /// One operation; says whether there may be another.
    async fn step(&mut self, input: &mut Input<'_>) -> bool {
        let kind = input.byte() % 16;
        let (offset, len) = self.range(input);
        match kind {
            0..=4 => self.write(offset, len, input.byte()).await,
            5..=7 => self.read(offset, len).await,
            8 | 9 => {
                let flags = input.byte();
                let options = ZeroOptions { unmap: flags & 1 == 1, fast_only: flags & 2 == 2 };
                let done = self.image.zero(offset, len as u64, options).await;
                self.became(offset, len, Some(0), done).await;
            }
            10 | 11 => {
                let done = self.image.discard(offset, len as u64).await;
                self.became(offset, len, None, done).await;
            }
            12 => self.note(&self.image.flush().await.map(drop)),
            13 => {
                let _ = self.image.block_status(offset, len as u64).await;
                self.image.clean_cache();
            }
            14 => self.note(&self.image.write_back().await),
            _ => return self.reopen().await,
        }
        true
    }

    /// Mostly inside the disk; sometimes not.
    fn range(&self, input: &mut Input<'_>) -> (u64, usize) {
        let size = self.image.size();
        let cluster = self.image.geometry().cluster_size();
        let shape = input.byte();
        let offset = if shape & 0xe0 == 0xe0 {
            input.number(8)
        } else {
            input.below(size.clamp(1, disk::READ_BYTES_MAX))
        };
        let len = match shape & 3 {
            0 => cluster,
            1 => u64::from(input.byte()) + 1,
            2 => input.number(2),
            _ => cluster * (u64::from(input.byte()) % 5),
        };
        let unit = [1, 512, cluster, cluster][usize::from(shape >> 2 & 3)];
        let offset = offset / unit * unit;
        let inside = if shape & 0xe0 == 0xe0 { len } else { len.min(size.saturating_sub(offset)) };
        (offset, usize::try_from(inside).unwrap_or(0))
    }

    async fn write(&mut self, offset: u64, len: usize, byte: u8) {
        let data = IoVec::from(IoBytes::copy_from(&vec![byte; len]));
        let done = self.image.write(offset, data, Hints::NONE).await;
        self.became(offset, len, Some(byte), done).await;
    }

    async fn read(&mut self, offset: u64, len: usize) {
        let (result, found) = self.image.read(offset, IoBuf::zeroed(len), Hints::NONE).await;
        let mut quick = vec![0xee; len];
        let tried = self.image.try_read(offset, &mut quick, Hints::NONE);
        if tried == Some(ReadKind::Zeroes) {
            quick.fill(0);
        }
        if result.is_ok() && tried.is_some() {
            assert!(quick[..] == found[..], "try_read and read differ at {offset:#x}, {len} bytes");
        }
        match (&self.model, result) {
            (Some(model), Ok(_)) => {
                let start = usize::try_from(offset).expect("inside the disk");
                assert!(
                    model[start..start + len] == *found,
                    "{len} bytes at {offset:#x} are not what was written"
                );
            }
            (_, result) => self.note(&result.map(drop)),
        }
    }

    /// The range was overwritten with `byte`, or discarded if there is none: then each byte is what it was or 0.
    async fn became(&mut self, offset: u64, len: usize, byte: Option<u8>, done: Result<(), Error>) {
        self.note(&done);
        let Some(model) = &mut self.model else { return };
        if done.is_err() {
            return;
        }
        let start = usize::try_from(offset).expect("inside the disk");
        let range = &mut model[start..start + len];
        match byte {
            Some(byte) => range.fill(byte),
            None => {
                let found = disk::read(&self.image, offset, len as u64).await.expect("it was clean");
                let right = range.iter().zip(&found).all(|(before, now)| now == before || *now == 0);
                assert!(right, "{len} bytes at {offset:#x} are foreign after a discard");
                range.copy_from_slice(&found);
            }
        }
    }

    /// A request may make no sense, the file may be full: what it then changed is unknown. But an image that was clean
    /// is not corrupt.
    fn note(&mut self, result: &Result<(), Error>) {
        let Err(error) = result else { return };
        match error.kind() {
            qcow2::ErrorKind::Invalid | qcow2::ErrorKind::PastEnd | qcow2::ErrorKind::Unsupported => {}
            kind => {
                let clean = self.model.take().is_some();
                assert!(!clean || kind == qcow2::ErrorKind::Io, "a clean image fails: {error}");
            }
        }
    }

    /// Closes and opens again with other caches.
    async fn reopen(&mut self) -> bool {
        let closed = self.image.close().await;
        self.note(&closed);
        let options = Options { cache: CacheRequest::default(), ..self.options };
        match disk::open_with(&self.medium, &self.data, options).await {
            Ok(image) => self.image = image,
            Err(error) => {
                assert!(closed.is_err() || self.model.is_none(), "it does not open again: {error}");
                return false;
            }
        }
        true
    }

    async fn finish(mut self) {
        let whole = self.image.size().min(disk::READ_BYTES_MAX);
        if let Some(model) = &self.model {
            let found = disk::read(&self.image, 0, whole).await.expect("it was clean");
            assert!(*model == found, "the disk is not what was written");
        }
        let closed = self.image.close().await;
        self.note(&closed);
        let Some(report) = disk::check(&self.medium).await else {
            assert!(self.model.is_none(), "a clean image cannot be checked any more");
            return;
        };
        if self.model.is_some() {
            assert!(report.corruptions == 0 && report.check_errors == 0, "it was clean, now: {report:?}");
        }
    }
}
