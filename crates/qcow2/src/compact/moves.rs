//! Moving what tables lead to: L2 tables, and data with its compressed clusters.

use std::collections::BTreeMap;
use std::ops::Range;

use qcow2_layout::{CompressedCluster, Geometry, HostOffset, L1Entry, L2Entry};

use super::layout::{MOVES_MAX, Room};
use super::{CompactError, Compaction, require_sound};
use crate::check::change::{COPY_BYTES_MAX, Change, Copy, moved};
use crate::check::edits::{edit_l1_tables, edit_l2_tables, l2_tables};
use crate::check::pass::Pass;
use crate::check::tables::l2_words;
use crate::check::{CheckError, Owner};
use crate::compressed::packed_len;
use crate::table_io::read_bytes;

/// A new place, and how many references there are to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Target {
    /// Offset in the file.
    to: u64,
    /// Bytes; of a compressed cluster, those of its stream.
    len: u64,
    times: u32,
}

/// What is to leave its place, by its bytes in the file.
#[derive(Clone, Debug)]
pub(super) enum Leaving {
    /// What ends behind this.
    Behind(u64),
    /// What lies in this range, at least in part.
    Inside(Range<u64>),
}

impl Leaving {
    fn takes(&self, offset: u64, len: u64) -> bool {
        match self {
            Leaving::Behind(end) => offset + len > *end,
            Leaving::Inside(range) => offset < range.end && range.start < offset + len,
        }
    }
}

/// Which clusters and which compressed clusters go where. What is asked for first gets the lowest place.
pub(super) struct Plan {
    geometry: Geometry,
    /// The clusters are guest data, not tables.
    data: bool,
    leaving: Leaving,
    room: Room,
    /// By offset.
    clusters: BTreeMap<u64, Target>,
    /// By offset and length.
    compressed: BTreeMap<(u64, u64), Target>,
    /// Where the next compressed cluster may go, and where the free bytes from there on end.
    open: (u64, u64),
    /// References to the clusters that compressed ones go to.
    packed: BTreeMap<u64, u32>,
    full: bool,
}

impl Plan {
    /// Nothing moves yet. `data`: the clusters are guest data, not tables.
    pub(super) fn new(pass: &Pass<'_>, leaving: Leaving, room: Room, data: bool) -> Self {
        Self {
            geometry: pass.geometry,
            data,
            leaving,
            room,
            clusters: BTreeMap::new(),
            compressed: BTreeMap::new(),
            open: (0, 0),
            packed: BTreeMap::new(),
            full: false,
        }
    }

    /// Clusters of data, or of tables, by offset, each with its new place and all its references.
    pub(super) fn fixed(pass: &Pass<'_>, targets: BTreeMap<u64, (u64, u32)>, data: bool) -> Self {
        let mut plan = Self::new(pass, Leaving::Behind(0), Room::default(), data);
        let len = pass.geometry.cluster_size();
        let targets = targets.into_iter().map(|(from, (to, times))| (from, Target { to, len, times }));
        plan.clusters = targets.collect();
        plan
    }

    /// `times` references to the cluster at `from`; says whether it moves.
    fn cluster(&mut self, from: HostOffset, times: u32) -> bool {
        if !self.leaving.takes(from.0, self.geometry.cluster_size()) {
            return false;
        }
        if let Some(target) = self.clusters.get_mut(&from.0) {
            target.times = target.times.saturating_add(times);
            return true;
        }
        let Some(to) = self.take(1) else { return false };
        self.clusters.insert(from.0, Target { to, len: self.geometry.cluster_size(), times });
        true
    }

    /// Whether the place of a compressed cluster must be asked for: it is to move, and has none yet.
    fn is_new(&self, from: &CompressedCluster) -> bool {
        !self.full && self.leaves(from) && !self.compressed.contains_key(&(from.host.0, from.len))
    }

    fn leaves(&self, from: &CompressedCluster) -> bool {
        self.leaving.takes(from.host.0, from.len)
    }

