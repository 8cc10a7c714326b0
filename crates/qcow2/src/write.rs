//! Writing guest data.
//!
//! A write to clusters that are the image's own goes straight to where they lie. Everything else
//! owns its guest clusters while it allocates, writes head, data and tail as one, and only then
//! lets the map lead there.

use std::sync::Arc;

use qcow2_layout::{Cluster, HostOffset, L2Entry, Subcluster};
use storage::{IoBytes, IoVec, Zeroing};

use crate::Error;
use crate::allocator::Run;
use crate::deliberate::{self, Bug};
use crate::gate::Pass;
use crate::host::HandedOver;
use crate::image::Inner;
use crate::map::{Kind, Mapped};
use crate::waiting::Needs;

/// Zeroes around the data of a cluster that are longer than this are made by the file system, not
/// written: a 4 KiB write into a 2 MiB cluster must not cost 2 MiB.
const ZERO_FILL_WRITTEN_MAX: u64 = 64 << 10;

/// What one host write puts where, and what the map says afterwards.
#[derive(Debug)]
struct Placement {
    /// First guest cluster.
    guest: u64,
    /// Where it goes: consecutive in the data file.
    host: u64,
    /// Number of clusters.
    clusters: u64,
    /// The guest range whose bytes are written: the request's part plus what must be copied.
    start: u64,
    end: u64,
    /// The new place reads as zeroes.
    fresh: bool,
    /// `start..end` reads as zeroes before this write.
    blank: bool,
}

impl Inner {
    /// See [`crate::Qcow2::write`].
    pub(crate) async fn write(self: &Arc<Self>, offset: u64, data: IoVec) -> Result<(), Error> {
        self.check_writable()?;
        if data.is_empty() {
            return Ok(());
        }
        self.announce().await?;
        let pass = self.enter().await?;
        if let Mapped::Extent(extent) = self.try_map(offset, data.len() as u64)?
            && let Kind::Data { host, in_place: true } = extent.kind
            && extent.len == data.len() as u64
            && (!self.raw_data || deliberate::has(Bug::RawRangeShared))
        {
            return self.write_in_place(pass, host, data).await;
        }
        let (image, pass) = (Arc::clone(self), pass.detach());
        let write = HandedOver::new(&*self.host, async move {
            let _pass = image.gate.attach(pass);
            match image.raw_data {
                true => image.write_raw(offset, data).await,
                false => image.write_anywhere(offset, data).await,
            }
        });
        write.await
    }

    /// The pass is held until the write has landed, whoever waits for it.
    async fn write_in_place(self: &Arc<Self>, pass: Pass<'_>, host: u64, data: IoVec) -> Result<(), Error> {
        self.check_data(host, data.len() as u64)?;
        let (image, pass) = (Arc::clone(self), pass.detach());
        let write = HandedOver::new(&*self.host, async move {
            let _pass = image.gate.attach(pass);
            image.data.write(host, data).await
        });
        write.await.map_err(self.blame.io("writing data"))
    }

    /// A write in place must not land in a raw data file between the zeroing of its range there and the entry
    /// that says so: the file alone would not be the disk any more. Runs to its end.
    async fn write_raw(self: &Arc<Self>, offset: u64, data: IoVec) -> Result<(), Error> {
        let len = data.len() as u64;
        {
            let _owned = self.raw_ranges.own(offset, offset + len).await;
            if let Mapped::Extent(extent) = self.try_map(offset, len)?
                && let Kind::Data { host, in_place: true } = extent.kind
                && extent.len == len
            {
                self.check_data(host, len)?;
                return self.data.write(host, data).await.map_err(self.blame.io("writing data"));
            }
        }
        self.write_anywhere(offset, data).await
    }

    /// Writes to clusters in any state. Runs to its end.
    pub(crate) async fn write_anywhere(self: &Arc<Self>, offset: u64, data: IoVec) -> Result<(), Error> {
        let end = offset + data.len() as u64;
        let bits = self.geometry.cluster_bits;
        {
            let owned = self.clusters.own(offset >> bits, ((end - 1) >> bits) + 1).await;
            let _owned = (!deliberate::has(Bug::LockDropped)).then_some(owned);
            let mut guest = offset;
            while guest < end {
                let rest = data.slice((guest - offset) as usize, data.len());
                guest += self.write_some(guest, rest).await?;
            }
        }
        if self.wants_commit() {
            self.commit().await?;
        }
        Ok(())
    }

