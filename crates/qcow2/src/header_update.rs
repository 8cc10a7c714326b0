//! Changing the header of an open image: single fields, each inside one sector, or all of it where that is one sector, so that a crash
//! leaves the old or the new value.

use std::collections::BTreeSet;
use std::ops::DerefMut;

use qcow2_layout::{Autoclear, Compatible, Header, HostOffset, Incompatible};
use storage::{Hints, IoBytes, IoVec};
use sync::atomic::{AtomicBool, Ordering};
use sync::{AsyncMutex, Mutex};

use crate::Error;
use crate::header_sector::{self, NotReplaced};
use crate::medium::Medium;

/// Offsets in the header (specification, "Header").
const REFCOUNT_TABLE_AT: u64 = 48;
/// Size of the disk, then where all tables are: one sector, so they change together.
const SWITCHED: std::ops::Range<usize> = 24..72;
/// Bytes that hold all fields of a header that can be patched.
const PATCHED_BYTES: usize = 104;
const INCOMPATIBLE_AT: u64 = 72;
const COMPATIBLE_AT: u64 = 80;
const AUTOCLEAR_AT: u64 = 88;

/// The header of an open image.
///
/// Law: memory has what the file has, or the image takes no more writes; before the first change of the image the file's says what a
/// reader must know of a change.
#[derive(Debug)]
pub(crate) struct FileHeader {
    /// As it is in the file; held while the file's is changed.
    in_file: AsyncMutex<Header>,
    /// Refcounts are written at the close only. Changes in a pause.
    pub(crate) lazy_refcounts: AtomicBool,
    /// What must be in the header before the first change of the image is there.
    pub(crate) prepared_for_data: AtomicBool,
    /// The same for a change that no guest sees: of the metadata alone.
    pub(crate) prepared_for_metadata: AtomicBool,
    /// Bitmaps that our first change put out of date, by name. Only [`FileHeader::tell_of_bitmaps`] adds to them.
    pub(crate) bitmaps_out_of_date: Mutex<BTreeSet<String>>,
    /// The header says that the image is corrupt, or should.
    pub(crate) corrupt_marked: AtomicBool,
    /// The header was written anew, perhaps without the names of features, which memory has. Only [`FileHeader::rewrite`] sets it.
    rewritten: AtomicBool,
}

impl FileHeader {
    pub(crate) fn new(header: Header, lazy_refcounts: bool) -> Self {
        Self {
            in_file: AsyncMutex::new(header),
            lazy_refcounts: AtomicBool::new(lazy_refcounts),
            prepared_for_data: AtomicBool::new(false),
            prepared_for_metadata: AtomicBool::new(false),
            bitmaps_out_of_date: Mutex::default(),
            corrupt_marked: AtomicBool::new(false),
            rewritten: AtomicBool::new(false),
        }
    }

    /// The header as it is in the file, which no request changes meanwhile.
    pub(crate) async fn lock(&self) -> impl DerefMut<Target = Header> {
        self.in_file.lock().await
    }

    /// Whether refcounts are written at the close only.
    #[inline]
    pub(crate) fn is_lazy(&self) -> bool {
        self.lazy_refcounts.load(Ordering::Relaxed)
    }

    /// [`crate::image::Inner::prepare_header_for_first_change`] of an image without bitmaps that record changes, by a request in flight.
    pub(crate) async fn prepare_header_now(&self, medium: &Medium) -> Result<(), Error> {
        let mut header = self.lock().await;
        if self.prepared_for_data.load(Ordering::Acquire) {
            return Ok(());
        }
        self.prepare(medium, &mut header).await?;
        self.prepared_for_data.store(true, Ordering::Release);
        Ok(())
    }

    /// What must be there before metadata is changed in a way that no guest sees: bitmaps stay true. For a request in flight, or
    /// manages the image.
    pub(crate) async fn prepare_for_metadata(&self, medium: &Medium) -> Result<(), Error> {
        let mut header = self.lock().await;
        match self.prepared_for_metadata.load(Ordering::Acquire) {
            true => Ok(()),
            false => self.prepare(medium, &mut header).await,
        }
    }

