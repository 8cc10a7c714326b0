//! Freed clusters: reused after the file forgot them, their users left and their hole is punched.

use std::sync::Arc;

use sync::explore::explore;

use super::{World, together};

#[test]
fn a_reader_of_a_discarded_cluster_never_sees_what_comes_after_it() {
    explore(|| {
        let world = World::new();
        world.write(0, 1);
        let read = |world: &World| {
            for _ in 0..2 {
                let value = world.read(0);
                assert!(value <= 1, "read {value}, which was written elsewhere");
            }
        };
        let discard = |world: &World| {
            world.discard(0);
            world.flush();
        };
        let write = |world: &World| {
            world.write(1, 2);
            world.flush();
            world.write(2, 3);
        };
        together(&world, [read as fn(&World), discard, write]);
        assert_eq!([0, 1, 2].map(|cluster| world.read(cluster)), [0, 2, 3]);
        world.close_and_check();
    });
}

#[test]
fn a_write_in_place_never_lands_in_a_reused_cluster() {
    explore(|| {
        let world = World::new();
        world.write(0, 1);
        let overwrite = |world: &World| world.write(0, 4);
        let discard = |world: &World| {
            world.discard(0);
            world.flush();
            world.write(1, 2);
            world.flush();
            world.write(2, 3);
        };
        together(&world, [overwrite as fn(&World), discard]);
        assert_eq!([1, 2].map(|cluster| world.read(cluster)), [2, 3]);
        assert!([0, 4].contains(&world.read(0)));
        world.close_and_check();
    });
}

#[test]
fn a_punch_never_hits_what_was_written_after_it() {
    explore(|| {
        let world = World::new();
        (0..2).for_each(|cluster| world.write(cluster, 1));
        let discard = |world: &World| {
            world.discard(0);
            world.flush();
            world.discard(1);
            world.flush();
        };
        let write = |world: &World| (2..5).for_each(|cluster| world.write(cluster, 7));
        together(&world, [discard as fn(&World), write]);
        world.flush();
        (5..7).for_each(|cluster| world.write(cluster, 8));
        let values: Vec<u8> = (0..7).map(|cluster| world.read(cluster)).collect();
        assert_eq!(values, [0, 0, 7, 7, 7, 8, 8]);
        world.close_and_check();
    });
}

#[test]
fn a_cluster_is_not_reused_before_the_medium_forgot_what_led_there() {
    explore(|| {
        let world = World::new();
        world.write(0, 1);
        world.flush();
        let discard = |world: &World| {
            world.discard(0);
            world.flush();
        };
        let write = |world: &World| {
            world.write(1, 2);
            world.write(2, 3);
        };
        let crash = |world: &World| {
            let survivor = world.after_crash();
            let value = super::read(&survivor, 0);
            assert!(value <= 1, "after a crash a discarded cluster holds {value}, written elsewhere");
        };
        together(&world, [discard as fn(&World), write, crash]);
        let survivor = world.after_crash();
        assert!(super::read(&survivor, 0) == 0, "a flush covers the discard before it");
        world.close_and_check();
    });
}

#[test]
fn closing_gives_back_everything_that_was_freed() {
    explore(|| {
        let world = World::new();
        (0..3).for_each(|cluster| world.write(cluster, 1));
        let discard_low = |world: &World| world.discard(0);
        let discard_high = |world: &World| {
            world.discard(2);
            world.flush();
        };
        together(&world, [discard_low as fn(&World), discard_high]);
        let world = Arc::clone(&world);
        world.close_and_check();
        assert!(!world.image.inner.space.frees.any_open() && !world.image.inner.space.frees.is_reclaiming());
    });
}
