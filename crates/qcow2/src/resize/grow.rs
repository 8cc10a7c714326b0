//! A larger disk.

use std::sync::Arc;

use qcow2_layout::{HostOffset, L1_BYTES_MAX};
use storage::{Allocation, Step, Zeroing};

use crate::free::Free;
use crate::guest_range::GuestRange;
use crate::image::Inner;
use crate::map::Kind;
use crate::overlap::Section;
use crate::table_io::encode_words;
use crate::zero::{Empty, Space};
use crate::{Error, Preallocation, ResizeOptions};

impl Inner {
    /// L1 entries first, then what becomes visible is made zero, all of it durable; then the header says
    /// so.
    pub(super) async fn grow(
        self: &Arc<Self>,
        old: u64,
        size: u64,
        options: ResizeOptions,
    ) -> Result<(), Error> {
        self.cover(size).await?;
        self.make_zero_behind_end(old, size).await?;
        let preallocation = match self.medium.geometry.external_data {
            true => self.grow_data_file(old, size, options.preallocation).await?,
            false => options.preallocation,
        };
        if preallocation != Preallocation::Off {
            self.preallocate(old, size, preallocation).await?;
        }
        if options.bitmaps {
            let pause = self.pause().await?;
            return self.set_size_with_bitmaps(&pause, old, size).await;
        }
        self.commit().await?;
        self.set_size(size).await
    }

    /// The data file has the size of the disk. Gives what is left to be preallocated: the map of a
    /// data file that can be read on its own is complete.
    async fn grow_data_file(
        &self,
        old: u64,
        size: u64,
        preallocation: Preallocation,
    ) -> Result<Preallocation, Error> {
        let capabilities = self.medium.data.capabilities();
        // Such a file has old bytes behind the end of the disk.
        let was_longer = self.medium.data.length() > old;
        if capabilities.resizable {
            self.medium.data.grow_to(size).await.map_err(self.medium.blame.io("growing the data file"))?;
        }
        let (start, len) = (old, size - old);
        let done = match preallocation {
            // Nothing is mapped there.
            Preallocation::Off if !self.medium.raw_data => Ok(()),
            Preallocation::Off | Preallocation::Metadata => {
                self.medium.data.zero(start, len, Zeroing::Unmap).await
            }
            Preallocation::Falloc if capabilities.grows_zeroed && !was_longer => {
                self.medium.data.allocate(start, len, Allocation::Reserve).await
            }
            Preallocation::Falloc => self.medium.data.zero(start, len, Zeroing::Keep).await,
            Preallocation::Full => self.medium.data.allocate(start, len, Allocation::Write).await,
        };
        done.map_err(self.medium.blame.io("preallocating the data file"))?;
        Ok(match preallocation {
            Preallocation::Off if !self.medium.raw_data => Preallocation::Off,
            _ => Preallocation::Metadata,
        })
    }

    /// Makes sure that the L1 table has an entry for every byte of a disk of `size` bytes. A table that is
    /// too short moves: the copy is complete and counted on disk before the header leads to it.
    pub(crate) async fn cover(self: &Arc<Self>, size: u64) -> Result<(), Error> {
        // Below 2^22 by the limit on L1 tables.
        let entries = self.medium.geometry.l1_entries_for(size) as usize;
        if entries <= self.map.l1.len() {
            return Ok(());
        }
        debug_assert!(entries as u64 <= L1_BYTES_MAX / 8);
        self.map.l1.reserve(entries).map_err(|error| error.blamed(&self.medium.blame))?;
        let pause = self.pause().await?;
        let mut words = self.map.l1.words().map_err(|_| self.medium.blame.no_memory("the L1 table"))?;
        let more = words.try_reserve_exact(entries - words.len());
        more.map_err(|_| self.medium.blame.no_memory("the L1 table"))?;
        words.resize(entries, 0);
        let clusters = self.medium.geometry.clusters_for(entries as u64 * 8);
        self.medium.about_to(Step::L1GrowAllocTable);
        let run = self.space.allocate_exactly(&self.medium, clusters).await?;
        let at = HostOffset(run.start << self.medium.geometry.cluster_bits);
        let moved = self.move_l1(at, clusters, &words).await;
        if moved.is_err() && self.medium.check_not_stopped().is_ok() {
            self.space.give_back(&self.medium, run).await;
        }
        drop(pause);
        moved
    }

