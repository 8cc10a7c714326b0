//! A future is moved, and is a part of every stack that polls it: each stays small.

use std::sync::Arc;

use block::ZeroOptions;
use block::pace::Unpaced;
use serde_json::Value;
use storage::{Hints, IoBuf, IoVec};

use super::test_world::with_world;
use super::*;

/// Bytes of a request's future at most: doors have thousands.
const REQUEST_MAX: usize = 1536;
/// Bytes of any other future at most.
const STEERING_MAX: usize = 8192;

#[test]
fn futures_of_requests_and_of_what_opens_and_changes_disks_are_small() {
    with_world(async |world| {
        let asked = world.image_file("d", Value::Null).await;
        let disk = world.add(asked.clone()).await;
        let image = disk.image().unwrap();
        for (what, bytes) in [
            ("read", size_of_val(&disk.read(0, IoBuf::uninit(1), Hints::NONE))),
            ("write", size_of_val(&disk.write(0, IoVec::new(), false, Hints::NONE))),
            ("zero", size_of_val(&disk.zero(0, 1, ZeroOptions::default(), false, &Unpaced))),
            ("discard", size_of_val(&disk.discard(0, 1, false, &Unpaced))),
            ("flush", size_of_val(&disk.flush())),
            ("read of an image", size_of_val(&image.read(0, IoBuf::uninit(1), Hints::NONE))),
            ("write of an image", size_of_val(&image.write(0, IoVec::new(), Hints::NONE))),
        ] {
            assert!(bytes <= REQUEST_MAX, "{what}: {bytes} bytes");
        }
        let change = world.graph.change().await;
        let add = size_of_val(&world.graph.add(&change, asked.as_object().unwrap()));
        let replace = world.graph.replace(&change, "d", Edge::Root, Put::Nothing, async || Ok(()));
        let access = size_of_val(&world.graph.set_layer_access(&change, "d", 0, LayerAccess::Write));
        let options = disk.set_runtime_options(disk.runtime_options());
        let files = qcow2::Files { file: Arc::clone(image.file()), data: None, backing: None };
        let tasks = crate::background::BackgroundTasks::new(Arc::clone(&world.graph.rules().map_budget));
        let open = size_of_val(&qcow2::Qcow2::open(files, qcow2::Options::default(), Arc::new(tasks)));
        for (what, bytes) in [
            ("adding a node", add),
            ("replacing a layer", size_of_val(&replace)),
            ("opening a layer for writing", access),
            ("changing options", size_of_val(&options)),
            ("opening an image", open),
            ("closing an image", size_of_val(&image.close())),
            ("checking", size_of_val(&qcow2::check(&**image.file(), qcow2::Repair::None, &mut |_| ()))),
        ] {
            assert!(bytes <= STEERING_MAX, "{what}: {bytes} bytes");
        }
    });
}
