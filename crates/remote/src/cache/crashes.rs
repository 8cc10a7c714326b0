//! Power is cut at every step of a cache at work: what is opened afterwards is the remote file or is not used.

use std::sync::Arc;

use memory::IoBuf;
use qcow2::{Host, Work};
use sim::{Content, CrashOptions, CrashStates, Order, SimStorage, World};
use storage::{Capabilities, Hints, MemoryStorage, Storage};

use crate::cache::image::CLUSTER_BYTES;
use crate::cache::{CacheFile, CacheState, CachedStorage, Figures, Identity, create, look};

/// Not a whole number of clusters, nor of sectors.
const LENGTH: u64 = 18 * CLUSTER_BYTES + 777;
/// Less than is read, so that clusters are given up and their space is used again.
const BYTES_MAX: u64 = 8 * CLUSTER_BYTES;
const SEEDS: u64 = 4;

#[derive(Debug)]
struct Machine;

impl Host for Machine {
    fn spawn(&self, work: Work) {
        sim::spawn(work);
    }
}

/// No byte of it is 0, and no two clusters are alike.
fn content() -> Vec<u8> {
    (0..LENGTH).map(|at| (at / 509 + at / CLUSTER_BYTES * 7) as u8 | 1).collect()
}

fn identity() -> Identity {
    Identity { name: "http://h/x".into(), length: LENGTH, version: "ETag \"1\"".into() }
}

/// The cache in `file`, in front of a file of `content`; `None` if it would begin anew.
async fn open(file: SimStorage, content: &[u8]) -> Option<CachedStorage> {
    match look(&file, &identity()).await.expect("it stays a cache") {
        CacheState::Outdated(_) => return None,
        CacheState::Usable => {}
    }
    let file = CacheFile { storage: Arc::new(file), held: Box::new(()), bytes_max: BYTES_MAX };
    let remote = Arc::new(MemoryStorage::from_bytes(content));
    Some(CachedStorage::open(remote, identity(), file, Arc::new(Machine)).await.expect("it opens"))
}

async fn read(cached: &CachedStorage, content: &[u8], cluster: u64, count: u64) {
    let range = cluster * CLUSTER_BYTES..((cluster + count) * CLUSTER_BYTES).min(LENGTH);
    let buf = IoBuf::uninit((range.end - range.start) as usize);
    let (result, found) = cached.read(range.start, buf, Hints::NONE).await;
    result.expect("the server is there");
    assert!(*found == content[range.start as usize..range.end as usize], "wrong bytes in {range:?}");
}

/// A server that fetches, gives up, fetches ahead, and ends; then it starts again.
async fn work(world: &World, seed: u64, content: &[u8]) -> Figures {
    let cached = open(world.open(0), content).await.expect("it is new");
    for step in 0..14 {
        let cluster = (seed * 5 + step * 7) % 17;
        read(&cached, content, cluster, 1 + step % 3).await;
        if step % 4 == 3 {
            read(&cached.ahead(), content, (cluster + 9) % 17, 2).await;
        }
        if step % 3 == 0 {
            cached.settle().await;
        }
    }
    cached.settle().await;
    cached.flush_image().await;
    cached.figures()
}

#[test]
fn a_cache_after_a_power_cut_at_any_step_has_no_wrong_byte_or_is_not_used() {
    let content = content();
    let (mut states, mut held) = (0, 0);
    for seed in 0..SEEDS {
        let world = World::new(seed, Order::Shuffled);
        let file = world.add_disk("cache", Capabilities::REGULAR_FILE, Content::zeroed(0));
        let made = sim::run(&world, seed, |_| async { create(&file, &identity()).await });
        made.expect("no task waits for ever").expect("there is room");
        sim::run(&world, seed, |_| async { file.flush().await }).expect("it ends").expect("it is there");
        world.start_recording();
        let figures = sim::run(&world, seed, |_| work(&world, seed, &content));
        let figures = figures.expect("no task waits for ever");
        assert!(figures.evictions > 0 && figures.failures == 0, "{figures:?}");
        let crashes =
            CrashOptions { seed, exhaustive_atoms_max: 5, samples: 8, tears: 2, ..CrashOptions::default() };
        for state in CrashStates::new(&world.recording(), &[], crashes) {
            let (world, _) = state.boot(seed);
            let cached_bytes = sim::run(&world, seed, |_| async {
                let Some(cached) = open(world.open(0), &content).await else { return 0 };
                let cached_bytes = cached.figures().cached_bytes;
                for cluster in 0..LENGTH.div_ceil(CLUSTER_BYTES) {
                    read(&cached, &content, cluster, 1).await;
                }
                cached.settle().await;
                cached_bytes
            });
            held += u64::from(cached_bytes.unwrap_or_else(|stuck| panic!("{stuck:?}: {state}")) > 0);
            states += 1;
        }
    }
    println!("looked at {states} crash states, {held} with clusters");
    assert!(states > 500 && held > states / 2, "too few to mean anything: {states}, {held} with clusters");
}
