//! Chunked images: what was pushed is read, what is damaged is not, and what is there is not uploaded again.

use std::time::{Duration, Instant};

use black_box::peer::converted;
use black_box::random::Random;
use black_box::{FaultyStore, Moto, Nginx, Run, Scratch, StoreFault, cowhand};

const MIB: usize = 1 << 20;
const IMAGE: &str = "s3://images/base/debian";
const DISK: &str = "chunked:s3://images/base/debian";

/// A disk with data and zeroes that ends within a chunk, and a store with a bucket behind a way that loses things.
struct Scene {
    scratch: Scratch,
    store: Moto,
    way: FaultyStore,
    disk: Vec<u8>,
}

impl Scene {
    fn new() -> Self {
        let (scratch, store) = (Scratch::new(), Moto::start());
        let mut disk = Random::of_name("chunked").bytes(9 * MIB + 512);
        disk[2 * MIB..5 * MIB].fill(0);
        scratch.write("disk.raw", &disk);
        Run::new("fallocate").args(["-d", "disk.raw"]).current_dir(scratch.path()).ok();
        store.put("/images", b"");
        let way = FaultyStore::start(store.port());
        Self { scratch, store, way, disk }
    }

    fn run(&self, words: &[&str]) -> Run {
        self.way.below(cowhand(words).current_dir(self.scratch.path()))
    }

    /// Pushes, and gives what was read, uploaded and published.
    fn push(&self, words: &[&str]) -> (u64, u64, bool) {
        let report = self.run(&[&["push", "--output", "json"], words].concat()).json();
        let number = |name: &str| report[name].as_u64().expect("a number");
        (number("read-bytes"), number("uploaded"), report["changed"].as_bool().expect("a bool"))
    }

    fn push_disk(&self) -> (u64, u64, bool) {
        self.push(&["-f", "raw", "disk.raw", IMAGE])
    }

    fn assert_reads_as(&self, disk: &[u8]) {
        self.run(&["pull", IMAGE, "back.raw"]).ok();
        assert!(std::fs::read(self.scratch.file("back.raw")).expect("an image") == disk);
    }

    /// The objects that are named by their content.
    fn chunks(&self) -> Vec<String> {
        let keys = self.store.keys("images").into_iter();
        keys.filter(|key| key.starts_with("base/chunks/")).collect()
    }

    /// A chunk of data of the disk.
    fn chunk(&self) -> String {
        let is_chunk =
            |key: &&String| self.store.get(&format!("/images/{key}")).expect("an object").len() == MIB;
        format!("/images/{}", self.chunks().iter().find(is_chunk).expect("a chunk"))
    }

    fn manifest(&self) -> String {
        String::from_utf8(self.store.get("/images/base/debian.json").expect("a manifest")).expect("text")
    }
}

#[test]
fn a_pushed_disk_is_what_qemu_reads_of_the_file_that_is_pulled() {
    let scene = Scene::new();
    // Zeroes of the file are not read: 3 MiB of them.
    assert_eq!(scene.push_disk(), (6 * MIB as u64 + 512, 8, true));
    scene.run(&["pull", "-O", "qcow2", IMAGE, "back.qcow2"]).ok();
    let (name, raw) = (scene.scratch.name("back.qcow2"), scene.scratch.file("back.raw"));
    assert!(converted(&name, "qcow2", &[], &raw)[..scene.disk.len()] == scene.disk);
    let compare = ["compare", "-f", "raw", "-F", "qcow2", "disk.raw", "back.qcow2"];
    Run::new("qemu-img").args(compare).current_dir(scene.scratch.path()).ok();
    scene.assert_reads_as(&scene.disk);
    scene.run(&["compare", "-f", "raw", "-F", "raw", DISK, "disk.raw"]).ok();
    let info = scene.run(&["info", "--output", "json", "-f", "raw", DISK]).json();
    assert_eq!(info["virtual-size"], scene.disk.len().next_multiple_of(512));
}

