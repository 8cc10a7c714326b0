//! LUKS2 files, and LUKS headers in files of their own, beside cryptsetup and QEMU. cryptsetup ciphers a whole file by itself
//! (`reencrypt --encrypt`) and back (`--decrypt`), without device mapper: what it made is read here, and what was written here it reads.

use std::fs;
use std::path::Path;

use serde_json::Value;

use crate::encrypted::{cowhand, must, qemu_img, qemu_io, raw};
use crate::peer::{Bench, Ran};

/// The disk in `data`, whose header is in `header`, as both programs understand it.
const DETACHED: &str = "driver=luks,key-secret=sec0,file.filename=data,header.filename=header";
const FAST: [&str; 4] = ["--pbkdf", "pbkdf2", "--pbkdf-force-iterations", "1000"];

fn cryptsetup(bench: &Bench, words: &[&str]) -> Ran {
    fs::write(bench.path("password"), "abc123").unwrap();
    let ran = bench.run(Path::new("cryptsetup"), &[words, &["-q", "--key-file", "password"]].concat());
    assert_eq!(ran.code, 0, "{words:?}: {}", ran.err);
    ran
}

/// A file called `header` with room for one, and the plain disk in `data`, ciphered by cryptsetup.
fn encrypt(bench: &Bench, options: &[&str]) {
    fs::File::create(bench.path("header")).unwrap().set_len(16 << 20).unwrap();
    fs::copy(bench.path("plain.raw"), bench.path("data")).unwrap();
    let words = ["reencrypt", "--encrypt", "--type", "luks2", "--header", "header", "data"];
    cryptsetup(bench, &[&words, options].concat());
}

/// Writes 35000 bytes in parts of sectors, from the start on.
fn write_parts(bench: &Bench, drive: &str) {
    let words = ["bench", "-w", "-c", "50", "-d", "4", "-s", "700", "--pattern", "7", "--image-opts", drive];
    must(bench, &words);
}

/// The plain disk with what [`write_parts`] wrote.
fn written(bench: &Bench) -> Vec<u8> {
    let mut expected = fs::read(bench.path("plain.raw")).unwrap();
    expected[..35_000].fill(7);
    expected
}

#[test]
fn what_cryptsetup_ciphers_is_read_and_what_is_written_it_deciphers() {
    let bench = Bench::new();
    raw(&bench);
    let table = [
        ("aes-xts-plain64", "512", "512"),
        ("aes-xts-plain64", "512", "4096"),
        ("aes-xts-plain64", "256", "2048"),
        ("aes-cbc-essiv:sha256", "192", "512"),
        ("aes-cbc-plain64", "128", "512"),
        ("aes-xts-essiv:sha256", "256", "4096"),
        ("aes-cbc-plain", "256", "512"),
    ];
    for (at, (cipher, key_bits, sector)) in table.into_iter().enumerate() {
        encrypt(&bench, &[&["-c", cipher, "-s", key_bits, "--sector-size", sector], &FAST[..]].concat());
        must(&bench, &["compare", "--image-opts", DETACHED, "driver=raw,file.filename=plain.raw"]);
        let info = bench.cowhand(&["info", "--output", "json", "driver=luks,file=data,header=header"]).json();
        let reported = &info["format-specific"]["data"];
        assert_eq!(reported["sector-size"].to_string(), sector);
        assert_eq!(
            (&info["virtual-size"], &reported["detached-header"]),
            (&Value::from(4 << 20), &Value::Bool(true))
        );
        write_parts(&bench, DETACHED);
        // Deciphering takes seconds, for cryptsetup syncs what it does; one of each mode and size shows it.
        if at < 4 {
            let words = ["reencrypt", "--decrypt", "--force-offline-reencrypt", "--header", "header", "data"];
            cryptsetup(&bench, &words);
            assert!(fs::read(bench.path("data")).unwrap() == written(&bench), "{cipher} {key_bits} {sector}");
        }
    }
}

