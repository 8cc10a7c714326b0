//! Values of options, from the words that QEMU's tools take.

use graph::probe::Format;
use qcow2::Preallocation;
use qcow2_layout::{Compression, Version};

/// A switch's value.
pub(crate) fn switch(value: &str) -> Option<bool> {
    match value {
        "on" | "yes" | "true" | "y" => Some(true),
        "off" | "no" | "false" | "n" => Some(false),
        _ => None,
    }
}

/// A version of the format by QEMU's names.
pub(crate) fn version(value: &str) -> Option<Version> {
    match value {
        "1.1" | "v3" => Some(Version::V3),
        "0.10" | "v2" => Some(Version::V2),
        _ => None,
    }
}

pub(super) fn compression(value: &str) -> Option<Compression> {
    [Compression::Deflate, Compression::Zstd].into_iter().find(|kind| kind.name() == value)
}

pub(super) fn preallocation(value: &str, format: Format) -> Option<Preallocation> {
    let all = [Preallocation::Off, Preallocation::Metadata, Preallocation::Falloc, Preallocation::Full];
    let kind = all.into_iter().find(|kind| kind.name() == value)?;
    (format == Format::Qcow2 || kind != Preallocation::Metadata).then_some(kind)
}
