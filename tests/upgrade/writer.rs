//! A client of the NBD server that never stops, and knows what it wrote.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use black_box::Random;
use black_box::client::{Client, Request};

const BLOCK: usize = 4096;
const BLOCKS: u64 = 4096;

/// Large enough that its payload is often on the way when an upgrade begins.
const LARGE_BLOCKS: usize = 128;

/// Requests in flight.
const DEPTH: usize = 8;

/// What a client wrote, and how long it waited at most.
#[derive(Debug, Default)]
pub struct Written {
    /// The seed of each block.
    blocks: BTreeMap<u64, u64>,
    /// Requests that were answered.
    pub answered: u64,
    /// The longest time from one answer to the next.
    pub longest: Duration,
}

/// Writes until asked to stop. Every answer is a success, and every block is read again at the end.
pub fn write_until(mut client: Client, stop: &AtomicBool) -> Written {
    let (mut random, mut written) = (Random::new(7), Written::default());
    // By cookie, where each begins.
    let mut in_flight: BTreeMap<u64, u64> = BTreeMap::new();
    let mut last = Instant::now();
    while !stop.load(Ordering::Relaxed) || !in_flight.is_empty() {
        while in_flight.len() < DEPTH && !stop.load(Ordering::Relaxed) {
            let busy: Vec<u64> = in_flight.values().copied().collect();
            let (cookie, first) = write_one(&mut client, &mut random, &mut written, &busy);
            in_flight.insert(cookie, first);
        }
        let reply = client.receive().expect("the connection lives");
        assert_eq!(reply.error, 0, "a client sees an error");
        in_flight.remove(&reply.cookie);
        written.answered += 1;
        written.longest = written.longest.max(last.elapsed());
        last = Instant::now();
    }
    for (block, seed) in &written.blocks {
        let there = client.read(block * BLOCK as u64, BLOCK as u32).expect("a read");
        assert!(there == pattern(*seed), "block {block} is not what was written");
    }
    client.disconnect();
    written
}

/// Sends a write of one block, or of many. No block is written while it is in flight: the order of two such writes is undefined.
fn write_one(client: &mut Client, random: &mut Random, written: &mut Written, busy: &[u64]) -> (u64, u64) {
    let large = random.below(16) == 0;
    let count = if large { LARGE_BLOCKS } else { 1 };
    let first = loop {
        let first = random.below(BLOCKS / LARGE_BLOCKS as u64) * LARGE_BLOCKS as u64;
        if !busy.contains(&first) {
            break first;
        }
    };
    let seed = random.next_u64();
    let data: Vec<u8> = (0..count as u64).flat_map(|number| pattern(seed.wrapping_add(number))).collect();
    let cookie = client.send(&Request::write(first * BLOCK as u64, &data)).expect("the connection lives");
    for number in 0..count as u64 {
        written.blocks.insert(first + number, seed.wrapping_add(number));
    }
    (cookie, first)
}

fn pattern(seed: u64) -> Vec<u8> {
    let mut random = Random::new(seed);
    (0..BLOCK / 8).flat_map(|_| random.next_u64().to_le_bytes()).collect()
}