/// The header in front of the data, key slots of every kind, each in its own slot and with its own password.
#[test]
fn every_key_slot_of_a_luks2_file_opens_it() {
    let bench = Bench::new();
    raw(&bench);
    let plain = fs::read(bench.path("plain.raw")).unwrap();
    fs::write(bench.path("disk.luks"), &plain).unwrap();
    fs::File::options()
        .write(true)
        .open(bench.path("disk.luks"))
        .unwrap()
        .set_len((4 << 20) + (32 << 20))
        .unwrap();
    let reduced = ["reencrypt", "--encrypt", "--type", "luks2", "--reduce-device-size", "32M", "disk.luks"];
    let argon2 = ["--pbkdf-memory", "32768", "--pbkdf-parallel", "2", "--pbkdf-force-iterations", "4"];
    cryptsetup(&bench, &[&reduced, &["--sector-size", "4096", "--pbkdf", "argon2id"][..], &argon2].concat());
    let slots: [(&str, &[&str]); 3] = [
        ("3", &["--pbkdf", "argon2i"]),
        ("17", &["--pbkdf", "pbkdf2", "--hash", "sha512"]),
        ("31", &["--pbkdf", "pbkdf2", "--hash", "sha1"]),
    ];
    for (slot, kind) in slots {
        fs::write(bench.path("new"), format!("slot {slot}")).unwrap();
        let costs = if kind[1] == "argon2i" { &argon2[..] } else { &["--pbkdf-force-iterations", "1000"] };
        let words = [&["luksAddKey", "--key-slot", slot], kind, costs, &["disk.luks", "new"]].concat();
        cryptsetup(&bench, &words);
    }
    let before = fs::read(bench.path("disk.luks")).unwrap();
    let opens = |password: &str| {
        let object = format!("secret,id=s,data={password}");
        let words =
            ["compare", "--object", &object, "file=disk.luks,key-secret=s", "file=plain.raw,format=raw"];
        bench.cowhand(&words)
    };
    // The disk is longer than the plain one, so the two differ at the end: here it matters that it opens.
    for password in ["abc123", "slot 3", "slot 17", "slot 31"] {
        let ran = opens(password);
        assert!(!ran.err.contains("password") && ran.code <= 1, "{password}: {}", ran.err);
    }
    let wrong = opens("slot 4");
    assert!(wrong.code != 0 && wrong.err.contains("the password opens no key slot"), "{}", wrong.err);
    must(&bench, &["convert", "-O", "raw", "file=disk.luks,key-secret=sec0", "ours.raw"]);
    assert!(fs::read(bench.path("ours.raw")).unwrap()[..plain.len()] == plain);
    assert!(fs::read(bench.path("disk.luks")).unwrap() == before, "nothing is written to read it");
    let info = bench.cowhand(&["info", "--output", "json", "disk.luks"]).json();
    let reported: Vec<_> = info["format-specific"]["data"]["slots"].as_array().unwrap().iter().collect();
    let kinds: Vec<_> =
        reported.iter().map(|slot| (slot["slot"].as_u64().unwrap(), slot["kdf"].as_str().unwrap())).collect();
    assert_eq!(kinds, [(0, "argon2id"), (3, "argon2i"), (17, "pbkdf2"), (31, "pbkdf2")]);
    assert_eq!(reported[0]["memory"], 32 << 20);
    // A first copy that was overwritten: the second one is read, and that is said. cryptsetup mends it, and reads what was written here.
    let file = fs::File::options().write(true).open(bench.path("disk.luks")).unwrap();
    std::os::unix::fs::FileExt::write_all_at(&file, &[0; 512], 0).unwrap();
    let drive = "driver=luks,key-secret=sec0,file.filename=disk.luks";
    write_parts(&bench, drive);
    let ran = cowhand(&bench, &["convert", "-O", "raw", drive, "ours.raw"]);
    assert!(
        ran.code == 0 && fs::read(bench.path("ours.raw")).unwrap()[..plain.len()] == written(&bench),
        "{}",
        ran.err
    );
    cryptsetup(&bench, &["repair", "disk.luks"]);
    must(&bench, &["compare", "file=disk.luks,key-secret=sec0", "file=ours.raw,format=raw"]);
    // Its keys are cryptsetup's to change.
    let before = fs::read(bench.path("disk.luks")).unwrap();
    let ran = cowhand(&bench, &["amend", "-o", "state=inactive,keyslot=3", "file=disk.luks,key-secret=sec0"]);
    let reported = "is of version 2, whose key slots are only read here; cryptsetup luksAddKey";
    assert!(ran.code == 1 && ran.err.contains(reported), "{}", ran.err);
    assert!(fs::read(bench.path("disk.luks")).unwrap() == before, "nothing is written");
}

/// The error names the feature of cryptsetup that is not supported, and `info` shows what it can.
#[test]
fn luks2_files_that_are_not_supported_are_reported_by_name() {
    let bench = Bench::new();
    raw(&bench);
    fs::File::create(bench.path("disk.luks")).unwrap().set_len(20 << 20).unwrap();
    let words = ["luksFormat", "--type", "luks2", "disk.luks", "-c", "aes-cbc-plain64", "-s", "256"];
    cryptsetup(&bench, &[&words[..], &["--sector-size", "4096"], &FAST].concat());
    let ran = cowhand(&bench, &["map", "file=disk.luks,key-secret=sec0"]);
    let reported = "the sector size \"4096\" is not supported; supported: 512 in CBC mode";
    assert!(ran.code == 1 && ran.err.contains(reported), "{}", ran.err);
    // Encrypting began and is not done: only cryptsetup knows which half is ciphered.
    fs::File::create(bench.path("header")).unwrap().set_len(16 << 20).unwrap();
    fs::copy(bench.path("plain.raw"), bench.path("data")).unwrap();
    let words = ["reencrypt", "--encrypt", "--init-only", "--type", "luks2", "--header", "header", "data"];
    cryptsetup(&bench, &[&words, &FAST[..]].concat());
    for drive in
        [DETACHED, &DETACHED.replace("file.filename=data,header.filename=header", "file.filename=header")]
    {
        let ran = cowhand(&bench, &["map", "--image-opts", drive]);
        assert!(
            ran.code == 1 && ran.err.contains("cryptsetup reencrypt --resume-only ends that"),
            "{}",
            ran.err
        );
    }
}