#[test]
fn a_push_uploads_only_what_was_changed() {
    let scene = Scene::new();
    assert_eq!(scene.push_disk().1, 8);
    scene.way.requests();
    assert_eq!(scene.push_disk(), (6 * MIB as u64 + 512, 0, false));
    let requests = scene.way.requests();
    // The manifest and its table: no chunk is asked for, nothing is written.
    assert!(requests.len() == 2 && requests.iter().all(|line| line.starts_with("GET ")), "{requests:?}");
    let mut disk = scene.disk.clone();
    disk[6 * MIB + 5] ^= 1;
    disk[2 * MIB + 7] = 1;
    disk[MIB..2 * MIB].fill(0);
    scene.scratch.write("disk.raw", &disk);
    // Two chunks and the table.
    let (_, uploaded, changed) = scene.push_disk();
    assert_eq!((uploaded, changed), (3, true));
    scene.assert_reads_as(&disk);
}

#[test]
fn a_disk_that_became_longer_or_shorter_is_pushed_as_it_is() {
    let scene = Scene::new();
    scene.push_disk();
    for len in [12 * MIB, 3 * MIB, 9 * MIB + 512] {
        let mut disk = scene.disk.clone();
        disk.resize(len, 7);
        scene.scratch.write("disk.raw", &disk);
        scene.push_disk();
        scene.assert_reads_as(&disk);
    }
    scene.push(&["-f", "raw", "--chunk-size", "4M", "disk.raw", IMAGE]);
    scene.assert_reads_as(&scene.disk);
    assert!(scene.manifest().contains("\"chunk-size\": 4194304"), "{}", scene.manifest());
    let refused = scene.run(&["push", "--chunk-size", "3M", "disk.raw", IMAGE]).fails();
    assert!(refused.contains("powers of two from 524288 to 4194304"), "{refused}");
}

#[test]
fn a_push_by_bitmap_reads_only_what_the_bitmap_says() {
    let scene = Scene::new();
    let qemu = |program: &str, words: &[&str]| {
        Run::new(program).args(words).current_dir(scene.scratch.path()).ok();
    };
    qemu("qemu-img", &["convert", "-f", "raw", "-O", "qcow2", "disk.raw", "disk.qcow2"]);
    qemu("qemu-img", &["bitmap", "--add", "disk.qcow2", "since"]);
    // Without an image there everything is pushed.
    let whole = scene.push(&["--bitmap", "since", "disk.qcow2", IMAGE]);
    assert_eq!((whole.1, whole.2), (8, true));
    qemu("qemu-io", &["-c", "write -P 7 6m 4k", "-c", "write -z 0 1m", "disk.qcow2"]);
    let (read, uploaded, changed) = scene.push(&["--bitmap", "since", "disk.qcow2", IMAGE]);
    assert_eq!((read, uploaded, changed), (MIB as u64, 3, true));
    scene.run(&["compare", "-F", "raw", "disk.qcow2", DISK]).ok();
    let refused = scene.run(&["push", "--bitmap", "other", "disk.qcow2", IMAGE]).fails();
    assert!(refused.contains("no bitmap \"other\"; it has: since"), "{refused}");
}

#[test]
fn two_disks_of_one_base_share_its_chunks() {
    let scene = Scene::new();
    scene.push_disk();
    let create = ["create", "-q", "-f", "qcow2", "-F", "raw", "-b", "disk.raw", "top.qcow2"];
    Run::new("qemu-img").args(create).current_dir(scene.scratch.path()).ok();
    let write = ["-c", "write -P 7 8M 4k", "top.qcow2"];
    Run::new("qemu-io").args(write).current_dir(scene.scratch.path()).ok();
    let (_, uploaded, _) = scene.push(&["top.qcow2", "s3://images/base/other"]);
    assert_eq!(uploaded, 2);
    scene.run(&["compare", "-F", "raw", "top.qcow2", "chunked:s3://images/base/other"]).ok();
    scene.assert_reads_as(&scene.disk);
}

