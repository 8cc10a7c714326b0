//! Chunks that no image leads to any more: listed and, where that is asked for, removed, and never one that an image leads to.

use std::ops::Deref;
use std::time::Duration;

use black_box::random::Random;
use black_box::{StoreFault, StoreScene, cowhand};
use serde_json::Value;

const MIB: usize = 1 << 20;
const FOLDER: &str = "s3://images/base";
const IMAGE: &str = "s3://images/base/debian";
const OTHER: &str = "s3://images/base/other";

/// Two images of one folder, and a store behind a way that loses things.
struct Scene(StoreScene);

impl Deref for Scene {
    type Target = StoreScene;

    fn deref(&self) -> &StoreScene {
        &self.0
    }
}

impl Scene {
    fn new() -> Self {
        Self(StoreScene::new())
    }

    /// Makes a disk of this name and pushes it.
    fn push(&self, disk: &str, mib: usize, image: &str) {
        self.scratch.write(disk, &Random::of_name(disk).bytes(mib * MIB));
        self.run(&["push", "-q", "-f", "raw", disk, image]).ok();
    }

    fn prune(&self, words: &[&str]) -> Value {
        self.run(&[&["prune", "--output", "json"], words, &[FOLDER]].concat()).json()
    }

    /// What lies in the folder beside the images.
    fn objects(&self) -> Vec<String> {
        let keys = self.store.keys("images").into_iter();
        keys.filter(|key| !key.ends_with(".json")).collect()
    }

    fn assert_reads_as(&self, image: &str, disk: &str) {
        self.run(&["pull", "-q", image, "back.raw"]).ok();
        let read = |name: &str| std::fs::read(self.scratch.file(name)).expect("a file");
        assert!(read("back.raw") == read(disk), "{image}");
    }
}

/// What every push left stayed and cost money until the whole folder was deleted.
#[test]
fn what_no_image_leads_to_is_listed_and_removed_and_what_one_leads_to_stays() {
    let scene = Scene::new();
    scene.push("first.raw", 4, IMAGE);
    scene.push("other.raw", 3, OTHER);
    // One chunk is new: the chunk and the table that it replaces are unused.
    let mut disk = std::fs::read(scene.scratch.file("first.raw")).expect("a disk");
    disk[2 * MIB + 5] ^= 1;
    scene.scratch.write("second.raw", &disk);
    scene.run(&["push", "-q", "-f", "raw", "second.raw", IMAGE]).ok();
    // Chunks of an image are not asked about their hash: something else that lies there is none of ours.
    scene.store.put("/images/base/chunks/ab/notes", b"mine");
    let before = scene.objects();
    assert_eq!(before.len(), 4 + 1 + 3 + 1 + 2 + 1, "{before:?}");

    let young = scene.prune(&[]);
    assert_eq!((&young["images"], &young["chunks"]), (&2.into(), &11.into()), "{young}");
    assert_eq!((&young["unused"], &young["young"]), (&Value::Array(vec![]), &2.into()), "{young}");
    let kept = scene.prune(&["--remove"]);
    assert_eq!((&kept["unused"], &kept["young"]), (&Value::Array(vec![]), &2.into()), "{kept}");
    let listed = scene.prune(&["--unused-for", "0s"]);
    let names: Vec<_> = listed["unused"].as_array().expect("a list").iter().map(|one| &one["name"]).collect();
    assert_eq!((names.len(), &listed["unused-bytes"]), (2, &(MIB + 4 * 32).into()), "{listed}");
    assert_eq!(scene.objects(), before, "nothing was asked to go");

    let refused = scene.run(&["prune", "--remove", "--unused-for", "59m", FOLDER]).fails();
    assert!(refused.contains("at least 1h") && refused.contains("--force"), "{refused}");
    assert_eq!(scene.objects(), before, "{refused}");
    let removed = scene.prune(&["--remove", "--force", "--unused-for", "0s"]);
    assert_eq!((&removed["unused"], &removed["removed"]), (&listed["unused"], &true.into()));
    let after = scene.objects();
    let gone: Vec<_> = before.iter().filter(|key| !after.contains(key)).collect();
    assert_eq!(gone.len(), 2, "{gone:?}");
    assert!(
        gone.iter().all(|key| names.iter().any(|name| *name == &format!("s3://images/{key}"))),
        "{names:?}"
    );
    scene.assert_reads_as(IMAGE, "second.raw");
    scene.assert_reads_as(OTHER, "other.raw");

    // An image is deleted: what it alone led to is unused.
    scene.store.delete("/images/base/debian.json");
    let said = scene.run(&["prune", "--remove", "--force", "--unused-for", "0s", FOLDER]).ok();
    assert!(said.contains("9 chunks, 0 packs, 0 delta objects, 1 images; removed: 5 objects"), "{said}");
    scene.assert_reads_as(OTHER, "other.raw");
    assert_eq!(scene.objects().len(), 3 + 1 + 1);
    // What was complained of had `/x` behind it, which no user had typed.
    for (folder, why) in [("s3://", "it names no bucket"), ("s3://b", "a bucket of 3 to 63 letters")] {
        let refused = scene.run(&["prune", folder]).fails();
        assert!(refused.contains(&format!("cannot prune {folder};")) && refused.contains(why), "{refused}");
        assert!(!refused.contains("/x"), "{refused}");
    }
    let nothing = scene.run(&["prune", IMAGE]).fails();
    assert!(nothing.contains("there is no chunked image in") && nothing.contains("hint: "), "{nothing}");
}

