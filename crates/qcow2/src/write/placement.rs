//! One host write: what is copied before the data, the data, what is copied behind.

use std::sync::Arc;

use storage::{IoBytes, IoVec, Zeroing};

use crate::Error;
use crate::below::BelowHeld;
use crate::image::Inner;

/// Zeroes around the data of a cluster that are longer than this are made by the file system, not
/// written: a 4 KiB write into a 2 MiB cluster must not cost 2 MiB.
const ZERO_FILL_WRITTEN_MAX: u64 = 64 << 10;

/// What one host write puts where, and what the map says afterwards.
#[derive(Debug)]
pub(super) struct Placement {
    /// First guest cluster.
    pub(super) guest: u64,
    /// Where it goes: consecutive in the data file.
    pub(super) host: u64,
    /// Number of clusters.
    pub(super) clusters: u64,
    /// The guest range whose bytes are written: the request's part plus what must be copied.
    pub(super) start: u64,
    pub(super) end: u64,
    /// The new place reads as zeroes.
    pub(super) fresh: bool,
    /// `start..end` reads as zeroes before this write.
    pub(super) blank: bool,
}

impl Inner {
    /// One host write: what is copied before, the data, what is copied behind.
    pub(super) async fn write_placed(
        self: &Arc<Self>,
        place: &Placement,
        guest: u64,
        data: IoVec,
    ) -> Result<(), Error> {
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
        let held = BelowHeld::default();
        while guest < end {
            let located = self.locate(&held, guest, end - guest).await?;
            if !matches!(located.source, crate::locate::Source::Zero { .. }) {
                return Ok(false);
            }
            guest += located.len;
        }
        Ok(true)
    }
}