    /// Also makes durable what the last user of the image left in the page cache: memory was read from there, and clusters
    /// that are free by those tables may be in use by the older ones on disk.
    async fn prepare(&self, medium: &Medium, header: &mut Header) -> Result<(), Error> {
        if self.is_lazy() && !header.incompatible.contains(Incompatible::DIRTY) {
            write_dirty_bit(medium, header).await?;
        }
        medium.file.flush().await.map_err(medium.blame.io("flushing the header"))?;
        self.prepared_for_metadata.store(true, Ordering::Release);
        Ok(())
    }

    /// The backups that go by these bitmaps miss what is written from now on: the backup's owner must be notified, once.
    pub(crate) fn tell_of_bitmaps(&self, medium: &Medium, mut marked: Vec<String>) {
        let mut reported = self.bitmaps_out_of_date.lock();
        marked.retain(|name| reported.insert(name.clone()));
        if !marked.is_empty() {
            tracing::warn!("{}: {}", medium.blame.name(), crate::tracking::out_of_date(&marked));
        }
    }

    /// Says that the refcounts may be wrong from now on, also where memory has it that the header says so: the write
    /// that cleared the bit may have failed and landed. Durable when this returns.
    pub(crate) async fn set_dirty(&self, medium: &Medium) -> Result<(), Error> {
        let mut header = self.lock().await;
        write_dirty_bit(medium, &mut header).await?;
        medium.file.flush().await.map_err(medium.blame.io("flushing the header"))
    }

    /// Says that a crash from now on may leave clusters that are counted and not used. Not flushed: the program that opens the image after
    /// a crash that lost it does not look for them, and they are leaked.
    pub(crate) async fn mark_reserve(&self, medium: &Medium) -> Result<(), Error> {
        let mut header = self.lock().await;
        if header.compatible.contains(Compatible::RESERVE) || header.version == qcow2_layout::Version::V2 {
            return Ok(());
        }
        let marked = header.compatible | Compatible::RESERVE;
        write_field(medium, COMPATIBLE_AT, &marked.0.to_be_bytes()).await?;
        header.compatible = marked;
        Ok(())
    }

    /// Nothing of the reserve is counted on disk any more: the last thing but one that a clean close does.
    pub(crate) async fn clear_reserve_mark(&self, medium: &Medium) -> Result<(), Error> {
        let mut header = self.lock().await;
        if !header.compatible.contains(Compatible::RESERVE) {
            return Ok(());
        }
        let mut cleared = header.compatible;
        cleared.remove(Compatible::RESERVE);
        write_field(medium, COMPATIBLE_AT, &cleared.0.to_be_bytes()).await?;
        header.compatible = cleared;
        medium.file.flush().await.map_err(medium.blame.io("flushing the header"))
    }

    /// Says that the refcounts are right: the last thing a clean close does with lazy refcounts, and what
    /// turns them off.
    pub(crate) async fn clear_dirty(&self, medium: &Medium) -> Result<(), Error> {
        let mut header = self.lock().await;
        if !header.incompatible.contains(Incompatible::DIRTY) {
            return Ok(());
        }
        let mut incompatible = header.incompatible;
        incompatible.remove(Incompatible::DIRTY);
        write_field(medium, INCOMPATIBLE_AT, &incompatible.0.to_be_bytes()).await?;
        header.incompatible = incompatible;
        medium.file.flush().await.map_err(medium.blame.io("flushing the header"))
    }

    /// Sets the corrupt bit. Durable when this returns.
    pub(crate) async fn mark_corrupt_now(&self, medium: &Medium) -> Result<(), Error> {
        let mut header = self.lock().await;
        if header.version == qcow2_layout::Version::V2 {
            return Ok(());
        }
        header.incompatible.insert(Incompatible::CORRUPT);
        write_field(medium, INCOMPATIBLE_AT, &header.incompatible.0.to_be_bytes()).await?;
        medium.file.flush().await.map_err(medium.blame.io("flushing the header"))
    }

    /// Clears the autoclear bits of features that we do not know and so cannot keep up to date.
    pub(crate) async fn clear_unknown_autoclear(&self, medium: &Medium) -> Result<(), Error> {
        let mut header = self.lock().await;
        let unknown = header.autoclear.unknown();
        if unknown.is_empty() {
            return Ok(());
        }
        let kept = Autoclear(header.autoclear.0 & !unknown.0);
        write_field(medium, AUTOCLEAR_AT, &kept.0.to_be_bytes()).await?;
        header.autoclear = kept;
        medium.file.flush().await.map_err(medium.blame.io("flushing the header"))
    }

