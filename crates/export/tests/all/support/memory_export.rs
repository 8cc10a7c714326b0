//! A disk in memory: what [`export::Export`] asks for, in its simplest form.
#![allow(dead_code, clippy::allow_attributes, reason = "a part of the example and of several tests")]

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicU64, Ordering};

use event_listener::Event;
use export::{
    Abilities, BlockSizes, Depth, Dirtiness, Error, ErrorKind, Export, Extent, Hints, IoFuture, Pace,
    ReadKind, ZeroFlags,
};
use memory::{IoBuf, IoVec};
use parking_lot::{Mutex, RwLock};

/// Granularity of holes and of the bitmap.
pub const PAGE: u64 = 4096;

/// Bytes that are read or written between two turns of others.
const STEP: usize = 2 << 20;

/// Bytes in memory, with holes a page wide, a bitmap "dirty" of what was written, a flush count,
/// and pages that a test can hold: requests for them wait.
#[derive(Debug)]
pub struct MemoryExport {
    bytes: RwLock<Vec<u8>>,
    /// Pages that were written and not trimmed.
    allocated: Mutex<BTreeSet<u64>>,
    flushes: AtomicU64,
    /// Bytes that reads which had to wait have copied.
    read_bytes: AtomicU64,
    /// The hints of the reads and writes so far.
    hints: Mutex<Vec<Hints>>,
    held: Mutex<BTreeSet<u64>>,
    released: Event,
    /// Refuse writes.
    pub read_only: bool,
    /// Reads of this page fail.
    pub bad_page: Option<u64>,
}

impl MemoryExport {
    /// `size` bytes, all a hole.
    pub fn new(size: u64) -> Self {
        let size = usize::try_from(size).expect("a size that fits memory");
        Self {
            bytes: RwLock::new(vec![0; size]),
            allocated: Mutex::default(),
            flushes: AtomicU64::new(0),
            read_bytes: AtomicU64::new(0),
            hints: Mutex::default(),
            held: Mutex::default(),
            released: Event::new(),
            read_only: false,
            bad_page: None,
        }
    }

    /// Flushes so far, FUA included.
    pub fn flushes(&self) -> u64 {
        self.flushes.load(Ordering::SeqCst)
    }

    /// Bytes that reads have copied so far, those aside that were answered at once.
    pub fn read_bytes(&self) -> u64 {
        self.read_bytes.load(Ordering::SeqCst)
    }

    /// The hints of the reads and writes since the last call. A read that is tried and has to wait is there twice.
    pub fn take_hints(&self) -> Vec<Hints> {
        std::mem::take(&mut *self.hints.lock())
    }

    /// Requests that touch `page` wait until [`MemoryExport::release`].
    pub fn hold(&self, page: u64) {
        self.held.lock().insert(page);
    }

    /// Lets every request go on that waits.
    pub fn release(&self) {
        self.held.lock().clear();
        self.released.notify(usize::MAX);
    }

    fn is_held(&self, offset: u64, len: u64) -> bool {
        let held = self.held.lock();
        !held.is_empty() && held.range(Self::pages(offset, len)).next().is_some()
    }

    /// The bytes of a range.
    pub fn peek(&self, offset: u64, len: usize) -> Vec<u8> {
        let mut bytes = vec![0; len];
        self.copy_out(offset, &mut bytes);
        bytes
    }

    fn copy_out(&self, offset: u64, buf: &mut [u8]) {
        let start = offset as usize;
        buf.copy_from_slice(&self.bytes.read()[start..start + buf.len()]);
    }

    fn copy_in(&self, offset: u64, data: &[u8]) {
        let start = offset as usize;
        self.bytes.write()[start..start + data.len()].copy_from_slice(data);
    }

    fn is_bad(&self, offset: u64, len: u64) -> bool {
        self.bad_page.is_some_and(|page| offset < (page + 1) * PAGE && page * PAGE < offset + len)
    }

    fn pages(offset: u64, len: u64) -> std::ops::Range<u64> {
        offset / PAGE..(offset + len).div_ceil(PAGE)
    }

    async fn wait(&self, offset: u64, len: u64) {
        loop {
            let released = self.released.listen();
            if !self.is_held(offset, len) {
                return;
            }
            released.await;
        }
    }

    fn flushed_if(&self, fua: bool) {
        self.flushes.fetch_add(u64::from(fua), Ordering::SeqCst);
    }

    /// Whether the page at `offset` is allocated, and how far that goes, for at most `len` bytes.
    fn run_at(&self, offset: u64, len: u64) -> (u64, bool) {
        let allocated = self.allocated.lock();
        let is_data = allocated.contains(&(offset / PAGE));
        let same = |page: &u64| allocated.contains(page) == is_data;
        let pages = Self::pages(offset, len).take_while(same).count() as u64;
        (((offset / PAGE + pages) * PAGE - offset).min(len), is_data)
    }
}

