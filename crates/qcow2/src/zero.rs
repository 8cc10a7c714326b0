//! Write-zeroes and discard: whole subclusters and clusters by metadata alone.

use std::sync::Arc;

use block::ZeroOptions;
use qcow2_layout::{Cluster, HostOffset, L2Entry, Version};
use storage::{IoBytes, IoVec, Zeroing};

use crate::Error;
use crate::deliberate::{self, Bug};
use crate::guest_range::GuestRange;
use crate::image::Inner;
use crate::map::Kind;
use crate::waiting::Needs;
use crate::write::mask;

/// Zeroes written at a time where metadata cannot say it.
const WRITTEN_AT_ONCE: u64 = 2 << 20;

/// Entries changed at a time: bounds what one request holds in memory.
const ENTRIES_AT_ONCE: u64 = 8192;

/// A commit writes no less of an L2 table: nothing else of it needs room.
const SMALLEST_WRITE_BYTES: usize = 4096;

/// Why clusters are to read as zeroes, and what becomes of their space.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Space {
    /// Stays where it is, reserved.
    Keep,
    /// Is given back.
    Free { punch: bool },
    /// Stays reserved in the image, but the file system may have it.
    PunchOnly,
}

/// What becomes of clusters that hold nothing, where nothing lies below that would show.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Empty {
    /// They are recorded as zeroes, as QEMU does: they stay zeroes whatever image is put below later. Version 2 cannot.
    Recorded,
    /// They stay unallocated.
    Left,
}

impl Inner {
    /// See [`crate::Qcow2::zero`].
    pub(crate) async fn zero(self: &Arc<Self>, range: GuestRange, options: ZeroOptions) -> Result<(), Error> {
        self.check_writable()?;
        let image = Arc::clone(self);
        self.medium
            .to_the_end(async move {
                let _pass = image.enter_to_change(range).await?;
                image.zero_range(range, options).await
            })
            .await
    }

    async fn zero_range(self: &Arc<Self>, range: GuestRange, options: ZeroOptions) -> Result<(), Error> {
        let (whole, end) = (self.whole_subclusters(range), range.end);
        if self.zeroes_are_data() || whole.is_empty() {
            return self.zero_parts(range, options).await;
        }
        self.zero_parts(range.before(whole.start), options).await?;
        let space = match options.unmap {
            true if self.discards().discard_no_unref => Space::PunchOnly,
            true => Space::Free { punch: self.discards().pass_discard_request },
            false => Space::Keep,
        };
        self.zero_subclusters(whole, space, Empty::Recorded).await?;
        self.zero_parts(GuestRange { start: whole.end.min(end), end }, options).await
    }

    /// The subclusters that lie in `range` as a whole; the last one of the disk may be cut off by its end.
    fn whole_subclusters(&self, range: GuestRange) -> GuestRange {
        let sub = self.medium.geometry.subcluster_size();
        let end = match range.end == self.size() {
            true => range.end.next_multiple_of(sub),
            false => range.end / sub * sub,
        };
        GuestRange { start: range.start.next_multiple_of(sub), end }
    }

    /// Version 2 has no zero flag. As in QEMU, zeroes are written there where anything lies below, whatever that reads as: another image may
    /// take its place. Where nothing does, and nothing is expected ([`crate::Qcow2::await_backing`]), they are left unallocated.
    fn zeroes_are_data(&self) -> bool {
        self.medium.geometry.version == Version::V2
            && (self.has_backing() || self.awaits_backing() || self.is_over_changing())
    }

    /// Zeroes that are no whole subclusters, or that metadata cannot say.
    async fn zero_parts(self: &Arc<Self>, mut range: GuestRange, options: ZeroOptions) -> Result<(), Error> {
        let sub = self.medium.geometry.subcluster_size();
        // A write that failed may have left something in a raw data file that the map knows nothing of. What changes below may do so
        // between the look and the write.
        let is_written = self.zeroes_are_data() || self.medium.raw_data || self.is_over_changing();
        while !range.is_empty() {
            let limit = match is_written {
                true => range.start.saturating_add(WRITTEN_AT_ONCE),
                false => (range.start / sub + 1).saturating_mul(sub),
            };
            let part = range.before(limit);
            if is_written || !self.zero_whole_around(part).await? {
                let small = part.len() < sub;
                if options.fast_only && !small {
                    return Err(self.medium.blame.unsupported("zeroes would have to be written one by one"));
                }
                let data = IoVec::from(IoBytes::zeroed(part.len() as usize));
                self.write_anywhere(part.start, data.into()).await?;
            }
            range = range.behind(part.len());
        }
        Ok(())
    }

