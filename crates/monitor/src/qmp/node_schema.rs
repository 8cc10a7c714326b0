//! What blockdev-add takes: the options of every driver.

use catalog::{
    AZ_OPTIONS, CHUNKED_OPTIONS, GS_OPTIONS, HTTP_OPTIONS, HTTPS_OPTIONS, NBD_OPTIONS, RBD_OPTIONS,
    S3_OPTIONS,
};
use catalog::{LUKS_OPTIONS as LUKS, QCOW2_OPTIONS as QCOW2, RAW_OPTIONS as RAW};
use control::{Argument, Kind, NUMBER, Takes, Variant, optional, required};
use graph::options::table::{FILE, LAYER};
use storage::Step;

use super::dirty_bitmaps::Which;
use super::node_options::{count, find, kind, members};

static NBD_SERVER_MEMBERS: [Argument; count(NBD_OPTIONS, "server")] = members([], NBD_OPTIONS, "server");
/// Of `nbd`.
static NBD_MEMBERS: [Argument; 1 + count(NBD_OPTIONS, "")] =
    members([optional("server", Kind::Object(&NBD_SERVER_MEMBERS))], NBD_OPTIONS, "");

/// Of `http`.
static HTTP_MEMBERS: [Argument; count(HTTP_OPTIONS, "")] = members([], HTTP_OPTIONS, "");
/// Of `https`.
static HTTPS_MEMBERS: [Argument; count(HTTPS_OPTIONS, "")] = members([], HTTPS_OPTIONS, "");
/// Of `s3`.
static S3_MEMBERS: [Argument; count(S3_OPTIONS, "")] = members([], S3_OPTIONS, "");
/// Of `gs`.
static GS_MEMBERS: [Argument; count(GS_OPTIONS, "")] = members([], GS_OPTIONS, "");
/// Of `az`.
static AZ_MEMBERS: [Argument; count(AZ_OPTIONS, "")] = members([], AZ_OPTIONS, "");
/// Of `chunked`.
static CHUNKED_MEMBERS: [Argument; count(CHUNKED_OPTIONS, "")] = members([], CHUNKED_OPTIONS, "");

/// A monitor of a Ceph cluster.
static RBD_SERVER: Kind = Kind::Object(&[required("host", Kind::Text), optional("port", Kind::Text)]);

/// How librbd encrypted an image, and what it is a clone of.
static RBD_ENCRYPTION: Kind = Kind::Union {
    tag: "format",
    common: &[optional("parent", Kind::Ref(&RBD_ENCRYPTION))],
    variants: &[
        Variant { tag: "luks", members: &[required("key-secret", Kind::Text)] },
        Variant { tag: "luks2", members: &[required("key-secret", Kind::Text)] },
        Variant { tag: "luks-any", members: &[required("key-secret", Kind::Text)] },
    ],
};

/// Of `rbd`.
static RBD_MEMBERS: [Argument; 3 + count(RBD_OPTIONS, "")] = members(
    [
        optional("server", Kind::List(&RBD_SERVER)),
        optional("encrypt", Kind::Ref(&RBD_ENCRYPTION)),
        optional("auth-client-required", Kind::List(&Kind::Choice(&["cephx", "none"]))),
    ],
    RBD_OPTIONS,
    "",
);

static CACHE_MEMBERS: [Argument; count(LAYER, "cache")] = members([], LAYER, "cache");

/// What every node may have.
static NODE_MEMBERS: [Argument; 3 + count(LAYER, "")] = members(
    [
        optional("active", Kind::Switch),
        optional("auto-read-only", Kind::Switch),
        optional("cache", Kind::Object(&CACHE_MEMBERS)),
    ],
    LAYER,
    "",
);

static FILE_MEMBERS: [Argument; count(FILE, "")] = members([], FILE, "");
/// Rules of blkdebug.
static INJECT_ERROR: Kind = Kind::Object(&[
    required("event", Kind::Choice(Step::NAMES)),
    optional("state", Kind::Whole(u32::MAX as u64)),
    optional("iotype", Kind::Choice(&["read", "write", "write-zeroes", "discard", "flush", "block-status"])),
    optional("errno", Kind::Whole(u32::MAX as u64)),
    optional("sector", NUMBER),
    optional("once", Kind::Switch),
    optional("immediately", Kind::Switch),
    optional("delay-ns", NUMBER),
]);

static SET_STATE: Kind = Kind::Object(&[
    required("event", Kind::Choice(Step::NAMES)),
    optional("state", Kind::Whole(u32::MAX as u64)),
    required("new_state", Kind::Whole(u32::MAX as u64)),
]);

static NULL_MEMBERS: [Argument; 3] =
    [optional("size", NUMBER), optional("latency-ns", NUMBER), optional("read-zeroes", Kind::Switch)];

static RAW_MEMBERS: [Argument; 1 + count(RAW, "")] = members([child()], RAW, "");

static LUKS_MEMBERS: [Argument; 1 + count(LUKS, "")] = members([child()], LUKS, "");

const OVERLAP_TEMPLATES: Kind = kind(find(QCOW2, "overlap-check"));

