//! Objects of stores that are made: whole, or not at all, whatever happens on the way.

use std::time::{Duration, Instant};

use black_box::peer::{assert_clean, converted};
use black_box::random::Random;
use black_box::{FaultyStore, Moto, Run, Scratch, StoreFault, cowhand};

const MIB: usize = 1 << 20;

/// A disk that takes more than two parts, and a store with a bucket behind a way that loses things.
struct Scene {
    scratch: Scratch,
    store: Moto,
    way: FaultyStore,
    disk: Vec<u8>,
}

impl Scene {
    fn new() -> Self {
        let (scratch, store) = (Scratch::new(), Moto::start());
        let mut disk = Random::of_name("uploads").bytes(30 * MIB);
        disk[3 * MIB..5 * MIB].fill(0);
        disk[20 * MIB..24 * MIB].fill(b'x');
        scratch.write("disk.raw", &disk);
        store.put("/images", b"");
        let way = FaultyStore::start(store.port());
        Self { scratch, store, way, disk }
    }

    fn run(&self, words: &[&str]) -> Run {
        self.way.below(cowhand(words).current_dir(self.scratch.path()))
    }

    /// The object as a file.
    fn fetched(&self, key: &str, name: &str) -> String {
        let object = self.store.get(&format!("/images/{key}")).expect("an object");
        self.scratch.write(name, &object);
        self.scratch.name(name)
    }

    fn assert_nothing_is_left(&self) {
        assert_eq!((self.store.keys("images"), self.store.pending("images")), (vec![], vec![]));
    }
}

#[test]
fn an_object_is_what_qemu_reads_of_the_disk() {
    let scene = Scene::new();
    let of_disk = |words: &[&str]| {
        let words = [&["convert", "--verify", "--force", "-f", "raw"][..], words].concat();
        scene.run(&[&words[..], &["disk.raw", "s3://images/disk"]].concat()).ok();
    };
    of_disk(&["-O", "raw"]);
    assert!(scene.store.get("/images/disk").unwrap() == scene.disk);
    for options in [
        &["-O", "qcow2"][..],
        &["-O", "qcow2", "-c"],
        &["-O", "qcow2", "-c", "-o", "compression_type=zstd,cluster_size=4k"],
        &["-O", "qcow2", "-o", "cluster_size=512,refcount_bits=1"],
        &["-O", "qcow2", "-S", "0", "-o", "compat=0.10"],
    ] {
        of_disk(options);
        let name = scene.fetched("disk", "object.qcow2");
        assert_clean(name.as_ref());
        let read = converted(&name, "qcow2", &[], &scene.scratch.file("back.raw"));
        assert!(read == scene.disk, "{options:?}");
    }
    assert_eq!(scene.store.pending("images"), Vec::<String>::new());
}

#[test]
fn an_overlay_is_uploaded_without_what_is_below_it() {
    let scene = Scene::new();
    let image = |words: &[&str]| Run::new("qemu-img").args(words).current_dir(scene.scratch.path()).ok();
    image(&["create", "-q", "-f", "qcow2", "-F", "raw", "-b", "disk.raw", "top.qcow2"]);
    let writes = ["-c", "write -P 7 1M 100k", "-c", "write -z 9M 3M", "-c", "write -P 8 29M 1M"];
    Run::new("qemu-io").arg("top.qcow2").args(writes).current_dir(scene.scratch.path()).ok();
    let words = ["convert", "-O", "qcow2", "-B", "disk.raw", "-F", "raw", "top.qcow2", "s3://images/top"];
    scene.run(&words).ok();
    let name = scene.fetched("top", "object.qcow2");
    assert_clean(name.as_ref());
    assert!(scene.store.get("/images/top").unwrap().len() < 3 * MIB);
    image(&["compare", "top.qcow2", "object.qcow2"]);
}

#[test]
fn an_object_that_is_there_stays_unless_it_may_be_replaced() {
    let scene = Scene::new();
    scene.store.put("/images/disk", b"precious");
    let words = ["convert", "-O", "qcow2", "disk.raw", "s3://images/disk"];
    let refused = scene.run(&words).fails();
    assert!(refused.contains("there is an object already") && refused.contains("--force"), "{refused}");
    assert_eq!(scene.store.get("/images/disk").unwrap(), b"precious");
    scene.run(&[&words[..], &["--force"]].concat()).ok();
    assert_clean(scene.fetched("disk", "object.qcow2").as_ref());
    for words in [
        &["convert", "-O", "luks", "disk.raw", "s3://images/new"][..],
        &["convert", "-O", "qcow2", "-o", "extended_l2=on", "disk.raw", "s3://images/new"],
        &["convert", "-O", "qcow2", "-o", "preallocation=metadata", "disk.raw", "s3://images/new"],
        &["convert", "-O", "qcow2", "--bitmaps", "disk.raw", "s3://images/new"],
        &["convert", "disk.raw", "s3://images/"],
    ] {
        scene.run(words).fails();
    }
    assert_eq!(scene.store.keys("images"), ["disk"]);
}

