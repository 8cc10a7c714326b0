//! Guest range -> where its bytes are, through all layers of a chain.

use block::Block;
use luks::SectorCipher;
use map_cache::SliceKey;
use qcow2_layout::{CompressedCluster, HostOffset};
use storage::Storage;

use crate::Error;
use crate::below::{Below, BelowHeld, Lower};
use crate::chain::{Chain, Lookup, UnitPlace};
use crate::guest_range::GuestRange;
use crate::image::Inner;
use crate::map::{Kind, Mapped};

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