/// A push that finds a chunk there does not upload it: removed under its eyes, its image would be damaged from the first.
#[test]
fn while_somebody_pushes_nothing_is_removed_and_while_something_is_removed_nobody_pushes() {
    let scene = Scene::new();
    scene.push("first.raw", 3, IMAGE);
    scene.store.delete("/images/base/debian.json");
    let unused = scene.objects();
    // The same disk again, whose chunks are all there, and more: it waits for an answer.
    let mut disk = std::fs::read(scene.scratch.file("first.raw")).expect("a disk");
    disk.extend(Random::of_name("more").bytes(MIB));
    scene.scratch.write("more.raw", &disk);
    drop(scene.way.requests());
    scene.way.plan(&[("PUT /images/base/chunks/", StoreFault::Silence)]);
    let refused = std::cell::RefCell::new(String::new());
    let words = ["push", "-f", "raw", "more.raw", IMAGE];
    let pushed = scene.run(&words).outcome_telling(|_| {
        scene.way.wait_for("PUT /images/base/chunks/");
        let prune = scene.store.below(cowhand(["prune", "--remove", "--unused-for", "1h", FOLDER]));
        refused.replace(prune.fails());
        let listed = scene.store.below(cowhand(["prune", "--unused-for", "1h", FOLDER])).ok();
        assert!(listed.contains("being pushed (1)"), "{listed}");
    });
    let refused = refused.into_inner();
    assert!(
        refused.contains("is being pushed to this folder, since") && refused.contains("hint: "),
        "{refused}"
    );
    assert!(pushed.status.success(), "{pushed}");
    assert!(unused.iter().all(|key| scene.objects().contains(key)));
    scene.assert_reads_as(IMAGE, "more.raw");
    // It has taken its object away, and the removal its own.
    assert!(scene.objects().iter().all(|key| key.starts_with("base/chunks/")), "{:?}", scene.objects());

    scene.scratch.write("new.raw", &Random::of_name("new").bytes(MIB));
    let push = ["push", "-f", "raw", "new.raw", OTHER];
    scene.way.plan(&[("GET /images?list-type=2&prefix=base%2Fchunks%2Ff", StoreFault::Silence)]);
    let prune = ["prune", "--remove", "--force", "--unused-for", "0s", FOLDER];
    drop(scene.way.requests());
    let pruned = scene.run(&prune).outcome_telling(|_| {
        scene.way.wait_for("GET /images?list-type=2&prefix=base%2Fchunks%2Ff");
        let refused = scene.store.below(cowhand(push).current_dir(scene.scratch.path())).fails();
        assert!(refused.contains("are being removed, since") && refused.contains("hint: "), "{refused}");
        let refused = scene.store.below(cowhand(prune)).fails();
        assert!(refused.contains("are being removed, since"), "{refused}");
    });
    assert!(pruned.status.success(), "{pruned}");
    assert_eq!(scene.store.get("/images/base/other.json"), None);
    scene.run(&push).ok();
    scene.assert_reads_as(OTHER, "new.raw");
    scene.assert_reads_as(IMAGE, "more.raw");
}

