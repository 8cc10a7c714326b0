//! The state of a machine: bytes that the L1 table maps behind those of the disk (specification, "VM state"). A snapshot keeps what was
//! written before it was taken; the disk itself never shows it, and neither does what lies below the image.

use std::ops::Range;
use std::sync::Arc;

use block::BlockFuture;
use memory::Filling;
use storage::{Hints, IoBuf, IoBytes, IoVec};

use crate::Error;
use crate::guest_range::GuestRange;
use crate::image::{Inner, Qcow2};
use crate::map::Kind;
use crate::read::{Located, Source};
use crate::write::Payload;

impl Qcow2 {
    /// Writes `data` at `offset` of the machine's state. Waits for no request on the disk, except where the L1 table must become longer. Costs a
    /// read of the clusters at both ends.
    ///
    /// # Errors
    /// When the image cannot be written, keeps its data in another file, or the state would end behind what an L1 table can map.
    ///
    /// # Crash
    /// The state has the old bytes or the new ones, cluster by cluster; leaks.
    pub fn write_machine_state(&self, offset: u64, data: IoVec) -> BlockFuture<'_, Result<(), Error>> {
        Box::pin(async move {
            let write = async move |image: Arc<Inner>| image.write_machine_state(offset, data).await;
            let result = self.inner.managed(write).await;
            self.inner.reporting(result).await
        })
    }

    /// Fills `buf` with the machine's state from `offset` on; what was never written reads as zeroes.
    ///
    /// # Errors
    /// When the image is closed, keeps its data in another file, or cannot be read.
    pub fn read_machine_state(&self, offset: u64, buf: IoBuf) -> BlockFuture<'_, (Result<(), Error>, IoBuf)> {
        Box::pin(async move {
            let _pass = match self.inner.enter().await {
                Ok(pass) => pass,
                Err(error) => return (Err(error), buf),
            };
            match self.inner.machine_state_range(offset..offset.saturating_add(buf.len() as u64)) {
                Ok(range) => self.inner.read_machine_state(range.start, buf).await,
                Err(error) => (Err(error), buf),
            }
        })
    }
}

impl Inner {
    /// Where the L1 table maps `part` of the state: from the first entry behind those of the disk.
    fn machine_state_range(&self, part: Range<u64>) -> Result<GuestRange, Error> {
        let geometry = &self.medium.geometry;
        if geometry.external_data {
            let what = "an image with a data file has no room for the state of a machine";
            return Err(self.medium.blame.unsupported(what));
        }
        let entry_bytes = geometry.cluster_size() << geometry.l2_bits();
        let first = geometry.l1_entries_for(self.size()) * entry_bytes;
        let start = first.saturating_add(part.start);
        let end = first.saturating_add(part.end);
        if self.check_covered(end).is_err() {
            let error = std::io::Error::from(std::io::ErrorKind::FileTooLarge);
            return Err(self.medium.blame.io("finding room for the state of a machine")(error));
        }
        Ok(GuestRange { start, end })
    }

    /// Whole clusters are written, so that nothing is copied from what the disk has at such an offset: it has nothing.
    async fn write_machine_state(self: &Arc<Self>, offset: u64, data: IoVec) -> Result<(), Error> {
        let range = self.machine_state_range(offset..offset.saturating_add(data.len() as u64))?;
        if range.is_empty() {
            return Ok(());
        }
        self.prepare_header_for_first_change().await?;
        let geometry = &self.medium.geometry;
        let start = geometry.cluster_start(range.start);
        let end = range.end.next_multiple_of(geometry.cluster_size());
        self.cover(end).await?;
        let _pass = self.enter().await?;
        let mut whole = IoVec::new();
        if let Some(head) = self.old_machine_state(start..range.start).await? {
            whole.push(head);
        }
        whole.append(data);
        if let Some(tail) = self.old_machine_state(range.end..end).await? {
            whole.push(tail);
        }
        self.write_anywhere(start, Payload::new(whole, Hints::NONE)).await
    }

    async fn old_machine_state(&self, range: Range<u64>) -> Result<Option<IoBytes>, Error> {
        let len = range.end - range.start;
        if len == 0 {
            return Ok(None);
        }
        // Less than a cluster.
        let buf = IoBuf::try_uninit(len as usize);
        let buf = buf.ok_or_else(|| self.medium.blame.no_memory("the state of a machine"))?;
        let (result, buf) = self.read_machine_state(range.start, buf).await;
        result.map(|()| Some(buf.freeze()))
    }

    async fn read_machine_state(&self, start: u64, buf: IoBuf) -> (Result<(), Error>, IoBuf) {
        let mut filling = Filling::new(buf);
        let mut guest = start;
        let mut result = Ok(());
        while result.is_ok() && !filling.is_full() {
            let range = GuestRange::at(guest, filling.left() as u64);
            let located = match self.machine_state_at(range).await {
                Ok(located) => located,
                Err(error) => {
                    result = Err(error);
                    break;
                }
            };
            // At most what is left.
            let piece = filling.take(located.len as usize);
            guest += located.len;
            let (read, piece) = self.read_piece(range.start, located, piece, Hints::NONE).await;
            result = read.map(drop);
            filling.give(piece);
        }
        (result, filling.end())
    }

    /// Where the bytes at the start of `range` are, in this image alone.
    async fn machine_state_at(&self, range: GuestRange) -> Result<Located<'_>, Error> {
        let (extent, _) = self.map.extent_and_entry(&self.medium, range).await?;
        let source = match extent.kind {
            Kind::Data { host, .. } => {
                self.medium.check_data(host, extent.len)?;
                self.data_at(host)
            }
            Kind::Compressed { cluster, skip } => Source::Compressed { layer: self, cluster, skip },
            Kind::Zero { .. } | Kind::Unallocated { .. } => Source::Zero { explicit: false, host: None },
        };
        Ok(Located { len: extent.len, depth: 0, source })
    }
}
