//! Tables read ahead of requests.
//!
//! `table`: a miss reads its neighbours in the same table too, in the same read. `all`: one pass over all
//! tables in the order of the file, beside the requests, with a bounded number of reads in flight. Both are
//! ordinary loads (one ticket a slice), so a request that meets them waits for the read that is under way, and
//! a write can come to no harm. Neither lets anything leave memory for what was not requested yet: where the
//! cache is full the pass ends.

use futures_util::{StreamExt, stream};
use map_cache::{LoadTicket, SliceKey};
use storage::{Hints, IoBuf, Step};
use sync::atomic::Ordering;

use super::{Map, words};
use crate::Error;
use crate::deliberate::{self, Bug};
use crate::medium::Medium;
use crate::options::Prefetch;
use crate::table_io::is_in_file;
use crate::turns::Turns;

/// Bytes of one table read at a miss: where seeking is cheap more costs time, and where it is not less
/// gains nothing.
const NEIGHBOURS_BYTES: usize = 64 << 10;

/// Neighbours are read where the cache has room for so many times as much.
const NEIGHBOURS_SHARE: u64 = 4;

/// Bytes of neighbouring tables read at once by the pass over all of them: a request that needs one of them
/// waits for no longer than this takes.
const RUN_BYTES: u64 = 512 << 10;

/// Reads of the pass in flight: the device stays busy, and free for others.
const RUNS_AT_ONCE: usize = 4;

/// L1 entries sorted by the place of their tables at a time, 2 TiB of disk with clusters of 64 KiB: bounds the memory, some
/// 100 bytes each.
const SORTED_AT_ONCE: u64 = 1 << 12;

/// Tables that lie one behind the other in the file.
#[derive(Debug)]
struct Run {
    /// Where the first begins.
    host: u64,
    /// The L1 indices that lead to them, in the order of the file.
    indices: Vec<u64>,
}

/// Memory of a slice that is being loaded: its ticket, and what the requests that wait for it share.
const TICKET_BYTES: usize = size_of::<(SliceKey, LoadTicket<'_, Error>)>() + 128;

type Tickets<'a> = Vec<(SliceKey, LoadTicket<'a, Error>)>;

impl Map {
    /// Whether it is worth going on: no request closes the image, and the memory for all images is not used up.
    pub(crate) fn reads_ahead(&self, turns: &Turns) -> bool {
        !turns.closing.load(Ordering::Relaxed) && !self.budget.is_short(RUN_BYTES)
    }

    /// Brings all slices into memory, in the order of the file, as far as there is room.
    pub(crate) async fn prefetch_tables(&self, medium: &Medium, turns: &Turns) -> Result<(), Error> {
        if !self.reads_ahead(turns) {
            return Ok(());
        }
        let evictions = self.cache.counters().evictions;
        let entries = self.l1.len() as u64;
        for first in (0..entries).step_by(SORTED_AT_ONCE as usize) {
            let runs = self.runs(medium, first..entries.min(first + SORTED_AT_ONCE));
            let mut reads = stream::iter(runs)
                .map(|run| self.prefetch_run(medium, turns, run, evictions))
                .buffer_unordered(RUNS_AT_ONCE);
            while let Some(read) = reads.next().await {
                read?;
                if !self.reads_ahead(turns) || self.cache.counters().evictions != evictions {
                    return Ok(());
                }
            }
        }
        Ok(())
    }

    /// The tables of some L1 entries, as far as the file has them, where they lie together as one.
    fn runs(&self, medium: &Medium, indices: std::ops::Range<u64>) -> Vec<Run> {
        let size = medium.geometry.cluster_size();
        let table = |index| Some((self.l1.get(index, &medium.geometry).ok()?.table?.0, index));
        let tables = indices.filter_map(table).filter(|&(at, _)| is_in_file(&*medium.file, size, at, size));
        let mut tables: Vec<(u64, u64)> = tables.collect();
        tables.sort_unstable();
        let mut runs: Vec<Run> = Vec::new();
        for (host, index) in tables {
            match runs.last_mut() {
                Some(run)
                    if run.host + run.indices.len() as u64 * size == host
                        && (run.indices.len() as u64 + 1) * size <= RUN_BYTES =>
                {
                    run.indices.push(index);
                }
                _ => runs.push(Run { host, indices: vec![index] }),
            }
        }
        runs
    }

