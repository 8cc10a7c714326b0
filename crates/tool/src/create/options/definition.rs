//! What a creation option is: its name in each format, what it takes, and what it puts into the image that is to be made.

use std::fmt;

use graph::probe::Format;
use qcow2::CreateOptions;

use super::foreign::is_foreign;
use crate::create::encryption::Encryption;

/// What can be wrong with a creation option, as a sentence for the user.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BadOption(pub String);

impl fmt::Display for BadOption {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for BadOption {}

/// An image that is to be made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NewImage {
    /// Its format.
    pub format: Format,
    /// Size of the disk in bytes, once it is known.
    pub size: Option<u64>,
    /// Everything else; a raw image has no more than `preallocation`.
    pub options: CreateOptions,
    /// `encrypt.*`, where any of it was given.
    pub encryption: Option<Encryption>,
    /// Of a format that is made whole and in order: its options.
    pub foreign: Option<formats::sink::NewImage>,
}

/// A creation option: its name, what it takes and sets, and what it does.
pub(super) struct OptionDef {
    pub(super) name: &'static str,
    pub(super) sets: Sets,
    pub(super) help: &'static str,
    pub(super) formats: Formats,
}

/// Which formats have an option.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Formats {
    All,
    /// Those whose images are disks that are written: qcow2, raw, luks.
    Writable,
    Qcow2,
    Vpc,
    Vmdk,
    /// Options of encryption: of a LUKS file without the prefix ([`ENCRYPT`]).
    Encrypted,
    Luks,
}

impl Formats {
    /// As messages name them.
    pub(super) fn names(self) -> &'static str {
        match self {
            Self::All | Self::Writable => "qcow2, raw, luks",
            Self::Qcow2 | Self::Encrypted => "qcow2",
            Self::Vpc => "vpc",
            Self::Vmdk => "vmdk",
            Self::Luks => "luks",
        }
    }
}

/// What names of options of encryption begin with where they are a part of an image.
pub(super) const ENCRYPT: &str = "encrypt.";

impl OptionDef {
    /// What it is called in an image of `format`; `None`: it has none.
    pub(super) fn name_in(&self, format: Format) -> Option<&'static str> {
        match (self.formats, format) {
            (Formats::All, _) => Some(self.name),
            (Formats::Encrypted, Format::Luks) => self.name.strip_prefix(ENCRYPT),
            (Formats::Writable, format) => (!is_foreign(format)).then_some(self.name),
            (Formats::Qcow2 | Formats::Encrypted, Format::Qcow2) => Some(self.name),
            (Formats::Vpc, format) => (format.name() == "vpc").then_some(self.name),
            (Formats::Vmdk, format) => (format.name() == "vmdk").then_some(self.name),
            (Formats::Luks, Format::Luks) => Some(self.name),
            (Formats::Qcow2 | Formats::Encrypted | Formats::Luks, _) => None,
        }
    }
}

/// What an option takes, and how that is put into the image to be made.
pub(super) enum Sets {
    Size(fn(&mut NewImage, u64)),
    Switch(fn(&mut CreateOptions, bool)),
    /// A path, or a word of those in the list (`a|b`): `None` if it is none of them.
    Word(&'static str, fn(&mut NewImage, &str) -> Option<()>),
}

impl Sets {
    pub(super) fn takes(&self) -> &'static str {
        match self {
            Self::Size(_) => "SIZE",
            Self::Switch(_) => "on|off",
            Self::Word(words, _) => words,
        }
    }
}

pub(super) const fn known(name: &'static str, sets: Sets, help: &'static str) -> OptionDef {
    OptionDef { name, sets, help, formats: Formats::Qcow2 }
}
