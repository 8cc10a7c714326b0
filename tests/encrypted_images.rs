//! Encrypted chunked images: nothing of the disk is at the store, and what is there is that of the key's owner, or an error.

use black_box::peer::{converted, qemu_img, qemu_io_ok};
use black_box::random::Random;
use black_box::server::Start;
use black_box::{Moto, Run, Scratch, cowhand};
use serde_json::{Value, json};

const MIB: usize = 1 << 20;
const NAME: &str = "s3://images/vms/d";
/// The arguments of an owner of the first key.
const KEY: [&str; 4] = ["--object", "secret,id=k,file=first.key", "--encrypt-key-secret", "k"];
const OTHER_KEY: [&str; 4] = ["--object", "secret,id=k,file=second.key", "--encrypt-key-secret", "k"];

/// A disk `d.qcow2` with a checkpoint `one`: 4 chunks of noise and 4 of text; two keys, and a store.
struct Scene {
    scratch: Scratch,
    store: Moto,
}

impl Scene {
    fn new() -> Self {
        let (scratch, store) = (Scratch::new(), Moto::start());
        store.put("/images", b"");
        let mut disk = Random::of_name("encrypted").bytes(4 * MIB);
        (0..4).for_each(|text: u8| {
            disk.extend(format!("well known text {text} ").repeat(MIB / 8).bytes().take(MIB))
        });
        scratch.write("disk.raw", &disk);
        for key in ["first", "second"] {
            scratch.write(&format!("{key}.key"), &Random::of_name(key).bytes(32));
        }
        scratch.write("short.key", b"a password");
        let scene = Self { scratch, store };
        let (raw, disk) = (scene.scratch.name("disk.raw"), scene.scratch.name("d.qcow2"));
        qemu_img(["convert", "-f", "raw", "-O", "qcow2", &raw, &disk]).ok();
        scene.run(&["checkpoint", "-q", "d.qcow2", "one"]).ok();
        scene
    }

    fn run(&self, words: &[&str]) -> Run {
        self.store.below(cowhand(words).current_dir(self.scratch.path()))
    }

    fn publish(&self, words: &[&str]) -> Value {
        self.run(&[&["publish", "--output", "json"], &KEY[..], words].concat()).json()
    }

    fn disk(&self) -> Vec<u8> {
        std::fs::read(self.scratch.file("disk.raw")).expect("a disk")
    }

    fn assert_reads_as(&self, image: &str, bytes: &[u8]) {
        self.run(&[&["pull", "-q"], &KEY[..], &[image, "back.raw"]].concat()).ok();
        assert!(std::fs::read(self.scratch.file("back.raw")).expect("an image") == bytes, "{image}");
    }

    /// What pulling the image says against it.
    fn refused(&self, key: &[&str]) -> String {
        self.run(&[&["pull", "-q"], key, &[NAME, "none.raw"]].concat()).fails()
    }

    /// The objects of chunks and tables, with their bytes.
    fn objects(&self) -> Vec<(String, Vec<u8>)> {
        let keys = self.store.keys("images").into_iter().filter(|key| key.contains("/chunks/"));
        keys.map(|key| format!("/images/{key}")).map(|path| (path.clone(), self.get(&path))).collect()
    }

    fn get(&self, path: &str) -> Vec<u8> {
        self.store.get(path).expect("an object")
    }
}

#[test]
fn an_encrypted_image_is_read_with_its_key_and_shares_chunks_with_that_keys_images_alone() {
    let scene = Scene::new();
    let disk = scene.disk();
    // The same disk in the folder, plain: its chunks confirm nothing of the encrypted one.
    scene.run(&["push", "-q", "-f", "raw", "disk.raw", "s3://images/vms/plain"]).ok();
    let plain = scene.objects();
    let one = scene.publish(&["d.qcow2@one", NAME]);
    assert_eq!((&one["uploaded"], &one["parent"]), (&9.into(), &Value::Null));
    scene.assert_reads_as(NAME, &disk);
    let stored: Vec<_> = scene.objects().into_iter().filter(|object| !plain.contains(object)).collect();
    assert_eq!(stored.len(), 9);
    for (path, bytes) in &stored {
        assert!(!bytes.windows(16).any(|part| part == b"well known text "), "{path}");
        assert!(
            !bytes.starts_with(&[0x28, 0xb5, 0x2f, 0xfd]) || bytes.len() < 1024,
            "{path}: a frame of zstd"
        );
    }
    // Text is compressed before: four chunks of a megabyte are a few kilobytes.
    assert!(stored.iter().filter(|(_, bytes)| bytes.len() < 4096).count() >= 4);
    let manifest: Value = serde_json::from_slice(&scene.get("/images/vms/d.json")).expect("JSON");
    assert_eq!((&manifest["version"], &manifest["encryption"]["cipher"]), (&3.into(), &"aes-256-gcm".into()));
    // What a later checkpoint, a fork under another name and a push have in common with it is not sent again.
    qemu_io_ok(&["-f", "qcow2"], &scene.scratch.name("d.qcow2"), &["write -P 7 5M 64k"]);
    scene.run(&["checkpoint", "-q", "d.qcow2", "two"]).ok();
    let two = scene.publish(&["d.qcow2@two", "s3://images/vms/e"]);
    assert_eq!(
        (&two["read-bytes"], &two["uploaded"], &two["parent"]),
        (&MIB.into(), &2.into(), &one["image"])
    );
    let push =
        [&["push", "--output", "json", "-f", "raw"], &KEY[..], &["disk.raw", "s3://images/vms/p"]].concat();
    assert_eq!(scene.run(&push).json()["uploaded"], 0);
    // Not so with another key, which has no parent there.
    let other =
        [&["publish", "--output", "json"], &OTHER_KEY[..], &["d.qcow2@one", "s3://images/vms/o"]].concat();
    let other = scene.run(&other).json();
    assert_eq!((&other["uploaded"], &other["parent"]), (&9.into(), &Value::Null));
    // What no image leads to is found without any key.
    let unused = scene.run(&["prune", "--output", "json", "--unused-for", "0s", "s3://images/vms"]).json();
    assert_eq!((&unused["unused"], &unused["images"]), (&json!([]), &8.into()), "{unused}");
    scene.store.delete("/images/vms/o.json");
    let id = one["id"].as_str().expect("an id");
    scene.store.delete(&format!("/images/vms/o@{id}.json"));
    let unused = scene.run(&["prune", "-q", "--remove", "--force", "--unused-for", "0s", "s3://images/vms"]);
    unused.ok();
    assert_eq!(scene.objects().len(), plain.len() + 9 + 2);
    scene.assert_reads_as(NAME, &disk);
}

