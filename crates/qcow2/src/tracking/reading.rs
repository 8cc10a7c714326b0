//! A bitmap as others read it, wherever its bits are.

use std::ops::{Deref, Range};
use std::sync::Arc;

use block::{Blame, BlockFuture};
use qcow2_layout::{BITMAP_GRANULARITY_BITS, BitmapEntry, BitmapFlags, BitmapTableEntry, Geometry};
use storage::{Hints, IoBuf, Storage};
use sync::Mutex;

use super::live::{Live, LiveSpec};
use crate::Error;
use crate::guest_range::GuestRange;
use crate::table_io::is_in_file;

/// One bitmap. What is not in memory is read as it is asked for: nothing of it is kept but the cluster that was read last.
#[derive(Debug)]
pub struct Bitmap {
    bits: Bits,
    pub(crate) size: u64,
}

#[derive(Debug)]
enum Bits {
    InMemory(Arc<Live>),
    InFile(InFile),
}

#[derive(Debug)]
struct InFile {
    entry: SharedEntry,
    file: Arc<dyn Storage>,
    geometry: Geometry,
    latest: Mutex<Option<(u64, Arc<Vec<u8>>)>>,
}

/// An entry of a directory, which has its names once: they may take 64 MiB.
#[derive(Clone, Debug)]
pub(crate) struct SharedEntry {
    all: Arc<Vec<BitmapEntry>>,
    index: usize,
}

impl SharedEntry {
    /// Entry `index` of `all`, which must be there.
    pub(crate) fn of(all: &Arc<Vec<BitmapEntry>>, index: usize) -> Self {
        assert!(index < all.len(), "the directory has the entry");
        Self { all: Arc::clone(all), index }
    }
}

impl From<BitmapEntry> for SharedEntry {
    fn from(entry: BitmapEntry) -> Self {
        Self::of(&Arc::new(vec![entry]), 0)
    }
}

impl Deref for SharedEntry {
    type Target = BitmapEntry;

    fn deref(&self) -> &BitmapEntry {
        &self.all[self.index]
    }
}

/// Whether a range was written since the bitmap was made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Dirtiness {
    /// Bytes, never 0.
    pub len: u64,
    /// Whether any of them was written, at the bitmap's granularity.
    pub dirty: bool,
}

impl Bitmap {
    pub(crate) fn new(entry: SharedEntry, file: Arc<dyn Storage>, geometry: Geometry, size: u64) -> Self {
        let bits = Bits::InFile(InFile { entry, file, geometry, latest: Mutex::new(None) });
        Self { bits, size }
    }

    /// The same bitmap, where an image switches to the copy `file` of its file.
    pub(crate) fn on(self: &Arc<Self>, file: &Arc<dyn Storage>) -> Arc<Self> {
        match &self.bits {
            Bits::InMemory(_) => Arc::clone(self),
            Bits::InFile(old) => {
                Arc::new(Self::new(old.entry.clone(), Arc::clone(file), old.geometry, self.size))
            }
        }
    }

    /// A bitmap in memory, with the bits that are set from now on.
    pub(crate) fn in_memory(live: Arc<Live>) -> Self {
        Self { size: live.spec.size, bits: Bits::InMemory(live) }
    }

    /// One that no image has: those bits are set that `ranges` of a disk of `size` bytes touch. `granularity_bytes` is a power of two from
    /// 512 to 2^31.
    ///
    /// # Errors
    /// [`crate::ErrorKind::Invalid`] for another granularity; when there is no memory for it.
    pub fn of_ranges(
        size: u64,
        granularity_bytes: u64,
        ranges: impl IntoIterator<Item = Range<u64>>,
    ) -> Result<Arc<Self>, Error> {
        let (blame, name) = (Blame::new("a bitmap"), "ranges".to_owned());
        let granularity_bits = granularity_bytes.trailing_zeros() as u8;
        if !granularity_bytes.is_power_of_two() || !BITMAP_GRANULARITY_BITS.contains(&granularity_bits) {
            return Err(blame.invalid(format!(
                "the granularity is {granularity_bytes}; must be a power of two from 512 to 2147483648 (2G)"
            )));
        }
        let spec = LiveSpec { name, granularity_bits, persistent: false, recording: false, size };
        let live = Live::new(spec).map_err(|_| blame.no_memory("a bitmap"))?;
        for range in ranges {
            let inside = range.start.min(size)..range.end.min(size);
            if !inside.is_empty() {
                live.mark(GuestRange::at(inside.start, inside.end - inside.start));
            }
        }
        Ok(Arc::new(Self::in_memory(Arc::new(live))))
    }

