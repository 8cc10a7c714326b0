//! Loading a slice of a chain's map: every layer is asked once, from the upper to the lower.
//!
//! The layers' tables are read straight from their files and not kept: the slice holds all that they
//! say. Layers without a table for the range cost nothing; the tables of several layers are read at the same
//! time. What only concerns one cluster (an entry that makes no sense, a compressed cluster) is left to
//! that layer's own map, so that a contradiction fails exactly the requests that meet it.

use futures_util::future::join_all;
use qcow2_layout::{Cluster, HostOffset, L1Entry, L2Entry, Subcluster};
use smallvec::SmallVec;
use storage::{Hints, IoBuf, Step};

use super::word::UnitPlace;
use super::{Chain, SLICE_UNITS};
use crate::Error;
use crate::below::Below;
use crate::guest_range::GuestRange;
use crate::image::Inner;
use crate::table_io::is_in_file;

/// Layers whose tables are read together at first: the upper ones often know everything.
const TOGETHER_FIRST: usize = 4;
/// Layers whose tables are read together at most: enough to keep a device busy, and 256 KiB of buffers.
const TOGETHER_MAX: usize = 16;

/// A word that no place has: the unit must still be found.
const OPEN: u64 = u64::MAX;

/// A slice in the making.
struct Draft<'a> {
    chain: &'a Chain,
    /// First byte of the disk.
    start: u64,
    words: Vec<u64>,
    /// Units before this one are found.
    first_open: usize,
    /// Units from this one on are found, or lie beyond what the map covers.
    end_open: usize,
}

/// What a layer has in one of its tables for the open range.
struct Part {
    /// Whole clusters of the disk.
    range: GuestRange,
    table: Table,
}

/// Entries of one table.
enum Table {
    /// There is no table.
    None,
    /// The layer's own map tells what is wrong with it.
    Bad,
    /// The entries, as they are in the file.
    Entries(IoBuf),
}

type Parts = SmallVec<[Part; 2]>;

impl Chain {
    /// The words of the slice that begins at `start`.
    pub(super) async fn resolve(&self, start: u64) -> Result<Vec<u64>, Error> {
        let mut draft = Draft::new(self, start);
        let (mut next, mut together) = (0, TOGETHER_FIRST);
        while draft.is_open() && next < self.layers.len() {
            let range = draft.range();
            let upto = self.batch(next, together, range);
            let asked = self.layers.get(next..upto).unwrap_or_default();
            let tables = join_all(asked.iter().map(|layer| layer.tables(range))).await;
            for (index, (layer, tables)) in (next..).zip(asked.iter().zip(tables)) {
                // What a layer has does not matter once the layers above it know everything.
                if draft.is_open() {
                    draft.ask(index, layer, &tables?);
                }
            }
            (next, together) = (upto, (together * 2).min(TOGETHER_MAX));
        }
        Ok(draft.finish())
    }

    /// One behind the last layer to be asked together with layer `first`, so that `tables` of them
    /// have to read.
    fn batch(&self, first: usize, tables: usize, range: GuestRange) -> usize {
        let mut left = tables;
        let rest = self.layers.iter().enumerate().skip(first);
        for (index, layer) in rest {
            if left == 0 {
                return index;
            }
            left -= usize::from(layer.has_table(range));
        }
        self.layers.len()
    }

    /// What a unit that layer `index` knows nothing of comes to: the next layer's to say, if all of it
    /// lies in that layer.
    fn below_layer(&self, index: usize, unit_start: u64) -> Next {
        let end = (unit_start + (1 << self.unit_bits)).min(self.covered);
        match self.layers.get(index + 1) {
            Some(next) if end <= next.size() => Next::Layer,
            Some(next) if unit_start < next.size() => Next::Split,
            Some(_) => Next::Nobody,
            None if self.goes_on => Next::Split,
            None => Next::Nobody,
        }
    }
}

/// Who is to be asked next.
enum Next {
    Layer,
    Nobody,
    /// Not one layer for the whole unit, or one that this map does not cover.
    Split,
}

impl<'a> Draft<'a> {
    fn new(chain: &'a Chain, start: u64) -> Self {
        let units = (chain.covered - start).div_ceil(1 << chain.unit_bits);
        let end_open = usize::try_from(units).unwrap_or(usize::MAX).min(SLICE_UNITS);
        Self { chain, start, words: vec![OPEN; SLICE_UNITS], first_open: 0, end_open }
    }

    fn is_open(&self) -> bool {
        self.first_open < self.end_open
    }

    /// The part of the disk in which there are open units.
    fn range(&self) -> GuestRange {
        GuestRange { start: self.guest(self.first_open), end: self.guest(self.end_open) }
    }

