//! `-o name=value,...` to what is created: qemu-img's names and values (FACTS 1.3).
//!
//! Values are read here; which options go together is the engine's decision ([`qcow2::create`]).

mod assignments;
mod definition;
mod foreign;
mod listing;
mod values;
mod written;

pub use self::assignments::{Assignments, assignment, assignments, warn_of_repeated};
use self::assignments::{check_lists, in_order};
pub use self::definition::{BadOption, NewImage};
use self::definition::{ENCRYPT, OptionDef, Sets};
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