/// What was lost is sent again; an answer that was lost is not taken for a failure.
#[test]
fn requests_and_answers_that_are_lost_change_nothing() {
    let scene = Scene::new();
    let faults = [
        ("?uploads=", StoreFault::Status(503)),
        ("partNumber=2", StoreFault::Reset),
        ("partNumber=2", StoreFault::Status(500)),
        ("partNumber=3", StoreFault::LostAnswer),
        ("partNumber=1&", StoreFault::Status(429)),
        ("POST /images/disk?uploadId", StoreFault::LostAnswer),
    ];
    scene.way.plan(&faults);
    scene.run(&["convert", "-O", "qcow2", "disk.raw", "s3://images/disk"]).ok();
    assert_eq!(scene.way.left(), []);
    let name = scene.fetched("disk", "object.qcow2");
    assert_clean(name.as_ref());
    assert!(converted(&name, "qcow2", &[], &scene.scratch.file("back.raw")) == scene.disk);
    assert_eq!(scene.store.pending("images"), Vec::<String>::new());
    scene.scratch.write("small.raw", b"small");
    scene.way.plan(&[("PUT /images/small", StoreFault::LostAnswer)]);
    scene.run(&["convert", "-f", "raw", "small.raw", "s3://images/small"]).ok();
    assert_eq!(scene.store.get("/images/small").unwrap()[..5], *b"small");
}

#[test]
fn an_upload_that_fails_leaves_nothing_and_tells_no_credentials() {
    let scene = Scene::new();
    for fault in [
        ("HEAD /images/disk", 403),
        ("?uploads=", 403),
        ("partNumber=2", 403),
        ("partNumber=3", 400),
        ("partNumber=1&", 403),
        ("POST /images/disk?uploadId", 403),
    ] {
        scene.way.plan(&[(fault.0, StoreFault::Status(fault.1))]);
        let words = ["convert", "-O", "qcow2", "disk.raw", "s3://images/disk"];
        let outcome = scene.run(&words).env("COWHAND_LOG", "trace").outcome();
        let said = format!("{}{}", outcome.stdout, outcome.stderr);
        assert!(!outcome.status.success() && said.contains(&format!("answers {}", fault.1)), "{said}");
        assert!(!said.contains("hush") && !said.contains("quiet"), "{said}");
        scene.assert_nothing_is_left();
    }
}

/// A store that refuses the condition by which an object stays that is made meanwhile.
#[test]
fn a_store_without_conditions_is_written_by_force_alone() {
    let scene = Scene::new();
    scene.scratch.write("small.raw", b"small");
    for (fault, file) in [("POST /images/disk?uploadId", "disk.raw"), ("PUT /images/disk", "small.raw")] {
        scene.way.plan(&[(fault, StoreFault::Status(501))]);
        let refused = scene.run(&["convert", "-f", "raw", file, "s3://images/disk"]).fails();
        assert!(
            refused.contains("does not know If-None-Match") && refused.contains("hint: --force"),
            "{refused}"
        );
        scene.assert_nothing_is_left();
    }
}

#[test]
fn an_upload_that_is_interrupted_leaves_nothing() {
    let scene = Scene::new();
    let words = ["convert", "-O", "raw", "-r", "8M", "disk.raw", "s3://images/disk"];
    let outcome = scene.run(&words).interrupted_when(|| {
        let until = Instant::now() + Duration::from_secs(120);
        while scene.store.pending("images").is_empty() {
            assert!(Instant::now() < until, "nothing is uploaded");
            std::thread::sleep(Duration::from_millis(20));
        }
    });
    assert!(!outcome.status.success(), "{outcome}");
    scene.assert_nothing_is_left();
}

/// The process is asked to end once while a request waits for an answer that does not come: it does not wait, too.
#[test]
fn a_store_that_falls_silent_does_not_keep_an_interrupted_upload() {
    let scene = Scene::new();
    let interrupt_at = |mark: &str| {
        let words = ["convert", "-O", "raw", "disk.raw", "s3://images/disk"];
        // Less than what the server is waited for.
        scene.run(&words).limit(Duration::from_secs(40)).interrupted_when(|| scene.way.wait_for(mark))
    };
    for mark in ["HEAD /images/disk", "?uploads=", "partNumber=2", "POST /images/disk?uploadId"] {
        scene.way.plan(&[(mark, StoreFault::Silence)]);
        let outcome = interrupt_at(mark);
        assert!(!outcome.timed_out && outcome.stderr.contains("interrupted"), "{mark}: {outcome}");
        scene.assert_nothing_is_left();
    }
    scene.way.plan(&[
        ("partNumber=2", StoreFault::Silence),
        ("DELETE /images/disk?uploadId", StoreFault::Silence),
    ]);
    let outcome = interrupt_at("partNumber=2");
    let id = scene.store.pending("images").pop().expect("the upload is there");
    assert!(!outcome.timed_out && outcome.stderr.contains("interrupted"), "{outcome}");
    assert!(
        outcome.stderr.contains(&id)
            && outcome.stderr.contains("is still at the store: the store does not answer"),
        "{id}: {outcome}"
    );
}
