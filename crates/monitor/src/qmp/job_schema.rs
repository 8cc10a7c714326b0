//! Arguments of commands that begin jobs, and members of jobs' events: QEMU's names and types.

use control::{Argument, EventSpec, Kind, Variant, optional, required};

use super::kinds::NUMBER;
use super::{checkpoints, dirty_bitmaps};

const ON_ERROR: Kind = Kind::Choice(&["report", "ignore", "enospc", "stop", "auto"]);
const SYNC: Kind = Kind::Choice(&["top", "full", "none", "incremental", "bitmap"]);
const BITMAP_MODE: Kind = Kind::Choice(&["on-success", "never", "always"]);
const MODE: Kind = Kind::Choice(&["existing", "absolute-paths"]);
const ON_CBW_ERROR: Kind = Kind::Choice(&["break-guest-write", "break-snapshot"]);
const COPY_MODE: Kind = Kind::Choice(&["background", "write-blocking"]);
/// Rounds over a disk.
const ROUNDS: Kind = Kind::Whole(u32::MAX as u64);
const JOB_KIND: Kind = Kind::Choice(&["commit", "stream", "mirror", "backup"]);
const JOB_STATUS: Kind = Kind::Choice(&[
    "undefined",
    "created",
    "running",
    "paused",
    "ready",
    "standby",
    "waiting",
    "pending",
    "aborting",
    "concluded",
    "null",
]);

/// blockdev-snapshot-internal-sync.
pub const SNAPSHOT_INTERNAL: &[Argument] = &[required("device", Kind::Text), required("name", Kind::Text)];

/// blockdev-snapshot.
pub const SNAPSHOT: &[Argument] = &[required("node", Kind::Text), required("overlay", Kind::Text)];

/// blockdev-snapshot-sync.
pub const SNAPSHOT_SYNC: &[Argument] = &[
    optional("device", Kind::Text),
    optional("node-name", Kind::Text),
    required("snapshot-file", Kind::Text),
    optional("snapshot-node-name", Kind::Text),
    optional("format", Kind::Text),
    optional("mode", MODE),
];

/// How a backup copies.
const PERF: Kind = Kind::Object(&[
    optional("use-copy-range", Kind::Switch),
    optional("max-workers", NUMBER),
    optional("max-chunk", NUMBER),
    optional("min-cluster-size", NUMBER),
]);

/// blockdev-backup.
pub const BACKUP: &[Argument] = &[
    optional("job-id", Kind::Text),
    required("device", Kind::Text),
    required("target", Kind::Text),
    required("sync", SYNC),
    optional("bitmap", Kind::Text),
    optional("bitmap-mode", BITMAP_MODE),
    optional("compress", Kind::Switch),
    optional("speed", NUMBER),
    optional("on-source-error", ON_ERROR),
    optional("on-target-error", ON_ERROR),
    optional("on-cbw-error", ON_CBW_ERROR),
    optional("x-perf", PERF),
    optional("discard-source", Kind::Switch),
    optional("filter-node-name", Kind::Text),
    optional("auto-finalize", Kind::Switch),
    optional("auto-dismiss", Kind::Switch),
];

/// drive-backup.
pub const DRIVE_BACKUP: &[Argument] = &[
    optional("job-id", Kind::Text),
    required("device", Kind::Text),
    required("target", Kind::Text),
    required("sync", SYNC),
    optional("bitmap", Kind::Text),
    optional("bitmap-mode", BITMAP_MODE),
    optional("compress", Kind::Switch),
    optional("speed", NUMBER),
    optional("on-source-error", ON_ERROR),
    optional("on-target-error", ON_ERROR),
    optional("on-cbw-error", ON_CBW_ERROR),
    optional("x-perf", PERF),
    optional("discard-source", Kind::Switch),
    optional("filter-node-name", Kind::Text),
    optional("auto-finalize", Kind::Switch),
    optional("auto-dismiss", Kind::Switch),
    optional("format", Kind::Text),
    optional("mode", MODE),
];

