//! Something else is put into a disk while requests run.

use crate::open_rules::OpenRules;
use std::cell::Cell;
use std::rc::Rc;
use std::sync::Arc;

use block::{Blame, Block, BlockFuture};
use serde_json::{Value, json};
use storage::{Hints, IoBuf, IoBytes, IoVec};

use super::test_world::{
    Load, SIZE, STEP, World, a_while, layer_names, polled, read_only, value_at, with_world, write,
};
use super::*;

fn over(put: Put) -> Put {
    match put {
        Put::Opened(opened) => Put::Over(opened),
        _ => panic!("not opened layers"),
    }
}

#[test]
fn requests_before_an_exchange_see_the_old_disk_and_those_after_it_the_new_one() {
    with_world(async |world| {
        let disk = world.add(world.raw_file("d", 1)).await;
        world.add(world.raw_file("t", 2)).await;
        let done = Rc::new(Cell::new(false));
        let readers: Vec<_> = (0..4)
            .map(|reader| {
                let (disk, done) = (Arc::clone(&disk), Rc::clone(&done));
                reactor::spawn(async move {
                    let mut seen = Vec::new();
                    while !done.get() {
                        seen.push(value_at(&disk, reader * STEP, 3 * STEP).await);
                        reactor::yield_now().await;
                    }
                    seen
                })
            })
            .collect();
        a_while().await;
        let looked = Cell::new(0);
        let change = world.graph.change().await;
        let last_look = async || {
            let (result, buf) = disk.root().read(0, IoBuf::uninit(10), Hints::NONE).await;
            result?;
            looked.set(buf[0]);
            Ok(())
        };
        let replaced =
            world.graph.replace(&change, "d", Edge::Root, Put::Node("t".into()), last_look).await.unwrap();
        assert_eq!(looked.get(), 1, "the last look is at the old disk");
        assert_eq!(value_at(&disk, 0, SIZE).await, 2);
        a_while().await;
        done.set(true);
        for reader in readers {
            let seen = reader.await;
            assert!(seen.starts_with(&[1]) && seen.ends_with(&[2]) && seen.is_sorted(), "{seen:?}");
        }
        // The other node is gone, and its file locked on by this one; the old file is free once it is closed.
        assert_eq!(world.graph.node("t").unwrap_err().to_string(), "there is no device or node \"t\"");
        assert!(world.graph.disk("d").unwrap().path().ends_with("t"));
        assert!(world.is_locked("t").await && world.is_locked("d").await);
        assert_eq!(replaced.removed.names().count(), 1);
        replaced.removed.close().await.unwrap();
        assert!(world.is_locked("t").await && !world.is_locked("d").await);
    });
}

#[test]
fn an_overlay_is_put_over_a_disk_at_work_and_no_write_is_lost() {
    with_world(async |world| {
        let base = world.image_file("d", Value::Null).await;
        let disk = world.add(base).await;
        let load = Load::on(&disk);
        for overlay in ["o1", "o2"] {
            a_while().await;
            let opened = world.opened(world.image_file(overlay, Value::Null).await).await;
            let replaced = world.replace(Edge::Root, over(opened)).await.unwrap();
            assert_eq!(replaced.removed.names().count(), 0, "what is below is still needed");
        }
        assert_eq!(layer_names(&disk), ["o2", "o1", "d"]);
        a_while().await;
        let held = load.end().await;
        for (offset, value) in &held {
            assert_eq!(value_at(&disk, *offset, STEP).await, *value);
        }
        // Every layer is closed in order: no file needs a repair, and together they hold everything.
        let change = world.graph.change().await;
        world.graph.remove(&change, "d").await.unwrap();
        drop(change);
        drop(disk);
        let mut chain = json!(null);
        for name in ["d", "o1", "o2"] {
            let path = world.directory.path().join(name);
            let file = storage::FileStorage::open(&path, &storage::FileOptions::default()).unwrap();
            let report = qcow2::check(&file, qcow2::Repair::None, &mut |_| ()).await.unwrap();
            assert!(report.is_clean(), "{name}: {report:?}");
            chain = json!({ "driver": "qcow2", "file": { "driver": "file", "filename": path }, "backing": chain });
        }
        chain["node-name"] = json!("again");
        let again = world.add(chain).await;
        for (offset, value) in &held {
            assert_eq!(value_at(&again, *offset, STEP).await, *value);
        }
    });
}

/// The first byte of a disk that is opened on a copy of the image's file, as the file is now.
async fn found_in_file(world: &World, name: &str) -> u8 {
    let (from, copy) = (world.directory.path().join(name), world.directory.path().join("copy"));
    std::fs::copy(from, &copy).unwrap();
    let disk = crate::open(&crate::options::DiskOptions::of_path(copy), &OpenRules::default()).await.unwrap();
    let found = value_at(&disk, 0, STEP).await;
    disk.close().await.unwrap();
    found
}

