//! Guest range -> where its bytes are, through all layers of a chain.

use qcow2_layout::CompressedCluster;
use storage::Storage;

use crate::Error;
use crate::image::Inner;
use crate::layer::{Layer, Raw};
use crate::map::{Kind, Mapped};

/// Where the bytes at the start of a guest range are.
#[derive(Debug)]
pub(crate) struct Located<'a> {
    /// Bytes, never 0.
    pub(crate) len: u64,
    /// Layers walked: 0 for the active one.
    pub(crate) depth: u32,
    pub(crate) source: Source<'a>,
}

/// Where bytes are.
#[derive(Debug)]
pub(crate) enum Source<'a> {
    /// Nowhere: zeroes. `explicit` if a layer says so, otherwise no layer knows of them.
    Zero { explicit: bool, host: Option<u64> },
    /// In a file, as they are.
    Plain { storage: &'a dyn Storage, offset: u64 },
    /// In a raw layer, at the guest's own offset.
    Raw(&'a Raw),
    /// In a compressed cluster of `layer`, from `skip` on.
    Compressed { layer: &'a Inner, cluster: CompressedCluster, skip: u64 },
}

/// A place, or the slice of a layer that must be loaded first.
#[derive(Debug)]
pub(crate) enum Step<'a> {
    Located(Located<'a>),
    Missing(&'a Inner, map_cache::SliceKey),
}

impl Inner {
    /// Where the bytes at `guest` are, for at most `len` of them. No I/O. The chain is walked in a
    /// loop: its depth costs no stack.
    #[inline]
    pub(crate) fn try_locate(&self, guest: u64, len: u64) -> Result<Step<'_>, Error> {
        let (mut layer, mut len, mut depth) = (self, len, 0);
        loop {
            let size = layer.size();
            if guest >= size {
                let source = Source::Zero { explicit: false, host: None };
                return Ok(Step::Located(Located { len, depth, source }));
            }
            len = len.min(size - guest);
            let extent = match layer.try_map(guest, len)? {
                Mapped::Extent(extent) => extent,
                Mapped::Missing(key) => return Ok(Step::Missing(layer, key)),
            };
            len = extent.len;
            let source = match extent.kind {
                Kind::Data { host, .. } => {
                    layer.check_data(host, len)?;
                    Source::Plain { storage: &*layer.data, offset: host }
                }
                Kind::Zero { host } => Source::Zero { explicit: true, host },
                Kind::Compressed { cluster, skip } => Source::Compressed { layer, cluster, skip },
                Kind::Unallocated { host } => match &layer.backing {
                    Some(Layer::Qcow2(below)) if guest < below.inner.size() => {
                        layer = &below.inner;
                        depth += 1;
                        continue;
                    }
                    Some(Layer::Raw(raw)) if guest < raw.size => {
                        let len = len.min(raw.size - guest);
                        return Ok(Step::Located(Located {
                            len,
                            depth: depth + 1,
                            source: Source::Raw(raw),
                        }));
                    }
                    // Nothing below, or what is below is shorter: this layer has the last word.
                    Some(_) | None => Source::Zero { explicit: false, host },
                },
            };
            return Ok(Step::Located(Located { len, depth, source }));
        }
    }

    /// As [`Inner::try_locate`], loading what is missing.
    pub(crate) async fn locate(&self, guest: u64, len: u64) -> Result<Located<'_>, Error> {
        loop {
            match self.try_locate(guest, len)? {
                Step::Located(located) => return Ok(located),
                Step::Missing(layer, key) => layer.load(key).await?,
            }
        }
    }

    /// Refuses to take metadata for data.
    #[inline]
    pub(crate) fn check_data(&self, host: u64, len: u64) -> Result<(), Error> {
        if self.geometry.external_data {
            return Ok(());
        }
        match self.overlap.touched(host, len, None) {
            None => Ok(()),
            Some((at, section)) => self.noticing_corruption(Err(self.blame.corrupt(format!(
                "guest data at {host:#x} ({len} bytes) overlaps metadata ({section} at {at:#x})"
            )))),
        }
    }
}
