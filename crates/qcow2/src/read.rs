//! Reading guest data: an image as a block, where the bytes of a guest range are, and the reads of them.

use std::sync::Arc;

use block::{Blame, Block, BlockFuture, BlockStatus, Capabilities, ReadKind, Stored, Takes, ZeroOptions};
use futures_util::future::join_all;
use luks::SectorCipher;
use map_cache::SliceKey;
use qcow2_layout::{CompressedCluster, HostOffset};
use storage::{ForeignBytes, Hints, IoBuf, IoVec, Step as EngineStep, Storage, about_to};

use crate::below::{Below, BelowHeld, Lower};
use crate::chain::{Chain, Lookup, UnitPlace};
use crate::encryption::read_by_guest;
use crate::guest_range::GuestRange;
use crate::health::Contradiction;
use crate::image::Inner;
use crate::map::{Kind, Mapped};
use crate::{Error, Qcow2};

/// Pieces of one request that are read at the same time: enough to keep a device busy, bounded
/// whatever the image looks like.
pub(crate) const PIECES_AT_ONCE: usize = 64;

impl Inner {
    /// Reads without waiting; see [`crate::Qcow2::try_read`].
    pub(crate) fn try_read(&self, offset: u64, buf: &mut [u8], hints: Hints) -> Option<ReadKind> {
        let _pass = self.turns.gate.try_enter()?;
        if offset.checked_add(buf.len() as u64).is_none_or(|end| end > self.size()) {
            return None;
        }
        let (mut guest, mut rest) = (offset, buf);
        let held = BelowHeld::default();
        while !rest.is_empty() {
            let wanted = GuestRange::at(guest, rest.len() as u64);
            let Ok(Step::Located(located)) = self.try_locate(&held, wanted) else { return None };
            let (piece, behind) = rest.split_at_mut(located.len as usize);
            match located.source {
                Source::Zero { .. } if guest == offset && behind.is_empty() => return Some(ReadKind::Zeroes),
                Source::Zero { .. } => piece.fill(0),
                Source::Plain { storage, offset } if storage.try_read(offset.0, piece, hints) => {}
                Source::Block(block) => match block.try_read(guest, piece, hints)? {
                    ReadKind::Data => {}
                    ReadKind::Zeroes if guest == offset && behind.is_empty() => {
                        return Some(ReadKind::Zeroes);
                    }
                    ReadKind::Zeroes => piece.fill(0),
                },
                Source::Plain { .. } | Source::Ciphered { .. } | Source::Compressed { .. } => return None,
            }
            guest += located.len;
            rest = behind;
        }
        Some(ReadKind::Data)
    }

    /// Fills `buf` from `offset`; beyond the disk there are zeroes. The caller holds a pass.
    pub(crate) async fn read(
        &self,
        offset: u64,
        mut buf: IoBuf,
        hints: Hints,
    ) -> (Result<ReadKind, Error>, IoBuf) {
        let mut done: Option<IoBuf> = None;
        let mut guest = offset;
        let held = BelowHeld::default();
        loop {
            // The usual request is one piece and needs neither splitting nor a list.
            let located = match self.locate_if_any(&held, GuestRange::at(guest, buf.len() as u64)).await {
                Ok(Some(located)) => located,
                Ok(None) => return (Ok(ReadKind::Data), joined(done, buf)),
                Err(error) => return (Err(error), joined(done, buf)),
            };
            if done.is_none() && located.len == buf.len() as u64 {
                return self.read_piece(guest, located, buf, hints).await;
            }
            let (result, filled, rest) = self.read_pieces(&held, guest, located, buf, hints).await;
            guest += filled.len() as u64;
            buf = rest;
            done = Some(joined(done, filled));
            if let Err(error) = result {
                return (Err(error), joined(done, buf));
            }
        }
    }

