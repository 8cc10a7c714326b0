//! Clusters that hold nothing but zeroes: their entries say so afterwards, and their places are free.

use std::collections::BTreeMap;

use futures_util::stream::{self, StreamExt, TryStreamExt};
use qcow2_layout::{Cluster, Geometry, L2Entry, Version};
use storage::{Hints, IoBuf, Storage};

use super::layout::MOVES_MAX;
use super::{CompactError, Compaction, quiet, require_sound};
use crate::check::change::Change;
use crate::check::edits::{edit_l2_tables, l2_tables};
use crate::check::pass::Pass;
use crate::check::reading::Reader;
use crate::check::tables::l2_words;
use crate::check::{CheckError, Owner};

/// Bytes that are read at a time at most.
const READ_BYTES_MAX: u64 = 1 << 20;
/// Reads under way at a time.
const READS_AT_ONCE: usize = 8;

/// Clusters of zeroes, and what leads to them.
#[derive(Default)]
struct ZeroClusters {
    /// By cluster: how many references were found.
    zero: BTreeMap<u64, u32>,
    /// Tables with entries that lead to them.
    tables: Vec<u64>,
    /// The first table that was not searched, for want of room here.
    next: Option<usize>,
}

impl Compaction<'_> {
    /// Takes the places of clusters of zeroes away, or only counts them.
    pub(super) async fn free_zeroes(&mut self, dry_run: bool) -> Result<(), CompactError> {
        let mut from = Some(0);
        while let Some(first) = from {
            let mut quiet = quiet;
            let mut pass = Pass::run(Reader::of(self.file), &mut quiet).await?;
            require_sound(&pass)?;
            let below = pass.header.backing.is_some();
            if pass.geometry.external_data || (below && pass.geometry.version == Version::V2) {
                return Ok(());
            }
            let found = self.find_zeroes(&mut pass, first).await?;
            from = found.next;
            self.report.zeroes_freed += found.zero.len() as u64;
            if !dry_run && !found.zero.is_empty() {
                self.forget_places(&mut pass, &found).await?;
            }
        }
        Ok(())
    }

    /// Reads what the tables from the one with index `first` on lead to, until enough is found; counts the references to that in
    /// all tables.
    async fn find_zeroes(&mut self, pass: &mut Pass<'_>, first: usize) -> Result<ZeroClusters, CompactError> {
        let mut found = ZeroClusters::default();
        for (index, table) in l2_tables(pass).await?.into_iter().enumerate() {
            if found.zero.len() >= MOVES_MAX && found.next.is_none() {
                found.next = Some(index);
            }
            let searched = index >= first && found.next.is_none();
            self.search_table(pass, table, searched, &mut found).await?;
        }
        require_sound(pass)?;
        // Something else leads there too.
        found.zero.retain(|cluster, times| pass.claims.count(*cluster) == u64::from(*times));
        Ok(found)
    }

    async fn search_table(
        &mut self,
        pass: &mut Pass<'_>,
        table: u64,
        searched: bool,
        found: &mut ZeroClusters,
    ) -> Result<(), CompactError> {
        let times = u32::try_from(pass.claims.count(table)).unwrap_or(u32::MAX);
        let offset = pass.offset_of(table).0;
        let size = pass.geometry.cluster_size();
        let Some(bytes) = pass.read_piece(Owner::L2, offset, size).await else { return Ok(()) };
        let mut data: Vec<u64> = l2_words(&bytes, pass.geometry.extended_l2)
            .filter_map(|(_, words)| Some(pass.cluster_of(data_of(words, pass)?.host?.0)))
            .collect();
        drop(bytes);
        data.sort_unstable();
        if searched {
            let mut unknown = data.clone();
            unknown.dedup();
            unknown.retain(|cluster| !found.zero.contains_key(cluster));
            for zero in self.zero_clusters(pass, &unknown).await? {
                found.zero.insert(zero, 0);
            }
        }
        let mut leads = false;
        for cluster in data {
            if let Some(count) = found.zero.get_mut(&cluster) {
                *count = count.saturating_add(times);
                leads = true;
            }
        }
        if leads {
            found.tables.push(table);
        }
        Ok(())
    }

    /// Which of these clusters, in order, hold nothing but zeroes.
    async fn zero_clusters(&mut self, pass: &Pass<'_>, clusters: &[u64]) -> Result<Vec<u64>, CompactError> {
        let most = (READ_BYTES_MAX >> pass.geometry.cluster_bits).max(1) as usize;
        let data = self.plain.unwrap_or(pass.file);
        let runs = clusters.chunk_by(|a, b| a + 1 == *b).flat_map(|run| run.chunks(most));
        let mut read =
            stream::iter(runs).map(|run| zeroes_of(pass, data, run)).buffer_unordered(READS_AT_ONCE);
        let mut zero = Vec::new();
        while let Some((looked, mut found)) = read.try_next().await? {
            zero.append(&mut found);
            self.meter.add(looked)?;
        }
        Ok(zero)
    }

    /// Entries ->| lower refcounts ->|
    async fn forget_places(&mut self, pass: &mut Pass<'_>, found: &ZeroClusters) -> Result<(), CompactError> {
        let mut change = Change::default();
        found.zero.iter().for_each(|(cluster, times)| change.lose(*cluster, *times));
        let geometry = pass.geometry;
        let new = |_, _, words| {
            let Ok(L2Entry::Standard(cluster @ Cluster { host: Some(host), .. })) =
                L2Entry::decode(words, &geometry)
            else {
                return None;
            };
            let is_zero = found.zero.contains_key(&(host.0 >> geometry.cluster_bits));
            is_zero.then(|| zeroed(cluster, &geometry))
        };
        let lead = async |pass: &mut Pass<'_>| edit_l2_tables(pass, &found.tables, new).await;
        self.make(pass, &change, lead).await
    }
}

