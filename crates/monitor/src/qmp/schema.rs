//! What each command takes: QEMU's names and types, as far as they mean something here.

use control::{Argument, CommandSpec, EventSpec, Kind, optional, required};
use throttle::SETTINGS;

use super::export_schema::{ADD_OLDER, ADDRESS, EXPORT, REMOVE_OLDER};
use super::kinds::NUMBER;
use super::node_options::{LimitName, limits};
use super::node_schema::BLOCKDEV;
use super::{
    amend, bitmap_bits, bitmaps, chardevs, checkpoints, chosen, corruption, create, dirty_bitmaps, forget,
    job_schema, lineage_queries, object_schema, overlay, publish, quorum, remotes, restore,
};

/// Numbers of descriptors and of their sets.
const DESCRIPTOR: Kind = Kind::Whole(i32::MAX as u64);

static THROTTLE_MEMBERS: [Argument; 2 + SETTINGS.len()] =
    limits([optional("device", Kind::Text), optional("id", Kind::Text)], LimitName::Argument);

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