    /// The ranges that are dirty, in order, the first bytes first. Costs reading what is not in memory, and 16 bytes a range.
    ///
    /// # Errors
    /// As [`Bitmap::status`].
    pub fn dirty_ranges(&self) -> BlockFuture<'_, Result<Vec<Range<u64>>, Error>> {
        Box::pin(async move {
            let (mut at, mut ranges) = (0, Vec::<Range<u64>>::new());
            while at < self.size {
                let said = self.status(at, self.size - at).await?;
                let end = at + said.len;
                match ranges.last_mut() {
                    Some(last) if said.dirty && last.end == at => last.end = end,
                    _ if said.dirty => ranges.push(at..end),
                    _ => {}
                }
                at = end;
            }
            Ok(ranges)
        })
    }

    /// Its name.
    pub fn name(&self) -> &str {
        match &self.bits {
            Bits::InMemory(live) => &live.spec.name,
            Bits::InFile(stored) => &stored.entry.name,
        }
    }

    fn granularity_bits(&self) -> u8 {
        match &self.bits {
            Bits::InMemory(live) => live.spec.granularity_bits,
            Bits::InFile(stored) => stored.entry.granularity_bits,
        }
    }

    /// Bytes of the disk that one bit stands for.
    pub fn granularity_bytes(&self) -> u64 {
        1 << self.granularity_bits()
    }

    /// Bytes of the disk that it is of.
    pub fn size(&self) -> u64 {
        self.size
    }

    /// Whether every write of the disk is to set bits.
    pub fn is_recording(&self) -> bool {
        match &self.bits {
            Bits::InMemory(live) => live.spec.recording,
            Bits::InFile(stored) => stored.entry.flags.contains(BitmapFlags::AUTO),
        }
    }

    /// Whether it is in the image file, too.
    pub fn is_persistent(&self) -> bool {
        match &self.bits {
            Bits::InMemory(live) => live.spec.persistent,
            Bits::InFile(_) => true,
        }
    }

    /// What the bitmap says of `offset`, for at most `len` bytes. Ends at the end of one cluster of
    /// the bitmap at the latest. `offset` lies inside the disk, and `len` is not 0.
    ///
    /// # Errors
    /// When bits that are not in memory cannot be read.
    pub fn status(&self, offset: u64, len: u64) -> BlockFuture<'_, Result<Dirtiness, Error>> {
        Box::pin(async move {
            let end = (offset + len).min(self.size);
            let granularity = u32::from(self.granularity_bits());
            let (first, last) = (offset >> granularity, (end - 1) >> granularity);
            let (dirty, same) = match &self.bits {
                Bits::InMemory(live) => live.bits.run(first, last),
                Bits::InFile(stored) => stored.run(first, last).await?,
            };
            Ok(Dirtiness { len: (((first + same) << granularity).min(end)) - offset, dirty })
        })
    }

    /// All its bits, 64 a word, the first being the lowest, in order to `take`. Costs reading what is not in memory.
    ///
    /// # Errors
    /// As [`Bitmap::status`].
    pub async fn each_word(&self, mut take: impl FnMut(u64)) -> Result<(), Error> {
        let bits = self.size.div_ceil(self.granularity_bytes());
        let words = bits.div_ceil(64);
        let stored = match &self.bits {
            Bits::InMemory(live) => {
                (0..words).for_each(|index| take(live.bits.word(index)));
                return Ok(());
            }
            Bits::InFile(stored) => stored,
        };
        let per_cluster = stored.geometry.cluster_size() / 8;
        for cluster in 0..words.div_ceil(per_cluster) {
            let bytes = stored.cluster(cluster).await?;
            let left = words - cluster * per_cluster;
            // A cluster has at most 2^18 words.
            let here = bytes.as_chunks::<8>().0.iter().take(left.min(per_cluster) as usize);
            for (index, word) in (cluster * per_cluster..).zip(here) {
                let inside = match bits - index * 64 {
                    behind @ 1..64 => (1u64 << behind) - 1,
                    _ => u64::MAX,
                };
                take(u64::from_le_bytes(*word) & inside);
            }
        }
        Ok(())
    }

    /// Bytes of the disk whose bits are set: whole bits, also where the disk ends inside one.
    ///
    /// # Errors
    /// As [`Bitmap::status`].
    pub fn dirty_bytes(&self) -> BlockFuture<'_, Result<u64, Error>> {
        Box::pin(async move {
            let mut bits = 0;
            self.each_word(|word| bits += u64::from(word.count_ones())).await?;
            Ok(bits << self.granularity_bits())
        })
    }

    /// Cluster `index` of the bits of one that is in the file.
    pub(crate) async fn cluster(&self, index: u64) -> Result<Arc<Vec<u8>>, Error> {
        match &self.bits {
            Bits::InFile(stored) => stored.cluster(index).await,
            // No query comes: what is changed cluster by cluster is in the file.
            Bits::InMemory(_) => Ok(Arc::default()),
        }
    }
}