/// Each has an error of its own: a key that is wrong, an object that was changed, one that lies where another was.
#[test]
fn a_wrong_key_and_changed_and_swapped_objects_are_errors() {
    let scene = Scene::new();
    let one = scene.publish(&["d.qcow2@one", NAME]);
    for (key, says) in [
        (&[][..], "is encrypted with the key "),
        (&OTHER_KEY[..], "; the key that was given is "),
        (
            &["--object", "secret,id=k,file=short.key", "--encrypt-key-secret", "k"],
            "the secret has 10 bytes; allowed: 32",
        ),
        (&["--encrypt-key-secret", "none"], "none"),
    ] {
        let refused = scene.refused(key);
        assert!(refused.contains(says), "{key:?}: {refused}");
    }
    // No plain image is taken for an encrypted one, and none takes the place of one.
    scene.run(&["push", "-q", "-f", "raw", "disk.raw", "s3://images/vms/plain"]).ok();
    let plain = [&["pull", "-q"], &KEY[..], &["s3://images/vms/plain", "none.raw"]].concat();
    assert!(scene.run(&plain).fails().contains("is not encrypted, and a key was given"));
    let refused = scene.run(&["publish", "-q", "d.qcow2@one", NAME]).fails();
    assert!(refused.contains("is encrypted with the key"), "{refused}");
    let refused = scene.run(&["publish", "-q", "d.qcow2@one", "s3://images/vms/new"]).fails();
    assert!(refused.contains("is encrypted with the key") && refused.contains("--parent none"), "{refused}");
    let plain = ["publish", "-q", "-n", "--parent", "none", "d.qcow2@one", "s3://images/vms/new"];
    scene.run(&plain).ok();
    let refused = scene
        .run(&[&["publish", "-q"], &KEY[..], &["d.qcow2@one", "s3://images/vms/plain"]].concat())
        .fails();
    assert!(refused.contains("is not encrypted"), "{refused}");

    // Chunks.
    let noise: Vec<_> = scene.objects().into_iter().filter(|(_, bytes)| bytes.len() == MIB + 28).collect();
    let [(first, bytes), (second, others), ..] = &noise[..] else {
        panic!("{} chunks of noise", noise.len())
    };
    let mut changed = bytes.clone();
    changed[MIB / 2] ^= 1;
    for (put, says) in [
        (&changed[..], "was not encrypted with the image's key under this name, or was changed"),
        (others, "was not encrypted with the image's key under this name, or was changed"),
        (&bytes[..20], "was not encrypted with the image's key under this name, or was changed"),
    ] {
        scene.store.put(first, put);
        let refused = scene.refused(&KEY);
        assert!(refused.contains(says) && refused.contains(&first["/images".len()..]), "{refused}");
    }
    scene.store.put(first, bytes);
    assert!(scene.get(second) == *others);
    scene.assert_reads_as(NAME, &scene.disk());

    // Manifests: one of another name, of a later time, and one that was changed.
    let (own, lasting) =
        ("/images/vms/d.json", format!("{}.json", &one["image"].as_str().expect("a name")["s3:/".len()..]));
    let manifest = scene.get(own);
    for put in [
        scene.get(&lasting),
        String::from_utf8(manifest.clone()).expect("text").replace("\"one\"", "\"two\"").into_bytes(),
    ] {
        scene.store.put(own, &put);
        let refused = scene.refused(&KEY);
        assert!(refused.contains("it was changed, or written under another name"), "{refused}");
    }
    // Without its encryption it is one of version 2, and leads to chunks that are none.
    let mut stripped: Value = serde_json::from_slice(&manifest).expect("JSON");
    stripped["version"] = json!(2);
    stripped.as_object_mut().expect("an object").remove("encryption");
    scene.store.put(own, &serde_json::to_vec(&stripped).expect("JSON"));
    assert!(scene.refused(&KEY).contains("is not encrypted, and a key was given"));
    let refused = scene.refused(&[]);
    assert!(refused.contains("/chunks/"), "{refused}");
}

