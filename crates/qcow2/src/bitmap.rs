//! Persistent bitmaps: found, listed, changed, and marked out of date when the image changes under them.

mod change;
mod draft;
mod fit;
mod merge;

use std::sync::Arc;

use block::Blame;
use qcow2_layout::{
    Autoclear, BITMAP_DIRECTORY_BYTES_MAX, BitmapEntry, BitmapError, BitmapFlags, BitmapTableEntry, Geometry,
    Header, decode_bitmap_directory, encode_bitmap_directory,
};
use storage::{IoBuf, Storage};
use sync::Mutex;

pub use change::BitmapChange;

use crate::Error;
use crate::table_io::{is_in_file, read_bytes, write_bytes};

/// The bitmaps of the image in `file`. Empty if the header says that they cannot be trusted at all.
pub async fn list(file: &dyn Storage, header: &Header) -> Result<Vec<BitmapEntry>, Error> {
    let blame = Blame::new(file.name());
    let geometry = header.geometry().map_err(|error| blame.corrupt(error.to_string()))?;
    read_directory(file, header, &geometry, &blame).await
}

async fn read_directory(
    file: &dyn Storage,
    header: &Header,
    geometry: &Geometry,
    blame: &Blame,
) -> Result<Vec<BitmapEntry>, Error> {
    let Some(bitmaps) = header.extensions.bitmaps else { return Ok(Vec::new()) };
    if !header.autoclear.contains(Autoclear::BITMAPS) {
        return Ok(Vec::new());
    }
    let (offset, len) = (bitmaps.directory_offset.0, bitmaps.directory_size);
    if len > BITMAP_DIRECTORY_BYTES_MAX || offset.checked_add(len).is_none_or(|end| end > file.length()) {
        return Err(blame.corrupt(format!(
            "the bitmap directory ({len} bytes at {offset:#x}) reaches past the end of the file ({:#x})",
            file.length()
        )));
    }
    let bytes = read_bytes(file, offset, len).await.map_err(blame.io("reading the bitmap directory"))?;
    decode_bitmap_directory(&bytes, bitmaps.count, geometry).map_err(|error| match error {
        BitmapError::NoMemory(_) => blame.no_memory("the bitmap directory"),
        error => blame.corrupt(format!("the bitmap directory: {error}")),
    })
}

/// Sets the "in use" flag of every bitmap that records writes: QEMU then knows that they miss writes, shows them as
/// inconsistent and lets the user remove them. Puts the names of those that did not have it into `marked`, also when
/// writing fails: what failed may have landed, and the next try would then find nothing to mark. Not flushed.
pub(crate) async fn mark_in_use(
    file: &dyn Storage,
    header: &Header,
    geometry: &Geometry,
    blame: &Blame,
    marked: &mut Vec<String>,
) -> Result<(), Error> {
    let Some(bitmaps) = header.extensions.bitmaps else { return Ok(()) };
    let mut entries = read_directory(file, header, geometry, blame).await?;
    let stale = |entry: &BitmapEntry| {
        entry.flags.contains(BitmapFlags::AUTO) && !entry.flags.contains(BitmapFlags::IN_USE)
    };
    for entry in entries.iter_mut().filter(|entry| stale(entry)) {
        entry.flags.set(BitmapFlags::IN_USE, true);
        marked.push(entry.name.clone());
    }
    if marked.is_empty() {
        return Ok(());
    }
    let bytes = encode_bitmap_directory(&entries, geometry)
        .map_err(|error| blame.corrupt(format!("the bitmap directory: {error}")))?;
    // In place: nothing but flags differs, so it does not matter where a crash tears the write.
    debug_assert_eq!(bytes.len() as u64, bitmaps.directory_size);
    let written = write_bytes(file, bitmaps.directory_offset.0, &bytes).await;
    written.map_err(blame.io("marking bitmaps as out of date"))
}

/// Names that a message lists; an image may have 65,535 bitmaps.
const NAMES_SHOWN_MAX: usize = 8;

/// What a user has to know of the bitmaps called `names`, which a change put out of date.
pub fn out_of_date(names: &[String]) -> String {
    let shown: Vec<String> = names.iter().take(NAMES_SHOWN_MAX).map(|name| format!("{name:?}")).collect();
    let more = match names.len().saturating_sub(NAMES_SHOWN_MAX) {
        0 => String::new(),
        more => format!(" and {more} more"),
    };
    format!(
        "persistent bitmaps are out of date from this first change on and marked inconsistent: {}{more}; changes made by \
         cowhand are not recorded in bitmaps, so the next backup must be a full one",
        shown.join(", ")
    )
}

