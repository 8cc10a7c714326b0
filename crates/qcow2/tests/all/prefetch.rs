//! The map read before anybody asks for it.

#![expect(clippy::unwrap_used, reason = "a test stops at what it did not expect")]

use crate::chain_support;
use crate::on_reactor;

use chain_support::{Built, Random};
use on_reactor::reactor_run;
use qcow2::cache_sizes::CacheRequest;
use qcow2::{Options, Prefetch, Qcow2};
use storage::{Hints, IoBuf};

fn misses(image: &Qcow2) -> u64 {
    let status = image.status();
    status.map.misses + status.chain.map_or(0, |chain| chain.map.misses)
}

async fn read_all(image: &Qcow2, flat: &[u8]) {
    for (at, expected) in flat.chunks(40_000).enumerate() {
        let (result, buf) = image.read(at as u64 * 40_000, IoBuf::uninit(expected.len()), Hints::NONE).await;
        result.unwrap();
        assert!(buf[..] == *expected, "chunk {at}");
    }
}

#[test]
fn after_everything_was_read_ahead_nothing_is_missed() {
    for (seed, layers) in [(1, 1), (2, 1), (3, 2), (4, 2), (5, 12), (6, 30)] {
        reactor_run(async {
            let mut random = Random::new(seed);
            let built = Built::qcow2_only(&mut random, layers).await;
            let image = built.open(Options { prefetch: Prefetch::All, ..Options::default() }, false).await;
            image.prefetch().await.unwrap();
            assert!(image.status().covered_bytes > 0, "{built:?}");
            let before = misses(&image);
            read_all(&image, &built.flat).await;
            assert_eq!(misses(&image), before, "{built:?} {:?}", image.status());
        });
    }
}

#[test]
fn reading_ahead_ends_where_the_cache_is_full() {
    reactor_run(async {
        let built = Built::full(32 << 20, 512).await;
        let l2_bytes = 32 << 10;
        let cache = CacheRequest { l2_bytes: Some(l2_bytes), ..CacheRequest::default() };
        let image = built.open(Options { cache, ..Options::default() }, false).await;
        image.prefetch().await.unwrap();
        let map = image.status().map;
        // Of 1,024 tables; the first that did not fit ended it.
        assert!(map.evictions > 0 && map.loads < 512, "{map:?}");
        read_all(&image, &built.flat).await;
    });
}

#[test]
fn a_miss_reads_its_neighbours_with_it() {
    reactor_run(async {
        let built = Built::full(32 << 20, 4096).await;
        for (prefetch, l2_bytes, missed) in [
            (Prefetch::Off, None, 8),
            (Prefetch::Table, None, 1),
            // Too small a cache for what was not requested.
            (Prefetch::Table, Some(8192), 8),
        ] {
            let cache = CacheRequest { l2_bytes, l2_entry_bytes: Some(512), ..CacheRequest::default() };
            let image = built.open(Options { cache, prefetch, ..Options::default() }, false).await;
            for slice in 0..8u64 {
                let (result, _) = image.read(slice * 64 * 4096, IoBuf::uninit(10), Hints::NONE).await;
                result.unwrap();
            }
            assert_eq!(image.status().map.misses, missed, "{prefetch:?} {l2_bytes:?}");
        }
    });
}

#[test]
fn neighbours_that_cannot_be_read_fail_nobody() {
    reactor_run(async {
        let built = Built::full(32 << 20, 4096).await;
        let cache = CacheRequest { l2_entry_bytes: Some(512), ..CacheRequest::default() };
        let options = Options { cache, prefetch: Prefetch::Table, ..Options::default() };
        let image = built.open(options, false).await;
        built.fail_read(0);
        let (result, _) = image.read(0, IoBuf::uninit(10), Hints::NONE).await;
        result.unwrap();
        assert!(built.failed_read().is_some(), "the first read is that of the table");
        assert_eq!(image.status().map.loads, 1);
    });
}

#[test]
fn a_closed_image_is_not_read_ahead() {
    reactor_run(async {
        let built = Built::full(8 << 20, 512).await;
        for writable in [false, true] {
            let image = built.open(Options { writable, ..Options::default() }, false).await;
            image.close().await.unwrap();
            image.prefetch().await.unwrap();
            assert_eq!(image.status().map.loads, 0, "writable {writable}");
        }
    });
}
