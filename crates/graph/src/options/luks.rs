//! `key-secret`: the password of a LUKS file.

use super::entry::{Entry, at, in_group};
use super::layer::LayerOptions;
use super::spec::Group;

/// The part of the table for LUKS files.
pub const LUKS: &[Entry<LayerOptions>] = &in_group(
    Group::Format("luks"),
    [Entry::text(
        "key-secret",
        at!(LayerOptions, key_secret),
        "the secret (--object secret,id=NAME) that holds its password",
    )
    .default_follows("none, and the file is not opened")],
);
