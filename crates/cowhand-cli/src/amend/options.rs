//! `-o name=value,...` to what changes: qemu-img's names and values.

use graph::size::parse_size;
use nearest::nearest;
use qcow2::Amendment;
use qcow2_layout::Header;

use super::keys;
use crate::create::options::{BadOption, split_commas, switch, version};

/// What is asked for.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Wanted {
    /// Everything in the header.
    pub amendment: Amendment,
    /// Size of the disk in bytes.
    pub size: Option<u64>,
    /// Who may open an encrypted image.
    pub keys: keys::Wanted,
    /// The image below, which stays as it is.
    backing_file: Option<String>,
    backing_format: Option<String>,
}

/// An option: its name, what it takes, what it does, and how it is put there; `None` for a value that it does not take.
struct Known {
    name: &'static str,
    takes: &'static str,
    help: &'static str,
    put: fn(&mut Wanted, &str) -> Option<()>,
}

const KNOWN: [Known; 13] = [
    Known {
        name: "backing_file",
        takes: "PATH",
        help: "the image below: only the one that it is (cowhand rebase changes it)",
        put: |wanted, value| {
            wanted.backing_file = Some(value.to_owned());
            Some(())
        },
    },
    Known {
        name: "backing_fmt",
        takes: "qcow2|raw",
        help: "its format: likewise",
        put: |wanted, value| {
            wanted.backing_format = Some(value.to_owned());
            Some(())
        },
    },
    Known {
        name: "compat",
        takes: "1.1|0.10",
        help: "format version: 1.1 is 3, 0.10 is 2",
        put: |wanted, value| {
            wanted.amendment.version = Some(version(value)?);
            Some(())
        },
    },
    Known {
        name: "data_file",
        takes: "PATH",
        help: "another name of the external data file, where there is one",
        put: |wanted, value| {
            wanted.amendment.data_file = Some(value.to_owned());
            (!value.is_empty()).then_some(())
        },
    },
    Known {
        name: "data_file_raw",
        takes: "on|off",
        help: "keep that file readable as a raw image (on only where it is)",
        put: |wanted, value| {
            wanted.amendment.data_file_raw = Some(switch(value)?);
            Some(())
        },
    },
    Known {
        name: "encrypt.iter-time",
        takes: "MILLISECONDS",
        help: "time that trying the new password takes (2000)",
        put: |wanted, value| {
            wanted.keys.iter_time_ms = Some(value.parse().ok().filter(|ms| *ms > 0)?);
            Some(())
        },
    },
    Known {
        name: "encrypt.keyslot",
        takes: "0|1|2|3|4|5|6|7",
        help: "the key slot: to be filled (the first free one), or to be removed",
        put: |wanted, value| {
            wanted.keys.slot = Some(value.parse().ok().filter(|slot| *slot < 8)?);
            Some(())
        },
    },
    Known {
        name: "encrypt.new-secret",
        takes: "ID",
        help: "the password that will open the image too (--object secret,id=ID,...)",
        put: |wanted, value| {
            wanted.keys.new_secret = Some(value.to_owned());
            Some(())
        },
    },
    Known {
        name: "encrypt.old-secret",
        takes: "ID",
        help: "the password whose keys are removed",
        put: |wanted, value| {
            wanted.keys.old_secret = Some(value.to_owned());
            Some(())
        },
    },
    Known {
        name: "encrypt.state",
        takes: "active|inactive",
        help: "add a key, or remove one (the last one only with --force)",
        put: |wanted, value| {
            wanted.keys.active = Some(match value {
                "active" => true,
                "inactive" => false,
                _ => return None,
            });
            Some(())
        },
    },
    Known {
        name: "lazy_refcounts",
        takes: "on|off",
        help: "write refcounts late: faster, with a repair after a crash",
        put: |wanted, value| {
            wanted.amendment.lazy_refcounts = Some(switch(value)?);
            Some(())
        },
    },
    Known {
        name: "refcount_bits",
        takes: "1|2|4|8|16|32|64",
        help: "width of a refcount",
        put: |wanted, value| {
            let bits: u32 = value.parse().ok()?;
            wanted.amendment.refcount_bits = Some(bits);
            (bits.is_power_of_two() && bits <= 64).then_some(())
        },
    },
    Known {
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

/// The list that `-o help` prints.
pub fn help() -> String {
    let line =
        |known: &Known| format!("  {:<40} {}\n", format!("{}={}", known.name, known.takes), known.help);
    format!("Amend options of qcow2 (-o name=value,...):\n{}", KNOWN.iter().map(line).collect::<String>())
}

impl Wanted {
    /// Reads all `-o` arguments, in order; a later value replaces an earlier one, as in qemu-img.
    ///
    /// # Errors
    /// For the first option that cannot be changed, or whose value it does not take.
    pub fn parse(texts: &[String]) -> Result<Self, BadOption> {
        let mut wanted = Self::default();
        for part in texts.iter().flat_map(|text| split_commas(text)) {
            let Some((name, value)) = part.split_once('=') else {
                return Err(BadOption(format!(
                    "-o {part}: no value; write {part}=VALUE (-o help lists all)"
                )));
            };
            let known = find(name)?;
            (known.put)(&mut wanted, value).ok_or_else(|| {
                BadOption(format!("-o {name} is {value:?}; allowed: {}", known.takes.replace('|', ", ")))
            })?;
        }
        Ok(wanted)
    }

    /// Whether the image below, if it is named, is the one that the header names.
    pub fn check_backing(&self, header: &Header) -> Result<(), BadOption> {
        let differs = |asked: &Option<String>, is: &Option<String>| {
            asked.as_deref().is_some_and(|asked| asked != is.as_deref().unwrap_or_default())
        };
        if differs(&self.backing_file, &header.backing)
            || differs(&self.backing_format, &header.extensions.backing_format)
        {
            return Err(BadOption(
                "-o backing_file and backing_fmt: the image below stays what it is; `cowhand rebase` puts the image over \
                 another, `cowhand rebase -u` changes the name alone"
                    .to_owned(),
            ));
        }
        Ok(())
    }
}

fn find(name: &str) -> Result<&'static Known, BadOption> {
    if let Some(known) = KNOWN.iter().find(|known| known.name == name) {
        return Ok(known);
    }
    let allowed = KNOWN.map(|known| known.name).join(", ");
    if FOR_LIFE.contains(&name) {
        return Err(BadOption(format!(
            "-o {name}: an image keeps it for its life; `cowhand convert -o {name}=VALUE` makes another image. Can be amended: {allowed}"
        )));
    }
    if name.starts_with("encrypt") {
        return Err(BadOption(format!(
            "-o {name}: only keys of an encrypted image change. Can be amended: {allowed}"
        )));
    }
    let nearest = nearest(name, KNOWN.iter().map(|known| known.name)).join(", ");
    let hint =
        if nearest.is_empty() { "-o help lists all".to_owned() } else { format!("did you mean {nearest}?") };
    Err(BadOption(format!("-o {name}: unknown option; {hint}")))
}

#[cfg(test)]
mod tests {
    use qcow2_layout::Version;

    use super::*;

    #[test]
    fn options_are_read_as_qemu_img_reads_them() {
        let wanted =
            Wanted::parse(&["compat=v2,size=1M".to_owned(), "compat=1.1,lazy_refcounts=on".to_owned()]);
        let amendment =
            Amendment { version: Some(Version::V3), lazy_refcounts: Some(true), ..Amendment::default() };
        assert_eq!(wanted, Ok(Wanted { amendment, size: Some(1 << 20), ..Wanted::default() }));
    }

    #[test]
    fn what_cannot_be_is_told_with_what_can() {
        let table = [
            ("compat=2", "-o compat is \"2\"; allowed: 1.1, 0.10"),
            ("refcount_bits=3", "-o refcount_bits is \"3\"; allowed: 1, 2, 4, 8, 16, 32, 64"),
            ("cluster-size=4k", "-o cluster-size: unknown option; -o help lists all"),
            ("lazyrefcounts=on", "-o lazyrefcounts: unknown option; did you mean lazy_refcounts?"),
            ("size", "-o size: no value; write size=VALUE (-o help lists all)"),
        ];
        for (text, error) in table {
            assert_eq!(Wanted::parse(&[text.to_owned()]), Err(BadOption(error.to_owned())), "{text}");
        }
        let kept = Wanted::parse(&["cluster_size=4k".to_owned()]).unwrap_err().0;
        assert!(kept.contains("cowhand convert") && kept.ends_with("refcount_bits, size"), "{kept}");
    }
}
