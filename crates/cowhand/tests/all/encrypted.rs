//! Encrypted images open with a secret that the program has added: only a systemd credential could be named before.

use std::time::Duration;

use cowhand::{Disk, ErrorKind, Format, NewImage, OpenOptions, add_secret, create, remove_secret};

use crate::peers::{qemu_img, text};
use crate::scratch::{Scratch, bytes_at};

#[test]
fn an_image_that_qemu_encrypted_opens_with_the_secret_of_the_program_and_with_no_other() {
    let scratch = Scratch::new();
    let path = scratch.file("encrypted.qcow2");
    let options = "encrypt.format=luks,encrypt.key-secret=s,encrypt.iter-time=10";
    let object = ["--object", "secret,id=s,data=hush"];
    qemu_img(&["create", "-q", "-f", "qcow2", object[0], object[1], "-o", options, text(&path), "1M"]);
    let open = |id: &str| OpenOptions::new(&path).set("encrypt.key-secret", id).open().wait();
    let failed = |opened: Result<Disk, cowhand::Error>| opened.unwrap_err().to_string();

    assert!(failed(open("of-guests")).contains("there is no secret \"of-guests\""));
    add_secret("of-guests", "hush").unwrap();
    add_secret("wrong", *b"rush").unwrap();
    assert_eq!(add_secret("wrong", "hush").unwrap_err().kind(), ErrorKind::Exists);
    assert_eq!(add_secret("long", vec![0; (2 << 20) + 1]).unwrap_err().kind(), ErrorKind::Invalid);
    assert!(failed(open("wrong")).contains("encrypted.qcow2"));
    let disk = open("of-guests").unwrap();
    disk.write(0, vec![7; 512]).wait().unwrap();
    assert!(remove_secret("of-guests") && !remove_secret("of-guests"));
    assert_eq!(bytes_at(&disk, 0, 512), [7; 512]);
    disk.close().wait().unwrap();
    assert!(failed(open("of-guests")).contains("of-guests"));
    let image = format!("driver=qcow2,encrypt.key-secret=s,file.filename={}", text(&path));
    qemu_img(&["check", object[0], object[1], "--image-opts", &image]);
}

#[test]
fn qemu_opens_what_is_made_encrypted_here() {
    let scratch = Scratch::new();
    let luks = NewImage { format: Format::Luks, ..NewImage::raw(1 << 20) };
    for (name, image, option) in
        [("new.qcow2", NewImage::qcow2(1 << 20), "encrypt.key-secret"), ("new.luks", luks, "key-secret")]
    {
        let (path, mut image) = (scratch.file(name), image.encrypted("hush"));
        image.encryption.as_mut().unwrap().iter_time = Duration::ZERO;
        let driver = image.format;
        create(&path, image).wait().unwrap();
        let drive = format!("driver={driver},{option}=s,file.filename={}", text(&path));
        let compare = ["--object", "secret,id=s,data=hush", "--image-opts", &drive];
        assert!(qemu_img(&[&["info"], &compare[..]].concat()).contains("encrypted: yes"), "{drive}");
    }
}
