//! Published checkpoints of which chunks differ in a few ranges: what is sent of them, what they read as, and what is removed.

use std::collections::BTreeSet;
use std::ops::Deref;

use black_box::peer::{qemu_img, qemu_io_ok};
use black_box::random::Random;
use black_box::{Nginx, Run, StoreFault, StoreScene};
use serde_json::{Value, json};

const MIB: usize = 1 << 20;
const PIECE: usize = 64 << 10;
/// Megabytes of the disk.
const CHUNKS: usize = 32;
const NAME: &str = "s3://images/vms/d";
const KEY: [&str; 4] = ["--object", "secret,id=k,file=vm.key", "--encrypt-key-secret", "k"];
const PRUNE: [&str; 6] = ["prune", "--output", "json", "--unused-for", "0s", "s3://images/vms"];
const REMOVE: [&str; 7] = ["prune", "-q", "--remove", "--force", "--unused-for", "0s", "s3://images/vms"];

/// A disk `d.qcow2` of 32 chunks of noise, and a store behind a way that loses things.
struct Scene {
    scene: StoreScene,
    key: &'static [&'static str],
}

impl Deref for Scene {
    type Target = StoreScene;

    fn deref(&self) -> &StoreScene {
        &self.scene
    }
}

impl Scene {
    fn new(key: &'static [&'static str]) -> Self {
        let scene = Self { scene: StoreScene::new(), key };
        scene.scratch.write("noise.raw", &Random::of_name("deltas").bytes(CHUNKS * MIB));
        scene.scratch.write("vm.key", &Random::of_name("key").bytes(32));
        let (raw, disk) = (scene.scratch.name("noise.raw"), scene.scratch.name("d.qcow2"));
        qemu_img(["convert", "-f", "raw", "-O", "qcow2", &raw, &disk]).ok();
        scene
    }

    /// The same with its first checkpoint published.
    fn published(key: &'static [&'static str]) -> Self {
        let scene = Self::new(key);
        scene.checkpoint("first");
        scene.publish(&["d.qcow2@first", NAME]);
        scene
    }

    fn checkpoint(&self, name: &str) {
        self.run(&["checkpoint", "-q", "d.qcow2", name]).ok();
    }

    /// Writes noise over these pieces of 64 KiB.
    fn change(&self, seed: u64, pieces: impl IntoIterator<Item = usize>) {
        let noise = self.scratch.name("piece");
        for piece in pieces {
            let bytes = Random::new(seed * 10_000 + piece as u64).bytes(PIECE);
            self.scratch.write("piece", &bytes);
            let command = format!("write -q -s {noise} {} {PIECE}", piece * PIECE);
            qemu_io_ok(&["-f", "qcow2"], &self.scratch.name("d.qcow2"), &[&command]);
        }
    }

    fn publishing(&self, words: &[&str]) -> Run {
        self.run(&[&["publish", "--output", "json"], self.key, words].concat())
    }

    fn publish(&self, words: &[&str]) -> Value {
        self.publishing(words).json()
    }

    /// Changes these pieces, and publishes a checkpoint of that.
    fn next(&self, name: &str, seed: u64, pieces: impl IntoIterator<Item = usize>) -> Value {
        self.change(seed, pieces);
        self.checkpoint(name);
        self.publish(&[&format!("d.qcow2@{name}"), NAME])
    }

    /// Fails unless the image is these bytes, by `pull` and by `restore --full`.
    fn assert_is(&self, image: &str, bytes: &[u8]) {
        self.scratch.write("expected.raw", bytes);
        self.run(&[&["pull", "-q"], self.key, &[image, "back.raw"]].concat()).ok();
        self.run(&[&["restore", "-q", "--full"], self.key, &[image, "back.qcow2"]].concat()).ok();
        let [expected, raw, disk] =
            ["expected.raw", "back.raw", "back.qcow2"].map(|file| self.scratch.name(file));
        qemu_img(["compare", "-f", "raw", "-F", "raw", &expected, &raw]).ok();
        qemu_img(["compare", "-f", "raw", "-F", "qcow2", &expected, &disk]).ok();
        std::fs::remove_file(disk).expect("a disk");
    }

    /// Why the image is not read.
    fn refused(&self) -> String {
        self.run(&[&["pull", "-q"], self.key, &[NAME, "none.raw"]].concat()).fails()
    }

    fn manifest(&self) -> Value {
        serde_json::from_slice(&self.store.get("/images/vms/d.json").expect("a manifest")).expect("JSON")
    }

    /// Paths of objects whose names have this in them.
    fn objects(&self, mark: &str) -> BTreeSet<String> {
        let keys = self.store.keys("images").into_iter().filter(|key| key.contains(mark));
        keys.map(|key| format!("/images/{key}")).collect()
    }

    fn delete_manifest(&self, image: &str) {
        self.store.delete(&format!("{}.json", image.strip_prefix("s3:/").expect("a name")));
    }
}

