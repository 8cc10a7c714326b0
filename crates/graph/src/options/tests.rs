//! Every option: its default, its values, its refusals.

use std::ffi::OsStr;

use ::qcow2::cache_sizes::CacheRequest;
use ::qcow2::{OverlapCheck, Prefetch, Section};

use super::table::is_option_name;
use super::*;
use crate::cache_mode::CacheMode;
use crate::drive::parse_drive;
use crate::probe::Format;

pub(super) fn options(drive: &str) -> Result<DiskOptions, OptionError> {
    DiskOptions::of_tree(parse_drive(OsStr::new(drive), |_| false).expect("a drive that parses"))
}

fn layer(rest: &str) -> LayerOptions {
    options(&format!("file=x,{rest}")).unwrap_or_else(|error| panic!("{rest}: {error}")).layer
}

pub(super) fn error(rest: &str) -> String {
    options(&format!("file=x,{rest}")).map(|_| "no error").unwrap_err().to_string()
}

#[test]
fn a_path_alone_means_the_same_in_every_form() {
    let expected = DiskOptions::of_path("x");
    for drive in ["x", "file=x", "file.filename=x", r#"json:{"file":{"filename":"x"}}"#] {
        assert_eq!(options(drive).unwrap(), expected, "{drive}");
    }
    let mut with_driver = options("file.filename=x,file.driver=file").unwrap();
    assert_eq!(with_driver.layer.file.driver.take(), Some(crate::drivers::storage_drivers()[0]));
    assert_eq!(with_driver, expected);
    let layer = expected.layer;
    assert_eq!(layer.cache, CacheMode::default());
    assert!(!layer.read_only && !layer.force_share);
    assert_eq!(layer.file.locking, Locking::Auto);
    assert_eq!((layer.format, layer.file.aio), (None, None));
    assert_eq!((layer.discard, layer.detect_zeroes), (Discard::Ignore, DetectZeroes::Off));
    assert_eq!(layer.backing, Backing::AsInImage);
    let qcow2 = layer.qcow2;
    assert_eq!(qcow2.caches, CacheRequest::default());
    assert_eq!(qcow2.cache_clean_interval_s, 600);
    assert_eq!(qcow2.lazy_refcounts, None);
    assert_eq!(qcow2.overlap_check, OverlapCheck::CACHED);
    assert!(qcow2.pass_discard_request.is_none() && qcow2.pass_discard_snapshot);
    assert!(!qcow2.pass_discard_other && !qcow2.discard_no_unref);
}

#[test]
fn every_option_reaches_its_place() {
    let found = layer(
        "id=disk0,node-name=n,driver=qcow2,cache=none,aio=io_uring,discard=unmap,detect-zeroes=unmap,\
         l2-cache-size=2M,l2-cache-entry-size=4k,refcount-cache-size=1M,prefetch=all,cache-clean-interval=30,\
         lazy-refcounts=on,pass-discard-snapshot=off,pass-discard-other=on,discard-no-unref=on,allocation-reserve=4M,\
         overlap-check=constant,overlap-check.inactive-l2=on,overlap-check.main-header=off,\
         data-file=y,data-file.cache.direct=off,file.locking=off",
    );
    assert_eq!(found.node_name.as_deref(), Some("n"));
    assert_eq!(found.format, Some(Format::Qcow2));
    assert!(found.cache.direct && !found.cache.writethrough && !found.cache.no_flush);
    assert_eq!((found.discard, found.detect_zeroes), (Discard::Unmap, DetectZeroes::Unmap));
    assert_eq!(
        (found.file.aio, found.file.direct, found.file.locking),
        (Some(Aio::IoUring), true, Locking::Off)
    );
    assert_eq!(found.data_file.filename, Some(PathBuf::from("y")));
    assert_eq!((found.data_file.direct, found.data_file.locking), (false, Locking::Auto));
    let expected = Qcow2Options {
        caches: CacheRequest {
            total_bytes: None,
            l2_bytes: Some(2 << 20),
            l2_entry_bytes: Some(4096),
            refcount_bytes: Some(1 << 20),
        },
        prefetch: Prefetch::All,
        cache_clean_interval_s: 30,
        lazy_refcounts: Some(true),
        pass_discard_request: None,
        pass_discard_snapshot: false,
        pass_discard_other: true,
        discard_no_unref: true,
        allocation_reserve: Some(4 << 20),
        overlap_check: OverlapCheck::CONSTANT
            .with(Section::InactiveL2, true)
            .with(Section::MainHeader, false),
    };
    assert_eq!(found.qcow2, expected);
    assert_eq!(options("file=x,id=disk0").unwrap().id.as_deref(), Some("disk0"));
}

#[test]
fn cache_parts_override_the_named_mode() {
    let table = [
        ("cache=writethrough", (false, false, true)),
        ("cache=off", (true, false, false)),
        ("cache=directsync,cache.writeback=on", (true, false, false)),
        ("cache=none,cache.direct=off", (false, false, false)),
        ("cache.direct=on,cache.no-flush=on", (true, true, false)),
        ("cache.writeback=off", (false, false, true)),
        ("cache=unsafe", (false, true, false)),
    ];
    for (text, (direct, no_flush, writethrough)) in table {
        assert_eq!(layer(text).cache, CacheMode { direct, no_flush, writethrough }, "{text}");
    }
}

