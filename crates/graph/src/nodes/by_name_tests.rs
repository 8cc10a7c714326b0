//! Checkpoints and rollbacks of a running disk, by the names of its nodes and files.

use serde_json::{Value, json};
use std::sync::Arc;

use super::test_world::{Load, World, a_while, layer_names, value_at, with_world, write};
use super::*;
use crate::layers::OpenedLayers;

async fn opened(world: &World, options: Value) -> OpenedLayers {
    match world.opened(options).await {
        Put::Opened(opened) => opened,
        _ => panic!("not opened layers"),
    }
}

fn node_names(world: &World) -> Vec<Option<String>> {
    world.graph.layers("d").unwrap().into_iter().map(|layer| layer.name).collect()
}

/// After a snapshot a disk is called as its overlay is: a manager that takes the next checkpoint had to look for it anew.
#[test]
fn a_disk_keeps_its_name_and_a_sealed_layer_gets_the_path_that_it_has() {
    with_world(async |world| {
        let base = world.image_file("d", Value::Null).await;
        let disk = world.add(base).await;
        let node = world.graph.disk("d").unwrap();
        let path = |name: &str| world.directory.path().join(name);
        let load = Load::on(&disk);
        for number in 0..3 {
            a_while().await;
            // As a checkpoint does it: the active file has another name, and the overlay its own.
            let sealed = format!("sealed-{number}");
            let overlay = world.image_file("new", Value::Null).await;
            std::fs::hard_link(path("d"), path(&sealed)).unwrap();
            std::fs::rename(path("new"), path("d")).unwrap();
            let overlay = json!({ "driver": "qcow2", "file": overlay["file"], "backing": null });
            let mut overlay = overlay;
            overlay["file"]["filename"] = json!(path("d"));
            let active = disk.top_image();
            let overlay = opened(world, overlay).await;
            let change = world.graph.change().await;
            let put = world.graph.put_over_by_name(&change, &node, overlay).await.unwrap();
            assert_eq!(put.removed.names().count(), 0);
            let other = world.graph.seal_layer(&change, &node, &active, &path("d")).await;
            assert!(other.is_err(), "the path leads to another file");
            world.graph.seal_layer(&change, &node, &active, &path(&sealed)).await.unwrap();
            drop(change);
            assert!(world.is_locked("d").await);
            assert_eq!(world.graph.path_of_image("d").unwrap(), Some(path("d").canonicalize().unwrap()));
        }
        assert_eq!(layer_names(&disk), ["d", "sealed-2", "sealed-1", "sealed-0"]);
        let names = node_names(world);
        assert_eq!(names[0].as_deref(), Some("d"));
        assert!(
            names[1..].iter().all(|name| name.as_ref().is_some_and(|name| name.starts_with('#'))),
            "{names:?}"
        );
        for (offset, value) in load.end().await {
            assert_eq!(value_at(&disk, offset, 64 << 10).await, value);
        }
        // The path of the image leads elsewhere: nothing is sealed by it.
        std::fs::rename(path("sealed-0"), path("d")).unwrap();
        assert_eq!(world.graph.path_of_image("d").unwrap(), None);
    });
}

#[test]
fn a_disk_that_is_switched_keeps_its_name_and_what_it_was_is_free() {
    with_world(async |world| {
        let disk = world.add(world.image_file("d", Value::Null).await).await;
        let node = world.graph.disk("d").unwrap();
        write(&disk, 0, 7).await;
        let other = opened(world, world.image_file("other", Value::Null).await).await;
        let change = world.graph.change().await;
        let put = world.graph.switch_by_name(&change, &node, other, async || Ok(())).await.unwrap();
        put.removed.close().await.unwrap();
        drop(change);
        assert_eq!((value_at(&disk, 0, 64 << 10).await, layer_names(&disk)), (0, vec!["other".to_owned()]));
        assert_eq!(node_names(world), [Some("d".to_owned())]);
        assert_eq!(world.graph.nodes().len(), 1);
        assert!(world.is_locked("other").await && !world.is_locked("d").await);
    });
}