/// QEMU takes `header=` since 9.0.
fn qemu_has_detached_headers(bench: &Bench) -> bool {
    let version = bench.qemu("qemu-img", &["--version"]).out;
    let major: u32 = version.split([' ', '.']).find_map(|word| word.parse().ok()).unwrap();
    major >= 9
}

#[test]
fn a_detached_luks1_header_is_one_disk_for_cryptsetup_qemu_and_here() {
    let bench = Bench::new();
    raw(&bench);
    let size = fs::metadata(bench.path("plain.raw")).unwrap().len();
    let by_cryptsetup = [("aes-xts-plain64", "512"), ("aes-cbc-essiv:sha256", "256")];
    for made in by_cryptsetup.into_iter().map(Some).chain([None]) {
        fs::File::create(bench.path("data")).unwrap().set_len(size).unwrap();
        match made {
            Some((cipher, key_bits)) => {
                let words = [
                    "luksFormat",
                    "--type",
                    "luks1",
                    "--header",
                    "header",
                    "data",
                    "-c",
                    cipher,
                    "-s",
                    key_bits,
                ];
                cryptsetup(&bench, &[&words[..], &FAST[2..]].concat());
            }
            None => {
                let options = "key-secret=sec0,iter-time=10,detached-header=on";
                must(&bench, &["create", "-f", "luks", "-o", options, "header"]);
                cryptsetup(
                    &bench,
                    &["open", "--test-passphrase", "--type", "luks1", "--header", "header", "data"],
                );
            }
        }
        let header = fs::read(bench.path("header")).unwrap();
        // Ciphered here.
        let words = ["convert", "-n", "-f", "raw", "--target-image-opts", "plain.raw", DETACHED];
        must(&bench, &words);
        write_parts(&bench, DETACHED);
        assert!(fs::read(bench.path("header")).unwrap() == header, "nothing of a header is written");
        let expected = written(&bench);
        fs::write(bench.path("expected.raw"), &expected).unwrap();
        // For every QEMU, with the header in front of the data: it says where the data begins, in sectors.
        let start = header.len().next_multiple_of(512);
        let mut joined = header.clone();
        joined[104..108].copy_from_slice(&u32::try_from(start / 512).unwrap().to_be_bytes());
        joined.resize(start, 0);
        joined.extend(fs::read(bench.path("data")).unwrap());
        fs::write(bench.path("joined"), joined).unwrap();
        let same = |drive: &str| {
            let words = ["compare", "--image-opts", drive, "driver=raw,file.filename=expected.raw"];
            assert_eq!(qemu_img(&bench, &words), "Images are identical.\n", "{drive}");
            assert_eq!(must(&bench, &words), "Images are identical.\n", "{drive}");
        };
        same("driver=luks,key-secret=sec0,file.filename=joined");
        if qemu_has_detached_headers(&bench) {
            same(DETACHED);
            qemu_io(&bench, DETACHED, &["write -P 9 100k 3k"]);
            same_as_theirs(&bench);
        }
        let ran = cowhand(&bench, &["map", "file=header,key-secret=sec0"]);
        assert!(ran.err.contains("give driver=luks,file=DATA,header=HEADER"), "{}", ran.err);
    }
    let ran = cowhand(&bench, &["map", "file=plain.raw,driver=raw,header=header"]);
    assert!(ran.err.contains("option header is for luks images, and this image is raw"), "{}", ran.err);
    let ran =
        cowhand(&bench, &["map", "--image-opts", &DETACHED.replace("filename=header", "filename=plain.raw")]);
    assert!(ran.err.contains("there is no LUKS header"), "{}", ran.err);
}

fn same_as_theirs(bench: &Bench) {
    qemu_img(bench, &["convert", "-O", "raw", "--image-opts", DETACHED, "theirs.raw"]);
    must(bench, &["compare", "--image-opts", DETACHED, "driver=raw,file.filename=theirs.raw"]);
    let info = |program: &str| {
        let drive = "driver=luks,file.filename=data,header.filename=header";
        match program {
            "qemu-img" => bench.qemu(program, &["info", "--output", "json", "--image-opts", drive]).json(),
            _ => bench.cowhand(&["info", "--output", "json", drive]).json(),
        }
    };
    let (ours, theirs) = (info("cowhand"), info("qemu-img"));
    for field in ["virtual-size", "actual-size", "format", "encrypted", "format-specific"] {
        assert_eq!(ours[field], theirs[field], "{field}");
    }
    let names = |info: &Value| {
        let children = info["children"].as_array().unwrap();
        children
            .iter()
            .map(|child| (child["name"].clone(), child["info"]["filename"].clone()))
            .collect::<Vec<_>>()
    };
    assert_eq!(names(&ours), names(&theirs));
}
