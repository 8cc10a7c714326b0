//! Options of images that are written after they are made: qcow2, raw, luks. Those of all formats are among them.

use graph::drivers::format_of_backing;
use luks::{Algorithm, Hash, Iv, Mode};

use super::definition::{Formats, OptionDef, Sets, known};
use super::foreign::SWITCH;
use super::values::{compression, preallocation, switch, version};
use crate::create::encryption::{Encryption, IV_HASHES, named};
use crate::numbers::whole;
use crate::voice;

const fn encrypted(name: &'static str, sets: Sets, help: &'static str) -> OptionDef {
    OptionDef { formats: Formats::Encrypted, ..known(name, sets, help) }
}

/// Every option that is known.
pub(super) const KNOWN: [OptionDef; 25] = [
    OptionDef {
        formats: Formats::All,
        ..known(
            "size",
            Sets::Size(|image, bytes| image.size = Some(bytes)),
            "size of the disk (instead of the SIZE argument)",
        )
    },
    OptionDef {
        formats: Formats::Writable,
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
        "the backing file (as -b)",
    ),
    known(
        "backing_fmt",
        Sets::Word("qcow2|raw", |image, word| {
            format_of_backing(word)?;
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
            whole(word).ok().map(|bits| image.options.refcount_bits = bits)
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
    OptionDef {
        formats: Formats::All,
        ..known(
            "nocow",
            Sets::Switch(|_, _| ()),
            "no effect here (btrfs: set it on the directory with chattr +C)",
        )
    },
    OptionDef {
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
        Sets::Word("md5|sha1|sha224|sha256|sha384|sha512|ripemd160|sm3", |image, word| {
            Encryption::of(image).iv_hash = Some(IV_HASHES.iter().find(|name| **name == word)?);
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
            Encryption::of(image).iter_time_ms = whole(word).ok().filter(|&ms| ms > 0 || voice::is_qemu())?;
            Some(())
        }),
        "time that trying a password takes here (default 2000)",
    ),
    OptionDef {
        formats: Formats::Luks,
        ..known(
            "detached-header",
            Sets::Word(SWITCH, |image, word| {
                Encryption::of(image).is_detached = switch(word)?;
                Some(())
            }),
            "make the header alone: the data has a file of its own (opened with header=FILE)",
        )
    },
];
