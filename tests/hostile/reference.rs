//! Names of other files inside an image: nothing is opened that the caller did not allow.

use std::fs;
use std::os::unix::fs::symlink;

use black_box::peer::{converted, qemu_img, qemu_io_ok};
use black_box::{Run, Scratch, Server, cowhand};

use super::trial::Expect::{Bounded, Data, Error, ErrorOrData};
use super::trial::{Expect, Trial, place};
use super::victim::*;
use super::{Row, run};

#[test]
fn names_of_backing_files_that_lie_nowhere_are_refused() {
    const ROWS: &[Row] = &[
        ("backing name in the header", Error, "", |v| {
            v.set_backing(b"base.raw", "raw");
            v.set(BACKING_OFFSET, 8);
        }),
        ("backing name past the cluster", Error, "backing", |v| {
            v.set_backing(b"base.raw", "raw");
            v.set(BACKING_OFFSET, 65536);
        }),
        ("backing name across the end of the cluster", Error, "backing", |v| {
            v.set_backing(b"base.raw", "raw");
            v.set(BACKING_OFFSET, 65530);
        }),
        ("backing name far away", Error, "backing", |v| {
            v.set_backing(b"base.raw", "raw");
            v.set(BACKING_OFFSET, u64::MAX - 3);
        }),
        ("backing name of 1024 bytes", Error, "backing", |v| {
            v.set_backing(&[0x61; 1024], "raw");
        }),
        ("backing name of 2^32-1 bytes", Error, "backing", |v| {
            v.set_backing(b"base.raw", "raw");
            v.set(BACKING_SIZE, 0xffff_ffff);
        }),
        ("backing name with a zero byte", Error, "", |v| v.set_backing(b"base\0.raw", "raw")),
        ("backing file missing", Error, "base.raw", |v| v.set_backing(b"base.raw", "raw")),
        ("backing format unknown", Error, "", |v| v.set_backing(b"disk.qcow2", "qed")),
    ];
    run(Kind::Plain, ROWS);
}

#[test]
fn a_name_in_an_image_opens_nothing_but_files_beside_it() {
    let names = [
        r#"json:{"driver":"raw","file":{"driver":"file","filename":"/etc/hostname"}}"#,
        "nbd://localhost:10809/x",
        "nbd+unix:///x?socket=/tmp/none",
        "http://localhost/x",
        "https://localhost/x",
        "s3://bucket/x",
        "ssh://localhost/x",
        "fat:/etc",
        "file:/etc/passwd",
        "/dev/zero",
        "/dev/null",
        "/dev/mem",
        "/proc/self/mem",
        "/proc/self/environ",
        "/proc/self/fd/0",
        "/sys/kernel/notes",
        "/etc/passwd",
        "../outside.raw",
        "../../../../../../../../etc/passwd",
        "link-out",
        "link-to-directory/outside.raw",
        "fifo",
        "directory",
        ".",
        "",
    ];
    let victim = Victim::new(Kind::Plain);
    for name in names {
        let outer = Scratch::new();
        outer.write("outside.raw", &[0x5a; 4096]);
        let scratch = Scratch::new();
        prepare(&outer, &scratch);
        // The directory above the image's is the system's for temporary files.
        let above = scratch.path().parent().expect("a directory above").join("outside.raw");
        let mut victim = victim.clone();
        victim.set_backing(name.as_bytes(), "raw");
        place(&scratch, &victim.bytes).expect("cannot write an image");
        // No name is no backing file.
        let expect = if name.is_empty() { ErrorOrData } else { Error };
        trial(&scratch, name, expect, &victim.disk, 2);
        assert!(!above.exists(), "{name} made a file");
    }
}

fn prepare(outer: &Scratch, scratch: &Scratch) {
    symlink(outer.file("outside.raw"), scratch.file("link-out")).expect("a link");
    symlink(outer.path(), scratch.file("link-to-directory")).expect("a link");
    fs::create_dir(scratch.file("directory")).expect("a directory");
    Run::new("mkfifo").arg(scratch.file("fifo")).ok();
}

#[test]
fn a_file_elsewhere_is_opened_when_the_user_allows_its_directory() {
    let (outer, scratch) = (Scratch::new(), Scratch::new());
    outer.write("outside.raw", &[0x5a; 1 << 20]);
    let path = scratch.name("disk.qcow2");
    let base = outer.name("outside.raw");
    qemu_img(["create", "-q", "-f", "qcow2", "-b", &base, "-F", "raw", &path]).ok();
    let refused = Server::refuses(["--read-only", &path]);
    assert!(refused.contains("--allow-path"), "{refused}");
    let allowed = outer.path().to_str().expect("text");
    let server = Server::start(["--read-only", "--allow-path", allowed, &path]);
    assert!(server.client("").read_all().expect("read") == vec![0x5a; 1 << 20]);
    server.stop();
}

fn trial(scratch: &Scratch, name: &str, expect: Expect, disk: &[u8], layers: usize) {
    Trial { name, scratch, expect, says: "", disk, layers }.run();
}

#[test]
fn a_chain_that_bites_its_tail_is_refused_before_its_data_is_touched() {
    let original = Victim::new(Kind::Plain);
    let scratch = Scratch::new();
    let mut itself = original.clone();
    itself.set_backing(b"disk.qcow2", "qcow2");
    place(&scratch, &itself.bytes).expect("cannot write an image");
    trial(&scratch, "its own backing file", Error, &itself.disk, 2);

    let mut first = original.clone();
    first.set_backing(b"other.qcow2", "qcow2");
    place(&scratch, &first.bytes).expect("cannot write an image");
    scratch.write("other.qcow2", &itself.bytes);
    trial(&scratch, "a cycle of two", Error, &first.disk, 3);
    let said = cowhand(["info", "--backing-chain", &scratch.name("disk.qcow2")]).fails();
    assert!(said.contains("disk.qcow2"), "{said}");
}

