//! What commands about exports take: QEMU's names and types.

use control::{Argument, Kind, Variant, optional, required};

use super::kinds::BITMAP;

const INET: &[Argument] = &[
    required("host", Kind::Text),
    required("port", Kind::Text),
    optional("numeric", Kind::Switch),
    optional("ipv4", Kind::Switch),
    optional("ipv6", Kind::Switch),
    optional("to", Kind::Whole(u16::MAX as u64)),
    optional("keep-alive", Kind::Switch),
    optional("keep-alive-count", Kind::Whole(u32::MAX as u64)),
    optional("keep-alive-idle", Kind::Whole(u32::MAX as u64)),
    optional("keep-alive-interval", Kind::Whole(u32::MAX as u64)),
];

/// A Unix socket, perhaps one without a path.
const UNIX: &[Argument] =
    &[required("path", Kind::Text), optional("abstract", Kind::Switch), optional("tight", Kind::Switch)];

/// Where a server listens, in the nested form of nbd-server-start and chardev-add.
pub static ADDRESS: Kind = Kind::Union {
    tag: "type",
    common: &[],
    variants: &[
        Variant { tag: "inet", members: &[required("data", Kind::Object(INET))] },
        Variant { tag: "unix", members: &[required("data", Kind::Object(UNIX))] },
    ],
};

/// Ours: checkpoints from which clients may ask what differs.
const SINCE: Argument = optional("since", Kind::List(&Kind::Text));

/// What block-export-add describes.
pub const EXPORT: Kind = Kind::Union {
    tag: "type",
    common: &[
        required("id", Kind::Text),
        required("node-name", Kind::Text),
        optional("writable", Kind::Switch),
        optional("writethrough", Kind::Switch),
        optional("iothread", Kind::Either(&[&Kind::Text, &Kind::List(&Kind::Text)])),
        optional("fixed-iothread", Kind::Switch),
        optional("allow-inactive", Kind::Switch),
    ],
    variants: &[
        Variant {
            tag: "nbd",
            members: &[
                optional("name", Kind::Text),
                optional("description", Kind::Text),
                optional("bitmaps", Kind::List(&BITMAP)),
                optional("allocation-depth", Kind::Switch),
                SINCE,
            ],
        },
        Variant { tag: "vhost-user-blk", members: VHOST_USER_BLK },
        Variant {
            tag: "fuse",
            members: &[
                required("mountpoint", Kind::Text),
                optional("growable", Kind::Switch),
                optional("allow-other", Kind::Choice(&["on", "off", "auto"])),
            ],
        },
        Variant {
            tag: "ublk",
            members: &[optional("number", Kind::Whole(door_ublk::limits::NUMBER_MAX as u64))],
        },
    ],
};

/// Of an export to virtual machines.
const VHOST_USER_BLK: &[Argument] = &[
    required("addr", Kind::Ref(&SOCKET)),
    optional("logical-block-size", Kind::Whole(32768)),
    optional("num-queues", Kind::Whole(door_vhost_user_blk::limits::QUEUES_MAX as u64)),
    optional("serial", Kind::Text),
    optional("request-merging", Kind::Switch),
];

/// How forks are exported: what block-export-add describes, without what follows from the name of each.
pub static SERVE: Kind = Kind::Union {
    tag: "type",
    common: &[optional("writable", Kind::Switch), optional("writethrough", Kind::Switch)],
    variants: &[
        Variant { tag: "nbd", members: &[optional("allocation-depth", Kind::Switch), SINCE] },
        Variant { tag: "vhost-user-blk", members: VHOST_USER_BLK },
        Variant { tag: "ublk", members: &[] },
    ],
};

/// Where virtual machines connect.
static SOCKET: Kind =
    Kind::Union { tag: "type", common: &[], variants: &[Variant { tag: "unix", members: UNIX }] };

/// What nbd-server-add describes.
pub const ADD_OLDER: Kind = Kind::Object(&[
    required("device", Kind::Text),
    optional("name", Kind::Text),
    optional("description", Kind::Text),
    optional("writable", Kind::Switch),
    optional("bitmap", Kind::Text),
]);

/// Which export nbd-server-remove means.
pub const REMOVE_OLDER: Kind =
    Kind::Object(&[required("name", Kind::Text), optional("mode", Kind::Choice(&["safe", "hard"]))]);