fn number(report: &Value, name: &str) -> u64 {
    report[name].as_u64().unwrap_or_else(|| panic!("no {name} in {report}"))
}

fn text<'a>(report: &'a Value, name: &str) -> &'a str {
    report[name].as_str().unwrap_or_else(|| panic!("no {name} in {report}"))
}

/// Scattered pieces of 64 KiB had 17.5 times their bytes sent.
#[test]
fn of_chunks_that_have_changed_a_little_only_that_is_sent() {
    for key in [&[][..], &KEY] {
        let scene = Scene::published(key);
        let first = (scene.bytes("d.qcow2"), scene.manifest());
        // One of a hundred pieces.
        let pieces = [3, 120, 250, 333, 480];
        drop(scene.way.requests());
        let second = scene.next("second", 1, pieces);
        let requests = scene.way.requests();
        let count = |mark: &str| requests.iter().filter(|line| line.contains(mark)).count();
        let changed = (pieces.len() * PIECE) as u64;
        assert_eq!((number(&second, "deltas"), number(&second, "uploaded")), (5, 3), "{second}");
        // What is not proportional to it: a table of 32 chunks, and one of 5 deltas.
        assert!(number(&second, "uploaded-bytes") <= changed * 11 / 10, "{second}");
        // All five are one object.
        assert_eq!((count("PUT /images/vms/deltas/"), count("HEAD /images/vms/deltas/")), (1, 1));
        assert_eq!((count("PUT /images/vms/chunks/"), count("HEAD /images/vms/chunks/")), (2, 2));
        let said = scene.run(&[&["publish"], key, &["d.qcow2@second", "s3://images/vms/e"]].concat()).ok();
        assert!(said.contains("uploaded 0 objects"), "{said}");
        assert_eq!((&first.1["version"], first.1.get("deltas")), (&(2 + key.len() as u64 / 4).into(), None));
        assert_eq!(scene.manifest()["version"], 4);
        scene.assert_is(NAME, &scene.bytes("d.qcow2"));
        scene.assert_is(text(&second, "parent"), &first.0);
        // What is as it was before is nothing new; without deltas the manifest has none.
        scene.run(&["rollback", "-q", "d.qcow2", "@first"]).ok();
        scene.checkpoint("again");
        let again = scene.publish(&["d.qcow2@again", NAME]);
        assert_eq!(
            (number(&again, "uploaded"), scene.manifest()["version"].clone()),
            (0, first.1["version"].clone())
        );
        scene.assert_is(NAME, &first.0);
    }
}

