//! `-o name=value,...` to what changes: qemu-img's names and values.

use graph::drive::split_text;
use graph::probe::Format;
use graph::size::parse_size;
use nearest::nearest;
use qcow2::Amendment;
use qcow2_layout::Header;

use super::keys;
use crate::create::options::{BadOption, assignment, switch, version, warn_of_repeated};
use crate::numbers::whole;
use crate::option_list;
use crate::voice;

/// What the `-o` options ask to be changed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AmendOptions {
    /// Everything in the header.
    pub amendment: Amendment,
    /// Size of the disk in bytes.
    pub size: Option<u64>,
    /// Changes of an encrypted image's key slots.
    pub keys: keys::KeyOptions,
    /// The backing file. It cannot be changed here; [`Self::check_backing`] compares it.
    backing_file: Option<String>,
    backing_format: Option<String>,
}

/// An option: its name, what it takes, what it does, and how it is stored in a `T`; `None` for a value that
/// it does not take.
pub struct OptionDef<T> {
    pub name: &'static str,
    pub takes: &'static str,
    pub help: &'static str,
    pub put: fn(&mut T, &str) -> Option<()>,
}

/// Options of qcow2 images. Those of encryption ([`keys::KNOWN`]) have their prefix ([`keys::ENCRYPT`]) in front.
const KNOWN: [OptionDef<AmendOptions>; 8] = [
    OptionDef {
        name: "backing_file",
        takes: "PATH",
        help: "the backing file: only the one that it has (cowhand rebase changes it)",
        put: |wanted, value| {
            wanted.backing_file = Some(value.to_owned());
            Some(())
        },
    },
    OptionDef {
        name: "backing_fmt",
        takes: "qcow2|raw",
        help: "its format: likewise",
        put: |wanted, value| {
            wanted.backing_format = Some(value.to_owned());
            Some(())
        },
    },
    OptionDef {
        name: "compat",
        takes: "1.1|0.10",
        help: "format version: 1.1 is 3, 0.10 is 2",
        put: |wanted, value| {
            wanted.amendment.version = Some(version(value)?);
            Some(())
        },
    },
    OptionDef {
        name: "data_file",
        takes: "PATH",
        help: "another name of the external data file, where there is one; an empty one removes it",
        put: |wanted, value| {
            wanted.amendment.data_file = Some(value.to_owned());
            Some(())
        },
    },
    OptionDef {
        name: "data_file_raw",
        takes: "on|off",
        help: "keep that file readable as a raw image (on only where it is)",
        put: |wanted, value| {
            wanted.amendment.data_file_raw = Some(switch(value)?);
            Some(())
        },
    },
    OptionDef {
        name: "lazy_refcounts",
        takes: "on|off",
        help: "write refcounts late: faster, with a repair after a crash",
        put: |wanted, value| {
            wanted.amendment.lazy_refcounts = Some(switch(value)?);
            Some(())
        },
    },
    OptionDef {
        name: "refcount_bits",
        takes: "1|2|4|8|16|32|64",
        help: "width of a refcount",
        put: |wanted, value| {
            let bits: u32 = whole(value).ok()?;
            wanted.amendment.refcount_bits = Some(bits);
            (bits.is_power_of_two() && bits <= 64).then_some(())
        },
    },
    OptionDef {
        name: "size",
        takes: "SIZE",
        help: "size of the disk (a smaller one needs --force)",
        put: |wanted, value| {
            wanted.size = Some(parse_size(value).ok()?);
            Some(())
        },
    },
];

/// What an image keeps for its life.
const FOR_LIFE: [&str; 4] = ["cluster_size", "compression_type", "extended_l2", "preallocation"];

/// The list that `-o help` prints for images of `format`.
pub fn help(format: Format) -> String {
    if voice::is_qemu() {
        let keys = keys::KNOWN.iter().map(|known| (known.name, known.takes, known.help));
        if format == Format::Luks {
            return option_list::of_amendment(format, keys);
        }
        let keys: Vec<_> =
            keys.map(|(name, takes, help)| (format!("{}{name}", keys::ENCRYPT), takes, help)).collect();
        let keys = keys.iter().map(|(name, takes, help)| (name.as_str(), *takes, *help));
        let own = KNOWN.iter().map(|known| (known.name, known.takes, known.help));
        return option_list::of_amendment(format, own.chain(keys));
    }
    let lines = match format {
        Format::Luks => keys::KNOWN.iter().map(|known| line("", known)).collect(),
        _ => {
            let own = KNOWN.iter().map(|known| line("", known));
            let mut lines: Vec<_> =
                own.chain(keys::KNOWN.iter().map(|known| line(keys::ENCRYPT, known))).collect();
            lines.sort_unstable();
            lines
        }
    };
    format!("Amend options of {} (-o name=value,...):\n{}", format.name(), lines.concat())
}

fn line<T>(prefix: &str, known: &OptionDef<T>) -> String {
    format!("  {:<40} {}\n", format!("{prefix}{}={}", known.name, known.takes), known.help)
}

