//! Published checkpoints: what is read, sent and kept; disks that begin as one.

use std::ops::Deref;
use std::path::Path;
use std::time::{Duration, Instant};

use black_box::peer::{assert_clean, qemu_img, qemu_io_ok};
use black_box::qmp::Qmp;
use black_box::random::{Random, number};
use black_box::server::{Server, Start};
use black_box::{Nginx, Run, StoreFault, StoreScene};
use serde_json::{Value, json};

const MIB: usize = 1 << 20;
const NAME: &str = "s3://images/vms/d";

/// A disk `d.qcow2` of 12 chunks of noise with a checkpoint `one`, and a store behind a way that loses things.
struct Scene(StoreScene);

impl Deref for Scene {
    type Target = StoreScene;

    fn deref(&self) -> &StoreScene {
        &self.0
    }
}

impl Scene {
    fn new() -> Self {
        let scene = Self(StoreScene::new());
        scene.scratch.write("noise.raw", &Random::of_name("published").bytes(12 * MIB));
        let (raw, disk) = (scene.scratch.name("noise.raw"), scene.scratch.name("d.qcow2"));
        qemu_img(["convert", "-f", "raw", "-O", "qcow2", &raw, &disk]).ok();
        scene.checkpoint("one");
        scene
    }

    fn checkpoint(&self, name: &str) {
        self.run(&["checkpoint", "-q", "d.qcow2", name]).ok();
    }

    fn writes(&self, commands: &[&str]) {
        qemu_io_ok(&["-f", "qcow2"], &self.scratch.name("d.qcow2"), commands);
    }

    fn publish(&self, words: &[&str]) -> Value {
        self.run(&[&["publish", "--output", "json"], words].concat()).json()
    }

    /// A server of the disk in its sandbox, with the control socket `qmp`. Commands reach files of the directory, and the store if `store` says so.
    fn serve(&self, store: bool) -> (Server, Qmp) {
        let path = ["--allow-path".to_owned(), self.scratch.path().display().to_string()];
        let port = ["--allow-connect".to_owned(), format!("127.0.0.1:{}", self.store.port())];
        let options = path.into_iter().chain(port.into_iter().filter(|_| store));
        self.serve_with(self.store.endpoint(), options.chain([self.scratch.name("d.qcow2")]))
    }

    fn keys(&self) -> Vec<String> {
        self.store.keys("images")
    }
}

/// What was read, how many objects were made, and whether anything changed.
fn figures(report: &Value) -> (u64, u64, bool) {
    let number = |name: &str| report[name].as_u64().expect("a number");
    (number("read-bytes"), number("uploaded"), report["changed"].as_bool().expect("a bool"))
}

fn text<'a>(report: &'a Value, name: &str) -> &'a str {
    report[name].as_str().unwrap_or_else(|| panic!("no {name} in {report}"))
}

/// Each upload of a disk read all of it, and sent what the store had.
#[test]
fn a_later_checkpoint_costs_what_the_layers_above_the_published_one_say() {
    let scene = Scene::new();
    let first = scene.bytes("d.qcow2");
    let one = scene.publish(&["d.qcow2@one", NAME]);
    assert_eq!((figures(&one), &one["parent"]), ((12 * MIB as u64, 13, true), &Value::Null));
    scene.writes(&["write -P 7 5M 64k", "write -z 9M 1M"]);
    let second = scene.bytes("d.qcow2");
    scene.checkpoint("two");
    let dry = scene.publish(&["-n", "d.qcow2@two", NAME]);
    assert_eq!((figures(&dry), text(&dry, "parent")), ((MIB as u64, 0, false), text(&one, "image")));
    drop(scene.way.requests());
    let two = scene.publish(&["d.qcow2@two", NAME]);
    assert_eq!((figures(&two), text(&two, "parent")), ((MIB as u64, 3, true), text(&one, "image")));
    let requests = scene.way.requests();
    let count = |method: &str| requests.iter().filter(|line| line.starts_with(method)).count();
    // Announced (and whether a removal runs), the manifest, its table; what has changed of the chunk, tables; the manifests.
    assert_eq!((count("HEAD"), count("PUT"), count("GET"), count("DELETE")), (4, 6, 3, 1), "{requests:#?}");
    // The first checkpoint is there for ever, under the name that says so.
    scene.assert_reads_as(text(&one, "image"), &first);
    for image in [NAME, text(&two, "image")] {
        scene.assert_reads_as(image, &second);
    }
    let again = scene.publish(&["d.qcow2@two", NAME]);
    assert_eq!(figures(&again), (0, 0, false));
    // Another branch: only what differs from the published one is read.
    scene.run(&["rollback", "-q", "d.qcow2", "@one"]).ok();
    scene.writes(&["write -P 8 2M 4k"]);
    scene.checkpoint("three");
    let three = scene.publish(&["d.qcow2@three", NAME]);
    assert_eq!((figures(&three).0, text(&three, "parent")), (3 * MIB as u64, text(&two, "image")));
    scene.assert_reads_as(NAME, &scene.bytes("d.qcow2"));
    let unused = scene.run(&["prune", "--output", "json", "--unused-for", "0s", "s3://images/vms"]).json();
    assert_eq!((&unused["unused"], &unused["images"]), (&Value::Array(vec![]), &4.into()), "{unused}");
    assert_eq!(scene.keys().iter().filter(|key| key.contains("pushing")).count(), 0);
}