#[test]
fn a_discarding_drive_passes_the_guests_discards_on() {
    let passes = |line: &str| {
        let layer = layer(line);
        layer.qcow2.for_engine(true, layer.discard == Discard::Unmap).discards().pass_discard_request
    };
    assert!(passes("discard=on") && !passes("discard=ignore"));
    assert!(!passes("discard=unmap,pass-discard-request=off"));
    assert!(passes("pass-discard-request=on"));
}

#[test]
fn the_chain_below_inherits_and_is_never_written() {
    let top = layer("cache=none,aio=threads,backing.l2-cache-size=1M,backing.backing.cache=unsafe");
    let middle = top.below().unwrap();
    assert!(middle.read_only && middle.cache.direct);
    assert_eq!(middle.file.aio, Some(Aio::Threads));
    assert_eq!(middle.qcow2.caches.l2_bytes, Some(1 << 20));
    let bottom = middle.below().unwrap();
    assert!(bottom.read_only && !bottom.cache.direct && bottom.cache.no_flush);
    assert!(bottom.below().unwrap().cache.no_flush);
    assert_eq!(layer("backing=").below(), None);
    let named = layer("backing.file=base.img,backing.driver=raw").below().unwrap();
    assert_eq!(named.file.filename, Some(PathBuf::from("base.img")));
    assert_eq!(named.format, Some(Format::Raw));
}

#[test]
fn a_refusal_says_the_option_the_value_and_what_is_allowed() {
    let table = [
        (
            "cache=sometimes",
            "option cache is \"sometimes\"; allowed: writeback, writethrough, none, off, directsync, unsafe",
        ),
        ("aio=posix", "option aio is \"posix\"; allowed: io_uring, threads, native"),
        ("discard=maybe", "option discard is \"maybe\"; allowed: ignore, off, unmap, on"),
        ("lazy-refcounts=maybe", "option lazy-refcounts is \"maybe\"; allowed: on, off"),
        (
            "cache-clean-interval=-1",
            "option cache-clean-interval is \"-1\"; allowed: a whole number from 0 to 4294967295",
        ),
        (
            "cache-clean-interval=4294967296",
            "option cache-clean-interval is \"4294967296\"; allowed: a whole number from 0 to 4294967295",
        ),
        (
            "backing.l2-cache-size=big",
            "option backing.l2-cache-size is \"big\"; allowed: a size such as 4M (size \"big\" is not a number; \
             write digits, then at most one of k, M, G, T, P, E (1.5G is 1536M))",
        ),
        ("overlap-check=most", "option overlap-check is \"most\"; allowed: none, constant, cached, all"),
        (
            "overlap-check=all,overlap-check.template=none",
            "options overlap-check and overlap-check.template contradict each other: they are two names of one \
             option; give one of them",
        ),
        (
            "driver=raw,format=qcow2",
            "options driver and format contradict each other: they are two names of one option; give one of them",
        ),
        (
            "detect-zeroes=unmap",
            "options detect-zeroes and discard contradict each other: detect-zeroes=unmap needs discard=unmap",
        ),
        (
            "force-share=on",
            "options force-share and read-only contradict each other: an image can be shared by force only for \
             reading; give read-only=on",
        ),
        ("l2-cache-sise=1M", "unknown option l2-cache-sise; did you mean l2-cache-size?"),
        ("backing.discrad=on", "unknown option backing.discrad; did you mean backing.discard?"),
        ("file.fielname=a", "unknown option file.fielname; did you mean file.filename?"),
        ("throtling.iops-total=1", "unknown option throtling; did you mean throttling?"),
        ("nonsense=1", "unknown option nonsense"),
        ("if=virtio", "option if describes the guest's device, not the image; leave it out here"),
        (
            "backing.throttling.iops-total=5",
            "option backing.throttling describes the disk as a whole, not the image; leave it out here",
        ),
        ("cache-size.x=1", "option cache-size is a single value and has no options of its own"),
        (
            "backing=node0",
            "option backing names a node, and there are none here; give its file instead (NAME.file=PATH)",
        ),
        (
            "backing.read-only=off",
            "option backing.read-only is \"off\"; allowed: on (nothing below the active layer is written)",
        ),
        ("driver=raw,l2-cache-size=1M", "option l2-cache-size is for qcow2 images, and this image is raw"),
    ];
    for (rest, expected) in table {
        assert_eq!(error(rest), expected, "{rest}");
    }
    assert_eq!(options("cache=none"), Err(OptionError::NoFile));
    assert_eq!(
        options("file="),
        Err(OptionError::Value {
            option: "file.filename".into(),
            found: String::new(),
            allowed: "the path of a file".into(),
        })
    );
}

#[test]
fn a_probed_raw_image_refuses_qcow2_options_too() {
    assert!(layer("l2-cache-size=1M").check_format(Format::Raw).is_err());
    assert!(layer("l2-cache-size=1M").check_format(Format::Qcow2).is_ok());
    assert!(layer("cache=none").check_format(Format::Raw).is_ok());
    assert!(layer("backing=").check_format(Format::Raw).is_err());
}

#[test]
fn every_known_name_marks_a_drive_as_keyed() {
    let aliases = table::all().filter_map(Spec::full_alias);
    let others = ["backing.cache", "data-file.locking", "if"].map(str::to_owned);
    for name in table::all().map(Spec::full_name).chain(aliases).chain(others) {
        assert!(is_option_name(&name), "{name}");
    }
    for name in ["", "disk", "a.b", "filename", "cach"] {
        assert!(!is_option_name(name), "{name}");
    }
}
