//! LUKS files that are made here, beside those of qemu-img and cryptsetup.

use std::fs;
use std::io::Read;
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt};
use std::path::Path;
use std::process::{Command, Stdio};

use crate::peer::{Bench, Ran};

const SECRET: [&str; 2] = ["--object", "secret,id=sec0,file=password"];
const PASSWORD: &str = "correct horse";

fn bench() -> Bench {
    let bench = Bench::new();
    fs::write(bench.path("password"), PASSWORD).unwrap();
    let bytes: Vec<u8> = (0..1_500_000_u32).map(|at| (at / 512 * 7 + at % 11) as u8).collect();
    let file = fs::File::create(bench.path("plain.raw")).unwrap();
    file.set_len(4 << 20).unwrap();
    file.write_all_at(&bytes, 100 << 10).unwrap();
    bench
}

fn cowhand(bench: &Bench, words: &[&str]) -> Ran {
    bench.cowhand(&[&words[..1], &SECRET, &words[1..]].concat())
}

fn must(bench: &Bench, words: &[&str]) -> String {
    let ran = cowhand(bench, words);
    assert_eq!(ran.code, 0, "{words:?}: {}{}", ran.out, ran.err);
    ran.out
}

fn qemu(bench: &Bench, tool: &str, words: &[&str]) -> String {
    bench.qemu(tool, &[&words[..1], &SECRET, &words[1..]].concat()).out
}

fn drive(name: &str) -> String {
    format!("driver=luks,key-secret=sec0,file.filename={name}")
}

/// Whether cryptsetup can open it with the password in this file.
fn cryptsetup_opens(bench: &Bench, image: &str, password: &str) -> bool {
    let words = ["open", "--test-passphrase", "--key-file", password, image];
    bench.run(Path::new("cryptsetup"), &words).code == 0
}

#[test]
fn what_is_made_here_qemu_and_cryptsetup_open() {
    let bench = bench();
    fs::write(bench.path("second"), "battery staple").unwrap();
    let options = [
        "",
        ",cipher-alg=aes-128,hash-alg=sha1",
        ",cipher-alg=aes-192,ivgen-alg=plain,hash-alg=sha512",
        ",cipher-mode=cbc,ivgen-alg=essiv,ivgen-hash-alg=sha256",
        ",cipher-mode=cbc,ivgen-alg=plain64,ivgen-hash-alg=md5",
    ];
    for more in options {
        let options = format!("key-secret=sec0,iter-time=10{more}");
        must(&bench, &["convert", "-f", "raw", "-O", "luks", "-o", &options, "plain.raw", "disk.luks"]);
        let compare = ["compare", "--image-opts", &drive("disk.luks"), "driver=raw,file.filename=plain.raw"];
        assert_eq!(must(&bench, &compare), "Images are identical.\n", "{more}");
        assert_eq!(qemu(&bench, "qemu-img", &compare), "Images are identical.\n", "{more}");
        // The kernel, which ciphers for cryptsetup, has no XTS with keys of 192 bits.
        let is_known = !more.contains("aes-192");
        assert_eq!(cryptsetup_opens(&bench, "disk.luks", "password"), is_known, "{more}");
        assert!(!cryptsetup_opens(&bench, "disk.luks", "second"), "{more}");
        let dump = bench.run(Path::new("cryptsetup"), &["luksDump", "disk.luks"]).out;
        assert!(dump.contains("Version:       \t1\n") && dump.contains("Key Slot 0: ENABLED"), "{dump}");
    }
    // A key that cryptsetup adds opens the disk here, and the first one still does.
    let add = [
        "luksAddKey",
        "--batch-mode",
        "--pbkdf-force-iterations",
        "1000",
        "--key-file",
        "password",
        "disk.luks",
        "second",
    ];
    let added = bench.run(Path::new("cryptsetup"), &add);
    assert_eq!(added.code, 0, "{}", added.err);
    for password in ["password", "second"] {
        let object = format!("secret,id=sec0,file={password}");
        let words = [
            "compare",
            "--object",
            &object,
            "--image-opts",
            &drive("disk.luks"),
            "driver=raw,file.filename=plain.raw",
        ];
        assert_eq!(bench.cowhand(&words).out, "Images are identical.\n", "{password}");
    }
}