/// A push that was interrupted, or failed, had replaced the image by half of another one.
#[test]
fn a_push_that_does_not_end_leaves_the_old_image() {
    let scene = Scene::new();
    scene.push_disk();
    let manifest = scene.manifest();
    let disk = Random::of_name("another").bytes(300 * MIB);
    scene.scratch.write("disk.raw", &disk);
    let words = ["push", "-f", "raw", "disk.raw", IMAGE];
    let before = scene.chunks().len();
    let outcome = scene.run(&words).interrupted_when(|| {
        let until = Instant::now() + Duration::from_secs(120);
        while scene.chunks().len() == before {
            assert!(Instant::now() < until, "nothing is uploaded");
            std::thread::sleep(Duration::from_millis(5));
        }
    });
    assert!(!outcome.status.success() && outcome.stderr.contains("interrupted"), "{outcome}");
    assert_eq!(scene.manifest(), manifest);
    for fault in [("PUT /images/base/chunks/", 403), ("PUT /images/base/debian.json", 403)] {
        scene.scratch.write("disk.raw", &Random::of_name(fault.0).bytes(2 * MIB));
        scene.way.plan(&[(fault.0, StoreFault::Status(fault.1))]);
        let outcome = scene.run(&words).env("COWHAND_LOG", "trace").outcome();
        let said = format!("{}{}", outcome.stdout, outcome.stderr);
        assert!(!outcome.status.success() && said.contains("answers 403"), "{said}");
        assert!(!said.contains("hush") && !said.contains("quiet"), "{said}");
    }
    assert_eq!(scene.manifest(), manifest);
    scene.assert_reads_as(&scene.disk);
}

/// Two who push to one name at the same time: the one who is later has read what is not there any more.
/// Everything was uploaded, each chunk twice, before it was said that the image could not be published.
#[test]
fn a_store_without_conditions_is_pushed_to_by_force_alone() {
    let scene = Scene::new();
    scene.way.plan(&[("PUT /images/base/chunks", StoreFault::Status(501))]);
    let refused = scene.run(&["push", "-f", "raw", "disk.raw", IMAGE]).fails();
    assert!(
        refused.contains("does not know If-None-Match") && refused.contains("hint: --force"),
        "{refused}"
    );
    assert_eq!(scene.store.get("/images/base/debian.json"), None);
    scene.way.requests();
    scene.way.plan(&[("PUT /images/forced/chunks", StoreFault::Status(501))]);
    let forced = "s3://images/forced/debian";
    let (_, uploaded, _) = scene.push(&["--force", "-f", "raw", "disk.raw", forced]);
    let requests = scene.way.requests();
    let puts = requests.iter().filter(|line| line.starts_with("PUT /images/forced/chunks")).count();
    assert_eq!(puts as u64, uploaded + 1, "the first one is sent again, and no other");
    scene.run(&["pull", forced, "forced.raw"]).ok();
    assert!(std::fs::read(scene.scratch.file("forced.raw")).expect("an image") == scene.disk);
}

#[test]
fn a_push_does_not_replace_what_somebody_else_pushed_meanwhile() {
    let scene = Scene::new();
    let words = ["push", "-f", "raw", "disk.raw", IMAGE];
    scene.push_disk();
    let first = scene.manifest();
    scene.scratch.write("disk.raw", &scene.disk[..4 * MIB]);
    // It has found that nothing is there.
    scene.way.plan(&[("GET /images/base/debian.json", StoreFault::Status(404))]);
    let refused = scene.run(&words).fails();
    assert!(refused.contains("there is an object already") && refused.contains("hint: "), "{refused}");
    // It has read a version that another one replaces while chunks are on their way.
    let disk = Random::of_name("another").bytes(200 * MIB);
    scene.scratch.write("disk.raw", &disk);
    let theirs = first.replace("\n", " ");
    let before = scene.chunks().len();
    let outcome = scene.run(&words).outcome_telling(|_| {
        let until = Instant::now() + Duration::from_secs(120);
        while scene.chunks().len() == before {
            assert!(Instant::now() < until, "nothing is uploaded");
            std::thread::sleep(Duration::from_millis(5));
        }
        scene.store.put("/images/base/debian.json", theirs.as_bytes());
    });
    assert!(outcome.stderr.contains("was changed by another process meanwhile"), "{outcome}");
    assert_eq!(scene.manifest(), theirs);
    scene.assert_reads_as(&scene.disk);
}