/// A fork that was published to a name of its own was read whole, unless its user knew which name to compare with.
#[test]
fn a_parent_is_found_under_any_name_of_the_folder() {
    let scene = Scene::new();
    let one = scene.publish(&["--chunk-size", "2M", "d.qcow2@one", NAME]);
    scene.writes(&["write -P 7 5M 64k"]);
    scene.checkpoint("two");
    let two = scene.publish(&["d.qcow2@two", NAME]);
    scene.writes(&["write -P 7 6M 64k"]);
    scene.checkpoint("three");
    let three = scene.publish(&["d.qcow2@three", NAME]);
    scene.run(&["fork", "-q", "d.qcow2@two", "f.qcow2"]).ok();
    qemu_io_ok(&["-f", "qcow2"], &scene.scratch.name("f.qcow2"), &["write -P 9 0 64k"]);
    scene.run(&["checkpoint", "-q", "f.qcow2", "forked"]).ok();
    let bytes = scene.bytes("f.qcow2");
    let publish = |words: &[&str], name: &str| {
        let report = scene.publish(&[words, &["f.qcow2@forked", name]].concat());
        (figures(&report), report["parent"].as_str().map(str::to_owned))
    };
    let image = |of: &Value| Some(text(of, "image").to_owned());
    let mib = MIB as u64;
    // The nearest one, whose chunks have the size that the new image takes over.
    drop(scene.way.requests());
    assert_eq!(publish(&[], "s3://images/vms/f"), ((2 * mib, 3, true), image(&two)));
    let listed = scene.way.requests().iter().filter(|line| line.contains("list-type")).count();
    assert_eq!(listed, 2);
    scene.assert_reads_as("s3://images/vms/f", &bytes);
    let said = scene.run(&["publish", "-n", "f.qcow2@forked", "s3://images/vms/g"]).ok();
    assert!(said.contains("would read 0 B since s3://images/vms/f@"), "{said}");
    // By hand: another one, and none.
    assert_eq!(publish(&["-n", "--parent", NAME], "s3://images/vms/g"), ((4 * mib, 0, false), image(&three)));
    let named = text(&one, "image");
    assert_eq!(publish(&["-n", "--parent", named], "s3://images/vms/g"), ((4 * mib, 0, false), image(&one)));
    assert_eq!(publish(&["-n", "--parent", "none"], "s3://images/vms/f"), ((12 * mib, 0, false), None));
    // Another size of chunks has no parent, and another folder neither.
    assert_eq!(publish(&["-n", "--chunk-size", "1M"], "s3://images/vms/g"), ((12 * mib, 0, false), None));
    assert_eq!(publish(&["-n"], "s3://images/other/g"), ((12 * mib, 0, false), None));
    for (words, says) in [
        (&["--chunk-size", "1M", "--parent", NAME][..], "chunks of s3://images/vms/d have another size"),
        (&["--parent", "s3://images/vms/e"], "the lineage has no checkpoint of s3://images/vms/e"),
    ] {
        scene.store.put("/images/vms/e.json", &other_lineage(&scene));
        let refused =
            scene.run(&[&["publish"], words, &["f.qcow2@forked", "s3://images/vms/g"]].concat()).fails();
        assert!(refused.contains(says), "{refused}");
    }
    // A store that lists nothing has everything read.
    scene.way.plan(&[("GET /images?", StoreFault::Status(403))]);
    let whole =
        scene.run(&["publish", "-n", "--output", "json", "f.qcow2@forked", "s3://images/vms/g"]).outcome();
    assert!(whole.stderr.contains("no parent is looked for"), "{whole}");
    let whole: Value = serde_json::from_str(&whole.stdout).expect("JSON");
    assert_eq!((figures(&whole).0, &whole["parent"]), (12 * mib, &Value::Null));
}

