//! A snapshot is taken beside requests.

use storage::{Hints, IoBytes, IoVec};
use sync::explore::{block_on, explore};

use super::{CLUSTER, World, together};
use crate::snapshot::NewSnapshot;

/// The header could neither be switched nor put back, so the file may lead to the snapshot. A write that had waited
/// meanwhile went on in place, into a cluster that the snapshot may share.
#[test]
fn a_write_that_waited_for_a_snapshot_that_stopped_the_image_changes_nothing() {
    explore(|| {
        let world = World::new();
        world.write(0, 1);
        world.flush();
        world.medium.refuse_header();
        let snapshot = |world: &World| {
            let new = NewSnapshot { name: "one".into(), ..NewSnapshot::default() };
            assert!(block_on(world.image.create_snapshot(new)).is_err());
        };
        let write = |world: &World| {
            let data = IoVec::from(IoBytes::copy_from(&[2; CLUSTER as usize]));
            drop(block_on(world.image.write(0, data, Hints::NONE)));
        };
        let discard = |world: &World| drop(block_on(world.image.discard(0, CLUSTER)));
        together(&world, [snapshot as fn(&World), write, discard]);
        // It cannot be closed in order.
        drop(block_on(world.image.close()));
        world.wait();
        assert_eq!(world.medium.late_writes(), 0, "the image was stopped");
    });
}
