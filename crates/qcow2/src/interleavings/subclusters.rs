//! Subclusters of one cluster: written side by side, not moved meanwhile.

use std::sync::OnceLock;

use futures_util::FutureExt;
use storage::MemoryStorage;
use sync::explore::{block_on, explore};

use super::{CLUSTER, World, read, together};
use crate::{CreateOptions, ZeroOptions};

/// The smallest clusters that have subclusters, which are as large as the other laws' clusters.
const LARGE: u64 = 32 * CLUSTER;

/// The bytes of an empty image with subclusters, made once.
fn image() -> &'static [u8] {
    static IMAGE: OnceLock<Vec<u8>> = OnceLock::new();
    IMAGE.get_or_init(|| {
        let file = MemoryStorage::new(0);
        let options = CreateOptions {
            size: 4 * LARGE,
            cluster_size: LARGE,
            extended_l2: true,
            ..CreateOptions::default()
        };
        crate::create(&file, None, &options).now_or_never().unwrap().unwrap();
        file.to_bytes()
    })
}

fn writes_and_flushes(world: &World, subcluster: u64, value: u8) {
    world.write(subcluster, value);
    world.flush();
    assert_eq!(read(&world.after_crash(), subcluster), value, "flushed, and lost in a crash");
}

#[test]
fn writers_of_subclusters_of_one_cluster_lose_nothing_of_each_other() {
    explore(|| {
        let world = World::on(image());
        world.write(0, 9);
        let first = |world: &World| writes_and_flushes(world, 1, 1);
        let second = |world: &World| (2..4).for_each(|subcluster| world.write(subcluster, 2));
        let third = |world: &World| writes_and_flushes(world, 31, 3);
        together(&world, [first as fn(&World), second, third]);
        let found: Vec<u8> = [0, 1, 2, 3, 31].map(|subcluster| world.read(subcluster)).into();
        assert_eq!(found, [9, 1, 2, 2, 3]);
        world.close_and_check();
    });
}

#[test]
fn who_allocates_a_cluster_and_who_fills_it_up_meet() {
    explore(|| {
        let world = World::on(image());
        let first = |world: &World| world.write(5, 1);
        let second = |world: &World| world.write(6, 2);
        let third = |world: &World| (7..9).for_each(|subcluster| world.write(subcluster, 3));
        together(&world, [first as fn(&World), second, third]);
        let found: Vec<u8> = (4..10).map(|subcluster| world.read(subcluster)).collect();
        assert_eq!(found, [0, 1, 2, 3, 3, 0]);
        world.close_and_check();
    });
}

#[test]
fn a_cluster_is_not_given_up_under_those_who_write_parts_of_it() {
    explore(|| {
        let world = World::on(image());
        world.write(0, 9);
        let first = |world: &World| (1..3).for_each(|subcluster| world.write(subcluster, 1));
        let discard = |world: &World| {
            block_on(world.image.discard(0, LARGE)).unwrap();
            world.flush();
        };
        let zero = |world: &World| {
            block_on(world.image.zero(2 * CLUSTER, CLUSTER, ZeroOptions::default())).unwrap();
            world.write(40, 5);
        };
        together(&world, [first as fn(&World), discard, zero]);
        assert!([0, 9].contains(&world.read(0)) && [0, 1].contains(&world.read(1)));
        assert!([0, 1].contains(&world.read(2)));
        assert_eq!((world.read(3), world.read(40)), (0, 5));
        world.close_and_check();
    });
}