/// A chain of `depth` overlays over one qcow2 base; gives the disk.
fn chain(scratch: &Scratch, depth: usize) -> Vec<u8> {
    let base = scratch.name("00000.qcow2");
    qemu_img(["create", "-q", "-f", "qcow2", "-o", "cluster_size=512", &base, "64k"]).ok();
    qemu_io_ok(&["-f", "qcow2"], &base, &["write -P 77 0 4k"]);
    let over = ["create", "-q", "-f", "qcow2", "-o", "cluster_size=512", "-b", "00000.qcow2", "-F", "qcow2"];
    qemu_img(over).arg("00001.qcow2").current_dir(scratch.path()).ok();
    let overlay = fs::read(scratch.file("00001.qcow2")).expect("an overlay");
    let name = overlay.windows(11).position(|name| name == b"00000.qcow2").expect("the name inside");
    for index in 2..=depth {
        let mut bytes = overlay.clone();
        bytes[name..name + 11].copy_from_slice(format!("{:05}.qcow2", index - 1).as_bytes());
        let top = if index == depth { "disk.qcow2".to_owned() } else { format!("{index:05}.qcow2") };
        scratch.write(&top, &bytes);
    }
    let mut disk = vec![0; 64 << 10];
    disk[..4096].fill(77);
    disk
}

#[test]
fn a_chain_of_300_is_served() {
    let scratch = Scratch::new();
    let disk = chain(&scratch, 300);
    trial(&scratch, "300 deep", Data, &disk, 301);
}

#[test]
fn a_chain_of_10000_is_refused_in_time() {
    let scratch = Scratch::new();
    let disk = chain(&scratch, 10_000);
    trial(&scratch, "10,000 deep", Error, &disk, 1002);
}

#[test]
fn a_backing_file_of_another_length_reads_as_zeroes_behind_its_end() {
    for (name, bytes) in [("shorter", 1_000_000), ("longer", 8 << 20), ("empty", 0), ("odd", 4_193_999)] {
        let scratch = Scratch::new();
        scratch.write("base.raw", &vec![0x33; bytes]);
        let create = ["create", "-q", "-f", "qcow2", "-b", "base.raw", "-F", "raw", "disk.qcow2", "4M"];
        qemu_img(create).current_dir(scratch.path()).ok();
        let path = scratch.name("disk.qcow2");
        qemu_io_ok(&["-f", "qcow2"], &path, &["write -P 5 512k 1k"]);
        let disk = converted(&path, "qcow2", &[], &scratch.file("converted"));
        let mut expected = vec![0; 4 << 20];
        let below = bytes.min(4 << 20);
        expected[..below].fill(0x33);
        expected[512 << 10..513 << 10].fill(5);
        assert!(disk == expected, "{name}: the set-up is right");
        trial(&scratch, name, Data, &disk, 2);
    }
}

#[test]
fn a_raw_backing_file_stays_raw_whatever_it_contains() {
    let scratch = Scratch::new();
    let secret = scratch.write("secret.raw", &[0x77; 1 << 20]);
    let mut inner = Victim::new(Kind::Plain);
    inner.set_backing(secret.to_str().expect("text").as_bytes(), "raw");
    scratch.write("base.raw", &inner.bytes);
    let create = ["create", "-q", "-f", "qcow2", "-b", "base.raw", "-F", "raw", "disk.qcow2"];
    qemu_img(create).current_dir(scratch.path()).ok();
    let mut disk = inner.bytes.clone();
    disk.resize(disk.len().next_multiple_of(512), 0);
    trial(&scratch, "a raw file that looks like qcow2", Data, &disk, 2);
}

#[test]
fn a_data_file_is_opened_only_where_a_backing_file_would_be() {
    let outer = Scratch::new();
    outer.write("data.bin", &[0x11; 4 << 20]);
    let scratch = Scratch::new();
    let data = scratch.name("data.bin");
    let options = format!("data_file={data},data_file_raw=on");
    let path = scratch.name("disk.qcow2");
    qemu_img(["create", "-q", "-f", "qcow2", "-o", &options, &path, "4M"]).ok();
    qemu_io_ok(&["-f", "qcow2"], &path, &["write -P 9 1M 1M"]);
    let disk = converted(&path, "qcow2", &[], &scratch.file("converted"));
    trial(&scratch, "data file beside the image", Data, &disk, 2);

    let bytes = fs::read(&path).expect("an image");
    let at = bytes.windows(data.len()).position(|name| name == data.as_bytes()).expect("the name inside");
    let names = [
        ("data file elsewhere", outer.name("data.bin"), Error),
        ("data file missing", scratch.name("gone.bin"), Error),
        ("data file is the image", path.clone(), Error),
        ("data file is a device", "/dev/zero".to_owned(), Error),
        ("data file name shorter than it says", String::new(), Bounded),
    ];
    for (what, name, expect) in names {
        let mut bytes = bytes.clone();
        let length = u32::try_from(name.len()).expect("short");
        let room = data.len().max(name.len()).next_multiple_of(8);
        bytes[at..at + room].fill(0);
        bytes[at..at + name.len()].copy_from_slice(name.as_bytes());
        bytes[at - 4..at].copy_from_slice(&length.to_be_bytes());
        if name.len() > data.len().next_multiple_of(8) {
            bytes[at + room..at + room + 8].fill(0);
        }
        place(&scratch, &bytes).expect("cannot write an image");
        trial(&scratch, what, expect, &disk, 2);
    }
}