    /// The same for a compressed cluster, whose stream takes `len` bytes.
    fn compressed(&mut self, from: CompressedCluster, len: u64, times: u32) -> bool {
        if !self.leaves(&from) {
            return false;
        }
        let key = (from.host.0, from.len);
        if let Some(target) = self.compressed.get_mut(&key) {
            target.times = target.times.saturating_add(times);
            return true;
        }
        let Some(to) = self.place(len, times) else { return false };
        self.compressed.insert(key, Target { to, len, times });
        for cluster in touched(&self.geometry, to, len) {
            *self.packed.entry(cluster).or_default() += times;
        }
        true
    }

    /// A place for `len` bytes: behind the compressed cluster before it where there is room.
    fn place(&mut self, len: u64, times: u32) -> Option<u64> {
        let (mut at, mut end) = self.open;
        if at % COPY_BYTES_MAX < len {
            // One write ends here.
            at = at.next_multiple_of(block::SECTOR_BYTES);
        }
        if at < end && !self.full && self.can_count(at, len, times) {
            while end < at + len && self.room.take_at(end >> self.geometry.cluster_bits) {
                end += self.geometry.cluster_size();
            }
            self.open = (at, end);
            if at + len <= end {
                self.open.0 = at + len;
                return Some(at);
            }
        }
        let clusters = self.geometry.clusters_for(len);
        let at = self.take(clusters)?;
        self.open = (at + len, at + clusters * self.geometry.cluster_size());
        Some(at)
    }

    /// Whether the refcounts there can have so many references more.
    fn can_count(&self, at: u64, len: u64, times: u32) -> bool {
        touched(&self.geometry, at, len).all(|cluster| {
            let packed = self.packed.get(&cluster).copied().unwrap_or(0);
            u64::from(packed) + u64::from(times) <= self.geometry.refcount_max()
        })
    }

    fn take(&mut self, clusters: u64) -> Option<u64> {
        self.full |= self.clusters.len() + self.compressed.len() >= MOVES_MAX;
        let start = if self.full { None } else { self.room.take(clusters) };
        self.full |= start.is_none() && clusters == 1;
        start.map(|cluster| cluster << self.geometry.cluster_bits)
    }

    /// Leaves out what more leads to than was found, and what more would lead to than can be counted: that stays.
    fn settle(&mut self, pass: &Pass<'_>) {
        self.clusters
            .retain(|from, target| pass.claims.count(pass.cluster_of(*from)) == u64::from(target.times));
        let mut packed: BTreeMap<u64, u64> = BTreeMap::new();
        for target in self.compressed.values() {
            for cluster in touched(&self.geometry, target.to, target.len) {
                *packed.entry(cluster).or_default() += u64::from(target.times);
            }
        }
        let max = self.geometry.refcount_max();
        let countable = |cluster| packed.get(&cluster).is_none_or(|count| *count <= max);
        let geometry = self.geometry;
        self.compressed.retain(|_, target| touched(&geometry, target.to, target.len).all(countable));
    }

    fn is_empty(&self) -> bool {
        self.clusters.is_empty() && self.compressed.is_empty()
    }

    /// What is copied and counted.
    pub(super) fn change(&self) -> Change {
        let mut change = Change::default();
        let clusters = self.clusters.iter().map(|(&from, target)| ((from, target.len), target, self.data));
        let compressed = self.compressed.iter().map(|(&from, target)| (from, target, false));
        for ((from, from_len), target, data) in clusters.chain(compressed) {
            change.copy(Copy { from, to: target.to, len: target.len, data });
            touched(&self.geometry, target.to, target.len).for_each(|new| change.gain(new, target.times));
            touched(&self.geometry, from, from_len).for_each(|old| change.lose(old, target.times));
        }
        change
    }

    /// The words that an entry becomes.
    pub(super) fn entry(&self, words: [u64; 2]) -> Option<[u64; 2]> {
        let entry = L2Entry::decode(words, &self.geometry).ok()?;
        let target = match entry {
            L2Entry::Standard(cluster) => self.clusters.get(&cluster.host?.0)?,
            L2Entry::Compressed(compressed) => self.compressed.get(&(compressed.host.0, compressed.len))?,
        };
        Some(moved(entry, target.to, target.len, &self.geometry))
    }
}

