//! One resident slice of a table.

use sync::atomic::{AtomicU8, Ordering};

use crate::footprint::{self, ARC_COUNTS};
use crate::packing::{Column, Form, Packing};
use crate::plain::Plain;

/// Which slice of which L2 table.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SliceKey {
    /// Index of the table in L1.
    pub l1_index: u32,
    /// Index of the slice in its table.
    pub slice: u32,
}

/// Touched since eviction looked last.
const VISITED: u8 = 1;
/// Touched since the cleaner passed last.
const USED: u8 = 2;

/// The entries of one slice: packed, and then they never change, or plain.
#[derive(Debug)]
pub struct Slice {
    key: SliceKey,
    words: u32,
    touched: AtomicU8,
    body: Body,
}

#[derive(Debug)]
enum Body {
    One(Column),
    Two(Box<[Column; 2]>),
    Plain(Box<Plain>),
}

impl Slice {
    /// Packs `words`: whole entries, at most 2^31 of them.
    pub(crate) fn pack(key: SliceKey, words: &[u64], packing: &Packing) -> Self {
        let [first, second] = packing.columns();
        let body = match packing.width() {
            1 => Body::One(Column::pack(words, first)),
            _ => {
                let (entries, _) = words.as_chunks::<2>();
                let column = |at: usize| entries.iter().map(|entry| entry[at]).collect::<Vec<_>>();
                let columns = [Column::pack(&column(0), first), Column::pack(&column(1), second)];
                Body::Two(Box::new(columns))
            }
        };
        Self::new(key, words.len() as u32, body)
    }

    /// The same entries, to be modified.
    pub(crate) fn unpack(&self) -> Self {
        Self::new(self.key, self.words, Body::Plain(Box::new(Plain::new(self.to_words().into_iter()))))
    }

    fn new(key: SliceKey, words: u32, body: Body) -> Self {
        Self { key, words, touched: AtomicU8::new(USED), body }
    }

    /// Which slice this is.
    pub fn key(&self) -> SliceKey {
        self.key
    }

    /// The words of entry `index`, as they were at one moment; `N` must be what the cache's
    /// [`Packing`] says. Indices beyond the slice give 0.
    #[inline]
    pub fn entry<const N: usize>(&self, index: usize) -> [u64; N] {
        if (index + 1) * N > self.words as usize {
            return [0; N];
        }
        match &self.body {
            Body::One(column) => {
                debug_assert_eq!(N, 1, "entries of this cache have one word");
                [column.get(index); N]
            }
            Body::Two(columns) => {
                debug_assert_eq!(N, 2, "entries of this cache have two words");
                core::array::from_fn(|at| columns.get(at).map_or(0, |column| column.get(index)))
            }
            Body::Plain(plain) => plain.get(index * N),
        }
    }

    /// All words. Those of a plain slice may be of different moments.
    fn to_words(&self) -> Vec<u64> {
        let words = self.words as usize;
        match &self.body {
            Body::One(column) => (0..words).map(|at| column.get(at)).collect(),
            Body::Two(columns) => {
                (0..words / 2).flat_map(|at| [columns[0].get(at), columns[1].get(at)]).collect()
            }
            Body::Plain(plain) => plain.copy().0,
        }
    }

    /// Where it can be modified; `None` while it is packed.
    pub(crate) fn plain(&self) -> Option<&Plain> {
        match &self.body {
            Body::Plain(plain) => Some(plain),
            Body::One(_) | Body::Two(_) => None,
        }
    }

    #[inline]
    pub(crate) fn touch(&self) {
        // Reading first keeps the cache line shared between the cores that hit it.
        if self.touched.load(Ordering::Relaxed) != VISITED | USED {
            self.touched.store(VISITED | USED, Ordering::Relaxed);
        }
    }

    pub(crate) fn take_visited(&self) -> bool {
        self.touched.fetch_and(!VISITED, Ordering::Relaxed) & VISITED != 0
    }

    pub(crate) fn take_used(&self) -> bool {
        self.touched.fetch_and(!USED, Ordering::Relaxed) & USED != 0
    }

    /// Lets this slice pass for as much used as `other`, whose place it takes.
    pub(crate) fn inherit(&self, other: &Slice) {
        self.touched.store(other.touched.load(Ordering::Relaxed), Ordering::Relaxed);
    }

    /// Memory held, in bytes, by form; the slice itself counts as its first column does.
    pub(crate) fn footprint(&self) -> [(Form, u64); 2] {
        let own = footprint::allocation(size_of::<Self>() + ARC_COUNTS);
        let payload = |column: &Column| footprint::allocation(column.payload_words() * 8);
        match &self.body {
            Body::One(column) => [(column.form(), own + payload(column)), (column.form(), 0)],
            Body::Two(columns) => {
                let pair = footprint::allocation(size_of_val(&**columns));
                let [first, second] = &**columns;
                [(first.form(), own + pair + payload(first)), (second.form(), payload(second))]
            }
            Body::Plain(plain) => [(Form::Plain, own + plain.footprint()), (Form::Plain, 0)],
        }
    }

    /// Memory held, in bytes.
    pub(crate) fn bytes(&self) -> u64 {
        self.footprint().iter().map(|(_, bytes)| bytes).sum()
    }
}
