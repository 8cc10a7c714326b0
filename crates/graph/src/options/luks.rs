//! `key-secret`, `header`: the password of a LUKS file, and where its header is.

use super::entry::{Entry, at, in_group};
use super::layer::LayerOptions;
use super::spec::{Group, Kind};

/// The part of the table for LUKS files.
pub const LUKS: &[Entry<LayerOptions>] = &in_group(
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
