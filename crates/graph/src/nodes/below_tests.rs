//! Any driver over any node.

use serde_json::{Value, json};

use super::test_world::{SIZE, World, read_only, with_world};
use super::*;
use crate::Disk;
use storage::{Hints, IoBuf, IoBytes, IoVec};

async fn write(disk: &Disk, offset: u64, len: usize, value: u8) {
    let data = IoVec::from(IoBytes::copy_from(&vec![value; len]));
    disk.write(offset, data, false, Hints::NONE).await.unwrap();
}

async fn read(disk: &Disk, offset: u64, len: usize) -> Vec<u8> {
    let (read, buf) = disk.read(offset, IoBuf::uninit(len), Hints::NONE).await;
    read.unwrap();
    buf.to_vec()
}

fn unnamed(mut options: Value) -> Value {
    options.as_object_mut().unwrap().remove("node-name");
    options
}

async fn refused(world: &World, options: Value) -> String {
    let change = world.graph.change().await;
    let refused = world.graph.add(&change, options.as_object().unwrap()).await;
    refused.expect_err("it is refused").to_string()
}

async fn remove(world: &World, name: &str) -> Result<(), NodeError> {
    world.graph.remove(&world.graph.change().await, name).await.map(drop)
}

fn names(world: &World) -> Vec<String> {
    world.graph.nodes().iter().map(|node| node.name()).collect()
}

/// A qcow2 file, as raw bytes below what is put in its place: the same file as a node of each kind.
async fn nodes_of_bytes(world: &World, name: &str) -> Vec<Value> {
    let file = world.image_file(name, Value::Null).await["file"].clone();
    let raw = json!({ "driver": "raw", "file": file });
    vec![
        raw.clone(),
        json!({ "driver": "raw", "file": raw }),
        json!({ "driver": "throttle", "throttle-group": "below", "file": file }),
        json!({ "driver": "throttle", "throttle-group": "below", "file":
            { "driver": "throttle", "throttle-group": "below", "file": file } }),
        json!({ "driver": "copy-on-read", "file": raw }),
        json!({ "driver": "quorum", "vote-threshold": 1, "children": [raw] }),
        json!({ "driver": "blkdebug", "image": { "driver": "copy-on-read", "file": file } }),
        json!({ "driver": "preallocate", "file": file }),
    ]
}

#[test]
fn an_image_over_any_node_is_the_image_and_grows() {
    with_world(async |world| {
        let _group = world.graph.rules().groups.find_or_create("below");
        for by_name in [false, true] {
            let count = nodes_of_bytes(world, "count").await.len();
            for at in 0..count {
                let mut below = nodes_of_bytes(world, "i").await[at].clone();
                if by_name {
                    below["node-name"] = json!("below");
                    let change = world.graph.change().await;
                    world.graph.add(&change, below.as_object().unwrap()).await.unwrap();
                }
                let file = if by_name { json!("below") } else { below.clone() };
                let image = json!({ "driver": "qcow2", "node-name": "d", "file": file });
                let disk = world.add(image.clone()).await;
                write(&disk, 4096, 3 << 16, 7).await;
                disk.flush().await.unwrap();
                write(&disk, SIZE - 4096, 4096, 8).await;
                drop(disk);
                if by_name {
                    assert!(
                        remove(world, "below")
                            .await
                            .unwrap_err()
                            .to_string()
                            .contains("in use by node \"d\"")
                    );
                }
                remove(world, "d").await.unwrap();
                if by_name {
                    remove(world, "below").await.unwrap();
                }
                assert!(names(world).is_empty(), "{below}: {:?}", names(world));
                assert!(!world.is_locked("i").await, "{below}");
                // As it is without anything between.
                let path = world.directory.path().join("i");
                let direct = json!({ "driver": "file", "filename": path });
                let disk = world.add(json!({ "driver": "qcow2", "node-name": "d", "file": direct })).await;
                assert!(read(&disk, 4096, 3 << 16).await.iter().all(|byte| *byte == 7), "{below}");
                assert!(read(&disk, SIZE - 4096, 4096).await.iter().all(|byte| *byte == 8), "{below}");
                drop(disk);
                remove(world, "d").await.unwrap();
                let file = storage::FileStorage::open(&path, &storage::FileOptions::default()).unwrap();
                let found = qcow2::check(&file, qcow2::Repair::None, &mut |_| ()).await.unwrap();
                assert!(found.is_clean(), "{below}: {found:?}");
            }
        }
    });
}

