//! Encrypted images beside QEMU's tools: made by one, read and written by the other; passwords that are wrong or not there.

use std::fs;
use std::io::{BufRead, BufReader};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::{Command, Stdio};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

use crate::peer::{Bench, Ran};

pub const SECRET: [&str; 2] = ["--object", "secret,id=sec0,data=abc123"];
const LUKS: &str = "encrypt.format=luks,encrypt.key-secret=sec0,encrypt.iter-time=10";

pub fn cowhand(bench: &Bench, words: &[&str]) -> Ran {
    let words = [&words[..1], &SECRET, &words[1..]].concat();
    let ran = bench.cowhand(&words);
    assert!(!ran.err.contains("abc123"), "{}", ran.err);
    ran
}

pub fn must(bench: &Bench, words: &[&str]) -> String {
    let ran = cowhand(bench, words);
    assert_eq!(ran.code, 0, "{words:?}: {}{}", ran.out, ran.err);
    ran.out
}

pub fn qemu_img(bench: &Bench, words: &[&str]) -> String {
    bench.qemu("qemu-img", &[&words[..1], &SECRET, &words[1..]].concat()).out
}

pub fn qemu_io(bench: &Bench, image: &str, commands: &[&str]) {
    let commands: Vec<&str> = commands.iter().flat_map(|command| ["-c", command]).collect();
    let ran = bench.qemu("qemu-io", &[&SECRET[..], &["--image-opts"], &commands[..], &[image]].concat());
    assert!(!ran.out.contains("failed"), "{commands:?}: {}", ran.out);
}

/// The drive of an encrypted image, as both programs understand it.
fn drive(name: &str) -> String {
    format!("driver=qcow2,encrypt.key-secret=sec0,file.filename={name}")
}

/// A raw disk whose sectors differ, with a hole.
pub fn raw(bench: &Bench) {
    let bytes: Vec<u8> = (0..1_500_000_u32).map(|at| (at / 512 * 7 + at % 11) as u8).collect();
    let file = fs::File::create(bench.path("plain.raw")).unwrap();
    file.set_len(4 << 20).unwrap();
    file.write_all_at(&bytes, 100 << 10).unwrap();
}

pub fn agree(bench: &Bench, one: &str) {
    let words = ["compare", "--image-opts", one, "driver=raw,file.filename=plain.raw"];
    assert_eq!(must(bench, &words), "Images are identical.\n", "{one}");
    assert_eq!(qemu_img(bench, &words), "Images are identical.\n", "{one}");
}

#[test]
fn whatever_one_encrypts_the_other_reads() {
    let bench = Bench::new();
    raw(&bench);
    let options = [
        "",
        ",cluster_size=512",
        ",extended_l2=on,cluster_size=16k",
        ",compat=0.10",
        ",encrypt.cipher-alg=aes-128,encrypt.hash-alg=sha1",
        ",encrypt.cipher-mode=cbc,encrypt.ivgen-alg=essiv,encrypt.ivgen-hash-alg=sha256",
        ",encrypt.cipher-alg=aes-128,encrypt.cipher-mode=cbc,encrypt.ivgen-alg=plain,encrypt.hash-alg=sha512",
        ",preallocation=metadata",
        ",preallocation=full",
        ",data_file=data",
    ];
    for more in options {
        let options = format!("{LUKS}{more}");
        let words = ["convert", "-f", "raw", "-O", "qcow2", "-o", &options, "plain.raw"];
        must(&bench, &[&words[..], &["ours.qcow2"]].concat());
        agree(&bench, &drive("ours.qcow2"));
        // qemu-img measures for seconds how many iterations it makes, and preallocates without saying that clusters are zeroes.
        if ["", "extended_l2", "sha1", "essiv"].iter().any(|kind| match *kind {
            "" => more.is_empty(),
            kind => more.contains(kind),
        }) {
            qemu_img(&bench, &[&words[..], &["theirs.qcow2"]].concat());
            agree(&bench, &drive("theirs.qcow2"));
        }
        let check = ["check", "--image-opts", &drive("ours.qcow2")];
        must(&bench, &check);
        qemu_img(&bench, &check);
        if more.contains("data_file") {
            fs::remove_file(bench.path("data")).unwrap();
        }
    }
}