/// The manifest of the disk, as one of a lineage that is not here.
fn other_lineage(scene: &Scene) -> Vec<u8> {
    let bytes = scene.store.get("/images/vms/d.json").expect("a manifest");
    let mut manifest: Value = serde_json::from_slice(&bytes).expect("JSON");
    manifest["checkpoints"] = serde_json::json!([{ "id": "0123456789abcdef" }]);
    serde_json::to_vec(&manifest).expect("JSON")
}

#[test]
fn a_checkpoint_of_a_disk_that_is_served_is_published_while_it_is_written() {
    let scene = Scene::new();
    let (disk, qmp) = (scene.scratch.name("d.qcow2"), scene.scratch.name("qmp"));
    scene.publish(&["d.qcow2@one", NAME]);
    let mut server =
        Start::new(["--qmp", &qmp, &disk]).listen().unwrap_or_else(|error| panic!("{}", error.0));
    server.wait_until(|server| server.stdout().contains("control:").then_some(())).expect("it serves");
    let mut client = server.client("");
    client.write(3 << 20, &[3; 4096]).expect("a write");
    scene.run(&["checkpoint", "-q", "qmp", "live"]).ok();
    client.write(3 << 20, &[4; 4096]).expect("a write");
    let live = scene.publish(&["qmp@live", NAME]);
    assert_eq!(figures(&live), (MIB as u64, 3, true));
    client.write(4 << 20, &[5; 4096]).expect("a write");
    client.flush().expect("a flush");
    server.stop();
    let layer = format!("layers/{}.qcow2", text(&live, "id"));
    scene.assert_reads_as(NAME, &scene.bytes(&layer));
    assert_ne!(scene.bytes(&layer), scene.bytes("d.qcow2"));
}

/// Bytes behind the end of a shorter layer are zeroes, whatever the layers below have there.
#[test]
fn checkpoints_of_other_lengths_are_published_as_they_are() {
    let scene = Scene::new();
    scene.publish(&["d.qcow2@one", NAME]);
    for (number, size) in ["7M", "12M", "12801K", "20M", "3M"].iter().enumerate() {
        scene.run(&["resize", "-q", "--shrink", "d.qcow2", size]).ok();
        let name = format!("n{number}");
        scene.checkpoint(&name);
        scene.publish(&[&format!("d.qcow2@{name}"), NAME]);
        scene.assert_reads_as(NAME, &scene.bytes("d.qcow2"));
    }
    for (_, name) in [(0, "one"), (1, "n1"), (2, "n3")] {
        scene.publish(&[&format!("d.qcow2@{name}"), NAME]);
        let id = text(&scene.publish(&["-n", &format!("d.qcow2@{name}"), NAME]), "id").to_owned();
        scene.assert_reads_as(NAME, &scene.bytes(&format!("layers/{id}.qcow2")));
    }
}

/// What the layers say is not asked of the store: a chain without its published layer is read whole, and sends what is new.
#[test]
fn a_lineage_that_has_lost_the_published_checkpoint_reads_all_and_sends_what_is_new() {
    let scene = Scene::new();
    scene.publish(&["d.qcow2@one", NAME]);
    scene.writes(&["write -P 7 5M 64k"]);
    scene.checkpoint("two");
    let two = scene.publish(&["d.qcow2@two", NAME]);
    scene.run(&["rollback", "-q", "d.qcow2", "@one"]).ok();
    scene.run(&["checkpoint", "-q", "--delete", "d.qcow2@two"]).ok();
    scene.run(&["gc", "-q", "--unnamed", "--remove", "d.qcow2"]).ok();
    scene.writes(&["write -P 8 6M 64k"]);
    scene.checkpoint("three");
    // The next one that both know is "one", whose image stayed.
    let three = scene.publish(&["d.qcow2@three", NAME]);
    assert_eq!((figures(&three).0, figures(&three).1), (MIB as u64, 3));
    assert_ne!(text(&three, "parent"), text(&two, "image"));
    scene.assert_reads_as(NAME, &scene.bytes("d.qcow2"));
    // Nor is the one that it was published as.
    scene.store.delete(&format!("/images/vms/d@{}.json", text(&three, "id")));
    let lasting = text(&three, "parent").strip_prefix("s3:/").expect("an object").to_owned();
    scene.store.put(&format!("{lasting}.json"), scene.store.get("/images/vms/d.json").as_deref().unwrap());
    // It is not what it is called, and is not taken for that.
    scene.store.put(
        "/images/vms/d.json",
        &scene.store.get(&format!("/images/vms/d@{}.json", text(&two, "id"))).unwrap(),
    );
    let whole = scene.publish(&["d.qcow2@three", NAME]);
    assert_eq!((figures(&whole), &whole["parent"]), ((12 * MIB as u64, 1, true), &Value::Null));
    scene.assert_reads_as(NAME, &scene.bytes("d.qcow2"));
}

