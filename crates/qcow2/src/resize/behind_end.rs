//! What lies behind the end of the disk: nothing that may ever be seen.
//!
//! An image may have anything there: the rest of the last cluster, clusters that an older and longer disk had,
//! the state of a virtual machine, and a backing file that is longer than the disk.

use std::sync::Arc;

use crate::Error;
use crate::guest_range::GuestRange;
use crate::image::Inner;
use crate::map::Kind;
use crate::zero::{Empty, Space};

impl Inner {
    /// Makes everything between the end of the disk at `old` and `new` read as zeroes once the disk
    /// reaches there. L1 covers it.
    pub(super) async fn make_zero_behind_end(self: &Arc<Self>, old: u64, new: u64) -> Result<(), Error> {
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
