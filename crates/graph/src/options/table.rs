//! The table of all options of a drive: what each is called and takes, what holds without it, when it changes.
//!
//! Each kind of node has its part of the table in its own file, beside the fields that the options set. Parsers of drive lines,
//! `json:` and TOML, hints for mistyped names, reopening, the schema of QMP, help and docs/reference/options.md read it from here.

use super::DiskOptions;
use super::entry::{Entry, at, in_group};
use super::error::OptionError;
pub use super::file::FILE;
pub use super::layer::LAYER;
use super::reader::Reader;
use super::spec::{Changes, Group, Kind, Qmp, Spec};
pub use super::throttling::{LIMITS, THROTTLING};
use crate::drivers::{filter_drivers, format_drivers, storage_drivers};

/// The part of the table for the disk as a whole.
pub const DISK: &[Entry<DiskOptions>] = &in_group(
    Group::Disk,
    [Entry::text("id", at!(DiskOptions, id), "what exports and messages call the disk")
        .default_follows("the file's name without extension")
        .qmp(Qmp::None)],
);

/// All options, in the order of the documentation.
pub fn all() -> impl Iterator<Item = &'static Spec> {
    let disk = DISK.iter().map(Entry::spec);
    let of_formats = format_drivers().iter().flat_map(|driver| driver.options);
    let layer = LAYER.iter().chain(of_formats).map(Entry::spec);
    let file = FILE.iter().map(Entry::spec);
    let elsewhere = storage_drivers().iter().flat_map(|driver| driver.specs());
    let filters = filter_drivers().iter().flat_map(|driver| (driver.specs)());
    let below = layer.chain(file).chain(elsewhere);
    disk.chain(below).chain(filters).chain(LIMITS).chain(THROTTLING.iter().map(Entry::spec))
}

/// What the options are of, in the order of the documentation.
pub fn groups() -> impl Iterator<Item = Group> {
    let elsewhere = storage_drivers().iter().filter(|driver| !driver.is_of_paths());
    let elsewhere = elsewhere.map(|driver| Group::Storage(driver.name));
    let formats = format_drivers().iter().filter(|driver| !driver.options.is_empty());
    let formats = formats.map(|driver| Group::Format(driver.name));
    let filters = filter_drivers().iter().map(|driver| Group::Filter(driver.name));
    [Group::Layer]
        .into_iter()
        .chain(formats)
        .chain([Group::File])
        .chain(elsewhere)
        .chain(filters)
        .chain([Group::Disk, Group::Throttling])
}

/// Options that QEMU's `-drive` takes beside the image's own.
const ELSEWHERE: [(&str, &str); 11] = [
    ("if", "the guest's device"),
    ("media", "the guest's device"),
    ("bus", "the guest's device"),
    ("unit", "the guest's device"),
    ("index", "the guest's device"),
    ("addr", "the guest's device"),
    ("serial", "the guest's device"),
    ("werror", "the guest's device"),
    ("rerror", "the guest's device"),
    ("snapshot", "the virtual machine's session"),
    ("copy-on-read", "a filter over the image"),
];

/// Options of the disk as a whole, which its lower images do not have.
const ELSEWHERE_BELOW: [(&str, &str); 1] = [("throttling", "the disk as a whole")];

/// Whether `key` (dotted) names an option, so that `key=...` cannot well be meant as a path.
pub fn is_option_name(key: &str) -> bool {
    let first = |name: &str| name.split('.').next() == key.split('.').next();
    let has_name = |spec: &Spec| match spec.group {
        Group::Throttling => first(spec.group.prefix()) || spec.alias == Some(key),
        _ => first(&spec.full_name()) || spec.full_alias().is_some_and(|alias| first(&alias)),
    };
    all().any(has_name) || ELSEWHERE.iter().any(|(name, _)| first(name))
}

/// Whether the last part of `key` (dotted) is the name of an option that is on or off.
pub(crate) fn is_switch(key: &str) -> bool {
    let is_called = |spec: &Spec, name: &str| spec.name == name || spec.alias == Some(name);
    // Some names have a dot in them: cache.direct.
    let names = key.match_indices('.').map(|(at, _)| &key[at + 1..]).chain([key]);
    let is_of_switch =
        |name: &str| all().any(|spec| matches!(spec.kind, Kind::Switch) && is_called(spec, name));
    is_option_name(key) && names.into_iter().any(is_of_switch)
}

/// Whether blockdev-reopen cannot say what it should be, and does not change it: `name` is that of a fixed option, or of limits.
pub(crate) fn has_no_word(name: &str) -> bool {
    let is_fixed = |spec: &Spec| spec.changes == Changes::AtOpen && spec.qmp == Qmp::None;
    match Group::Throttling.prefix().strip_suffix('.') {
        Some(limits) if limits == name => true,
        _ => {
            LIMITS.iter().any(|spec| spec.alias == Some(name))
                || all().any(|spec| spec.name == name && spec.group != Group::Throttling && is_fixed(spec))
        }
    }
}

/// Whether an option is the disk's as a whole: its lower images do not have it.
pub(crate) fn is_of_whole_disk(name: &str) -> bool {
    DISK.iter().any(|entry| entry.spec().is_called(name))
        || ELSEWHERE_BELOW.iter().any(|(elsewhere, _)| *elsewhere == name)
        || LIMITS.iter().any(|spec| spec.alias == Some(name))
}

/// Whether options of this name are also a value (`cache=none,cache.direct=off`): then they keep their dots.
pub(crate) fn is_flat(part: &str) -> bool {
    all().any(|spec| spec.name.split_once('.').is_some_and(|(first, _)| first == part))
}

/// Whether a path is short for the `filename` of what is called so.
pub(crate) fn is_file(part: &str) -> bool {
    all().any(|spec| spec.kind == Kind::File && spec.name == part)
}

/// The other name of an option of an image or a file.
pub(crate) fn other_name(name: &str) -> Option<&'static str> {
    let other = |spec: &'static Spec| match spec.alias {
        Some(alias) if spec.name == name => Some(alias),
        Some(alias) if alias == name => Some(spec.name),
        _ => None,
    };
    all().filter(|spec| spec.group != Group::Throttling).find_map(other)
}

/// Every option of an image has been taken from `reader`; what is left is unknown, or belongs elsewhere.
pub(super) fn finish_layer(reader: Reader, below: bool) -> Result<(), OptionError> {
    let has_it = |spec: &&Spec| match spec.group {
        Group::Layer | Group::Format(_) => true,
        Group::Disk => !below,
        Group::Throttling | Group::File | Group::Storage(_) | Group::Filter(_) => false,
    };
    let names = all().filter(has_it).flat_map(|spec| [Some(spec.name), spec.alias]).flatten();
    let of_disk = LIMITS.iter().filter_map(|spec| spec.alias).chain(["throttling"]).filter(|_| !below);
    let elsewhere: Vec<_> = match below {
        true => ELSEWHERE.iter().chain(&ELSEWHERE_BELOW).copied().collect(),
        false => ELSEWHERE.to_vec(),
    };
    reader.finish(names.chain(of_disk), &elsewhere)
}