/// Each publication depends on what the former ones sent, and on nothing that was removed.
#[test]
fn ten_generations_read_as_each_was_and_prune_removes_nothing_of_them() {
    for key in [&[][..], &KEY] {
        let scene = Scene::published(key);
        let (mut kept, mut sent, mut changed) = (Vec::new(), 0, 0);
        for generation in 1..=10 {
            // The same chunk each time, in another piece; one whose piece is the same; others now and then.
            let pieces = [generation % 4, 17, 32 + 16 * generation, 33 + 16 * generation];
            let report = scene.next(&format!("g{generation}"), generation as u64, pieces);
            sent += number(&report, "uploaded-bytes");
            changed += (pieces.len() * PIECE) as u64;
            assert_eq!(number(&report, "deltas"), 3, "{report}");
            kept.push((text(&report, "image").to_owned(), scene.bytes("d.qcow2")));
            scene.run(&REMOVE).ok();
            scene.assert_is(NAME, &kept.last().expect("a generation").1);
        }
        // What took too many patches has one again, of all that has changed since its base.
        assert!(sent <= changed * 13 / 10, "{sent} bytes for {changed}");
        let unused = scene.run(&PRUNE).json();
        assert_eq!((&unused["unused"], &unused["images"]), (&json!([]), &12.into()), "{unused}");
        for (image, bytes) in kept.iter().step_by(3) {
            scene.assert_is(image, bytes);
        }
        // Of the older ones what the newest is made of stays.
        let (newest, older) = kept.split_last().expect("generations");
        older.iter().for_each(|(image, _)| scene.delete_manifest(image));
        scene.run(&REMOVE).ok();
        for image in [NAME, &newest.0] {
            scene.assert_is(image, &newest.1);
        }
        scene.delete_manifest(NAME);
        scene.delete_manifest(&newest.0);
        scene.run(&REMOVE).ok();
        assert!(scene.objects("/deltas/").is_empty());
    }
}

/// What differs in most of a chunk, a chunk that gets short, and images that earlier builds read.
#[test]
fn chunks_are_sent_as_a_whole_where_a_delta_is_not_shorter_or_not_known() {
    let scene = Scene::published(&[]);
    // Most of chunk 1, zeroes but for a piece in chunk 2, all of chunk 3, and half of chunk 4.
    qemu_io_ok(
        &["-f", "qcow2"],
        &scene.scratch.name("d.qcow2"),
        &["write -q -z 2M 1M", "write -q -P 5 2M 64k"],
    );
    let report = scene.next("much", 1, (16..25).chain(48..64).chain(64..72));
    assert_eq!(number(&report, "deltas"), 0, "{report}");
    scene.assert_is(NAME, &scene.bytes("d.qcow2"));
    assert_eq!(scene.manifest()["version"], 2);
    // An image without compression is read by every build.
    let plain = |name: &str| {
        scene.publish(&["--compress", "none", &format!("d.qcow2@{name}"), "s3://images/vms/plain"])
    };
    plain("much");
    scene.change(2, [5]);
    scene.checkpoint("plain");
    let report = plain("plain");
    assert_eq!((number(&report, "deltas"), number(&report, "uploaded")), (0, 2), "{report}");
    scene.assert_is("s3://images/vms/plain", &scene.bytes("d.qcow2"));
    // Of its chunks others may be deltas.
    let report = scene.publish(&["--parent", "s3://images/vms/plain", "d.qcow2@plain", "s3://images/vms/z"]);
    assert_eq!(number(&report, "uploaded"), 0, "{report}");
    scene.change(3, [6]);
    scene.checkpoint("delta");
    let report = scene.publish(&["--compress", "zstd", "d.qcow2@delta", "s3://images/vms/plain"]);
    assert_eq!(number(&report, "deltas"), 1, "{report}");
    scene.assert_is("s3://images/vms/plain", &scene.bytes("d.qcow2"));
    // What is pushed without a map is found as chunks alone: of a delta nothing else is there.
    scene.run(&["push", "-q", "d.qcow2", "s3://images/vms/pushed"]).ok();
    scene.delete_manifest("s3://images/vms/plain");
    scene.run(&REMOVE).ok();
    scene.assert_is("s3://images/vms/pushed", &scene.bytes("d.qcow2"));
}

