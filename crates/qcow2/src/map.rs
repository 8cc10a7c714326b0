//! Guest range -> extent of one layer, from slices in memory.

use std::sync::Arc;

use map_cache::{Budget, Load, MapCache, Slice, SliceKey};
use qcow2_layout::{CompressedCluster, HostOffset, L2Entry, Subcluster};
use storage::IoBuf;
use sync::RwLock;

use crate::Error;
use crate::cache_sizes::CacheSizes;
use crate::deliberate::{self, Bug};
use crate::entries::bad_entry;
use crate::image::Inner;
use crate::in_flight::InFlight;
use crate::l1::L1Table;
use crate::prefetch::words;
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
    Data { host: u64, in_place: bool },
    /// Reads as zeroes; space may be reserved at `host`.
    Zero { host: Option<u64> },
    /// The layer below knows; space may be reserved at `host`.
    Unallocated { host: Option<u64> },
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
        let follows = |here: Option<u64>, there: Option<u64>| here.map(|host| host + self.len) == there;
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
/// it, and waits for a barrier if what it leads to may not be on the medium yet.
#[derive(Debug)]
pub(crate) struct Map {
    pub(crate) l1: L1Table,
    pub(crate) cache: MapCache<Error>,
    pub(crate) shape: SliceShape,
    pub(crate) cache_sizes: RwLock<CacheSizes>,
    /// What this image's caches share with those of others.
    pub(crate) budget: Arc<Budget>,
    pub(crate) waiting: Waiting,
    /// L2 tables that are being made, by L1 index.
    pub(crate) tables: InFlight,
}

impl Inner {
    /// What this layer has at `guest`, for at most `len` bytes, as far as one slice tells. No I/O,
    /// no lock on a hit. `len` is not 0 and the range lies inside the disk.
    #[inline]
    pub(crate) fn try_map(&self, guest: u64, len: u64) -> Result<Mapped, Error> {
        let key = self.map.shape.key(guest);
        let end = (guest + len).min(self.map.shape.slice_end(guest));
        if let Some(extent) = self.map.cache.with(key, |slice| self.extent(slice, guest, end)) {
            return self.medium.noticing_corruption(extent).map(Mapped::Extent);
        }
        let entry = self.map.l1.get(u64::from(key.l1_index), &self.medium.geometry);
        let entry = self
            .medium
            .noticing_corruption(entry.map_err(|error| bad_entry(&self.medium.blame, guest, &error)))?;
        match entry.table {
            Some(_) => Ok(Mapped::Missing(key)),
            None => {
                // A whole table is missing: all of its range is unallocated.
                let table = self.medium.geometry.bytes_per_l2_table();
                let end = (guest + len).min((guest / table + 1).saturating_mul(table));
                Ok(Mapped::Extent(Extent { len: end - guest, kind: Kind::Unallocated { host: None } }))
            }
        }
    }

    /// As [`Inner::try_map`], loading what is missing.
    pub(crate) async fn map(&self, guest: u64, len: u64) -> Result<Extent, Error> {
        loop {
            match self.try_map(guest, len)? {
                Mapped::Extent(extent) => return Ok(extent),
                Mapped::Missing(key) => self.load(key).await?,
            }
        }
    }

    /// The entry of the cluster at `guest`.
    pub(crate) async fn entry(&self, guest: u64) -> Result<L2Entry, Error> {
        let key = self.map.shape.key(guest);
        loop {
            if let Some(entry) = self.map.cache.with(key, |slice| self.decode(slice, guest)) {
                let entry = entry.map_err(|error| bad_entry(&self.medium.blame, guest, &error));
                return self.medium.noticing_corruption(entry);
            }
            let l1_entry = self.map.l1.get(u64::from(key.l1_index), &self.medium.geometry);
            let l1_entry = self.medium.noticing_corruption(
                l1_entry.map_err(|error| bad_entry(&self.medium.blame, guest, &error)),
            )?;
            if l1_entry.table.is_none() {
                return Ok(L2Entry::UNALLOCATED);
            }
            self.load(key).await?;
        }
    }

    #[inline]
    fn decode(&self, slice: &Slice, guest: u64) -> Result<L2Entry, qcow2_layout::EntryError> {
        let index = self.map.shape.index(guest);
        let words = if self.map.shape.entry_words() == 2 {
            slice.entry::<2>(index)
        } else {
            let [word] = slice.entry::<1>(index);
            [word, 0]
        };
        L2Entry::decode_at(words, guest, &self.medium.geometry)
    }