#[test]
fn an_encrypted_disk_reads_as_zeroes_where_nobody_wrote() {
    let bench = Bench::new();
    for preallocation in ["off", "metadata", "falloc", "full"] {
        let options = format!("{LUKS},preallocation={preallocation}");
        must(&bench, &["create", "-q", "-o", &options, "new.qcow2", "1M"]);
        qemu_io(
            &bench,
            &drive("new.qcow2"),
            &["read -P 0 0 1M", "write -P 5 100k 1000", "read -P 0 64k 36k"],
        );
        must(
            &bench,
            &["resize", "--preallocation", preallocation, "--image-opts", &drive("new.qcow2"), "2M"],
        );
        qemu_io(&bench, &drive("new.qcow2"), &["read -P 0 128k 1920k", "read -P 5 100k 1000"]);
    }
}

#[test]
fn each_image_of_a_chain_has_its_own_password() {
    let bench = Bench::new();
    let secrets = ["--object", "secret,id=sec0,data=abc123", "--object", "secret,id=sec1,data=lower"];
    let lower = "encrypt.format=luks,encrypt.key-secret=sec1,encrypt.iter-time=10";
    bench.qemu(
        "qemu-img",
        &[&["create", "-q"], &secrets[..], &["-f", "qcow2", "-o", lower, "base.qcow2", "2M"]].concat(),
    );
    let base = "driver=qcow2,encrypt.key-secret=sec1,file.filename=base.qcow2";
    let write = ["--image-opts", "-c", "write -P 7 0 300k", base];
    bench.qemu("qemu-io", &[&secrets[..], &write].concat());
    let create = ["-q", "-u", "-b", "base.qcow2", "-F", "qcow2", "-o", LUKS, "top.qcow2", "2M"];
    let ran = bench.cowhand(&[&["create"], &secrets[..], &create].concat());
    assert_eq!(ran.code, 0, "{}", ran.err);
    let top = "driver=qcow2,encrypt.key-secret=sec0,file.filename=top.qcow2,backing.encrypt.key-secret=sec1";
    let json = r#"json:{"driver":"qcow2","encrypt":{"format":"luks","key-secret":"sec0"},"file":{"driver":"file","filename":"top.qcow2"},"backing":{"driver":"qcow2","encrypt":{"format":"luks","key-secret":"sec1"}}}"#;
    // Copy-on-write of a part of a cluster: decrypted from the base, encrypted for the overlay.
    let patch = ["--image-opts", "-c", "write -P 8 10k 1k", "-c", "read -P 7 11k 53k"];
    let theirs = "driver=qcow2,encrypt.key-secret=sec0,file.filename=top.qcow2,backing.driver=qcow2,backing.encrypt.key-secret=sec1,backing.file.driver=file,backing.file.filename=base.qcow2";
    bench.qemu("qemu-io", &[&secrets[..], &patch, &[theirs]].concat());
    bench.qemu(
        "qemu-img",
        &[&["convert"], &secrets[..], &["-O", "raw", "--image-opts", theirs, "theirs.raw"]].concat(),
    );
    for drive in [top, json] {
        let ran = bench.cowhand(&[&["convert"], &secrets[..], &["-O", "raw", drive, "ours.raw"]].concat());
        assert_eq!(ran.code, 0, "{}", ran.err);
        assert!(fs::read(bench.path("ours.raw")).unwrap() == fs::read(bench.path("theirs.raw")).unwrap());
    }
    let alone =
        bench.cowhand(&[&["map"], &secrets[..], &["file=top.qcow2,encrypt.key-secret=sec0"]].concat());
    assert!(
        alone.err.contains("base.qcow2") && alone.err.contains("give encrypt.key-secret=ID"),
        "{}",
        alone.err
    );
}