    fn guest(&self, unit: usize) -> u64 {
        self.start + ((unit as u64) << self.chain.unit_bits)
    }

    /// Units of a part of the disk that lie in this slice.
    fn units(&self, part: GuestRange) -> std::ops::Range<usize> {
        let unit = |at: u64| (at.saturating_sub(self.start) >> self.chain.unit_bits) as usize;
        unit(part.start).max(self.first_open)..unit(part.end).min(self.end_open)
    }

    /// Enters what layer `index` knows of open units.
    fn ask(&mut self, index: usize, layer: &Below, parts: &Parts) {
        match layer {
            Below::Block(_) => {
                for unit in self.first_open..self.end_open {
                    let host_unit = self.guest(unit) >> self.chain.unit_bits;
                    self.set(unit, index, UnitPlace::Data { layer: index, unit: host_unit });
                }
            }
            Below::Image(image) => {
                for part in parts {
                    self.ask_part(index, &image.inner, part);
                }
            }
        }
        self.close_ends();
    }

    fn ask_part(&mut self, index: usize, layer: &Inner, part: &Part) {
        let units = self.units(part.range);
        let entries = match &part.table {
            Table::None => return self.pass_all_down(units, index),
            Table::Bad => {
                return units.for_each(|unit| self.set(unit, index, UnitPlace::Ask { layer: index }));
            }
            Table::Entries(entries) => entries,
        };
        let size = layer.medium.geometry.l2_entry_bytes() as usize;
        let clusters = (part.range.start..part.range.end).step_by(1 << layer.medium.geometry.cluster_bits);
        // Entries of unallocated clusters are zero, and most are: they are passed down together.
        let mut empty = part.range;
        for (guest, entry) in clusters.zip(entries.chunks_exact(size)) {
            if entry.iter().all(|byte| *byte == 0) {
                continue;
            }
            self.pass_all_down(self.units(empty.before(guest)), index);
            empty.start = guest + layer.medium.geometry.cluster_size();
            let word = |at: usize| {
                entry.get(at..).and_then(<[u8]>::first_chunk).map_or(0, |bytes| u64::from_be_bytes(*bytes))
            };
            let entry = L2Entry::decode_at([word(0), word(8)], guest, &layer.medium.geometry).ok();
            self.ask_entry(index, layer, guest, entry);
        }
        self.pass_all_down(self.units(empty), index);
    }

    /// Enters what the entry of the cluster at `guest` says; `None` if it makes no sense.
    fn ask_entry(&mut self, index: usize, layer: &Inner, guest: u64, entry: Option<L2Entry>) {
        let units = self.units(GuestRange::at(guest, layer.medium.geometry.cluster_size()));
        let cluster = match entry {
            Some(L2Entry::Standard(Cluster::UNALLOCATED)) => {
                return units.for_each(|unit| self.pass_down(unit, index));
            }
            Some(L2Entry::Standard(cluster)) => cluster,
            Some(L2Entry::Compressed(_)) | None => {
                return units.for_each(|unit| self.set(unit, index, UnitPlace::Ask { layer: index }));
            }
        };
        for unit in units {
            let in_cluster = self.guest(unit) - guest;
            // Below 32.
            let subcluster = (in_cluster >> layer.medium.geometry.subcluster_bits()) as u32;
            match (cluster.state(subcluster), cluster.host) {
                (Subcluster::Normal, Some(host)) => self.set_data(unit, index, layer, host + in_cluster),
                (Subcluster::ZeroPlain, _) => self.set(unit, index, UnitPlace::Zero { layer: index }),
                (Subcluster::UnallocatedPlain, _) => self.pass_down(unit, index),
                (Subcluster::UnallocatedAlloc, _) => match self.chain.below_layer(index, self.guest(unit)) {
                    Next::Nobody => self.set(unit, index, UnitPlace::Ask { layer: index }),
                    Next::Layer | Next::Split => self.pass_down(unit, index),
                },
                (Subcluster::ZeroAlloc | Subcluster::Normal, _) => {
                    self.set(unit, index, UnitPlace::Ask { layer: index });
                }
            }
        }
    }

    fn set_data(&mut self, unit: usize, index: usize, layer: &Inner, host: HostOffset) {
        let bytes = 1 << self.chain.unit_bits;
        let place = match layer.medium.metadata_at(host, bytes) {
            None => UnitPlace::Data { layer: index, unit: host.0 >> self.chain.unit_bits },
            Some(_) => UnitPlace::Ask { layer: index },
        };
        self.set(unit, index, place);
    }

