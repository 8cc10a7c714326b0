//! Reading what the map has in the file.

use map_cache::{Load, SliceKey};
use qcow2_layout::{HostOffset, L2Entry};
use storage::{Hints, IoBuf, Step};

use super::{Map, bad_entry};
use crate::Error;
use crate::deliberate::{self, Bug};
use crate::health::Contradiction;
use crate::medium::Medium;
use crate::table_io::is_in_file;

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

    pub(crate) async fn read_slice(&self, medium: &Medium, key: SliceKey) -> Result<Vec<u64>, Error> {
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
pub(super) fn words(bytes: &[u8]) -> impl Iterator<Item = u64> {
    bytes.as_chunks::<8>().0.iter().map(|word| u64::from_be_bytes(*word))
}