#[test]
fn an_encrypted_checkpoint_is_restored_served_and_published_again() {
    let scene = Scene::new();
    let disk = scene.disk();
    scene.publish(&["d.qcow2@one", NAME]);
    let refused = scene.run(&["restore", NAME, "r.qcow2"]).fails();
    assert!(refused.contains("encrypt-key-secret"), "{refused}");
    let said = scene.run(&[&["restore"], &KEY[..], &[NAME, "r.qcow2"]].concat()).ok();
    let backing =
        said.split_whitespace().find(|word| word.starts_with("chunked:")).expect("a name").to_owned();
    let manifest: Value = serde_json::from_slice(&scene.get("/images/vms/d.json")).expect("JSON");
    let id = manifest["encryption"]["key-id"].as_str().expect("an id");
    assert!(backing.starts_with(&format!("chunked:encrypted={id}:s3://images/vms/d@")), "{said}");
    // The key is found by the id that the image names.
    let keys = ["--object", "secret,id=other,file=second.key", "--object", "secret,id=vm,file=first.key"];
    let compare = ["compare", "--allow-name", &backing, "-F", "raw", "r.qcow2", "disk.raw"];
    scene.run(&[&keys[..], &compare].concat()).ok();
    for (keys, says) in [(&[][..], "no secret holds the key"), (&keys[..2], "no secret holds the key")] {
        let refused = scene.run(&[keys, &compare].concat()).fails();
        assert!(refused.contains(says) && refused.contains(id), "{refused}");
    }
    // It is a disk as any other: it has checkpoints, which are published with what they have in common.
    let allow = ["--allow-name", &backing];
    scene.run(&[&["io", "-c", "write -P 5 1M 64k"], &keys[..], &allow, &["r.qcow2"]].concat()).ok();
    scene.run(&["checkpoint", "-q", "r.qcow2", "mine"]).ok();
    let mine = scene.publish(&["--allow-name", &backing, "r.qcow2@mine", "s3://images/vms/r"]);
    assert_eq!((&mine["read-bytes"], &mine["uploaded"]), (&MIB.into(), &3.into()), "{mine}");
    assert_eq!(
        mine["parent"].as_str().map(|parent| format!("chunked:encrypted={id}:{parent}")),
        Some(backing)
    );
    let mut changed = disk.clone();
    changed[MIB..MIB + (64 << 10)].fill(5);
    scene.assert_reads_as("s3://images/vms/r", &changed);
    scene.run(&[&["restore", "-q", "--full"], &KEY[..], &[NAME, "whole.qcow2"]].concat()).ok();
    let whole = converted(&scene.scratch.name("whole.qcow2"), "qcow2", &[], &scene.scratch.file("back.raw"));
    assert!(whole == disk);

    // By a server, whose secret it is.
    let qmp = scene.scratch.name("qmp");
    let port = format!("127.0.0.1:{}", scene.store.port());
    let start = Start::new(["--qmp", &qmp, "--allow-path"])
        .arg(scene.scratch.path())
        .args(["--allow-connect", &port]);
    let start = start.env("AWS_ENDPOINT_URL", scene.store.endpoint()).env("AWS_ACCESS_KEY_ID", "A");
    let start = start.env("AWS_SECRET_ACCESS_KEY", "hush").current_dir(scene.scratch.path());
    let server = start.args(["--object", "secret,id=vms,file=first.key"]).arg(scene.scratch.name("d.qcow2"));
    let mut server = server.listen().unwrap_or_else(|error| panic!("{}", error.0));
    server.wait_until(|server| server.stdout().contains("control:").then_some(())).expect("it serves");
    let served = [
        "restore",
        "-q",
        "--full",
        "--server",
        "qmp",
        "--serve",
        "--encrypt-key-secret",
        "vms",
        NAME,
        "s.qcow2",
    ];
    scene.run(&served).ok();
    let mut client = black_box::qmp::Qmp::connect(qmp.as_ref());
    let arguments = json!({
        "node-name": "d", "checkpoint": "one", "target": "s3://images/vms/q", "encrypt-key-secret": "vms", "job-id": "p",
    });
    client.ok("cowhand-publish", arguments);
    let done = client.event_of("BLOCK_JOB_COMPLETED", "device", "p");
    assert_eq!(done["data"]["error"], Value::Null, "{done}");
    assert!(server.client("s").read_all().expect("a disk") == disk);
    server.stop();
    scene.assert_reads_as("s3://images/vms/q", &disk);
}