    /// Ends where something has left the cache since it counted so many `evictions`.
    async fn prefetch_run(
        &self,
        medium: &Medium,
        turns: &Turns,
        run: Run,
        evictions: u64,
    ) -> Result<(), Error> {
        // A freed table is given out again only after this has left.
        let Some(_pass) = turns.gate.enter().await else { return Ok(()) };
        let size = medium.geometry.cluster_size();
        // The file may have become shorter: its tables have moved then.
        if !is_in_file(&*medium.file, size, run.host, run.indices.len() as u64 * size) {
            return Ok(());
        }
        let mut tickets = Tickets::new();
        for (at, &index) in (0u64..).zip(&run.indices) {
            // The tickets first: if the table is freed after the look at L1, they may not land.
            let of_table = self.tickets(index, 0..self.shape.slices_per_table());
            let entry = self.l1.get(index, &medium.geometry).ok().and_then(|entry| entry.table);
            // Moved meanwhile: the request that moved it has it in memory.
            if entry.is_some_and(|table| table.0 == run.host + at * size) {
                tickets.extend(of_table);
            }
        }
        // What is in flight is in the budget too; nothing leaves for it.
        let in_flight = ((run.indices.len() as u64) << medium.geometry.cluster_bits)
            + (tickets.capacity() * TICKET_BYTES) as u64;
        let charge = self.budget.try_charge(in_flight);
        if tickets.is_empty() || charge.is_none() {
            return Ok(());
        }
        medium.about_to(Step::L2Load);
        let (result, bytes) = medium
            .file
            .read(run.host, IoBuf::uninit(run.indices.len() << medium.geometry.cluster_bits), Hints::NONE)
            .await;
        result.map_err(medium.blame.io("reading L2 tables"))?;
        for (key, ticket) in tickets {
            if self.cache.counters().evictions != evictions {
                break;
            }
            let table = run.indices.iter().position(|&index| index == u64::from(key.l1_index));
            let offset =
                table.map(|table| (table << medium.geometry.cluster_bits) + self.offset_in_table(key));
            if let Some(slice) =
                offset.and_then(|offset| bytes.get(offset..offset + self.shape.slice_bytes()))
            {
                if deliberate::has(Bug::StaleLoadLands) {
                    self.cache.insert(key, words(slice));
                }
                self.cache.insert_loaded(ticket, words(slice));
            }
        }
        Ok(())
    }

    /// The right to load each of these slices of one table that is not in memory and that no request loads.
    fn tickets(&self, index: u64, slices: std::ops::Range<usize>) -> Tickets<'_> {
        // L1 tables have at most 2^22 entries, tables at most 2^12 slices.
        let key = |slice: usize| SliceKey { l1_index: index as u32, slice: slice as u32 };
        slices.map(key).filter_map(|key| Some((key, self.cache.try_lead(key)?))).collect()
    }

    fn offset_in_table(&self, key: SliceKey) -> usize {
        key.slice as usize * self.shape.slice_bytes()
    }

    /// Reads slice `key`, whose ticket the caller holds, and what is near it in its table. Everything else
    /// than the slice itself is an extra, and nothing of it fails the request.
    pub(crate) async fn read_with_neighbours(
        &self,
        medium: &Medium,
        key: SliceKey,
    ) -> Result<Vec<u64>, Error> {
        let together = (NEIGHBOURS_BYTES / self.shape.slice_bytes()).min(self.shape.slices_per_table());
        if together <= 1 || !self.has_room_for_neighbours() {
            return self.read_slice(medium, key).await;
        }
        let first = key.slice as usize / together * together;
        let tickets = self.tickets(u64::from(key.l1_index), first..first + together);
        if tickets.is_empty() {
            return self.read_slice(medium, key).await;
        }
        let wanted = self.slice_offset(medium, key)?;
        let start = wanted - ((key.slice as usize - first) * self.shape.slice_bytes()) as u64;
        let len = together * self.shape.slice_bytes();
        if !is_in_file(&*medium.file, medium.geometry.cluster_size(), start, len as u64) {
            return self.read_slice(medium, key).await;
        }
        medium.about_to(Step::L2Load);
        let (result, bytes) = medium.file.read(start, IoBuf::uninit(len), Hints::NONE).await;
        if result.is_err() {
            drop(tickets);
            return self.read_slice(medium, key).await;
        }
        let slice = |key: SliceKey| {
            let at = (key.slice as usize - first) * self.shape.slice_bytes();
            bytes.get(at..at + self.shape.slice_bytes()).unwrap_or_default()
        };
        for (key, ticket) in tickets {
            self.cache.insert_loaded(ticket, words(slice(key)));
        }
        Ok(words(slice(key)).collect())
    }

    fn has_room_for_neighbours(&self) -> bool {
        let sizes = *self.cache_sizes.read();
        self.prefetch != Prefetch::Off
            && (sizes.covers_disk || sizes.l2_bytes >= NEIGHBOURS_SHARE * NEIGHBOURS_BYTES as u64)
    }
}
