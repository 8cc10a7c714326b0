//! blockdev-create: what a server makes is what QEMU's storage daemon makes, and what fails leaves no image.

use std::fs;
use std::path::Path;

use black_box::peer::{assert_clean, qemu_img, qemu_io_ok};
use black_box::qmp::Qmp;
use black_box::{Run, Scratch};
use serde_json::{Value, json};

use super::backups::Daemon;
use super::{Steered, create, qcow2};

/// Waits until the only job has ended; gives its statuses.
pub(super) fn concluded(qmp: &mut Qmp, id: &str) -> Vec<String> {
    let mut statuses = Vec::new();
    while statuses.last().is_none_or(|status| status != "concluded") {
        let data = qmp.event("JOB_STATUS_CHANGE")["data"].take();
        assert_eq!(data["id"], id);
        statuses.push(data["status"].as_str().expect("a text").to_owned());
    }
    statuses
}

/// Has `options` made, and gives the statuses of the job and what is reported of it in the end.
fn made(qmp: &mut Qmp, options: &Value) -> (Vec<String>, Value) {
    qmp.ok("blockdev-create", json!({ "job-id": "make", "options": options }));
    let statuses = concluded(qmp, "make");
    let mut jobs = qmp.ok("query-jobs", json!({}));
    assert_eq!(qmp.ok("query-block-jobs", json!({})), json!([]), "it is of no disk");
    assert_eq!(
        qmp.ask("block-job-dismiss", json!({ "id": "make" })).expect_err("no disk").0,
        "DeviceNotActive"
    );
    qmp.ok("job-dismiss", json!({ "id": "make" }));
    assert_eq!(qmp.event("JOB_STATUS_CHANGE")["data"]["status"], "null");
    (statuses, jobs[0].take())
}

fn is_made(qmp: &mut Qmp, options: &Value) {
    let (_, job) = made(qmp, options);
    assert_eq!(job["error"], Value::Null, "{options}: {job}");
}

fn fails(qmp: &mut Qmp, options: &Value) -> String {
    let (_, job) = made(qmp, options);
    job["error"].as_str().unwrap_or_else(|| panic!("{options} should fail: {job}")).to_owned()
}

fn file(name: &str, path: &str) -> Value {
    json!({ "driver": "file", "node-name": name, "filename": path })
}

/// What qemu-img says of an image, but for its place and its space.
fn looks(path: &str) -> Value {
    let mut info = qemu_img(["info", "-U", "--output=json", path]).json();
    let members = info.as_object_mut().expect("an object");
    for place in ["filename", "actual-size", "full-backing-filename", "backing-filename", "children"] {
        members.remove(place);
    }
    info["format-specific"]["data"]["data-file"].take();
    info
}

/// The same options, made by both: images look alike, jobs go through the same states.
#[test]
fn created_images_are_those_of_qemus_storage_daemon() {
    let steered = Steered::new();
    let scratch = &steered.scratch;
    let (_daemon, mut theirs) = Daemon::with(&scratch.file("daemon"), &create(scratch, "b.qcow2", "64M"));
    let mut ours = steered.talk();
    let base = create(scratch, "base", "1M");
    let table = [
        json!({}),
        json!({ "version": "v2", "refcount-bits": 16 }),
        json!({ "cluster-size": 16384, "extended-l2": true, "compression-type": "zstd" }),
        json!({ "lazy-refcounts": true, "refcount-bits": 1, "preallocation": "metadata" }),
        json!({ "preallocation": "falloc" }),
        json!({ "preallocation": "full", "cluster-size": 4096 }),
        json!({ "backing-file": base, "backing-fmt": "qcow2" }),
        json!({ "data-file": "data", "data-file-raw": true }),
        json!({ "data-file": "data" }),
        // These fail.
        json!({ "version": "v2", "lazy-refcounts": true }),
        json!({ "cluster-size": 1000 }),
        json!({ "refcount-bits": 3 }),
        json!({ "size": 1000 }),
        json!({ "size": u64::MAX - 511 }),
        json!({ "size": 1_u64 << 63 }),
        json!({ "data-file-raw": true }),
        json!({ "file": "nothing" }),
        json!({ "backing-fmt": "raw" }),
        json!({ "data-file": "data", "data-file-raw": true, "backing-file": base }),
    ];
    let (mut whole, mut failed) = (0, 0);
    for (place, more) in table.iter().enumerate() {
        let mut seen = Vec::new();
        for (qmp, side) in [(&mut ours, "ours"), (&mut theirs, "theirs")] {
            let (path, data) =
                (scratch.name(&format!("{place}-{side}")), scratch.name(&format!("{place}-{side}.raw")));
            for (name, path) in [("file", &path), ("data", &data)] {
                is_made(qmp, &json!({ "driver": "file", "filename": path, "size": 0 }));
                qmp.ok("blockdev-add", file(name, path));
            }
            let mut options = json!({ "driver": "qcow2", "file": "file", "size": 8 << 20 });
            for (name, value) in more.as_object().expect("an object") {
                options[name] = value.clone();
            }
            let (statuses, mut job) = made(qmp, &options);
            for name in ["file", "data"] {
                qmp.ok("blockdev-del", json!({ "node-name": name }));
            }
            let is_whole = job["error"].is_null();
            // Words differ.
            if !is_whole {
                job["error"] = json!("some");
            }
            let image = is_whole.then(|| looks(&path));
            if is_whole {
                assert_clean(Path::new(&path));
                let length = std::fs::metadata(&data).expect("a file").len();
                seen.push((statuses, job, image, Some(length)));
            } else {
                seen.push((statuses, job, image, None));
            }
        }
        assert_eq!(seen[0], seen[1], "{more}");
        match seen[0].3 {
            Some(_) => whole += 1,
            None => failed += 1,
        }
    }
    assert_eq!((whole, failed), (9, 10));
}