/// A store that asks for less (503 SlowDown) is asked again; what was sent before an end stays for the next time.
#[test]
fn a_publish_that_is_slowed_down_or_interrupted_loses_nothing() {
    let scene = Scene::new();
    scene.way.plan(&[
        ("PUT /images/vms/pushing", StoreFault::Status(503)),
        ("HEAD /images/vms/chunks", StoreFault::Status(503)),
        ("PUT /images/vms/chunks", StoreFault::Status(503)),
        ("PUT /images/vms/chunks", StoreFault::LostAnswer),
        ("PUT /images/vms/d%40", StoreFault::Status(503)),
        ("PUT /images/vms/d.json", StoreFault::Status(503)),
        ("PUT /images/vms/d.json", StoreFault::LostAnswer),
    ]);
    scene.publish(&["d.qcow2@one", NAME]);
    assert_eq!(scene.way.left(), []);
    scene.assert_reads_as(NAME, &scene.bytes("d.qcow2"));
    let before = scene.keys();
    scene.scratch.write("more.raw", &Random::of_name("more").bytes(300 * MIB));
    let disk = scene.scratch.name("m.qcow2");
    qemu_img(["convert", "-f", "raw", "-O", "qcow2", &scene.scratch.name("more.raw"), &disk]).ok();
    scene.run(&["checkpoint", "-q", "m.qcow2", "much"]).ok();
    let words = ["publish", "m.qcow2@much", NAME];
    let outcome = scene.run(&words).interrupted_when(|| {
        let until = Instant::now() + Duration::from_secs(120);
        while scene.keys().iter().filter(|key| key.contains("/chunks/")).count() < before.len() + 4 {
            assert!(Instant::now() < until, "nothing is uploaded");
            std::thread::sleep(Duration::from_millis(5));
        }
    });
    assert!(!outcome.status.success() && outcome.stderr.contains("interrupted"), "{outcome}");
    scene.assert_reads_as(NAME, &scene.bytes("d.qcow2"));
    assert!(scene.keys().iter().all(|key| !key.contains("pushing")), "{:?}", scene.keys());
    let rest = scene.run(&["publish", "--output", "json", "m.qcow2@much", NAME]).outcome();
    assert!(rest.status.success() && rest.peak_rss_bytes < 128 << 20, "{rest}");
    let rest: Value = serde_json::from_str(&rest.stdout).expect("JSON");
    assert!((1..301).contains(&figures(&rest).1), "{rest}");
    scene.assert_reads_as(NAME, &std::fs::read(scene.scratch.file("more.raw")).expect("a disk"));
}

/// A store that asks for less all the time: each answer costs one more request, and no storm of them.
#[test]
fn a_store_that_goes_on_asking_for_less_gets_one_more_request_for_each_answer() {
    let scene = Scene::new();
    let slow = |what| [(what, StoreFault::Status(503))];
    let faults = [slow("HEAD /images/vms/chunks"), slow("PUT /images/vms/chunks")].concat().repeat(10);
    scene.way.plan(&faults);
    let one = scene.publish(&["d.qcow2@one", NAME]);
    assert_eq!((scene.way.left(), figures(&one).1), (vec![], 13));
    let requests = scene.way.requests();
    let count = |what: &str| requests.iter().filter(|line| line.starts_with(what)).count();
    assert_eq!(count("HEAD /images/vms/chunks"), 13 + 10, "{requests:#?}");
    assert_eq!(count("PUT /images/vms/chunks"), 13 + 10, "{requests:#?}");
    scene.assert_reads_as(NAME, &scene.bytes("d.qcow2"));
}

