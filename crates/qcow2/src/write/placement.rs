//! One host write: what is copied before the data, the data, what is copied behind.

use std::sync::Arc;

use qcow2_layout::HostOffset;
use storage::{Hints, IoBuf, IoBytes, IoVec, Step, Zeroing};

use super::Payload;
use crate::Error;
use crate::below::BelowHeld;
use crate::deliberate::{self, Bug};
use crate::guest_range::GuestRange;
use crate::image::Inner;
use crate::read::Located;

/// Zeroes around the data of a cluster that are longer than this are made by the file system, not
/// written: a 4 KiB write into a 2 MiB cluster must not cost 2 MiB.
const ZERO_FILL_WRITTEN_MAX: u64 = 64 << 10;

/// What one host write puts where, and what the map says afterwards.
#[derive(Debug)]
pub(super) struct Placement<'a> {
    /// First guest cluster.
    pub(super) guest: u64,
    /// Where it goes: consecutive in the data file.
    pub(super) host: HostOffset,
    /// Number of clusters.
    pub(super) clusters: u64,
    /// The guest range whose bytes are written: the request's part plus what must be copied.
    pub(super) written: GuestRange,
    /// The new place reads as zeroes.
    pub(super) fresh: bool,
    /// What `written` reads as before this write.
    pub(super) before: Before<'a>,
}

/// What a guest range reads as before a write, looked up once and handed on.
#[derive(Debug)]
pub(super) struct Before<'a> {
    /// Where the range begins ...
    start: u64,
    /// ... and where the bytes there are: usually all of the range.
    first: Located<'a>,
    /// The map alone says that all of it reads as zeroes.
    pub(super) blank: bool,
}

impl<'a> Before<'a> {
    /// Where `range` is, as far as it is known.
    fn part(&self, range: GuestRange) -> Option<Located<'a>> {
        self.first.part(range.start - self.start..range.end - self.start)
    }
}

impl Inner {
    /// Looks up what `range` reads as, which is not empty. The caller owns the clusters, so it stays true.
    pub(super) async fn before<'a>(
        &'a self,
        held: &'a BelowHeld,
        range: GuestRange,
    ) -> Result<Before<'a>, Error> {
        let first = self.locate(held, range).await?;
        let behind = range.behind(first.len);
        let blank = first.is_zero() && (behind.is_empty() || self.is_zero(behind).await?);
        Ok(Before { start: range.start, first, blank })
    }

    /// One host write: what is copied before, the data, what is copied behind.
    pub(super) async fn write_placed(
        self: &Arc<Self>,
        place: &Placement<'_>,
        guest: u64,
        data: Payload,
    ) -> Result<(), Error> {
        let end = guest + data.len();
        let at = |guest: u64| place.host + (guest - place.guest);
        let before = place.written.before(guest);
        let behind = GuestRange { start: end, ..place.written };
        let hints = data.hints();
        let (head, tail) = futures_util::future::join(
            self.copied(before, place, at(before.start), hints),
            self.copied(behind, place, at(end), hints),
        )
        .await;
        let (head, tail) = (head?, tail?);
        let start = guest - head.as_ref().map_or(0, |head| head.len() as u64);
        let stop = end + tail.as_ref().map_or(0, |tail| tail.len() as u64);
        debug_assert!(at(stop) <= place.host + place.clusters * self.medium.geometry.cluster_size());
        self.medium.check_data(at(start), stop - start)?;
        let data = match data {
            Payload::Bytes(data, _) => data,
            copied => {
                for (part, guest) in [(head, start), (tail, end)] {
                    if let Some(part) = part {
                        self.put(IoVec::from(part).into(), at(guest)).await?;
                    }
                }
                return self.put(copied, at(guest)).await;
            }
        };
        let mut bytes = IoVec::new();
        head.into_iter().for_each(|head| bytes.push(head));
        bytes.append(data);
        tail.into_iter().for_each(|tail| bytes.push(tail));
        self.put(Payload::new(bytes, hints), at(start)).await
    }

    /// What must be written at `host` so that it reads as `range` of the guest did: the bytes,
    /// or `None` where the place reads so by now.
    async fn copied(
        &self,
        range: GuestRange,
        place: &Placement<'_>,
        host: HostOffset,
        hints: Hints,
    ) -> Result<Option<IoBytes>, Error> {
        if range.is_empty() {
            return Ok(None);
        }
        let len = range.len();
        let known = place.before.part(range);
        let is_zero = match known {
            _ if place.before.blank => true,
            Some(located) => {
                located.is_zero() || (located.is_packed() && deliberate::has(Bug::PackedRestLost))
            }
            None => self.is_zero(range).await?,
        };
        if is_zero {
            if place.fresh {
                return Ok(None);
            }
            if len > ZERO_FILL_WRITTEN_MAX {
                self.medium.check_data(host, len)?;
                let zeroed = self.medium.data.zero(host.0, len, Zeroing::Keep).await;
                zeroed.map_err(self.medium.blame.io("zeroing the rest of a cluster"))?;
                return Ok(None);
            }
            return Ok(Some(IoBytes::zeroed(len as usize)));
        }
        let buf = IoBuf::for_request(len as usize)
            .map_err(self.medium.blame.io("copying the rest of a cluster"))?;
        self.medium.about_to_with_data(Step::CowRead);
        let (result, buf) = match known {
            Some(located) => self.read_piece(range.start, located, buf, hints).await,
            None => self.read(range.start, buf, hints).await,
        };
        result?;
        Ok(Some(buf.freeze()))
    }

    /// Whether the map alone says that `range` reads as zeroes.
    pub(crate) async fn is_zero(&self, mut range: GuestRange) -> Result<bool, Error> {
        let held = BelowHeld::default();
        while !range.is_empty() {
            let located = self.locate(&held, range).await?;
            if !located.is_zero() {
                return Ok(false);
            }
            range = range.behind(located.len);
        }
        Ok(true)
    }
}
