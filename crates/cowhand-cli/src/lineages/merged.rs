//! One layer made of several, by the copy engine.

use std::path::Path;

use graph::OpenRules;
use graph::options::{Discard, DiskOptions};
use graph::probe::Format;
use job::{CopyOptions, Counters, LoopClock, RateLimit};
use lineage::MergedLayer;

use super::overlay;
use crate::copying::watch::Watch;
use crate::copying::{self, Memory, WAITING_BYTES_MAX};
use crate::failure::Failure;

/// How layers are copied.
pub struct Merging {
    /// How they are opened.
    pub rules: OpenRules,
    /// For what is under way.
    pub memory: Memory,
    /// Bytes a second at most.
    pub rate: Option<u64>,
    /// Shows how far it is, and ends it.
    pub watch: Watch,
}

impl Merging {
    /// Makes one at `at`, where nothing is, and copies to it what the layers have, in one pass: durable when this returns, and from the first byte no more
    /// open than the layers.
    ///
    /// # Errors
    /// When it cannot be made or copied, or a signal ends it. Then nothing is there.
    pub async fn make(&self, at: &Path, merged: &MergedLayer) -> Result<(), Failure> {
        let filled = async || self.copy(at, merged).await;
        overlay::make_filled(at, merged.backing.clone(), (&merged.shape, merged.access), filled).await
    }

    async fn copy(&self, at: &Path, merged: &MergedLayer) -> Result<(), Failure> {
        let (mut from, mut to) = (DiskOptions::of_path(&merged.top), DiskOptions::of_path(at));
        for options in [&mut from, &mut to] {
            options.layer.format = Some(Format::Qcow2);
        }
        from.layer.read_only = true;
        to.layer.discard = Discard::Unmap;
        let source = copying::open(&from, &self.rules, "read").await?;
        let copied = async {
            let target = copying::open(&to, &self.rules, "write").await?;
            let options = CopyOptions {
                memory_bytes: self.memory.copy_bytes,
                flush_bytes: Some(WAITING_BYTES_MAX),
                rate: self.rate.map(|rate| RateLimit::new(rate, LoopClock)),
                ..CopyOptions::default()
            };
            let layers = u32::try_from(merged.layers).unwrap_or(u32::MAX);
            let copy = job::copies::commit(&*source, layers, &*target, options);
            let copied = self.watch.run(&copy, &Counters::default()).await;
            let copied = copied.map(drop).map_err(|error| copying::because("merge", &from, &error));
            copying::finish(&target, copied, |error| copying::because("write", &to, error)).await
        };
        let copied = copied.await;
        copying::finish(&source, copied, |error| copying::because("close", &from, error)).await
    }
}