#[test]
fn a_bare_file_is_a_disk_for_who_names_it() {
    with_world(async |world| {
        let file = unnamed(world.raw_file("r", 5))["file"].clone();
        let mut named = file.clone();
        named["node-name"] = json!("f");
        let change = world.graph.change().await;
        world.graph.add(&change, named.as_object().unwrap()).await.unwrap();
        world.graph.open_if_bare(&change, "f").await.unwrap();
        world.graph.open_if_bare(&change, "nobody").await.unwrap();
        drop(change);
        let disk = world.graph.disk("f").unwrap();
        assert_eq!((disk.driver(), disk.disk.size()), ("file", SIZE));
        assert_eq!(read(&disk.disk, 0, 512).await, [5; 512]);
        // And below an image afterwards.
        let over = world.add(json!({ "driver": "raw", "node-name": "d", "file": "f" })).await;
        write(&over, 0, 512, 6).await;
        assert_eq!(read(&disk.disk, 0, 512).await, [6; 512]);
        drop((disk, over));
        remove(world, "d").await.unwrap();
        remove(world, "f").await.unwrap();
        assert!(!world.is_locked("r").await);
    });
}

#[test]
fn the_file_of_an_image_is_nobody_elses() {
    with_world(async |world| {
        world.add(world.raw_file("r", 0)).await;
        world.add(json!({ "driver": "raw", "node-name": "d", "file": "r" })).await;
        let user = || User { kind: "export", name: "e".to_owned() };
        assert!(world.graph.hold("r", user()).unwrap_err().to_string().contains("in use by node \"d\""));
        let again = json!({ "driver": "raw", "node-name": "e", "file": "r" });
        assert!(refused(world, again).await.contains("in use by node \"d\""));
        let _hold = world.graph.hold("d", user()).unwrap();
        let over = json!({ "driver": "raw", "node-name": "e", "file": "d" });
        assert!(refused(world, over).await.contains("in use by export \"e\""));
        // What is read-only below is read above.
        world.add(read_only(world.raw_file("s", 3))).await;
        let writer = json!({ "driver": "raw", "node-name": "e", "file": "s" });
        assert!(refused(world, writer).await.contains("cannot open"));
        let reader = json!({ "driver": "raw", "node-name": "e", "read-only": true, "file": "s" });
        let disk = world.add(reader).await;
        assert_eq!(read(&disk, 0, 512).await, [3; 512]);
        drop(disk);
    });
}

#[test]
fn nodes_that_were_made_for_one_that_does_not_open_are_gone() {
    with_world(async |world| {
        let raw = unnamed(world.raw_file("r", 0));
        // No qcow2 image.
        let image =
            json!({ "driver": "qcow2", "node-name": "d", "file": { "driver": "copy-on-read", "file": raw } });
        assert!(refused(world, image).await.contains("cannot open"));
        assert!(names(world).is_empty(), "{:?}", names(world));
        assert!(!world.is_locked("r").await);
    });
}

#[test]
fn a_filter_can_be_a_backing_layer() {
    with_world(async |world| {
        let _group = world.graph.rules().groups.find_or_create("backing");
        let raw = unnamed(world.raw_file("r", 9));
        for backing in [
            json!({ "driver": "throttle", "throttle-group": "backing", "file": raw }),
            json!({ "driver": "copy-on-read", "read-only": true, "file": read_only(raw.clone()) }),
            raw["file"].clone(),
        ] {
            let disk = world.add(world.image_file("d", backing.clone()).await).await;
            assert_eq!(read(&disk, 4096, 512).await, [9; 512], "{backing}");
            write(&disk, 4096, 256, 1).await;
            assert_eq!(read(&disk, 4096, 512).await, [[1; 256], [9; 256]].concat(), "{backing}");
            drop(disk);
            remove(world, "d").await.unwrap();
            assert!(names(world).is_empty(), "{:?}", names(world));
        }
    });
}