/// The cluster of an entry, if it has data.
fn data_of(words: [u64; 2], pass: &Pass<'_>) -> Option<Cluster> {
    match L2Entry::decode(words, &pass.geometry) {
        Ok(L2Entry::Standard(cluster)) if cluster.host.is_some() && cluster.alloc != 0 => Some(cluster),
        Ok(L2Entry::Standard(_) | L2Entry::Compressed(_)) | Err(_) => None,
    }
}

/// Of clusters that follow each other: how many bytes they are, and which of them hold nothing but zeroes.
async fn zeroes_of(pass: &Pass<'_>, data: &dyn Storage, run: &[u64]) -> Result<(u64, Vec<u64>), CheckError> {
    let size = pass.geometry.cluster_size();
    let (offset, len) = (pass.offset_of(run.first().copied().unwrap_or(0)).0, run.len() as u64 * size);
    let Some(buf) = IoBuf::try_uninit(len as usize) else {
        return Err(CheckError::NoMemory { what: "reading data" });
    };
    let (result, buf) = data.read(offset, buf, Hints::NONE).await;
    result.map_err(pass.io("read a cluster", offset))?;
    let bytes = buf.freeze();
    let size = size as usize;
    let is_zero = |index: usize| bytes.slice(index * size, (index + 1) * size).is_zero();
    let zero = (0..).zip(run).filter(|(index, _)| is_zero(*index)).map(|(_, cluster)| *cluster).collect();
    Ok((len, zero))
}

/// The entry of a cluster that holds nothing but zeroes, without its place. In version 2, which has no entry for zeroes, it says
/// nothing: only for an image with nothing below it.
pub(super) fn zeroed(cluster: Cluster, geometry: &Geometry) -> [u64; 2] {
    let zero = match geometry.version {
        qcow2_layout::Version::V2 => 0,
        qcow2_layout::Version::V3 => cluster.zero | cluster.alloc,
    };
    L2Entry::Standard(Cluster { zero, ..Cluster::UNALLOCATED }).encode(geometry)
}

#[cfg(test)]
mod tests {
    use super::*;
    use qcow2_layout::{HostOffset, Version};

    #[test]
    fn zeroes_hide_what_lies_below_where_an_entry_can_say_so() {
        let cluster = Cluster { host: Some(HostOffset(9 << 16)), copied: true, alloc: 1, zero: 0 };
        let of = |version| {
            let geometry = Geometry::new(version, 16, 4).unwrap();
            L2Entry::decode(zeroed(cluster, &geometry), &geometry).unwrap()
        };
        assert_eq!(of(Version::V2), L2Entry::UNALLOCATED);
        assert_eq!(of(Version::V3), L2Entry::Standard(Cluster { zero: 1, ..Cluster::UNALLOCATED }));
    }
}
