//! Defragmenting: data in the guest's order on disk, from the front of the file on, and L2 tables in that order too.
//!
//! The place of each cluster follows from the tables: the first data cluster of the guest gets the lowest place, the next one the next,
//! around metadata, which stays. Data of snapshots alone comes behind that of the disk. Compressed clusters stay too: each
//! needs a request of its own wherever it is, and several share a host cluster.
//!
//! L2 tables come last, when no other cluster moves any more. They exchange places among themselves: the first one gets the lowest of
//! the places that tables have. Gathering them would move all data of an image that lies in order around its tables.
//!
//! A round takes the first clusters that are not at their places. If other data is at these places, one change moves it behind them;
//! the next round finds the places free and moves the clusters there. Nothing is overwritten that anything leads to.

use std::collections::{BTreeMap, BTreeSet};

use qcow2_layout::{Cluster, L2Entry};

use super::layout::free_runs;
use super::moves::Plan;
use super::{CompactError, Compaction, quiet, require_sound};
use crate::check::change::Change;
use crate::check::counts::Counts;
use crate::check::edits::{edit_l2_tables, l2_tables};
use crate::check::pass::Pass;
use crate::check::reading::Reader;
use crate::check::tables::l2_words;
use crate::check::{CheckError, Owner};

/// Bytes that a round puts in order at most: the file is longer by as much meanwhile.
const ROUND_BYTES: u64 = 4 << 30;
/// Clusters that a round moves at most: some 16 MiB of memory.
const ROUND_CLUSTERS_MAX: u64 = 1 << 17;
/// With fewer free clusters than this, and more to be moved, the refcounts are given room for more: each round reads all tables.
const ROOM_MIN: usize = 256;

/// What is put in order.
enum Ordered {
    Data,
    /// L2 tables, and the places that they had at first, in ascending order; they are the same when all is done.
    Tables(Option<Vec<u64>>),
}

/// Clusters that are not where the guest's order has them.
#[derive(Default)]
struct Misplaced {
    /// The first of them: where they are, and where they should be, in ascending order of that.
    first: Vec<(u64, u64)>,
    /// All of them.
    clusters: u64,
}

impl Compaction<'_> {
    /// Puts the data in order.
    pub(super) async fn order_data(&mut self) -> Result<(), CompactError> {
        self.put_in_order(Ordered::Data).await
    }

    /// Puts L2 tables in order, in the places that they have together.
    pub(super) async fn order_tables(&mut self) -> Result<(), CompactError> {
        self.put_in_order(Ordered::Tables(None)).await
    }

    async fn put_in_order(&mut self, mut what: Ordered) -> Result<(), CompactError> {
        let mut room_was_made = false;
        loop {
            let mut quiet = quiet;
            let mut pass = Pass::run(Reader::of(self.file), &mut quiet).await?;
            require_sound(&pass)?;
            let tables = l2_tables(&mut pass).await?;
            let misplaced = match &mut what {
                Ordered::Data => find_misplaced(&mut pass, &tables).await?,
                Ordered::Tables(places) => {
                    let places = places.get_or_insert_with(|| in_ascending_order(&tables));
                    misplaced_tables(&pass, &tables, places)
                }
            };
            if misplaced.clusters == 0 {
                return Ok(());
            }
            let wanted = misplaced.first.len().min(ROOM_MIN);
            let (moves, room) = next_moves(&pass, misplaced.first);
            if room < wanted && !room_was_made && pass.file.capabilities().resizable {
                room_was_made = true;
                let clusters = round_clusters(&pass).min(misplaced.clusters + ROOM_MIN as u64);
                if pass.rebuild_refcounts(clusters).await? {
                    continue;
                }
                return Ok(());
            }
            if moves.is_empty() {
                // Nothing is free that is counted, and the refcounts cannot be given more room.
                return Ok(());
            }
            let plan = Plan::of_clusters(&pass, &moves, matches!(what, Ordered::Data));
            match what {
                Ordered::Data => self.relocate_data(&mut pass, &tables, &plan).await?,
                Ordered::Tables(_) => self.relocate_tables(&mut pass, &plan).await?,
            }
        }
    }

    /// How many clusters would move.
    pub(super) async fn count_misplaced(&self, pass: &mut Pass<'_>) -> Result<u64, CompactError> {
        let tables = l2_tables(pass).await?;
        let misplaced = misplaced_tables(pass, &tables, &in_ascending_order(&tables)).clusters;
        Ok(find_misplaced(pass, &tables).await?.clusters + misplaced)
    }

    async fn relocate_data(
        &mut self,
        pass: &mut Pass<'_>,
        tables: &[u64],
        plan: &Plan,
    ) -> Result<(), CompactError> {
        let change: Change = plan.change();
        let lead =
            async |pass: &mut Pass<'_>| edit_l2_tables(pass, tables, |_, _, words| plan.entry(words)).await;
        self.make(pass, &change, lead).await
    }
}

fn round_clusters(pass: &Pass<'_>) -> u64 {
    (ROUND_BYTES >> pass.geometry.cluster_bits).min(ROUND_CLUSTERS_MAX)
}