#[test]
fn a_new_file_has_the_length_that_was_measured_and_the_size_that_was_asked_for() {
    let bench = bench();
    let host_bytes =
        |name: &str| std::os::unix::fs::MetadataExt::blocks(&fs::metadata(bench.path(name)).unwrap()) * 512;
    for preallocation in ["off", "falloc", "full"] {
        let options = format!("key-secret=sec0,iter-time=10,preallocation={preallocation}");
        must(&bench, &["create", "-q", "-f", "luks", "-o", &options, "new.luks", "5000001"]);
        let measured = must(&bench, &["measure", "-O", "luks", "-o", &options, "--size", "5000001"]);
        let length = fs::metadata(bench.path("new.luks")).unwrap().len();
        assert_eq!(measured, format!("required size: {length}\nfully allocated size: {length}\n"));
        for info in [
            bench.qemu("qemu-img", &["info", "--output", "json", "new.luks"]),
            cowhand(&bench, &["info", "--output", "json", "new.luks"]),
        ] {
            assert_eq!(info.json()["virtual-size"], 5_000_192);
        }
        assert_eq!(host_bytes("new.luks") > 5_000_000, preallocation != "off", "{preallocation}");
    }
}

#[test]
fn a_disk_grows_and_shrinks_as_with_qemu() {
    let bench = bench();
    let options = "key-secret=sec0,iter-time=10";
    must(&bench, &["convert", "-f", "raw", "-O", "luks", "-o", options, "plain.raw", "disk.luks"]);
    fs::copy(bench.path("disk.luks"), bench.path("theirs.luks")).unwrap();
    for (size, more) in [("6M", &[][..]), ("3M", &["--shrink"]), ("5M", &["--preallocation", "full"])] {
        let drives = ["disk.luks", "theirs.luks"].map(drive);
        let [ours, theirs] =
            drives.each_ref().map(|drive| [&["resize"], more, &["--image-opts", drive, size]].concat());
        must(&bench, &ours);
        qemu(&bench, "qemu-img", &theirs);
        let length = |name: &str| fs::metadata(bench.path(name)).unwrap().len();
        assert_eq!(length("disk.luks"), length("theirs.luks"), "{size}");
    }
    // What was there is there, for both; what was preallocated reads as zeroes.
    let read = ["--image-opts", "-c", "read -P 0 3M 2M", &drive("disk.luks")];
    let ran = bench.qemu("qemu-io", &[&SECRET[..], &read].concat());
    assert!(!ran.out.contains("failed"), "{}", ran.out);
    let ran = cowhand(
        &bench,
        &["resize", "--preallocation", "metadata", "--image-opts", &drive("disk.luks"), "6M"],
    );
    assert!(ran.err.contains("a luks image has no metadata that could be preallocated"), "{}", ran.err);
    for file in ["plain.raw", "disk.luks", "theirs.luks"] {
        if file == "plain.raw" {
            fs::File::options().write(true).open(bench.path(file)).unwrap().set_len(3 << 20).unwrap();
        } else {
            must(&bench, &["resize", "-q", "--shrink", "--image-opts", &drive(file), "3M"]);
            let compare = ["compare", "--image-opts", &drive(file), "driver=raw,file.filename=plain.raw"];
            assert_eq!(must(&bench, &compare), "Images are identical.\n", "{file}");
        }
    }
}