static OVERLAP_MEMBERS: [Argument; 1 + count(QCOW2, "overlap-check")] =
    members([optional("template", OVERLAP_TEMPLATES)], QCOW2, "overlap-check");

/// How an image is encrypted.
static ENCRYPT: Kind = Kind::Union {
    tag: "format",
    common: &[],
    variants: &[
        Variant { tag: "luks", members: &[optional("key-secret", Kind::Text)] },
        Variant { tag: "aes", members: &[optional("key-secret", Kind::Text)] },
    ],
};

static QCOW2_MEMBERS: [Argument; 3 + count(QCOW2, "")] = members(
    [
        child(),
        optional("encrypt", Kind::Ref(&ENCRYPT)),
        optional("overlap-check", Kind::Either(&[&OVERLAP_TEMPLATES, &Kind::Object(&OVERLAP_MEMBERS)])),
    ],
    QCOW2,
    "",
);

static QUORUM_MEMBERS: [Argument; 5] = [
    required("children", Kind::List(&NODE_OR_OPTIONS)),
    required("vote-threshold", Kind::Whole(u32::MAX as u64)),
    optional("blkverify", Kind::Switch),
    optional("rewrite-corrupted", Kind::Switch),
    optional("read-pattern", Kind::Choice(&["quorum", "fifo"])),
];

/// The file of an image.
const fn child() -> Argument {
    required("file", Kind::Ref(&NODE_OR_OPTIONS))
}

/// A child: a node by name, or its options.
pub static NODE_OR_OPTIONS: Kind = Kind::Either(&[&Kind::Text, &BLOCKDEV]);

/// The backing image: likewise, or none.
pub static BACKING: Kind = Kind::Either(&[&Kind::Text, &Kind::Null, &BLOCKDEV]);

/// What blockdev-add describes.
pub static BLOCKDEV: Kind = Kind::Union {
    tag: "driver",
    common: &NODE_MEMBERS,
    variants: &[
        Variant { tag: "file", members: &FILE_MEMBERS },
        Variant { tag: "host_device", members: &FILE_MEMBERS },
        Variant { tag: "host_cdrom", members: &FILE_MEMBERS },
        Variant { tag: "nbd", members: &NBD_MEMBERS },
        Variant { tag: "http", members: &HTTP_MEMBERS },
        Variant { tag: "https", members: &HTTPS_MEMBERS },
        Variant { tag: "s3", members: &S3_MEMBERS },
        Variant { tag: "gs", members: &GS_MEMBERS },
        Variant { tag: "az", members: &AZ_MEMBERS },
        Variant { tag: "chunked", members: &CHUNKED_MEMBERS },
        Variant { tag: "rbd", members: &RBD_MEMBERS },
        Variant {
            tag: "blkdebug",
            members: &[
                required("image", Kind::Ref(&NODE_OR_OPTIONS)),
                optional("config", Kind::Text),
                optional("align", NUMBER),
                optional("max-transfer", NUMBER),
                optional("opt-write-zero", NUMBER),
                optional("max-write-zero", NUMBER),
                optional("opt-discard", NUMBER),
                optional("max-discard", NUMBER),
                optional("inject-error", Kind::List(&INJECT_ERROR)),
                optional("set-state", Kind::List(&SET_STATE)),
            ],
        },
        Variant {
            tag: "preallocate",
            members: &[child(), optional("prealloc-align", NUMBER), optional("prealloc-size", NUMBER)],
        },
        Variant { tag: "null-co", members: &NULL_MEMBERS },
        Variant { tag: "null-aio", members: &NULL_MEMBERS },
        Variant { tag: "raw", members: &RAW_MEMBERS },
        Variant { tag: "qcow2", members: &QCOW2_MEMBERS },
        Variant { tag: "luks", members: &LUKS_MEMBERS },
        Variant { tag: "vdi", members: &[child()] },
        Variant { tag: "vpc", members: &[child()] },
        Variant { tag: "vmdk", members: &[child()] },
        Variant { tag: "qcow", members: &[child(), optional("backing", Kind::Ref(&BACKING))] },
        Variant { tag: "vhdx", members: &[child()] },
        Variant {
            tag: "copy-before-write",
            members: &[
                child(),
                required("target", Kind::Ref(&NODE_OR_OPTIONS)),
                optional("on-cbw-error", Kind::Choice(&["break-guest-write", "break-snapshot"])),
                optional("cbw-timeout", Kind::Whole(u32::MAX as u64)),
                optional("min-cluster-size", NUMBER),
                optional("bitmap", Which::KIND),
            ],
        },
        Variant { tag: "snapshot-access", members: &[child()] },
        Variant { tag: "compress", members: &[child()] },
        Variant {
            tag: "blkverify",
            members: &[
                required("test", Kind::Ref(&NODE_OR_OPTIONS)),
                required("raw", Kind::Ref(&NODE_OR_OPTIONS)),
            ],
        },
        Variant { tag: "quorum", members: &QUORUM_MEMBERS },
        Variant { tag: "copy-on-read", members: &[child(), optional("bottom", Kind::Text)] },
        Variant { tag: "throttle", members: &[required("throttle-group", Kind::Text), child()] },
    ],
};
