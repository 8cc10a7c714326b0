//! Guest range -> extent of one layer, from slices in memory.

mod change;
mod prefetch;

use std::sync::Arc;

use block::Blame;
use map_cache::{Budget, Load, MapCache, Slice, SliceKey};
use qcow2_layout::{CompressedCluster, EntryError, Geometry, HostOffset, L1Entry, L2Entry, Subcluster};
use storage::{Hints, IoBuf, Step};
use sync::RwLock;

use crate::Error;
use crate::cache_sizes::CacheSizes;
use crate::deliberate::{self, Bug};
use crate::guest_range::GuestRange;
use crate::health::Contradiction;
use crate::in_flight::InFlight;
use crate::l1::L1Table;
use crate::medium::Medium;
use crate::options::Prefetch;
use crate::shape::SliceShape;
use crate::table_io::is_in_file;
use crate::waiting::Waiting;

/// What one layer knows of a guest range.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Extent {
    /// Bytes, never 0.
    pub(crate) len: u64,
    pub(crate) kind: Kind,
}

/// What the map says of a guest range.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// At `host` of the data file; writable there if nothing else refers to it.
    Data { host: HostOffset, in_place: bool },
    /// Reads as zeroes; space may be reserved at `host`.
    Zero { host: Option<HostOffset> },
    /// The layer below knows; space may be reserved at `host`.
    Unallocated { host: Option<HostOffset> },
    /// Part of a compressed cluster, from `skip` bytes into its content on.
    Compressed { cluster: CompressedCluster, skip: u64 },
}

/// An extent, or the slice that must be loaded first.
#[derive(Debug)]
pub(crate) enum Mapped {
    Extent(Extent),
    Missing(SliceKey),
}

impl Extent {
    /// Appends `next` if it continues this extent.
    fn join(&mut self, next: Extent) -> bool {
        let follows =
            |here: Option<HostOffset>, there: Option<HostOffset>| here.map(|host| host + self.len) == there;
        let joins = match (self.kind, next.kind) {
            (Kind::Data { host, in_place }, Kind::Data { host: there, in_place: also }) => {
                host + self.len == there && in_place == also
            }
            (Kind::Zero { host }, Kind::Zero { host: there })
            | (Kind::Unallocated { host }, Kind::Unallocated { host: there }) => follows(host, there),
            (Kind::Compressed { .. }, _) | (_, Kind::Compressed { .. }) => false,
            (Kind::Data { .. } | Kind::Zero { .. } | Kind::Unallocated { .. }, _) => false,
        };
        if joins {
            self.len += next.len;
        }
        joins
    }
}

/// The guest's view of one layer: L1 as a whole, slices of its L2 tables as they are needed.
///
/// Law: what memory has is what the file has or is about to have; a changed slice or L1 sector is dirty until a commit has written
/// it, and waits for a barrier if what it leads to may not be on disk yet.
#[derive(Debug)]
pub(crate) struct Map {
    pub(crate) l1: L1Table,
    pub(crate) cache: MapCache<Error>,
    pub(crate) shape: SliceShape,
    pub(crate) cache_sizes: RwLock<CacheSizes>,
    /// What is read ahead of requests.
    pub(crate) prefetch: Prefetch,
    /// What this image's caches share with those of others.
    pub(crate) budget: Arc<Budget>,
    pub(crate) waiting: Waiting,
    /// L2 tables that are being made, by L1 index.
    pub(crate) tables: InFlight,
}

impl Map {
    /// What this layer has at the start of `range`, as far as one slice tells. No I/O, no lock on a hit. The range is not empty and
    /// lies inside the disk.
    #[inline]
    pub(crate) fn try_extent(&self, medium: &Medium, range: GuestRange) -> Result<Mapped, Error> {
        let key = self.shape.key(range.start);
        let reported = range.before(self.shape.slice_end(range.start));
        if let Some(extent) = self.cache.with(key, |slice| self.longest(medium, slice, reported)) {
            return medium.noticing_corruption(Contradiction::MapEntry, extent).map(Mapped::Extent);
        }
        match self.l1_entry(medium, range.start)?.table {
            Some(_) => Ok(Mapped::Missing(key)),
            None => Ok(Mapped::Extent(self.without_table(&medium.geometry, range))),
        }
    }

    /// As [`Map::try_extent`], loading what is missing.
    pub(crate) async fn extent(&self, medium: &Medium, range: GuestRange) -> Result<Extent, Error> {
        loop {
            match self.try_extent(medium, range)? {
                Mapped::Extent(extent) => return Ok(extent),
                Mapped::Missing(key) => self.load(medium, key).await?,
            }
        }
    }