/// What moves next: to the places that are wanted, or if anything is there, that behind them. And how many clusters are free for the
/// latter.
fn next_moves(pass: &Pass<'_>, mut wanted: Vec<(u64, u64)>) -> (Vec<(u64, u64)>, usize) {
    let is_free = |to: u64| pass.claims.count(to) == 0;
    let occupied: BTreeSet<u64> = wanted.iter().map(|(_, to)| *to).filter(|to| !is_free(*to)).collect();
    if occupied.is_empty() {
        return (wanted, usize::MAX);
    }
    let behind = wanted.last().map_or(0, |(_, to)| to + 1);
    let free: Vec<u64> = free_behind(pass, behind).take(occupied.len()).collect();
    let (room, free_ahead) = (free.len(), wanted.iter().take_while(|(_, to)| is_free(*to)).count());
    if room < occupied.len() && free_ahead > 0 {
        // Not all of it has room elsewhere: what was made free is used first.
        wanted.truncate(free_ahead);
        return (wanted, room);
    }
    (occupied.into_iter().zip(free).collect(), room)
}

/// Free clusters from `first` on that a refcount block counts.
fn free_behind(pass: &Pass<'_>, first: u64) -> impl Iterator<Item = u64> {
    let entries = pass.geometry.refcount_block_entries();
    let counted = pass.comparison.blocks.last().map_or(0, |(index, _)| (index + 1) * entries);
    let end = if pass.file.capabilities().resizable { counted } else { counted.min(pass.comparison.end) };
    free_runs(pass, end)
        .flat_map(move |run| run.start.max(first)..run.end.max(first))
        .filter(move |cluster| pass.comparison.has_block(cluster / entries))
}

fn in_ascending_order(tables: &[u64]) -> Vec<u64> {
    let mut places = tables.to_vec();
    places.sort_unstable();
    places
}

/// Compares where tables are with where they should be.
fn misplaced_tables(pass: &Pass<'_>, tables: &[u64], places: &[u64]) -> Misplaced {
    let moving = || tables.iter().copied().zip(places.iter().copied()).filter(|(from, to)| from != to);
    let first = moving().take(round_clusters(pass) as usize).collect();
    Misplaced { first, clusters: moving().count() as u64 }
}

/// Compares where data is with where it should be.
async fn find_misplaced(pass: &mut Pass<'_>, tables: &[u64]) -> Result<Misplaced, CompactError> {
    let mut misplaced = Misplaced::default();
    if pass.geometry.external_data {
        return Ok(misplaced);
    }
    let packed = packed_clusters(pass, tables).await?;
    let most = round_clusters(pass) as usize;
    let mut seen = Counts::new(pass.claims.bytes_max());
    let full = pass.full(seen.bytes_max());
    let mut next = 0;
    for &table in tables {
        for host in data_of(pass, table).await {
            let LedTo::Cluster(from) = host else { continue };
            if packed.get(from) > 0 || seen.add(from, 1).map_err(&full)? > 0 {
                continue;
            }
            next += 1;
            while pass.claims.owner(next) != Owner::Data || packed.get(next) > 0 {
                next += 1;
            }
            if from != next {
                misplaced.clusters += 1;
                if misplaced.first.len() < most {
                    misplaced.first.push((from, next));
                }
            }
        }
    }
    require_sound(pass)?;
    Ok(misplaced)
}

/// What an entry leads to: a cluster, or compressed data in some.
enum LedTo {
    Cluster(u64),
    Packed(u64, u64),
}

async fn data_of(pass: &mut Pass<'_>, table: u64) -> Vec<LedTo> {
    let (offset, size) = (pass.offset_of(table).0, pass.geometry.cluster_size());
    let Some(bytes) = pass.read_piece(Owner::L2, offset, size).await else { return Vec::new() };
    let led_to = |words| match L2Entry::decode(words, &pass.geometry).ok()? {
        L2Entry::Standard(Cluster { host, .. }) => Some(LedTo::Cluster(pass.cluster_of(host?.0))),
        L2Entry::Compressed(data) => {
            Some(LedTo::Packed(pass.cluster_of(data.host.0), pass.cluster_of(data.host.0 + data.len - 1)))
        }
    };
    l2_words(&bytes, pass.geometry.extended_l2).filter_map(|(_, words)| led_to(words)).collect()
}

/// Clusters with compressed data in them.
async fn packed_clusters(pass: &mut Pass<'_>, tables: &[u64]) -> Result<Counts, CheckError> {
    let mut packed = Counts::new(pass.claims.bytes_max());
    if pass.report.compressed_clusters == 0 && pass.snapshots.entries.is_empty() {
        return Ok(packed);
    }
    let full = pass.full(packed.bytes_max());
    for &table in tables {
        for led_to in data_of(pass, table).await {
            let LedTo::Packed(first, last) = led_to else { continue };
            for cluster in first..=last {
                packed.set(cluster, 1).map_err(&full)?;
            }
        }
    }
    Ok(packed)
}

impl Plan {
    /// A plan for these clusters of data, or of tables, each with all its references.
    fn of_clusters(pass: &Pass<'_>, moves: &[(u64, u64)], data: bool) -> Self {
        let mut targets = BTreeMap::new();
        for &(from, to) in moves {
            let times = u32::try_from(pass.claims.count(from)).unwrap_or(u32::MAX);
            targets.insert(pass.offset_of(from).0, (pass.offset_of(to).0, times));
        }
        Plan::fixed(pass, targets, data)
    }
}