    async fn locate_if_any<'a>(
        &'a self,
        held: &'a BelowHeld,
        range: GuestRange,
    ) -> Result<Option<Located<'a>>, Error> {
        if range.is_empty() { Ok(None) } else { self.locate(held, range).await.map(Some) }
    }

    /// Reads up to [`PIECES_AT_ONCE`] pieces from the front of `buf` in parallel; gives back what
    /// was read and the rest.
    async fn read_pieces(
        &self,
        held: &BelowHeld,
        guest: u64,
        first: Located<'_>,
        mut buf: IoBuf,
        hints: Hints,
    ) -> (Result<(), Error>, IoBuf, IoBuf) {
        let mut reads = Vec::new();
        let first_len = first.len;
        let mut guest = guest + first_len;
        let piece = buf.split_to(first_len as usize);
        reads.push(self.read_piece(guest - first_len, first, piece, hints));
        let mut located = Ok(());
        while !buf.is_empty() && reads.len() < PIECES_AT_ONCE {
            match self.locate(held, GuestRange::at(guest, buf.len() as u64)).await {
                Ok(next) => {
                    let len = next.len;
                    guest += len;
                    let piece = buf.split_to(len as usize);
                    reads.push(self.read_piece(guest - len, next, piece, hints));
                }
                Err(error) => {
                    located = Err(error);
                    break;
                }
            }
        }
        let mut filled: Option<IoBuf> = None;
        let mut result = located;
        for (read, piece) in join_all(reads).await {
            filled = Some(joined(filled, piece));
            result = result.and(read.map(drop));
        }
        (result, joined(filled, buf.split_to(0)), buf)
    }

    /// Fills `buf` with what was located at `guest`, all of which is in one place.
    pub(crate) async fn read_piece(
        &self,
        guest: u64,
        located: Located<'_>,
        mut buf: IoBuf,
        hints: Hints,
    ) -> (Result<ReadKind, Error>, IoBuf) {
        match located.source {
            Source::Zero { .. } => {
                buf.fill(0);
                (Ok(ReadKind::Zeroes), buf)
            }
            Source::Plain { storage, offset } => {
                if !std::ptr::addr_eq(storage, &*self.medium.data) {
                    self.medium.about_to(EngineStep::ReadBackingAio);
                }
                about_to(storage, EngineStep::ReadAio);
                let (result, buf) = storage.read(offset.0, buf, hints).await;
                let result = result.map_err(|error| Blame::new(storage.name()).io("reading data")(error));
                (result.map(|()| ReadKind::Data), buf)
            }
            Source::Ciphered { layer, cipher, offset } => {
                let storage = &*layer.medium.data;
                about_to(storage, EngineStep::ReadAio);
                let (result, buf) = read_by_guest(storage, cipher, offset, guest, buf, hints).await;
                (result.map(|()| ReadKind::Data).map_err(layer.medium.blame.io("reading data")), buf)
            }
            Source::Block(block) => {
                self.medium.about_to(EngineStep::ReadBackingAio);
                match block.changes() {
                    false => block.read(guest, buf, hints).await,
                    true => Box::pin(self.read_from_changing(block, guest, buf, hints)).await,
                }
            }
            Source::Compressed { layer, cluster, skip } => {
                match layer.decompressed.content(&layer.medium, cluster).await {
                    Ok(bytes) => {
                        let skip = skip as usize;
                        let len = buf.len();
                        buf.copy_from_slice(&bytes[skip..skip + len]);
                        (Ok(ReadKind::Data), buf)
                    }
                    Err(error) => {
                        (layer.medium.noticing_corruption(Contradiction::Compressed, Err(error)), buf)
                    }
                }
            }
        }
    }
}

/// `next` appended to what is there already.
fn joined(done: Option<IoBuf>, next: IoBuf) -> IoBuf {
    match done {
        None => next,
        Some(mut done) => {
            done.rejoin(next);
            done
        }
    }
}

/// Where the bytes at the start of a guest range are.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Located<'a> {
    /// Bytes, never 0.
    pub(crate) len: u64,
    /// Which layer it is: 0 for the active one.
    pub(crate) depth: u32,
    pub(crate) source: Source<'a>,
}