    /// As [`Map::extent`], with the entry of the cluster at its start: one look-up for both.
    pub(crate) async fn extent_and_entry(
        &self,
        medium: &Medium,
        range: GuestRange,
    ) -> Result<(Extent, L2Entry), Error> {
        let guest = range.start;
        let key = self.shape.key(guest);
        let reported = range.before(self.shape.slice_end(guest));
        loop {
            let found = self.cache.with(key, |slice| {
                let entry = self.decode(medium, slice, guest);
                let entry = entry.map_err(|error| bad_entry(&medium.blame, guest, &error))?;
                Ok((self.longest(medium, slice, reported)?, entry))
            });
            if let Some(found) = found {
                return medium.noticing_corruption(Contradiction::MapEntry, found);
            }
            if self.l1_entry(medium, guest)?.table.is_none() {
                return Ok((self.without_table(&medium.geometry, range), L2Entry::UNALLOCATED));
            }
            self.load(medium, key).await?;
        }
    }

    /// The entry of the cluster at `guest`.
    pub(crate) async fn entry(&self, medium: &Medium, guest: u64) -> Result<L2Entry, Error> {
        let key = self.shape.key(guest);
        loop {
            if let Some(entry) = self.cache.with(key, |slice| self.decode(medium, slice, guest)) {
                let entry = entry.map_err(|error| bad_entry(&medium.blame, guest, &error));
                return medium.noticing_corruption(Contradiction::MapEntry, entry);
            }
            if self.l1_entry(medium, guest)?.table.is_none() {
                return Ok(L2Entry::UNALLOCATED);
            }
            self.load(medium, key).await?;
        }
    }

    /// The L1 entry that leads to what maps `guest`.
    #[inline]
    pub(crate) fn l1_entry(&self, medium: &Medium, guest: u64) -> Result<L1Entry, Error> {
        let entry = self.l1.get(medium.geometry.l1_index(guest), &medium.geometry);
        medium.noticing_corruption(
            Contradiction::MapEntry,
            entry.map_err(|error| bad_entry(&medium.blame, guest, &error)),
        )
    }

    #[inline]
    fn decode(&self, medium: &Medium, slice: &Slice, guest: u64) -> Result<L2Entry, EntryError> {
        let index = self.shape.index(guest);
        let words = if self.shape.entry_words() == 2 {
            slice.entry::<2>(index)
        } else {
            let [word] = slice.entry::<1>(index);
            [word, 0]
        };
        L2Entry::decode_at(words, guest, &medium.geometry)
    }

    /// The longest extent of one kind at the start of `range`.
    #[inline]
    fn longest(&self, medium: &Medium, slice: &Slice, range: GuestRange) -> Result<Extent, Error> {
        let mut extent = self.piece(medium, slice, range)?;
        while extent.len < range.len() {
            let next = self.piece(medium, slice, range.behind(extent.len))?;
            if !extent.join(next) {
                break;
            }
        }
        Ok(extent)
    }

    /// The part of one cluster, from the start of `range` on, that is in one state.
    #[inline]
    fn piece(&self, medium: &Medium, slice: &Slice, range: GuestRange) -> Result<Extent, Error> {
        let guest = range.start;
        let entry =
            self.decode(medium, slice, guest).map_err(|error| bad_entry(&medium.blame, guest, &error))?;
        let in_cluster = medium.geometry.in_cluster(guest);
        let to_end = (medium.geometry.cluster_size() - in_cluster).min(range.len());
        let cluster = match entry {
            L2Entry::Compressed(cluster) => {
                return Ok(Extent { len: to_end, kind: Kind::Compressed { cluster, skip: in_cluster } });
            }
            L2Entry::Standard(cluster) => cluster,
        };
        // At most 31: one of 32 subclusters.
        let subcluster = (in_cluster >> medium.geometry.subcluster_bits()) as u32;
        let (state, run) = cluster.run(subcluster, &medium.geometry);
        let run_end = u64::from(subcluster + run) << medium.geometry.subcluster_bits();
        let len = (run_end - in_cluster).min(to_end);
        let host = cluster.host.map(|host| host + in_cluster);
        let kind = match (state, host) {
            (Subcluster::Normal, Some(host)) => {
                Kind::Data { host, in_place: medium.in_place(cluster.copied) }
            }
            // A data file's first cluster: a standard zero entry cannot tell "at 0" from "nowhere".
            (Subcluster::ZeroAlloc, _)
                if cluster.host == Some(HostOffset(0)) && !medium.geometry.extended_l2 =>
            {
                Kind::Zero { host: None }
            }
            (Subcluster::ZeroPlain | Subcluster::ZeroAlloc, host) => Kind::Zero { host },
            (Subcluster::UnallocatedPlain | Subcluster::UnallocatedAlloc | Subcluster::Normal, host) => {
                Kind::Unallocated { host }
            }
        };
        Ok(Extent { len, kind })
    }

    /// Where there is no L2 table all of its range is unallocated: a disk of 2 PiB has 4 Mi tables at most, and most chains of such disks have none.
    fn without_table(&self, geometry: &Geometry, range: GuestRange) -> Extent {
        let reported = self.empty_tables(geometry, range, 1);
        Extent { len: reported, kind: Kind::Unallocated { host: None } }
    }

