//! Commits: flushes share them, and each covers what completed before it.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use futures_util::FutureExt;
use sync::explore::{block_on, explore, pause};

use super::{World, read, together};

/// Writes, flushes, and looks at what a crash would leave.
fn write_and_flush(world: &World, cluster: u64, value: u8) {
    world.write(cluster, value);
    world.flush();
    let survivor = world.after_crash();
    assert_eq!(read(&survivor, cluster), value, "flushed, and lost in a crash");
}

#[test]
fn a_flush_covers_every_write_that_completed_before_it() {
    explore(|| {
        let world = World::new();
        let first = |world: &World| (0..2).for_each(|round| write_and_flush(world, 0, 1 + round));
        let second = |world: &World| (1..3).for_each(|cluster| write_and_flush(world, cluster, 3));
        let elsewhere = |world: &World| write_and_flush(world, 70, 5);
        together(&world, [first as fn(&World), second, elsewhere]);
        world.close_and_check();
    });
}

#[test]
fn a_flush_covers_a_write_through_an_entry_that_somebody_else_just_made() {
    explore(|| {
        let world = World::new();
        let allocate = |world: &World| world.write(0, 1);
        let overwrite = |world: &World| {
            world.write(0, 2);
            world.flush();
            let survivor = world.after_crash();
            let value = read(&survivor, 0);
            assert!([1, 2].contains(&value), "flushed, and lost in a crash: {value}");
        };
        together(&world, [allocate as fn(&World), overwrite]);
        world.close_and_check();
    });
}

/// Writes, hands it to the kernel, and looks at what the death of the process would leave.
fn write_and_hand(world: &World, cluster: u64, value: u8) {
    world.write(cluster, value);
    block_on(world.image.hand_to_kernel()).unwrap();
    assert_eq!(read(&world.after_death(), cluster), value, "answered, and lost with the process");
}

/// What a commit has taken and not written yet belongs to those who come, too.
#[test]
fn what_was_handed_to_the_kernel_outlives_the_process_beside_commits() {
    explore(|| {
        let world = World::new();
        world.write(0, 1);
        world.flush();
        let first = |world: &World| (0..2).for_each(|round| write_and_hand(world, 1, 1 + round));
        let second = |world: &World| {
            world.discard(0);
            write_and_hand(world, 2, 3);
            write_and_flush(world, 0, 4);
        };
        let elsewhere = |world: &World| write_and_hand(world, 70, 5);
        together(&world, [first as fn(&World), second, elsewhere]);
        world.close_and_check();
    });
}

#[test]
fn flushes_at_the_same_time_share_a_commit() {
    static SHARED: AtomicBool = AtomicBool::new(false);
    SHARED.store(false, Relaxed);
    explore(|| {
        let world = World::new();
        world.write(0, 1);
        world.flush();
        let before = world.medium.flushes();
        together(&world, [World::flush as fn(&World); 3]);
        let barriers = world.medium.flushes() - before;
        assert!((1..=3).contains(&barriers), "{barriers} barriers for three flushes of nothing new");
        SHARED.fetch_or(barriers < 3, Relaxed);
        world.close_and_check();
    });
    let replays = std::env::var_os(sync::explore::SCHEDULE).is_some();
    assert!(replays || SHARED.load(Relaxed), "no two flushes ever shared a commit");
}

#[test]
fn a_flush_that_nobody_waits_for_any_more_holds_up_no_other() {
    explore(|| {
        let world = World::new();
        let give_up = |world: &World| {
            world.write(0, 1);
            let mut flush = Box::pin(world.image.flush());
            drop(flush.as_mut().now_or_never());
            pause();
        };
        let stay = |world: &World| write_and_flush(world, 1, 2);
        together(&world, [give_up as fn(&World), give_up, stay]);
        world.close_and_check();
    });
}

#[test]
fn a_flush_that_failed_is_reported_and_the_next_makes_up_for_it() {
    explore(|| {
        let world = World::new();
        // The first change waits for a barrier of its own; the one that fails is a flush's.
        world.write(1, 3);
        world.medium.fail_flushes(1);
        let flush = |world: &World| {
            world.write(0, 1);
            if block_on(world.image.flush()).is_ok() {
                assert_eq!(read(&world.after_crash(), 0), 1, "flushed, and lost in a crash");
            }
        };
        let other = |world: &World| {
            world.write(70, 2);
            if block_on(world.image.flush()).is_ok() {
                assert_eq!(read(&world.after_crash(), 70), 2, "flushed, and lost in a crash");
            }
        };
        together(&world, [flush as fn(&World), other]);
        let world = Arc::clone(&world);
        world.flush();
        let survivor = world.after_crash();
        assert_eq!([read(&survivor, 0), read(&survivor, 70)], [1, 2]);
        world.close_and_check();
    });
}
