//! One layer made of several, by the copy engine.

use std::fs::File;
use std::path::Path;

use cowhand::{Existing, NewImage};
use graph::OpenRules;
use graph::options::{Discard, DiskOptions};
use graph::probe::Format;
use job::{CopyOptions, Counters, LoopClock, RateLimit};
use lineage::MergedLayer;
use qcow2::CreateOptions;

use crate::copying::replaced_access::{ReplacedAccess, create_beside};
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
        let failed = |error: &dyn std::error::Error| {
            Failure::because(format!("cannot create {}", at.display()), error)
        };
        let MergedLayer { backing, shape, access, .. } = merged;
        let access = ReplacedAccess::from(*access);
        let file: File = create_beside(at, Some(&access)).map_err(|error| failed(&error))?;
        let (backing_file, backing_format) = backing.clone().unzip();
        let options = CreateOptions {
            size: shape.disk_bytes,
            version: shape.version,
            cluster_size: shape.cluster_bytes,
            refcount_bits: shape.refcount_bits,
            extended_l2: shape.extended_l2,
            compression: shape.compression,
            backing_file,
            backing_format: backing_format.flatten(),
            ..CreateOptions::default()
        };
        let image =
            NewImage { format: Format::Qcow2, options, existing: Existing::Replace, encryption: None };
        let made = match cowhand::create(at, image).await {
            Ok(()) => self.copy(at, merged).await,
            Err(error) => Err(failed(&error)),
        };
        let made = made.and_then(|()| access.give_to(&file).map_err(|error| failed(&error)));
        made.inspect_err(|_| drop(std::fs::remove_file(at)))
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
