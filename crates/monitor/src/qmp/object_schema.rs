//! What object-add takes: QEMU's names and types.

use control::{Argument, Kind, Variant, optional, required};
use throttle::PARAMETERS;

use super::kinds::NUMBER;
use super::node_options::{LimitName, limits};

/// ThrottleLimits.
pub const LIMITS: Kind = Kind::Object(&LIMITS_MEMBERS);

static LIMITS_MEMBERS: [Argument; PARAMETERS.len()] = limits([], LimitName::Limits);

static GROUP_MEMBERS: [Argument; 1 + PARAMETERS.len()] =
    limits([optional("limits", LIMITS)], LimitName::Property);

const POLICY: Kind = Kind::Choice(&["deny", "allow"]);

/// A rule of a list of names.
static RULE: Kind = Kind::Object(&[
    required("match", Kind::Text),
    required("policy", POLICY),
    optional("format", Kind::Choice(&["exact", "glob"])),
]);

const LIST_MEMBERS: &[Argument] = &[optional("policy", POLICY), optional("rules", Kind::List(&RULE))];

/// A list of rules, in a command or a file.
pub const LIST: Kind = Kind::Object(LIST_MEMBERS);

/// What x-blockdev-set-iothread takes.
pub const IOTHREAD: Kind = Kind::Object(&[
    required("node-name", Kind::Text),
    required("iothread", Kind::Either(&[&Kind::Text, &Kind::Null])),
    optional("force", Kind::Switch),
]);

/// What object-add describes.
pub static OBJECT: Kind = Kind::Union {
    tag: "qom-type",
    common: &[required("id", Kind::Text)],
    variants: &[
        Variant { tag: "throttle-group", members: &GROUP_MEMBERS },
        Variant {
            tag: "secret",
            members: &[
                optional("data", Kind::Text),
                optional("file", Kind::Text),
                optional("format", Kind::Choice(&["raw", "base64"])),
            ],
        },
        Variant {
            tag: "secret_keyring",
            members: &[
                required("serial", Kind::Whole(i32::MAX as u64)),
                optional("format", Kind::Choice(&["raw", "base64"])),
            ],
        },
        Variant {
            tag: "iothread",
            members: &[
                optional("poll-max-ns", NUMBER),
                optional("poll-grow", NUMBER),
                optional("poll-shrink", NUMBER),
                optional("poll-weight", Kind::Whole(63)),
                optional("aio-max-batch", NUMBER),
                optional("thread-pool-min", NUMBER),
                optional("thread-pool-max", NUMBER),
            ],
        },
        Variant {
            tag: "main-loop",
            members: &[
                optional("aio-max-batch", NUMBER),
                optional("thread-pool-min", NUMBER),
                optional("thread-pool-max", NUMBER),
            ],
        },
        Variant {
            tag: "thread-context",
            members: &[
                optional("cpu-affinity", Kind::List(&NUMBER)),
                optional("node-affinity", Kind::List(&NUMBER)),
            ],
        },
        Variant {
            tag: "monitor-qmp",
            members: &[required("chardev", Kind::Text), optional("pretty", Kind::Switch)],
        },
        Variant { tag: "authz-simple", members: &[required("identity", Kind::Text)] },
        Variant { tag: "authz-list", members: LIST_MEMBERS },
        Variant {
            tag: "authz-listfile",
            members: &[required("filename", Kind::Text), optional("refresh", Kind::Switch)],
        },
        Variant {
            tag: "tls-creds-x509",
            members: &[
                required("dir", Kind::Text),
                optional("endpoint", Kind::Choice(&["client", "server"])),
                optional("verify-peer", Kind::Switch),
                optional("priority", Kind::Text),
                optional("passwordid", Kind::Text),
                optional("sanity-check", Kind::Switch),
            ],
        },
    ],
};