/// The clusters that some bytes lie in.
fn touched(geometry: &Geometry, at: u64, len: u64) -> impl Iterator<Item = u64> + use<> {
    (at >> geometry.cluster_bits)..=((at + len - 1) >> geometry.cluster_bits)
}

impl Compaction<'_> {
    /// Moves L2 tables as `plan` has it; false if none can.
    pub(super) async fn move_tables(
        &mut self,
        pass: &mut Pass<'_>,
        mut plan: Plan,
    ) -> Result<bool, CompactError> {
        for table in l2_tables(pass).await? {
            let times = u32::try_from(pass.claims.count(table)).unwrap_or(u32::MAX);
            plan.cluster(pass.offset_of(table), times);
        }
        require_sound(pass)?;
        plan.settle(pass);
        if plan.is_empty() {
            return Ok(false);
        }
        self.relocate_tables(pass, &plan).await?;
        Ok(true)
    }

    /// Moves the L2 tables of `plan`.
    pub(super) async fn relocate_tables(
        &mut self,
        pass: &mut Pass<'_>,
        plan: &Plan,
    ) -> Result<(), CompactError> {
        let lead = async |pass: &mut Pass<'_>| {
            edit_l1_tables(pass, |_, entry| {
                let target = plan.clusters.get(&entry.table?.0)?;
                Some(L1Entry { table: Some(HostOffset(target.to)), ..entry })
            })
            .await
        };
        self.make(pass, &plan.change(), lead).await
    }

    /// Moves data, compressed or not, as `plan` has it; false if none can.
    pub(super) async fn move_data(
        &mut self,
        pass: &mut Pass<'_>,
        mut plan: Plan,
    ) -> Result<bool, CompactError> {
        if pass.geometry.external_data {
            return Ok(false);
        }
        let mut tables = Vec::new();
        for table in l2_tables(pass).await? {
            if plan_table(pass, &mut plan, table).await? {
                tables.push(table);
            }
        }
        require_sound(pass)?;
        plan.settle(pass);
        if plan.is_empty() {
            return Ok(false);
        }
        let lead =
            async |pass: &mut Pass<'_>| edit_l2_tables(pass, &tables, |_, _, words| plan.entry(words)).await;
        self.make(pass, &plan.change(), lead).await?;
        Ok(true)
    }
}

/// Plans what a table leads to; says whether any of it moves.
async fn plan_table(pass: &mut Pass<'_>, plan: &mut Plan, table: u64) -> Result<bool, CheckError> {
    let times = u32::try_from(pass.claims.count(table)).unwrap_or(u32::MAX);
    let offset = pass.offset_of(table).0;
    let size = pass.geometry.cluster_size();
    let Some(bytes) = pass.read_piece(Owner::L2, offset, size).await else { return Ok(false) };
    let entries: Vec<L2Entry> = l2_words(&bytes, pass.geometry.extended_l2)
        .filter_map(|(_, words)| L2Entry::decode(words, &pass.geometry).ok())
        .filter(|entry| *entry != L2Entry::UNALLOCATED)
        .collect();
    let mut moves = false;
    for entry in entries {
        moves |= match entry {
            L2Entry::Standard(cluster) => cluster.host.is_some_and(|host| plan.cluster(host, times)),
            L2Entry::Compressed(compressed) => {
                let len = if plan.is_new(&compressed) { stream_bytes(pass, compressed).await? } else { 0 };
                plan.compressed(compressed, len, times)
            }
        };
    }
    Ok(moves)
}

/// Bytes of a compressed cluster without what its entry names beyond its end, where that is known.
async fn stream_bytes(pass: &Pass<'_>, from: CompressedCluster) -> Result<u64, CheckError> {
    let read = read_bytes(pass.file, from.host.0, from.len).await;
    let packed = read.map_err(pass.io("read a compressed cluster", from.host.0))?;
    let size = pass.geometry.cluster_size() as usize;
    // What does not decompress moves as it is: a request that reads it fails.
    let len = packed_len(pass.header.compression, &packed, size).ok().flatten();
    Ok(len.map_or(from.len, |len| (len as u64).clamp(1, from.len)))
}
