//! `-o name=value,...` to what is created: names and rules of qemu-img (FACTS 1.3).

use std::fmt;

use image::nearest;
use image::probe::Format;
use image::size::parse_size;

/// What can be wrong with creation options, as a sentence for the user.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BadOption(pub String);

impl fmt::Display for BadOption {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for BadOption {}

/// How much of a new image is reserved.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Preallocation {
    /// Nothing.
    Off,
    /// Tables are written; the space is a hole.
    Metadata,
    /// Tables are written and the space reserved.
    Falloc,
    /// Tables are written and the space filled with zeroes.
    Full,
}

impl Preallocation {
    const NAMED: [(&'static str, Self); 4] =
        [("off", Self::Off), ("metadata", Self::Metadata), ("falloc", Self::Falloc), ("full", Self::Full)];
}

/// What the options asked for; `None` where one was not given.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CreateOptions {
    /// `size` in bytes.
    pub size: Option<u64>,
    /// `compat`: 2 or 3.
    pub version: Option<u32>,
    /// `cluster_size` in bytes.
    pub cluster_size: Option<u64>,
    /// `refcount_bits`.
    pub refcount_bits: Option<u32>,
    /// `lazy_refcounts`.
    pub lazy_refcounts: Option<bool>,
    /// `extended_l2`.
    pub extended_l2: Option<bool>,
    /// `compression_type`: `zlib` or `zstd`.
    pub compression_type: Option<&'static str>,
    /// `preallocation`.
    pub preallocation: Option<Preallocation>,
    /// `backing_file`.
    pub backing_file: Option<String>,
    /// `backing_fmt`.
    pub backing_format: Option<String>,
    /// `data_file`.
    pub data_file: Option<String>,
    /// `data_file_raw`.
    pub data_file_raw: Option<bool>,
}

/// A creation option: its name, what it takes, what it does, and which formats have it.
pub struct Known {
    /// Name in `-o`.
    pub name: &'static str,
    /// What its value looks like.
    pub takes: &'static str,
    /// One line of help.
    pub help: &'static str,
    /// Raw images have it too.
    raw: bool,
}

/// Every option that is known.
pub const KNOWN: [Known; 12] = [
    Known { name: "size", takes: "SIZE", help: "size of the disk (instead of the SIZE argument)", raw: true },
    Known {
        name: "preallocation",
        takes: "off|metadata|falloc|full",
        help: "what is reserved at once (raw: off, falloc, full)",
        raw: true,
    },
    Known { name: "compat", takes: "1.1|0.10", help: "format version: 1.1 is 3, 0.10 is 2", raw: false },
    Known {
        name: "cluster_size",
        takes: "SIZE",
        help: "unit of allocation: a power of two, 512 to 2M (default 64k)",
        raw: false,
    },
    Known { name: "backing_file", takes: "PATH", help: "the image below (as -b)", raw: false },
    Known { name: "backing_fmt", takes: "qcow2|raw", help: "its format (as -F)", raw: false },
    Known {
        name: "lazy_refcounts",
        takes: "on|off",
        help: "write refcounts late: faster, with a repair after a crash",
        raw: false,
    },
    Known {
        name: "refcount_bits",
        takes: "1|2|4|8|16|32|64",
        help: "width of a refcount (default 16)",
        raw: false,
    },
    Known {
        name: "extended_l2",
        takes: "on|off",
        help: "32 subclusters a cluster (clusters of 16k and more)",
        raw: false,
    },
    Known {
        name: "compression_type",
        takes: "zlib|zstd",
        help: "how clusters written compressed are stored (default zlib)",
        raw: false,
    },
    Known { name: "data_file", takes: "PATH", help: "keep the data in a file of its own", raw: false },
    Known {
        name: "data_file_raw",
        takes: "on|off",
        help: "keep that file readable as a raw image",
        raw: false,
    },
];

/// Options of qemu-img that are understood and refused, with the reason.
const REFUSED: [(&str, &str); 3] = [
    ("encrypt", "encrypted images are not supported"),
    ("nocow", "it is an attribute of the file; set it on the directory with chattr +C"),
    ("extent_size_hint", "it is an attribute of the file; set it with xfs_io -c extsize"),
];

/// The list that `-o help` prints.
pub fn help(format: Format) -> String {
    let mut text = format!("Creation options of {format} (-o name=value,...):\n");
    for known in KNOWN.iter().filter(|known| known.raw || format == Format::Qcow2) {
        let (name, takes) = (known.name, known.takes);
        text.push_str(&format!("  {:<42} {}\n", format!("{name}={takes}"), known.help));
    }
    text
}

impl CreateOptions {
    /// Reads all `-o` arguments, in order; a later value replaces an earlier one, as in qemu-img.
    ///
    /// # Errors
    /// For the first option that is unknown here, or whose value it does not take.
    pub fn parse(texts: &[String], format: Format) -> Result<Self, BadOption> {
        let mut options = Self::default();
        for text in texts {
            for part in split_commas(text) {
                let Some((name, value)) = part.split_once('=') else {
                    return Err(BadOption(format!("-o {part}: no value; write {part}=VALUE (or -o help)")));
                };
                options.set(name, value, format)?;
            }
        }
        Ok(options)
    }

