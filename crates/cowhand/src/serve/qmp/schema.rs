//! What each command takes: QEMU's names and types, as far as they mean something here.

use control::{Argument, CommandSpec, EventSpec, Kind, Variant, optional, required};

/// Numbers of bytes and operations, as JSON programs can hold them in 64 signed bits.
const NUMBER_MAX: u64 = i64::MAX as u64;

const NUMBER: Kind = Kind::Whole(NUMBER_MAX);

const CACHE: Kind = Kind::Object(&[optional("direct", Kind::Switch), optional("no-flush", Kind::Switch)]);

/// ThrottleLimits.
pub const LIMITS: Kind = Kind::Object(LIMITS_MEMBERS);

macro_rules! numbers {
    ($($name:literal)*) => { &[$(optional($name, NUMBER)),*] };
}

const LIMITS_MEMBERS: &[Argument] = numbers!(
    "iops-total" "iops-total-max" "iops-total-max-length" "iops-read" "iops-read-max" "iops-read-max-length"
    "iops-write" "iops-write-max" "iops-write-max-length" "bps-total" "bps-total-max" "bps-total-max-length"
    "bps-read" "bps-read-max" "bps-read-max-length" "bps-write" "bps-write-max" "bps-write-max-length"
    "iops-size"
);

const GROUP_MEMBERS: &[Argument] = &[
    optional("limits", LIMITS),
    optional("x-iops-total", NUMBER),
    optional("x-iops-total-max", NUMBER),
    optional("x-iops-total-max-length", NUMBER),
    optional("x-iops-read", NUMBER),
    optional("x-iops-read-max", NUMBER),
    optional("x-iops-read-max-length", NUMBER),
    optional("x-iops-write", NUMBER),
    optional("x-iops-write-max", NUMBER),
    optional("x-iops-write-max-length", NUMBER),
    optional("x-bps-total", NUMBER),
    optional("x-bps-total-max", NUMBER),
    optional("x-bps-total-max-length", NUMBER),
    optional("x-bps-read", NUMBER),
    optional("x-bps-read-max", NUMBER),
    optional("x-bps-read-max-length", NUMBER),
    optional("x-bps-write", NUMBER),
    optional("x-bps-write-max", NUMBER),
    optional("x-bps-write-max-length", NUMBER),
    optional("x-iops-size", NUMBER),
];

const FILE_MEMBERS: &[Argument] = &[
    required("filename", Kind::Text),
    optional("locking", Kind::Choice(&["auto", "on", "off"])),
    optional("aio", Kind::Choice(&["threads", "io_uring"])),
];

const OVERLAP_TEMPLATES: Kind = Kind::Choice(&["none", "constant", "cached", "all"]);

const OVERLAP_MEMBERS: &[Argument] = &[
    optional("template", OVERLAP_TEMPLATES),
    optional("main-header", Kind::Switch),
    optional("active-l1", Kind::Switch),
    optional("active-l2", Kind::Switch),
    optional("refcount-table", Kind::Switch),
    optional("refcount-block", Kind::Switch),
    optional("snapshot-table", Kind::Switch),
    optional("inactive-l1", Kind::Switch),
    optional("inactive-l2", Kind::Switch),
    optional("bitmap-directory", Kind::Switch),
];

static QCOW2_MEMBERS: &[Argument] = &[
    required("file", Kind::Ref(&NODE_OR_OPTIONS)),
    optional("backing", Kind::Ref(&BACKING)),
    optional("data-file", Kind::Ref(&NODE_OR_OPTIONS)),
    optional("cache-size", NUMBER),
    optional("l2-cache-size", NUMBER),
    optional("l2-cache-entry-size", NUMBER),
    optional("refcount-cache-size", NUMBER),
    optional("cache-clean-interval", Kind::Whole(u32::MAX as u64)),
    optional("lazy-refcounts", Kind::Switch),
    optional("pass-discard-request", Kind::Switch),
    optional("pass-discard-snapshot", Kind::Switch),
    optional("pass-discard-other", Kind::Switch),
    optional("discard-no-unref", Kind::Switch),
    optional("overlap-check", Kind::Either(&[&OVERLAP_TEMPLATES, &Kind::Object(OVERLAP_MEMBERS)])),
];

/// A child: a node by name, or its options.
static NODE_OR_OPTIONS: Kind = Kind::Either(&[&Kind::Text, &BLOCKDEV]);

/// The image below: likewise, or none.
static BACKING: Kind = Kind::Either(&[&Kind::Text, &Kind::Null, &BLOCKDEV]);

/// What blockdev-add describes.
pub static BLOCKDEV: Kind = Kind::Union {
    tag: "driver",
    common: &[
        optional("node-name", Kind::Text),
        optional("discard", Kind::Choice(&["ignore", "unmap"])),
        optional("cache", CACHE),
        optional("read-only", Kind::Switch),
        optional("auto-read-only", Kind::Switch),
        optional("force-share", Kind::Switch),
        optional("detect-zeroes", Kind::Choice(&["off", "on", "unmap"])),
    ],
    variants: &[
        Variant { tag: "file", members: FILE_MEMBERS },
        Variant { tag: "host_device", members: FILE_MEMBERS },
        Variant { tag: "raw", members: &[required("file", Kind::Ref(&NODE_OR_OPTIONS))] },
        Variant { tag: "qcow2", members: QCOW2_MEMBERS },
        Variant {
            tag: "throttle",
            members: &[required("throttle-group", Kind::Text), required("file", Kind::Ref(&NODE_OR_OPTIONS))],
        },
    ],
};