/// One bitmap, read as it is asked for: nothing of it is kept but the cluster that was read last.
#[derive(Debug)]
pub struct Bitmap {
    entry: BitmapEntry,
    file: Arc<dyn Storage>,
    geometry: Geometry,
    blame: Blame,
    size: u64,
    latest: Mutex<Option<(u64, Arc<Vec<u8>>)>>,
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
    pub(crate) fn new(entry: BitmapEntry, file: Arc<dyn Storage>, geometry: Geometry, size: u64) -> Self {
        let blame = Blame::new(file.name());
        Self { entry, file, geometry, blame, size, latest: Mutex::new(None) }
    }

    /// Its name.
    pub fn name(&self) -> &str {
        &self.entry.name
    }

    /// Bytes of the disk that one bit stands for.
    pub fn granularity_bytes(&self) -> u64 {
        1 << self.entry.granularity_bits
    }

    /// Whether every write of the disk is to set bits: such a bitmap is out of date once the disk was
    /// written here.
    pub fn is_recording(&self) -> bool {
        self.entry.flags.contains(BitmapFlags::AUTO)
    }

    /// What the bitmap says of `offset`, for at most `len` bytes. Ends at the end of one cluster of
    /// the bitmap at the latest. `offset` lies inside the disk, and `len` is not 0.
    pub async fn status(&self, offset: u64, len: u64) -> Result<Dirtiness, Error> {
        let end = (offset + len).min(self.size);
        let granularity = u32::from(self.entry.granularity_bits);
        let bits_per_cluster = self.geometry.cluster_size() * 8;
        let (first, last) = (offset >> granularity, (end - 1) >> granularity);
        let cluster = first / bits_per_cluster;
        let last = last.min(cluster * bits_per_cluster + bits_per_cluster - 1);
        let bits = self.cluster(cluster).await?;
        let bit = |at: u64| {
            let at = at % bits_per_cluster;
            bits.get((at / 8) as usize).is_some_and(|byte| byte >> (at % 8) & 1 == 1)
        };
        let dirty = bit(first);
        let same = (first..=last).take_while(|&at| bit(at) == dirty).count() as u64;
        Ok(Dirtiness { len: (((first + same) << granularity).min(end)) - offset, dirty })
    }

    /// Cluster `index` of the bitmap's bits.
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

    fn check_in_file(&self, what: &str, at: u64, len: u64) -> Result<(), Error> {
        if is_in_file(&*self.file, self.geometry.cluster_size(), at, len) {
            return Ok(());
        }
        let (name, length) = (self.name(), self.file.length());
        let detail =
            format!("{what} of bitmap {name:?} lies at {at:#x}, past the end of the file ({length:#x})");
        Err(self.blame.corrupt(detail))
    }

    async fn read_cluster(&self, index: u64) -> Result<Vec<u8>, Error> {
        let size = 1 << self.geometry.cluster_bits;
        if index >= u64::from(self.entry.table_entries) {
            return Err(self.blame.corrupt(format!("bitmap {:?} is shorter than the disk", self.name())));
        }
        let place = self.entry.table_offset.0 + index * 8;
        self.check_in_file("the table", place, 8)?;
        let (result, word) = self.file.read(place, IoBuf::uninit(8)).await;
        result.map_err(self.blame.io("reading a bitmap's table"))?;
        let (words, _) = word.as_chunks::<8>();
        let word = words.first().map_or(0, |word| u64::from_be_bytes(*word));
        let entry = BitmapTableEntry::decode(word, &self.geometry)
            .map_err(|error| self.blame.corrupt(format!("bitmap {:?}: {error}", self.name())))?;
        match entry {
            BitmapTableEntry::Zeroes => Ok(vec![0; size]),
            BitmapTableEntry::Ones => Ok(vec![0xff; size]),
            BitmapTableEntry::Data(at) => {
                self.check_in_file("a cluster", at.0, size as u64)?;
                let (result, bits) = self.file.read(at.0, IoBuf::uninit(size)).await;
                result.map_err(self.blame.io("reading a bitmap"))?;
                Ok(bits.to_vec())
            }
        }
    }
}
