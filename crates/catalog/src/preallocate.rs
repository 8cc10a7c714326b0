//! `preallocate`: a file that gets room ahead of what is written, in large steps, and gives back what is left when it is closed.

#[cfg(test)]
mod tests;

use std::any::Any;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use async_lock::Mutex;
use block::SECTOR_BYTES;
use graph::drive::OptionTree;
use graph::drivers::{Over, StorageDriver, StorageKind, Wrap};
use graph::options::entry::{at, first_fixed_of, in_group, read_all};
use graph::options::{Entry, Group, Kind, OptionError, Reader, Spec};
use storage::{Allocation, Capabilities, ForeignBytes, Hints, IoFuture, IoVec, Storage, Zeroing};

pub(super) const PREALLOCATE: StorageDriver = StorageDriver {
    name: "preallocate",
    prefixes: &[],
    kind: StorageKind::Over(Over { child: "file", specs, options_of, read }),
};

/// What options say.
#[derive(Clone, Copy, Debug)]
struct Options {
    /// `prealloc-align`: what lengths of the file are multiples of, in bytes.
    align: u64,
    /// `prealloc-size`: how much is reserved behind a write, in bytes.
    size: u64,
}

/// QEMU's.
const DEFAULTS: Options = Options { align: 1 << 20, size: 128 << 20 };

const OPTIONS: &[Entry<Options>] = &in_group(
    Group::Storage("preallocate"),
    [
        Entry::part("file", Kind::File, "the file below").needed(),
        Entry::size("prealloc-align", at!(Options, align), "lengths of the file are multiples of this")
            .multiple_of(SECTOR_BYTES)
            .default("1M"),
        Entry::size("prealloc-size", at!(Options, size), "bytes reserved behind a write that needs room")
            .default("128M"),
    ],
);

fn specs() -> Vec<&'static Spec> {
    OPTIONS.iter().map(Entry::spec).collect()
}

/// No file name means it.
fn options_of(_name: &str) -> Result<OptionTree, String> {
    Err("none; the file below is given as file.file.filename".to_owned())
}

fn read(reader: &mut Reader) -> Result<Arc<dyn Wrap>, OptionError> {
    let mut options = DEFAULTS;
    read_all(OPTIONS, reader, &mut options)?;
    options.align = options.align.max(SECTOR_BYTES);
    Ok(Arc::new(options))
}

impl Wrap for Options {
    fn first_difference(&self, other: &dyn Wrap) -> Option<String> {
        match (other as &dyn Any).downcast_ref::<Self>() {
            Some(other) => first_fixed_of(OPTIONS, self, other),
            None => Some("file.driver".to_owned()),
        }
    }

    fn wrap(&self, below: Arc<dyn Storage>) -> io::Result<Arc<dyn Storage>> {
        Ok(Arc::new(Preallocate::new(below, self.align, self.size)))
    }
}

/// Storage that reserves room behind its end.
#[derive(Debug)]
pub struct Preallocate {
    below: Arc<dyn Storage>,
    /// What the length of the file below is made a multiple of.
    align: u64,
    /// Bytes reserved behind what needs room.
    size: u64,
    /// The length that users see: never more than that of the file below, which is kept by what makes it longer or shorter.
    end: AtomicU64,
    /// The file below is made longer or shorter by one at a time.
    reserving: Mutex<()>,
    /// The file cannot be made longer, or its file system reserves nothing.
    given_up: AtomicBool,
}

impl Preallocate {
    /// Over `below`, whose lengths become multiples of `align`, with `size` bytes behind what was written. All of `below` counts as
    /// written.
    pub fn new(below: Arc<dyn Storage>, align: u64, size: u64) -> Self {
        let Capabilities { read_only, resizable, .. } = below.capabilities();
        let end = AtomicU64::new(below.length());
        let given_up = AtomicBool::new(read_only || !resizable);
        Self { below, align, size, end, reserving: Mutex::new(()), given_up }
    }

    /// Reserves space up to `end` and behind it, if the file below ends before. An error is not returned: if
    /// space is short the write fails.
    async fn make_room(&self, end: u64) {
        let enough = || end <= self.below.length() || self.given_up.load(Ordering::Acquire);
        if enough() {
            return;
        }
        let _one_at_a_time = self.reserving.lock().await;
        if enough() {
            return;
        }
        let from = self.below.length();
        let Some(to) =
            end.checked_add(self.size).and_then(|needed| needed.checked_next_multiple_of(self.align))
        else {
            return;
        };
        if let Err(error) = self.below.allocate(from, to - from, Allocation::Reserve).await {
            tracing::debug!("{}: no room is reserved ahead of writes: {error}", self.below.name());
            if error.kind() == io::ErrorKind::Unsupported {
                self.given_up.store(true, Ordering::Release);
            }
        }
    }

