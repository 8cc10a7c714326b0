//! Kill -9 in the middle of jobs leaves the old chain or the new one, and bitmaps that say dirty of all that changed.
//!
//! Each round has its own images: a disk over two others, and a target, each with a bitmap that records changes. A client writes while the
//! job is at work; the server is killed before the job is ready, or while its last step is done. Then one of the images that the disk may
//! uses holds all that was acknowledged, and each bitmap covers what its image holds otherwise than at the start. The same job is run
//! once more over what the first one left behind, to its end: it trips over nothing, and image and target hold what they should.
//!
//! `COWHAND_KILL_ROUNDS` says how many rounds there are.

use std::collections::BTreeMap;
use std::time::Duration;

use black_box::bytes::are_all;
use black_box::peer::{assert_leaks_at_most, converted, dirty, qemu_img, qemu_io_ok};
use black_box::qmp::Qmp;
use black_box::server::Start;
use black_box::{Client, Random, Run, Scratch, Server};
use serde_json::{Value, json};

/// Kills.
const ROUNDS: u64 = 24;
const DISK: usize = 16 << 20;
const BLOCK: usize = 4096;
/// What a bit of a bitmap stands for.
const UNIT: usize = 64 << 10;
/// The base holds this byte in its first half.
const BASE: u8 = 251;
/// And the image over it this one, across the end of that half.
const MIDDLE: u8 = 252;
/// Longest times to the kill: some jobs end soon.
const DELAYS_US_MAX: [u64; 3] = [1_000, 6_000, 30_000];

/// What is killed.
struct Case {
    job: &'static str,
    /// Arguments besides the disk, the target and the name. Names of images stand for their files.
    arguments: &'static [(&'static str, &'static str)],
    target: Target,
}

/// What the target of a copy is before the copy.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Target {
    /// There is none: the job works within the chain.
    None,
    /// It is empty.
    Empty,
    /// It is empty and lies over the same image as the disk.
    Overlay,
    /// It holds what the disk held when its bitmap began.
    Backup,
}

const fn case(job: &'static str, arguments: &'static [(&'static str, &'static str)], target: Target) -> Case {
    Case { job, arguments, target }
}

const CASES: [Case; 12] = [
    case("block-stream", &[], Target::None),
    case("block-commit", &[], Target::None),
    case("blockdev-mirror", &[("sync", "full")], Target::Empty),
    case("blockdev-backup", &[("sync", "full")], Target::Empty),
    case("block-stream", &[("base", "base")], Target::None),
    case("block-commit", &[("top", "middle"), ("base", "base")], Target::None),
    case("blockdev-mirror", &[("sync", "top")], Target::Overlay),
    case("blockdev-backup", &[("sync", "top")], Target::Overlay),
    case("blockdev-mirror", &[("sync", "full"), ("copy-mode", "write-blocking")], Target::Empty),
    case("blockdev-backup", &[("sync", "incremental"), ("bitmap", "inc")], Target::Backup),
    case("blockdev-mirror", &[("sync", "incremental"), ("bitmap", "inc")], Target::Backup),
    case("blockdev-backup", &[("sync", "none")], Target::Empty),
];

impl Case {
    /// Whether the disk is backed by another image after its end.
    fn moves_the_disk(&self) -> bool {
        self.job == "blockdev-mirror" || self.job == "block-commit" && self.arguments.is_empty()
    }

    /// Whether the target holds the disk after its end.
    fn copies_the_disk(&self) -> bool {
        self.target != Target::None && self.arguments[0] != ("sync", "none")
    }

    /// Whether the first run has taken the image out of the chain that it is about.
    fn is_done(&self, images: &Images) -> bool {
        let info = qemu_img(["info", "--output=json", &images.path("top")]).json();
        let below = info["backing-filename"].as_str();
        self.job == "block-commit" && !below.is_some_and(|below| below.ends_with("middle.qcow2"))
    }

    fn arguments(&self, images: &Images) -> Value {
        let mut arguments = json!({ "job-id": "j", "device": "top" });
        for (name, value) in self.arguments {
            let is_image = matches!(*name, "top" | "base");
            arguments[name] = if is_image { json!(images.path(value)) } else { json!(value) };
        }
        if self.target != Target::None {
            arguments["target"] = json!("copy");
        }
        arguments
    }
}

/// A disk over two images, and a target.
struct Images(Scratch);

impl Images {
    fn make(target: Target) -> Self {
        let images = Self(Scratch::new());
        let (base, middle, top) = (images.path("base"), images.path("middle"), images.path("top"));
        let copy = images.path("copy");
        let create = |image: &str, below: Option<&str>| {
            let mut args = vec!["create", "-q", "-f", "qcow2"];
            args.extend(below.into_iter().flat_map(|below| ["-b", below, "-F", "qcow2"]));
            qemu_img(args.into_iter().chain([image, "16M"])).ok();
        };
        create(&base, None);
        qemu_io_ok(&["-f", "qcow2"], &base, &[format!("write -P {BASE} 0 8M")]);
        create(&middle, Some(&base));
        qemu_io_ok(&["-f", "qcow2"], &middle, &[format!("write -P {MIDDLE} 6M 4M")]);
        create(&top, Some(&middle));
        match target {
            Target::None | Target::Empty => create(&copy, None),
            Target::Overlay => create(&copy, Some(&middle)),
            Target::Backup => drop(qemu_img(["convert", "-O", "qcow2", &top, &copy]).ok()),
        }
        for image in [&base, &middle, &top, &copy] {
            qemu_img(["bitmap", "--add", "-g", "64k", image, "inc"]).ok();
        }
        images
    }

