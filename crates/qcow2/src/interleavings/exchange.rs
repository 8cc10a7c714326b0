//! Another backing layer beside requests.

use std::sync::Arc;

use block::Raw;
use storage::{Hints, MemoryStorage};
use sync::explore::{block_on, explore};

use super::{CLUSTER, DISK, World, together};

fn filled(value: u8) -> Arc<Raw> {
    Arc::new(Raw::new(Arc::new(MemoryStorage::from_bytes(&vec![value; DISK as usize]))))
}

fn put_below(world: &World, value: u8) {
    block_on(world.image.hold_still()).unwrap().set_backing(Some(filled(value))).unwrap();
}

/// `read` refuses a cluster that is a mixture of two layers.
#[test]
fn a_request_beside_an_exchange_of_layers_sees_one_of_them() {
    explore(|| {
        let world = World::new();
        put_below(&world, 1);
        let exchange = |world: &World| {
            put_below(world, 2);
            assert_eq!(world.read(3), 2, "no later request sees the old layer");
        };
        let read = |world: &World| {
            let seen = [world.read(3), world.read(4)];
            assert!([[1, 1], [1, 2], [2, 2]].contains(&seen), "{seen:?}");
        };
        // What is copied around the data is of one layer.
        let write = |world: &World| {
            let data = storage::IoVec::from(storage::IoBytes::copy_from(&[7; 10]));
            block_on(world.image.write(5 * CLUSTER, data, Hints::NONE)).unwrap();
        };
        together(&world, [exchange as fn(&World), read, write]);
        let (result, buf) =
            block_on(world.image.read(5 * CLUSTER, storage::IoBuf::uninit(CLUSTER as usize), Hints::NONE));
        result.unwrap();
        assert!(
            buf[..10] == [7; 10]
                && [1, 2].contains(&buf[10])
                && buf[10..].iter().all(|byte| *byte == buf[10])
        );
        world.close_and_check();
    });
}