/// One action of a transaction.
static ACTION: Kind = Kind::Union {
    tag: "type",
    common: &[],
    variants: &[
        Variant { tag: "abort", members: &[required("data", Kind::Object(&[]))] },
        Variant { tag: "blockdev-snapshot", members: &[required("data", Kind::Object(SNAPSHOT))] },
        Variant { tag: "blockdev-snapshot-sync", members: &[required("data", Kind::Object(SNAPSHOT_SYNC))] },
        Variant { tag: "blockdev-backup", members: &[required("data", Kind::Object(BACKUP))] },
        Variant { tag: "drive-backup", members: &[required("data", Kind::Object(DRIVE_BACKUP))] },
        Variant {
            tag: "blockdev-snapshot-internal-sync",
            members: &[required("data", Kind::Object(SNAPSHOT_INTERNAL))],
        },
        Variant { tag: "cowhand-checkpoint", members: &[required("data", checkpoints::CHECKPOINT)] },
        Variant { tag: "cowhand-fork", members: &[required("data", checkpoints::FORK_ACTION)] },
        Variant { tag: "cowhand-rollback", members: &[required("data", checkpoints::ROLLBACK)] },
        Variant { tag: "block-dirty-bitmap-add", members: &[required("data", dirty_bitmaps::ADD.arguments)] },
        Variant {
            tag: "block-dirty-bitmap-remove",
            members: &[required("data", dirty_bitmaps::REMOVE.arguments)],
        },
        Variant {
            tag: "block-dirty-bitmap-clear",
            members: &[required("data", dirty_bitmaps::CLEAR.arguments)],
        },
        Variant {
            tag: "block-dirty-bitmap-enable",
            members: &[required("data", dirty_bitmaps::ENABLE.arguments)],
        },
        Variant {
            tag: "block-dirty-bitmap-disable",
            members: &[required("data", dirty_bitmaps::DISABLE.arguments)],
        },
        Variant {
            tag: "block-dirty-bitmap-merge",
            members: &[required("data", dirty_bitmaps::MERGE.arguments)],
        },
    ],
};

/// The members of an event when a job is ready or was cancelled.
const OF_JOB: &[Argument] = &[
    required("type", JOB_KIND),
    required("device", Kind::Text),
    required("len", NUMBER),
    required("offset", NUMBER),
    required("speed", NUMBER),
];

/// block-stream.
pub const STREAM: &[Argument] = &[
    optional("job-id", Kind::Text),
    required("device", Kind::Text),
    optional("base", Kind::Text),
    optional("base-node", Kind::Text),
    optional("bottom", Kind::Text),
    optional("backing-file", Kind::Text),
    optional("backing-mask-protocol", Kind::Switch),
    optional("speed", NUMBER),
    optional("on-error", ON_ERROR),
    optional("filter-node-name", Kind::Text),
    optional("auto-finalize", Kind::Switch),
    optional("auto-dismiss", Kind::Switch),
];

/// block-commit.
pub const COMMIT: &[Argument] = &[
    optional("job-id", Kind::Text),
    required("device", Kind::Text),
    optional("base", Kind::Text),
    optional("base-node", Kind::Text),
    optional("top", Kind::Text),
    optional("top-node", Kind::Text),
    optional("backing-file", Kind::Text),
    optional("backing-mask-protocol", Kind::Switch),
    optional("speed", NUMBER),
    optional("on-error", ON_ERROR),
    optional("x-converge-after", ROUNDS),
    optional("filter-node-name", Kind::Text),
    optional("auto-finalize", Kind::Switch),
    optional("auto-dismiss", Kind::Switch),
];

