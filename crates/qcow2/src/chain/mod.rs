//! The map of a chain: where each unit of what lies below an image is, resolved through all layers once.
//!
//! Layers that no request writes do not change while they are open (file locks see to that), so what the
//! walk through them found stays right: a slice of this map is loaded by asking every layer, and from
//! then on one look-up answers for all of them, however many there are. It covers the layers down to the
//! first that is opened for writing; there, and where one word cannot say it, the layer that was asked last is asked itself
//! ([`crate::read`]).

mod resolve;
mod word;

use std::sync::Arc;

use futures_util::{StreamExt, stream};
use map_cache::{Budget, CacheLimits, Charge, Counters, Load, LoadTicket, MapCache, SliceKey};
use qcow2_layout::HostOffset;
use sync::AsyncMutex;

use crate::Error;
use crate::below::{Below, Lower};
use crate::guest_range::GuestRange;
pub(crate) use word::UnitPlace;
use word::{LAYERS_MAX, WordShape};

/// Layers from which on a chain has a map of its own: where only one lies below, that one's map says
/// the same.
const LAYERS_MIN: usize = 2;

/// log2 of the units in a slice: 128 MiB of disk with 64 KiB clusters. A load asks every layer, so it
/// must be worth its while; and it keeps 16 KiB a layer in memory while it runs.
const UNIT_BITS: u32 = 11;
/// Units in a slice.
const SLICE_UNITS: usize = 1 << UNIT_BITS;

/// log2 of the slices under one entry of the cache's directory.
const SLICES_BITS: u32 = 6;
/// Entries of the cache's directory at most. With units of 512 bytes they cover 64 TiB, with
/// 64 KiB 8 PiB; what lies beyond is asked layer by layer.
const DIRECTORY_MAX: u64 = 1 << 20;

/// Slices loaded at the same time: each reads many tables at once, up to a quarter of a MiB of them.
const LOADED_AT_ONCE: usize = 2;
/// Of them, by [`Chain::prefetch`].
const PREFETCHED_AT_ONCE: usize = 1;

/// The map of everything below one image.
#[derive(Debug)]
pub(crate) struct Chain {
    /// The layers, from the upper to the lower.
    layers: Vec<Below>,
    /// Where the second and those behind it stand in the list that begins with the first.
    rest: Vec<Arc<Lower>>,
    /// There is another layer below these, which they do not cover.
    goes_on: bool,
    /// Bytes of the disk that the map answers for.
    covered: u64,
    /// log2 of the bytes of a unit: the smallest cluster or subcluster of any layer.
    unit_bits: u32,
    shape: WordShape,
    cache: MapCache<Error>,
    /// For the list of layers.
    _charge: Charge,
    /// Held by loads, one each.
    turns: [AsyncMutex<()>; LOADED_AT_ONCE],
}

/// What the map of the layers below an image does and holds.
#[derive(Clone, Copy, Debug)]
pub struct ChainStatus {
    /// Layers that it answers for.
    pub layers: usize,
    /// Counters of its cache.
    pub map: Counters,
    /// Bytes of the disk that its slices in memory answer for, at most.
    pub covered_bytes: u64,
}

/// What the map says of the start of a range.
#[derive(Debug)]
pub(crate) enum Lookup {
    /// All of these bytes are in one place.
    At { place: UnitPlace, len: u64 },
    /// The slice must be loaded first.
    Missing(SliceKey),
}

