//! Tables of an image's files, read in pages. All tables of an image share one bound.

use std::collections::{HashMap, VecDeque};
use std::ops::Deref;
use std::sync::Arc;

use block::{Blame, Error};
use memory::IoBuf;
use parking_lot::Mutex;
use storage::{Hints, Storage};

/// Bytes that are read together. Tables begin at multiples of 512 bytes, so no entry lies in two pages.
const PAGE_BYTES: u64 = 16 << 10;
/// Pages in memory: 16 MiB.
const PAGES_MAX: usize = 1024;

/// A file of the image, and its number among them.
#[derive(Clone, Copy, Debug)]
pub struct Numbered<'a> {
    pub file: &'a dyn Storage,
    pub number: usize,
}

/// Pages by file and place. The files do not change while the image is open.
#[derive(Debug, Default)]
pub struct Pages(Mutex<Cached>);

#[derive(Debug, Default)]
struct Cached {
    pages: HashMap<(usize, u64), Arc<IoBuf>>,
    /// The oldest first.
    order: VecDeque<(usize, u64)>,
}

/// What a page has from the byte on that was asked for.
#[derive(Debug)]
pub struct Rest {
    page: Arc<IoBuf>,
    from: usize,
}

impl Deref for Rest {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        self.page.get(self.from..).unwrap_or_default()
    }
}

impl Rest {
    /// Entries of four bytes.
    pub fn le32(&self) -> impl Iterator<Item = u32> {
        self.chunks_exact(4).map(|entry| entry.first_chunk().copied().map_or(0, u32::from_le_bytes))
    }

    /// Entries of eight bytes.
    pub fn le64(&self) -> impl Iterator<Item = u64> {
        self.chunks_exact(8).map(|entry| entry.first_chunk().copied().map_or(0, u64::from_le_bytes))
    }
}

impl Pages {
    /// The bytes of a table from the entry at `at` on, as far as a page reaches: the whole entry of `entry_bytes`, at least.
    ///
    /// # Errors
    /// [`Error::Corrupt`] where the file ends before the entry does.
    pub async fn rest(
        &self,
        Numbered { file, number }: Numbered<'_>,
        at: u64,
        entry_bytes: u64,
    ) -> Result<Rest, Error> {
        if at.checked_add(entry_bytes).is_none_or(|end| end > file.length()) {
            let (length, name) = (file.length(), file.name());
            let detail = format!("a table entry at {at} is beyond the end of the file ({length} bytes)");
            return Err(Blame::new(name).corrupt(detail));
        }
        let key = (number, at / PAGE_BYTES);
        let cached = self.0.lock().pages.get(&key).cloned();
        let page = match cached {
            Some(page) => page,
            None => self.load(file, key).await?,
        };
        Ok(Rest { page, from: (at % PAGE_BYTES) as usize })
    }

    async fn load(&self, file: &dyn Storage, key: (usize, u64)) -> Result<Arc<IoBuf>, Error> {
        let start = key.1 * PAGE_BYTES;
        let len = (file.length() - start).min(PAGE_BYTES);
        let (result, page) = file.read(start, IoBuf::uninit(len as usize), Hints::NONE).await;
        result.map_err(Blame::new(file.name()).io("reading a table"))?;
        let page = Arc::new(page);
        let mut cached = self.0.lock();
        if cached.pages.insert(key, Arc::clone(&page)).is_none() {
            cached.order.push_back(key);
        }
        if cached.order.len() > PAGES_MAX
            && let Some(oldest) = cached.order.pop_front()
        {
            cached.pages.remove(&oldest);
        }
        Ok(page)
    }
}