/// A folder is usable again after any of them was killed, and an image that cannot be read protects its chunks.
#[test]
fn what_was_killed_holds_nobody_up_for_ever_and_a_damaged_image_has_nothing_removed() {
    let scene = Scene::new();
    scene.push("first.raw", 2, IMAGE);
    let killed = "0123456789abcdef0123456789abcdef";
    scene.store.put(&format!("/images/base/pushing/{killed}"), b"");
    let refused = scene.run(&["prune", "--remove", "--unused-for", "1h", FOLDER]).fails();
    assert!(refused.contains(killed), "{refused}");
    scene.run(&["prune", "--remove", "--force", "--unused-for", "0s", FOLDER]).ok();
    assert!(scene.objects().iter().all(|key| key.starts_with("base/chunks/")), "{:?}", scene.objects());
    // A removal that fails gives the folder back.
    scene.way.plan(&[("GET /images?list-type=2&prefix=base%2Fchunks%2F7", StoreFault::Status(403))]);
    let refused = scene.run(&["prune", "--remove", FOLDER]).env("COWHAND_LOG", "trace").fails();
    assert!(refused.contains("403") && !refused.contains("hush") && !refused.contains("quiet"), "{refused}");
    scene.push("other.raw", 2, OTHER);
    let interrupted = {
        scene.way.plan(&[("GET /images?list-type=2&prefix=base%2Fchunks%2F7", StoreFault::Silence)]);
        let mark = "GET /images?list-type=2&prefix=base%2Fchunks%2F7";
        drop(scene.way.requests());
        let run = scene.run(&["prune", "--remove", FOLDER]).limit(Duration::from_secs(40));
        run.interrupted_when(|| scene.way.wait_for(mark))
    };
    assert!(interrupted.stderr.contains("interrupted"), "{interrupted}");
    assert_eq!(scene.store.get("/images/base/removing"), None);
    scene.push("third.raw", 1, "s3://images/base/third");

    let before = scene.objects();
    let manifest = scene.store.get("/images/base/other.json").expect("a manifest");
    for damaged in [&b"{}"[..], &[]] {
        scene.store.put("/images/base/other.json", damaged);
        let refused = scene.run(&["prune", "--remove", "--force", "--unused-for", "0s", FOLDER]).fails();
        assert!(refused.contains("s3://images/base/other.json"), "{refused}");
    }
    scene.store.put("/images/base/other.json", &manifest);
    let table = String::from_utf8(manifest).expect("text");
    let table =
        table.split("\"tables\"").nth(1).expect("tables").split('"').nth(1).expect("a name").to_owned();
    let path = format!("/images/base/chunks/{}/{table}", &table[..2]);
    let good = scene.store.get(&path).expect("a table");
    scene.store.put(&path, &vec![1; good.len()]);
    let refused = scene.run(&["prune", "--remove", "--force", "--unused-for", "0s", FOLDER]).fails();
    assert!(refused.contains("another content than its name says"), "{refused}");
    scene.store.put(&path, &good);
    assert_eq!(scene.objects(), before);
    scene.assert_reads_as(OTHER, "other.raw");
}
