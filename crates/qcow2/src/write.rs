//! Writing guest data.
//!
//! A write to clusters that are the image's own goes straight to where they lie. Where a cluster has
//! its place, but not all of its subclusters are in use, a write owns those that it touches, and others write
//! to the rest of the cluster side by side. Everything else owns its guest clusters while it allocates,
//! writes head, data and tail as one, and only then lets the map lead there.

mod new_clusters;
mod payload;
mod placement;

use std::io;
use std::sync::Arc;

use qcow2_layout::{Cluster, HostOffset, L2Entry, Subcluster};
use storage::{Hints, IoVec, Step, Storage};

use crate::Error;
use crate::below::BelowHeld;
use crate::deliberate::{self, Bug};
use crate::gate::Pass;
use crate::guest_range::GuestRange;
use crate::host::HandedOver;
use crate::image::Inner;
use crate::in_flight::Owned;
use crate::map::{Kind, Mapped};
use crate::waiting::Needs;
pub(crate) use payload::Payload;
use placement::Placement;

impl Inner {
    /// See [`crate::Qcow2::write`].
    pub(crate) async fn write(self: &Arc<Self>, offset: u64, data: IoVec, hints: Hints) -> Result<(), Error> {
        self.check_writable()?;
        if data.is_empty() {
            return Ok(());
        }
        let range = GuestRange::at(offset, data.len() as u64);
        let pass = self.enter_to_change(range).await?;
        if let Some(host) = self.place_of(range)? {
            let write = async move |medium: &dyn Storage| medium.write(host.0, data, hints).await;
            return self.write_in_place(pass, host, range.len(), write).await;
        }
        let (image, pass) = (Arc::clone(self), pass.detach());
        let write = HandedOver::new(&*self.medium.host, async move {
            let _pass = image.turns.gate.attach(pass);
            match image.medium.raw_data {
                true => image.write_raw(offset, data, hints).await,
                false => image.write_anywhere(offset, Payload::new(data, hints)).await,
            }
        });
        write.await
    }

    /// Where `range` can be overwritten, if it has one place already.
    pub(crate) fn place_of(&self, range: GuestRange) -> Result<Option<HostOffset>, Error> {
        if let Mapped::Extent(extent) = self.map.try_extent(&self.medium, range)?
            && let Kind::Data { host, in_place: true } = extent.kind
            && extent.len == range.len()
            && (!self.medium.raw_data || deliberate::has(Bug::RawRangeShared))
        {
            return Ok(Some(host));
        }
        Ok(None)
    }

    /// Has `write` write `len` bytes at `host`. The pass is held until the write has landed, also if the request is dropped.
    pub(crate) async fn write_in_place(
        self: &Arc<Self>,
        pass: Pass<'_>,
        host: HostOffset,
        len: u64,
        write: impl AsyncFnOnce(&dyn Storage) -> io::Result<()> + 'static,
    ) -> Result<(), Error> {
        self.medium.check_data(host, len)?;
        let (image, pass) = (Arc::clone(self), pass.detach());
        let write = HandedOver::new(&*self.medium.host, async move {
            let _pass = image.turns.gate.attach(pass);
            image.medium.about_to_with_data(Step::WriteAio);
            write(&*image.medium.data).await
        });
        write.await.map_err(self.medium.blame.io("writing data"))
    }

    /// A write in place must not land in a raw data file between the zeroing of its range there and the entry
    /// that says so: the file alone would not be the disk any more. Runs to its end.
    async fn write_raw(self: &Arc<Self>, offset: u64, data: IoVec, hints: Hints) -> Result<(), Error> {
        let range = GuestRange::at(offset, data.len() as u64);
        {
            let _owned = self.turns.raw_ranges.own(range.start..range.end).await;
            if let Mapped::Extent(extent) = self.map.try_extent(&self.medium, range)?
                && let Kind::Data { host, in_place: true } = extent.kind
                && extent.len == range.len()
            {
                self.medium.check_data(host, range.len())?;
                self.medium.about_to_with_data(Step::WriteAio);
                return self
                    .medium
                    .data
                    .write(host.0, data, hints)
                    .await
                    .map_err(self.medium.blame.io("writing data"));
            }
        }
        self.write_anywhere(offset, Payload::new(data, hints)).await
    }

    /// Writes to clusters in any state. Runs to its end.
    pub(crate) async fn write_anywhere(self: &Arc<Self>, offset: u64, data: Payload) -> Result<(), Error> {
        if !self.write_beside_others(offset, &data).await? {
            let owned = self.own_clusters(GuestRange::at(offset, data.len())).await;
            let _owned = (!deliberate::has(Bug::LockDropped)).then_some(owned);
            self.write_owned(offset, &data).await?;
        }
        if self.wants_commit() {
            self.commit().await?;
        }
        Ok(())
    }