#[test]
fn a_password_that_is_wrong_or_not_there_is_said_once() {
    let bench = Bench::new();
    let create = [&["create", "-q"], &SECRET[..], &["-f", "qcow2", "-o", LUKS, "disk.qcow2", "1M"]].concat();
    bench.qemu("qemu-img", &create);
    bench.qemu("qemu-img", &["create", "-q", "-f", "qcow2", "plain.qcow2", "1M"]);
    let drive = drive("disk.qcow2");
    let table: [(&[&str], &str, &str); 9] = [
        (
            &[],
            "disk.qcow2",
            "the image is encrypted (LUKS); its password is needed: give encrypt.key-secret=ID",
        ),
        (
            &[],
            &drive,
            "there is no secret \"sec0\": give --object secret,id=sec0,file=PATH (or a systemd credential of that name)",
        ),
        (
            &["--object", "secret,id=sec0,data=hunter2"],
            &drive,
            "the password opens no key slot of the encrypted image: it is wrong, or for another image",
        ),
        (
            &SECRET,
            "driver=qcow2,encrypt.key-secret=sec0,file.filename=plain.qcow2",
            "the image is not encrypted, and encrypt.key-secret was given",
        ),
        (
            &[],
            "driver=qcow2,encrypt.format=luks,file.filename=plain.qcow2",
            "option encrypt.format is luks, and the image is not encrypted with it",
        ),
        (
            &SECRET,
            "driver=raw,encrypt.key-secret=sec0,file.filename=disk.qcow2",
            "option encrypt.key-secret is for qcow2 images, and this image is raw",
        ),
        (
            &["--object", "secret,id=sec0,file=missing"],
            &drive,
            "cannot read secret \"sec0\" from missing: No such file or directory (os error 2)",
        ),
        (
            &["--object", "secret_keyring,id=sec0,serial=1"],
            &drive,
            "cannot read secret \"sec0\" from key 1 of the kernel's keyrings: Required key not available (os error 126)",
        ),
        (
            &["--object", "secret,id=sec0,data=hunter2,keyid=k,iv=x"],
            &drive,
            "secret \"sec0\": it is encrypted with another one (keyid), which is not supported; give file=PATH or a systemd credential",
        ),
    ];
    for (objects, drive, error) in table {
        let ran = bench.cowhand(&[&["map"], objects, &[drive]].concat());
        assert_eq!(ran.code, 1, "{drive}");
        assert!(ran.err.contains(error), "{drive}: {}", ran.err);
        assert!(!ran.err.contains("hunter2") && !ran.err.contains("abc123"), "{}", ran.err);
    }
    let ran =
        bench.cowhand(&["create", "-o", "encrypt.format=luks,encrypt.key-secret=nobody", "x.qcow2", "1M"]);
    assert!(
        ran.err.contains("there is no secret \"nobody\"") && !bench.path("x.qcow2").exists(),
        "{}",
        ran.err
    );
}

#[test]
fn a_password_comes_from_a_file_from_base64_or_from_systemd() {
    let bench = Bench::new();
    fs::write(bench.path("password"), "abc123").unwrap();
    fs::create_dir(bench.path("credentials")).unwrap();
    fs::write(bench.path("credentials/sec0"), "abc123").unwrap();
    must(&bench, &["create", "-q", "-o", LUKS, "disk.qcow2", "1M"]);
    let drive = drive("disk.qcow2");
    for object in ["secret,id=sec0,file=password", "secret,id=sec0,data=YWJjMTIz,format=base64"] {
        let ran = bench.cowhand(&["map", "--object", object, &drive]);
        assert_eq!(ran.code, 0, "{object}: {}", ran.err);
        bench.qemu("qemu-img", &["map", "--object", object, "--image-opts", &drive]);
    }
    let with = ["CREDENTIALS_DIRECTORY=credentials", env!("CARGO_BIN_EXE_cowhand"), "map", &drive];
    let ran = bench.run("env".as_ref(), &with);
    assert_eq!(ran.code, 0, "{}", ran.err);
}