/// A push by a bitmap knows what has changed, too.
#[test]
fn a_push_by_a_bitmap_sends_what_the_bitmap_says() {
    let scene = Scene::new(&[]);
    scene.run(&["push", "-q", "d.qcow2", NAME]).ok();
    scene.run(&["bitmap", "--add", "d.qcow2", "since"]).ok();
    scene.change(1, [40, 200]);
    let report = scene.run(&["push", "--output", "json", "--bitmap", "since", "d.qcow2", NAME]).json();
    assert_eq!((number(&report, "deltas"), number(&report, "read-bytes")), (2, 2 * MIB as u64), "{report}");
    assert!(number(&report, "uploaded-bytes") < 150_000, "{report}");
    scene.assert_reads_as(NAME, &scene.bytes("d.qcow2"));
    // Of a disk that is served, as it was when the job began.
    scene.change(2, [41, 300]);
    let port = ["--allow-connect".to_owned(), format!("127.0.0.1:{}", scene.store.port())];
    let words = port.into_iter().chain([scene.scratch.name("d.qcow2")]);
    let (server, qmp) = scene.serve_with(scene.store.endpoint(), words);
    drop(qmp);
    let report = scene.run(&["push", "--output", "json", "--bitmap", "since", "qmp", NAME]).json();
    // A chunk that the bitmap has, too, is as it was pushed.
    assert_eq!((number(&report, "deltas"), number(&report, "read-bytes")), (2, 3 * MIB as u64), "{report}");
    server.stop();
    scene.assert_reads_as(NAME, &scene.bytes("d.qcow2"));
    // Without a map all is read, and what is as it was stays a delta.
    let report = scene.run(&["push", "--output", "json", "d.qcow2", NAME]).json();
    assert_eq!((number(&report, "uploaded"), number(&report, "read-bytes")), (0, (CHUNKS * MIB) as u64));
    assert_eq!(scene.manifest()["version"], 4);
}

/// What is damaged is said, and never read as data.
#[test]
fn a_delta_that_is_damaged_or_lost_is_an_error_that_names_it() {
    for key in [&[][..], &KEY] {
        let scene = Scene::published(key);
        scene.next("second", 1, [3, 120]);
        let objects = scene.objects("/deltas/");
        let [path] = &objects.iter().collect::<Vec<_>>()[..] else { panic!("{objects:?}") };
        let good = scene.store.get(path).expect("an object");
        let other = Random::new(9).bytes(good.len());
        let mut flipped = good.clone();
        flipped[good.len() / 2 - 100] ^= 1;
        let name = &path["/images".len()..];
        for bytes in [None, Some(&flipped[..]), Some(&other), Some(&good[..100]), Some(b"")] {
            match bytes {
                None => scene.store.delete(path),
                Some(bytes) => scene.store.put(path, bytes),
            }
            let refused = scene.refused();
            let says = if bytes.is_none() { "this delta object is missing" } else { "this delta object " };
            assert!(refused.contains(name) && refused.contains(says), "{refused}");
        }
        // A base.
        scene.store.put(path, &good);
        scene.assert_is(NAME, &scene.bytes("d.qcow2"));
        let unused = scene.objects("/chunks/");
        scene.delete_manifest(text(&scene.publish(&["-n", "d.qcow2@second", NAME]), "image"));
        scene.delete_manifest(NAME);
        scene.delete_manifest(text(&scene.publish(&["-n", "d.qcow2@first", NAME]), "image"));
        scene.publish(&["--parent", "none", "d.qcow2@second", "s3://images/vms/whole"]);
        // The bases are no image's own any more: both chunks were sent as a whole, beside their bases.
        assert_eq!(scene.objects("/chunks/").difference(&unused).count(), 2);
        // A table of deltas.
        let scene = Scene::published(key);
        scene.next("second", 1, [3, 120]);
        let entry = scene.manifest()["deltas"][0].clone();
        let table = text(&entry, "name").to_owned();
        let path = format!("/images/vms/chunks/{}/{table}", &table[..2]);
        let good = scene.store.get(&path).expect("a table");
        for (bytes, says) in
            [(None, "this table of deltas is missing"), (Some(&good[1..]), "this table of deltas has")]
        {
            match bytes {
                None => scene.store.delete(&path),
                Some(bytes) => scene.store.put(&path, bytes),
            }
            let refused = scene.refused();
            assert!(refused.contains(says) && refused.contains(&table), "{refused}");
            // Nothing is removed: what the image leads to is unknown.
            let refused = scene.run(&REMOVE).fails();
            assert!(refused.contains(says), "{refused}");
            scene.change(2, [7]);
            let refused = scene.publishing(&["d.qcow2@second", "s3://images/vms/e"]).fails();
            assert!(refused.contains("--parent none"), "{refused}");
        }
        scene.publish(&["--parent", "none", "d.qcow2@second", "s3://images/vms/e"]);
    }
}