    /// Writes from the front of `data` as much as goes to one place, and says how much that was.
    pub(crate) async fn write_some(self: &Arc<Self>, guest: u64, data: IoVec) -> Result<u64, Error> {
        let extent = self.map(guest, data.len() as u64).await?;
        if let Kind::Data { host, in_place: true } = extent.kind {
            self.check_data(host, extent.len)?;
            let part = data.slice(0, extent.len as usize);
            self.data.write(host, part).await.map_err(self.blame.io("writing data"))?;
            return Ok(extent.len);
        }
        let first = self.entry(guest).await?;
        match self.reusable_host(&first) {
            Some(cluster) => self.write_into_reserved(guest, data, cluster).await,
            None => self.write_to_new_clusters(guest, data, first).await,
        }
    }

    /// The cluster that an entry has for itself, if it may be written there.
    fn reusable_host(&self, entry: &L2Entry) -> Option<Cluster> {
        match entry {
            L2Entry::Standard(cluster) if cluster.host.is_some() && self.in_place(cluster.copied) => {
                Some(*cluster)
            }
            L2Entry::Standard(_) | L2Entry::Compressed(_) => None,
        }
    }

    /// Writes into a cluster that has its place already, but not all of its subclusters in use.
    async fn write_into_reserved(
        self: &Arc<Self>,
        guest: u64,
        data: IoVec,
        cluster: Cluster,
    ) -> Result<u64, Error> {
        let start_of_cluster = self.geometry.cluster_start(guest);
        let end = (guest + data.len() as u64).min(start_of_cluster + self.geometry.cluster_size());
        let touched = self.subclusters(guest, end);
        // Subclusters at the edges that hold nothing yet are filled up; those in use are left alone.
        let in_use = |at: u32| cluster.state(at) == Subcluster::Normal;
        let sub = self.geometry.subcluster_size();
        let start = if in_use(touched.start) { guest } else { guest / sub * sub };
        let fill_end = if in_use(touched.end - 1) { end } else { end.next_multiple_of(sub) };
        let host = cluster.host.map_or(0, |host| host.0);
        let place = Placement {
            guest: start_of_cluster,
            host,
            clusters: 1,
            start,
            end: fill_end,
            fresh: self.never_held(&cluster, touched.clone()),
            blank: self.is_zero(start, fill_end).await?,
        };
        let mask = mask(touched);
        let entry = Cluster { alloc: cluster.alloc | mask, zero: cluster.zero & !mask, ..cluster };
        let written = async {
            self.write_placed(&place, guest, data.slice(0, (end - guest) as usize)).await?;
            let needs = self.needs(place.fresh, place.blank);
            self.set_entries_that_need(start_of_cluster, &[L2Entry::Standard(entry)], needs).await
        };
        match written.await {
            Ok(()) => Ok(end - guest),
            Err(error) => {
                // There may be bytes where nothing should be: the next who writes here cannot rely on zeroes.
                self.allocator.lock().taint(host >> self.geometry.cluster_bits, 1);
                Err(error)
            }
        }
    }

    /// Whether those of the subclusters that are not in use never held anything: they read as zeroes at
    /// their place. One with the zero flag may have held something before.
    fn never_held(&self, cluster: &Cluster, mut subclusters: std::ops::Range<u32>) -> bool {
        let Some(host) = cluster.host.filter(|_| !self.geometry.external_data) else { return false };
        subclusters.all(|at| matches!(cluster.state(at), Subcluster::Normal | Subcluster::UnallocatedAlloc))
            && self.allocator.lock().is_pristine(host.0 >> self.geometry.cluster_bits)
    }

    /// What an entry waits for that leads to data at a place that is counted on the medium already. Before
    /// its data is there, the place must read as the guest's range did, and nothing else reads so for
    /// certain but zeroes.
    fn needs(&self, fresh: bool, blank: bool) -> Needs {
        match fresh && blank || deliberate::has(Bug::DataNotAwaited) {
            true => Needs::Nothing,
            false => Needs::Barrier,
        }
    }