/// No request waits for a flush while an overlay is put over a disk, and none that a later flush covers is lost for that.
#[test]
fn the_next_flush_is_one_of_what_was_written_last_below_an_overlay() {
    with_world(async |world| {
        let disk = world.add(world.image_file("d", Value::Null).await).await;
        let overlay = over(world.opened(world.image_file("over", Value::Null).await).await);
        let (change, root) = (world.graph.change().await, disk.root());
        // The last write before the exchange: the map entry of its cluster is in memory alone.
        let last =
            async || root.write(0, IoVec::from(IoBytes::copy_from(&[9; STEP as usize])), Hints::NONE).await;
        world.graph.replace(&change, "d", Edge::Root, overlay, last).await.unwrap();
        assert_eq!(
            found_in_file(world, "d").await,
            0,
            "this test shows nothing: the entry is in the file already"
        );
        disk.flush().await.unwrap();
        assert_eq!(found_in_file(world, "d").await, 9);
        assert_eq!(value_at(&disk, 0, STEP).await, 9);
    });
}

#[test]
fn layers_between_two_others_leave_a_disk_at_work() {
    with_world(async |world| {
        let bottom = world.raw_file("bottom", 3);
        let without_name = |mut options: Value| {
            options.as_object_mut().unwrap().remove("node-name");
            options
        };
        let middle = world.image_file("middle", without_name(bottom)).await;
        let upper = world.image_file("upper", without_name(middle)).await;
        let disk = world.add(world.image_file("d", without_name(upper)).await).await;
        assert_eq!(value_at(&disk, 0, SIZE).await, 3);
        assert!(world.is_locked("upper").await && world.is_locked("middle").await);
        let load = Load::on(&disk);
        a_while().await;
        let replaced = world.replace(Edge::Backing { of: 0 }, Put::Layer(2)).await.unwrap();
        assert_eq!(layer_names(&disk), ["d", "middle", "bottom"]);
        replaced.removed.close().await.unwrap();
        assert!(!world.is_locked("upper").await && world.is_locked("middle").await);
        // What is below the middle changes for the images above it, too.
        let other = world.opened(read_only(world.raw_file("other", 4))).await;
        let replaced = world.replace(Edge::Backing { of: 1 }, other).await.unwrap();
        replaced.removed.close().await.unwrap();
        assert_eq!(value_at(&disk, SIZE / 2, SIZE / 2).await, 4);
        assert!(world.is_locked("other").await && !world.is_locked("bottom").await);
        world.replace(Edge::Backing { of: 0 }, Put::Nothing).await.unwrap().removed.close().await.unwrap();
        assert_eq!(value_at(&disk, SIZE / 2, SIZE / 2).await, 0);
        for (offset, value) in load.end().await {
            assert_eq!(value_at(&disk, offset, STEP).await, value);
        }
        assert_eq!(layer_names(&disk), ["d"]);
    });
}

/// A filter that refuses what is written where it says.
#[derive(Debug)]
struct Guarded(Arc<dyn Block>);

impl Block for Guarded {
    fn driver(&self) -> &'static str {
        "guarded"
    }

    fn over(&self) -> Option<&Arc<dyn Block>> {
        Some(&self.0)
    }

    fn write(&self, offset: u64, data: IoVec, hints: Hints) -> BlockFuture<'_, Result<(), block::Error>> {
        match offset {
            0 => Box::pin(async { Err(Blame::new("guard").refused("not here")) }),
            _ => self.0.write(offset, data, hints),
        }
    }
}

#[test]
fn a_filter_is_put_over_a_disk_at_work_and_taken_away() {
    with_world(async |world| {
        let disk = world.add(world.raw_file("d", 1)).await;
        let bytes = || IoVec::from(IoBytes::copy_from(&[9; 512]));
        let filter = Put::Filter(Box::new(|below| Arc::new(Guarded(below))));
        assert_eq!(world.replace(Edge::Root, filter).await.unwrap().removed.names().count(), 0);
        assert_eq!(
            disk.write(0, bytes(), false, Hints::NONE).await.unwrap_err().to_string(),
            "guard: not here"
        );
        disk.write(512, bytes(), false, Hints::NONE).await.unwrap();
        let replaced = world.replace(Edge::Root, Put::Layer(1)).await.unwrap();
        assert_eq!(replaced.removed.names().count(), 1);
        drop(replaced);
        disk.write(0, bytes(), false, Hints::NONE).await.unwrap();
        assert_eq!(value_at(&disk, 0, 1024).await, 9);
    });
}

