//! The bytes of one simulated file: sparse, cheap to clone, with a hash that is kept up to date.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::rng::mix;

/// What the device writes whole.
pub const SECTOR_BYTES: u64 = 512;

const PAGE_BYTES: u64 = 4096;
const PAGE: usize = 4096;
const SECTOR: usize = 512;

type Page = [u8; PAGE];

/// Sparse bytes with a length.
///
/// A clone shares everything until one side writes; after [`Content::settle`] it costs two reference
/// counts whatever the size, so that hundred thousand crash states of one image are affordable.
/// Bytes written beyond the length are kept, unseen, until the length grows or [`Content::trim`].
#[derive(Clone, Debug, Default)]
pub struct Content {
    base: Arc<BTreeMap<u64, Arc<Page>>>,
    overlay: BTreeMap<u64, Option<Arc<Page>>>,
    length: u64,
    /// Sum over all sectors that are not zero of their hash with their address.
    sum: u64,
}

impl Content {
    /// `length` zero bytes, none of them stored.
    pub fn zeroed(length: u64) -> Self {
        Self { length, ..Self::default() }
    }

    /// The given bytes.
    pub fn of(bytes: &[u8]) -> Self {
        let mut content = Self::zeroed(bytes.len() as u64);
        content.write(0, bytes);
        content.settle();
        content
    }

    /// Length in bytes.
    pub fn length(&self) -> u64 {
        self.length
    }

    /// A hash of bytes and length; equal contents have equal hashes.
    pub fn hash(&self) -> u64 {
        self.sum.wrapping_add(mix(self.length ^ 0x6c65_6e67_7468))
    }

    /// Fills `buf` from `offset`; what lies beyond the length is zero.
    pub fn read(&self, offset: u64, buf: &mut [u8]) {
        let seen = self.length.saturating_sub(offset).min(buf.len() as u64);
        let (seen, beyond) = buf.split_at_mut(seen as usize);
        beyond.fill(0);
        for (page, from, chunk) in chunks_mut(offset, seen) {
            match self.page(page) {
                Some(bytes) => chunk.copy_from_slice(&bytes[from..from + chunk.len()]),
                None => chunk.fill(0),
            }
        }
    }

    /// Stores `bytes` at `offset`; the length stays.
    pub fn write(&mut self, offset: u64, bytes: &[u8]) {
        let mut at = offset;
        let mut rest = bytes;
        while !rest.is_empty() {
            let from = (at % PAGE_BYTES) as usize;
            let (chunk, next) = rest.split_at(rest.len().min(PAGE - from));
            self.edit(at / PAGE_BYTES, from, chunk.len(), |page| page.copy_from_slice(chunk));
            at += chunk.len() as u64;
            rest = next;
        }
    }

    /// Makes `len` bytes from `offset` equal to `byte`; the length stays. Costs nothing for holes
    /// when `byte` is 0.
    pub fn fill(&mut self, offset: u64, len: u64, byte: u8) {
        let end = offset.saturating_add(len);
        if byte == 0 {
            let pages = offset / PAGE_BYTES..end.div_ceil(PAGE_BYTES);
            for page in self.stored_pages(pages) {
                let (from, to) = (offset.max(page * PAGE_BYTES), end.min((page + 1) * PAGE_BYTES));
                self.fill_in_page(page, from, to, 0);
            }
            return;
        }
        let mut at = offset;
        while at < end {
            let to = end.min((at / PAGE_BYTES + 1) * PAGE_BYTES);
            self.fill_in_page(at / PAGE_BYTES, at, to, byte);
            at = to;
        }
    }

    /// Takes room for `len` bytes from `offset` on; what is read there stays.
    pub fn reserve(&mut self, offset: u64, len: u64) {
        for page in offset / PAGE_BYTES..(offset + len).div_ceil(PAGE_BYTES) {
            self.edit(page, 0, 0, |_| {});
        }
    }

    /// Sets the length; what is cut off is lost, what is added reads as zeroes.
    pub fn set_length(&mut self, length: u64) {
        self.length = length;
        self.trim();
    }