    async fn move_l1(self: &Arc<Self>, at: HostOffset, clusters: u64, words: &[u64]) -> Result<(), Error> {
        let len = (clusters << self.medium.geometry.cluster_bits) as usize;
        let bytes = encode_words(words.iter().copied(), len);
        let bytes = bytes.map_err(|_| self.medium.blame.no_memory("the L1 table"))?;
        self.medium.about_to(Step::L1GrowWriteTable);
        self.medium.write_table(at.0, &bytes, Section::ActiveL1).await?;
        // The barrier covers the table; the refcounts of its clusters are before it.
        self.commit().await?;
        let (old, old_bytes) = (self.map.l1.offset(), self.map.l1.len() as u64 * 8);
        self.medium.about_to(Step::L1GrowActivateTable);
        self.header
            .switch_header(&self.medium, |header| {
                header.l1_table_offset = at;
                // Below 2^22, see above.
                header.l1_size = words.len() as u32;
            })
            .await?;
        self.map.l1.replace(at.0, words);
        self.medium.overlap.remove(old, Section::ActiveL1);
        self.medium.overlap.add(at.0, words.len() as u64 * 8, Section::ActiveL1);
        if old_bytes > 0 {
            let start = old >> self.medium.geometry.cluster_bits;
            let len = self.medium.geometry.clusters_for(old_bytes);
            self.reclaim(vec![Free { start, len, punch: self.options.pass_discard_other }]);
        }
        Ok(())
    }
}

impl Inner {
    /// Makes everything between the end of the disk at `old` and `new` read as zeroes once the disk
    /// reaches there. L1 covers it. An image may have anything there: the rest of the last cluster, clusters that an
    /// older and longer disk had, the state of a virtual machine, and a backing file that is longer than the disk.
    async fn make_zero_behind_end(self: &Arc<Self>, old: u64, new: u64) -> Result<(), Error> {
        let cluster = self.medium.geometry.cluster_size();
        let backing = self.backing_size().min(new);
        if backing > old && self.medium.geometry.version == qcow2_layout::Version::V2 {
            return Err(self.medium.blame.unsupported(format!(
                "the backing file has {backing} bytes, more than the disk ({old}): a version 2 image (compat=0.10) cannot hide the rest"
            )));
        }
        let whole = old.next_multiple_of(cluster);
        if old < whole {
            self.make_tail_zero(GuestRange { start: old, end: whole }).await?;
        }
        let table = self.medium.geometry.bytes_per_l2_table();
        let mut from = whole;
        while from < new {
            let table_end = (from / table + 1).saturating_mul(table);
            let end = table_end.min(new.next_multiple_of(cluster));
            let has_table = self.l1_table_of(from)?.is_some();
            // Without a table only what shows through from below is anything but zeroes.
            let visible = if has_table { end } else { end.min(backing.next_multiple_of(cluster)) };
            if visible > from {
                let _pass = self.enter().await?;
                let space = Space::Free { punch: self.options.pass_discard_other };
                let behind = GuestRange { start: from, end: visible };
                self.zero_subclusters(behind, space, Empty::Left).await?;
            }
            from = table_end;
        }
        Ok(())
    }

    /// The rest of the last cluster: a zero flag does not reach into a subcluster.
    async fn make_tail_zero(self: &Arc<Self>, mut tail: GuestRange) -> Result<(), Error> {
        let _pass = self.enter().await?;
        let _owned = self.own_clusters(tail).await;
        let backing = self.backing_size();
        while !tail.is_empty() {
            let extent = self.map.extent(&self.medium, tail).await?;
            let part = GuestRange::at(tail.start, extent.len);
            match extent.kind {
                Kind::Data { .. } | Kind::Compressed { .. } => self.write_zeroes_owned(part).await?,
                Kind::Unallocated { .. } if part.start < backing => self.write_zeroes_owned(part).await?,
                Kind::Unallocated { .. } | Kind::Zero { .. } => {}
            }
            tail = tail.behind(extent.len);
        }
        Ok(())
    }

    fn l1_table_of(&self, guest: u64) -> Result<Option<qcow2_layout::HostOffset>, Error> {
        Ok(self.map.l1_entry(&self.medium, guest)?.table)
    }
}