    /// Makes the subcluster around `part` zeroes by metadata, if the rest of it reads so: what lies below may be exchanged for something
    /// else later, and `part` must not change with it. Returns whether `part` is recorded as zeroes now.
    async fn zero_whole_around(self: &Arc<Self>, part: GuestRange) -> Result<bool, Error> {
        if deliberate::has(Bug::ZeroesNotRecorded) {
            return self.is_zero(part).await;
        }
        let sub = self.medium.geometry.subcluster_size();
        let whole = GuestRange { start: part.start / sub * sub, end: part.end.next_multiple_of(sub) };
        {
            let owned = self.own_clusters(whole).await;
            let _owned = (!deliberate::has(Bug::LockDropped)).then_some(owned);
            if self.records_zeroes(part).await? {
                return Ok(true);
            }
            let tail = whole.before(self.size()).behind(part.end - whole.start);
            if !self.is_zero(whole.before(part.start)).await? || !self.is_zero(tail).await? {
                return Ok(false);
            }
            self.zero_batch(whole, Space::Keep, Empty::Recorded).await?;
        }
        if self.wants_commit() {
            self.commit().await?;
        }
        Ok(true)
    }

    /// Whether the entries of this image itself say that `part` reads as zeroes.
    async fn records_zeroes(&self, mut part: GuestRange) -> Result<bool, Error> {
        while !part.is_empty() {
            let extent = self.map.extent(&self.medium, part).await?;
            if !matches!(extent.kind, Kind::Zero { .. }) {
                return Ok(false);
            }
            part = part.behind(extent.len);
        }
        Ok(true)
    }

    /// See [`crate::Qcow2::discard`].
    pub(crate) async fn discard(self: &Arc<Self>, range: GuestRange) -> Result<(), Error> {
        self.check_writable()?;
        let size = self.medium.geometry.cluster_size();
        let end = match range.end == self.size() {
            true => range.end.next_multiple_of(size),
            false => range.end / size * size,
        };
        let whole = GuestRange { start: range.start.next_multiple_of(size), end };
        if !self.discards().discard || whole.is_empty() {
            return Ok(());
        }
        let image = Arc::clone(self);
        self.medium
            .to_the_end(async move {
                let _pass = image.enter_to_change(range).await?;
                // Version 2 cannot say "zeroes" above a backing file: there a discard would bring the
                // backing file's old content back. Nothing is the right thing to do.
                if image.medium.geometry.version == Version::V2
                    && (image.has_backing() || image.awaits_backing())
                {
                    return Ok(());
                }
                let space = match image.discards().discard_no_unref {
                    true => Space::PunchOnly,
                    false => Space::Free { punch: image.discards().pass_discard_request },
                };
                image.zero_subclusters(whole, space, Empty::Left).await
            })
            .await
    }

    /// Makes whole subclusters read as zeroes. The ends of `range` are multiples of the subcluster size.
    pub(crate) async fn zero_subclusters(
        self: &Arc<Self>,
        range: GuestRange,
        space: Space,
        empty: Empty,
    ) -> Result<(), Error> {
        let size = self.medium.geometry.cluster_size();
        let GuestRange { start: mut guest, end } = range;
        while guest < end {
            let table_end = (guest / self.medium.geometry.bytes_per_l2_table() + 1)
                .saturating_mul(self.medium.geometry.bytes_per_l2_table());
            if self.may_lack_table(guest, empty)? {
                guest = end.min(table_end);
                continue;
            }
            let batch_end = self.medium.geometry.cluster_start(guest).saturating_add(ENTRIES_AT_ONCE * size);
            let batch = GuestRange { start: guest, end: end.min(table_end).min(batch_end) };
            {
                let owned = self.own_clusters(batch).await;
                let _owned = (!deliberate::has(Bug::LockDropped)).then_some(owned);
                self.zero_batch(batch, space, empty).await?;
            }
            if self.wants_commit() {
                self.commit().await?;
            }
            guest = batch.end;
        }
        Ok(())
    }