    /// Bytes at the start of `range` for which there is no L2 table; of the first `known` tables it is known already.
    pub(crate) fn empty_tables(&self, geometry: &Geometry, range: GuestRange, known: u64) -> u64 {
        let (first, last) = (geometry.l1_index(range.start), geometry.l1_index(range.end - 1));
        let end = self.l1.empty_until(first + known, last + 1);
        range.before(end.saturating_mul(geometry.bytes_per_l2_table()).max(range.start)).len()
    }
}

/// The map entry of `guest` makes no sense.
fn bad_entry(blame: &Blame, guest: u64, error: &EntryError) -> Error {
    blame.corrupt(format!("the map entry of guest offset {guest:#x}: {error}"))
}

impl Map {
    /// Brings the slice `key` into memory. Requests for one slice share one read.
    pub(crate) async fn load(&self, medium: &Medium, key: SliceKey) -> Result<(), Error> {
        match self.cache.load(key) {
            Load::Present => Ok(()),
            Load::Wait(_) if deliberate::has(Bug::SingleFlightBroken) => {
                let words = self.read_slice(medium, key).await?;
                self.cache.insert(key, words.into_iter());
                Ok(())
            }
            Load::Wait(waiting) => waiting.landed().await,
            Load::Lead(ticket) => self.cache.land(ticket, self.read_with_neighbours(medium, key).await),
        }
    }

    async fn read_slice(&self, medium: &Medium, key: SliceKey) -> Result<Vec<u64>, Error> {
        let offset = self.slice_offset(medium, key)?;
        let bytes = self.shape.slice_bytes();
        if !is_in_file(&*medium.file, medium.geometry.cluster_size(), offset, bytes as u64) {
            let detail = format!(
                "the L2 table of L1 entry {} lies at {offset:#x}, past the end of the file ({:#x})",
                key.l1_index,
                medium.file.length()
            );
            return medium
                .noticing_corruption(Contradiction::TablePastEnd, Err(medium.blame.corrupt(detail)));
        }
        medium.about_to(Step::L2Load);
        let (result, buf) = medium.file.read(offset, IoBuf::uninit(bytes), Hints::NONE).await;
        result.map_err(medium.blame.io("reading an L2 table"))?;
        Ok(words(&buf).collect())
    }

    /// Where slice `key` lies in the file.
    pub(crate) fn slice_offset(&self, medium: &Medium, key: SliceKey) -> Result<u64, Error> {
        let guest = self.shape.guest(key, 0);
        let entry = self.l1.get(u64::from(key.l1_index), &medium.geometry);
        let entry = entry.map_err(|error| bad_entry(&medium.blame, guest, &error))?;
        match entry.table {
            Some(table) => Ok(table.0 + u64::from(key.slice) * self.shape.slice_bytes() as u64),
            None => Err(medium.blame.corrupt(format!("L1 entry {} lost its L2 table", key.l1_index))),
        }
    }

    /// All entries of the L2 table at `at`, as the file has them.
    pub(crate) async fn read_table(&self, medium: &Medium, at: HostOffset) -> Result<Vec<L2Entry>, Error> {
        let bytes = self.read_table_bytes(medium, at).await?;
        let width = (medium.geometry.l2_entry_bytes() / 8) as usize;
        let (words, _) = bytes.as_chunks::<8>();
        let decoded = words.chunks(width).map(|entry| {
            let word = |at: usize| entry.get(at).map_or(0, |word| u64::from_be_bytes(*word));
            L2Entry::decode([word(0), word(1)], &medium.geometry)
        });
        let entries: Result<Vec<_>, _> = decoded.collect();
        let entries = entries.map_err(|error| medium.blame.corrupt(format!("the L2 table at {at}: {error}")));
        medium.noticing_corruption(Contradiction::MapEntry, entries)
    }

    /// The L2 table at `at` as it lies in the file.
    pub(crate) async fn read_table_bytes(&self, medium: &Medium, at: HostOffset) -> Result<IoBuf, Error> {
        let size = medium.geometry.cluster_size();
        if !is_in_file(&*medium.file, size, at.0, size) {
            let detail =
                format!("an L2 table lies at {at}, past the end of the file ({:#x})", medium.file.length());
            return medium
                .noticing_corruption(Contradiction::TablePastEnd, Err(medium.blame.corrupt(detail)));
        }
        medium.about_to(Step::L2AllocCowRead);
        let (result, bytes) =
            medium.file.read(at.0, IoBuf::uninit(1 << medium.geometry.cluster_bits), Hints::NONE).await;
        result.map_err(medium.blame.io("reading an L2 table"))?;
        Ok(bytes)
    }
}

/// Table entries as words in host byte order.
fn words(bytes: &[u8]) -> impl Iterator<Item = u64> {
    bytes.as_chunks::<8>().0.iter().map(|word| u64::from_be_bytes(*word))
}