/// Encrypted images are opened with the password that they were made with, by QEMU's tools too.
#[test]
fn encrypted_images_open_with_their_password() {
    let steered = Steered::new();
    let (scratch, mut qmp) = (&steered.scratch, steered.talk());
    qmp.ok("object-add", json!({ "qom-type": "secret", "id": "key", "data": "of iron" }));
    let cipher = json!({ "key-secret": "key", "cipher-alg": "aes-128", "iter-time": 10,
        "ivgen-alg": "plain64", "ivgen-hash-alg": "md5" });
    for format in ["luks", "qcow2"] {
        let path = scratch.name(format);
        is_made(&mut qmp, &json!({ "driver": "file", "filename": path, "size": 0 }));
        // The file is described where it is used.
        let mut options =
            json!({ "driver": format, "size": 1 << 20, "file": { "driver": "file", "filename": path } });
        let mut node =
            json!({ "driver": format, "node-name": "n", "file": { "driver": "file", "filename": path } });
        if format == "luks" {
            options
                .as_object_mut()
                .expect("an object")
                .extend(cipher.as_object().expect("an object").clone());
            node["key-secret"] = json!("key");
        } else {
            options["encrypt"] = cipher.clone();
            options["encrypt"]["format"] = json!("luks");
            node["encrypt"] = json!({ "format": "luks", "key-secret": "key" });
        }
        is_made(&mut qmp, &options);
        qmp.ok("blockdev-add", node);
        qmp.ok("blockdev-del", json!({ "node-name": "n" }));
        let key = if format == "luks" { "key-secret" } else { "encrypt.format=luks,encrypt.key-secret" };
        let image = format!("driver={format},{key}=key,file.filename={path}");
        let io = Run::new("qemu-io").args(["--object", "secret,id=key,data=of iron", "--image-opts", &image]);
        let said = io.args(["-c", "write -P 7 0 1M", "-c", "read -P 7 0 1M"]).ok();
        assert!(said.contains("read 1048576/1048576"), "{said}");
        let missing = json!({ "driver": format, "size": 512, "file": { "driver": "file", "filename": path },
            "key-secret": "none" });
        if format == "luks" {
            assert!(fails(&mut qmp, &missing).contains("\"none\""));
            qemu_img(["info", "-f", "luks", &path]).ok();
        }
    }
}

/// The header in one file, and another one as long as the disk.
#[test]
fn a_luks_header_may_have_a_file_of_its_own() {
    let steered = Steered::new();
    let (scratch, mut qmp) = (&steered.scratch, steered.talk());
    qmp.ok("object-add", json!({ "qom-type": "secret", "id": "key", "data": "of iron" }));
    let file = |name: &str| json!({ "driver": "file", "filename": scratch.name(name) });
    for name in ["header", "data"] {
        is_made(&mut qmp, &json!({ "driver": "file", "filename": scratch.name(name), "size": 0 }));
    }
    let options = json!({ "driver": "luks", "size": 1 << 20, "key-secret": "key", "iter-time": 10,
        "file": file("data"), "header": file("header") });
    is_made(&mut qmp, &options);
    assert_eq!(fs::metadata(scratch.name("data")).expect("a file").len(), 1 << 20);
    let node = json!({ "driver": "luks", "node-name": "n", "key-secret": "key", "file": file("data"),
        "header": file("header") });
    qmp.ok("blockdev-add", node);
    qmp.ok("blockdev-del", json!({ "node-name": "n" }));
    // The header alone; its data may be anywhere.
    let alone = json!({ "driver": "luks", "size": 0, "key-secret": "key", "iter-time": 10, "header": file("header") });
    is_made(&mut qmp, &alone);
    assert!(fails(&mut qmp, &json!({ "driver": "luks", "size": 0, "key-secret": "key" })).contains("'file'"));
    Run::new("cryptsetup").args(["luksDump", &scratch.name("header")]).ok();
}