#[test]
fn what_cannot_be_published_or_restored_is_refused_with_its_reason() {
    let scene = Scene::new();
    scene.run(&["push", "-q", "d.qcow2", "s3://images/vms/pushed"]).ok();
    let id = text(&scene.publish(&["d.qcow2@one", NAME]), "id").to_owned();
    let kept = format!("{NAME}@{id}");
    for (words, says) in [
        (&["publish", "d.qcow2", NAME][..], "must be DISK@NAME"),
        (&["publish", "d.qcow2@none", NAME], "none"),
        (&["publish", "d.qcow2@one", "disk"], "allowed: s3://BUCKET/FOLDER/NAME"),
        (
            &["publish", "--parent", "s3://images/other/d", "d.qcow2@one", NAME],
            "allowed: none, or a name in the folder of",
        ),
        (&["publish", "--parent", "s3://images/vms/none", "d.qcow2@one", NAME], "none.json is not there"),
        (&["publish", "--parent", "s3://images/vms/pushed", "d.qcow2@one", NAME], "it was pushed"),
        (&["restore", "s3://images/vms/pushed", "n.qcow2"], "may be replaced by the next push"),
        (&["restore", "--at", "x", "s3://images/vms/pushed", "n.qcow2"], "has no checkpoints"),
        (&["restore", "--at", "none", NAME, "n.qcow2"], "has no checkpoint none; it has: one"),
        (&["restore", "s3://images/vms/none", "n.qcow2"], "none.json is not there"),
        (&["restore", "disk", "n.qcow2"], "allowed: s3://BUCKET/FOLDER/NAME"),
        (&["restore", "https://me:hush@localhost/x", "n.qcow2"], "cannot restore"),
        (&["restore", NAME, "d.qcow2"], "there is a file already"),
        // Disks are backed by it.
        (&["push", "d.qcow2", &kept], "stays the checkpoint ID"),
        (&["publish", "d.qcow2@one", &kept], "stays the checkpoint ID"),
        (&["publish", "--force", "d.qcow2@one", &kept], "stays the checkpoint ID"),
    ] {
        let refused = scene.run(words).fails();
        assert!(refused.contains(says) && !refused.contains("hush"), "{words:?}: {refused}");
    }
    assert!(!scene.scratch.file("n.qcow2").exists());
    // Its image is gone, the name that replaces it is there.
    scene.store.delete(&format!("/images/vms/d@{id}.json"));
    let refused = scene.run(&["restore", NAME, "n.qcow2"]).fails();
    assert!(refused.contains(&format!("d@{id}.json is not there")), "{refused}");
    let again = scene.publish(&["d.qcow2@one", NAME]);
    assert_eq!(figures(&again), (0, 0, true));
    // A layer that was written is no checkpoint any more.
    let layer = scene.scratch.name(&format!("layers/{id}.qcow2"));
    Run::new("chmod").args(["u+w", &layer]).ok();
    qemu_io_ok(&["-f", "qcow2"], &layer, &["write -P 1 0 64k"]);
    let refused = scene.run(&["publish", "d.qcow2@one", NAME]).fails();
    assert!(refused.contains(&id) && refused.contains("written"), "{refused}");
}

/// A disk that was made over a name became another one when that was published again.
#[test]
fn a_restored_disk_stays_what_it_was_whatever_is_published_later() {
    let scene = Scene::new();
    let first = scene.bytes("d.qcow2");
    scene.publish(&["d.qcow2@one", NAME]);
    let made = scene.run(&["restore", "--output", "json", NAME, "r.qcow2"]).json();
    let backing = text(&made, "backing").to_owned();
    scene.writes(&["write -P 7 5M 64k"]);
    scene.checkpoint("two");
    let second = scene.bytes("d.qcow2");
    let two = scene.publish(&["d.qcow2@two", NAME]);
    scene.scratch.write("first.raw", &first);
    scene.scratch.write("second.raw", &second);
    let refused = scene.run(&["compare", "-F", "raw", "r.qcow2", "first.raw"]).fails();
    assert!(refused.contains(&format!("--allow-name {backing}")), "{refused}");
    scene.run(&["compare", "--allow-name", &backing, "-F", "raw", "r.qcow2", "first.raw"]).ok();
    // Whole, of now and of then; these need no store.
    let said = scene.run(&["restore", "--full", NAME, "whole.qcow2"]).ok();
    assert!(said.contains(text(&two, "image")) && !said.contains("--allow-name"), "{said}");
    assert!(scene.bytes("whole.qcow2") == second);
    scene.run(&["restore", "-q", "--full", "--at", "one", NAME, "then.qcow2"]).ok();
    assert!(scene.bytes("then.qcow2") == first);
    let at = scene.run(&["restore", "--output", "json", "--at", "one", NAME, "at.qcow2"]).json();
    assert_eq!(text(&at, "backing"), backing);
    scene.run(&["restore", "-q", "--full", "s3://images/vms/pushed", "none.qcow2"]).fails();
    // QEMU has no driver for the backing file of the others.
    assert_clean(Path::new(&scene.scratch.name("whole.qcow2")));
    for disk in ["r.qcow2", "at.qcow2"] {
        scene.run(&["check", "--allow-name", &backing, disk]).ok();
    }

    // A copy of the folder on a web server will do to begin with.
    scene.store.save("images", scene.scratch.path());
    let nginx = Nginx::start(scene.scratch.path(), &crate::remote::certificates());
    let web =
        scene.run(&["restore", "--output", "json", "--at", "one", &nginx.url("/vms/d"), "web.qcow2"]).json();
    let compare = ["compare", "--allow-name", text(&web, "backing"), "-F", "raw", "web.qcow2", "first.raw"];
    scene.run(&compare).ok();

    // It has checkpoints of its own, which are published as those of the lineage that it comes from.
    let allow = ["--allow-name", &backing];
    scene.run(&[&["io", "-c", "write -P 5 1M 64k"], &allow[..], &["r.qcow2"]].concat()).ok();
    scene.run(&["checkpoint", "-q", "r.qcow2", "mine"]).ok();
    let words = [&allow[..], &["r.qcow2@mine", "s3://images/vms/r"]].concat();
    let mine = scene.publish(&words);
    assert_eq!(
        (figures(&mine), &mine["parent"]),
        ((MIB as u64, 3, true), &backing["chunked:".len()..].into())
    );
    let mut bytes = first;
    bytes[MIB..MIB + (64 << 10)].fill(5);
    scene.assert_reads_as("s3://images/vms/r", &bytes);
    scene.run(&["restore", "-q", "--at", "one", "s3://images/vms/r", "r2.qcow2"]).fails();
}