/// What was lost is sent again; an answer that was lost is not taken for another push.
#[test]
fn requests_and_answers_that_are_lost_change_nothing() {
    let scene = Scene::new();
    scene.way.plan(&[
        ("GET /images/base/debian.json", StoreFault::Status(503)),
        ("PUT /images/base/chunks/", StoreFault::Status(501)),
        ("PUT /images/base/chunks/", StoreFault::Reset),
        ("PUT /images/base/chunks/", StoreFault::LostAnswer),
        ("HEAD /images/base/chunks/", StoreFault::Status(500)),
        ("PUT /images/base/debian.json", StoreFault::LostAnswer),
    ]);
    // Of a store that says 501 nothing else is expected without force.
    scene.push(&["--force", "-f", "raw", "disk.raw", IMAGE]);
    assert_eq!(scene.way.left(), []);
    scene.way.plan(&[
        ("GET /images/base/debian.json", StoreFault::Reset),
        ("GET /images/base/chunks/", StoreFault::Status(429)),
        ("GET /images/base/chunks/", StoreFault::LostAnswer),
    ]);
    scene.assert_reads_as(&scene.disk);
    assert_eq!(scene.way.left(), []);
}

#[test]
fn a_chunk_that_is_damaged_or_missing_is_an_error_everywhere_and_never_data() {
    let scene = Scene::new();
    scene.push_disk();
    let chunk = scene.chunk();
    let good = scene.store.get(&chunk).unwrap();
    let mut flipped = good.clone();
    flipped[77] ^= 1;
    for (bytes, says) in [
        (&flipped[..], "this chunk has another content than its name says"),
        (&good[..MIB - 1], "this chunk has 1048575 bytes and must have 1048576"),
    ] {
        scene.store.put(&chunk, bytes);
        for words in [
            &["pull", IMAGE, "new.raw"][..],
            &["verify", DISK],
            &["compare", "-f", "raw", "-F", "raw", DISK, "disk.raw"],
        ] {
            let refused = scene.run(words).fails();
            assert!(refused.contains(says) && refused.contains("/chunks/"), "{refused}");
        }
        assert!(!scene.scratch.file("new.raw").exists());
    }
    scene.store.put(&chunk, &good);
    let verified = scene.run(&["verify", DISK]).ok();
    scene.way.plan(&[("GET /images/base/chunks/", StoreFault::Status(404))]);
    let refused = scene.run(&["verify", DISK]).fails();
    assert!(refused.contains("is missing"), "{refused}");
    let sum = Run::new("sha256sum").arg(scene.scratch.file("disk.raw")).ok();
    assert_eq!(verified.split(' ').next(), sum.split(' ').next());
    let missing = scene.run(&["pull", "s3://images/base/nothing", "new.raw"]).fails();
    assert!(missing.contains("s3://images/base/nothing.json is not there"), "{missing}");
}

/// Half of what lies in stores was text, and was stored and sent as it is.
#[test]
fn chunks_that_get_shorter_are_zstd_frames_and_those_of_both_kinds_read_as_the_disk() {
    let scene = Scene::new();
    let mut disk = scene.disk.clone();
    let text = b"all work and no play ".repeat(MIB / 21 + 1);
    disk[6 * MIB..8 * MIB].copy_from_slice(&[&text[..MIB], &vec![7; MIB]].concat());
    scene.scratch.write("disk.raw", &disk);
    scene.push_disk();
    assert!(scene.manifest().contains("\"version\": 2") && scene.manifest().contains("\"zstd\""));
    let lengths = |scene: &Scene| -> Vec<usize> {
        let objects = scene.chunks().into_iter();
        objects.map(|key| scene.store.get(&format!("/images/{key}")).expect("an object").len()).collect()
    };
    let count =
        |lengths: &[usize], is: &dyn Fn(usize) -> bool| lengths.iter().filter(|len| is(**len)).count();
    let compressed = lengths(&scene);
    // Four of noise, two that get shorter, the end of the disk, and the table.
    assert_eq!(
        (compressed.len(), count(&compressed, &|len| len == MIB), count(&compressed, &|len| len < 1000)),
        (8, 4, 4)
    );
    scene.assert_reads_as(&disk);
    let verified = scene.run(&["verify", DISK]).ok();
    let sum = Run::new("sha256sum").arg(scene.scratch.file("disk.raw")).ok();
    assert_eq!(verified.split(' ').next(), sum.split(' ').next());

    // Readers of version 1 decompress nothing: what another image of the folder has compressed is made plain for them.
    let other = ["-f", "raw", "--compress", "none", "disk.raw", "s3://images/base/other"];
    assert_eq!(scene.push(&other).1, 3);
    let plain = lengths(&scene);
    assert_eq!((plain.len(), count(&plain, &|len| len == MIB)), (8, 6));
    let manifest = scene.store.get("/images/base/other.json").expect("a manifest");
    let manifest = String::from_utf8(manifest).expect("text");
    assert!(manifest.contains("\"version\": 1") && !manifest.contains("compression"), "{manifest}");
    scene.assert_reads_as(&disk);
    // It stays of version 1 until something else is asked for; then objects that are there are used as they are.
    let mut words = other.to_vec();
    words.drain(2..4);
    assert_eq!(scene.push(&words), (disk.len() as u64, 0, false));
    words.splice(2..2, ["--compress", "zstd"]);
    assert_eq!((scene.push(&words).1, scene.push_disk().1), (0, 0));
    // And back: chunks that the compressed image names are asked for, one by one.
    assert_eq!(scene.push(&other), (disk.len() as u64, 0, true));
    let unused = scene.run(&["prune", "--output", "json", "--unused-for", "0s", "s3://images/base"]).json();
    assert_eq!((&unused["chunks"], unused["unused"].as_array().map(Vec::len)), (&8.into(), Some(0)));
}