    fn set(&mut self, name: &str, value: &str, format: Format) -> Result<(), BadOption> {
        check_name(name, format)?;
        let bad = |allowed: &str| BadOption(format!("-o {name} is {value:?}; allowed: {allowed}"));
        let takes = KNOWN.iter().find(|known| known.name == name).map_or("", |known| known.takes);
        let size = || parse_size(value).map_err(|error| BadOption(format!("-o {name}: {error}")));
        let switch = || match value {
            "on" | "yes" | "true" | "y" => Ok(true),
            "off" | "no" | "false" | "n" => Ok(false),
            _ => Err(bad("on, off")),
        };
        match name {
            "size" => self.size = Some(size()?),
            "cluster_size" => self.cluster_size = Some(cluster_size(size()?, value)?),
            "compat" => self.version = Some(version(value).ok_or_else(|| bad("1.1 (or v3), 0.10 (or v2)"))?),
            "refcount_bits" => self.refcount_bits = Some(refcount_bits(value).ok_or_else(|| bad(takes))?),
            "lazy_refcounts" => self.lazy_refcounts = Some(switch()?),
            "extended_l2" => self.extended_l2 = Some(switch()?),
            "data_file_raw" => self.data_file_raw = Some(switch()?),
            "compression_type" => {
                let known = ["zlib", "zstd"].into_iter().find(|known| *known == value);
                self.compression_type = Some(known.ok_or_else(|| bad("zlib, zstd"))?);
            }
            "preallocation" => {
                self.preallocation = Some(preallocation(value, format).ok_or_else(|| bad(takes))?)
            }
            "backing_file" => self.backing_file = Some(value.to_owned()),
            "backing_fmt" => self.backing_format = Some(value.to_owned()),
            _ => self.data_file = Some(value.to_owned()),
        }
        Ok(())
    }