    /// The longest extent of one kind from `guest` to at most `end`.
    #[inline]
    fn extent(&self, slice: &Slice, guest: u64, end: u64) -> Result<Extent, Error> {
        let mut extent = self.piece(slice, guest, end)?;
        while guest + extent.len < end {
            let next = self.piece(slice, guest + extent.len, end)?;
            if !extent.join(next) {
                break;
            }
        }
        Ok(extent)
    }

    /// The part of one cluster, from `guest` on, that is in one state.
    #[inline]
    fn piece(&self, slice: &Slice, guest: u64, end: u64) -> Result<Extent, Error> {
        let entry =
            self.decode(slice, guest).map_err(|error| bad_entry(&self.medium.blame, guest, &error))?;
        let in_cluster = self.medium.geometry.in_cluster(guest);
        let to_end = (self.medium.geometry.cluster_size() - in_cluster).min(end - guest);
        let cluster = match entry {
            L2Entry::Compressed(cluster) => {
                return Ok(Extent { len: to_end, kind: Kind::Compressed { cluster, skip: in_cluster } });
            }
            L2Entry::Standard(cluster) => cluster,
        };
        // At most 31: one of 32 subclusters.
        let subcluster = (in_cluster >> self.medium.geometry.subcluster_bits()) as u32;
        let (state, run) = cluster.run(subcluster, &self.medium.geometry);
        let run_end = u64::from(subcluster + run) << self.medium.geometry.subcluster_bits();
        let len = (run_end - in_cluster).min(to_end);
        let host = cluster.host.map(|host| host.0 + in_cluster);
        let kind = match (state, host) {
            (Subcluster::Normal, Some(host)) => {
                Kind::Data { host, in_place: self.medium.in_place(cluster.copied) }
            }
            // A data file's first cluster: a standard zero entry cannot tell "at 0" from "nowhere".
            (Subcluster::ZeroAlloc, _)
                if cluster.host == Some(HostOffset(0)) && !self.medium.geometry.extended_l2 =>
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

    /// Brings the slice `key` into memory. Requests for one slice share one read.
    pub(crate) async fn load(&self, key: SliceKey) -> Result<(), Error> {
        match self.map.cache.load(key) {
            Load::Present => Ok(()),
            Load::Wait(_) if deliberate::has(Bug::SingleFlightBroken) => {
                let words = self.read_slice(key).await?;
                self.map.cache.insert(key, words.into_iter());
                Ok(())
            }
            Load::Wait(waiting) => waiting.landed().await,
            Load::Lead(ticket) => self.map.cache.land(ticket, self.read_with_neighbours(key).await),
        }
    }

    pub(crate) async fn read_slice(&self, key: SliceKey) -> Result<Vec<u64>, Error> {
        let offset = self.slice_offset(key)?;
        let bytes = self.map.shape.slice_bytes();
        if !is_in_file(&*self.medium.file, self.medium.geometry.cluster_size(), offset, bytes as u64) {
            let detail = format!(
                "the L2 table of L1 entry {} lies at {offset:#x}, past the end of the file ({:#x})",
                key.l1_index,
                self.medium.file.length()
            );
            return self.medium.noticing_corruption(Err(self.medium.blame.corrupt(detail)));
        }
        let (result, buf) = self.medium.file.read(offset, IoBuf::uninit(bytes)).await;
        result.map_err(self.medium.blame.io("reading an L2 table"))?;
        Ok(words(&buf).collect())
    }

    /// Where slice `key` lies in the file.
    pub(crate) fn slice_offset(&self, key: SliceKey) -> Result<u64, Error> {
        let guest = self.map.shape.guest(key, 0);
        let entry = self.map.l1.get(u64::from(key.l1_index), &self.medium.geometry);
        let entry = entry.map_err(|error| bad_entry(&self.medium.blame, guest, &error))?;
        match entry.table {
            Some(table) => Ok(table.0 + u64::from(key.slice) * self.map.shape.slice_bytes() as u64),
            None => Err(self.medium.blame.corrupt(format!("L1 entry {} lost its L2 table", key.l1_index))),
        }
    }
}
