//! Keys of LUKS files, added and removed here, by qemu-img and by cryptsetup in turn: each opens the disk with what the others made.

use std::fs;
use std::path::Path;

use serde_json::Value;

use crate::encrypted::{cowhand, must, qemu_img, raw};
use crate::peer::{Bench, Ran};

const OTHER: [&str; 2] = ["--object", "secret,id=sec1,data=other"];
const ADD: &str = "state=active,new-secret=sec1,iter-time=10";

/// The disk by the password `sec0`, as both programs understand it.
const DRIVE: &str = "driver=luks,key-secret=sec0,file.filename=disk.luks";
const DETACHED: &str = "driver=luks,key-secret=sec0,file.filename=data,header.filename=header";

fn amend(bench: &Bench, drive: &str, options: &str, more: &[&str]) -> Ran {
    let words = [&["amend"], &OTHER[..], more, &["-o", options, "--image-opts", drive]].concat();
    cowhand(bench, &words)
}

fn amended(bench: &Bench, drive: &str, options: &str, more: &[&str]) {
    let ran = amend(bench, drive, options, more);
    assert_eq!((ran.code, &*ran.out), (0, ""), "{options}: {}", ran.err);
}

fn refused(bench: &Bench, drive: &str, options: &str, reported: &str) {
    let files = ["disk.luks", "header"].map(|file| fs::read(bench.path(file)).ok());
    let ran = amend(bench, drive, options, &[]);
    assert!(ran.code == 1 && ran.err.contains(reported), "{options}: {}", ran.err);
    let now = ["disk.luks", "header"].map(|file| fs::read(bench.path(file)).ok());
    assert!(now == files, "{options}: nothing is written");
}

/// Whether the passwords open the disk in `file`, for all who can be asked: `(abc123, other)`.
fn opened_by(bench: &Bench, file: &str) -> (bool, bool) {
    let opens = |id: &str, password: &str| {
        fs::write(bench.path("try"), password).unwrap();
        let cryptsetup = ["open", "--test-passphrase", "--key-file", "try", file];
        let theirs = bench.run(Path::new("cryptsetup"), &cryptsetup).code == 0;
        let drive = format!("driver=luks,key-secret={id},file.filename={file}");
        let drive = match file {
            "header" => drive.replace("filename=header", "filename=data,header.filename=header"),
            _ => drive,
        };
        let words = [&["compare", "-q"], &OTHER[..], &["--image-opts", &drive, PLAIN]].concat();
        assert_eq!(cowhand(bench, &words).code == 0, theirs, "{file} {password}");
        theirs
    };
    (opens("sec0", "abc123"), opens("sec1", "other"))
}

const PLAIN: &str = "driver=raw,file.filename=plain.raw";

fn made(bench: &Bench, more: &str) {
    raw(bench);
    let options = format!("key-secret=sec0,iter-time=10{more}");
    must(bench, &["convert", "-f", "raw", "-O", "luks", "-o", &options, "plain.raw", "disk.luks"]);
}

fn active(bench: &Bench) -> Vec<u64> {
    let info = bench.cowhand(&["info", "--output", "json", "disk.luks"]).json();
    let slots = info["format-specific"]["data"]["slots"].as_array().unwrap().clone();
    (0..).zip(slots).filter(|(_, slot)| slot["active"] == Value::Bool(true)).map(|(at, _)| at).collect()
}

#[test]
fn keys_of_a_luks_file_are_added_and_removed_and_the_last_one_stays() {
    let bench = Bench::new();
    made(&bench, ",cipher-mode=cbc,ivgen-alg=essiv,ivgen-hash-alg=sha256");
    amended(&bench, DRIVE, &format!("{ADD},keyslot=6"), &[]);
    assert_eq!((opened_by(&bench, "disk.luks"), active(&bench)), ((true, true), vec![0, 6]));
    // The other tool reads the whole disk by it, and removes it; then it adds one, which is removed here.
    let by_other = DRIVE.replace("sec0", "sec1");
    let peer = |words: &[&str]| qemu_img(&bench, &[&words[..1], &OTHER, &words[1..]].concat());
    assert_eq!(peer(&["compare", "--image-opts", &by_other, PLAIN]), "Images are identical.\n");
    peer(&["amend", "-o", "state=inactive,old-secret=sec1", "--image-opts", DRIVE]);
    assert_eq!((opened_by(&bench, "disk.luks"), active(&bench)), ((true, false), vec![0]));
    peer(&["amend", "-o", &format!("{ADD},keyslot=3"), "--image-opts", DRIVE]);
    assert_eq!(opened_by(&bench, "disk.luks"), (true, true));
    amended(&bench, &by_other, "state=inactive,keyslot=0", &[]);
    assert_eq!((opened_by(&bench, "disk.luks"), active(&bench)), ((false, true), vec![3]));
    refused(&bench, &by_other, "state=inactive,keyslot=3", "no key would be left");
    refused(&bench, &by_other, "state=inactive,old-secret=sec1", "no key would be left");
    // Every slot that a password opens goes with it; direct requests, of words that are no sectors.
    for slot in [1, 7] {
        amended(&bench, &by_other, &format!("{ADD},keyslot={slot}"), &["-t", "none"]);
    }
    amended(&bench, &by_other, "state=inactive,old-secret=sec1", &["--force", "-t", "directsync"]);
    assert_eq!((opened_by(&bench, "disk.luks"), active(&bench)), ((false, false), vec![]));
}

