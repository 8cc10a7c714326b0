//! The images that command lines are about: made once by QEMU's tools, copied for each writer.

use std::fs;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::OnceLock;

use black_box::peer::qemu_io;
use black_box::run::Run;
use black_box::scratch::Scratch;

/// Images with data, of one disk each, over nothing.
pub const PLAIN: [&str; 14] = [
    "empty.qcow2",
    "data.qcow2",
    "v2.qcow2",
    "small.qcow2",
    "large.qcow2",
    "ext.qcow2",
    "zeroes.qcow2",
    "lazy.qcow2",
    "bits.qcow2",
    "snap.qcow2",
    "bitmap.qcow2",
    "odd.qcow2",
    "vast.qcow2",
    "plain.raw",
];

/// Images with compressed clusters.
pub const COMPRESSED: [&str; 2] = ["deflate.qcow2", "zstd.qcow2"];

/// Images over others.
pub const OVERLAYS: [&str; 4] = ["mid.qcow2", "top.qcow2", "over-raw.qcow2", "short-over.qcow2"];

/// Images of other hypervisors, and the format of each. All have the disk of `data.qcow2`.
pub const FOREIGN: [(&str, &str); 8] = [
    ("sparse.vmdk", "vmdk"),
    ("stream.vmdk", "vmdk"),
    ("flat.vmdk", "vmdk"),
    ("disk.vhdx", "vhdx"),
    ("disk.vdi", "vdi"),
    ("dynamic.vpc", "vpc"),
    ("fixed.vpc", "vpc"),
    ("old.qcow", "qcow"),
];

/// Images whose metadata is wrong.
pub const WRONG: [&str; 2] = ["leak.qcow2", "corrupt.qcow2"];

/// How `qemu-img create` makes each, and what is written then.
const MADE: [(&str, &[&str]); 15] = [
    ("empty.qcow2 4M", &[]),
    ("data.qcow2 4M", &["write -P 1 0 1M", "write -P 2 1536k 100k", "write -P 3 4000k 96k"]),
    ("-o compat=0.10 v2.qcow2 4M", &["write -P 1 0 1M", "write -P 2 3M 64k"]),
    ("-o cluster_size=4k small.qcow2 4M", &["write -P 1 10k 300k", "write -P 2 1000k 20k"]),
    ("-o cluster_size=2M large.qcow2 8M", &["write -P 1 100k 300k"]),
    ("-o extended_l2=on ext.qcow2 4M", &["write -P 1 4k 10k", "write -P 2 1M 70k", "write -z 1M 8k"]),
    ("zeroes.qcow2 4M", &["write -P 1 0 512k", "write -z 128k 128k", "write -z 2M 64k"]),
    ("-o lazy_refcounts=on lazy.qcow2 4M", &["write -P 1 0 512k"]),
    ("-o refcount_bits=1 bits.qcow2 4M", &["write -P 1 0 512k"]),
    ("snap.qcow2 4M", &["write -P 1 0 512k"]),
    ("bitmap.qcow2 4M", &["write -P 1 0 512k"]),
    ("odd.qcow2 1234567", &["write -P 1 1200000 34900"]),
    ("vast.qcow2 64T", &["write -P 1 32T 64k"]),
    ("base.qcow2 3M", &["write -P 1 0 2M"]),
    ("other.qcow2 4M", &["write -P 1 0 1M", "write -P 9 3M 64k"]),
];

/// The directory with all of them.
pub fn directory() -> &'static Path {
    static MADE: OnceLock<Scratch> = OnceLock::new();
    MADE.get_or_init(make).path()
}

/// The files that `line` names, and those below them.
pub fn named(line: &str) -> Vec<String> {
    let mut names: Vec<String> = fs::read_dir(directory())
        .expect("the fixtures")
        .map(|entry| entry.expect("a fixture").file_name().into_string().expect("a name"))
        .filter(|name| line.contains(name.as_str()))
        .collect();
    let below = |name: &str| match name {
        "top.qcow2" => &["mid.qcow2", "base.qcow2"][..],
        "mid.qcow2" | "short-over.qcow2" => &["base.qcow2"],
        "over-raw.qcow2" => &["base.raw"],
        "kept.qcow2" => &["kept.raw"],
        "flat.vmdk" => &["flat-flat.vmdk"],
        _ => &[],
    };
    let more: Vec<_> = names.iter().flat_map(|name| below(name)).map(|name| (*name).to_owned()).collect();
    names.extend(more);
    names.sort();
    names.dedup();
    names
}

