//! `-o name=value,...` to what is created: qemu-img's names and values (FACTS 1.3).
//!
//! Values are read here; which options go together is the engine's decision ([`qcow2::create`]).

mod assignments;
mod foreign;
mod listing;
mod values;
mod written;

use std::fmt;

pub use self::assignments::{Assignments, assignment, assignments, split_commas, warn_of_repeated};
use self::assignments::{check_lists, in_order};
pub use self::foreign::MADE;
pub use self::listing::{asks_for_help, help};
pub(crate) use self::values::{switch, version};
use self::written::KNOWN;
use super::encryption::Encryption;
use crate::numbers::whole;
use graph::probe::Format;
use graph::size::parse_size;
use nearest::nearest;
use qcow2::{CreateOptions, Preallocation};

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
struct OptionDef {
    name: &'static str,
    sets: Sets,
    help: &'static str,
    formats: Formats,
}

/// Which formats have an option.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Formats {
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
    fn names(self) -> &'static str {
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
const ENCRYPT: &str = "encrypt.";

impl OptionDef {
    /// What it is called in an image of `format`; `None`: it has none.
    fn name_in(&self, format: Format) -> Option<&'static str> {
        match (self.formats, format) {
            (Formats::All, _) => Some(self.name),
            (Formats::Encrypted, Format::Luks) => self.name.strip_prefix(ENCRYPT),
            (Formats::Writable, format) => (!foreign::is_foreign(format)).then_some(self.name),
            (Formats::Qcow2 | Formats::Encrypted, Format::Qcow2) => Some(self.name),
            (Formats::Vpc, format) => (format.name() == "vpc").then_some(self.name),
            (Formats::Vmdk, format) => (format.name() == "vmdk").then_some(self.name),
            (Formats::Luks, Format::Luks) => Some(self.name),
            (Formats::Qcow2 | Formats::Encrypted | Formats::Luks, _) => None,
        }
    }
}

/// What an option takes, and how that is put into the image to be made.
enum Sets {
    Size(fn(&mut NewImage, u64)),
    Switch(fn(&mut CreateOptions, bool)),
    /// A path, or a word of those in the list (`a|b`): `None` if it is none of them.
    Word(&'static str, fn(&mut NewImage, &str) -> Option<()>),
}

impl Sets {
    fn takes(&self) -> &'static str {
        match self {
            Self::Size(_) => "SIZE",
            Self::Switch(_) => "on|off",
            Self::Word(words, _) => words,
        }
    }
}

const fn known(name: &'static str, sets: Sets, help: &'static str) -> OptionDef {
    OptionDef { name, sets, help, formats: Formats::Qcow2 }
}

/// Those of all formats.
fn all() -> impl Iterator<Item = &'static OptionDef> {
    KNOWN.iter().chain(&foreign::KNOWN)
}

/// Options of images of `format`, with the names that they have there.
fn options_of(format: Format) -> impl Iterator<Item = (&'static str, &'static OptionDef)> {
    // The format is LUKS already: its name is no option.
    let is_said = move |name: &str| format == Format::Luks && name == "format";
    let named = move |known: &'static OptionDef| Some((known.name_in(format)?, known));
    all().filter_map(named).filter(move |(name, _)| !is_said(name))
}

impl NewImage {
    /// Reads all `-o` arguments of an image that is written, in order; a later value replaces an earlier one, as in qemu-img.
    ///
    /// # Errors
    /// For the first option that is unknown here, or whose value it does not take; for a format that is read, or made whole, only.
    pub fn parse(texts: &[String], format: Format) -> Result<Self, BadOption> {
        check_lists(texts)?;
        warn_of_repeated(in_order(texts));
        Self::of_assignments(format, in_order(texts))
    }

    /// As [`NewImage::parse`], also for formats that are made whole.
    ///
    /// # Errors
    /// As there, but for those.
    pub fn parse_whole(texts: &[String], format: Format) -> Result<Self, BadOption> {
        check_lists(texts)?;
        warn_of_repeated(in_order(texts));
        let image = Self::of_format(format)?.with(in_order(texts))?;
        let checked = image.foreign.as_ref().map_or(Ok(()), formats::sink::NewImage::check);
        checked.map_err(|what| BadOption(format!("{format}: {what}")))?;
        Ok(image)
    }

    /// As [`NewImage::parse`], of names and values that are apart already.
    ///
    /// # Errors
    /// As [`NewImage::parse`].
    pub fn of_assignments<N: AsRef<str>, V: AsRef<str>>(
        format: Format,
        assignments: impl IntoIterator<Item = (N, V)>,
    ) -> Result<Self, BadOption> {
        let image = Self::of_format(format)?;
        match image.foreign {
            Some(_) => Err(BadOption(format!(
                "{format} images are made by create and convert only; allowed: qcow2, raw, luks"
            ))),
            None => image.with(assignments),
        }
    }

