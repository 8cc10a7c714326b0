//! What an image has that another block can take over as it lies, and what it takes over itself.

use std::sync::Arc;

use block::{Stored, Takes};
use futures_util::future::join_all;
use storage::IoBytes;

use crate::Error;
use crate::below::BelowHeld;
use crate::guest_range::GuestRange;
use crate::health::Contradiction;
use crate::host::HandedOver;
use crate::image::{Inner, Qcow2};
use crate::read::Source;
use crate::write::Payload;

impl Qcow2 {
    /// How the bytes at `offset` lie, for at most `len` of them; see [`block::Block::stored`]. Compressed clusters are unpacked once, to
    /// know that they can be and where they end.
    pub(crate) async fn stored(&self, offset: u64, len: u64, wanted: Takes) -> Result<Option<Stored>, Error> {
        let range = self.inner.check_range(offset, len)?;
        let result = async {
            let _pass = self.inner.enter().await?;
            self.inner.check_range(offset, len)?;
            match wanted {
                Takes::File => self.inner.in_file(range).await,
                Takes::Packed { packing, unit_bytes } => self.inner.packed(range, packing, unit_bytes).await,
            }
        };
        self.inner.reporting(result.await).await
    }

    /// What [`Qcow2::take`] is worth a try for.
    pub(crate) fn takes(&self) -> Option<Takes> {
        let medium = &self.inner.medium;
        (!medium.raw_data && medium.data.copies()).then_some(Takes::File)
    }

    /// See [`block::Block::take`].
    pub(crate) async fn take(&self, offset: u64, stored: Stored) -> Result<(), Error> {
        self.inner.check_range(offset, stored.disk_bytes())?;
        let Stored::File { file, offset: from, len } = stored else {
            return Err(self.inner.medium.blame.unsupported("compressed clusters are written as they come"));
        };
        let result = self.inner.write_payload(offset, Payload::File { file, offset: from, len }).await;
        self.inner.reporting(result).await
    }
}

impl Inner {
    async fn in_file(&self, range: GuestRange) -> Result<Option<Stored>, Error> {
        let held = BelowHeld::default();
        let located = self.locate(&held, range).await?;
        match located.source {
            Source::Plain { storage, offset: host } => Ok(block::in_file(storage, host.0, located.len)),
            Source::Block(block) => block.stored(range.start, located.len, Takes::File).await,
            Source::Zero { .. } | Source::Ciphered { .. } | Source::Compressed { .. } => Ok(None),
        }
    }

    /// The compressed clusters that begin at the start of `range`, one behind the other, if they are of this kind.
    async fn packed(
        &self,
        range: GuestRange,
        packing: &str,
        unit_bytes: u64,
    ) -> Result<Option<Stored>, Error> {
        let held = BelowHeld::default();
        let (mut at, mut found) = (range.start, Vec::new());
        while at + unit_bytes <= range.end {
            let located = self.locate(&held, GuestRange::at(at, unit_bytes)).await?;
            let Source::Compressed { layer, cluster, skip: 0 } = located.source else { break };
            // What is above the layer, or its end, may leave a part of the cluster.
            let same = located.len == unit_bytes
                && layer.decompressed.compression().name() == packing
                && layer.medium.geometry.cluster_size() == unit_bytes;
            if !same {
                break;
            }
            found.push((layer, cluster));
            at += unit_bytes;
        }
        let units = found.into_iter().map(|(layer, cluster)| async move {
            let packed = layer.decompressed.packed(&layer.medium, cluster).await;
            layer.medium.noticing_corruption(Contradiction::Compressed, packed)
        });
        let mut whole: Vec<IoBytes> = Vec::new();
        for unit in join_all(units).await {
            match unit? {
                Some(bytes) => whole.push(bytes),
                // One without an end is packed anew.
                None => break,
            }
        }
        Ok((!whole.is_empty()).then_some(Stored::Packed { units: whole, unit_bytes }))
    }

    /// Writes what is not in memory, as [`Inner::write`] does.
    async fn write_payload(self: &Arc<Self>, offset: u64, data: Payload) -> Result<(), Error> {
        self.check_writable()?;
        let pass = self.enter_to_change(GuestRange::at(offset, data.len())).await?;
        let (image, pass) = (Arc::clone(self), pass.detach());
        let write = HandedOver::new(&*self.medium.host, async move {
            let _pass = image.turns.gate.attach(pass);
            image.write_anywhere(offset, data).await
        });
        write.await
    }
}