/// A transaction that failed left a disk on an overlay whose file was removed, under another name.
#[test]
fn a_disk_that_is_switched_back_is_called_and_reads_as_before() {
    with_world(async |world| {
        let disk = world.add(world.image_file("d", Value::Null).await).await;
        let node = world.graph.disk("d").unwrap();
        for (round, name) in ["over", "instead"].into_iter().enumerate() {
            let value = round as u8 + 7;
            write(&disk, 0, value).await;
            let names = (layer_names(&disk), node_names(world), world.graph.nodes().len());
            let other = opened(world, world.image_file(name, Value::Null).await).await;
            let change = world.graph.change().await;
            let disks = [Arc::clone(&node)];
            let at_rest = world.graph.keep_at_rest(&change, &disks).await;
            let before = world.graph.before(&change, &node).unwrap();
            let put = match name {
                "over" => world.graph.put_over_by_name(&change, &node, other).await,
                _ => world.graph.switch_by_name(&change, &node, other, async || Ok(())).await,
            };
            let put = put.unwrap();
            assert!(layer_names(&disk)[0].ends_with(name), "it was switched");
            world.graph.switch_back(&change, &node, before).await.unwrap().removed.close().await.unwrap();
            drop((put, at_rest, change));
            assert_eq!((layer_names(&disk), node_names(world), world.graph.nodes().len()), names);
            assert_eq!(value_at(&disk, 0, 64 << 10).await, value);
            write(&disk, 0, value + 10).await;
            assert_eq!(value_at(&disk, 0, 64 << 10).await, value + 10);
            disk.flush().await.unwrap();
            assert!(world.is_locked("d").await && !world.is_locked(name).await);
        }
    });
}

/// Between the rename of a checkpoint's overlay over the disk and its open a second server came to write it.
#[test]
fn a_file_that_is_locked_ahead_is_no_moment_free_until_it_is_open_and_after() {
    with_world(async |world| {
        let path = |name: &str| world.directory.path().join(name);
        let mut image = world.image_file("new", Value::Null).await;
        let ahead = world.graph.lock_ahead(&path("new")).unwrap();
        assert!(world.is_locked("new").await);
        std::fs::rename(path("new"), path("d")).unwrap();
        assert!(world.is_locked("d").await);
        image["file"]["filename"] = json!(path("d"));
        let mut missing = image.clone();
        missing["backing"] =
            json!({ "driver": "qcow2", "file": { "driver": "file", "filename": path("none") } });
        missing.as_object_mut().unwrap().remove("node-name");
        let change = world.graph.change().await;
        let refused = world.graph.open_layers(&change, missing.as_object().unwrap()).await;
        assert!(refused.is_err() && world.is_locked("d").await, "an open that fails gives it back");
        drop(change);
        let layers = opened(world, image.clone()).await;
        let mut again = image.clone();
        again.as_object_mut().unwrap().remove("node-name");
        let change = world.graph.change().await;
        let second = world.graph.open_layers(&change, again.as_object().unwrap()).await;
        assert!(second.is_err(), "one open has it");
        drop(change);
        drop(ahead);
        assert!(world.is_locked("d").await);
        drop(layers);
        assert!(!world.is_locked("d").await);
    });
}

/// A merge locks layers for a moment, or removes one that was named a moment before: starts were refused.
#[test]
fn a_layer_that_is_busy_for_a_moment_is_waited_for() {
    with_world(async |world| {
        let path = |name: &str| world.directory.path().join(name);
        std::fs::create_dir(path("layers")).unwrap();
        std::os::unix::fs::symlink(".", path("layers/layers")).unwrap();
        let mut below = world.image_file("below", Value::Null).await;
        std::fs::rename(path("below"), path("layers/0123456789abcdef.qcow2")).unwrap();
        below["file"]["filename"] = json!(path("layers/0123456789abcdef.qcow2"));
        below.as_object_mut().unwrap().remove("node-name");
        let image = world.image_file("d", below).await;
        let file = std::fs::File::open(path("layers/0123456789abcdef.qcow2")).unwrap();
        let lock = storage::FileLock::acquire_role(&Arc::new(file.into()), storage::Role::Writer).unwrap();
        reactor::spawn(async move {
            reactor::sleep(std::time::Duration::from_millis(5)).await;
            drop(lock);
        })
        .detach();
        let disk = world.add(image).await;
        assert_eq!(layer_names(&disk).len(), 2);
    });
}