/// A restored disk was served and streamed by three commands, or was waited for until all of it had come.
#[test]
fn a_server_serves_a_restored_disk_at_once_and_fetches_the_rest_as_a_job() {
    let scene = Scene::new();
    let mut bytes = scene.bytes("d.qcow2");
    let one = scene.publish(&["d.qcow2@one", NAME]);
    let (server, mut qmp) = scene.serve(true);
    let restore = ["restore", "--server", "qmp", "--serve", "-r", "64k", "--output", "json"];
    let made = scene.run(&[&restore[..], &[NAME, "new.qcow2"]].concat()).json();
    assert_eq!((text(&made, "job"), text(&made, "node-name")), ("restore-new", "new"));
    assert_eq!((text(&made, "image"), &made["virtual-size"]), (text(&one, "image"), &(12 * MIB).into()));
    let mut client = server.client("new");
    client.write(5 << 20, &[9; 4096]).expect("a write");
    bytes[5 * MIB..5 * MIB + 4096].fill(9);
    assert!(client.read_all().expect("a disk") == bytes);
    let job = qmp.ok("query-block-jobs", json!({}))[0].clone();
    assert_eq!((text(&job, "type"), text(&job, "device")), ("cowhand-restore", "restore-new"));
    assert_eq!((&job["speed"], &job["len"]), (&(64 << 10).into(), &(12 * MIB).into()), "{job}");
    qmp.ok("job-pause", json!({ "id": "restore-new" }));
    qmp.ok("job-resume", json!({ "id": "restore-new" }));
    // Another one is cancelled: its disk stays, and fetches what is read.
    let words = ["restore", "-q", "--server", "qmp", "-r", "64k", "--at", "one", NAME, "given-up.qcow2"];
    scene.run(&words).ok();
    qmp.ok("job-cancel", json!({ "id": "restore-given-up" }));
    qmp.event_of("BLOCK_JOB_CANCELLED", "device", "restore-given-up");
    let export = json!({ "type": "nbd", "id": "given-up", "node-name": "given-up" });
    qmp.ok("block-export-add", export);
    assert!(server.client("given-up").read(7 << 20, 4096).expect("a read") == bytes[7 * MIB..7 * MIB + 4096]);
    qmp.ok("block-job-set-speed", json!({ "device": "restore-new", "speed": 0 }));
    let done = qmp.event_of("BLOCK_JOB_COMPLETED", "device", "restore-new");
    assert_eq!(done["data"]["error"], Value::Null, "{done}");
    scene.run(&["restore", "-q", "--full", "--server", "qmp", NAME, "whole.qcow2"]).ok();
    for (words, says) in [
        (&[NAME, "d.qcow2"][..], "there is a file already"),
        (&["--at", "none", NAME, "x.qcow2"], "has no checkpoint none; it has: one"),
        (&["s3://images/vms/none", "x.qcow2"], "none.json is not there"),
        (&["--serve=ublk,number=x", NAME, "x.qcow2"], "number"),
        (&["--serve=vhost-user-blk,addr.type=unix,addr.path=/none/x", NAME, "x.qcow2"], "/none/x"),
        (&[NAME, "sub/new.qcow2"], "new"),
    ] {
        std::fs::create_dir_all(scene.scratch.file("sub")).expect("a directory");
        let refused = scene.run(&[&["restore", "--server", "qmp"], words].concat()).fails();
        assert!(refused.contains(says), "{words:?}: {refused}");
        // Nothing is left of it.
        assert!(!scene.scratch.file("x.qcow2").exists() && !scene.scratch.file("sub/new.qcow2").exists());
        let nodes = qmp.ok("query-named-block-nodes", json!({ "flat": true }));
        assert!(!nodes.to_string().contains("x.qcow2"), "{words:?}: {nodes}");
    }
    drop(client);
    server.stop();
    // These need the store no more.
    assert!(scene.bytes("new.qcow2") == bytes);
    assert_clean(Path::new(&scene.scratch.name("new.qcow2")));
    bytes[5 * MIB..5 * MIB + 4096].copy_from_slice(&scene.bytes("whole.qcow2")[5 * MIB..5 * MIB + 4096]);
    assert!(scene.bytes("whole.qcow2") == bytes);
    // One whose sandbox leads nowhere says how it would.
    let (server, _) = scene.serve(false);
    let refused = scene.run(&["restore", "--server", "qmp", NAME, "x.qcow2"]).fails();
    assert!(refused.contains("--allow-connect") && !scene.scratch.file("x.qcow2").exists(), "{refused}");
    server.stop();
}