impl Chain {
    /// The map of the layers of `top`, with at most `bytes_max` of `budget`; `None` where there are too few to be worth one.
    /// Costs a few bytes a layer.
    pub(crate) fn of(top: &Lower, bytes_max: u64, budget: &Arc<Budget>) -> Option<Self> {
        let behind = || std::iter::successors(top.next(), |lower| lower.next());
        let chain = || std::iter::once(top).chain(behind().map(|lower| &**lower)).map(Lower::layer);
        let layers: Vec<Below> =
            chain().take_while(|layer| layer.is_immutable()).take(LAYERS_MAX).cloned().collect();
        if layers.len() < LAYERS_MIN {
            return None;
        }
        let rest: Vec<Arc<Lower>> = behind().take(layers.len() - 1).cloned().collect();
        let goes_on = chain().nth(layers.len()).is_some();
        let unit_bits = layers.iter().filter_map(Below::unit_bits).min()?;
        let host_end = layers.iter().map(Below::host_end).max().unwrap_or(0);
        let table_bits = unit_bits + UNIT_BITS + SLICES_BITS;
        let covered = top.layer().size().min(DIRECTORY_MAX << table_bits);
        let limits = CacheLimits { slices_per_table: 1 << SLICES_BITS, bytes_max };
        let shape = WordShape::new(host_end.div_ceil(1 << unit_bits));
        let cache = MapCache::new(limits, shape.packing(), budget);
        let list_bytes = layers.capacity() * size_of::<Below>() + rest.capacity() * size_of::<Arc<Lower>>();
        let _charge = budget.charge(list_bytes as u64);
        let turns = Default::default();
        Some(Self { layers, rest, goes_on, covered, unit_bits, shape, cache, _charge, turns })
    }

    /// Bytes of the disk, from its start, that the map answers for.
    #[inline]
    pub(crate) fn covered(&self) -> u64 {
        self.covered
    }

    /// Layer `index`, counted from the uppermost one.
    #[inline]
    pub(crate) fn layer(&self, index: usize) -> Option<&Below> {
        self.layers.get(index)
    }

    /// Where layer `index` stands in the list that begins with `lower`, which is this map's own.
    #[inline]
    pub(crate) fn from<'a>(&'a self, lower: &'a Lower, index: usize) -> Option<&'a Lower> {
        match index.checked_sub(1) {
            None => Some(lower),
            Some(behind) => self.rest.get(behind).map(|lower| &**lower),
        }
    }

    /// What slices in memory say of the range, which begins inside [`Chain::covered`]. No lock, no I/O.
    #[inline]
    pub(crate) fn look_up(&self, range: GuestRange) -> Lookup {
        let guest = range.start;
        let key = self.key(guest);
        let first = (guest >> self.unit_bits) as usize % SLICE_UNITS;
        let end = range.end.min(self.covered);
        let found = self.cache.with(key, |slice| {
            let [word] = slice.entry::<1>(first);
            let (mut last, mut at) = (word, first + 1);
            let start = guest >> self.unit_bits << self.unit_bits;
            let mut upto = start + (1 << self.unit_bits);
            while upto < end && at < SLICE_UNITS {
                let [word] = slice.entry::<1>(at);
                if word != self.shape.next(last) {
                    break;
                }
                (last, at, upto) = (word, at + 1, upto + (1 << self.unit_bits));
            }
            Lookup::At { place: self.shape.decode(word), len: upto.min(end) - guest }
        });
        found.unwrap_or(Lookup::Missing(key))
    }

    /// A part of `range`, from its start on, of which no layer has anything, and where a look-up would find it; `None` where that is less than a
    /// slice, or cannot be said without a load. Costs a look at the L1 table of every layer, which a load does, too: a chain of empty disks of
    /// petabytes would otherwise be loaded slice by slice.
    pub(crate) fn nothing(&self, range: GuestRange) -> Option<(UnitPlace, u64)> {
        let slice_bytes = 1 << (self.unit_bits + UNIT_BITS);
        let mut range = range.before(self.covered);
        if range.len() < slice_bytes {
            return None;
        }
        let (mut lowest, mut has_ended) = (0, false);
        for (index, layer) in self.layers.iter().enumerate() {
            if range.start >= layer.size() {
                has_ended = true;
                break;
            }
            let Below::Image(image) = layer else { return None };
            range = range.before(layer.size());
            let len = image.inner.map.empty_tables(&image.inner.medium.geometry, range, 0);
            range = range.before(range.start + len);
            if range.len() < slice_bytes {
                return None;
            }
            lowest = index;
        }
        let place = match self.goes_on && !has_ended {
            true => UnitPlace::Ask { layer: lowest },
            false => UnitPlace::Nothing { layer: lowest },
        };
        Some((place, range.len()))
    }

