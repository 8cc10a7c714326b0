//! What each command takes: QEMU's names and types, as far as they mean something here.

use control::{Argument, CommandSpec, EventSpec, Kind, Variant, optional, required};
use graph::options::table::{FILE, LAYER, LUKS, QCOW2, RAW};
use storage::Step;
use throttle::{PARAMETERS, SETTINGS};

use super::elsewhere_schema::{
    AZ_MEMBERS, CHUNKED_MEMBERS, GS_MEMBERS, HTTP_MEMBERS, HTTPS_MEMBERS, NBD_MEMBERS, RBD_MEMBERS,
    S3_MEMBERS,
};
use super::export_schema::{ADD_OLDER, ADDRESS, EXPORT, REMOVE_OLDER};
use super::node_options::{LimitName, count, find, kind, limits, members};
use super::{
    amend, bitmap_bits, bitmaps, chardevs, checkpoints, chosen, corruption, create, dirty_bitmaps, forget,
    job_schema, lineage_queries, object_schema, overlay, publish, quorum, remotes, restore,
};

/// Numbers of bytes and operations, as JSON programs can hold them in 64 signed bits.
pub const NUMBER_MAX: u64 = i64::MAX as u64;

/// A number of something.
pub const NUMBER: Kind = Kind::Whole(NUMBER_MAX);

/// A size that a job looks at: what no image can have is its failure, as in QEMU.
pub(super) const SIZE: Kind = Kind::Whole(u64::MAX);

/// Numbers of descriptors and of their sets.
const DESCRIPTOR: Kind = Kind::Whole(i32::MAX as u64);

/// ThrottleLimits.
pub const LIMITS: Kind = Kind::Object(&LIMITS_MEMBERS);

static LIMITS_MEMBERS: [Argument; PARAMETERS.len()] = limits([], LimitName::Limits);

pub(super) static GROUP_MEMBERS: [Argument; 1 + PARAMETERS.len()] =
    limits([optional("limits", LIMITS)], LimitName::Property);

static THROTTLE_MEMBERS: [Argument; 2 + SETTINGS.len()] =
    limits([optional("device", Kind::Text), optional("id", Kind::Text)], LimitName::Argument);

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

/// The file of an image.
const fn child() -> Argument {
    required("file", Kind::Ref(&NODE_OR_OPTIONS))
}

/// A child: a node by name, or its options.
pub(super) static NODE_OR_OPTIONS: Kind = Kind::Either(&[&Kind::Text, &BLOCKDEV]);

/// The backing image: likewise, or none.
pub(super) static BACKING: Kind = Kind::Either(&[&Kind::Text, &Kind::Null, &BLOCKDEV]);

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
                optional("bitmap", NODE_BITMAP),
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
        Variant { tag: "quorum", members: &quorum::MEMBERS },
        Variant { tag: "copy-on-read", members: &[child(), optional("bottom", Kind::Text)] },
        Variant { tag: "throttle", members: &[required("throttle-group", Kind::Text), child()] },
    ],
};

/// A bitmap of a node.
const NODE_BITMAP: Kind = Kind::Object(&[required("node", Kind::Text), required("name", Kind::Text)]);

/// A bitmap: of the node that is meant anyway, or of another one.
pub(super) const BITMAP: Kind = Kind::Either(&[&Kind::Text, &NODE_BITMAP]);

const BOUNDS: Kind = Kind::List(&NUMBER);

macro_rules! command {
    ($name:literal $(, $argument:expr)* $(,)?) => {
        CommandSpec { name: $name, arguments: Kind::Object(&[$($argument),*]) }
    };
}

/// Every event, with its members.
pub static EVENTS: &[EventSpec] = &[
    EventSpec {
        name: "BLOCK_WRITE_THRESHOLD",
        data: Kind::Object(&[
            required("node-name", Kind::Text),
            required("amount-exceeded", NUMBER),
            required("write-threshold", NUMBER),
        ]),
    },
    EventSpec {
        name: "SHUTDOWN",
        data: Kind::Object(&[
            required("guest", Kind::Switch),
            required("reason", Kind::Choice(&["host-qmp-quit", "host-signal"])),
        ]),
    },
    bitmaps::INVALIDATED,
    corruption::CORRUPTED,
    job_schema::STATUS_CHANGE,
    job_schema::READY,
    job_schema::CANCELLED,
    job_schema::COMPLETED,
    job_schema::ERROR,
    job_schema::PENDING,
    quorum::REPORT_BAD,
    quorum::FAILURE,
    remotes::LOST,
    remotes::BACK,
    EventSpec { name: "BLOCK_EXPORT_DELETED", data: Kind::Object(&[required("id", Kind::Text)]) },
    EventSpec {
        name: "BLOCK_IO_ERROR",
        data: Kind::Object(&[
            required("qom-path", Kind::Text),
            required("device", Kind::Text),
            required("node-name", Kind::Text),
            required("operation", Kind::Choice(&["read", "write"])),
            required("action", Kind::Choice(&["report"])),
            required("reason", Kind::Text),
        ]),
    },
];