    /// Writes to subclusters of one cluster that has its place already. Says whether it did. No request moves a
    /// cluster of which another request owns a part, so the place stays, and the entry changes only in the bits of
    /// other subclusters.
    async fn write_beside_others(self: &Arc<Self>, offset: u64, data: &Payload) -> Result<bool, Error> {
        let end = offset + data.len();
        if !self.medium.geometry.extended_l2
            || self.medium.geometry.cluster_start(offset) != self.medium.geometry.cluster_start(end - 1)
        {
            return Ok(false);
        }
        let bits = self.medium.geometry.subcluster_bits();
        let _owned = self.turns.subclusters.own(offset >> bits..((end - 1) >> bits) + 1).await;
        let has_place = self.reusable_host(&self.map.entry(&self.medium, offset).await?).is_some();
        if has_place {
            self.write_owned(offset, data).await?;
        }
        Ok(has_place)
    }

    /// No other request changes what maps the clusters that `range` touches until this is dropped.
    pub(crate) async fn own_clusters(&self, range: GuestRange) -> Owned<'_> {
        let bits = self.medium.geometry.subcluster_bits();
        let first = self.medium.geometry.cluster_start(range.start) >> bits;
        let last = self.medium.geometry.cluster_start(range.end - 1) >> bits;
        self.turns.subclusters.own(first..last + u64::from(self.medium.geometry.subclusters())).await
    }

    /// Writes all of `data` to guest clusters, or subclusters of one, that the caller owns.
    pub(crate) async fn write_owned(self: &Arc<Self>, offset: u64, data: &Payload) -> Result<(), Error> {
        let end = offset + data.len();
        let mut guest = offset;
        while guest < end {
            let rest = data.slice(guest - offset..data.len());
            guest += self.write_some(guest, rest).await?;
        }
        Ok(())
    }

    /// Writes from the front of `data` as much as goes to one place, and says how much that was.
    async fn write_some(self: &Arc<Self>, guest: u64, data: Payload) -> Result<u64, Error> {
        let (extent, first) =
            self.map.extent_and_entry(&self.medium, GuestRange::at(guest, data.len())).await?;
        if let Kind::Data { host, in_place: true } = extent.kind
            && !self.continues_at_its_place(guest, &data, (host, extent.len)).await?
        {
            self.medium.check_data(host, extent.len)?;
            self.put(data.slice(0..extent.len), host).await?;
            return Ok(extent.len);
        }
        match self.reusable_host(&first) {
            Some(cluster) => self.write_into_place(guest, data, cluster).await,
            None => self.write_to_new_clusters(guest, data, first).await,
        }
    }

    /// Whether clusters follow on the `len` bytes of `data` that go to `host`, which have the places behind them, but are not in use there
    /// as a whole: all of them are written as one.
    async fn continues_at_its_place(
        &self,
        guest: u64,
        data: &Payload,
        (host, len): (HostOffset, u64),
    ) -> Result<bool, Error> {
        if len == data.len() {
            return Ok(false);
        }
        let next = guest + len;
        let entry = self.map.entry(&self.medium, next).await?;
        let place = self.reusable_host(&entry).and_then(|cluster| cluster.host);
        Ok(place.is_some_and(|place| place + self.medium.geometry.in_cluster(next) == host + len))
    }

    /// Puts data to its place. Where that is in a file from which the kernel does not copy it, the error is
    /// [`crate::ErrorKind::Unsupported`].
    async fn put(&self, data: Payload, host: HostOffset) -> Result<(), Error> {
        let is_copied = matches!(data, Payload::File { .. });
        self.medium.about_to_with_data(Step::WriteAio);
        data.put(&*self.medium.data, host.0).await.map_err(|error| match error.kind() {
            std::io::ErrorKind::Unsupported if is_copied => self.medium.blame.unsupported(error.to_string()),
            _ => self.medium.blame.io("writing data")(error),
        })
    }

    /// The cluster that an entry has for itself, if it may be written there.
    fn reusable_host(&self, entry: &L2Entry) -> Option<Cluster> {
        match entry {
            L2Entry::Standard(cluster) if cluster.host.is_some() && self.medium.in_place(cluster.copied) => {
                Some(*cluster)
            }
            L2Entry::Standard(_) | L2Entry::Compressed(_) => None,
        }
    }

    /// What an entry waits for that leads to data at a place that is counted on disk already. Before
    /// its data is there, the place must read as the guest's range did, and nothing else reads so for
    /// certain but zeroes.
    fn needs(&self, fresh: bool, blank: bool) -> Needs {
        match fresh && blank || deliberate::has(Bug::DataNotAwaited) {
            true => Needs::Nothing,
            false => Needs::Barrier,
        }
    }

    /// The subclusters of one cluster that `range` touches.
    fn subclusters(&self, range: GuestRange) -> std::ops::Range<u32> {
        let bits = self.medium.geometry.subcluster_bits();
        let first = self.medium.geometry.in_cluster(range.start) >> bits;
        let count = ((range.end - 1) >> bits) - (range.start >> bits) + 1;
        // Below 32 by the geometry.
        first as u32..(first + count) as u32
    }
}