/// Where bytes are.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Source<'a> {
    /// Nowhere: zeroes. `explicit` if a layer says so, otherwise no layer knows of them.
    Zero { explicit: bool, host: Option<HostOffset> },
    /// In a file, as they are.
    Plain { storage: &'a dyn Storage, offset: HostOffset },
    /// In the file of `layer`, decrypted by the guest's offset (an image that is encrypted as before LUKS).
    Ciphered { layer: &'a Inner, cipher: &'a SectorCipher, offset: HostOffset },
    /// In a block that is no image, at the guest's own offset.
    Block(&'a dyn Block),
    /// In a compressed cluster of `layer`, from `skip` on.
    Compressed { layer: &'a Inner, cluster: CompressedCluster, skip: u64 },
}

impl Located<'_> {
    /// Whether these bytes are zeroes, as the map says.
    pub(crate) fn is_zero(&self) -> bool {
        matches!(self.source, Source::Zero { .. })
    }

    /// Whether these bytes are in a compressed cluster.
    pub(crate) fn is_packed(&self) -> bool {
        matches!(self.source, Source::Compressed { .. })
    }

    /// `part` of these bytes, counted from the first; `None` if they end before.
    pub(crate) fn part(self, part: std::ops::Range<u64>) -> Option<Self> {
        if part.end > self.len {
            return None;
        }
        let (skip, len) = (part.start, part.end - part.start);
        let source = match self.source {
            Source::Zero { explicit, host } => Source::Zero { explicit, host: host.map(|host| host + skip) },
            Source::Plain { storage, offset } => Source::Plain { storage, offset: offset + skip },
            Source::Ciphered { layer, cipher, offset } => {
                Source::Ciphered { layer, cipher, offset: offset + skip }
            }
            // At the guest's own offset.
            Source::Block(block) => Source::Block(block),
            Source::Compressed { layer, cluster, skip: before } => {
                Source::Compressed { layer, cluster, skip: before + skip }
            }
        };
        Some(Self { len, source, ..self })
    }
}

/// A place, or what must be loaded first.
#[derive(Debug)]
pub(crate) enum Step<'a> {
    Located(Located<'a>),
    Missing(Missing<'a>),
}

/// What is not in memory.
#[derive(Debug)]
pub(crate) enum Missing<'a> {
    /// A slice of one layer's map.
    Layer(&'a Inner, SliceKey),
    /// A slice of the map of what lies below a layer.
    Chain(&'a Chain, SliceKey),
}

/// Where the way through the layers goes on.
enum Onward<'a> {
    /// At the end: this is the answer.
    Here(Located<'a>),
    /// In this image, the upper of `lower`, `depth` below the active one, for at most `len` bytes.
    Layer { layer: &'a Inner, lower: &'a Lower, depth: u32, len: u64 },
    /// First something must be loaded.
    Missing(Missing<'a>),
}

impl Inner {
    /// Where the bytes at the start of `range` are, for as many of them as are in one place. No I/O. At most one look-up in the map
    /// of this layer and one in that of all layers below; where that map does not know, they are walked in
    /// a loop: their depth costs no stack.
    #[inline]
    pub(crate) fn try_locate<'a>(
        &'a self,
        held: &'a BelowHeld,
        range: GuestRange,
    ) -> Result<Step<'a>, Error> {
        let (guest, mut len) = (range.start, range.len());
        let (mut layer, mut depth, mut walking) = (self, 0, false);
        // Where `layer` stands in the list of what lies below this image.
        let mut reached: Option<&Lower> = None;
        loop {
            let size = layer.size();
            if guest >= size {
                let source = Source::Zero { explicit: false, host: None };
                return Ok(Step::Located(Located { len, depth, source }));
            }
            len = len.min(size - guest);
            let extent = match layer.map.try_extent(&layer.medium, GuestRange::at(guest, len))? {
                Mapped::Extent(extent) => extent,
                Mapped::Missing(key) => return Ok(Step::Missing(Missing::Layer(layer, key))),
            };
            len = extent.len;
            let source = match extent.kind {
                Kind::Data { host, .. } => {
                    layer.medium.check_data(host, len)?;
                    layer.data_at(host)
                }
                Kind::Zero { host } => Source::Zero { explicit: true, host },
                Kind::Compressed { cluster, skip } => Source::Compressed { layer, cluster, skip },
                Kind::Unallocated { host } => {
                    let below = match reached {
                        None => held.of(self),
                        Some(lower) => lower.next().map(|next| &**next),
                    };
                    match below {
                        Some(below) if guest < below.size() => {
                            len = len.min(below.size() - guest);
                            let chain = if walking { None } else { below.chain(layer) };
                            let known =
                                chain.and_then(|chain| chain.onward(below, guest, &mut len, depth + 1));
                            match known.unwrap_or_else(|| below.onward(len, depth + 1)) {
                                Onward::Here(located) => return Ok(Step::Located(located)),
                                Onward::Missing(missing) => return Ok(Step::Missing(missing)),
                                Onward::Layer { layer: next, lower, depth: at, len: upto } => {
                                    // What this chain's map cannot tell, that of a part of it cannot either.
                                    walking = chain.is_some();
                                    (layer, reached, depth, len) = (next, Some(lower), at, upto);
                                    continue;
                                }
                            }
                        }
                        // Nothing below, or what is below is shorter: this layer has the last word.
                        Some(_) | None => Source::Zero { explicit: false, host },
                    }
                }
            };
            return Ok(Step::Located(Located { len, depth, source }));
        }
    }

    /// Where data of this layer is.
    #[inline]
    pub(crate) fn data_at(&self, offset: HostOffset) -> Source<'_> {
        match &self.medium.by_guest {
            None => Source::Plain { storage: &*self.medium.data, offset },
            Some(cipher) => Source::Ciphered { layer: self, cipher, offset },
        }
    }

    /// As [`Inner::try_locate`], loading what is missing.
    pub(crate) async fn locate<'a>(
        &'a self,
        held: &'a BelowHeld,
        range: GuestRange,
    ) -> Result<Located<'a>, Error> {
        loop {
            match self.try_locate(held, range)? {
                Step::Located(located) => return Ok(located),
                Step::Missing(Missing::Layer(layer, key)) => layer.map.load(&layer.medium, key).await?,
                Step::Missing(Missing::Chain(chain, key)) => chain.load(key).await?,
            }
        }
    }
}

