//! `-o name=value,...` to what is created: qemu-img's names and values (FACTS 1.3).
//!
//! Values are read here; which options go together is the engine's decision ([`qcow2::create`]).

mod assignments;
mod listing;
mod values;

use std::fmt;

pub use self::assignments::{Assignments, assignments, split_commas};
use self::assignments::{check_lists, in_order};
pub use self::listing::{asks_for_help, help};
use self::values::{compression, preallocation};
pub(crate) use self::values::{switch, version};
use super::encryption::{Encryption, named};
use graph::probe::Format;
use graph::size::parse_size;
use nearest::nearest;
use qcow2::CreateOptions;
use storage_luks::{Algorithm, Hash, Iv, Mode};

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
}

/// A creation option: its name, what it takes and sets, and what it does.
struct Known {
    name: &'static str,
    sets: Sets,
    help: &'static str,
    formats: Formats,
}

/// Which formats have an option.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Formats {
    All,
    Qcow2,
    /// Options of encryption: of a LUKS file without the prefix ([`ENCRYPT`]).
    Encrypted,
}

/// What names of options of encryption begin with where they are a part of an image.
const ENCRYPT: &str = "encrypt.";

impl Known {
    /// What it is called in an image of `format`; `None`: it has none.
    fn name_in(&self, format: Format) -> Option<&'static str> {
        match (self.formats, format) {
            (Formats::All, _) | (_, Format::Qcow2) => Some(self.name),
            (Formats::Encrypted, Format::Luks) => self.name.strip_prefix(ENCRYPT),
            (Formats::Qcow2 | Formats::Encrypted, _) => None,
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

const fn known(name: &'static str, sets: Sets, help: &'static str) -> Known {
    Known { name, sets, help, formats: Formats::Qcow2 }
}

const fn encrypted(name: &'static str, sets: Sets, help: &'static str) -> Known {
    Known { name, sets, help, formats: Formats::Encrypted }
}

/// Every option that is known.
const KNOWN: [Known; 24] = [
    Known {
        formats: Formats::All,
        ..known(
            "size",
            Sets::Size(|image, bytes| image.size = Some(bytes)),
            "size of the disk (instead of the SIZE argument)",
        )
    },
    Known {
        formats: Formats::All,
        ..known(
            "preallocation",
            Sets::Word("off|metadata|falloc|full", |image, word| {
                preallocation(word, image.format).map(|kind| image.options.preallocation = kind)
            }),
            "what is reserved at once (raw, luks: not metadata)",
        )
    },
    known(
        "compat",
        Sets::Word("1.1|0.10", |image, word| version(word).map(|version| image.options.version = version)),
        "format version: 1.1 is 3, 0.10 is 2 (default 1.1)",
    ),
    known(
        "cluster_size",
        Sets::Size(|image, bytes| image.options.cluster_size = bytes),
        "unit of allocation: a power of two, 512 to 2M (default 64k)",
    ),
    known(
        "backing_file",
        Sets::Word("PATH", |image, path| {
            image.options.backing_file = Some(path.to_owned());
            Some(())
        }),
        "the image below (as -b)",
    ),
    known(
        "backing_fmt",
        Sets::Word("qcow2|raw", |image, word| {
            Format::of_backing_name(word)?;
            image.options.backing_format = Some(word.to_owned());
            Some(())
        }),
        "its format (as -F)",
    ),
    known(
        "lazy_refcounts",
        Sets::Switch(|options, on| options.lazy_refcounts = on),
        "write refcounts late: faster, with a repair after a crash",
    ),
    known(
        "refcount_bits",
        Sets::Word("1|2|4|8|16|32|64", |image, word| {
            word.parse().ok().map(|bits| image.options.refcount_bits = bits)
        }),
        "width of a refcount (default 16)",
    ),
    known(
        "extended_l2",
        Sets::Switch(|options, on| options.extended_l2 = on),
        "32 subclusters a cluster (clusters of 16k and more)",
    ),
    known(
        "compression_type",
        Sets::Word("zlib|zstd", |image, word| compression(word).map(|kind| image.options.compression = kind)),
        "how clusters written compressed are stored (default zlib)",
    ),
    known(
        "data_file",
        Sets::Word("PATH", |image, path| {
            image.options.data_file = Some(path.to_owned());
            Some(())
        }),
        "keep the data in a file of its own",
    ),
    known(
        "keep_data_file",
        Sets::Switch(|options, on| options.keeps_data_file = on),
        "take that file as it is: it exists, and nothing in it is changed",
    ),
    known(
        "data_file_raw",
        Sets::Switch(|options, on| options.data_file_raw = on),
        "keep that file readable as a raw image",
    ),
    known(
        "encryption",
        Sets::Word("off", |_, word| (switch(word) == Some(false)).then_some(())),
        "the format before LUKS is never written: encrypt.format=luks encrypts",
    ),
    Known {
        formats: Formats::All,
        ..known(
            "nocow",
            Sets::Switch(|_, _| ()),
            "no effect here (btrfs: set it on the directory with chattr +C)",
        )
    },
    Known {
        formats: Formats::All,
        ..known(
            "extent_size_hint",
            Sets::Size(|_, _| ()),
            "no effect here (XFS: set it on the directory with xfs_io -c extsize)",
        )
    },
    encrypted(
        "encrypt.format",
        Sets::Word("luks", |image, word| {
            Encryption::of(image).format = word == "luks";
            (word == "luks").then_some(())
        }),
        "encrypt the data (needs encrypt.key-secret)",
    ),
    encrypted(
        "encrypt.key-secret",
        Sets::Word("ID", |image, id| {
            Encryption::of(image).key_secret = Some(id.to_owned());
            Some(())
        }),
        "the secret (--object secret,id=ID) with the password",
    ),
    encrypted(
        "encrypt.cipher-alg",
        Sets::Word("aes-128|aes-192|aes-256", |image, word| {
            Encryption::of(image).algorithm = named(&Algorithm::NAMED, word)?;
            Some(())
        }),
        "cipher (default aes-256)",
    ),
    encrypted(
        "encrypt.cipher-mode",
        Sets::Word("xts|cbc", |image, word| {
            Encryption::of(image).mode = named(&Mode::NAMED, word)?;
            Some(())
        }),
        "its mode (default xts)",
    ),
    encrypted(
        "encrypt.ivgen-alg",
        Sets::Word("plain|plain64|essiv", |image, word| {
            Encryption::of(image).iv = named(&Iv::NAMED, word)?;
            Some(())
        }),
        "what a sector's number is made to (default plain64)",
    ),
    encrypted(
        "encrypt.ivgen-hash-alg",
        Sets::Word("sha1|sha256|sha512", |image, word| {
            Encryption::of(image).iv_hash = Some(Hash::of_name(word).ok()?);
            Some(())
        }),
        "with which hash (no effect but with essiv, where it is sha256)",
    ),
    encrypted(
        "encrypt.hash-alg",
        Sets::Word("sha1|sha256|sha512", |image, word| {
            Encryption::of(image).hash = Hash::of_name(word).ok()?;
            Some(())
        }),
        "hash that passwords become keys with (default sha256)",
    ),
    encrypted(
        "encrypt.iter-time",
        Sets::Word("MILLISECONDS", |image, word| {
            Encryption::of(image).iter_time_ms = word.parse().ok().filter(|&ms| ms > 0)?;
            Some(())
        }),
        "time that trying a password takes here (default 2000)",
    ),
];

const DETACHED_HEADER: &str = "detached-header";

/// Options of qemu-img that are understood and refused, with the reason.
const REFUSED: [(&str, &str); 1] = [(
    DETACHED_HEADER,
    "a header in a file of its own is not made here; cryptsetup luksFormat --header makes one",
)];

/// Options of images of `format`, with the names that they have there.
fn options_of(format: Format) -> impl Iterator<Item = (&'static str, &'static Known)> {
    // Such a file is LUKS: nobody says so once more.
    let is_said = move |name: &str| format == Format::Luks && name == "format";
    let named = move |known: &'static Known| Some((known.name_in(format)?, known));
    KNOWN.iter().filter_map(named).filter(move |(name, _)| !is_said(name))
}

impl NewImage {
    /// Reads all `-o` arguments, in order; a later value replaces an earlier one, as in qemu-img.
    ///
    /// # Errors
    /// For the first option that is unknown here, or whose value it does not take.
    pub fn parse(texts: &[String], format: Format) -> Result<Self, BadOption> {
        check_lists(texts)?;
        Self::of_assignments(format, in_order(texts))
    }

    /// The same of names and values that are apart already.
    ///
    /// # Errors
    /// As [`NewImage::parse`].
    pub fn of_assignments<N: AsRef<str>, V: AsRef<str>>(
        format: Format,
        assignments: impl IntoIterator<Item = (N, V)>,
    ) -> Result<Self, BadOption> {
        if formats::Kind::of_name(format.name()).is_some() {
            return Err(BadOption(format!("{format} images are not made; allowed: qcow2, raw, luks")));
        }
        let mut image = Self { format, size: None, options: CreateOptions::default(), encryption: None };
        if format == Format::Luks {
            Encryption::of(&mut image);
        }
        for (name, value) in assignments {
            image.set(name.as_ref(), value.as_ref())?;
        }
        if image.options.keeps_data_file && image.options.data_file.is_none() {
            return Err(BadOption("-o keep_data_file: it goes with data_file=PATH".to_owned()));
        }
        if let Some(encryption) = &image.encryption {
            image.options.encrypt = Some(encryption.cipher(format)?);
        }
        Ok(image)
    }

    /// The same as far as numbers and switches are right and all options known: other words that are not allowed are left out. qemu-img shows
    /// what it was given before it looks at those.
    ///
    /// # Errors
    /// As [`NewImage::parse`] of the others.
    pub fn parse_to_show(texts: &[String], format: Format) -> Result<Self, BadOption> {
        check_lists(texts)?;
        let mut image = Self { format, size: None, options: CreateOptions::default(), encryption: None };
        for (name, value) in in_order(texts) {
            let is_word = matches!(find(&name, format)?.sets, Sets::Word(..));
            let is_number = ["refcount_bits", "encrypt.iter-time", "iter-time"].contains(&name.as_str());
            match image.set(&name, &value) {
                Err(_) if is_word && (!is_number || value.parse::<i64>().is_ok()) => {}
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
    let names = |known: &Known| known.name == name || known.name_in(Format::Luks) == Some(name);
    KNOWN.iter().any(names)
}

fn find(name: &str, format: Format) -> Result<&'static Known, BadOption> {
    if let Some((_, known)) = options_of(format).find(|(known, _)| *known == name) {
        return Ok(known);
    }
    let is_refused = |refused: &str| match format {
        Format::Luks => name == refused,
        _ => name.starts_with(refused) && refused != DETACHED_HEADER,
    };
    if let Some((_, reason)) = REFUSED.iter().find(|(refused, _)| is_refused(refused)) {
        return Err(BadOption(format!("-o {name}: {reason}")));
    }
    if KNOWN.iter().any(|known| known.name == name && name.starts_with(ENCRYPT)) && format == Format::Luks {
        let alone = name.trim_start_matches(ENCRYPT);
        return Err(BadOption(format!("-o {name} is for qcow2 images; in a LUKS file it is {alone}")));
    }
    if KNOWN.iter().any(|known| known.name == name) {
        return Err(BadOption(format!("-o {name} is for qcow2 images, not for {format}")));
    }
    let nearest = nearest(name, options_of(format).map(|(name, _)| name)).join(", ");
    let hint =
        if nearest.is_empty() { "-o help lists all".to_owned() } else { format!("did you mean {nearest}?") };
    Err(BadOption(format!("-o {name}: unknown option; {hint}")))
}

#[cfg(test)]
mod tests {
    use qcow2::Preallocation;
    use qcow2_layout::{Compression, Version};

    use super::*;

    fn parse(text: &str) -> Result<NewImage, String> {
        NewImage::parse(&[text.to_owned()], Format::Qcow2).map_err(|error| error.0)
    }

    #[test]
    fn every_option_is_read() {
        let found = parse(
            "size=1G,compat=0.10,cluster_size=128k,refcount_bits=1,lazy_refcounts=on,extended_l2=on,\
             compression_type=zstd,preallocation=metadata,backing_file=a,,b,backing_fmt=raw,data_file=d,\
             data_file_raw=on",
        );
        let options = CreateOptions {
            size: 0,
            version: Version::V2,
            cluster_size: 128 << 10,
            refcount_bits: 1,
            backing_file: Some("a,b".into()),
            backing_format: Some("raw".into()),
            preallocation: Preallocation::Metadata,
            lazy_refcounts: true,
            data_file: Some("d".into()),
            keeps_data_file: false,
            data_file_raw: true,
            extended_l2: true,
            compression: Compression::Zstd,
            encrypt: None,
            extensions: Vec::new(),
        };
        assert_eq!(
            found,
            Ok(NewImage { format: Format::Qcow2, size: Some(1 << 30), options, encryption: None })
        );
        assert_eq!(NewImage::parse(&[], Format::Qcow2).unwrap().options, CreateOptions::default());
    }

    /// libvirt gives `lazy_refcounts` alone, and Nova options that say what is so anyway.
    #[test]
    fn a_name_alone_is_on_and_what_has_no_effect_is_taken() {
        assert!(parse("compat=1.1,lazy_refcounts").unwrap().options.lazy_refcounts);
        assert!(!parse("lazy_refcounts,nolazy_refcounts").unwrap().options.lazy_refcounts);
        let plain = parse("").unwrap();
        assert_eq!(parse("nocow,encryption=off,extent_size_hint=1M").unwrap(), plain);
        assert_eq!(parse("nocow=on,noencryption").unwrap(), plain);
        let encrypted = "encrypt.format=luks,encrypt.key-secret=s,encrypt.ivgen-alg=plain64";
        let with_hash = parse(&format!("{encrypted},encrypt.ivgen-hash-alg=sha256")).unwrap();
        assert_eq!(with_hash.options.encrypt, parse(encrypted).unwrap().options.encrypt);
        assert!(parse("nonsense").unwrap_err().starts_with("-o nonsense: unknown option"));
        let given = assignments(&["lazy_refcounts,nodata_file_raw,nocow".to_owned()]);
        let given: Vec<_> = given.iter().map(|(name, value)| format!("{name}={value}")).collect();
        assert_eq!(given, ["data_file_raw=off", "lazy_refcounts=on", "nocow=on"]);
    }

    #[test]
    fn a_later_value_replaces_an_earlier_one() {
        let texts = ["cluster_size=4k".to_owned(), "cluster_size=8k".to_owned()];
        assert_eq!(NewImage::parse(&texts, Format::Qcow2).unwrap().options.cluster_size, 8192);
    }

    #[test]
    fn a_refusal_says_the_option_the_value_and_what_is_allowed() {
        let table = [
            (
                "cluster_size=3x",
                "-o cluster_size: size \"3x\" ends in \"x\"; allowed are k, M, G, T, P, E (powers of 1024) and B",
            ),
            ("compat=2", "-o compat is \"2\"; allowed: 1.1, 0.10"),
            ("refcount_bits=x", "-o refcount_bits is \"x\"; allowed: 1, 2, 4, 8, 16, 32, 64"),
            ("lazy_refcounts=maybe", "-o lazy_refcounts is \"maybe\"; allowed: on, off"),
            ("compression_type=lz4", "-o compression_type is \"lz4\"; allowed: zlib, zstd"),
            ("preallocation=some", "-o preallocation is \"some\"; allowed: off, metadata, falloc, full"),
            ("backing_fmt=qed", "-o backing_fmt is \"qed\"; allowed: qcow2, raw"),
            ("cluster-size=4k", "-o cluster-size: unknown option; did you mean cluster_size?"),
            ("foo=1", "-o foo: unknown option; -o help lists all"),
            ("encrypt.format=aes", "-o encrypt.format is \"aes\"; allowed: luks"),
            (
                "encrypt.cipher-alg=serpent-256",
                "-o encrypt.cipher-alg is \"serpent-256\"; allowed: aes-128, aes-192, aes-256",
            ),
            ("encrypt.iter-time=0", "-o encrypt.iter-time is \"0\"; allowed: MILLISECONDS"),
            (
                "encrypt.key-secret=s",
                "-o encrypt.key-secret=s: an image is encrypted with encrypt.format=luks",
            ),
            (
                "encrypt.format=luks",
                "-o encrypt.format=luks: it needs encrypt.key-secret=ID, the secret with the password",
            ),
            (
                "encrypt.format=luks,encrypt.key-secret=s,encrypt.ivgen-alg=essiv,encrypt.ivgen-hash-alg=sha1",
                "-o encrypt.ivgen-hash-alg is sha1; with encrypt.ivgen-alg=essiv allowed: sha256",
            ),
            ("encryption=on", "-o encryption is \"on\"; allowed: off"),
            (
                "cluster_size",
                "-o cluster_size: size \"on\" is not a number; write digits, then at most one of k, M, G, T, P, E (1.5G is 1536M)",
            ),
        ];
        for (text, error) in table {
            assert_eq!(parse(text), Err(error.to_owned()), "{text}");
        }
    }

    #[test]
    fn raw_images_have_few_options() {
        let parse = |text: &str| NewImage::parse(&[text.to_owned()], Format::Raw).map_err(|error| error.0);
        assert_eq!(parse("size=1k,preallocation=full").unwrap().size, Some(1024));
        assert!(parse("preallocation=metadata").is_err());
        assert_eq!(parse("compat=1.1"), Err("-o compat is for qcow2 images, not for raw".to_owned()));
        assert!(!help(Format::Raw).contains("compat") && help(Format::Qcow2).contains("cluster_size=SIZE"));
    }

    #[test]
    fn luks_files_have_the_options_of_encryption_by_their_short_names() {
        let parse = |text: &str| NewImage::parse(&[text.to_owned()], Format::Luks).map_err(|error| error.0);
        let image = parse(
            "size=1M,preallocation=full,key-secret=s,cipher-alg=aes-128,cipher-mode=cbc,ivgen-alg=essiv,\
             ivgen-hash-alg=sha256,hash-alg=sha512,iter-time=10",
        )
        .unwrap();
        let encryption = image.encryption.unwrap();
        assert_eq!(image.options.encrypt.unwrap().to_string(), "aes-128-cbc-essiv:sha256");
        assert_eq!((encryption.hash, encryption.iter_time_ms), (Hash::Sha512, 10));
        let table = [
            ("size=1M", "a LUKS file needs -o key-secret=ID, the secret with its password"),
            (
                "encrypt.cipher-alg=aes-128",
                "-o encrypt.cipher-alg is for qcow2 images; in a LUKS file it is cipher-alg",
            ),
            ("compat=1.1", "-o compat is for qcow2 images, not for luks"),
            (
                "preallocation=metadata",
                "-o preallocation is \"metadata\"; allowed: off, metadata, falloc, full",
            ),
            (
                "cipher-alg=twofish-256",
                "-o cipher-alg is \"twofish-256\"; allowed: aes-128, aes-192, aes-256",
            ),
            (
                "detached-header=on",
                "-o detached-header: a header in a file of its own is not made here; cryptsetup luksFormat --header makes one",
            ),
            ("key-sekret=s", "-o key-sekret: unknown option; did you mean key-secret?"),
        ];
        for (text, error) in table {
            assert_eq!(parse(text).map(drop), Err(error.to_owned()), "{text}");
        }
        let help = help(Format::Luks);
        assert!(
            help.contains("  key-secret=ID ") && !help.contains("encrypt.") && !help.contains("format="),
            "{help}"
        );
    }
}