    /// Allocates clusters for the front of `data` and writes them. What was in the old ones around
    /// the data is copied.
    async fn write_to_new_clusters(
        self: &Arc<Self>,
        guest: u64,
        data: IoVec,
        first: L2Entry,
    ) -> Result<u64, Error> {
        let first_cluster = self.geometry.cluster_start(guest);
        let old = self.clusters_to_replace(first_cluster, guest + data.len() as u64, first).await?;
        // Before anything is written: a table that cannot be had must fail the request early.
        self.table_for_writing(first_cluster).await?;
        let run = match self.geometry.external_data {
            // The place of a guest cluster in a data file is its own offset.
            true => Run::used(guest >> self.geometry.cluster_bits, old.len() as u64),
            false => self.allocate(old.len() as u64).await?,
        };
        let old = &old[..run.len as usize];
        match self.write_run(guest, data, old, run).await {
            // If this fails, some entries may lead to the run by now: better leaked than freed.
            Ok((written, entries, needs)) => {
                self.set_entries_that_need(first_cluster, &entries, needs).await?;
                old.iter().for_each(|entry| self.free_entry(entry, self.discards().pass_discard_other));
                Ok(written)
            }
            Err(error) => {
                if !self.geometry.external_data {
                    self.give_back(run).await;
                }
                Err(error)
            }
        }
    }

    /// The entries from `first_cluster` on that need a new host cluster, up to the end of the request
    /// and of the L2 table.
    async fn clusters_to_replace(
        &self,
        first_cluster: u64,
        end: u64,
        first: L2Entry,
    ) -> Result<Vec<L2Entry>, Error> {
        let table = self.geometry.bytes_per_l2_table();
        let end = end.min((first_cluster / table + 1).saturating_mul(table));
        let mut old = vec![first];
        loop {
            let next = first_cluster + old.len() as u64 * self.geometry.cluster_size();
            if next >= end {
                return Ok(old);
            }
            let entry = self.entry(next).await?;
            if self.reusable_host(&entry).is_some() {
                return Ok(old);
            }
            old.push(entry);
        }
    }

    /// Writes the part of `data` that `run` has room for. Gives its length, the entries that lead to it,
    /// and what those wait for.
    async fn write_run(
        self: &Arc<Self>,
        guest: u64,
        data: IoVec,
        old: &[L2Entry],
        run: Run,
    ) -> Result<(u64, Vec<L2Entry>, Needs), Error> {
        let size = self.geometry.cluster_size();
        let first_cluster = self.geometry.cluster_start(guest);
        let host = run.start << self.geometry.cluster_bits;
        let run_end = first_cluster + run.len * size;
        let end = (guest + data.len() as u64).min(run_end);
        let (Some(first), Some(last)) = (old.first(), old.last()) else {
            return Ok((0, Vec::new(), Needs::Nothing));
        };
        let start = self.needed(first, first_cluster, guest, end).0;
        let fill_end = self.needed(last, run_end - size, guest, end).1;
        let place = Placement {
            guest: first_cluster,
            host,
            clusters: run.len,
            start,
            end: fill_end,
            fresh: run.fresh,
            blank: self.is_zero(start, fill_end).await?,
        };
        let settled = run.settled || deliberate::has(Bug::RefcountNotAwaited);
        let needs = if settled { self.needs(place.fresh, place.blank) } else { Needs::Barrier };
        let entries = (0..run.len).zip(old).map(|(index, old)| {
            let at = first_cluster + index * size;
            let alloc = mask(self.subclusters(start.max(at), fill_end.min(at + size)));
            let zero = match old {
                L2Entry::Standard(cluster) => cluster.zero & !alloc,
                L2Entry::Compressed(_) => 0,
            };
            let host = Some(HostOffset(host + index * size));
            L2Entry::Standard(Cluster { host, copied: true, alloc, zero })
        });
        let entries: Vec<_> = entries.collect();
        if deliberate::has(Bug::WriteOrderSwapped) {
            self.set_entries_that_need(first_cluster, &entries, needs).await?;
        }
        self.write_placed(&place, guest, data.slice(0, (end - guest) as usize)).await?;
        Ok((end - guest, entries, needs))
    }