impl Lower {
    /// From an image above into this layer.
    #[inline]
    fn onward(&self, len: u64, depth: u32) -> Onward<'_> {
        match self.layer() {
            Below::Image(image) => Onward::Layer { layer: &image.inner, lower: self, depth, len },
            Below::Block(block) => Onward::Here(Located { len, depth, source: Source::Block(&**block) }),
        }
    }
}

impl Chain {
    /// From the image above into the layers that this map covers; `depth` is that of the first, which is the upper of `lower`.
    /// `None`: it lies beyond this map, and the layers must be walked from there, for `len` bytes.
    #[inline]
    fn onward<'a>(&'a self, lower: &'a Lower, guest: u64, len: &mut u64, depth: u32) -> Option<Onward<'a>> {
        if guest >= self.covered() {
            return None;
        }
        let place = match self.look_up(GuestRange::at(guest, *len)) {
            Lookup::At { place, len: known } => {
                *len = known;
                place
            }
            Lookup::Missing(key) => match self.nothing(GuestRange::at(guest, *len)) {
                Some((place, empty)) => {
                    *len = empty;
                    place
                }
                None => return Some(Onward::Missing(Missing::Chain(self, key))),
            },
        };
        let (index, source) = match place {
            UnitPlace::Nothing { layer } => (layer, Source::Zero { explicit: false, host: None }),
            UnitPlace::Zero { layer } => (layer, Source::Zero { explicit: true, host: None }),
            // A chain has at most word::LAYERS_MAX layers.
            UnitPlace::Ask { layer } => {
                return Some(self.from(lower, layer)?.onward(*len, depth + layer as u32));
            }
            UnitPlace::Data { layer, unit } => match self.layer(layer)? {
                Below::Block(block) => (layer, Source::Block(&**block)),
                Below::Image(image) => (layer, image.inner.data_at(self.host(guest, unit))),
            },
        };
        Some(Onward::Here(Located { len: *len, depth: depth + index as u32, source }))
    }
}