/// blockdev-mirror.
pub const MIRROR: &[Argument] = &[
    optional("job-id", Kind::Text),
    required("device", Kind::Text),
    required("target", Kind::Text),
    optional("replaces", Kind::Text),
    required("sync", SYNC),
    optional("bitmap", Kind::Text),
    optional("bitmap-mode", BITMAP_MODE),
    optional("speed", NUMBER),
    optional("granularity", Kind::Whole(u32::MAX as u64)),
    optional("buf-size", NUMBER),
    optional("on-source-error", ON_ERROR),
    optional("on-target-error", ON_ERROR),
    optional("copy-mode", COPY_MODE),
    optional("target-is-zero", Kind::Switch),
    optional("x-converge-after", ROUNDS),
    optional("filter-node-name", Kind::Text),
    optional("auto-finalize", Kind::Switch),
    optional("auto-dismiss", Kind::Switch),
];

/// drive-mirror.
pub const DRIVE_MIRROR: &[Argument] = &[
    optional("job-id", Kind::Text),
    required("device", Kind::Text),
    required("target", Kind::Text),
    optional("format", Kind::Text),
    optional("node-name", Kind::Text),
    optional("replaces", Kind::Text),
    required("sync", SYNC),
    optional("bitmap", Kind::Text),
    optional("bitmap-mode", BITMAP_MODE),
    optional("mode", MODE),
    optional("speed", NUMBER),
    optional("granularity", Kind::Whole(u32::MAX as u64)),
    optional("buf-size", NUMBER),
    optional("on-source-error", ON_ERROR),
    optional("on-target-error", ON_ERROR),
    optional("unmap", Kind::Switch),
    optional("copy-mode", COPY_MODE),
    optional("x-converge-after", ROUNDS),
    optional("auto-finalize", Kind::Switch),
    optional("auto-dismiss", Kind::Switch),
];

/// block-job-change.
pub const CHANGE: Kind = Kind::Union {
    tag: "type",
    common: &[required("id", Kind::Text)],
    variants: &[Variant { tag: "mirror", members: &[required("copy-mode", COPY_MODE)] }],
};

/// transaction.
pub const TRANSACTION: &[Argument] = &[
    required("actions", Kind::List(&ACTION)),
    optional(
        "properties",
        Kind::Object(&[optional("completion-mode", Kind::Choice(&["individual", "grouped"]))]),
    ),
];

/// JOB_STATUS_CHANGE.
pub const STATUS_CHANGE: EventSpec = EventSpec {
    name: "JOB_STATUS_CHANGE",
    data: Kind::Object(&[required("id", Kind::Text), required("status", JOB_STATUS)]),
};

/// BLOCK_JOB_READY.
pub const READY: EventSpec = EventSpec { name: "BLOCK_JOB_READY", data: Kind::Object(OF_JOB) };

/// BLOCK_JOB_CANCELLED.
pub const CANCELLED: EventSpec = EventSpec { name: "BLOCK_JOB_CANCELLED", data: Kind::Object(OF_JOB) };

/// BLOCK_JOB_COMPLETED.
pub const COMPLETED: EventSpec = EventSpec {
    name: "BLOCK_JOB_COMPLETED",
    data: Kind::Object(&[
        required("type", JOB_KIND),
        required("device", Kind::Text),
        required("len", NUMBER),
        required("offset", NUMBER),
        required("speed", NUMBER),
        optional("error", Kind::Text),
    ]),
};

/// BLOCK_JOB_ERROR.
pub const ERROR: EventSpec = EventSpec {
    name: "BLOCK_JOB_ERROR",
    data: Kind::Object(&[
        required("device", Kind::Text),
        required("operation", Kind::Choice(&["read", "write"])),
        required("action", Kind::Choice(&["ignore", "report", "stop"])),
    ]),
};

/// BLOCK_JOB_PENDING.
pub const PENDING: EventSpec = EventSpec {
    name: "BLOCK_JOB_PENDING",
    data: Kind::Object(&[required("type", JOB_KIND), required("id", Kind::Text)]),
};