    /// Lets the header lead to a refcount table that is complete on disk. Durable when this
    /// returns.
    pub(crate) async fn point_header_at_refcount_table(
        &self,
        medium: &Medium,
        at: HostOffset,
        clusters: u64,
    ) -> Result<(), Error> {
        let mut header = self.lock().await;
        // A table has at most 8 MiB.
        let clusters = clusters as u32;
        let mut field = [0; 12];
        field[..8].copy_from_slice(&at.0.to_be_bytes());
        field[8..].copy_from_slice(&clusters.to_be_bytes());
        write_field(medium, REFCOUNT_TABLE_AT, &field).await?;
        header.refcount_table_offset = at;
        header.refcount_table_clusters = clusters;
        medium.file.flush().await.map_err(medium.blame.io("flushing the header"))
    }

    /// What [`FileHeader::rewrite`] left out comes back, when the image is closed.
    pub(crate) async fn put_names_back(&self, medium: &Medium) -> Result<(), Error> {
        let header = self.lock().await;
        match self.rewritten.load(Ordering::Relaxed) {
            true => header_sector::put_names_back(&*medium.file, &medium.blame, &header).await,
            false => Ok(()),
        }
    }

    /// Changes size and places of tables all at once. Durable when this returns; after a failure the
    /// old values are, or the image takes no more changes, because the file may have either.
    pub(crate) async fn switch_header(
        &self,
        medium: &Medium,
        change: impl FnOnce(&mut Header),
    ) -> Result<(), Error> {
        let mut header = self.lock().await;
        let mut new = header.clone();
        change(&mut new);
        match write_switched(medium, &new).await {
            Ok(()) => {
                *header = new;
                Ok(())
            }
            Err(error) => {
                if let Err(again) = write_switched(medium, &header).await {
                    tracing::error!("the header cannot be put back, no more writes: {again}");
                    medium.health.set_stopped();
                }
                Err(error)
            }
        }
    }

    /// Changes anything in the header, by one write of one sector where it fits in there ([`header_sector`]). Durable when this
    /// returns; after a failure the old header is, or the image takes no more changes, because the file may have either.
    pub(crate) async fn rewrite(
        &self,
        medium: &Medium,
        change: impl FnOnce(&mut Header),
    ) -> Result<(), Error> {
        let mut header = self.lock().await;
        let mut new = header.clone();
        change(&mut new);
        header_sector::name_features(&mut new);
        match header_sector::replace(&*medium.file, &medium.blame, &header, &new).await {
            Ok(()) => {
                self.rewritten.store(true, Ordering::Relaxed);
                *header = new;
                Ok(())
            }
            Err(NotReplaced { error, unknown }) => {
                if unknown {
                    tracing::error!("the header cannot be put back, no more writes");
                    medium.health.set_stopped();
                }
                Err(error)
            }
        }
    }
}

/// Whether the header says that the image was not closed.
pub fn is_dirty(header: &Header) -> bool {
    header.incompatible.contains(Incompatible::DIRTY)
}

async fn write_dirty_bit(medium: &Medium, header: &mut Header) -> Result<(), Error> {
    let mut incompatible = header.incompatible;
    incompatible.insert(Incompatible::DIRTY);
    write_field(medium, INCOMPATIBLE_AT, &incompatible.0.to_be_bytes()).await?;
    header.incompatible = incompatible;
    Ok(())
}

async fn write_switched(medium: &Medium, header: &Header) -> Result<(), Error> {
    let mut fixed = [0; PATCHED_BYTES];
    header.patch(&mut fixed).map_err(|error| medium.blame.invalid(error.to_string()))?;
    let fields = fixed.get(SWITCHED).unwrap_or_default();
    write_field(medium, SWITCHED.start as u64, fields).await?;
    medium.file.flush().await.map_err(medium.blame.io("flushing the header"))
}

async fn write_field(medium: &Medium, at: u64, bytes: &[u8]) -> Result<(), Error> {
    let data = IoVec::from(IoBytes::copy_from(bytes));
    medium.file.write(at, data, Hints::NONE).await.map_err(medium.blame.io("writing the header"))
}
