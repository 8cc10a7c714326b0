//! What `-o` takes and refuses.

use luks::Hash;
use qcow2::Preallocation;
use qcow2_layout::{Compression, Version};

use graph::drivers::format_called;

use super::*;
use crate::create::encryption::IV_HASHES;

fn parse(text: &str) -> Result<NewImage, String> {
    NewImage::parse(&[text.to_owned()], Format::Qcow2).map_err(|error| error.0)
}

#[test]
fn every_option_is_read() {
    catalog::install();
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
        Ok(NewImage { options, size: Some(1 << 30), ..NewImage::of_format(Format::Qcow2).unwrap() })
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
    for hash in IV_HASHES {
        let with_hash = parse(&format!("{encrypted},encrypt.ivgen-hash-alg={hash}")).unwrap();
        assert_eq!(with_hash.options.encrypt, parse(encrypted).unwrap().options.encrypt);
    }
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
        ("encrypt.key-secret=s", "-o encrypt.key-secret=s: an image is encrypted with encrypt.format=luks"),
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
    assert!(
        !help(Format::Raw, true).contains("compat")
            && help(Format::Qcow2, true).contains("cluster_size=SIZE")
    );
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
        (
            "key-secret=s,ivgen-alg=essiv,ivgen-hash-alg=md5",
            "-o ivgen-hash-alg is md5; with ivgen-alg=essiv allowed: sha256",
        ),
        ("size=1M", "a LUKS file needs -o key-secret=ID, the secret with its password"),
        (
            "encrypt.cipher-alg=aes-128",
            "-o encrypt.cipher-alg is for qcow2 images; in a LUKS file it is cipher-alg",
        ),
        ("compat=1.1", "-o compat is for qcow2 images, not for luks"),
        ("preallocation=metadata", "-o preallocation is \"metadata\"; allowed: off, metadata, falloc, full"),
        ("cipher-alg=twofish-256", "-o cipher-alg is \"twofish-256\"; allowed: aes-128, aes-192, aes-256"),
        ("detached-header=maybe", "-o detached-header is \"maybe\"; allowed: on, off"),
        ("key-sekret=s", "-o key-sekret: unknown option; did you mean key-secret?"),
    ];
    for (text, error) in table {
        assert_eq!(parse(text).map(drop), Err(error.to_owned()), "{text}");
    }
    let help = help(Format::Luks, true);
    assert!(
        help.contains("  key-secret=ID ") && !help.contains("encrypt.") && !help.contains("format="),
        "{help}"
    );
}

#[test]
fn images_that_are_made_whole_have_options_of_their_own() {
    catalog::install();
    use formats::sink::{NewImage as Foreign, VpcOptions, VpcSubformat};

    let vpc = format_called("vpc").unwrap();
    let parse = |text: &str| NewImage::parse_whole(&[text.to_owned()], vpc).map_err(|error| error.0);
    let fixed = VpcOptions { subformat: VpcSubformat::Fixed, force_size: true };
    let image = parse("subformat=fixed,force_size,size=1M,nocow").unwrap();
    assert_eq!((image.foreign, image.size), (Some(Foreign::Vpc(fixed)), Some(1 << 20)));
    assert_eq!(parse("").unwrap().foreign, Some(Foreign::Vpc(VpcOptions::default())));
    let table = [
        ("subformat=flat", "-o subformat is \"flat\"; allowed: dynamic, fixed"),
        ("force_size=2", "-o force_size is \"2\"; allowed: on, off"),
        ("preallocation=full", "-o preallocation is for qcow2, raw, luks images, not for vpc"),
        ("adapter_type=ide", "-o adapter_type is for vmdk images, not for vpc"),
        ("force-size", "-o force-size: unknown option; did you mean force_size?"),
    ];
    for (text, error) in table {
        assert_eq!(parse(text).map(drop), Err(error.to_owned()), "{text}");
    }
    let vmdk = |text: &str| {
        NewImage::parse_whole(&[text.to_owned()], Format::Vmdk).map(drop).map_err(|error| error.0)
    };
    assert_eq!(vmdk("subformat=streamOptimized,hwversion=13,toolsversion=1,zeroed_grain=off"), Ok(()));
    let both = "vmdk: -o compat6 is hardware version 6, and hwversion says another; give one of them";
    assert_eq!(vmdk("compat6,hwversion=4"), Err(both.to_owned()));
    assert_eq!(vmdk("compat6,hwversion=undefined"), Ok(()));
    let written = NewImage::parse(&[], vpc).unwrap_err().0;
    assert_eq!(written, "vpc images are made by create and convert only; allowed: qcow2, raw, luks");
}