    /// Where in the file of its layer `guest` is, for a place of data whose unit holds it.
    #[inline]
    pub(crate) fn host(&self, guest: u64, unit: u64) -> HostOffset {
        HostOffset((unit << self.unit_bits) + (guest & ((1 << self.unit_bits) - 1)))
    }

    #[inline]
    fn key(&self, guest: u64) -> SliceKey {
        let slice = guest >> (self.unit_bits + UNIT_BITS);
        // Below DIRECTORY_MAX slices of tables, because `guest` is covered.
        SliceKey { l1_index: (slice >> SLICES_BITS) as u32, slice: (slice as u32) & ((1 << SLICES_BITS) - 1) }
    }

    /// First byte of the disk that slice `key` maps.
    fn start(&self, key: SliceKey) -> u64 {
        let slice = u64::from(key.l1_index) << SLICES_BITS | u64::from(key.slice);
        slice << (self.unit_bits + UNIT_BITS)
    }

    /// Brings slice `key` into memory. Requests for one slice share one load.
    ///
    /// # Errors
    /// When a layer that had to be asked cannot be read. Nothing is kept: the next request tries again.
    pub(crate) async fn load(&self, key: SliceKey) -> Result<(), Error> {
        match self.cache.load(key) {
            Load::Present => Ok(()),
            Load::Wait(waiting) => waiting.landed().await,
            Load::Lead(ticket) => self.load_led(key, ticket).await,
        }
    }

    async fn load_led(&self, key: SliceKey, ticket: LoadTicket<'_, Error>) -> Result<(), Error> {
        let _turn = match self.turns.get(key.slice as usize % LOADED_AT_ONCE) {
            Some(turn) => Some(turn.lock().await),
            None => None,
        };
        self.cache.land(ticket, self.resolve(self.start(key)).await)
    }

    /// Brings all slices into memory, in the order of the disk, until there is no room for more or `go_on`
    /// says no.
    pub(crate) async fn prefetch(&self, go_on: impl Fn() -> bool) -> Result<(), Error> {
        let evictions = self.cache.counters().evictions;
        let slice_bytes = 1 << (self.unit_bits + UNIT_BITS);
        let slices = (0..self.covered.div_ceil(slice_bytes)).map(|slice| self.key(slice * slice_bytes));
        let load = |key| async move {
            match self.cache.try_lead(key) {
                Some(ticket) => self.load_led(key, ticket).await,
                None => Ok(()),
            }
        };
        let mut loads = stream::iter(slices).map(load).buffer_unordered(PREFETCHED_AT_ONCE);
        while let Some(loaded) = loads.next().await {
            loaded?;
            if !go_on() || self.cache.counters().evictions != evictions {
                break;
            }
        }
        Ok(())
    }

    /// Drops slices that were not used since the last call. Returns how many went.
    pub(crate) fn clean(&self) -> usize {
        self.cache.clean()
    }

    /// Changes how much memory the map may take.
    pub(crate) fn set_bytes_max(&self, bytes_max: u64) {
        self.cache.set_bytes_max(bytes_max);
    }

    /// What the map did and holds.
    pub(crate) fn status(&self) -> ChainStatus {
        let map = self.cache.counters();
        let covered_bytes = ((map.resident_slices << UNIT_BITS) << self.unit_bits).min(self.covered);
        ChainStatus { layers: self.layers.len(), map, covered_bytes }
    }
}

impl Below {
    /// Nothing changes where this layer's bytes are as long as it is open.
    fn is_immutable(&self) -> bool {
        match self {
            Below::Image(image) => !image.inner.options.writable,
            // Bytes that no map leads to are where they are, also while they are written.
            Below::Block(_) => true,
        }
    }

    /// log2 of the bytes that this layer can map on their own; `None` if it maps nothing.
    fn unit_bits(&self) -> Option<u32> {
        match self {
            Below::Image(image) => Some(image.inner.medium.geometry.subcluster_bits()),
            Below::Block(_) => None,
        }
    }

    /// Where the bytes of this layer end in its file.
    fn host_end(&self) -> u64 {
        match self {
            Below::Image(image) => image.inner.medium.data.length(),
            Below::Block(block) => block.size(),
        }
    }
}