    /// Makes the length at least `length`. Bytes stored beyond the old length come into sight.
    pub fn grow(&mut self, length: u64) {
        self.length = self.length.max(length);
    }

    /// Forgets what is stored beyond the length.
    pub fn trim(&mut self) {
        self.fill(self.length, u64::MAX - self.length, 0);
    }

    /// Makes later clones cheap.
    pub fn settle(&mut self) {
        if self.overlay.is_empty() {
            return;
        }
        let base = Arc::make_mut(&mut self.base);
        for (page, bytes) in std::mem::take(&mut self.overlay) {
            match bytes {
                Some(bytes) => base.insert(page, bytes),
                None => base.remove(&page),
            };
        }
    }

    /// Offsets and bytes of everything stored inside the length, in order, 4096 bytes at a time.
    pub fn stored(&self) -> Vec<(u64, Vec<u8>)> {
        self.stored_pages(0..self.length.div_ceil(PAGE_BYTES))
            .into_iter()
            .map(|page| {
                let offset = page * PAGE_BYTES;
                let mut bytes = vec![0; PAGE_BYTES.min(self.length - offset) as usize];
                self.read(offset, &mut bytes);
                (offset, bytes)
            })
            .collect()
    }

    /// Whether anything is stored in the page of `offset`.
    pub(crate) fn is_stored_at(&self, offset: u64) -> bool {
        self.page(offset / PAGE_BYTES).is_some()
    }

    /// Whether anything is stored in the page of `offset`, and where the first page after it begins of
    /// which the opposite is true.
    pub(crate) fn stored_at(&self, offset: u64) -> (bool, u64) {
        let page = offset / PAGE_BYTES;
        let stored = self.page(page).is_some();
        let end = match stored {
            true => (page + 1..).find(|&page| self.page(page).is_none()),
            false => self.next_stored(page + 1),
        };
        (stored, end.unwrap_or(u64::MAX).saturating_mul(PAGE_BYTES))
    }

    /// Bytes of storage in use.
    pub fn stored_bytes(&self) -> u64 {
        let more = |(page, bytes): (&u64, &Option<Arc<Page>>)| {
            i64::from(bytes.is_some()) - i64::from(self.base.contains_key(page))
        };
        let pages = self.base.len() as i64 + self.overlay.iter().map(more).sum::<i64>();
        pages.unsigned_abs() * PAGE_BYTES
    }

    fn page(&self, page: u64) -> Option<&Arc<Page>> {
        match self.overlay.get(&page) {
            Some(changed) => changed.as_ref(),
            None => self.base.get(&page),
        }
    }

    fn next_stored(&self, from: u64) -> Option<u64> {
        let mut old = self.base.range(from..).map(|(page, _)| *page);
        let old = old.find(|page| !self.overlay.contains_key(page));
        let mut changed = self.overlay.range(from..).filter(|(_, bytes)| bytes.is_some());
        old.into_iter().chain(changed.next().map(|(page, _)| *page)).min()
    }

    fn stored_pages(&self, pages: std::ops::Range<u64>) -> Vec<u64> {
        let old = self.base.range(pages.clone()).map(|(page, _)| *page);
        let mut all: Vec<u64> = old.filter(|page| !self.overlay.contains_key(page)).collect();
        all.extend(self.overlay.range(pages).filter(|(_, bytes)| bytes.is_some()).map(|(page, _)| *page));
        all.sort_unstable();
        all
    }

    fn fill_in_page(&mut self, page: u64, from: u64, to: u64, byte: u8) {
        if byte == 0 && to - from == PAGE_BYTES {
            if let Some(old) = self.page(page).cloned() {
                self.sum = self.sum.wrapping_sub(hash_sectors(page, &old, 0, PAGE));
                self.overlay.insert(page, None);
            }
            return;
        }
        self.edit(page, (from - page * PAGE_BYTES) as usize, (to - from) as usize, |bytes| bytes.fill(byte));
    }