#[test]
fn a_damaged_frame_is_an_error_and_never_data() {
    let scene = Scene::new();
    let disk = [vec![7; MIB], vec![8; MIB]].concat();
    scene.scratch.write("disk.raw", &disk);
    scene.push_disk();
    let is_frame = |key: &String| {
        let object = scene.store.get(&format!("/images/{key}")).expect("an object");
        object.starts_with(&[0x28, 0xb5, 0x2f, 0xfd])
    };
    let frames: Vec<String> = scene.chunks().into_iter().filter(is_frame).collect();
    assert_eq!(frames.len(), 2, "{frames:?}");
    let [chunk, other] = [0, 1].map(|frame| format!("/images/{}", frames[frame]));
    let (good, theirs) = (scene.store.get(&chunk).unwrap(), scene.store.get(&other).unwrap());
    for (bytes, says) in [
        (&good[..good.len() - 1], "is no zstd frame of 1048576 bytes"),
        (&[&good[..], &theirs].concat(), "is no zstd frame of 1048576 bytes"),
        (&[&good[..], &[0]].concat(), "is no zstd frame of 1048576 bytes"),
        (&theirs, "has another content than its name says"),
        (&good[1..], &format!("this chunk has {} bytes and must have 1048576", good.len() - 1)),
        (&[], "this chunk has 0 bytes"),
    ] {
        scene.store.put(&chunk, bytes);
        for words in [&["pull", IMAGE, "new.raw"][..], &["verify", DISK]] {
            let refused = scene.run(words).fails();
            assert!(refused.contains(says) && refused.contains("/chunks/"), "{refused}");
        }
        assert!(!scene.scratch.file("new.raw").exists());
    }
    scene.store.put(&chunk, &good);
    scene.assert_reads_as(&disk);
}

#[test]
fn a_hostile_manifest_opens_nothing() {
    let scene = Scene::new();
    scene.push_disk();
    let good = scene.manifest();
    for (found, by, says) in [
        ("\"version\": 2", "\"version\": 5", "version is 5; allowed: 1 to 4"),
        ("\"version\": 2", "\"version\": 4", "it has 0 tables of deltas; allowed: 1 to 1024 in version 4"),
        ("\"version\": 2", "\"version\": 3", "version 3 has a member \"encryption\""),
        ("\"version\": 2", "\"version\": 1", "version 1 has none"),
        ("\"size\": ", "\"size\": 99999999", "allowed: up to 70368744177664"),
        ("\"size\": ", "\"size\": 1", "this table of chunks is no zstd frame of"),
        ("1048576", "1024", "chunk-size is 1024"),
        ("\"version\"", "\"version\": 1, \"version\"", "duplicate field"),
        ("cowhand-chunked-image", "x", "format is \"x\""),
    ] {
        assert!(good.contains(found), "{good}");
        scene.store.put("/images/base/debian.json", good.replacen(found, by, 1).as_bytes());
        let refused = scene.run(&["verify", "-f", "raw", DISK]).fails();
        assert!(refused.contains(says), "{refused}");
        let refused = scene.run(&["push", "-f", "raw", "disk.raw", IMAGE]).outcome();
        assert!(!refused.status.success() || says.contains("table"), "{refused}");
    }
    scene.store.put("/images/base/debian.json", &vec![b' '; 2 * MIB]);
    scene.run(&["verify", DISK]).fails();
}