/// Keys of one disk, added and removed by both programs in turn: each opens it with what the other has made.
#[test]
fn keys_are_added_and_removed_and_the_last_one_stays() {
    let bench = Bench::new();
    must(&bench, &["create", "-q", "-f", "qcow2", "-o", LUKS, "disk.qcow2", "1M"]);
    let other = ["--object", "secret,id=sec1,data=other"];
    let (image, second) = (drive("disk.qcow2"), drive("disk.qcow2").replace("sec0", "sec1"));
    let amend = |options: &str, more: &[&str]| {
        let words = [&["amend"], &other[..], more, &["-o", options, "--image-opts", &image]].concat();
        cowhand(&bench, &words)
    };
    let opens = |image: &str| {
        let words = [&["compare", "-q"], &other[..], &["--image-opts", image, image]].concat();
        let theirs = Command::new("qemu-img").args(&words).args(SECRET).current_dir(bench.path(".")).output();
        let (ours, theirs) = (cowhand(&bench, &words).code == 0, theirs.unwrap().status.success());
        assert_eq!(ours, theirs, "{image}");
        ours
    };
    assert!(opens(&image) && !opens(&second));
    let add = "encrypt.state=active,encrypt.new-secret=sec1,encrypt.iter-time=10";
    let added = amend(&format!("{add},encrypt.keyslot=5"), &[]);
    assert_eq!(added.code, 0, "{}", added.err);
    assert!(opens(&image) && opens(&second));
    let taken = amend(&format!("{add},encrypt.keyslot=5"), &[]);
    assert!(taken.code == 1 && taken.err.contains("key slot 5 has a key"), "{}", taken.err);
    let info = bench.qemu("qemu-img", &["info", "--output", "json", "disk.qcow2"]).json();
    assert_eq!(info["format-specific"]["data"]["encrypt"]["slots"][5]["active"], Value::Bool(true));
    let removed = amend("encrypt.state=inactive,encrypt.old-secret=sec1", &[]);
    assert_eq!(removed.code, 0, "{}", removed.err);
    assert!(opens(&image) && !opens(&second));
    let last = amend("encrypt.state=inactive,encrypt.keyslot=0", &[]);
    assert!(last.code == 1 && last.err.contains("no key would be left"), "{}", last.err);
    assert!(opens(&image));
    let forced = amend("encrypt.state=inactive,encrypt.keyslot=0", &["--force"]);
    assert_eq!(forced.code, 0, "{}", forced.err);
    assert!(!opens(&image) && !opens(&second));
    must(&bench, &["create", "-q", "-f", "qcow2", "plain.qcow2", "1M"]);
    let plain = cowhand(&bench, &["amend", "-o", "encrypt.state=inactive,encrypt.keyslot=0", "plain.qcow2"]);
    assert!(plain.code == 1 && plain.err.contains("is not encrypted"), "{}", plain.err);
}

#[test]
fn info_shows_key_slots_as_qemu_img_does() {
    let bench = Bench::new();
    for more in ["", ",encrypt.cipher-mode=cbc,encrypt.ivgen-alg=essiv,encrypt.ivgen-hash-alg=sha256"] {
        qemu_img(
            &bench,
            &["create", "-q", "-f", "qcow2", "-o", &format!("{LUKS}{more}"), "disk.qcow2", "1M"],
        );
        let theirs = bench.qemu("qemu-img", &["info", "--output", "json", "disk.qcow2"]).json();
        let ours = bench.cowhand(&["info", "--output", "json", "disk.qcow2"]).json();
        let encrypt = |info: &Value| {
            let mut encrypt = info["format-specific"]["data"]["encrypt"].clone();
            // Since 9.0.
            let detached = encrypt.as_object_mut().unwrap().remove("detached-header");
            assert!(detached.is_none_or(|detached| !detached.as_bool().unwrap()));
            encrypt
        };
        assert_eq!(encrypt(&ours), encrypt(&theirs));
        assert_eq!((&ours["encrypted"], &theirs["encrypted"]), (&Value::Bool(true), &Value::Bool(true)));
        let human = bench.cowhand(&["info", "disk.qcow2"]).out;
        let lines = [
            "    encrypt:\n",
            "        slots:\n            [0]:\n                active: true\n",
            "        payload offset: ",
        ];
        lines.iter().for_each(|line| assert!(human.contains(line), "{human}"));
    }
}

#[test]
fn nothing_of_an_encrypted_disk_is_written_in_plain_text() {
    let bench = Bench::new();
    let text = b"what nobody may read".repeat(3000);
    fs::write(bench.path("plain.raw"), &text).unwrap();
    let options = format!("{LUKS},cluster_size=4k");
    must(&bench, &["convert", "-f", "raw", "-O", "qcow2", "-o", &options, "plain.raw", "disk.qcow2"]);
    let file = fs::read(bench.path("disk.qcow2")).unwrap();
    assert!(!file.windows(20).any(|window| window == b"what nobody may read"));
    // Compressed clusters are not encrypted, so there are none.
    let words = ["convert", "-c", "-f", "raw", "-O", "qcow2", "-o", &options, "plain.raw", "packed.qcow2"];
    let ran = cowhand(&bench, &words);
    assert!(
        ran.err.contains("an encrypted image takes no compressed clusters: they would not be encrypted"),
        "{}",
        ran.err
    );
    assert!(!bench.path("packed.qcow2").exists());
}