/// A file in use is not overwritten: a node's, an export's, another process's.
#[test]
fn what_is_in_use_is_not_made_anew() {
    let steered = Steered::new();
    let (scratch, mut qmp) = (&steered.scratch, steered.talk());
    let path = create(scratch, "used", "1M");
    qemu_io_ok(&["-f", "qcow2"], &path, &["write -P 5 0 64k"]);
    qmp.ok("blockdev-add", file("f", &path));
    qmp.ok("blockdev-add", json!({ "driver": "qcow2", "node-name": "n", "file": "f" }));
    let qcow2_of = |file: Value| json!({ "driver": "qcow2", "size": 1 << 20, "file": file });
    let error = fails(&mut qmp, &qcow2_of(json!("f")));
    assert_eq!(error, "node \"f\" is in use by node \"n\"");
    let by_path = json!({ "driver": "file", "filename": path });
    for options in [
        qcow2_of(by_path),
        json!({ "driver": "file", "filename": path, "size": 0 }),
        qcow2_of(json!({ "driver": "file", "filename": steered.scratch.name("a.qcow2") })),
    ] {
        let error = fails(&mut qmp, &options);
        assert!(error.contains("lock") || error.contains("use"), "{error}");
    }
    qmp.ok("blockdev-del", json!({ "node-name": "n" }));
    qemu_io_ok(&["-f", "qcow2"], &path, &["read -P 5 0 64k"]);
    // A disk is a file, too.
    qmp.ok("blockdev-add", qcow2("n", &path));
    is_made(&mut qmp, &qcow2_of(json!("n")));
    qmp.ok("blockdev-add", json!({ "driver": "qcow2", "node-name": "inner", "file": "n" }));
    assert_eq!(super::node(&mut qmp, "inner").expect("it is there")["image"]["virtual-size"], json!(1 << 20));
    let error = fails(&mut qmp, &qcow2_of(json!("n")));
    assert_eq!(error, "node \"n\" is in use by node \"inner\"");
}

/// A medium that fails at any write leaves no image that could be taken for one, and the node is free again.
#[test]
fn a_creation_that_fails_leaves_no_image() {
    let steered = Steered::new();
    let (scratch, mut qmp) = (&steered.scratch, steered.talk());
    let path = create(scratch, "old", "1M");
    let mut failed = 0;
    for writes in 1.. {
        assert!(writes < 100, "it never succeeds");
        qmp.ok("blockdev-add", file("f", &path));
        qmp.ok("blockdev-add", failing_after(writes, "bad", "f"));
        let (_, job) = made(&mut qmp, &json!({ "driver": "qcow2", "size": 1 << 20, "file": "bad" }));
        for node in ["bad", "f"] {
            qmp.ok("blockdev-del", json!({ "node-name": node }));
        }
        let format = qemu_img(["info", "--output=json", &path]).json()["format"].take();
        if job["error"].is_null() {
            assert_eq!(format, "qcow2");
            break;
        }
        failed += 1;
        assert_eq!(format, "raw", "write {writes}: {job}");
    }
    assert!(failed >= 2, "{failed}");
    assert_clean(Path::new(&path));
}

/// A node over `image` whose write of this number fails.
fn failing_after(writes: u32, name: &str, image: &str) -> Value {
    let states: Vec<_> = (1..writes)
        .map(|state| json!({ "event": "pwritev", "state": state, "new_state": state + 1 }))
        .collect();
    let rule = json!({ "event": "pwritev", "state": writes, "errno": 28, "immediately": true });
    json!({ "driver": "blkdebug", "node-name": name, "image": image, "set-state": states, "inject-error": [rule] })
}

/// A job's end by force takes a file away that was not there before; one that was there stays.
#[test]
fn a_cancelled_creation_leaves_no_new_file() {
    let steered = Steered::new();
    let (scratch, mut qmp): (&Scratch, Qmp) = (&steered.scratch, steered.talk());
    let path = scratch.name("large");
    let options = json!({ "driver": "file", "filename": path, "size": 1u64 << 30, "preallocation": "full" });
    qmp.ok("blockdev-create", json!({ "job-id": "make", "options": options }));
    qmp.ok("job-cancel", json!({ "id": "make" }));
    while qmp.event("JOB_STATUS_CHANGE")["data"]["status"] != "concluded" {}
    assert!(!Path::new(&path).exists());
    qmp.ok("job-dismiss", json!({ "id": "make" }));
}

/// A raw disk gets an image in front of it, which has its bitmaps: what the disk holds was gone.
#[test]
fn what_a_data_file_holds_stays() {
    let steered = Steered::new();
    let mut qmp = steered.talk();
    let (data, image) = (steered.scratch.name("data.raw"), steered.scratch.name("image.qcow2"));
    std::fs::write(&data, vec![42; 1 << 20]).expect("a file");
    std::fs::write(&image, "").expect("a file");
    qmp.ok("blockdev-add", file("d", &data));
    qmp.ok("blockdev-add", file("f", &image));
    is_made(
        &mut qmp,
        &json!({ "driver": "qcow2", "size": 2 << 20, "file": "f", "data-file": "d", "data-file-raw": true }),
    );
    for node in ["f", "d"] {
        qmp.ok("blockdev-del", json!({ "node-name": node }));
    }
    qemu_io_ok(&["-f", "qcow2"], &image, &["read -P 42 0 1M", "read -P 0 1M 1M", "write -P 7 512k 64k"]);
    qemu_io_ok(&["-f", "raw"], &data, &["read -P 42 0 512k", "read -P 7 512k 64k"]);
    steered.server.stop();
}