    fn path(&self, name: &str) -> String {
        self.0.name(&format!("{name}.qcow2"))
    }

    fn bytes(&self, name: &str) -> Vec<u8> {
        converted(&self.path(name), "qcow2", &[], &self.0.file("converted"))
    }

    /// Serves the disk.
    fn serve(&self) -> (Server, Qmp) {
        let control = self.0.file("qmp");
        let start = Start::new(["--qmp"]).arg(&control).arg("--allow-path").arg(self.0.path());
        let mut server = start.arg(self.path("top")).listen().unwrap_or_else(|error| panic!("{}", error.0));
        server.wait_until(|server| server.stdout().contains("control:").then_some(())).expect("it serves");
        let mut qmp = Qmp::connect(&control);
        // The export shows the bitmap, which no job may use then.
        qmp.ok("block-export-del", json!({ "id": "top" }));
        qmp.event("BLOCK_EXPORT_DELETED");
        let export = json!({ "type": "nbd", "id": "top", "node-name": "top", "writable": true });
        qmp.ok("block-export-add", export);
        (server, qmp)
    }
}

/// Blocks that a flush acknowledged, with their last values, and the write that was sent last.
struct Written {
    acknowledged: BTreeMap<usize, u8>,
    last: (usize, u8),
}

/// Writes and flushes until the server is gone.
fn write(mut client: Client, mut random: Random) -> Written {
    let mut written = Written { acknowledged: BTreeMap::new(), last: (0, 0) };
    loop {
        let (block, value) = (random.below((DISK / BLOCK) as u64) as usize, random.below(250) as u8 + 1);
        written.last = (block, value);
        let wrote = client.write((block * BLOCK) as u64, &[value; BLOCK]);
        if wrote.and_then(|()| client.flush()).is_err() {
            return written;
        }
        written.acknowledged.insert(block, value);
    }
}

/// What an image holds before the job.
fn at_the_start(image: &str, target: Target) -> Vec<u8> {
    let mut bytes = vec![0; DISK];
    if image != "copy" || matches!(target, Target::Overlay | Target::Backup) {
        bytes[..DISK / 2].fill(BASE);
        if image != "base" {
            bytes[DISK * 3 / 8..DISK * 5 / 8].fill(MIDDLE);
        }
    }
    bytes
}

impl Written {
    /// Whether this is the disk: all that was acknowledged, and nothing that was not written.
    fn is_in(&self, bytes: &[u8]) -> bool {
        let mut expected = at_the_start("top", Target::None);
        for (block, value) in &self.acknowledged {
            expected[block * BLOCK..(block + 1) * BLOCK].fill(*value);
        }
        let (last, value) = self.last;
        let is = |(block, found): (usize, &[u8])| {
            found == &expected[block * BLOCK..(block + 1) * BLOCK] || (block == last && are_all(found, value))
        };
        bytes.chunks(BLOCK).enumerate().all(is)
    }
}

/// The bitmap of an image covers what it holds otherwise than at the start.
fn has_true_bitmap(image: &str, start: &[u8], found: &[u8], round: u64) {
    let server = Server::start([image]);
    let name = std::path::Path::new(image).file_stem().and_then(|stem| stem.to_str()).expect("a name");
    let map = Run::new("nbdinfo").args(["--json", "--map=qemu:dirty-bitmap:inc", &server.uri(name)]).json();
    let dirty = dirty(&map);
    server.stop();
    for (unit, (was, is)) in start.chunks(UNIT).zip(found.chunks(UNIT)).enumerate() {
        let at = (unit * UNIT) as u64;
        let covered = dirty.iter().any(|(start, len)| (*start..start + len).contains(&at));
        assert!(was == is || covered, "round {round}: {image}: {at:#x} changed and is clean");
    }
}

/// Waits for an event of the job.
fn reported(qmp: &mut Qmp, name: &str) -> Value {
    qmp.event(name)["data"].clone()
}

/// Begins the job; with `to_its_end` also its last step.
fn begin(qmp: &mut Qmp, case: &Case, images: &Images, to_its_end: bool) {
    if case.target != Target::None {
        let target = json!({ "driver": "qcow2", "node-name": "copy", "discard": "unmap",
            "file": { "driver": "file", "filename": images.path("copy") } });
        qmp.ok("blockdev-add", target);
    }
    qmp.ok(case.job, case.arguments(images));
    if to_its_end && case.moves_the_disk() {
        reported(qmp, "BLOCK_JOB_READY");
        qmp.ok("job-complete", json!({ "id": "j" }));
    }
}

