//! What an L1 table leads to, counted.

use std::ops::Range;
use std::sync::Arc;

use qcow2_layout::{HostOffset, L1Entry, L2Entry, SnapshotEntry};

use crate::free::Free;
use crate::health::Contradiction;
use crate::image::Inner;
use crate::table_io::read_words;
use crate::{Error, lists};

/// Consecutive clusters with one reference each.
struct Runs {
    runs: Vec<(u64, u64)>,
}

impl Runs {
    /// One more reference to each of `clusters`.
    fn add(&mut self, clusters: Range<u64>) {
        let (start, len) = (clusters.start, clusters.end - clusters.start);
        match self.runs.last_mut() {
            Some((last, its_len)) if *last + *its_len == start => *its_len += len,
            _ => self.runs.push((start, len)),
        }
    }
}

impl Inner {
    /// The clusters that the L2 table at `at` leads to, and itself. As long as one table.
    async fn references_of_table(&self, at: HostOffset) -> Result<Vec<(u64, u64)>, Error> {
        let bits = self.medium.geometry.cluster_bits;
        let mut runs = Runs { runs: vec![(at.0 >> bits, 1)] };
        for entry in self.map.read_table(&self.medium, at).await? {
            match entry {
                L2Entry::Standard(cluster) => {
                    cluster.host.into_iter().for_each(|host| runs.add(host.0 >> bits..(host.0 >> bits) + 1));
                }
                L2Entry::Compressed(cluster) => {
                    let (first, last) = (cluster.host.0 >> bits, (cluster.host.0 + cluster.len - 1) >> bits);
                    runs.add(first..last + 1);
                }
            }
        }
        Ok(runs.runs)
    }

    /// The entry in the word of an L1 table.
    pub(super) fn l1_entry_of(&self, word: u64) -> Result<L1Entry, Error> {
        let entry = L1Entry::decode(word, &self.medium.geometry);
        self.medium.noticing_corruption(
            Contradiction::MapEntry,
            entry.map_err(|error| self.medium.blame.corrupt(format!("an L1 table: {error}"))),
        )
    }

    /// One reference more for everything that these L1 entries lead to. In memory.
    pub(super) async fn raise_references(self: &Arc<Self>, words: &[u64]) -> Result<(), Error> {
        for &word in words {
            let Some(table) = self.l1_entry_of(word)?.table else { continue };
            for (start, len) in self.references_of_table(table).await? {
                let raised = self.space.refcounts.raise(start..start + len).await;
                self.medium.noticing_corruption(Contradiction::Refcount, raised)?;
            }
        }
        Ok(())
    }

    /// One reference less for everything that these L1 entries lead to, in memory. What would have none
    /// left keeps its last one and goes to `freed`.
    pub(super) async fn lower_references(
        self: &Arc<Self>,
        words: &[u64],
        freed: &mut Vec<Free>,
    ) -> Result<(), Error> {
        for &word in words {
            let Some(table) = self.l1_entry_of(word)?.table else { continue };
            for (start, len) in self.references_of_table(table).await? {
                self.lower_or_free(start..start + len, freed).await?;
            }
        }
        Ok(())
    }

    /// One reference less for each of `clusters`, as [`Inner::lower_references`].
    pub(super) async fn lower_or_free(
        &self,
        clusters: Range<u64>,
        freed: &mut Vec<Free>,
    ) -> Result<(), Error> {
        let punch = self.options.pass_discard_snapshot;
        let Range { start: mut at, end } = clusters;
        while at < end {
            let alike = self.space.refcounts.alike(at..end).await;
            let (len, shared) = self.medium.noticing_corruption(Contradiction::Refcount, alike)?;
            match freed.last_mut() {
                _ if shared => self.lower_shared(at..at + len).await?,
                Some(last) if last.start + last.len == at && last.punch == punch => last.len += len,
                _ => lists::push(freed, Free { start: at, len, punch })
                    .map_err(|_| self.medium.blame.no_memory("the list of freed clusters"))?,
            }
            at += len;
        }
        Ok(())
    }

    async fn lower_shared(&self, clusters: Range<u64>) -> Result<(), Error> {
        let Range { start: mut at, end } = clusters;
        while at < end {
            at += self.space.refcounts.lower_run(at..end).await?.len;
        }
        Ok(())
    }

    /// The L1 table of a snapshot, in host byte order.
    pub(super) async fn l1_of_snapshot(&self, snapshot: &SnapshotEntry) -> Result<Vec<u64>, Error> {
        snapshot
            .check(&self.medium.geometry)
            .map_err(|error| self.medium.blame.corrupt(error.to_string()))?;
        let (offset, bytes) = (snapshot.l1_table_offset.0, u64::from(snapshot.l1_size) * 8);
        read_words(&*self.medium.file, &self.medium.blame, "the L1 table of a snapshot", offset, bytes).await
    }
}