    /// Whether clusters that hold nothing, with nothing below them, stay as they are. In front of a raw data file they do: nothing is
    /// ever put below such an image.
    fn leaves_empty(&self, empty: Empty) -> bool {
        let is_recorded = empty == Empty::Recorded
            && self.medium.geometry.version == Version::V3
            && !self.medium.raw_data
            && !deliberate::has(Bug::ZeroesNotRecorded);
        !is_recorded && !self.has_backing() && !self.awaits_backing()
    }

    /// Whether nothing changes where `guest` has no L2 table.
    fn may_lack_table(&self, guest: u64, empty: Empty) -> Result<bool, Error> {
        if !self.leaves_empty(empty) || self.medium.raw_data {
            return Ok(false);
        }
        Ok(self.map.l1_entry(&self.medium, guest)?.table.is_none())
    }

    /// Part of one L2 table. Entries that change are replaced first, and what they referred to is
    /// freed after that.
    async fn zero_batch(
        self: &Arc<Self>,
        range: GuestRange,
        space: Space,
        empty: Empty,
    ) -> Result<(), Error> {
        let GuestRange { start, end } = range;
        let size = self.medium.geometry.cluster_size();
        // Beyond the end of the disk there is nothing that is ever read.
        let inside = end.min(self.size()).saturating_sub(start);
        let mut _raw = None;
        if self.medium.raw_data && inside > 0 {
            // Until the entries say so too.
            _raw = Some(self.turns.raw_ranges.own(start..start + inside).await);
            let zeroed = self.medium.data.zero(start, inside, self.raw_zeroing(space)).await;
            zeroed.map_err(self.medium.blame.io("zeroing in the data file"))?;
        }
        let mut guest = start;
        let mut changed: Vec<L2Entry> = Vec::new();
        let mut replaced: Vec<(u64, L2Entry)> = Vec::new();
        let mut changed_from = self.medium.geometry.cluster_start(start);
        while guest < end {
            let cluster_start = self.medium.geometry.cluster_start(guest);
            let cluster_end = (cluster_start + size).min(end);
            let old = self.map.entry(&self.medium, guest).await?;
            let part = cluster_end - guest < size;
            if part && matches!(old, L2Entry::Compressed(_)) {
                self.replace(changed_from, &mut changed, &mut replaced, space).await?;
                self.write_zeroes_owned(GuestRange { start: guest, end: cluster_end }).await?;
                guest = cluster_end;
                continue;
            }
            match self.zeroed(&old, GuestRange { start: guest, end: cluster_end }, space, empty) {
                Some(new) => {
                    if changed.is_empty() {
                        changed_from = cluster_start;
                    }
                    changed.push(new);
                    replaced.push((cluster_start, old));
                }
                None => self.replace(changed_from, &mut changed, &mut replaced, space).await?,
            }
            guest = cluster_end;
        }
        self.replace(changed_from, &mut changed, &mut replaced, space).await
    }

    async fn replace(
        self: &Arc<Self>,
        from: u64,
        entries: &mut Vec<L2Entry>,
        old: &mut Vec<(u64, L2Entry)>,
        space: Space,
    ) -> Result<(), Error> {
        if entries.is_empty() {
            return Ok(());
        }
        match self.table_for_writing(from).await {
            // Entries that lead somewhere have their room, and this gives some back.
            Err(error) if error.is_no_space() && self.is_rewriting(from, old)? => {}
            found => found?,
        }
        // Nothing has to be there before what leads nowhere.
        self.map.put_entries(&self.medium, from, entries, Needs::Nothing).await?;
        for ((guest, old), new) in old.iter().zip(entries.iter()) {
            self.give_up(*guest, old, new, space).await;
        }
        entries.clear();
        old.clear();
        Ok(())
    }