/// A server's clients could take checkpoints and not publish them.
#[test]
fn a_server_publishes_as_a_job_that_is_slowed_paused_and_cancelled() {
    let scene = Scene::new();
    let bytes = scene.bytes("d.qcow2");
    let (server, mut qmp) = scene.serve(true);
    let publish = |more: Value| {
        let mut arguments = json!({ "node-name": "d", "checkpoint": "one", "target": NAME, "job-id": "p" });
        arguments.as_object_mut().expect("arguments").extend(more.as_object().expect("more").clone());
        arguments
    };
    for (more, says) in [
        (json!({ "checkpoint": "none" }), "none"),
        (json!({ "target": "disk" }), "allowed: s3://BUCKET/FOLDER/NAME"),
        (json!({ "chunk-size": 5 }), "chunk-size is 5"),
        (json!({ "node-name": "x" }), "x"),
    ] {
        let refused = qmp.refused("cowhand-publish", publish(more));
        assert!(refused.contains(says), "{refused}");
    }
    let answer = qmp.ok("cowhand-publish", publish(json!({ "speed": 1 << 20 })));
    let keys = |mark: &str| scene.keys().iter().filter(|key| key.contains(mark)).count();
    let until = |is_so: &dyn Fn() -> bool| {
        let end = Instant::now() + Duration::from_secs(60);
        while !is_so() {
            assert!(Instant::now() < end, "{:?}", scene.keys());
            std::thread::sleep(Duration::from_millis(10));
        }
    };
    until(&|| keys("/chunks/") > 1 && keys("/pushing/") == 1);
    let job = qmp.ok("query-block-jobs", json!({}))[0].clone();
    assert_eq!((text(&job, "type"), &job["len"]), ("cowhand-publish", &(12 * MIB).into()), "{job}");
    // It rests, and no chunk is sent.
    qmp.ok("job-pause", json!({ "id": "p" }));
    qmp.event_where("JOB_STATUS_CHANGE", |data| data["status"] == "paused");
    std::thread::sleep(Duration::from_millis(1500));
    let (sent, mut client) = (keys("/chunks/"), server.client("d"));
    client.write(0, &[1; 4096]).expect("a write");
    std::thread::sleep(Duration::from_millis(1500));
    assert_eq!(keys("/chunks/"), sent);
    qmp.ok("job-resume", json!({ "id": "p" }));
    qmp.ok("job-cancel", json!({ "id": "p" }));
    qmp.event_of("BLOCK_JOB_CANCELLED", "device", "p");
    assert_eq!((keys("/pushing/"), keys(".json")), (0, 0), "{:?}", scene.keys());
    // What was sent is not sent again; the checkpoint is what it was.
    qmp.ok("cowhand-publish", publish(json!({ "speed": 1 })));
    qmp.ok("block-job-set-speed", json!({ "device": "p", "speed": 0 }));
    let done = qmp.event_of("BLOCK_JOB_COMPLETED", "device", "p");
    assert_eq!(
        (&done["data"]["error"], &done["data"]["offset"]),
        (&Value::Null, &(12 * MIB).into()),
        "{done}"
    );
    for image in [NAME, text(&answer, "image")] {
        scene.assert_reads_as(image, &bytes);
    }
    // What the store says fails the job.
    let parent = json!({ "parent": "s3://images/vms/none", "auto-dismiss": false });
    qmp.ok("cowhand-publish", publish(parent));
    let failed = qmp.event_of("BLOCK_JOB_COMPLETED", "device", "p");
    assert!(failed["data"]["error"].to_string().contains("none.json is not there"), "{failed}");
    qmp.ok("job-dismiss", json!({ "id": "p" }));
    // Its chunks are the disk's that is published next, by the tool.
    drop(client);
    scene.run(&["checkpoint", "-q", "qmp", "two"]).ok();
    let two = scene.publish(&["qmp@two", NAME]);
    assert_eq!((figures(&two), text(&two, "parent")), ((MIB as u64, 3, true), text(&answer, "image")));
    server.stop();
}

