//! Pools and volumes: each is made, copied, resized, filled and emptied by `qemu-img` as libvirt calls it.

use std::fs;
use std::path::Path;

use black_box::peer::{assert_clean, converted, qemu_img};

use super::daemon::Libvirt;

const SECRET: &str = "11111111-2222-3333-4444-555555555555";

/// Volumes that virsh makes of words.
const MADE: [&str; 7] = [
    "v.raw 64M --format raw",
    "v.qcow2 64M --format qcow2",
    "full.raw 8M --allocation 8M --format raw",
    "full.qcow2 8M --allocation 8M --format qcow2",
    "pre.qcow2 64M --format qcow2 --prealloc-metadata",
    "over.qcow2 64M --format qcow2 --backing-vol v.qcow2 --backing-vol-format qcow2",
    "over-raw.qcow2 64M --format qcow2 --backing-vol v.raw --backing-vol-format raw",
];

fn started() -> Libvirt {
    let libvirt = Libvirt::start();
    let pool = libvirt.name("pool");
    libvirt.ok(&format!("pool-define-as p dir --target {pool}"));
    libvirt.ok("pool-start p");
    libvirt
}

/// A description of a volume of so many MiB; `target` stands behind its format.
fn volume(name: &str, megabytes: u32, format: &str, target: &str) -> String {
    format!(
        "<volume><name>{name}</name><capacity unit='M'>{megabytes}</capacity>\
         <target><format type='{format}'/>{target}</target></volume>"
    )
}

fn luks(cipher: &str) -> String {
    format!("<encryption format='luks'><secret type='passphrase' uuid='{SECRET}'/>{cipher}</encryption>")
}

fn with_secret(libvirt: &Libvirt) {
    let secret = format!(
        "<secret ephemeral='no' private='no'><uuid>{SECRET}</uuid><usage type='volume'><volume>/v</volume></usage></secret>"
    );
    libvirt.describe("secret-define", &secret);
    libvirt.ok(&format!("secret-set-value {SECRET} --base64 c2VjcmV0"));
}

/// What libvirt says a volume's size is, which is what QEMU reads in the file.
fn assert_capacity(libvirt: &Libvirt, name: &str) {
    let described = libvirt.ok(&format!("vol-dumpxml --pool p {name}"));
    let capacity = described.split("<capacity unit='bytes'>").nth(1).and_then(|rest| rest.split('<').next());
    let path = libvirt.name(&format!("pool/{name}"));
    let info = qemu_img(["info", "--output=json", &path]).json();
    // The header of a LUKS volume is no part of its capacity, in either view.
    assert_eq!(capacity, Some(info["virtual-size"].to_string().as_str()), "{name}: {described}");
}

#[test]
fn volumes_of_every_kind_are_made_cloned_and_resized() {
    let libvirt = started();
    MADE.iter().for_each(|words| drop(libvirt.ok(&format!("vol-create-as p {words}"))));
    let features = "<compat>1.1</compat><clusterSize unit='KiB'>128</clusterSize>\
        <features><lazy_refcounts/><extended_l2/></features>";
    libvirt.describe("vol-create p", &volume("opt.qcow2", 64, "qcow2", features));
    libvirt.describe("vol-create p", &volume("old.qcow2", 64, "qcow2", "<compat>0.10</compat>"));
    for name in ["v.raw", "v.qcow2", "pre.qcow2", "over.qcow2", "opt.qcow2", "full.raw", "old.qcow2"] {
        libvirt.ok(&format!("vol-clone --pool p {name} c-{name}"));
        assert_capacity(&libvirt, &format!("c-{name}"));
    }
    libvirt.ok("vol-clone --pool p v.qcow2 m.qcow2 --prealloc-metadata");
    for name in ["v.raw", "v.qcow2", "opt.qcow2"] {
        libvirt.ok(&format!("vol-resize --pool p {name} 128M"));
        libvirt.ok(&format!("vol-resize --pool p {name} 8M --delta"));
        assert_capacity(&libvirt, name);
    }
    libvirt.ok("vol-resize --pool p v.qcow2 32M --shrink");
    libvirt.ok("pool-refresh p");
    for line in libvirt.ok("vol-list p").lines() {
        let name = line.split_whitespace().next().unwrap_or_default();
        if name.ends_with(".qcow2") {
            assert_capacity(&libvirt, name);
            assert_clean(&libvirt.file("pool").join(name));
        }
    }
    libvirt.ok("vol-delete --pool p over.qcow2");
    assert!(!libvirt.file("pool/over.qcow2").exists());
}

#[test]
fn what_is_uploaded_is_in_every_volume_made_from_it() {
    let libvirt = started();
    with_secret(&libvirt);
    let bytes: Vec<u8> = (0..3_000_000u32).flat_map(|number| number.to_le_bytes()).take(3_000_000).collect();
    let file = libvirt.scratch().write("bytes", &bytes);
    libvirt.ok("vol-create-as p w.raw 64M");
    libvirt.ok(&format!("vol-upload --pool p w.raw {}", file.display()));
    let made = |from: &str, description: &str| {
        drop(libvirt.describe(&format!("vol-create-from p --inputpool p --vol {from} --file"), description));
    };
    made("w.raw", &volume("a.qcow2", 64, "qcow2", ""));
    made("w.raw", &volume("large.qcow2", 128, "qcow2", "<compat>1.1</compat>"));
    made("a.qcow2", &volume("a.raw", 64, "raw", ""));
    let cbc = "<cipher name='aes' size='256' mode='cbc' hash='sha256'/><ivgen name='plain64' hash='sha256'/>";
    made("a.qcow2", &volume("closed.raw", 64, "raw", &luks("")));
    made("closed.raw", &volume("other.raw", 64, "raw", &luks(cbc)));
    made("other.raw", &volume("open.qcow2", 64, "qcow2", ""));
    libvirt.describe("vol-create p", &volume("closed.qcow2", 16, "qcow2", &luks("")));
    let read = |name: &str| {
        let format = name.rsplit('.').next().expect("a format");
        converted(&libvirt.name(&format!("pool/{name}")), format, &[], &libvirt.file("read"))
    };
    for name in ["a.qcow2", "large.qcow2", "a.raw", "open.qcow2"] {
        let found = read(name);
        assert!(found.starts_with(&bytes) && is_zero(&found[bytes.len()..]), "{name}");
    }
    // Nothing of it is to be seen in what is encrypted.
    for name in ["closed.raw", "other.raw"] {
        let found = fs::read(libvirt.file("pool").join(name)).expect("a volume");
        assert!(found.starts_with(b"LUKS") && !found.windows(64).any(|part| part == &bytes[1 << 20..][..64]));
    }
    libvirt.ok(&format!("vol-download --pool p a.raw {}", libvirt.name("down")));
    assert!(fs::read(libvirt.file("down")).expect("a file").starts_with(&bytes));
    libvirt.ok("vol-wipe --pool p a.raw");
    assert!(is_zero(&fs::read(Path::new(&libvirt.name("pool/a.raw"))).expect("a volume")));
}

fn is_zero(bytes: &[u8]) -> bool {
    bytes.iter().all(|byte| *byte == 0)
}