/// A table of deltas that its author made up costs no more than one that is sound.
#[test]
fn a_hostile_table_of_deltas_leads_nowhere() {
    let scene = Scene::published(&[]);
    scene.next("second", 1, [3, 120]);
    let manifest = scene.manifest();
    let entry = &manifest["deltas"][0];
    let path = format!("/images/vms/chunks/{}/{}", &text(entry, "name")[..2], text(entry, "name"));
    let good = scene.store.get(&path).expect("a table");
    let put = |bytes: &[u8], told: u64| {
        scene.scratch.write("table", bytes);
        let sum = Run::new("sha256sum").arg(scene.scratch.file("table")).ok();
        let name = &sum[..64];
        scene.store.put(&format!("/images/vms/chunks/{}/{name}", &name[..2]), bytes);
        let mut manifest = manifest.clone();
        manifest["deltas"][0]["name"] = name.into();
        manifest["deltas"][0]["bytes"] = told.into();
        scene.store.put("/images/vms/d.json", &serde_json::to_vec(&manifest).expect("JSON"));
        scene.refused()
    };
    // One object, then two chunks: each with its name, its base, and one patch.
    let (first, patch) = (4 + 32, 4 + 32 + 64 + 4);
    let with = |at: usize, bytes: &[u8]| {
        let mut changed = good.clone();
        changed[at..at + bytes.len()].copy_from_slice(bytes);
        changed
    };
    let chunk = good[first..first + 32].to_vec();
    for (bytes, says) in [
        (with(0, &[255; 4]), "ends too early"),
        (with(patch - 4, &[255; 4]), "patches of"),
        (with(patch - 4, &[0; 4]), "has 0 patches of"),
        (with(patch, &[1, 0, 0, 0]), "names the object 1 of 1"),
        (with(patch + 4, &[255; 4]), "has a patch of"),
        (with(patch + 8, &[255; 4]), "has a patch of"),
        (with(patch + 12, &[255; 4]), "has a patch of"),
        // A chunk that is its own base is no object.
        (with(first + 32, &chunk), "this chunk is missing"),
        // Another place of the same object.
        (with(patch + 4, &[9, 0, 0, 0]), "this delta object"),
        ([&good[..], &good[first..]].concat(), "in another order, or twice"),
        (good[..good.len() - 1].to_vec(), "ends too early"),
    ] {
        let refused = put(&bytes, bytes.len() as u64);
        assert!(refused.contains(says), "{says}: {refused}");
    }
    let refused = put(&good, good.len() as u64 + 1);
    assert!(refused.contains("this table of deltas"), "{refused}");
    let refused = put(&good, 5 << 20);
    assert!(refused.contains("are 5242880 bytes called"), "{refused}");
}

