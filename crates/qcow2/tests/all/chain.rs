//! Chains of many layers of all kinds, against a flat model and against the walk through the layers.

#![expect(clippy::unwrap_used, reason = "a test stops at what it did not expect")]

use crate::chain_support;
use crate::on_reactor;

use block::{Block, BlockStatus, ReadKind};
use chain_support::{Built, Random, blocks};
use on_reactor::reactor_run;
use qcow2::cache_sizes::CacheRequest;
use qcow2::{Options, Qcow2};
use sim::scaled;
use storage::{ForeignBytes, Hints, IoBuf, IoBytes, IoVec};

/// Random chains; more or fewer on request (`COWHAND_SIM_SCALE`).
const CHAINS: u64 = 60;

fn tiny() -> CacheRequest {
    CacheRequest { l2_bytes: Some(1), l2_entry_bytes: Some(512), ..CacheRequest::default() }
}

/// Memory of others, in two parts, full of `byte`.
fn lent(len: usize, byte: u8) -> ForeignBytes {
    let memory = ForeignBytes::zeroed(len + 1);
    memory.copy_from(0, &vec![byte; len + 1]);
    memory.slice(0, len / 2).join(memory.slice(len / 2 + 1, len + 1))
}

/// What is read without waiting, into memory of others: all of `expected`, or nothing; where `tried` says what came of the same into memory of ours, that.
fn assert_tried_into(block: &dyn Block, offset: u64, expected: &[u8], tried: Option<ReadKind>) {
    let memory = lent(expected.len(), 0);
    let found = block.try_read_into(offset, &memory, Hints::NONE);
    assert!(found == tried || tried.is_none(), "{found:?}, {tried:?}");
    assert!(found.is_none() || memory.to_bytes().unwrap()[..] == *expected, "{found:?} at {offset}");
}

#[test]
fn a_chain_of_any_layers_reads_as_if_it_were_flat() {
    let mut mapped = 0;
    for seed in 0..scaled(CHAINS) {
        reactor_run(async {
            let mut random = Random::new(seed);
            let layers = 2 + random.below(39) as usize;
            let mut built = Built::new(&mut random, layers).await;
            let cache = if seed % 3 == 0 { tiny() } else { CacheRequest::default() };
            let top = built.open(Options { writable: true, cache, ..Options::default() }, false).await;
            for step in 0..150 {
                let size = built.flat.len() as u64;
                let offset = random.below(size);
                let scale = random.below(17);
                let len = (1 + random.below(1 << scale)).min(size - offset);
                let range = offset as usize..(offset + len) as usize;
                if random.below(4) == 0 {
                    let byte = random.below(255) as u8 + 1;
                    if random.below(2) == 0 {
                        top.write_from(offset, lent(len as usize, byte), Hints::NONE).await.unwrap();
                    } else {
                        let data = IoBytes::copy_from(&vec![byte; len as usize]);
                        top.write(offset, IoVec::from(data), Hints::NONE).await.unwrap();
                    }
                    built.flat[range].fill(byte);
                    continue;
                }
                // Where the map says zeroes the buffer stays as it was.
                let mut inline = vec![0; len as usize];
                let tried = top.try_read(offset, &mut inline, Hints::NONE);
                if tried.is_some() {
                    assert!(inline == built.flat[range.clone()], "seed {seed}: step {step}, inline");
                }
                assert_tried_into(&top, offset, &built.flat[range.clone()], tried);
                let (result, buf) = top.read(offset, IoBuf::uninit(len as usize), Hints::NONE).await;
                let kind = result.unwrap();
                assert!(
                    tried.is_none_or(|tried| tried == kind),
                    "seed {seed}: step {step}, {tried:?}, {kind:?}"
                );
                let whole = &built.flat[range];
                assert!(buf[..] == *whole, "seed {seed}: step {step}, {len} bytes at {offset}");
                let memory = lent(len as usize, 0xee);
                if top.read_into(offset, memory.clone(), Hints::NONE).await.unwrap() == ReadKind::Zeroes {
                    assert!(whole.iter().all(|&byte| byte == 0), "seed {seed}: step {step}, lent");
                }
                assert!(
                    memory.to_bytes().unwrap()[..] == *whole,
                    "seed {seed}: step {step}, {len} bytes at {offset}, lent"
                );
            }
            mapped += usize::from(top.status().chain.is_some());
            top.close().await.unwrap();
        });
    }
    // A few chains may by chance be of a kind that has none.
    assert!(scaled(CHAINS) < CHAINS || mapped > CHAINS as usize / 2, "only {mapped} chains had a map");
}