#[test]
fn an_overlay_stands_on_a_chunked_image_and_on_one_behind_a_web_server() {
    let scene = Scene::new();
    scene.push_disk();
    let create = ["create", "-q", "-f", "qcow2", "-u", "-F", "raw", "-b", DISK, "top.qcow2", "9437696"];
    Run::new("qemu-img").args(create).current_dir(scene.scratch.path()).ok();
    let refused = scene.run(&["compare", "-F", "raw", "top.qcow2", "disk.raw"]).fails();
    assert!(refused.contains("--allow-name chunked:s3://images/base/debian"), "{refused}");
    let compare = ["compare", "--allow-name", DISK, "-F", "raw", "top.qcow2", "disk.raw"];
    scene.run(&compare).ok();
    let cached = format!("driver=raw,file.driver=chunked,file.url={IMAGE},file.cache-file=cache.qcow2");
    for _ in 0..2 {
        scene.run(&["compare", "-F", "raw", &cached, "disk.raw"]).ok();
    }
    assert!(scene.scratch.file("cache.qcow2").exists());
    scene.store.save("images", scene.scratch.path());
    let nginx = Nginx::start(scene.scratch.path(), &crate::remote::certificates());
    let served = format!("chunked:{}", nginx.url("/base/debian"));
    scene.run(&["compare", "-f", "raw", "-F", "raw", &served, "disk.raw"]).ok();
    let with_password = "chunked:http://me:hush@127.0.0.1/x";
    let refused = scene.run(&["info", with_password]).fails();
    assert!(!refused.contains("hush"), "{refused}");
}

/// Of these 128 MiB a packaged program takes 8 by itself, and one for tests up to 23.
#[test]
fn a_push_of_large_chunks_takes_less_than_128_mib() {
    let scene = Scene::new();
    scene.scratch.write("disk.raw", &Random::of_name("memory").bytes(200 * MIB));
    let alone = scene.run(&["--version"]).outcome().peak_rss_bytes;
    let words = ["push", "-f", "raw", "--chunk-size", "4M", "disk.raw", IMAGE];
    for words in [&words[..], &["pull", IMAGE, "back.raw"]] {
        let done = scene.run(words).outcome();
        assert!(done.status.success() && done.peak_rss_bytes - alone < 120 << 20, "{alone}: {done}");
    }
}

/// The process is asked to end once while a request waits for an answer that does not come: it does not wait, too.
#[test]
fn a_store_that_falls_silent_does_not_keep_an_interrupted_push_or_pull() {
    let scene = Scene::new();
    scene.push_disk();
    let manifest = scene.manifest();
    scene.scratch.write("disk.raw", &Random::of_name("another").bytes(4 * MIB));
    for (words, mark) in [
        (&["push", "-f", "raw", "disk.raw", IMAGE][..], "GET /images/base/debian.json"),
        (&["push", "-f", "raw", "disk.raw", IMAGE], "PUT /images/base/chunks/"),
        (&["push", "-f", "raw", "disk.raw", IMAGE], "PUT /images/base/debian.json"),
        (&["pull", IMAGE, "back.raw"], "GET /images/base/chunks/"),
    ] {
        drop(scene.way.requests());
        scene.way.plan(&[(mark, StoreFault::Silence)]);
        // Less than what the server is waited for.
        let run = scene.run(words).limit(Duration::from_secs(40));
        let outcome = run.interrupted_when(|| scene.way.wait_for(mark));
        assert!(!outcome.timed_out && !outcome.status.success(), "{mark}: {outcome}");
        assert!(
            outcome.stderr.contains("interrupted") || outcome.stderr.contains("cancelled"),
            "{mark}: {outcome}"
        );
        assert_eq!(scene.manifest(), manifest);
    }
    scene.assert_reads_as(&scene.disk);
}