#[test]
fn a_luks_file_is_a_disk_as_it_is_for_qemu() {
    let bench = Bench::new();
    raw(&bench);
    for more in ["", ",cipher-mode=cbc,ivgen-alg=essiv,ivgen-hash-alg=sha256"] {
        let options = format!("key-secret=sec0,iter-time=10{more}");
        qemu_img(&bench, &["convert", "-f", "raw", "-O", "luks", "-o", &options, "plain.raw", "disk.luks"]);
        let drive = "driver=luks,key-secret=sec0,file.filename=disk.luks";
        agree(&bench, drive);
        // The format is known by its header.
        must(&bench, &["compare", "file=disk.luks,key-secret=sec0", "plain.raw"]);
        let (ours, theirs) = (
            bench.cowhand(&["info", "--output", "json", "disk.luks"]).json(),
            bench.qemu("qemu-img", &["info", "--output", "json", "disk.luks"]).json(),
        );
        for field in ["virtual-size", "format", "encrypted"] {
            assert_eq!(ours[field], theirs[field], "{field}");
        }
        let mut specific = theirs["format-specific"].clone();
        // Since 9.0.
        specific["data"]["detached-header"] = Value::Bool(false);
        assert_eq!(ours["format-specific"], specific);
        // What is written here is read there, in parts of sectors too.
        must(
            &bench,
            &["bench", "-w", "-c", "50", "-d", "4", "-s", "700", "--pattern", "7", "--image-opts", drive],
        );
        qemu_io(&bench, drive, &["read -P 7 0 35000"]);
    }
    let ran = bench.cowhand(&["map", "disk.luks"]);
    assert!(
        ran.err.contains("the file is encrypted (LUKS); its password is needed: give key-secret=ID"),
        "{}",
        ran.err
    );
    let ran = bench.cowhand(&["map", "driver=luks,key-secret=sec0,file.filename=plain.raw"]);
    assert!(ran.err.contains("there is no LUKS header: the first six bytes are not LUKS"), "{}", ran.err);
}

#[test]
fn a_served_disk_leaves_no_password_in_logs_and_no_core_dump() {
    let bench = Bench::new();
    raw(&bench);
    must(&bench, &["convert", "-f", "raw", "-O", "qcow2", "-o", LUKS, "plain.raw", "disk.qcow2"]);
    fs::write(bench.path("password"), "abc123").unwrap();
    let log = fs::File::create(bench.path("log")).unwrap();
    let mut server = Command::new(env!("CARGO_BIN_EXE_cowhand"))
        .args(["serve", "--log", "trace", "--socket", "nbd.sock", "--object", "secret,id=sec0,file=password"])
        .arg(drive("disk.qcow2"))
        .current_dir(bench.path(""))
        .stdout(Stdio::piped())
        .stderr(log)
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(server.stdout.take().unwrap()).lines();
    let ready = lines.any(|line| line.unwrap().starts_with("  fio"));
    let limits = fs::read_to_string(format!("/proc/{}/limits", server.id())).unwrap_or_default();
    let uri = format!("nbd+unix:///disk?socket={}", bench.path("nbd.sock").display());
    let same = bench.run(Path::new("qemu-img"), &["compare", "-f", "raw", "-F", "raw", &uri, "plain.raw"]);
    kill_process(Pid::from_child(&server), Signal::TERM).unwrap();
    server.wait().unwrap();
    let log = fs::read_to_string(bench.path("log")).unwrap();
    assert!(ready && same.out == "Images are identical.\n", "{}{log}", same.err);
    let core = limits.lines().find(|line| line.starts_with("Max core file size")).unwrap();
    assert_eq!(core.split_whitespace().collect::<Vec<_>>()[4..6], ["1", "1"], "{core}");
    assert!(!log.contains("abc123"), "{log}");
}

#[test]
fn snapshots_of_an_encrypted_disk_keep_what_they_hold() {
    let bench = Bench::new();
    raw(&bench);
    must(&bench, &["convert", "-f", "raw", "-O", "qcow2", "-o", LUKS, "plain.raw", "disk.qcow2"]);
    let drive = drive("disk.qcow2");
    must(&bench, &["snapshot", "-c", "before", &drive]);
    qemu_io(&bench, &drive, &["write -P 9 101k 200k"]);
    qemu_img(&bench, &["snapshot", "-c", "between", "--image-opts", &drive]);
    must(&bench, &["snapshot", "-a", "before", &drive]);
    agree(&bench, &drive);
    must(&bench, &["check", "--image-opts", &drive]);
}