    /// The layer knows nothing of these units. Those that lie in the next layer stay open: nothing is done for each of them, so that many layers
    /// without a table cost no more than one look each.
    fn pass_all_down(&mut self, units: std::ops::Range<usize>, index: usize) {
        let next = self.chain.layers.get(index + 1).map_or(0, Below::size);
        let inside = next.saturating_sub(self.start) >> self.chain.unit_bits;
        let inside = usize::try_from(inside).unwrap_or(usize::MAX);
        for unit in units.start.max(inside)..units.end {
            self.pass_down(unit, index);
        }
    }

    /// The layer knows nothing of the unit.
    fn pass_down(&mut self, unit: usize, index: usize) {
        match self.chain.below_layer(index, self.guest(unit)) {
            Next::Layer => {}
            Next::Nobody => self.set(unit, index, UnitPlace::Nothing { layer: index }),
            Next::Split => self.set(unit, index, UnitPlace::Ask { layer: index }),
        }
    }

    fn set(&mut self, unit: usize, index: usize, place: UnitPlace) {
        let Some(word) = self.words.get_mut(unit).filter(|word| **word == OPEN) else { return };
        // A word without room for the offset is left to the layer's own map.
        let encoded = self.chain.shape.encode(place);
        *word = encoded.or_else(|| self.chain.shape.encode(UnitPlace::Ask { layer: index })).unwrap_or(0);
    }

    /// Narrows the open range to the units that are open.
    fn close_ends(&mut self) {
        let open = self.words.get(self.first_open..self.end_open).unwrap_or_default();
        let first = open.iter().position(|word| *word == OPEN).unwrap_or(open.len());
        let last = open.iter().rposition(|word| *word == OPEN).map_or(0, |last| last + 1);
        self.end_open = (self.first_open + last).max(self.first_open + first);
        self.first_open += first;
    }

    /// The slice's words. Units beyond what the map covers are never asked for.
    fn finish(mut self) -> Vec<u64> {
        let mut expected = 0;
        for word in &mut self.words {
            // What goes on as before packs best.
            if *word == OPEN {
                *word = expected;
            }
            expected = self.chain.shape.next(*word);
        }
        self.words
    }
}

impl Below {
    /// Whether asking this layer about a part of the disk means reading a table.
    fn has_table(&self, range: GuestRange) -> bool {
        let Below::Image(image) = self else { return false };
        let geometry = &image.inner.medium.geometry;
        let mut indices = geometry.l1_index(range.start)..=geometry.l1_index(range.end.saturating_sub(1));
        indices.any(|index| {
            matches!(image.inner.map.l1.get(index, geometry), Ok(L1Entry { table: Some(_), .. }))
        })
    }

    /// The entries that map `range`, which holds whole clusters of the smallest layer only.
    async fn tables(&self, range: GuestRange) -> Result<Parts, Error> {
        match self {
            Below::Block(_) => Ok(Parts::new()),
            Below::Image(image) => image.inner.read_entries(range).await,
        }
    }
}

impl Inner {
    async fn read_entries(&self, range: GuestRange) -> Result<Parts, Error> {
        let mut parts = Parts::new();
        let mut guest = self.medium.geometry.cluster_start(range.start);
        while guest < range.end {
            let table_end = (guest / self.medium.geometry.bytes_per_l2_table() + 1)
                .saturating_mul(self.medium.geometry.bytes_per_l2_table());
            let end = table_end.min(range.end.next_multiple_of(self.medium.geometry.cluster_size()));
            let range = GuestRange { start: guest, end };
            let entry = self.map.l1.get(self.medium.geometry.l1_index(guest), &self.medium.geometry);
            let table = match entry {
                Err(_) => Table::Bad,
                Ok(L1Entry { table: None, .. }) => Table::None,
                Ok(L1Entry { table: Some(table), .. }) => self.read_part(table, range).await?,
            };
            parts.push(Part { range, table });
            guest = end;
        }
        Ok(parts)
    }

    /// The entries of the clusters in `range`, which the table at `table` maps.
    async fn read_part(&self, table: HostOffset, range: GuestRange) -> Result<Table, Error> {
        let size = self.medium.geometry.l2_entry_bytes();
        let first =
            (range.start >> self.medium.geometry.cluster_bits) & (self.medium.geometry.l2_entries() - 1);
        let offset = table.0 + first * size;
        let bytes = (range.len() >> self.medium.geometry.cluster_bits) * size;
        if !is_in_file(&*self.medium.file, self.medium.geometry.cluster_size(), offset, bytes) {
            return Ok(Table::Bad);
        }
        // At most a slice of words: 16 KiB.
        self.medium.about_to(Step::L2Load);
        let (result, entries) =
            self.medium.file.read(offset, IoBuf::uninit(bytes as usize), Hints::NONE).await;
        result.map_err(self.medium.blame.io("reading an L2 table"))?;
        Ok(Table::Entries(entries))
    }
}
