//! The size of the disk changes beside requests and reading ahead.

use sync::explore::{block_on, explore};

use super::{CLUSTER, DISK, World, together};
use crate::{ErrorKind, ResizeOptions};
use storage::{Hints, IoBytes, IoVec};

/// A cluster of the second L2 table.
const FAR: u64 = 100;
/// The disk without that table.
const NEAR: u64 = 64 * CLUSTER;

fn resize(world: &World, size: u64) {
    let options = ResizeOptions { shrink: true, ..ResizeOptions::default() };
    block_on(world.image.resize(size, options)).unwrap();
}

/// The table that was freed came back into memory, and what was written behind it went where another request's data was.
#[test]
fn a_table_that_a_shrink_freed_never_comes_back_from_reading_ahead() {
    explore(|| {
        let world = World::new();
        (0..2).for_each(|cluster| world.write(cluster, 1));
        world.write(FAR, 2);
        world.flush();
        world.image.inner.map.cache.forget_all();
        let read_ahead = |world: &World| block_on(world.image.prefetch()).unwrap();
        let cut_and_grow = |world: &World| {
            resize(world, NEAR);
            resize(world, DISK);
            assert_eq!(world.read(FAR), 0, "what was cut off came back");
        };
        together(&world, [read_ahead as fn(&World), read_ahead, cut_and_grow]);
        (2..5).for_each(|cluster| world.write(cluster, 3));
        assert_eq!(world.read(FAR), 0, "a part of the disk shows what was written to another");
        world.write(FAR, 4);
        let found = [0, 1, 2, 3, 4, FAR].map(|cluster| world.read(cluster));
        assert_eq!(found, [1, 1, 3, 3, 3, 4]);
        world.close_and_check();
    });
}

/// A write that waited while the end was cut off went on beyond it, into a table that was being freed.
#[test]
fn a_request_that_waited_while_the_disk_became_smaller_does_not_reach_beyond_its_end() {
    explore(|| {
        let world = World::new();
        world.write(0, 1);
        world.write(FAR, 2);
        let write = |world: &World| {
            for cluster in [FAR, FAR + 1] {
                let data = IoVec::from(IoBytes::copy_from(&[5; CLUSTER as usize]));
                let written = block_on(world.image.write(cluster * CLUSTER, data, Hints::NONE));
                assert!(written.is_ok() || written.is_err_and(|error| error.kind() == ErrorKind::PastEnd));
            }
        };
        let cut = |world: &World| resize(world, NEAR);
        together(&world, [write as fn(&World), cut]);
        resize(&world, DISK);
        assert_eq!([0, FAR, FAR + 1].map(|cluster| world.read(cluster)), [1, 0, 0]);
        world.write(FAR, 6);
        assert_eq!(world.read(FAR), 6);
        world.close_and_check();
    });
}