fn make() -> Scratch {
    let scratch = Scratch::new();
    let qemu = |words: &str| {
        drop(Run::new("qemu-img").args(words.split(' ')).current_dir(scratch.path()).ok());
    };
    let write = |name: &str, commands: &[&str]| {
        let format = if name.ends_with(".raw") { "raw" } else { "qcow2" };
        // Data files are looked for from the current directory.
        let run = qemu_io(&["-f", format], name, commands).current_dir(scratch.path());
        assert!(commands.is_empty() || !run.ok().contains("failed"), "{name}");
    };
    for (words, commands) in MADE {
        qemu(&format!("create -f qcow2 {words}"));
        let name = words.split(' ').rev().nth(1).expect("a name");
        write(name, commands);
    }
    for name in ["base.raw", "plain.raw"] {
        qemu(&format!("create -f raw {name} 3M"));
        write(name, &["write -P 5 64k 1M", "write -P 6 2M 4k"]);
    }
    scratch.write("text.txt", b"no image at all\n");
    scratch.write("sectors.raw", &[7; 1500]);
    qemu("create -f qcow2 -b base.qcow2 -F qcow2 mid.qcow2 4M");
    write("mid.qcow2", &["write -P 2 1M 1M", "write -z 512k 128k"]);
    qemu("create -f qcow2 -b mid.qcow2 -F qcow2 top.qcow2");
    write("top.qcow2", &["write -P 3 1536k 1M", "write -z 0 64k"]);
    qemu("create -f qcow2 -b base.raw -F raw over-raw.qcow2");
    write("over-raw.qcow2", &["write -P 3 0 128k"]);
    qemu("create -f qcow2 -b base.qcow2 -F qcow2 short-over.qcow2 1M");
    qemu("convert -c -O qcow2 data.qcow2 deflate.qcow2");
    qemu("convert -c -O qcow2 -o compression_type=zstd data.qcow2 zstd.qcow2");
    for words in [
        "vmdk data.qcow2 sparse.vmdk",
        "vmdk -o subformat=streamOptimized data.qcow2 stream.vmdk",
        "vmdk -o subformat=monolithicFlat data.qcow2 flat.vmdk",
        "vhdx data.qcow2 disk.vhdx",
        "vdi data.qcow2 disk.vdi",
        "vpc -o force_size=on data.qcow2 dynamic.vpc",
        "vpc -o subformat=fixed,force_size=on data.qcow2 fixed.vpc",
        "qcow data.qcow2 old.qcow",
    ] {
        qemu(&format!("convert -O {words}"));
    }
    qemu("create -f qcow2 -o data_file=kept.raw,data_file_raw=on kept.qcow2 2M");
    write("kept.qcow2", &["write -P 4 0 512k"]);
    qemu("create -f qcow2 -o preallocation=metadata allocated.qcow2 2M");
    qemu("snapshot -c first snap.qcow2");
    write("snap.qcow2", &["write -P 2 256k 512k"]);
    qemu("snapshot -c second snap.qcow2");
    write("snap.qcow2", &["write -P 3 0 64k"]);
    qemu("bitmap --add -g 64k bitmap.qcow2 daily");
    qemu("bitmap --add --disable bitmap.qcow2 off");
    break_bitmap(&scratch, "broken.qcow2");
    fs::copy(scratch.file("data.qcow2"), scratch.file("same.qcow2")).expect("a copy");
    damage(&scratch, "leak.qcow2", &[(60, 1), (61, 1)]);
    damage(&scratch, "corrupt.qcow2", &[(6, 0), (60, 1)]);
    scratch
}

/// A copy of the image with bitmaps, of which one is inconsistent.
fn break_bitmap(scratch: &Scratch, name: &str) {
    const NAME: &[u8] = b"daily";
    let mut bytes = fs::read(scratch.file("bitmap.qcow2")).expect("an image");
    let at = bytes.windows(NAME.len()).position(|found| found == NAME).expect("its directory");
    // The last byte of the flags: "in use".
    bytes[at - 9] |= 1;
    scratch.write(name, &bytes);
}

/// A copy of an image with other refcounts for some clusters, of a file that is long enough.
fn damage(scratch: &Scratch, name: &str, refcounts: &[(u64, u16)]) {
    const CLUSTER: u64 = 65_536;
    fs::copy(scratch.file("data.qcow2"), scratch.file(name)).expect("a copy");
    let file = fs::File::options().read(true).write(true).open(scratch.file(name)).expect("the copy");
    let word = |at: u64| {
        let mut word = [0; 8];
        file.read_exact_at(&mut word, at).expect("a word");
        u64::from_be_bytes(word)
    };
    let block = word(word(48));
    for (cluster, count) in refcounts {
        file.write_all_at(&count.to_be_bytes(), block + 2 * cluster).expect("a refcount");
    }
    file.set_len(62 * CLUSTER).expect("a longer file");
}