#[test]
fn keys_of_a_detached_header_change_in_its_file() {
    let bench = Bench::new();
    raw(&bench);
    let size = fs::metadata(bench.path("plain.raw")).unwrap().len();
    fs::File::create(bench.path("data")).unwrap().set_len(size).unwrap();
    fs::write(bench.path("password"), "abc123").unwrap();
    let format =
        ["luksFormat", "--type", "luks1", "--header", "header", "data", "-q", "--key-file", "password"];
    let format = [&format[..], &["--pbkdf-force-iterations", "1000"]].concat();
    assert_eq!(bench.run(Path::new("cryptsetup"), &format).code, 0);
    must(&bench, &["convert", "-n", "-f", "raw", "--target-image-opts", "plain.raw", DETACHED]);
    let data = fs::read(bench.path("data")).unwrap();
    amended(&bench, DETACHED, ADD, &[]);
    assert_eq!(opened_by(&bench, "header"), (true, true));
    // The header alone is enough to change its keys.
    let alone = "driver=luks,key-secret=sec1,file.filename=header";
    amended(&bench, alone, "state=inactive,old-secret=sec0", &[]);
    assert_eq!(opened_by(&bench, "header"), (false, true));
    let by_other = DETACHED.replace("sec0", "sec1");
    refused(&bench, &by_other, "state=inactive,keyslot=1", "no key would be left");
    assert!(fs::read(bench.path("data")).unwrap() == data, "the disk is not touched");
}

#[test]
fn what_a_luks_file_cannot_be_amended_to_is_reported_and_nothing_is_written() {
    let bench = Bench::new();
    made(&bench, "");
    let table = [
        (
            DRIVE,
            "size=8M",
            "-o size: of a LUKS file only keys change. Can be amended: iter-time, keyslot, new-secret, old-secret, state",
        ),
        (DRIVE, "encrypt.state=active", "-o encrypt.state: of a LUKS file only keys change"),
        (DRIVE, "keyslot=8", "-o keyslot is \"8\"; allowed: 0, 1, 2, 3, 4, 5, 6, 7"),
        (DRIVE, "keyslot=1", "-o *: state=active adds a key, state=inactive removes one"),
        (DRIVE, "state=active", "-o state=active: it takes new-secret=ID"),
        (DRIVE, "state=inactive,keyslot=1", "key slot 1 has no key"),
        (DRIVE, "state=inactive,old-secret=sec1", "the password of the key to be removed opens no key slot"),
        (DRIVE, "state=active,new-secret=sec1,keyslot=0", "key slot 0 has a key; remove it first"),
        (DRIVE, "state=active,new-secret=nobody", "there is no secret \"nobody\""),
        (&DRIVE.replace("sec0", "sec1"), "state=inactive,keyslot=0", "the password opens no key slot"),
        (
            "driver=luks,file.filename=disk.luks",
            "state=inactive,keyslot=0",
            "its password is needed: give key-secret=ID",
        ),
        (
            "driver=raw,header=disk.luks,file=plain.raw",
            "state=inactive,keyslot=0",
            "option header is for luks images",
        ),
    ];
    for (drive, options, reported) in table {
        refused(&bench, drive, options, reported);
    }
    let help = bench.cowhand(&["amend", "-f", "luks", "-o", "help"]).out;
    assert!(
        help.starts_with("Amend options of luks") && help.contains("\n  state=active|inactive "),
        "{help}"
    );
}

/// Its file is locked.
#[test]
fn keys_of_a_disk_in_use_are_not_changed() {
    let bench = Bench::new();
    made(&bench, "");
    let mut user = std::process::Command::new("qemu-io")
        .args(["--object", "secret,id=sec0,data=abc123", "--image-opts", DRIVE])
        .current_dir(bench.path(""))
        .stdin(std::process::Stdio::piped())
        .stdout(std::process::Stdio::piped())
        .spawn()
        .unwrap();
    // Its prompt comes when the disk is open.
    let mut prompt = [0; 7];
    std::io::Read::read_exact(user.stdout.as_mut().unwrap(), &mut prompt).unwrap();
    assert_eq!(&prompt, b"qemu-io");
    refused(&bench, DRIVE, ADD, "the file is in use by qemu-io");
    drop(user.stdin.take());
    user.wait().unwrap();
    amended(&bench, DRIVE, ADD, &[]);
}