    /// Rules between options, for a qcow2 image.
    ///
    /// # Errors
    /// For the first rule that is broken.
    pub fn check_rules(&self) -> Result<(), BadOption> {
        let on = |option: Option<bool>| option == Some(true);
        let reserves = self.preallocation.is_some_and(|kind| kind != Preallocation::Off);
        let version_2 = self.version == Some(2);
        let rules = [
            (version_2 && on(self.lazy_refcounts), "lazy_refcounts=on needs compat=1.1 (version 3)"),
            (
                version_2 && self.refcount_bits.is_some_and(|bits| bits != 16),
                "refcount_bits other than 16 need compat=1.1 (version 3)",
            ),
            (version_2 && on(self.extended_l2), "extended_l2=on needs compat=1.1 (version 3)"),
            (version_2 && self.data_file.is_some(), "data_file needs compat=1.1 (version 3)"),
            (
                version_2 && self.compression_type == Some("zstd"),
                "compression_type=zstd needs compat=1.1 (version 3)",
            ),
            (
                on(self.extended_l2) && self.cluster_size.is_some_and(|size| size < 16 << 10),
                "extended_l2=on needs a cluster_size of 16k or more",
            ),
            (
                self.backing_format.is_some() && self.backing_file.is_none(),
                "backing_fmt (-F) says the format of a backing file (-b), and none is given",
            ),
            (
                self.backing_file.is_some() && self.backing_format.is_none(),
                "a backing file needs its format (-F qcow2 or -F raw): guessing it would let the content of a \
                 raw disk decide what is opened",
            ),
            (
                self.backing_file.is_some() && reserves && !on(self.extended_l2),
                "preallocation would hide the backing file; with both, extended_l2=on is needed",
            ),
            (on(self.data_file_raw) && self.data_file.is_none(), "data_file_raw=on needs a data_file"),
            (
                on(self.data_file_raw) && self.backing_file.is_some(),
                "data_file_raw=on and a backing file exclude each other: a raw file cannot show what lies below",
            ),
        ];
        match rules.iter().find(|(broken, _)| *broken) {
            Some((_, rule)) => Err(BadOption((*rule).to_owned())),
            None => Ok(()),
        }
    }
}

fn check_name(name: &str, format: Format) -> Result<(), BadOption> {
    let known = || KNOWN.iter().filter(|known| known.raw || format == Format::Qcow2).map(|known| known.name);
    if known().any(|known| known == name) {
        return Ok(());
    }
    if let Some((_, reason)) = REFUSED.iter().find(|(refused, _)| name.starts_with(refused)) {
        return Err(BadOption(format!("-o {name}: {reason}")));
    }
    if KNOWN.iter().any(|known| known.name == name) {
        return Err(BadOption(format!("-o {name} is for qcow2 images, not for {format}")));
    }
    let nearest = nearest(name, known()).join(", ");
    let hint =
        if nearest.is_empty() { "-o help lists all".to_owned() } else { format!("did you mean {nearest}?") };
    Err(BadOption(format!("-o {name}: unknown option; {hint}")))
}

fn cluster_size(bytes: u64, value: &str) -> Result<u64, BadOption> {
    match bytes.is_power_of_two() && (512..=2 << 20).contains(&bytes) {
        true => Ok(bytes),
        false => {
            Err(BadOption(format!("-o cluster_size is {value:?}; allowed: a power of two from 512 to 2M")))
        }
    }
}

fn version(value: &str) -> Option<u32> {
    match value {
        "1.1" | "v3" => Some(3),
        "0.10" | "v2" => Some(2),
        _ => None,
    }
}

fn refcount_bits(value: &str) -> Option<u32> {
    value.parse().ok().filter(|bits: &u32| bits.is_power_of_two() && *bits <= 64)
}

fn preallocation(value: &str, format: Format) -> Option<Preallocation> {
    let (_, kind) = Preallocation::NAMED.into_iter().find(|(name, _)| *name == value)?;
    (format == Format::Qcow2 || kind != Preallocation::Metadata).then_some(kind)
}

/// Parts between single commas; a doubled one stands for itself.
fn split_commas(text: &str) -> Vec<String> {
    let mut parts = vec![String::new()];
    let mut letters = text.chars().peekable();
    while let Some(letter) = letters.next() {
        if letter == ',' && letters.next_if_eq(&',').is_none() {
            parts.push(String::new());
        } else if let Some(part) = parts.last_mut() {
            part.push(letter);
        }
    }
    parts
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Result<CreateOptions, String> {
        let options = CreateOptions::parse(&[text.to_owned()], Format::Qcow2).map_err(|error| error.0)?;
        options.check_rules().map_err(|error| error.0)?;
        Ok(options)
    }

    #[test]
    fn every_option_is_read() {
        let found = parse(
            "size=1G,compat=1.1,cluster_size=128k,refcount_bits=1,lazy_refcounts=on,extended_l2=on,\
             compression_type=zstd,preallocation=metadata,backing_file=a,,b,backing_fmt=raw,data_file=d",
        );
        let expected = CreateOptions {
            size: Some(1 << 30),
            version: Some(3),
            cluster_size: Some(128 << 10),
            refcount_bits: Some(1),
            lazy_refcounts: Some(true),
            extended_l2: Some(true),
            compression_type: Some("zstd"),
            preallocation: Some(Preallocation::Metadata),
            backing_file: Some("a,b".into()),
            backing_format: Some("raw".into()),
            data_file: Some("d".into()),
            data_file_raw: None,
        };
        assert_eq!(found, Ok(expected));
    }

    #[test]
    fn a_later_value_replaces_an_earlier_one() {
        let texts = ["cluster_size=4k".to_owned(), "cluster_size=8k".to_owned()];
        let found = CreateOptions::parse(&texts, Format::Qcow2).unwrap();
        assert_eq!(found.cluster_size, Some(8192));
    }

    #[test]
    fn a_refusal_says_the_option_the_value_and_what_is_allowed() {
        let table = [
            ("cluster_size=3k", "-o cluster_size is \"3k\"; allowed: a power of two from 512 to 2M"),
            ("cluster_size=4M", "-o cluster_size is \"4M\"; allowed: a power of two from 512 to 2M"),
            ("compat=2", "-o compat is \"2\"; allowed: 1.1 (or v3), 0.10 (or v2)"),
            ("refcount_bits=3", "-o refcount_bits is \"3\"; allowed: 1|2|4|8|16|32|64"),
            ("refcount_bits=128", "-o refcount_bits is \"128\"; allowed: 1|2|4|8|16|32|64"),
            ("lazy_refcounts=maybe", "-o lazy_refcounts is \"maybe\"; allowed: on, off"),
            ("compression_type=lz4", "-o compression_type is \"lz4\"; allowed: zlib, zstd"),
            ("preallocation=some", "-o preallocation is \"some\"; allowed: off|metadata|falloc|full"),
            ("cluster-size=4k", "-o cluster-size: unknown option; did you mean cluster_size?"),
            ("foo=1", "-o foo: unknown option; -o help lists all"),
            ("encrypt.format=luks", "-o encrypt.format: encrypted images are not supported"),
            ("lazy_refcounts", "-o lazy_refcounts: no value; write lazy_refcounts=VALUE (or -o help)"),
            ("compat=0.10,lazy_refcounts=on", "lazy_refcounts=on needs compat=1.1 (version 3)"),
            ("compat=v2,extended_l2=on", "extended_l2=on needs compat=1.1 (version 3)"),
            ("extended_l2=on,cluster_size=8k", "extended_l2=on needs a cluster_size of 16k or more"),
            ("backing_fmt=raw", "backing_fmt (-F) says the format of a backing file (-b), and none is given"),
            (
                "backing_file=a,backing_fmt=raw,preallocation=full",
                "preallocation would hide the backing file; with both, extended_l2=on is needed",
            ),
            ("data_file_raw=on", "data_file_raw=on needs a data_file"),
        ];
        for (text, error) in table {
            assert_eq!(parse(text), Err(error.to_owned()), "{text}");
        }
    }

    #[test]
    fn raw_images_have_few_options() {
        let parse =
            |text: &str| CreateOptions::parse(&[text.to_owned()], Format::Raw).map_err(|error| error.0);
        assert_eq!(parse("size=1k,preallocation=full").unwrap().size, Some(1024));
        assert!(parse("preallocation=metadata").is_err());
        assert_eq!(parse("compat=1.1"), Err("-o compat is for qcow2 images, not for raw".to_owned()));
    }
}