/// One kill; gives whether the job had ended, and how much was written.
fn round(round: u64, random: &mut Random) -> (bool, usize) {
    let case = &CASES[(round % CASES.len() as u64) as usize];
    let images = Images::make(case.target);
    let (server, mut qmp) = images.serve();
    let (client, seed) = (server.client("top"), random.below(1 << 30));
    let delay_max = DELAYS_US_MAX[random.below(DELAYS_US_MAX.len() as u64) as usize];
    let delay = random.below(delay_max);
    let to_its_end = round / CASES.len() as u64 % 2 == 1 || random.below(2) == 1;
    let (written, ended) = std::thread::scope(|scope| {
        let load = scope.spawn(move || write(client, Random::new(seed)));
        begin(&mut qmp, case, &images, to_its_end);
        std::thread::sleep(Duration::from_micros(delay));
        let ended = qmp.ok("query-jobs", json!({})) == json!([]);
        server.kill();
        (load.join().expect("it ends with the server"), ended)
    });
    // Also until no process has them open: the kernel first ends what the server had under way.
    for image in NAMES {
        assert_leaks_at_most(images.path(image).as_ref());
    }
    let mut candidates = vec!["top"];
    match case.job {
        "block-commit" if to_its_end && case.moves_the_disk() => candidates.push("base"),
        "blockdev-mirror" if to_its_end => candidates.push("copy"),
        _ => {}
    }
    candidates.retain(|image| written.is_in(&images.bytes(image)));
    assert!(!candidates.is_empty(), "round {round}: {}: no image holds the disk", case.job);
    for image in NAMES {
        // Where the disk may use the other image, what lies below the first one may have changed, as it does in any case for what lies
        // over the base of a commit.
        let is_judged = match image {
            "top" => candidates == ["top"],
            "middle" => case.job != "block-commit",
            _ => true,
        };
        if is_judged {
            // A bitmap that a job follows has what the target has not.
            let start = match image == "top" && case.target == Target::Backup {
                true => images.bytes("copy"),
                false => at_the_start(image, case.target),
            };
            has_true_bitmap(&images.path(image), &start, &images.bytes(image), round);
        }
    }
    if candidates[0] == "top" && !case.is_done(&images) {
        // The disk may have used the other image already: that alone has the last write then, and what the disk knows of its changes
        // does not say so.
        let ahead = (candidates.len() > 1).then_some(written.last.0);
        run_again(round, case, &images, ahead);
    }
    (ended, written.acknowledged.len())
}

/// Runs the job over what the first one left behind, to its end. Block `ahead` of the other image may stay as it is.
fn run_again(round: u64, case: &Case, images: &Images, ahead: Option<usize>) {
    let disk = images.bytes("top");
    let (server, mut qmp) = images.serve();
    begin(&mut qmp, case, images, true);
    if case.arguments.first() == Some(&("sync", "none")) {
        qmp.ok("block-job-cancel", json!({ "device": "j" }));
        reported(&mut qmp, "BLOCK_JOB_CANCELLED");
    } else {
        let end = reported(&mut qmp, "BLOCK_JOB_COMPLETED");
        assert_eq!(end.get("error"), None, "round {round}: {} once more: {end}", case.job);
    }
    server.stop();
    let held = match case.job {
        "block-commit" if case.moves_the_disk() => "base",
        _ if case.copies_the_disk() => "copy",
        _ => "top",
    };
    let found = images.bytes(held);
    let blocks = found.chunks(BLOCK).zip(disk.chunks(BLOCK)).enumerate();
    let differing = blocks.filter(|(_, (found, expected))| found != expected).map(|(block, _)| block);
    let wrong: Vec<_> = differing.filter(|block| Some(*block) != ahead).collect();
    assert!(
        found.len() == disk.len() && wrong.is_empty(),
        "round {round}: {} once more: blocks {wrong:?} of {held} are not the disk's",
        case.job
    );
    for image in NAMES {
        assert_leaks_at_most(images.path(image).as_ref());
    }
}

/// All images of a round.
const NAMES: [&str; 4] = ["base", "middle", "top", "copy"];

#[test]
fn kill_9_in_the_middle_of_jobs_leaves_the_disk_and_true_bitmaps() {
    let rounds = super::number("COWHAND_KILL_ROUNDS").unwrap_or(ROUNDS);
    let mut random = Random::new(super::number("COWHAND_KILL_SEED").unwrap_or(1));
    let (mut ended, mut written) = (0, 0);
    for number in 0..rounds {
        let (has_ended, blocks) = round(number, &mut random);
        ended += u64::from(has_ended);
        written += blocks;
    }
    println!(
        "looked at in kill: {rounds} kills during jobs, {ended} of them after the end, {written} blocks written"
    );
    assert!(
        ended < rounds && written > 0,
        "{ended} of {rounds} jobs had ended, {written} blocks were written"
    );
}