/// Rounds of kills; `COWHAND_KILL_ROUNDS` says otherwise.
const KILL_ROUNDS: u64 = 9;

/// Kill -9 at any moment of any command on a store: each name is the checkpoint from before or the new one, and what it leads to is there.
#[test]
fn a_command_on_a_store_that_is_killed_leaves_each_image_as_before_or_as_after() {
    let scene = Scene::new();
    let mut random = Random::new(number("COWHAND_KILL_SEED").unwrap_or(3));
    scene.publish(&["d.qcow2@one", NAME]);
    let one = scene.bytes("d.qcow2");
    let mut published = one.clone();
    let mut killed = [0; 3];
    for round in 0..number("COWHAND_KILL_ROUNDS").unwrap_or(KILL_ROUNDS).max(KILL_ROUNDS) {
        let (name, new) = (format!("n{round}"), format!("r{round}.qcow2"));
        scene.writes(&[&format!("write -P {} {}M 3M", round + 1, round % 8)]);
        scene.checkpoint(&name);
        let newest = scene.bytes("d.qcow2");
        let checkpoint = format!("d.qcow2@{name}");
        let commands: [&[&str]; 3] = [
            &["publish", &checkpoint, NAME],
            &["restore", "--full", NAME, &new],
            &["prune", "--remove", "--force", "--unused-for", "0s", "s3://images/vms"],
        ];
        for (which, words) in commands.into_iter().enumerate() {
            // Each is killed at once the first time: no machine is so fast that it ends before.
            let delay = Duration::from_micros(if round == 0 { 0 } else { random.below(400_000) });
            killed[which] += u64::from(scene.run(words).killed_after(delay));
            // What it announced counts for a day, or until its user removes it.
            for key in
                scene.keys().iter().filter(|key| key.contains("/pushing/") || key.ends_with("/removing"))
            {
                scene.store.delete(&format!("/images/{key}"));
            }
            scene.run(&["pull", "-q", NAME, "back.raw"]).ok();
            let found = std::fs::read(scene.scratch.file("back.raw")).expect("an image");
            assert!(found == published || found == newest, "round {round}: {words:?}");
            published = found;
        }
        // What was killed is done by the next one.
        if scene.scratch.file(&new).exists() {
            assert!(scene.bytes(&new) == published, "round {round}: a disk is there that is not whole");
            std::fs::remove_file(scene.scratch.file(&new)).expect("a disk");
        }
        scene.run(&["restore", "-q", "--full", NAME, &new]).ok();
        assert!(scene.bytes(&new) == published, "round {round}");
        scene.publish(&[&checkpoint, NAME]);
        scene.assert_reads_as(NAME, &newest);
        published = newest;
        let names = std::fs::read_dir(scene.scratch.path()).expect("a directory");
        let names = names.map(|entry| entry.expect("an entry").file_name().into_string().expect("text"));
        let unknown = names.filter(|name| !name.ends_with(".qcow2") && !name.ends_with(".raw"));
        // A copy that was killed leaves its part (write-order.md).
        let part = format!(".{new}.part-");
        let (parts, left): (Vec<String>, Vec<String>) = unknown.partition(|name| name.starts_with(&part));
        parts.iter().for_each(|part| std::fs::remove_file(scene.scratch.file(part)).expect("a part"));
        assert_eq!(left, ["layers"], "round {round}");
    }
    assert!(killed.iter().all(|count| *count > 0), "commands that were not killed: {killed:?}");
    scene.run(&["prune", "--remove", "--force", "--unused-for", "0s", "s3://images/vms"]).ok();
    scene.assert_reads_as(NAME, &published);
    scene.assert_reads_as(&format!("{NAME}@{}", first_id(&scene)), &one);
}

/// The id of the checkpoint `one`.
fn first_id(scene: &Scene) -> String {
    let log = scene.run(&["log", "--output", "json", "d.qcow2"]).json();
    let layers = log["layers"].as_array().expect("layers");
    let one = layers.iter().find(|layer| layer["name"] == "one").expect("a checkpoint");
    text(one, "id").to_owned()
}