#[test]
fn the_map_of_a_chain_says_what_walking_its_layers_says() {
    for seed in 1000..1000 + scaled(CHAINS) {
        reactor_run(async {
            let mut random = Random::new(seed);
            let layers = 3 + random.below(38) as usize;
            let built = Built::new(&mut random, layers).await;
            let mapped = blocks(&built.open(Options::default(), false).await, seed).await;
            let walked_top = built.open(Options::default(), true).await;
            let walked = blocks(&walked_top, seed).await;
            // The map ends above a layer that may change.
            let written = random.below(layers as u64 - 1) as usize;
            let partly = blocks(&built.open_with_writable(written).await, seed).await;
            assert_eq!(partly, walked, "seed {seed}: layer {written} is writable in {built:?}");
            assert!(walked_top.status().chain.is_none(), "layers that are written must not be in a map");
            for (sector, (mapped, walked)) in mapped.iter().zip(&walked).enumerate() {
                assert_eq!(mapped, walked, "seed {seed}: sector {sector} of {built:?}");
            }
            assert_eq!(mapped.len(), walked.len());
        });
    }
}

/// What the whole disk is, in the longest pieces.
async fn pieces(image: &Qcow2) -> Vec<BlockStatus> {
    let (mut pieces, mut at) = (Vec::<BlockStatus>::new(), 0);
    while at < image.size() {
        let next = image.block_status(at, image.size() - at).await.unwrap();
        at += next.len;
        match pieces.last_mut().filter(|last| BlockStatus { len: next.len, ..(*last).clone() } == next) {
            Some(last) => last.len += next.len,
            None => pieces.push(next),
        }
    }
    pieces
}

/// The base of a commit is writable, so the map of the layers above does not cover it. What only the base could have was asked of every second layer's own
/// map, and each of those maps asked all layers below: a commit of 199 layers took 7 s of processor time, for 50 layers 0.7.
#[test]
fn a_layer_that_may_change_below_many_others_is_asked_without_the_maps_of_each() {
    reactor_run(async {
        let mut random = Random::new(7);
        let built = Built::qcow2_only(&mut random, 48).await;
        let reads = async |written: usize| {
            let top = built.open_with_writable(written).await;
            built.reads_of(pieces(&top)).await
        };
        // The uppermost image is writable anyway: then one map covers all others.
        let (one, over_base) = (reads(47).await, reads(0).await);
        assert!(
            over_base < 2 * one + 16,
            "{over_base} reads over a base that may change, {one} over one that does not"
        );
    });
}

/// Large parts of which no layer has anything are answered without a load: a chain of 40 empty disks of 2 PiB was looked at slice by slice, for hours.
#[test]
fn what_no_layer_has_is_known_of_large_disks_as_by_walking() {
    for seed in 0..scaled(CHAINS) {
        reactor_run(async {
            let mut random = Random::new(seed);
            let layers = 3 + random.below(8) as usize;
            let built = Built::sparse(&mut random, layers).await;
            let mapped = pieces(&built.open(Options::default(), false).await).await;
            let walked = pieces(&built.open(Options::default(), true).await).await;
            assert_eq!(mapped, walked, "seed {seed}: {built:?}");
        });
    }
}