impl InFile {
    async fn run(&self, first: u64, last: u64) -> Result<(bool, u64), Error> {
        let bits_per_cluster = self.geometry.cluster_size() * 8;
        let cluster = first / bits_per_cluster;
        let last = last.min(cluster * bits_per_cluster + bits_per_cluster - 1);
        let bits = self.cluster(cluster).await?;
        let bit = |at: u64| {
            let at = at % bits_per_cluster;
            bits.get((at / 8) as usize).is_some_and(|byte| byte >> (at % 8) & 1 == 1)
        };
        let dirty = bit(first);
        Ok((dirty, (first..=last).take_while(|&at| bit(at) == dirty).count() as u64))
    }

    async fn cluster(&self, index: u64) -> Result<Arc<Vec<u8>>, Error> {
        if let Some((latest, bits)) = &*self.latest.lock()
            && *latest == index
        {
            return Ok(Arc::clone(bits));
        }
        let bits = Arc::new(self.read_cluster(index).await?);
        *self.latest.lock() = Some((index, Arc::clone(&bits)));
        Ok(bits)
    }

    fn blame(&self) -> Blame {
        Blame::new(self.file.name())
    }

    fn check_in_file(&self, what: &str, (at, len): (u64, u64)) -> Result<(), Error> {
        if is_in_file(&*self.file, self.geometry.cluster_size(), at, len) {
            return Ok(());
        }
        let (name, length) = (&self.entry.name, self.file.length());
        let detail =
            format!("{what} of bitmap {name:?} lies at {at:#x}, past the end of the file ({length:#x})");
        Err(self.blame().corrupt(detail))
    }

    async fn read_cluster(&self, index: u64) -> Result<Vec<u8>, Error> {
        let (size, name) = (1 << self.geometry.cluster_bits, &self.entry.name);
        if index >= u64::from(self.entry.table_entries) {
            return Err(self.blame().corrupt(format!("bitmap {name:?} is shorter than the disk")));
        }
        let place = self.entry.table_offset.0 + index * 8;
        self.check_in_file("the table", (place, 8))?;
        let (result, word) = self.file.read(place, IoBuf::uninit(8), Hints::NONE).await;
        result.map_err(self.blame().io("reading a bitmap's table"))?;
        let (words, _) = word.as_chunks::<8>();
        let word = words.first().map_or(0, |word| u64::from_be_bytes(*word));
        let entry = BitmapTableEntry::decode(word, &self.geometry)
            .map_err(|error| self.blame().corrupt(format!("bitmap {name:?}: {error}")))?;
        match entry {
            BitmapTableEntry::Zeroes => Ok(vec![0; size]),
            BitmapTableEntry::Ones => Ok(vec![0xff; size]),
            BitmapTableEntry::Data(at) => {
                self.check_in_file("a cluster", (at.0, size as u64))?;
                let (result, bits) = self.file.read(at.0, IoBuf::uninit(size), Hints::NONE).await;
                result.map_err(self.blame().io("reading a bitmap"))?;
                Ok(bits.to_vec())
            }
        }
    }
}