async fn add(world: &World, options: Value) {
    world.graph.add(&world.graph.change().await, options.as_object().unwrap()).await.unwrap();
}

/// It was refused: a file was exchanged for a file alone.
#[test]
fn an_image_changes_to_another_node_as_its_file_and_back() {
    with_world(async |world| {
        let _group = world.graph.rules().groups.find_or_create("below");
        let file = world.image_file("d", Value::Null).await["file"].clone();
        let with = |below: Value| json!({ "driver": "qcow2", "node-name": "top", "file": below });
        let raw = json!({ "driver": "raw", "node-name": "raw", "file": file });
        let top = world.add(with(raw.clone())).await;
        let filter = |below: &str| json!({ "driver": "throttle", "node-name": "limited", "throttle-group": "below", "file": below });
        add(world, filter("raw")).await;
        write(&top, 0, 4096, 1).await;
        world.reopened(&with(json!("limited"))).await.unwrap();
        write(&top, 4096, 4096, 2).await;
        assert!(remove(world, "limited").await.is_err(), "the image is over it");
        // Described in its own place: the same node.
        world.reopened(&with(filter("raw"))).await.unwrap();
        world.reopened(&with(json!("raw"))).await.unwrap();
        write(&top, 8192, 4096, 3).await;
        remove(world, "limited").await.unwrap();
        for (at, value) in [(0, 1), (4096, 2), (8192, 3)] {
            assert_eq!(read(&top, at, 4096).await, vec![value; 4096]);
        }
        let mut renamed = raw;
        renamed["node-name"] = json!("other");
        let refused = world.reopened(&with(renamed)).await.unwrap_err();
        assert!(refused.contains("file.node-name"), "{refused}");
        // What others write, what is below the image already, and what lies over it.
        add(world, world.image_file("e", Value::Null).await).await;
        add(world, json!({ "driver": "raw", "node-name": "user", "file": "e" })).await;
        add(world, json!({ "driver": "copy-on-read", "node-name": "over", "file": "top" })).await;
        for (name, expected) in [("e", "in use by node \"user\""), ("over", "it is over that itself")] {
            let refused = world.reopened(&with(json!(name))).await.unwrap_err();
            assert!(refused.contains(expected), "{refused}");
        }
        for name in ["over", "top"] {
            remove(world, name).await.unwrap();
        }
        assert_eq!(names(world), ["e", "user"], "what was made for it went with it");
        world.check_clean("d").await;
    });
}

/// It was refused; with an export over it, which knows the size, it is.
#[test]
fn a_raw_disk_becomes_another_part_of_its_file() {
    with_world(async |world| {
        let options = world.raw_file("d", 1);
        let disk = world.add(options.clone()).await;
        let part = |offset: u64, size: u64| {
            let mut options = options.clone();
            (options["offset"], options["size"]) = (offset.into(), size.into());
            options
        };
        write(&disk, SIZE / 2, 4096, 7).await;
        world.reopened(&part(SIZE / 2, SIZE / 4)).await.unwrap();
        assert_eq!((disk.size(), read(&disk, 0, 4096).await), (SIZE / 4, vec![7; 4096]));
        let held = world.graph.hold("d", User { kind: "export", name: "x".to_owned() }).unwrap();
        world.reopened(&part(SIZE / 4, SIZE / 4)).await.unwrap();
        let refused = world.reopened(&options).await.unwrap_err();
        assert!(refused.contains("bytes"), "{refused}");
        assert_eq!(disk.size(), SIZE / 4);
        drop(held);
        world.reopened(&options).await.unwrap();
        assert_eq!((disk.size(), read(&disk, SIZE / 2, 4096).await), (SIZE, vec![7; 4096]));
        let refused = world.reopened(&part(SIZE, SIZE)).await.unwrap_err();
        assert!(refused.contains("allowed: at most its end") || refused.contains("switch"), "{refused}");
        assert_eq!(disk.size(), SIZE);
    });
}