    /// With the defaults of `format`.
    fn of_format(format: Format) -> Result<Self, BadOption> {
        let foreign = formats::sink::NewImage::of_name(format.name());
        if foreign.is_none() && foreign::is_foreign(format) {
            return Err(BadOption(format!(
                "{format} images are not made; allowed: {}",
                foreign::MADE.join(", ")
            )));
        }
        Ok(Self { format, size: None, options: CreateOptions::default(), encryption: None, foreign })
    }

    fn with<N: AsRef<str>, V: AsRef<str>>(
        mut self,
        assignments: impl IntoIterator<Item = (N, V)>,
    ) -> Result<Self, BadOption> {
        let format = self.format;
        let image = &mut self;
        if format == Format::Luks {
            Encryption::of(image);
        }
        for (name, value) in assignments {
            image.set(name.as_ref(), value.as_ref())?;
        }
        if image.options.keeps_data_file && image.options.data_file.is_none() {
            return Err(BadOption("-o keep_data_file: it goes with data_file=PATH".to_owned()));
        }
        let shows_data =
            image.options.data_file_raw || image.options.preallocation == Preallocation::Metadata;
        if image.options.keeps_data_file && !shows_data {
            let what = "-o keep_data_file: nothing of the file would be seen in an image without a map; \
                it goes with data_file_raw=on or preallocation=metadata";
            return Err(BadOption(what.to_owned()));
        }
        if let Some(encryption) = &image.encryption {
            image.options.encrypt = Some(encryption.cipher(format)?);
        }
        Ok(self)
    }

    /// The same as far as numbers and switches are right and all options known: other words that are not allowed are left out. qemu-img shows
    /// what it was given before it looks at those.
    ///
    /// # Errors
    /// As [`NewImage::parse`] of the others.
    pub fn parse_to_show(texts: &[String], format: Format) -> Result<Self, BadOption> {
        check_lists(texts)?;
        let mut image = Self::of_format(format)?;
        for (name, value) in in_order(texts) {
            let is_word = matches!(find(&name, format)?.sets, Sets::Word(..));
            let is_number = ["refcount_bits", "encrypt.iter-time", "iter-time"].contains(&name.as_str());
            match image.set(&name, &value) {
                Err(_)
                    if is_word
                        && (!is_number || (value.parse::<i64>().is_ok() || whole::<u64>(&value).is_ok())) => {
                }
                set => set?,
            }
        }
        Ok(image)
    }

    fn set(&mut self, name: &str, value: &str) -> Result<(), BadOption> {
        let sets = &find(name, self.format)?.sets;
        let bad =
            || BadOption(format!("-o {name} is {value:?}; allowed: {}", sets.takes().replace('|', ", ")));
        match sets {
            Sets::Size(put) => {
                let size = parse_size(value).map_err(|error| BadOption(format!("-o {name}: {error}")));
                put(self, size?);
            }
            Sets::Switch(put) => put(&mut self.options, switch(value).ok_or_else(bad)?),
            Sets::Word(_, put) => put(self, value).ok_or_else(bad)?,
        }
        Ok(())
    }
}

/// Whether some format has an option of this name.
fn is_known(name: &str) -> bool {
    let names = |known: &OptionDef| known.name == name || known.name_in(Format::Luks) == Some(name);
    all().any(names)
}

fn find(name: &str, format: Format) -> Result<&'static OptionDef, BadOption> {
    if let Some((_, known)) = options_of(format).find(|(known, _)| *known == name) {
        return Ok(known);
    }
    if KNOWN.iter().any(|known| known.name == name && name.starts_with(ENCRYPT)) && format == Format::Luks {
        let alone = name.trim_start_matches(ENCRYPT);
        return Err(BadOption(format!("-o {name} is for qcow2 images; in a LUKS file it is {alone}")));
    }
    let of_others: Vec<_> =
        all().filter(|known| known.name == name).map(|known| known.formats.names()).collect();
    if !of_others.is_empty() {
        return Err(BadOption(format!("-o {name} is for {} images, not for {format}", of_others.join(", "))));
    }
    let nearest = nearest(name, options_of(format).map(|(name, _)| name)).join(", ");
    let hint =
        if nearest.is_empty() { "-o help lists all".to_owned() } else { format!("did you mean {nearest}?") };
    Err(BadOption(format!("-o {name}: unknown option; {hint}")))
}

#[cfg(test)]
mod tests;
