//! The options of images of one format: parts of the table of options.

use block::SECTOR_BYTES;
use graph::options::entry::{At, at, choice_at, in_group};
use graph::options::{Encryption, Entry, Group, Kind, LayerOptions, Qmp};
use qcow2::{OverlapCheck, Prefetch, Section};

const PREFETCH: [(&str, Prefetch); 3] =
    [("off", Prefetch::Off), ("table", Prefetch::Table), ("all", Prefetch::All)];

macro_rules! section_at {
    ($section:ident) => {
        At {
            set: |layer: &mut LayerOptions, on| {
                layer.qcow2.overlap_check = layer.qcow2.overlap_check.with(Section::$section, on);
            },
            get: |layer: &LayerOptions| Some(layer.qcow2.overlap_check.checks(Section::$section)),
        }
    };
}

const fn section(name: &'static str, at: At<LayerOptions, bool>, help: &'static str) -> Entry<LayerOptions> {
    Entry::switch(name, at, help).default_follows("what overlap-check says").reopens()
}

/// The part of the table for qcow2 images. What stands later overrides what stands before it.
pub const QCOW2_OPTIONS: &[Entry<LayerOptions>] = &in_group(
    Group::Format("qcow2"),
    [
        Entry::size(
            "cache-size",
            at!(LayerOptions, qcow2.caches.total_bytes),
            "memory for the map and for refcounts together",
        )
        .default_follows("what the two caches take")
        .reopens(),
        Entry::size(
            "l2-cache-size",
            at!(LayerOptions, qcow2.caches.l2_bytes),
            "memory for the map (L2 tables) at most",
        )
        .default_follows("what covers the disk, 32M at most")
        .reopens(),
        Entry::size(
            "l2-cache-entry-size",
            at!(LayerOptions, qcow2.caches.l2_entry_bytes),
            "piece of the map that is read at once: a power of two, 512 to the cluster size",
        )
        .default_follows("4k, or a cluster where the whole map fits")
        .reopens(),
        Entry::size(
            "refcount-cache-size",
            at!(LayerOptions, qcow2.caches.refcount_bytes),
            "memory for refcounts",
        )
        .default_follows("four clusters, or what cache-size leaves")
        .reopens(),
        Entry::choice(
            "prefetch",
            choice_at!(LayerOptions, PREFETCH, qcow2.prefetch),
            "what of the map is read before it is asked for",
        )
        .default_follows("off; below the active image as above"),
        Entry::whole(
            "cache-clean-interval",
            at!(LayerOptions, qcow2.cache_clean_interval_s),
            "seconds after which unused parts of the map leave memory; 0 is never",
        )
        .default("600")
        .reopens(),
        Entry::switch(
            "lazy-refcounts",
            at!(LayerOptions, qcow2.lazy_refcounts),
            "write refcounts late: faster, but a crash needs a repair",
        )
        .default_follows("what the image's header says")
        .reopens(),
        Entry::switch(
            "pass-discard-request",
            at!(LayerOptions, qcow2.pass_discard_request),
            "what the guest discards gives its space back to the file system",
        )
        .default_follows("on with discard=unmap, else off")
        .reopens(),
        Entry::switch(
            "pass-discard-snapshot",
            at!(LayerOptions, qcow2.pass_discard_snapshot),
            "what a deleted snapshot held gives its space back",
        )
        .default("on")
        .reopens(),
        Entry::switch(
            "pass-discard-other",
            at!(LayerOptions, qcow2.pass_discard_other),
            "clusters that are freed for other reasons give their space back",
        )
        .reopens(),
        Entry::switch(
            "discard-no-unref",
            at!(LayerOptions, qcow2.discard_no_unref),
            "a discarded cluster keeps its place in the file (version 3 only)",
        )
        .reopens(),
        Entry::size(
            "allocation-reserve",
            at!(LayerOptions, qcow2.allocation_reserve),
            "bytes of clusters counted ahead: flushes wait less, a crash leaks at most these; 0 is none",
        )
        .default_follows("16M, at least 128 clusters; 0 for version 2"),
        Entry::choice(
            "encrypt.format",
            choice_at!(LayerOptions, Encryption::NAMED, encryption),
            "how the image is encrypted",
        )
        .default_follows("what the image's header says"),
        Entry::text(
            "encrypt.key-secret",
            at!(LayerOptions, key_secret),
            "the secret (--object secret,id=NAME) that holds its password",
        )
        .default_follows("none: the image is not encrypted"),
        Entry::choice(
            "overlap-check",
            choice_at!(LayerOptions, OverlapCheck::NAMED, qcow2.overlap_check),
            "which metadata is protected from being overwritten",
        )
        .alias("overlap-check.template")
        .default("cached")
        .reopens(),
        section("overlap-check.main-header", section_at!(MainHeader), "protect the header"),
        section("overlap-check.active-l1", section_at!(ActiveL1), "protect the active L1 table"),
        section("overlap-check.active-l2", section_at!(ActiveL2), "protect active L2 tables"),
        section("overlap-check.refcount-table", section_at!(RefcountTable), "protect the refcount table"),
        section("overlap-check.refcount-block", section_at!(RefcountBlock), "protect refcount blocks"),
        section("overlap-check.snapshot-table", section_at!(SnapshotTable), "protect the snapshot table"),
        section("overlap-check.inactive-l1", section_at!(InactiveL1), "protect the L1 tables of snapshots"),
        section("overlap-check.inactive-l2", section_at!(InactiveL2), "protect the L2 tables of snapshots"),
        section(
            "overlap-check.bitmap-directory",
            section_at!(BitmapDirectory),
            "protect the bitmap directory",
        ),
        Entry::part("data-file", Kind::File, "the file with the image's data, where it is not in the image")
            .default_follows("what the image's header names"),
        Entry::part("backing", Kind::Image, "the backing file, as backing.OPTION; empty: there is none")
            .default_follows("what the image's header names"),
    ],
);

/// The part of the table for raw images.
pub const RAW_OPTIONS: &[Entry<LayerOptions>] = &in_group(
    Group::Format("raw"),
    [
        Entry::size("offset", at!(LayerOptions, raw.offset), "the disk's first byte in the file")
            .default("0"),
        Entry::size(
            "size",
            at!(LayerOptions, raw.size),
            "bytes of the disk, which then does not grow with its file",
        )
        .multiple_of(SECTOR_BYTES)
        .default_follows("up to the file's end"),
        Entry::switch(
            "protect-start",
            at!(LayerOptions, raw.protect_start),
            "refuse writes after which the first 512 bytes are those of an image of another format",
        )
        .qmp(Qmp::None),
    ],
);

/// The part of the table for LUKS files.
pub const LUKS_OPTIONS: &[Entry<LayerOptions>] = &in_group(
    Group::Format("luks"),
    [
        Entry::text(
            "key-secret",
            at!(LayerOptions, key_secret),
            "the secret (--object secret,id=NAME) that holds its password",
        )
        .default_follows("none, and the file is not opened"),
        Entry::part(
            "header",
            Kind::File,
            "the file with its LUKS header, where that is not in front of the data",
        )
        .default_follows("none: the header is in front of the data"),
    ],
);