#[test]
fn what_a_luks_file_cannot_be_made_with_is_refused_and_leaves_nothing() {
    let bench = bench();
    let table: [(&[&str], &str); 7] = [
        (&["create", "-f", "luks", "x.luks", "1M"], "a LUKS file needs -o key-secret=ID"),
        (&["create", "-f", "luks", "-o", "key-secret=other", "x.luks", "1M"], "there is no secret \"other\""),
        (&["create", "-f", "luks", "-o", "key-secret=sec0", "x.luks"], "the size of x.luks is not given"),
        (
            &["create", "-f", "luks", "-o", "key-secret=sec0", "x.luks", "8E"],
            "the disk has 9223372036854775808 bytes",
        ),
        (
            &["create", "-f", "luks", "-o", "key-secret=sec0", "-u", "-b", "b", "-F", "raw", "x.luks", "1M"],
            "a luks image has no backing file",
        ),
        (
            &["convert", "-c", "-O", "luks", "-o", "key-secret=sec0", "plain.raw", "x.luks"],
            "a luks image has no compressed clusters",
        ),
        (&["dd", "-O", "luks", "if=plain.raw", "of=x.luks"], "dd makes no LUKS file"),
    ];
    for (words, why) in table {
        let ran = cowhand(&bench, words);
        assert!(ran.code == 1 && ran.err.contains(why), "{words:?}: {}", ran.err);
        assert!(!bench.path("x.luks").exists(), "{words:?}");
    }
}

/// A user without rights, as setpriv has it.
const USER: [&str; 3] = ["--reuid=65534", "--regid=65534", "--clear-groups"];

/// Runs cowhand as that user, with a hard limit of 0 on core files, until it waits for commands with its disk open. Gives the owner of its
/// files in /proc: root, if the process is never dumped (proc(5)).
fn owner_in_proc(bench: &Bench, words: &[&str]) -> u32 {
    let mut user = Command::new("setpriv")
        .args(USER)
        .args(["prlimit", "--core=0:0", "./cowhand", "io", "-r"])
        .args(words)
        .current_dir(bench.path(""))
        .env("HOME", "/none")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    // Its prompt comes when the disk is open.
    let mut prompt = [0; 7];
    let opened = user.stdout.as_mut().unwrap().read_exact(&mut prompt);
    let owner = fs::metadata(format!("/proc/{}/environ", user.id())).map(|file| file.uid());
    drop(user.stdin.take());
    let status = user.wait().unwrap();
    assert!(opened.is_ok() && status.success(), "{words:?}: {status}");
    owner.unwrap()
}

/// A hard limit of 0 (limits.conf, `LimitCORE=0`, containers) cannot be raised to 1, at which no program takes a dump: every password was
/// refused.
#[test]
fn where_core_files_are_forbidden_an_encrypted_disk_opens_and_its_process_is_never_dumped() {
    let bench = bench();
    let qcow2 = "encrypt.format=luks,encrypt.key-secret=sec0,encrypt.iter-time=10";
    let luks = "key-secret=sec0,iter-time=10";
    for (format, options, name) in [("luks", luks, "disk.luks"), ("qcow2", qcow2, "disk.qcow2")] {
        qemu(&bench, "qemu-img", &["create", "-q", "-f", format, "-o", options, name, "1M"]);
    }
    // All that the user needs, wherever the program was built.
    let program = bench.path("cowhand");
    let built = env!("CARGO_BIN_EXE_cowhand");
    fs::hard_link(built, &program).or_else(|_| fs::copy(built, &program).map(drop)).unwrap();
    for name in ["", "password", "plain.raw", "disk.luks", "disk.qcow2"] {
        fs::set_permissions(bench.path(name), fs::Permissions::from_mode(0o755)).unwrap();
    }
    assert_eq!(owner_in_proc(&bench, &["-f", "raw", "plain.raw"]), 65534, "a process without a password");
    let drives =
        [drive("disk.luks"), "driver=qcow2,encrypt.key-secret=sec0,file.filename=disk.qcow2".to_owned()];
    for drive in drives {
        assert_eq!(owner_in_proc(&bench, &[&SECRET[..], &["--image-opts", &drive]].concat()), 0, "{drive}");
    }
}