/// What object-add describes.
pub static OBJECT: Kind = Kind::Union {
    tag: "qom-type",
    common: &[required("id", Kind::Text)],
    variants: &[
        Variant { tag: "throttle-group", members: GROUP_MEMBERS },
        Variant {
            tag: "tls-creds-x509",
            members: &[
                required("dir", Kind::Text),
                optional("endpoint", Kind::Choice(&["server"])),
                optional("verify-peer", Kind::Switch),
            ],
        },
    ],
};

const INET: &[Argument] = &[
    required("host", Kind::Text),
    required("port", Kind::Text),
    optional("numeric", Kind::Switch),
    optional("ipv4", Kind::Switch),
    optional("ipv6", Kind::Switch),
];

/// Where the NBD server listens, in the nested form of nbd-server-start.
pub static ADDRESS: Kind = Kind::Union {
    tag: "type",
    common: &[],
    variants: &[
        Variant { tag: "inet", members: &[required("data", Kind::Object(INET))] },
        Variant { tag: "unix", members: &[required("data", Kind::Object(&[required("path", Kind::Text)]))] },
    ],
};

const BITMAP: Kind = Kind::Either(&[
    &Kind::Text,
    &Kind::Object(&[required("node", Kind::Text), required("name", Kind::Text)]),
]);

/// What block-export-add describes.
const EXPORT: Kind = Kind::Union {
    tag: "type",
    common: &[
        required("id", Kind::Text),
        required("node-name", Kind::Text),
        optional("writable", Kind::Switch),
        optional("writethrough", Kind::Switch),
        optional("fixed-iothread", Kind::Switch),
    ],
    variants: &[Variant {
        tag: "nbd",
        members: &[
            optional("name", Kind::Text),
            optional("description", Kind::Text),
            optional("bitmaps", Kind::List(&BITMAP)),
            optional("allocation-depth", Kind::Switch),
        ],
    }],
};

const BOUNDS: Kind = Kind::List(&NUMBER);

macro_rules! command {
    ($name:literal $(, $argument:expr)* $(,)?) => {
        CommandSpec { name: $name, arguments: Kind::Object(&[$($argument),*]) }
    };
}

/// Every event, with what it tells.
pub static EVENTS: &[EventSpec] = &[
    EventSpec {
        name: "SHUTDOWN",
        data: Kind::Object(&[
            required("guest", Kind::Switch),
            required("reason", Kind::Choice(&["host-qmp-quit", "host-signal"])),
        ]),
    },
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
    command!("query-block"),
    command!("query-named-block-nodes", optional("flat", Kind::Switch)),
    command!("query-blockstats", optional("query-nodes", Kind::Switch)),
    command!("query-block-exports"),
    command!("quit"),
    CommandSpec { name: "blockdev-add", arguments: Kind::Ref(&BLOCKDEV) },
    command!("blockdev-del", required("node-name", Kind::Text)),
    command!("blockdev-reopen", required("options", Kind::List(&BLOCKDEV))),
    command!("x-blockdev-set", required("node-name", Kind::Text), required("options", Kind::Text)),
    command!(
        "block_resize",
        optional("device", Kind::Text),
        optional("node-name", Kind::Text),
        required("size", NUMBER),
        optional("x-shrink", Kind::Switch),
    ),
    command!("blockdev-snapshot-internal-sync", required("device", Kind::Text), required("name", Kind::Text),),
    command!(
        "blockdev-snapshot-delete-internal-sync",
        required("device", Kind::Text),
        optional("id", Kind::Text),
        optional("name", Kind::Text),
    ),
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
        optional("max-connections", Kind::Whole(u32::MAX as u64)),
    ),
    command!("nbd-server-stop"),
    CommandSpec { name: "object-add", arguments: Kind::Ref(&OBJECT) },
    command!("object-del", required("id", Kind::Text)),
    command!(
        "qom-set",
        required("path", Kind::Text),
        required("property", Kind::Text),
        required("value", Kind::Any),
    ),
    command!("qom-get", required("path", Kind::Text), required("property", Kind::Text)),
    command!("qom-list", required("path", Kind::Text)),
    command!(
        "block_set_io_throttle",
        optional("device", Kind::Text),
        optional("id", Kind::Text),
        optional("group", Kind::Text),
        optional("weight", Kind::Whole(10_000)),
        required("bps", NUMBER),
        required("bps_rd", NUMBER),
        required("bps_wr", NUMBER),
        required("iops", NUMBER),
        required("iops_rd", NUMBER),
        required("iops_wr", NUMBER),
        optional("bps_max", NUMBER),
        optional("bps_rd_max", NUMBER),
        optional("bps_wr_max", NUMBER),
        optional("iops_max", NUMBER),
        optional("iops_rd_max", NUMBER),
        optional("iops_wr_max", NUMBER),
        optional("bps_max_length", NUMBER),
        optional("bps_rd_max_length", NUMBER),
        optional("bps_wr_max_length", NUMBER),
        optional("iops_max_length", NUMBER),
        optional("iops_rd_max_length", NUMBER),
        optional("iops_wr_max_length", NUMBER),
        optional("iops_size", NUMBER),
    ),
    command!("x-query-throttle", optional("device", Kind::Text)),
    command!(
        "block-latency-histogram-set",
        required("id", Kind::Text),
        optional("boundaries", BOUNDS),
        optional("boundaries-read", BOUNDS),
        optional("boundaries-write", BOUNDS),
        optional("boundaries-flush", BOUNDS),
    ),
];