    /// A request that may make the storage longer, up to the end of `len` bytes at `offset`.
    async fn growing<T>(
        &self,
        (offset, len): (u64, u64),
        request: impl Future<Output = io::Result<T>>,
    ) -> io::Result<T> {
        let end = offset.saturating_add(len);
        self.make_room(end).await;
        let done = request.await?;
        self.end.fetch_max(end, Ordering::AcqRel);
        Ok(done)
    }

    /// Cuts the file below to what users see.
    async fn give_back(&self) -> io::Result<()> {
        let _one_at_a_time = self.reserving.lock().await;
        let Capabilities { read_only, resizable, .. } = self.below.capabilities();
        let end = self.length();
        match read_only || !resizable || self.below.length() <= end {
            true => Ok(()),
            false => self.below.shorten_to(end).await,
        }
    }
}

impl Storage for Preallocate {
    fn over(&self) -> Option<&dyn Storage> {
        Some(&*self.below)
    }

    fn length(&self) -> u64 {
        self.end.load(Ordering::Acquire)
    }

    fn try_read(&self, offset: u64, buf: &mut [u8], hints: Hints) -> bool {
        self.below.try_read(offset, buf, hints)
    }

    fn try_read_into(&self, offset: u64, memory: &ForeignBytes, hints: Hints) -> bool {
        self.below.try_read_into(offset, memory, hints)
    }

    fn write(&self, offset: u64, data: IoVec, hints: Hints) -> IoFuture<'_, io::Result<()>> {
        let len = data.len() as u64;
        Box::pin(self.growing((offset, len), self.below.write(offset, data, hints)))
    }

    fn read_into(&self, offset: u64, memory: ForeignBytes, hints: Hints) -> IoFuture<'_, io::Result<()>> {
        self.below.read_into(offset, memory, hints)
    }

    fn write_from(&self, offset: u64, memory: ForeignBytes, hints: Hints) -> IoFuture<'_, io::Result<()>> {
        let len = memory.len() as u64;
        Box::pin(self.growing((offset, len), self.below.write_from(offset, memory, hints)))
    }

    fn zero(&self, offset: u64, len: u64, how: Zeroing) -> IoFuture<'_, io::Result<()>> {
        Box::pin(self.growing((offset, len), self.below.zero(offset, len, how)))
    }

    fn discard(&self, offset: u64, len: u64) -> IoFuture<'_, io::Result<()>> {
        // What is reserved behind the end stays.
        let len = len.min(self.length().saturating_sub(offset));
        self.below.discard(offset, len)
    }

    fn grow_to(&self, length: u64) -> IoFuture<'_, io::Result<()>> {
        Box::pin(self.growing((0, length), self.below.grow_to(length)))
    }

    fn extend_to(&self, length: u64) -> IoFuture<'_, io::Result<()>> {
        Box::pin(self.growing((0, length), self.below.extend_to(length)))
    }

    fn shorten_to(&self, length: u64) -> IoFuture<'_, io::Result<()>> {
        Box::pin(async move {
            let _one_at_a_time = self.reserving.lock().await;
            self.below.shorten_to(length).await?;
            self.end.fetch_min(length, Ordering::AcqRel);
            Ok(())
        })
    }

    fn end_writing(&self) -> IoFuture<'_, io::Result<()>> {
        Box::pin(async {
            self.give_back().await?;
            self.below.end_writing().await
        })
    }

    fn allocate(&self, offset: u64, len: u64, how: Allocation) -> IoFuture<'_, io::Result<()>> {
        Box::pin(self.growing((offset, len), self.below.allocate(offset, len, how)))
    }

    fn descriptor(&self) -> Option<&Arc<OwnedFd>> {
        self.below.descriptor()
    }

    fn copies(&self) -> bool {
        self.below.copies()
    }

    fn copy_from(
        &self,
        offset: u64,
        source: Arc<OwnedFd>,
        from: u64,
        len: u64,
    ) -> IoFuture<'_, io::Result<()>> {
        Box::pin(self.growing((offset, len), self.below.copy_from(offset, source, from, len)))
    }
}
