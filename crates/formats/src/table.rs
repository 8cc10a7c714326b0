//! A table of 32-bit entries in a file, read in pages.

use std::collections::VecDeque;
use std::sync::Arc;

use block::{Blame, Error};
use memory::IoBuf;
use parking_lot::Mutex;
use storage::{Hints, Storage};

/// Bytes of the table that are read together.
const PAGE_BYTES: u64 = 64 << 10;
/// Pages in memory: 4 MiB, which lead to 1 TiB of blocks of 1 MiB.
const PAGES_MAX: usize = 64;
const ENTRY_BYTES: u64 = 4;

/// How the bytes of an entry are ordered.
#[derive(Clone, Copy, Debug)]
pub enum Order {
    Little,
    Big,
}

#[derive(Debug)]
pub struct Table {
    offset: u64,
    entries: u64,
    order: Order,
    /// Pages by number, the oldest first. The file does not change while the image is open.
    pages: Mutex<VecDeque<(u64, Arc<IoBuf>)>>,
}

impl Table {
    /// A table that must lie inside the file.
    pub fn new(file: &dyn Storage, offset: u64, entries: u64, order: Order) -> Result<Self, Error> {
        let end = entries.checked_mul(ENTRY_BYTES).and_then(|bytes| offset.checked_add(bytes));
        if end.is_none_or(|end| end > file.length()) {
            let detail = format!(
                "the table of blocks ({entries} entries at {offset}) is beyond the end of the file ({} bytes)",
                file.length()
            );
            return Err(Blame::new(file.name()).corrupt(detail));
        }
        Ok(Self { offset, entries, order, pages: Mutex::default() })
    }

    /// How many there are.
    pub fn entries(&self) -> u64 {
        self.entries
    }

    /// The entry `index`, which must be one of the table's.
    pub async fn entry(&self, file: &dyn Storage, index: u64) -> Result<u32, Error> {
        debug_assert!(index < self.entries);
        let byte = index * ENTRY_BYTES;
        let page = self.page(file, byte / PAGE_BYTES).await?;
        let at = (byte % PAGE_BYTES) as usize;
        let found = page.get(at..).and_then(|rest| rest.first_chunk());
        let bytes = found
            .copied()
            .ok_or_else(|| Blame::new(file.name()).corrupt("a table of blocks that ends early"))?;
        Ok(match self.order {
            Order::Little => u32::from_le_bytes(bytes),
            Order::Big => u32::from_be_bytes(bytes),
        })
    }

    async fn page(&self, file: &dyn Storage, number: u64) -> Result<Arc<IoBuf>, Error> {
        let found = self.pages.lock().iter().find(|(of, _)| *of == number).map(|(_, page)| Arc::clone(page));
        if let Some(page) = found {
            return Ok(page);
        }
        let start = number * PAGE_BYTES;
        let len = (self.entries * ENTRY_BYTES - start).min(PAGE_BYTES);
        let (result, page) = file.read(self.offset + start, IoBuf::uninit(len as usize), Hints::NONE).await;
        result.map_err(Blame::new(file.name()).io("reading the table of blocks"))?;
        let page = Arc::new(page);
        let mut pages = self.pages.lock();
        if pages.len() == PAGES_MAX {
            pages.pop_front();
        }
        pages.push_back((number, Arc::clone(&page)));
        Ok(page)
    }
}