    /// The guest range of the cluster at `cluster` that its new place must hold: the request's part
    /// in whole subclusters, and what the old place held.
    fn needed(&self, old: &L2Entry, cluster: u64, guest: u64, end: u64) -> (u64, u64) {
        let size = self.geometry.cluster_size();
        let sub = self.geometry.subcluster_size();
        let start = guest.max(cluster) / sub * sub;
        let end = end.min(cluster + size).next_multiple_of(sub);
        match old {
            L2Entry::Compressed(_) => (cluster, cluster + size),
            L2Entry::Standard(old) if old.alloc != 0 => {
                let first = cluster + u64::from(old.alloc.trailing_zeros()) * sub;
                let last = cluster + u64::from(u32::BITS - old.alloc.leading_zeros()) * sub;
                (start.min(first), end.max(last))
            }
            L2Entry::Standard(_) => (start, end),
        }
    }

    /// The subclusters of one cluster that `start..end` touches.
    fn subclusters(&self, start: u64, end: u64) -> std::ops::Range<u32> {
        let bits = self.geometry.subcluster_bits();
        let first = self.geometry.in_cluster(start) >> bits;
        let count = ((end - 1) >> bits) - (start >> bits) + 1;
        // Below 32 by the geometry.
        first as u32..(first + count) as u32
    }

    /// One host write: what is copied before, the data, what is copied behind.
    async fn write_placed(self: &Arc<Self>, place: &Placement, guest: u64, data: IoVec) -> Result<(), Error> {
        let end = guest + data.len() as u64;
        let at = |guest: u64| place.host + (guest - place.guest);
        let (head, tail) = futures_util::future::join(
            self.copied(place.start, guest, place, at(place.start)),
            self.copied(end, place.end, place, at(end)),
        )
        .await;
        let (head, tail) = (head?, tail?);
        let start = guest - head.as_ref().map_or(0, |head| head.len() as u64);
        let mut bytes = IoVec::new();
        head.into_iter().for_each(|head| bytes.push(head));
        bytes.append(data);
        tail.into_iter().for_each(|tail| bytes.push(tail));
        debug_assert!(
            at(start) + bytes.len() as u64 <= place.host + place.clusters * self.geometry.cluster_size()
        );
        self.check_data(at(start), bytes.len() as u64)?;
        self.data.write(at(start), bytes).await.map_err(self.blame.io("writing data"))
    }

    /// What must be written at `host` so that it reads as `start..end` of the guest did: the bytes,
    /// or `None` where the place reads so by now.
    async fn copied(
        &self,
        start: u64,
        end: u64,
        place: &Placement,
        host: u64,
    ) -> Result<Option<IoBytes>, Error> {
        if start >= end {
            return Ok(None);
        }
        let len = end - start;
        if place.blank || self.is_zero(start, end).await? {
            if place.fresh {
                return Ok(None);
            }
            if len > ZERO_FILL_WRITTEN_MAX {
                self.check_data(host, len)?;
                let zeroed = self.data.zero(host, len, Zeroing::Keep).await;
                zeroed.map_err(self.blame.io("zeroing the rest of a cluster"))?;
                return Ok(None);
            }
            return Ok(Some(IoBytes::zeroed(len as usize)));
        }
        let (result, buf) = self.read(start, storage::IoBuf::uninit(len as usize)).await;
        result?;
        Ok(Some(buf.freeze()))
    }

    /// Whether the map alone says that `start..end` reads as zeroes.
    pub(crate) async fn is_zero(&self, start: u64, end: u64) -> Result<bool, Error> {
        let mut guest = start;
        while guest < end {
            let located = self.locate(guest, end - guest).await?;
            if !matches!(located.source, crate::locate::Source::Zero { .. }) {
                return Ok(false);
            }
            guest += located.len;
        }
        Ok(true)
    }

    /// Frees what an entry that was replaced referred to.
    pub(crate) fn free_entry(&self, entry: &L2Entry, punch: bool) {
        match entry {
            L2Entry::Compressed(cluster) => self.free_compressed(*cluster, punch),
            L2Entry::Standard(cluster) if !self.geometry.external_data => {
                cluster.host.into_iter().for_each(|host| self.free_cluster(host.0, punch));
            }
            L2Entry::Standard(_) => {}
        }
    }
}

/// Bits of the subclusters in `range`, which has at most 32.
pub(crate) fn mask(range: std::ops::Range<u32>) -> u32 {
    let below = |bit: u32| ((1u64 << bit) - 1) as u32;
    below(range.end) & !below(range.start)
}