#[test]
fn whatever_read_fails_during_a_load_the_request_fails_and_the_next_one_succeeds() {
    for seed in 0..6 {
        reactor_run(async {
            let mut random = Random::new(seed);
            let built = Built::new(&mut random, 12).await;
            let mut failures = 0;
            for nth in 0.. {
                let top = built.open(Options::default(), false).await;
                built.fail_read(nth);
                let size = built.flat.len();
                let (result, _) = top.read(0, IoBuf::uninit(size), Hints::NONE).await;
                let failed = built.failed_read();
                match (&failed, result) {
                    (None, result) => {
                        result.unwrap();
                        break;
                    }
                    // A table that turned out not to matter may fail.
                    (Some(_), Ok(_)) => {}
                    (Some(name), Err(error)) => {
                        failures += 1;
                        let reported = error.to_string();
                        assert!(reported.contains(name.as_str()), "{reported}: {name}");
                    }
                }
                let (result, buf) = top.read(0, IoBuf::uninit(size), Hints::NONE).await;
                result.unwrap();
                assert!(buf[..] == built.flat[..], "seed {seed}: after the failure of read {nth}");
            }
            assert!(failures > 5, "seed {seed}: {failures} failures show nothing");
        });
    }
}

#[test]
fn a_new_layer_on_top_of_an_open_chain_sees_what_is_below() {
    reactor_run(async {
        let mut random = Random::new(7);
        let mut built = Built::new(&mut random, 6).await;
        let top = built.open(Options { writable: true, ..Options::default() }, false).await;
        let data = IoBytes::copy_from(&[0x5a; 3000]);
        top.write(1000, IoVec::from(data), Hints::NONE).await.unwrap();
        built.flat[1000..4000].fill(0x5a);
        top.flush().await.unwrap();
        // As long as it may be written it is asked itself, and only what lies below it is in a map.
        let overlay = built.overlay(top.clone()).await;
        let data = IoBytes::copy_from(&[0xa5; 500]);
        top.write(3800, IoVec::from(data), Hints::NONE).await.unwrap();
        built.flat[3800..4300].fill(0xa5);
        let size = built.flat.len();
        let (result, buf) = overlay.read(0, IoBuf::uninit(size), Hints::NONE).await;
        result.unwrap();
        assert!(buf[..] == built.flat[..]);
        assert!(overlay.status().chain.is_none() && top.status().chain.is_some());
    });
}

/// A filter that changes nothing.
#[derive(Debug)]
struct Through(std::sync::Arc<dyn Block>);

impl Block for Through {
    fn driver(&self) -> &'static str {
        "through"
    }

    fn over(&self) -> Option<&std::sync::Arc<dyn Block>> {
        Some(&self.0)
    }
}

#[test]
fn filters_between_the_layers_of_a_chain_change_nothing_that_is_read_or_reported() {
    let mut filters = 0;
    for seed in 0..scaled(CHAINS) {
        reactor_run(async {
            let mut random = Random::new(seed);
            let layers = 2 + random.below(12) as usize;
            let built = Built::new(&mut random, layers).await;
            let plain = built.open(Options::default(), false).await;
            let reported = blocks(&plain, seed).await;
            plain.close().await.unwrap();
            let put_over = |below: std::sync::Arc<dyn Block>| -> std::sync::Arc<dyn Block> {
                match random.below(3) {
                    0 => {
                        filters += 1;
                        std::sync::Arc::new(Through(below))
                    }
                    _ => below,
                }
            };
            let top = built.open_through(Options::default(), |_| false, put_over).await;
            assert_eq!(blocks(&top, seed).await, reported, "seed {seed}");
            for step in 0..50 {
                let offset = random.below(built.flat.len() as u64);
                let len = (1 + random.below(1 << 16)).min(built.flat.len() as u64 - offset) as usize;
                let expected = &built.flat[offset as usize..offset as usize + len];
                let mut inline = vec![0; len];
                let tried = top.try_read(offset, &mut inline, Hints::NONE);
                assert!(tried.is_none() || inline == expected, "seed {seed}: step {step}, inline");
                // A filter that has a read of its own answers for it.
                assert_tried_into(&top, offset, expected, None);
                let (result, buf) = top.read(offset, IoBuf::uninit(len), Hints::NONE).await;
                result.unwrap();
                assert!(buf[..] == *expected, "seed {seed}: step {step}, {len} bytes at {offset}");
            }
            top.close().await.unwrap();
        });
    }
    assert!(scaled(CHAINS) < CHAINS || filters > CHAINS, "{filters} filters");
}
