//! Every case of the corpus, and some thousand neighbours of them, on every run of the tests: the
//! same ones each time. `COWHAND_FUZZ_SECONDS` goes on with others for so long.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use cowhand_fuzz::{TARGETS, Target, find, run};

/// Longest time that one case may take: they take a millisecond, and the machine may be busy.
const CASE_TIME_MAX: Duration = Duration::from_secs(10);

/// For how many seconds all targets together go on with cases that nobody has seen before.
const SECONDS_VARIABLE: &str = "COWHAND_FUZZ_SECONDS";

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
    let start = Instant::now();
    run(target, data);
    let took = start.elapsed();
    assert!(took <= CASE_TIME_MAX, "it took {took:?}");
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

/// How long this target goes on making up cases, of the time that is given for all of them together.
fn share_of_time() -> Option<Duration> {
    let text = std::env::var(SECONDS_VARIABLE).ok()?;
    let seconds: f64 = text.parse().unwrap_or_else(|error| panic!("{SECONDS_VARIABLE} is `{text}`: {error}"));
    let side_by_side = std::thread::available_parallelism().map_or(1, usize::from);
    Some(Duration::from_secs_f64(seconds * side_by_side as f64 / TARGETS.len() as f64))
}

/// Others every time; a failure prints its case.
fn seed_of_now() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
    (since.as_nanos() as u64) | 1
}

fn check(name: &str) {
    let target = find(name).unwrap();
    let mut cases = cases(target);
    for (name, data) in &cases {
        timed(target, name, data);
    }
    cases.push(("nothing".to_owned(), Vec::new()));
    let mut random = Random(0x9e37_79b9_7f4a_7c15);
    let (start, more) = (Instant::now(), share_of_time());
    let mut number = 0;
    while number < target.test_cases || more.is_some_and(|more| start.elapsed() < more) {
        if number == target.test_cases {
            random = Random(seed_of_now());
        }
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
    open check repair operations snapshot_table bitmap_directory compressed header entries options create_options config
    limits nbd_server nbd_client qmp trace
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