impl Block for Qcow2 {
    fn driver(&self) -> &'static str {
        "qcow2"
    }

    fn name(&self) -> &str {
        self.inner.medium.file.name()
    }

    fn size(&self) -> u64 {
        self.inner.size()
    }

    fn about_to(&self, step: EngineStep) {
        self.inner.medium.about_to(step);
    }

    fn subcluster_bytes(&self) -> Option<u64> {
        Some(self.inner.medium.geometry.subcluster_size())
    }

    fn awaits_backing(&self) -> bool {
        self.inner.awaits_backing() && (!self.inner.has_backing() || self.inner.is_over_changing())
    }

    fn capabilities(&self) -> Capabilities {
        let image = &self.inner;
        Capabilities {
            read_only: !image.options.writable,
            alignment: image
                .medium
                .data
                .capabilities()
                .alignment
                .max(image.medium.file.capabilities().alignment),
            cached: image.has_cached_data(),
            cluster_bytes: Some(image.medium.geometry.cluster_size()),
        }
    }

    fn below(&self) -> Option<Arc<dyn Block>> {
        self.inner.below.load().as_ref().map(|lower| Arc::clone(lower.block()))
    }

    fn try_read(&self, offset: u64, buf: &mut [u8], hints: Hints) -> Option<ReadKind> {
        self.inner.try_read(offset, buf, hints)
    }

    fn try_read_into(&self, offset: u64, memory: &ForeignBytes, hints: Hints) -> Option<ReadKind> {
        self.inner.try_read_into(offset, memory, hints)
    }

    fn read(
        &self,
        offset: u64,
        buf: IoBuf,
        hints: Hints,
    ) -> BlockFuture<'_, (Result<ReadKind, Error>, IoBuf)> {
        Qcow2::read(self, offset, buf, hints)
    }

    fn write(&self, offset: u64, data: IoVec, hints: Hints) -> BlockFuture<'_, Result<(), Error>> {
        Qcow2::write(self, offset, data, hints)
    }

    fn read_into(
        &self,
        offset: u64,
        memory: ForeignBytes,
        hints: Hints,
    ) -> BlockFuture<'_, Result<ReadKind, Error>> {
        Qcow2::read_into(self, offset, memory, hints)
    }

    fn write_from(
        &self,
        offset: u64,
        memory: ForeignBytes,
        hints: Hints,
    ) -> BlockFuture<'_, Result<(), Error>> {
        Qcow2::write_from(self, offset, memory, hints)
    }

    fn zero(&self, offset: u64, len: u64, options: ZeroOptions) -> BlockFuture<'_, Result<(), Error>> {
        Qcow2::zero(self, offset, len, options)
    }

    fn discard(&self, offset: u64, len: u64) -> BlockFuture<'_, Result<(), Error>> {
        Qcow2::discard(self, offset, len)
    }

    fn flush(&self) -> BlockFuture<'_, Result<(), Error>> {
        Qcow2::flush(self)
    }

    fn block_status(&self, offset: u64, len: u64) -> BlockFuture<'_, Result<BlockStatus, Error>> {
        Qcow2::block_status(self, offset, len)
    }

    fn stored(&self, offset: u64, len: u64, wanted: Takes) -> BlockFuture<'_, Result<Option<Stored>, Error>> {
        Box::pin(Qcow2::stored(self, offset, len, wanted))
    }

    fn takes(&self) -> Option<Takes> {
        Qcow2::takes(self)
    }

    fn take(&self, offset: u64, stored: Stored) -> BlockFuture<'_, Result<(), Error>> {
        Box::pin(Qcow2::take(self, offset, stored))
    }

    /// Refcounts too. Requests wait while the last of it is written.
    fn rest(&self) -> BlockFuture<'_, Result<(), Error>> {
        Box::pin(async move {
            match self.inner.options.writable {
                true => self.inner.managed(async |image| image.pause().await.map(drop)).await,
                false => Ok(()),
            }
        })
    }

    /// Clean map slices, also of the layers below, and refcount blocks (`cache-clean-interval`).
    fn clean_cache(&self) -> usize {
        let below = self.inner.ask_chain(Chain::clean).unwrap_or(0);
        self.inner.map.cache.clean() + below + self.inner.space.refcounts.clean()
    }

    fn close(&self) -> BlockFuture<'_, Result<(), Error>> {
        Qcow2::close(self)
    }
}