    fn edit(&mut self, page: u64, from: usize, len: usize, change: impl FnOnce(&mut [u8])) {
        let to = from + len;
        let mut bytes = match self.overlay.remove(&page) {
            Some(changed) => changed,
            None => self.base.get(&page).cloned(),
        }
        .unwrap_or_else(|| Arc::new([0; PAGE]));
        self.sum = self.sum.wrapping_sub(hash_sectors(page, &bytes, from, to));
        change(&mut Arc::make_mut(&mut bytes)[from..to]);
        self.sum = self.sum.wrapping_add(hash_sectors(page, &bytes, from, to));
        self.overlay.insert(page, Some(bytes));
    }
}

fn chunks_mut(offset: u64, buf: &mut [u8]) -> impl Iterator<Item = (u64, usize, &mut [u8])> {
    let mut at = offset;
    let mut rest = buf;
    std::iter::from_fn(move || {
        if rest.is_empty() {
            return None;
        }
        let from = (at % PAGE_BYTES) as usize;
        let whole = std::mem::take(&mut rest);
        let (chunk, next) = whole.split_at_mut(whole.len().min(PAGE - from));
        let page = at / PAGE_BYTES;
        at += chunk.len() as u64;
        rest = next;
        Some((page, from, chunk))
    })
}

/// Hashes of the sectors of `page` that the bytes `from..to` touch, summed; zero sectors count 0.
fn hash_sectors(page: u64, bytes: &Page, from: usize, to: usize) -> u64 {
    let first = from / SECTOR;
    let mut sum = 0u64;
    for (index, sector) in
        bytes.as_chunks::<SECTOR>().0.iter().enumerate().take(to.div_ceil(SECTOR)).skip(first)
    {
        sum = sum.wrapping_add(hash_sector(page * (PAGE / SECTOR) as u64 + index as u64, sector));
    }
    sum
}

fn hash_sector(address: u64, sector: &[u8; SECTOR]) -> u64 {
    let mut any = 0;
    let mut lanes = [address, 1, 2, 3];
    for group in sector.as_chunks::<32>().0 {
        for (lane, word) in lanes.iter_mut().zip(group.as_chunks::<8>().0) {
            let word = u64::from_le_bytes(*word);
            any |= word;
            *lane = (*lane ^ word).wrapping_mul(0x9fb2_1c65_1e98_df25);
            *lane ^= *lane >> 29;
        }
    }
    if any == 0 {
        return 0;
    }
    lanes.iter().fold(address, |hash, lane| mix(hash ^ lane))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rng::Rng;

    #[test]
    fn content_behaves_as_a_flat_array_and_equal_bytes_have_equal_hashes() {
        let mut rng = Rng::new(7);
        let mut flat = vec![0u8; 40_000];
        let mut content = Content::zeroed(40_000);
        for round in 0..400u32 {
            let at = rng.below(39_000);
            let len = rng.below(9000).min(40_000 - at);
            let byte = if rng.chance(1, 2) { 0 } else { round as u8 };
            match rng.below(3) {
                0 => {
                    content.fill(at, len, byte);
                    flat[at as usize..(at + len) as usize].fill(byte);
                }
                1 => {
                    content.write(at, &vec![byte; len as usize]);
                    flat[at as usize..(at + len) as usize].fill(byte);
                }
                _ => content.settle(),
            }
            let mut read = vec![1; 40_000];
            content.read(0, &mut read);
            assert_eq!(read, flat, "round {round}");
            assert_eq!(content.hash(), Content::of(&flat).hash(), "round {round}");
        }
    }

    #[test]
    fn a_clone_never_sees_what_is_written_after_it() {
        let mut content = Content::of(&[1; 8192]);
        let copy = content.clone();
        content.write(100, &[9; 5000]);
        content.settle();
        let mut read = vec![0; 8192];
        copy.read(0, &mut read);
        assert_eq!(read, vec![1; 8192]);
    }

    #[test]
    fn what_was_cut_off_reads_as_zeroes_after_growing_again() {
        let mut content = Content::of(&[7; 10_000]);
        content.set_length(5000);
        content.grow(10_000);
        let mut read = vec![1; 10_001];
        content.read(0, &mut read);
        assert!(read[..5000].iter().all(|&byte| byte == 7) && read[5000..].iter().all(|&byte| byte == 0));
    }
}
