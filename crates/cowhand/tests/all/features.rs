//! What a build lacks is refused by name, and its credentials are not shown.

use cowhand::{ErrorKind, OpenOptions};

use crate::scratch::Scratch;

/// Each driver of files elsewhere: a name of it, its feature, and whether this build has that.
const NAMES: [(&str, &str, bool); 6] = [
    ("nbd://127.0.0.1:1/x", "nbd", cfg!(feature = "nbd")),
    ("http://me:hush@127.0.0.1:1/x?hush", "http", cfg!(feature = "http")),
    ("https://me:hush@127.0.0.1:1/x?hush", "http", cfg!(feature = "http")),
    ("s3://bucket/key", "s3", cfg!(feature = "s3")),
    ("chunked:http://me:hush@127.0.0.1:1/x?hush", "s3", cfg!(feature = "s3")),
    ("rbd:pool/image:key=hush", "rbd", cfg!(feature = "rbd")),
];

#[test]
fn a_driver_that_is_not_in_this_build_is_refused_with_its_feature_and_shows_nothing() {
    for (name, feature, is_built) in NAMES.into_iter().filter(|(.., is_built)| !is_built) {
        let error = OpenOptions::drive(format!("read-only=on,file={name}")).open().wait().unwrap_err();
        let text = error.to_string();
        assert_eq!(error.kind(), ErrorKind::Unsupported, "{text}");
        assert!(text.contains(&format!("was built without the feature {feature}")), "{text} {is_built}");
        assert!(!text.contains("hush"), "{text}");
    }
}

#[cfg(not(feature = "luks"))]
#[test]
fn an_encrypted_image_is_recognised_and_refused() {
    use cowhand::{Format, NewImage, create};

    let scratch = Scratch::new();
    let path = scratch.file("luks.qcow2");
    let options = "encrypt.format=luks,encrypt.key-secret=s,encrypt.iter-time=10";
    let made = std::process::Command::new("qemu-img")
        .args(["create", "-q", "-f", "qcow2", "--object", "secret,id=s,data=abc", "-o", options])
        .args([path.to_str().unwrap(), "1M"])
        .status();
    assert!(made.unwrap().success());
    let error = OpenOptions::new(&path).open().wait().unwrap_err();
    assert!(error.to_string().contains("encrypted (LUKS)"), "{error}");
    let refused =
        create(scratch.file("new.luks"), NewImage { format: Format::Luks, ..NewImage::raw(1 << 20) });
    assert!(refused.wait().is_err());
}
