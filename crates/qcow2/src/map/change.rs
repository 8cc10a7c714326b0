//! Changing the map in memory: entries of L2 tables that may be written.

use map_cache::{Load, Modify, Outcome, SliceKey};
use qcow2_layout::{Cluster, L2Entry};

use super::{Map, bad_entry};
use crate::Error;
use crate::health::Contradiction;
use crate::medium::Medium;
use crate::waiting::Needs;

impl Map {
    /// Replaces the entries of consecutive clusters from `guest` on, all in one L2 table that may be written. In memory only;
    /// never half of them, unless it fails. They reach the file when what they need is there.
    pub(crate) async fn put_entries(
        &self,
        medium: &Medium,
        guest: u64,
        entries: &[L2Entry],
        needs: Needs,
    ) -> Result<(), Error> {
        let mut done = 0;
        while let Some(rest) = entries.get(done..).filter(|rest| !rest.is_empty()) {
            let at = guest + ((done as u64) << medium.geometry.cluster_bits);
            let in_slice = (self.shape.slice_end(at) - at).div_ceil(medium.geometry.cluster_size());
            let part = &rest[..rest.len().min(in_slice as usize)];
            self.set_in_slice(medium, self.shape.key(at), self.shape.index(at), part, needs).await?;
            done += part.len();
        }
        Ok(())
    }

    async fn set_in_slice(
        &self,
        medium: &Medium,
        key: SliceKey,
        first: usize,
        entries: &[L2Entry],
        needs: Needs,
    ) -> Result<(), Error> {
        self.modify_slice(medium, key, needs, |slice| {
            (first..).zip(entries).for_each(|(index, entry)| self.put(medium, slice, index, entry));
        })
        .await
    }

    /// Makes `entry` the one at `index` of a slice.
    fn put(&self, medium: &Medium, slice: &mut Modify<'_>, index: usize, entry: &L2Entry) {
        let width = self.shape.entry_words();
        for (at, word) in entry.encode(&medium.geometry).into_iter().take(width).enumerate() {
            slice.set_word(index * width + at, word);
        }
    }

    /// Says that the subclusters of `mask` of the cluster at `guest` are in use at the cluster's place, which
    /// it has. Others may do the same at the same time: each changes no bits but its own.
    pub(crate) async fn set_in_use(
        &self,
        medium: &Medium,
        guest: u64,
        mask: u32,
        needs: Needs,
    ) -> Result<(), Error> {
        let width = self.shape.entry_words();
        let index = self.shape.index(guest);
        let mut decoded = Ok(());
        self.modify_slice(medium, self.shape.key(guest), needs, |slice| {
            let word = |at: usize| if at < width { slice.word(index * width + at) } else { 0 };
            decoded = L2Entry::decode_at([word(0), word(1)], guest, &medium.geometry).map(|entry| {
                let L2Entry::Standard(old) = entry else { return };
                debug_assert!(old.host.is_some(), "the place of an owned cluster went away");
                let new = Cluster { alloc: old.alloc | mask, zero: old.zero & !mask, ..old };
                self.put(medium, slice, index, &L2Entry::Standard(new));
            });
        })
        .await?;
        medium.noticing_corruption(
            Contradiction::MapEntry,
            decoded.map_err(|error| bad_entry(&medium.blame, guest, &error)),
        )
    }

    /// Changes a slice, which is loaded if it is not there. It reaches the file when what it needs is there.
    async fn modify_slice(
        &self,
        medium: &Medium,
        key: SliceKey,
        needs: Needs,
        mut modify: impl FnMut(&mut Modify<'_>),
    ) -> Result<(), Error> {
        if needs == Needs::Barrier {
            self.waiting.slice(key);
        }
        loop {
            match self.cache.modify(key, &mut modify) {
                Outcome::Modified => return Ok(()),
                Outcome::Gone => self.load(medium, key).await?,
            }
        }
    }

    /// Brings the slice that maps `guest` into memory without reading it: its table is about to be made,
    /// with nothing allocated. No other request can be loading it yet.
    pub(crate) fn keep_empty_slice(&self, guest: u64) {
        let key = self.shape.key(guest);
        if let Load::Lead(ticket) = self.cache.load(key) {
            self.cache.insert_loaded(ticket, std::iter::repeat_n(0, self.shape.slice_bytes() / 8));
        }
    }
}