    /// Whether each page of the L2 table that `old` entries from `from` on are in holds something, in the file or in memory with
    /// its room taken: then it can be written on a full device.
    fn is_rewriting(&self, from: u64, old: &[(u64, L2Entry)]) -> Result<bool, Error> {
        let in_place = self.map.l1_entry(&self.medium, from)?.copied;
        let whole_pages = self.map.shape.slice_bytes() <= SMALLEST_WRITE_BYTES;
        Ok(in_place && whole_pages && old.iter().all(|(_, old)| *old != L2Entry::UNALLOCATED))
    }

    /// What the entry of a cluster becomes when `part` of it is to read as zeroes; `None` if it
    /// does already, as the caller wants it.
    fn zeroed(&self, old: &L2Entry, part: GuestRange, space: Space, empty: Empty) -> Option<L2Entry> {
        let sub = self.medium.geometry.subcluster_bits();
        let first = (self.medium.geometry.in_cluster(part.start) >> sub) as u32;
        let count = (part.len() >> sub) as u32;
        let zeroed = mask(first..first + count);
        let whole = zeroed == self.medium.geometry.subcluster_mask();
        let zero_flag = if self.medium.geometry.version == Version::V3 { zeroed } else { 0 };
        let old = match old {
            L2Entry::Standard(cluster) => *cluster,
            L2Entry::Compressed(_) => {
                debug_assert!(whole, "part of a compressed cluster is zeroed by writing");
                return Some(L2Entry::Standard(Cluster { zero: zero_flag, ..Cluster::UNALLOCATED }));
            }
        };
        let unallocated = old.alloc == 0 && old.zero == 0 && old.host.is_none();
        if unallocated && self.leaves_empty(empty) {
            return None;
        }
        // Without the zero flag an entry that has a place is data.
        let keeps_place = zero_flag != 0
            && old.host.is_some()
            && self.medium.in_place(old.copied)
            && (!whole || space == Space::Keep || space == Space::PunchOnly || self.medium.raw_data);
        let new = match (keeps_place, whole) {
            (true, _) => {
                Cluster { alloc: old.alloc & !zeroed, zero: (old.zero & !zeroed) | zero_flag, ..old }
            }
            (false, true) => Cluster { zero: zero_flag, ..Cluster::UNALLOCATED },
            // Shared with a snapshot: the other subclusters stay where they are.
            (false, false) => {
                Cluster { alloc: old.alloc & !zeroed, zero: (old.zero & !zeroed) | zero_flag, ..old }
            }
        };
        (new != old).then_some(L2Entry::Standard(new))
    }

    /// Frees or punches what an entry that now reads as zeroes referred to.
    async fn give_up(&self, guest: u64, old: &L2Entry, new: &L2Entry, space: Space) {
        let kept = matches!(new, L2Entry::Standard(Cluster { host: Some(_), .. }));
        let size = self.medium.geometry.cluster_size();
        if self.medium.geometry.external_data {
            if let (false, Space::Free { punch: true }, L2Entry::Standard(Cluster { host: Some(host), .. })) =
                (kept || self.medium.raw_data, space, old)
            {
                self.punch_data(*host, size.min(self.size().saturating_sub(guest))).await;
            }
        } else if !kept {
            self.space.free_entry(
                &self.medium,
                old,
                matches!(space, Space::Free { punch: true }) || space == Space::PunchOnly,
            );
        } else if let (Space::PunchOnly, L2Entry::Standard(Cluster { alloc: 0, host: Some(host), .. })) =
            (space, new)
        {
            // The image owns the cluster while its guest cluster is owned here: no request writes to it.
            self.punch_data(*host, size).await;
        }
    }

    /// Writes zeroes to clusters that the caller owns.
    pub(crate) async fn write_zeroes_owned(self: &Arc<Self>, range: GuestRange) -> Result<(), Error> {
        let data = IoVec::from(IoBytes::zeroed(range.len() as usize));
        self.write_owned(range.start, &data.into()).await
    }

    fn raw_zeroing(&self, space: Space) -> Zeroing {
        match space {
            Space::Keep => Zeroing::Keep,
            Space::Free { .. } | Space::PunchOnly => Zeroing::Unmap,
        }
    }

    async fn punch_data(&self, host: HostOffset, len: u64) {
        if let Err(error) = self.medium.data.discard(host.0, len).await {
            tracing::debug!(
                "{}: cannot give space back to the file system: {error}",
                self.medium.blame.name()
            );
        }
    }
}