/// Every command, with what it takes.
pub static COMMANDS: &[CommandSpec] = &[
    command!("query-version"),
    command!("query-status"),
    command!("query-jobs"),
    command!("query-block-jobs"),
    command!("query-block", optional("flat", Kind::Switch), chosen::NAMES),
    command!("query-named-block-nodes", optional("flat", Kind::Switch), chosen::NAMES),
    command!("query-blockstats", optional("query-nodes", Kind::Switch), chosen::NAMES),
    command!("query-block-exports", chosen::NAMES),
    command!("x-debug-query-block-graph"),
    command!("x-query-remotes"),
    command!("add-fd", optional("fdset-id", DESCRIPTOR), optional("opaque", Kind::Text)),
    command!("remove-fd", required("fdset-id", DESCRIPTOR), optional("fd", DESCRIPTOR)),
    command!("query-fdsets"),
    command!("getfd", required("fdname", Kind::Text)),
    command!("closefd", required("fdname", Kind::Text)),
    command!("quit"),
    CommandSpec { name: "blockdev-add", arguments: Kind::Ref(&BLOCKDEV) },
    CommandSpec { name: "blockdev-create", arguments: create::ARGUMENTS },
    CommandSpec { name: "x-blockdev-amend", arguments: amend::ARGUMENTS },
    command!("blockdev-del", required("node-name", Kind::Text)),
    command!("blockdev-reopen", required("options", Kind::List(&BLOCKDEV))),
    command!("blockdev-set-active", optional("node-name", Kind::Text), required("active", Kind::Switch)),
    command!(
        "x-blockdev-change",
        required("parent", Kind::Text),
        optional("child", Kind::Text),
        optional("node", Kind::Text),
    ),
    command!("x-blockdev-set", required("node-name", Kind::Text), required("options", Kind::Text)),
    CommandSpec { name: "x-blockdev-set-iothread", arguments: object_schema::IOTHREAD },
    command!(
        "block_resize",
        optional("device", Kind::Text),
        optional("node-name", Kind::Text),
        required("size", NUMBER),
        optional("x-shrink", Kind::Switch),
    ),
    CommandSpec {
        name: "blockdev-snapshot-internal-sync",
        arguments: Kind::Object(job_schema::SNAPSHOT_INTERNAL),
    },
    command!(
        "blockdev-snapshot-delete-internal-sync",
        required("device", Kind::Text),
        optional("id", Kind::Text),
        optional("name", Kind::Text),
    ),
    dirty_bitmaps::ADD,
    dirty_bitmaps::REMOVE,
    dirty_bitmaps::CLEAR,
    dirty_bitmaps::ENABLE,
    dirty_bitmaps::DISABLE,
    dirty_bitmaps::MERGE,
    CommandSpec { name: "x-block-dirty-bitmap-ranges", arguments: bitmap_bits::RANGES },
    CommandSpec { name: "x-block-dirty-bitmap-mark", arguments: bitmap_bits::MARK },
    command!("x-debug-block-dirty-bitmap-sha256", required("node", Kind::Text), required("name", Kind::Text)),
    CommandSpec { name: "blockdev-snapshot", arguments: Kind::Object(job_schema::SNAPSHOT) },
    CommandSpec { name: "blockdev-snapshot-sync", arguments: Kind::Object(job_schema::SNAPSHOT_SYNC) },
    CommandSpec { name: "cowhand-checkpoint", arguments: checkpoints::CHECKPOINT },
    CommandSpec { name: "cowhand-checkpoint-delete", arguments: lineage_queries::DELETE },
    CommandSpec { name: "cowhand-fork", arguments: checkpoints::FORK },
    CommandSpec { name: "cowhand-rollback", arguments: checkpoints::ROLLBACK },
    CommandSpec { name: "cowhand-log", arguments: lineage_queries::LOG },
    CommandSpec { name: "cowhand-diff", arguments: lineage_queries::DIFF },
    CommandSpec { name: "cowhand-gc", arguments: lineage_queries::GC },
    CommandSpec { name: "cowhand-forget", arguments: forget::FORGET },
    CommandSpec { name: "cowhand-publish", arguments: publish::PUBLISH },
    CommandSpec { name: "cowhand-push", arguments: publish::PUSH },
    CommandSpec { name: "cowhand-restore", arguments: restore::RESTORE },
    CommandSpec { name: "change-backing-file", arguments: overlay::CHANGE_BACKING_FILE },
    CommandSpec { name: "block-stream", arguments: Kind::Object(job_schema::STREAM) },
    CommandSpec { name: "block-commit", arguments: Kind::Object(job_schema::COMMIT) },
    CommandSpec { name: "blockdev-mirror", arguments: Kind::Object(job_schema::MIRROR) },
    CommandSpec { name: "drive-mirror", arguments: Kind::Object(job_schema::DRIVE_MIRROR) },
    CommandSpec { name: "blockdev-backup", arguments: Kind::Object(job_schema::BACKUP) },
    CommandSpec { name: "drive-backup", arguments: Kind::Object(job_schema::DRIVE_BACKUP) },
    CommandSpec { name: "transaction", arguments: Kind::Object(job_schema::TRANSACTION) },
    command!("job-pause", required("id", Kind::Text)),
    command!("job-resume", required("id", Kind::Text)),
    command!("job-cancel", required("id", Kind::Text)),
    command!("job-complete", required("id", Kind::Text)),
    command!("job-finalize", required("id", Kind::Text)),
    command!("job-dismiss", required("id", Kind::Text)),
    command!("block-job-pause", required("device", Kind::Text)),
    command!("block-job-resume", required("device", Kind::Text)),
    command!("block-job-cancel", required("device", Kind::Text), optional("force", Kind::Switch)),
    command!("block-job-complete", required("device", Kind::Text)),
    command!("block-job-finalize", required("id", Kind::Text)),
    command!("block-job-dismiss", required("id", Kind::Text)),
    command!("block-job-set-speed", required("device", Kind::Text), required("speed", NUMBER)),
    CommandSpec { name: "block-job-change", arguments: job_schema::CHANGE },
    CommandSpec { name: "block-export-add", arguments: EXPORT },
    command!(
        "block-export-del",
        required("id", Kind::Text),
        optional("mode", Kind::Choice(&["safe", "hard"])),
    ),
    command!(
        "nbd-server-start",
        required("addr", Kind::Ref(&ADDRESS)),
        optional("tls-creds", Kind::Text),
        optional("tls-authz", Kind::Text),
        optional("handshake-max-seconds", Kind::Whole(u32::MAX as u64)),
        optional("max-connections", Kind::Whole(u32::MAX as u64)),
    ),
    command!("nbd-server-stop"),
    CommandSpec { name: "nbd-server-add", arguments: ADD_OLDER },
    CommandSpec { name: "nbd-server-remove", arguments: REMOVE_OLDER },
    CommandSpec { name: "chardev-add", arguments: chardevs::DEVICE },
    CommandSpec { name: "chardev-change", arguments: chardevs::DEVICE },
    command!("chardev-remove", required("id", Kind::Text)),
    command!("chardev-send-break", required("id", Kind::Text)),
    command!("query-chardev"),
    command!("query-chardev-backends"),
    CommandSpec { name: "object-add", arguments: Kind::Ref(&object_schema::OBJECT) },
    command!("object-del", required("id", Kind::Text)),
    command!(
        "qom-set",
        required("path", Kind::Text),
        required("property", Kind::Text),
        required("value", Kind::Any),
    ),
    command!("qom-get", required("path", Kind::Text), required("property", Kind::Text)),
    command!("qom-list", required("path", Kind::Text)),
    command!("qom-list-types", optional("implements", Kind::Text), optional("abstract", Kind::Switch)),
    command!("qom-list-properties", required("typename", Kind::Text)),
    command!("qom-list-get", required("paths", Kind::List(&Kind::Text))),
    CommandSpec { name: "block_set_io_throttle", arguments: Kind::Object(&THROTTLE_MEMBERS) },
    command!("x-query-throttle", optional("device", Kind::Text), chosen::NAMES),
    command!(
        "block-set-write-threshold",
        required("node-name", Kind::Text),
        required("write-threshold", NUMBER)
    ),
    command!(
        "block-latency-histogram-set",
        required("id", Kind::Text),
        optional("boundaries", BOUNDS),
        optional("boundaries-read", BOUNDS),
        optional("boundaries-write", BOUNDS),
        optional("boundaries-flush", BOUNDS),
    ),
];