/// Bits of the subclusters in `range`, which has at most 32.
pub(crate) fn mask(range: std::ops::Range<u32>) -> u32 {
    let below = |bit: u32| ((1u64 << bit) - 1) as u32;
    below(range.end) & !below(range.start)
}

/// A cluster that is written into, in whole or in part.
#[derive(Debug)]
struct Part {
    cluster: Cluster,
    /// What of it is written.
    guest: GuestRange,
    /// The subclusters which that touches.
    touched: std::ops::Range<u32>,
}

impl Part {
    fn in_use(&self, subcluster: u32) -> bool {
        self.cluster.state(subcluster) == Subcluster::Normal
    }
}

impl Inner {
    /// Writes the front of `data` into the place that the entry `first` has, and into the places behind it of the clusters that follow. The
    /// caller owns the subclusters that are written; those around them may change meanwhile.
    async fn write_into_place(
        self: &Arc<Self>,
        guest: u64,
        data: Payload,
        first: Cluster,
    ) -> Result<u64, Error> {
        let host = first.host.unwrap_or_default();
        let range = GuestRange::at(guest, data.len());
        let parts = self.parts_with_places(range, (first, host)).await?;
        let (Some(front), Some(back)) = (parts.first(), parts.last()) else { return Ok(0) };
        let end = back.guest.end;
        // Subclusters at the edges that hold nothing yet are filled up; those in use are left alone.
        let sub = self.medium.geometry.subcluster_size();
        let start = if front.in_use(front.touched.start) { guest } else { guest / sub * sub };
        let fill_end = if back.in_use(back.touched.end - 1) { end } else { end.next_multiple_of(sub) };
        let written = GuestRange { start, end: fill_end };
        let held = BelowHeld::default();
        let place = Placement {
            guest: self.medium.geometry.cluster_start(guest),
            host,
            clusters: parts.len() as u64,
            written,
            fresh: parts.iter().all(|part| self.never_held(part)),
            before: self.before(&held, written).await?,
        };
        let done = async {
            self.write_placed(&place, guest, data.slice(0..end - guest)).await?;
            let needs = self.needs(place.fresh, place.before.blank);
            for part in parts.iter().filter(|part| !part.touched.clone().all(|at| part.in_use(at))) {
                let (cluster, guest) = (part.cluster, part.guest.start);
                let mask = mask(part.touched.clone());
                if deliberate::has(Bug::EntryNotMerged) {
                    let (alloc, zero) = (cluster.alloc | mask, cluster.zero & !mask);
                    let entry = L2Entry::Standard(Cluster { alloc, zero, ..cluster });
                    let start = self.medium.geometry.cluster_start(guest);
                    self.set_entries_that_need(start, &[entry], needs).await?;
                } else {
                    self.set_in_use(guest, mask, needs).await?;
                }
            }
            Ok(end - guest)
        };
        let done = done.await;
        if done.is_err() {
            // There may be bytes where nothing should be: the next write here cannot rely on zeroes.
            let at = host.0 >> self.medium.geometry.cluster_bits;
            self.space.allocator.lock().taint(at..at + place.clusters);
        }
        done
    }

    /// The clusters that `range` touches, from the one with the entry `first` on, up to one that does not lie behind the one before.
    async fn parts_with_places(
        &self,
        range: GuestRange,
        (first, host): (Cluster, HostOffset),
    ) -> Result<Vec<Part>, Error> {
        let size = self.medium.geometry.cluster_size();
        let start = self.medium.geometry.cluster_start(range.start);
        let part = |at: u64, cluster: Cluster| {
            let guest = GuestRange { start: range.start.max(at), end: range.end.min(at + size) };
            Part { cluster, guest, touched: self.subclusters(guest) }
        };
        let mut parts = vec![part(start, first)];
        loop {
            let behind = parts.len() as u64 * size;
            if start + behind >= range.end {
                return Ok(parts);
            }
            let entry = self.map.entry(&self.medium, start + behind).await?;
            match self.reusable_host(&entry).filter(|cluster| cluster.host == Some(host + behind)) {
                Some(cluster) => parts.push(part(start + behind, cluster)),
                None => return Ok(parts),
            }
        }
    }

    /// Whether those of the subclusters that are not in use never held anything: they read as zeroes at
    /// their place. One with the zero flag may have held something before.
    fn never_held(&self, part: &Part) -> bool {
        let Some(host) = part.cluster.host.filter(|_| !self.medium.geometry.external_data) else {
            return false;
        };
        part.touched
            .clone()
            .all(|at| matches!(part.cluster.state(at), Subcluster::Normal | Subcluster::UnallocatedAlloc))
            && self.space.allocator.lock().is_pristine(host.0 >> self.medium.geometry.cluster_bits)
    }
}