impl Export for MemoryExport {
    fn size(&self) -> u64 {
        self.bytes.read().len() as u64
    }

    fn read_only(&self) -> bool {
        self.read_only
    }

    fn block_sizes(&self) -> BlockSizes {
        BlockSizes { minimum: 1, preferred: 4096, discard: 4096 }
    }

    fn abilities(&self) -> Abilities {
        Abilities { discard: true, zero: true, fast_zero: true, prefetch: true, allocation_depth: true }
    }

    fn bitmaps(&self) -> Vec<String> {
        vec!["dirty".into()]
    }

    fn try_read(&self, offset: u64, buf: &mut [u8], hints: Hints) -> Option<ReadKind> {
        self.hints.lock().push(hints);
        let len = buf.len() as u64;
        if self.is_held(offset, len) || self.is_bad(offset, len) {
            return None;
        }
        if self.run_at(offset, len) == (len, false) {
            return Some(ReadKind::Zeroes);
        }
        self.copy_out(offset, buf);
        Some(ReadKind::Data)
    }

    fn read<'a>(
        &'a self,
        offset: u64,
        mut buf: IoBuf,
        hints: Hints,
        pace: &'a Pace,
    ) -> IoFuture<'a, (Result<ReadKind, Error>, IoBuf)> {
        self.hints.lock().push(hints);
        Box::pin(async move {
            let mut at = offset;
            for part in buf.chunks_mut(STEP) {
                let len = part.len() as u64;
                pace.step(len).await;
                self.wait(at, len).await;
                if self.is_bad(at, len) {
                    return (Err(ErrorKind::Io.into()), buf);
                }
                self.copy_out(at, part);
                self.read_bytes.fetch_add(len, Ordering::SeqCst);
                at += len;
            }
            (Ok(ReadKind::Data), buf)
        })
    }

    fn write<'a>(
        &'a self,
        offset: u64,
        data: IoVec,
        fua: bool,
        hints: Hints,
        pace: &'a Pace,
    ) -> IoFuture<'a, Result<(), Error>> {
        self.hints.lock().push(hints);
        Box::pin(async move {
            let mut at = offset;
            for part in data.parts().iter().flat_map(|part| part.chunks(STEP)) {
                let len = part.len() as u64;
                pace.step(len).await;
                self.wait(at, len).await;
                self.copy_in(at, part);
                at += len;
            }
            self.allocated.lock().extend(Self::pages(offset, data.len() as u64));
            self.flushed_if(fua);
            Ok(())
        })
    }

    fn flush(&self) -> IoFuture<'_, Result<(), Error>> {
        Box::pin(async move {
            self.flushed_if(true);
            Ok(())
        })
    }

    fn discard<'a>(
        &'a self,
        offset: u64,
        len: u64,
        fua: bool,
        pace: &'a Pace,
    ) -> IoFuture<'a, Result<(), Error>> {
        self.zero(offset, len, ZeroFlags { unmap: true, fua, ..ZeroFlags::default() }, pace)
    }

    fn zero<'a>(
        &'a self,
        offset: u64,
        len: u64,
        flags: ZeroFlags,
        _pace: &'a Pace,
    ) -> IoFuture<'a, Result<(), Error>> {
        Box::pin(async move {
            self.wait(offset, len).await;
            self.flushed_if(flags.fua);
            let start = offset as usize;
            self.bytes.write()[start..start + len as usize].fill(0);
            let mut allocated = self.allocated.lock();
            if flags.unmap {
                let whole = offset.div_ceil(PAGE)..(offset + len) / PAGE;
                allocated.retain(|page| !whole.contains(page));
            } else {
                allocated.extend(Self::pages(offset, len));
            }
            Ok(())
        })
    }

    fn prefetch<'a>(&'a self, _offset: u64, _len: u64, _pace: &'a Pace) -> IoFuture<'a, Result<(), Error>> {
        Box::pin(async { Ok(()) })
    }

    fn block_status(&self, offset: u64, len: u64) -> IoFuture<'_, Result<Extent, Error>> {
        let (len, is_data) = self.run_at(offset, len);
        Box::pin(async move { Ok(Extent { len, hole: !is_data, zero: !is_data }) })
    }

    fn allocation_depth(&self, offset: u64, len: u64) -> IoFuture<'_, Result<Depth, Error>> {
        let (len, is_data) = self.run_at(offset, len);
        Box::pin(async move { Ok(Depth { len, depth: u32::from(is_data) }) })
    }

    fn bitmap_status<'a>(
        &'a self,
        _bitmap: &'a str,
        offset: u64,
        len: u64,
    ) -> IoFuture<'a, Result<Dirtiness, Error>> {
        let (len, dirty) = self.run_at(offset, len);
        Box::pin(async move { Ok(Dirtiness { len, dirty }) })
    }
}
