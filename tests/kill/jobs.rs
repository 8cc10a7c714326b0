//! Kill -9 in the middle of jobs leaves the old chain or the new one, and bitmaps that say dirty of all that changed.
//!
//! Each round has its own images: a disk over a base, and a target, each with a bitmap that records changes. A client writes while the job
//! is at work; the server is killed before the job is ready, or while its last step is done. Then one of the images that the disk may
//! stand on holds all that was acknowledged, and each bitmap covers what its image holds otherwise than at the start.
//!
//! `COWHAND_KILL_ROUNDS` says how many rounds there are.

use std::collections::BTreeMap;
use std::time::Duration;

use black_box::peer::{assert_leaks_at_most, converted, dirty, qemu_img, qemu_io_ok};
use black_box::qmp::Qmp;
use black_box::server::Start;
use black_box::{Client, Random, Run, Scratch, Server};
use serde_json::{Value, json};

/// Kills.
const ROUNDS: u64 = 20;
const DISK: usize = 16 << 20;
const BLOCK: usize = 4096;
/// What a bit of a bitmap stands for.
const UNIT: usize = 64 << 10;
/// The base holds this byte in its first half.
const BASE: u8 = 251;
/// Longest time to the kill.
const DELAY_US_MAX: u64 = 30_000;

const JOBS: [&str; 4] = ["block-stream", "block-commit", "blockdev-mirror", "blockdev-backup"];

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

fn at_the_start(has_base: bool) -> Vec<u8> {
    let mut bytes = vec![0; DISK];
    if has_base {
        bytes[..DISK / 2].fill(BASE);
    }
    bytes
}

impl Written {
    /// Whether this is the disk: all that was acknowledged, and nothing that nobody wrote.
    fn is_in(&self, bytes: &[u8]) -> bool {
        let mut expected = at_the_start(true);
        for (block, value) in &self.acknowledged {
            expected[block * BLOCK..(block + 1) * BLOCK].fill(*value);
        }
        let (last, value) = self.last;
        let is = |(block, found): (usize, &[u8])| {
            found == &expected[block * BLOCK..(block + 1) * BLOCK]
                || (block == last && found.iter().all(|byte| *byte == value))
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
fn told(qmp: &mut Qmp, name: &str) -> Value {
    qmp.event(name)["data"].clone()
}

/// Begins the job; with `to_its_end` also its last step.
fn begin(qmp: &mut Qmp, job: &str, scratch: &Scratch, to_its_end: bool) {
    let mut arguments = json!({ "job-id": "j", "device": "top" });
    if matches!(job, "blockdev-mirror" | "blockdev-backup") {
        let target = json!({ "driver": "qcow2", "node-name": "copy", "discard": "unmap",
            "file": { "driver": "file", "filename": scratch.name("copy.qcow2") } });
        qmp.ok("blockdev-add", target);
        arguments["target"] = json!("copy");
        arguments["sync"] = json!("full");
    }
    qmp.ok(job, arguments);
    if to_its_end && matches!(job, "block-commit" | "blockdev-mirror") {
        told(qmp, "BLOCK_JOB_READY");
        qmp.ok("job-complete", json!({ "id": "j" }));
    }
}

/// One kill; gives whether the job had ended, and how much was written.
fn round(round: u64, random: &mut Random) -> (bool, usize) {
    let scratch = Scratch::new();
    let path = |name: &str| scratch.name(&format!("{name}.qcow2"));
    let (base, top, copy) = (path("base"), path("top"), path("copy"));
    qemu_img(["create", "-q", "-f", "qcow2", &base, "16M"]).ok();
    qemu_io_ok(&["-f", "qcow2"], &base, &[&format!("write -P {BASE} 0 8M")]);
    qemu_img(["create", "-q", "-f", "qcow2", "-b", &base, "-F", "qcow2", &top]).ok();
    qemu_img(["create", "-q", "-f", "qcow2", &copy, "16M"]).ok();
    for image in [&base, &top, &copy] {
        qemu_img(["bitmap", "--add", "-g", "64k", image, "inc"]).ok();
    }
    let control = scratch.file("qmp");
    let start = Start::new(["--qmp"]).arg(&control).arg("--allow-path").arg(scratch.path()).arg(&top);
    let mut server = start.listen().unwrap_or_else(|error| panic!("{}", error.0));
    server.wait_until(|server| server.stdout().contains("control:").then_some(())).expect("it serves");
    let (mut qmp, job) = (Qmp::connect(&control), JOBS[(round % 4) as usize]);
    let (client, seed) = (server.client("top"), random.below(1 << 30));
    let (delay, to_its_end) = (random.below(DELAY_US_MAX), round / 4 % 2 == 1);
    let (written, ended) = std::thread::scope(|scope| {
        let load = scope.spawn(move || write(client, Random::new(seed)));
        begin(&mut qmp, job, &scratch, to_its_end);
        std::thread::sleep(Duration::from_micros(delay));
        let ended = qmp.ok("query-jobs", json!({})) == json!([]);
        server.kill();
        (load.join().expect("it ends with the server"), ended)
    });
    // Also until nobody has them open: the kernel first ends what the server had under way.
    for image in [&top, &base, &copy] {
        assert_leaks_at_most(image.as_ref());
    }
    let mut candidates = vec![&top];
    match job {
        "block-commit" if to_its_end => candidates.push(&base),
        "blockdev-mirror" if to_its_end => candidates.push(&copy),
        _ => {}
    }
    let bytes = |image: &str| converted(image, "qcow2", &[], &scratch.file("converted"));
    let found: Vec<_> = candidates.iter().filter(|image| written.is_in(&bytes(image))).collect();
    assert!(!found.is_empty(), "round {round}: {job}: no image holds the disk");
    // Where the disk may stand on the other image, what lies below the first one may have changed.
    let is_judged = |image: &String| *image != top || (*found[0] == &top && found.len() == 1);
    for (image, has_base) in [(&top, true), (&base, true), (&copy, false)] {
        if is_judged(image) {
            has_true_bitmap(image, &at_the_start(has_base), &bytes(image), round);
        }
    }
    (ended, written.acknowledged.len())
}

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