#[test]
fn what_cannot_stand_there_is_refused_and_nothing_changes() {
    with_world(async |world| {
        let below = |mut options: Value| {
            options.as_object_mut().unwrap().remove("node-name");
            options
        };
        let base = below(world.raw_file("base", 1));
        let disk = world.add(world.image_file("d", base).await).await;
        world.add(world.raw_file("t", 2)).await;
        let backing = Edge::Backing { of: 0 };
        assert_eq!(world.refused(Edge::Root, Put::Nothing).await, "node \"d\" must be backed by a layer");
        assert_eq!(world.refused(backing, Put::Layer(0)).await, "d would lie below itself");
        assert_eq!(
            world.refused(Edge::Backing { of: 7 }, Put::Nothing).await,
            "node \"d\" has 2 layers, and none 7 down"
        );
        assert_eq!(
            world.refused(Edge::Backing { of: 1 }, Put::Nothing).await,
            "base is a block of driver raw, which has no backing layer"
        );
        assert_eq!(
            world.refused(Edge::Root, Put::Layer(1)).await,
            "base is open for reading, and the disk is written"
        );
        assert_eq!(
            world.refused(backing, Put::Node("t".into())).await,
            "t is open for writing; open it with read-only to put it below an image"
        );
        let hold = world.graph.hold("t", User { kind: "job", name: "j".into() }).unwrap();
        assert_eq!(
            world.refused(Edge::Root, Put::Node("t".into())).await,
            "node \"t\" is in use by job \"j\""
        );
        drop(hold);
        assert_eq!(
            world.refused(Edge::Root, Put::Node("x".into())).await,
            "there is no device or node \"x\""
        );
        let small = world.directory.path().join("small");
        std::fs::write(&small, vec![0; 512]).unwrap();
        let small = json!({ "driver": "raw", "file": { "driver": "file", "filename": small } });
        assert_eq!(
            world.refused(Edge::Root, world.opened(small).await).await,
            "small has 512 bytes, and the disk 1048576"
        );
        let same = json!({ "driver": "qcow2", "read-only": true, "force-share": true, "backing": null,
            "file": { "driver": "file", "filename": world.directory.path().join("d"), "locking": "off" } });
        assert_eq!(world.refused(backing, world.opened(same).await).await, "d would lie below itself");
        let chain = world.image_file("over", read_only(below(world.raw_file("o", 1)))).await;
        assert_eq!(
            world.refused(Edge::Root, over(world.opened(chain).await)).await,
            "over has a backing layer of its own; open it with an empty backing"
        );
        // All of them are free again, and the disk works.
        for name in ["small", "over", "o"] {
            assert!(!world.is_locked(name).await, "{name}");
        }
        assert_eq!(value_at(&disk, 0, SIZE).await, 1);
    });
}

#[test]
fn an_exchange_that_fails_or_is_dropped_anywhere_leaves_the_old_disk_whole() {
    with_world(async |world| {
        let base = world.image_file("d", Value::Null).await;
        let disk = world.add(base).await;
        world.add(world.image_file("t", Value::Null).await).await;
        let (change, root) = (world.graph.change().await, disk.root());
        let load = Load::on(&disk);
        let mut dropped = 0;
        for times in 0.. {
            let last_look = async || {
                reactor::yield_now().await;
                // What the job that does this has written last: the disks are the same.
                for range in 0..4 {
                    let (result, buf) =
                        root.read(range * STEP, IoBuf::uninit(STEP as usize), Hints::NONE).await;
                    result?;
                    let target = world.graph.disk("t").unwrap();
                    target.disk.root().write(range * STEP, IoVec::from(buf.freeze()), Hints::NONE).await?;
                }
                match times % 2 {
                    0 => Ok(()),
                    _ => Err(Blame::new("job").refused("not yet")),
                }
            };
            let replacing = world.graph.replace(&change, "d", Edge::Root, Put::Node("t".into()), last_look);
            match polled(replacing, times).await {
                None => dropped += 1,
                Some(Err(ReplaceError::Before(error))) => assert_eq!(error.to_string(), "job: not yet"),
                Some(Err(other)) => panic!("{other}"),
                Some(Ok(replaced)) => {
                    replaced.removed.close().await.unwrap();
                    break;
                }
            }
            assert!(Arc::ptr_eq(&disk.root(), &root), "dropped after {times} polls");
            assert!(world.graph.node("t").is_ok());
            // Requests go on.
            write(&disk, 8 * STEP, times as u8).await;
            assert_eq!(value_at(&disk, 8 * STEP, STEP).await, times as u8);
        }
        assert!(dropped > 5, "it was dropped at {dropped} places");
        assert!(!Arc::ptr_eq(&disk.root(), &root) && world.graph.node("t").is_err());
        for (offset, value) in load.end().await {
            assert_eq!(value_at(&disk, offset, STEP).await, value);
        }
    });
}
