//! Every case of the corpus, and some thousand neighbours of them, on every run of the tests.
//! `COWHAND_FUZZ_SECONDS` makes up others for that many seconds. They come of `COWHAND_FUZZ_SEED`: the same ones, in the
//! same order, for the same seed.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use cowhand_fuzz::{TARGETS, Target, find, run};
use rustix::time::{ClockId, clock_gettime};

/// Longest processor time that one case may take: they take a millisecond. One that waits for ever meets the time limit of the tests.
const CASE_TIME_MAX: Duration = Duration::from_secs(10);

/// For how many seconds all targets together make up more cases.
const SECONDS_VARIABLE: &str = "COWHAND_FUZZ_SECONDS";

/// Which cases are made up.
const SEED_VARIABLE: &str = "COWHAND_FUZZ_SEED";

/// Bytes of the corpus at most.
const CORPUS_BYTES_MAX: u64 = 1 << 20;

fn corpus() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("corpus")
}

/// Name and content of the target's cases, in order.
fn cases(target: &Target) -> Vec<(String, Vec<u8>)> {
    let Ok(directory) = corpus().join(target.name).read_dir() else { return Vec::new() };
    let mut paths: Vec<PathBuf> = directory.map(|entry| entry.unwrap().path()).collect();
    paths.sort();
    paths.iter().map(|path| (path.display().to_string(), std::fs::read(path).unwrap())).collect()
}

/// Tells which case it was when one ends in a panic.
struct Telling<'a> {
    target: &'a Target,
    name: &'a str,
    data: &'a [u8],
}

impl Drop for Telling<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            let hex: String = self.data.iter().map(|byte| format!("{byte:02x}")).collect();
            eprintln!("target {}, case {}: {hex}", self.target.name, self.name);
        }
    }
}

fn timed(target: &Target, name: &str, data: &[u8]) {
    let _telling = Telling { target, name, data };
    let start = processor_time();
    run(target, data);
    let took = processor_time() - start;
    assert!(took <= CASE_TIME_MAX, "it took {took:?}");
}

/// Of this thread: a busy machine does not count.
fn processor_time() -> Duration {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    Duration::new(time.tv_sec.unsigned_abs(), u32::try_from(time.tv_nsec).unwrap())
}

/// Steps of xorshift64*: good enough to choose bytes by.
struct Random(u64);

impl Random {
    fn below(&mut self, end: usize) -> usize {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        let number = self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 33;
        usize::try_from(number).unwrap() % end.max(1)
    }

    fn byte(&mut self) -> u8 {
        u8::try_from(self.below(256)).unwrap()
    }
}

/// A neighbour of two cases.
fn mutate(random: &mut Random, case: &[u8], other: &[u8]) -> Vec<u8> {
    let mut data = case.to_vec();
    for _ in 0..=random.below(4) {
        let at = random.below(data.len());
        match random.below(6) {
            0 | 1 => data.iter_mut().skip(at).take(1).for_each(|byte| *byte = random.byte()),
            2 => data.iter_mut().skip(at).take(1).for_each(|byte| *byte ^= 1 << random.below(8)),
            3 => data.truncate(at),
            4 => (0..=random.below(16)).for_each(|_| data.insert(at.min(data.len()), random.byte())),
            _ => data.extend_from_slice(&other[random.below(other.len()).min(other.len())..]),
        }
    }
    data
}

/// The number that a variable holds.
fn setting<T: std::str::FromStr<Err: std::fmt::Display>>(variable: &str) -> Option<T> {
    let text = std::env::var(variable).ok()?;
    Some(text.parse().unwrap_or_else(|error| panic!("{variable} is `{text}`: {error}")))
}

/// How long this target goes on making up cases, of the time that is given for all of them together.
fn share_of_time() -> Option<Duration> {
    let seconds: f64 = setting(SECONDS_VARIABLE)?;
    let side_by_side = std::thread::available_parallelism().map_or(1, usize::from);
    Some(Duration::from_secs_f64(seconds * side_by_side as f64 / TARGETS.len() as f64))
}

fn check(name: &str) {
    let target = find(name).unwrap();
    let mut cases = cases(target);
    for (name, data) in &cases {
        timed(target, name, data);
    }
    cases.push(("nothing".to_owned(), Vec::new()));
    // Neighbouring seeds begin far from each other, and none at 0, from where nothing changes.
    let seed = setting::<u64>(SEED_VARIABLE).unwrap_or(0);
    let mut random = Random(seed.wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15).max(1));
    let (start, more) = (Instant::now(), share_of_time());
    let mut number = 0;
    while number < target.test_cases || more.is_some_and(|more| start.elapsed() < more) {
        let (case, other) = (random.below(cases.len()), random.below(cases.len()));
        let data = match number % 8 {
            0 => (0..random.below(200)).map(|_| random.byte()).collect(),
            _ => mutate(&mut random, &cases[case].1, &cases[other].1),
        };
        timed(target, &format!("number {number}"), &data);
        number += 1;
    }
    println!("looked at in {}: {} fuzz executions", target.name, cases.len() as u64 + u64::from(number));
}

macro_rules! targets {
    ($($name:ident)*) => {
        const TESTED: &[&str] = &[$(stringify!($name)),*];

        mod corpus_and_neighbours_of {
            $(#[test] fn $name() { super::check(stringify!($name)); })*
        }
    };
}

targets! {
    open check repair operations snapshot_table bitmap_directory compressed header entries options create_options config vdi vpc qcow vmdk vhdx
    lineage published limits luks nbd_server nbd_client qmp trace vhost_user vhost_user_moving
}

#[test]
fn every_target_is_tested() {
    let names: Vec<&str> = TARGETS.iter().map(|target| target.name).collect();
    assert_eq!(names, TESTED);
}

#[test]
fn the_corpus_is_small_and_belongs_to_targets() {
    let mut bytes = 0;
    for directory in corpus().read_dir().unwrap() {
        let directory = directory.unwrap();
        let name = directory.file_name().into_string().unwrap();
        assert!(find(&name).is_some(), "fuzz/corpus/{name} belongs to no target");
        let files = directory.path().read_dir().unwrap();
        bytes += files.map(|file| file.unwrap().metadata().unwrap().len()).sum::<u64>();
    }
    assert!(bytes <= CORPUS_BYTES_MAX, "the corpus has {bytes} bytes");
}