/// What was sent before an end stays for the next time, as chunks do.
#[test]
fn a_publication_that_is_interrupted_finds_the_deltas_that_it_sent() {
    for key in [&[][..], &KEY] {
        let scene = Scene::published(key);
        // More than one object of 4 MiB.
        scene.change(1, (0..CHUNKS).flat_map(|chunk| [chunk * 16, chunk * 16 + 5, chunk * 16 + 11]));
        scene.checkpoint("second");
        scene.way.plan(&[
            ("PUT /images/vms/deltas/", StoreFault::Status(503)),
            ("PUT /images/vms/deltas/", StoreFault::LostAnswer),
            ("PUT /images/vms/chunks/", StoreFault::Status(403)),
        ]);
        let refused = scene.publishing(&["d.qcow2@second", NAME]).fails();
        assert!(refused.contains("403"), "{refused}");
        let sent = scene.objects("/deltas/");
        assert_eq!(sent.len(), 2, "{sent:?}");
        let report = scene.publish(&["d.qcow2@second", NAME]);
        assert_eq!((number(&report, "deltas"), number(&report, "uploaded")), (CHUNKS as u64, 2), "{report}");
        assert_eq!(scene.objects("/deltas/"), sent);
        scene.assert_is(NAME, &scene.bytes("d.qcow2"));
        // Killed at any time it leaves the image from before, and the next one does it.
        scene.change(3, [100, 200, 300]);
        scene.checkpoint("third");
        let before = scene.store.get("/images/vms/d.json");
        if scene.publishing(&["d.qcow2@third", NAME]).killed_after(std::time::Duration::from_millis(40)) {
            assert_eq!(scene.store.get("/images/vms/d.json"), before);
        }
        scene.publish(&["d.qcow2@third", NAME]);
        scene.assert_is(NAME, &scene.bytes("d.qcow2"));
    }
}

/// A guest and every tool read deltas over each way to a folder, from a server that knows no ranges, too.
#[test]
fn deltas_are_read_from_a_web_server_and_by_an_overlay() {
    let scene = Scene::published(&[]);
    scene.next("second", 1, [3, 120]);
    let second = scene.next("third", 2, [3, 125, 500]);
    let bytes = scene.bytes("d.qcow2");
    scene.scratch.write("expected.raw", &bytes);
    scene.store.save("images", scene.scratch.path());
    let nginx = Nginx::start(scene.scratch.path(), &crate::remote::certificates());
    for folder in ["", "/whole"] {
        let served = format!("chunked:{}", nginx.url(&format!("{folder}/vms/d")));
        scene.run(&["compare", "-f", "raw", "-F", "raw", &served, "expected.raw"]).ok();
    }
    let image = text(&second, "image");
    let backing = scene.run(&["restore", "--output", "json", image, "r.qcow2"]).json();
    let words =
        ["--allow-name", text(&backing, "backing"), &scene.scratch.name("r.qcow2")].map(str::to_owned);
    let (server, qmp) = scene.serve_with(format!("http://{}", scene.way.address()), words);
    drop(qmp);
    let mut client = server.client("r");
    for piece in [3, 120, 125, 500, 4] {
        let read = client.read((piece * PIECE) as u64, PIECE as u32).expect("a read");
        assert!(read == bytes[piece * PIECE..(piece + 1) * PIECE], "piece {piece}");
    }
    drop(client);
    server.stop();
    scene.run(&["verify", &format!("chunked:{image}")]).ok();
    let found = scene.run(&["diff", "--output", "json", &format!("{NAME}@second"), NAME]).json();
    let starts: Vec<_> = found.as_array().into_iter().flatten().map(|range| number(range, "start")).collect();
    assert_eq!(starts, [0, 7 * MIB as u64, 31 * MIB as u64], "{found}");
}

/// A build that does not know a manifest removes nothing of its folder: what it leads to is unknown.
#[test]
fn a_manifest_of_a_later_version_has_nothing_removed() {
    let scene = Scene::published(&[]);
    scene.next("second", 1, [3]);
    let mut manifest = scene.manifest();
    manifest["version"] = 5.into();
    scene.store.put("/images/vms/d.json", &serde_json::to_vec(&manifest).expect("JSON"));
    scene.store.put("/images/vms/deltas/notes", b"none of ours");
    let objects = scene.objects("");
    let refused = scene.run(&REMOVE).fails();
    assert!(refused.contains("version is 5; allowed: 1 to 4"), "{refused}");
    assert_eq!(scene.objects(""), objects);
}