impl<T> OptionDef<T> {
    /// Puts `value` of the option, which the user calls `name`.
    pub fn put(&self, wanted: &mut T, name: &str, value: &str) -> Result<(), BadOption> {
        (self.put)(wanted, value).ok_or_else(|| {
            BadOption(format!("-o {name} is {value:?}; allowed: {}", self.takes.replace('|', ", ")))
        })
    }
}

/// Gives each `name=value` of all `-o` arguments to `put`, in order. A name alone is `on`, with `no` before it `off`.
pub fn each(
    texts: &[String],
    mut put: impl FnMut(&str, &str) -> Result<(), BadOption>,
) -> Result<(), BadOption> {
    let is_known = |name: &str| {
        let key = name.strip_prefix(keys::ENCRYPT).unwrap_or(name);
        KNOWN.iter().any(|known| known.name == name) || keys::KNOWN.iter().any(|known| known.name == key)
    };
    let parts = texts.iter().flat_map(|text| split_text(text));
    let given: Vec<_> = parts.map(|part| assignment(&part, is_known)).collect();
    warn_of_repeated(given.iter().cloned());
    given.iter().try_for_each(|(name, value)| put(name, value))
}

impl AmendOptions {
    /// Reads all `-o` arguments, in order; a later value replaces an earlier one, as in qemu-img.
    ///
    /// # Errors
    /// For the first option that cannot be changed, or whose value it does not take.
    pub fn parse(texts: &[String]) -> Result<Self, BadOption> {
        let mut wanted = Self::default();
        each(texts, |name, value| {
            let key = name.strip_prefix(keys::ENCRYPT);
            if let Some(known) = key.and_then(|key| keys::KNOWN.iter().find(|known| known.name == key)) {
                return known.put(&mut wanted.keys, name, value);
            }
            match KNOWN.iter().find(|known| known.name == name) {
                Some(known) => known.put(&mut wanted, name, value),
                None => Err(not_known(name)),
            }
        })?;
        Ok(wanted)
    }

    /// Whether the backing file, if the options name it, is the one in the header.
    pub fn check_backing(&self, header: &Header) -> Result<(), BadOption> {
        let differs = |asked: &Option<String>, is: &Option<String>| {
            asked.as_deref().is_some_and(|asked| asked != is.as_deref().unwrap_or_default())
        };
        if differs(&self.backing_file, &header.backing)
            || differs(&self.backing_format, &header.extensions.backing_format)
        {
            return Err(BadOption(
                "-o backing_file and backing_fmt: the backing file stays what it is; `cowhand rebase` puts the image over \
                 another, `cowhand rebase -u` changes the name alone"
                    .to_owned(),
            ));
        }
        Ok(())
    }
}

/// Why an image has no option of this name that could change.
fn not_known(name: &str) -> BadOption {
    let keys = keys::KNOWN.iter().map(|known| format!("{}{}", keys::ENCRYPT, known.name));
    let mut known: Vec<String> = KNOWN.iter().map(|known| known.name.to_owned()).chain(keys).collect();
    known.sort_unstable();
    let allowed = known.join(", ");
    if FOR_LIFE.contains(&name) {
        return BadOption(format!(
            "-o {name}: an image keeps it for its life; `cowhand convert -o {name}=VALUE` makes another image. Can be amended: {allowed}"
        ));
    }
    if name.starts_with("encrypt") {
        return BadOption(format!(
            "-o {name}: only keys of an encrypted image change. Can be amended: {allowed}"
        ));
    }
    let nearest = nearest(name, known.iter().map(String::as_str)).join(", ");
    let hint =
        if nearest.is_empty() { "-o help lists all".to_owned() } else { format!("did you mean {nearest}?") };
    BadOption(format!("-o {name}: unknown option; {hint}"))
}

#[cfg(test)]
mod tests {
    use qcow2_layout::Version;

    use super::*;

    #[test]
    fn options_are_read_as_qemu_img_reads_them() {
        let wanted =
            AmendOptions::parse(&["compat=v2,size=1M".to_owned(), "compat=1.1,lazy_refcounts=on".to_owned()]);
        let amendment =
            Amendment { version: Some(Version::V3), lazy_refcounts: Some(true), ..Amendment::default() };
        assert_eq!(wanted, Ok(AmendOptions { amendment, size: Some(1 << 20), ..AmendOptions::default() }));
    }

    #[test]
    fn what_cannot_be_is_reported_with_what_can() {
        let table = [
            ("compat=2", "-o compat is \"2\"; allowed: 1.1, 0.10"),
            ("refcount_bits=3", "-o refcount_bits is \"3\"; allowed: 1, 2, 4, 8, 16, 32, 64"),
            ("cluster-size=4k", "-o cluster-size: unknown option; -o help lists all"),
            ("lazyrefcounts=on", "-o lazyrefcounts: unknown option; did you mean lazy_refcounts?"),
            ("size", "-o size is \"on\"; allowed: SIZE"),
        ];
        for (text, error) in table {
            assert_eq!(AmendOptions::parse(&[text.to_owned()]), Err(BadOption(error.to_owned())), "{text}");
        }
        let kept = AmendOptions::parse(&["cluster_size=4k".to_owned()]).unwrap_err().0;
        assert!(kept.contains("cowhand convert") && kept.ends_with("refcount_bits, size"), "{kept}");
    }
}
