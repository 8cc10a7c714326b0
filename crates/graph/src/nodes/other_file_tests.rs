//! A layer of a running disk switches to another file.

use std::os::fd::OwnedFd;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use block::Block;
use qcow2::Qcow2;
use qcow2::bitmap::{BitmapChange, NewBitmap};
use serde_json::{Value, json};
use storage::{FileLock, Role};

use super::test_world::{Load, SIZE, STEP, World, a_while, polled, read_only, value_at, with_world, write};
use super::user::User;
use crate::Disk;
use crate::options::{DiskOptions, FileOptions};

fn is_free(path: &Path) -> bool {
    let file = std::fs::OpenOptions::new().read(true).write(true).open(path).unwrap();
    FileLock::acquire_role(&Arc::new(OwnedFd::from(file)), Role::Writer).is_ok()
}

fn file(path: &Path) -> Value {
    json!({ "driver": "file", "filename": path })
}

fn blkdebug(path: &Path) -> Value {
    json!({ "driver": "blkdebug", "image": file(path) })
}

fn below(mut options: Value) -> Value {
    options.as_object_mut().unwrap().remove("node-name");
    options
}

fn layer(disk: &Disk, at: usize) -> Arc<dyn Block> {
    block::layers(disk.root()).nth(at).unwrap()
}

impl World {
    fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    fn copy(&self, from: &str, to: &str) -> PathBuf {
        std::fs::copy(self.path(from), self.path(to)).unwrap();
        self.path(to)
    }

    /// The disk `d`, whose options are `was`, is reopened with the file that `file` says.
    async fn on(&self, was: &Value, file: Value) -> Result<(), String> {
        let mut options = was.clone();
        options["file"] = file;
        self.reopened(&options).await
    }

    pub(super) async fn reopened(&self, options: &Value) -> Result<(), String> {
        let change = self.graph.change().await;
        let reopened = Box::pin(self.graph.reopen(&change, options.as_object().unwrap())).await;
        reopened.map_err(|error| {
            let mut said = error.to_string();
            let mut source = std::error::Error::source(&error);
            while let Some(cause) = source {
                said = format!("{said}: {cause}");
                source = cause.source();
            }
            said.replace(&format!("{}/", self.directory.path().display()), "")
        })
    }

    async fn checked(&self, name: &str) -> qcow2::CheckReport {
        let opened = storage::FileStorage::open(self.path(name), &storage::FileOptions::default()).unwrap();
        qcow2::check(&opened, qcow2::Repair::None, &mut |_| ()).await.unwrap()
    }

    pub(super) async fn check_clean(&self, name: &str) {
        let report = self.checked(name).await;
        assert!(report.is_clean(), "{name}: {report:?}");
    }

    /// What is left behind is as after a crash: clusters that were counted ahead of their use are no errors.
    async fn check_whole(&self, name: &str) {
        let report = self.checked(name).await;
        assert_eq!((report.corruptions, report.check_errors), (0, 0), "{name}: {report:?}");
    }
}

/// To trace a running disk's writes, or to move its file to a larger file system, one had to take it out of
/// use.
#[test]
fn an_image_goes_on_with_the_same_file_and_with_copies_of_it_while_clients_use_it() {
    with_world(async |world| {
        let options = world.image_file("d", Value::Null).await;
        let disk = world.add(options.clone()).await;
        for times in 0..3 {
            // Over the same file, under all requests.
            let load = Load::on(&disk);
            for other in [blkdebug(&world.path("d")), file(&world.path("d"))] {
                a_while().await;
                let was = layer(&disk, 0);
                world.on(&options, other).await.unwrap();
                assert!(!Arc::ptr_eq(&layer(&disk, 0), &was) && !is_free(&world.path("d")));
                a_while().await;
            }
            let held = load.end().await;
            // The copy is made while no request writes; reads continue.
            disk.flush().await.unwrap();
            let done = std::rc::Rc::new(std::cell::Cell::new(false));
            let readers: Vec<_> = held
                .iter()
                .map(|&(offset, value)| {
                    let (disk, done) = (Arc::clone(&disk), std::rc::Rc::clone(&done));
                    reactor::spawn(async move {
                        while !done.get() {
                            assert_eq!(value_at(&disk, offset, STEP).await, value);
                            reactor::yield_now().await;
                        }
                    })
                })
                .collect();
            let to = format!("copy{times}");
            let copy = world.copy("d", &to);
            a_while().await;
            world.on(&options, file(&copy)).await.unwrap();
            assert!(is_free(&world.path("d")) && !is_free(&copy), "the old lock is given back");
            assert_eq!(world.graph.disk("d").unwrap().path(), copy);
            done.set(true);
            for reader in readers {
                reader.await;
            }
            // The old file is whole, and stays as it is.
            let old = std::fs::read(world.path("d")).unwrap();
            write(&disk, 8 * STEP, 200 + times).await;
            disk.flush().await.unwrap();
            assert_eq!(std::fs::read(world.path("d")).unwrap(), old);
            world.copy(&to, "d");
            world.on(&options, file(&world.path("d"))).await.unwrap();
            assert_eq!(value_at(&disk, 8 * STEP, STEP).await, 200 + times);
            for (offset, value) in held {
                assert_eq!(value_at(&disk, offset, STEP).await, value);
            }
        }
        let change = world.graph.change().await;
        world.graph.remove(&change, "d").await.unwrap();
        drop(disk);
        for name in ["d", "copy0", "copy1", "copy2"] {
            if name == "d" {
                world.check_clean(name).await;
            }
            assert!(is_free(&world.path(name)), "{name} is locked by nobody");
        }
    });
}

/// Refused before anything is exchanged, by what was found: a file in which memory would not be true.
#[test]
fn a_file_that_is_not_the_same_is_refused_and_the_disk_stays_on_its_own() {
    with_world(async |world| {
        let options = world.image_file("d", Value::Null).await;
        let disk = world.add(options.clone()).await;
        write(&disk, 0, 1).await;
        disk.flush().await.unwrap();
        let was = layer(&disk, 0);
        let changed = |name: &str, at: u64, bytes: &[u8]| {
            let path = world.copy("d", name);
            let opened = std::fs::OpenOptions::new().write(true).open(&path).unwrap();
            opened.write_all_at(bytes, at).unwrap();
            path
        };
        let bytes = std::fs::read(world.path("d")).unwrap();
        let word = |at: usize| u64::from_be_bytes(bytes[at..at + 8].try_into().unwrap());
        let (l1, refcounts) = (word(40), word(48));
        let (l2, block) = (word(l1 as usize) & 0x00ff_ffff_ffff_fe00, word(refcounts as usize));
        let stale = world.copy("d", "stale");
        write(&disk, 3 * STEP, 1).await;
        disk.flush().await.unwrap();
        let shorter = world.copy("d", "shorter");
        let opened = std::fs::OpenOptions::new().write(true).open(&shorter).unwrap();
        opened.set_len(opened.metadata().unwrap().len() - 512).unwrap();
        world.add(world.image_file("used", Value::Null).await).await;
        let wrong = [
            (changed("size", 31, &[1]), "main-header at 0x1f"),
            (changed("l1", l1 + 1, &[1]), "active-l1 at"),
            (changed("l2", l2 + 100, &[1]), "active-l2 at"),
            (changed("refcounts", refcounts + 15, &[1]), "refcount-table at"),
            (changed("block", block + 1, &[9]), "refcount-block at"),
            (stale, "stale: it is no copy of d as it is now: its "),
            (shorter, "bytes; must be"),
            (world.path("used"), "used"),
            (world.path("missing"), "No such file"),
        ];
        for (path, expected) in wrong {
            let said = world.on(&options, file(&path)).await.expect_err(expected);
            assert!(said.contains(expected), "{said}");
            assert!(Arc::ptr_eq(&layer(&disk, 0), &was) && !is_free(&world.path("d")));
            assert_eq!(world.graph.disk("d").unwrap().path(), world.path("d"));
            assert!(!path.exists() || path.ends_with("used") || is_free(&path), "{path:?} is locked");
        }
        // Options that change with it do so together with it.
        let mut both = options.clone();
        (both["discard"], both["file"]) = (json!("unmap"), file(&world.path("missing")));
        world.reopened(&both).await.unwrap_err();
        assert_eq!(disk.runtime_options().discard, crate::options::Discard::Ignore);
        both["file"] = file(&world.copy("d", "right"));
        world.reopened(&both).await.unwrap();
        assert_eq!(disk.runtime_options().discard, crate::options::Discard::Unmap);
        assert_eq!(value_at(&disk, 3 * STEP, STEP).await, 1);
        // What cannot change is named, whatever the file is.
        (both["file"], both["cache"]) = (file(&world.copy("right", "d")), json!({ "direct": true }));
        let said = world.reopened(&both).await.unwrap_err();
        assert!(said.contains("option cache.direct of node"), "{said}");
    });
}

/// Dropped at any await point, the exchange leaves the disk on its locked old file, and the other file
/// unlocked.
#[test]
fn an_exchange_that_is_dropped_anywhere_leaves_the_disk_on_its_old_file() {
    with_world(async |world| {
        let options = world.image_file("d", Value::Null).await;
        let disk = world.add(options.clone()).await;
        write(&disk, 0, 1).await;
        disk.flush().await.unwrap();
        for other in [file(&world.copy("d", "copy")), blkdebug(&world.path("copy"))] {
            let was = layer(&disk, 0);
            let mut dropped = 0;
            for times in 0.. {
                if polled(world.on(&options, other.clone()), times).await.is_some_and(|moved| moved.is_ok()) {
                    break;
                }
                dropped += 1;
                assert!(Arc::ptr_eq(&layer(&disk, 0), &was), "dropped after {times} polls");
                assert_eq!(value_at(&disk, 0, STEP).await, 1);
                if other["driver"] == "file" {
                    assert!(!is_free(&world.path("d")) && is_free(&world.path("copy")));
                }
            }
            assert!(dropped > 3, "it was dropped at {dropped} places");
            assert!(!Arc::ptr_eq(&layer(&disk, 0), &was) && is_free(&world.path("d")));
            write(&disk, STEP, 2).await;
            assert_eq!(value_at(&disk, STEP, STEP).await, 2);
        }
        let change = world.graph.change().await;
        world.graph.remove(&change, "d").await.unwrap();
        world.check_clean("copy").await;
        world.check_whole("d").await;
    });
}

fn file_options(path: &Path) -> FileOptions {
    DiskOptions::of_path(path).layer.file
}

#[test]
fn the_file_of_a_layer_below_is_another_one_under_a_load() {
    with_world(async |world| {
        let bottom = below(world.raw_file("bottom", 3));
        let base = below(world.image_file("base", bottom).await);
        let disk = world.add(world.image_file("d", base).await).await;
        let load = Load::on(&disk);
        for at in [1, 2, 1] {
            let name = ["d", "base", "bottom"][at];
            a_while().await;
            let copy = world.copy(name, &format!("{name}-copy"));
            let change = world.graph.change().await;
            let options = file_options(&copy);
            if is_free(&copy) {
                world.graph.replace_file(&change, "d", at, &options).await.unwrap();
            }
            drop(change);
            assert!(!is_free(&copy) && is_free(&world.path(name)));
            assert_eq!(value_at(&disk, 8 * STEP, STEP).await, 3);
        }
        let change = world.graph.change().await;
        // A file that the disk has open already, and one of another size.
        let same = file_options(&world.path("bottom-copy"));
        world.graph.replace_file(&change, "d", 1, &same).await.unwrap_err();
        std::fs::write(world.path("longer"), vec![3; SIZE as usize + 512]).unwrap();
        let longer = file_options(&world.path("longer"));
        let said = world.graph.replace_file(&change, "d", 2, &longer).await.unwrap_err().to_string();
        assert!(said.ends_with("longer has 1049088 bytes, and the disk 1048576"), "{said}");
        for (offset, value) in load.end().await {
            assert_eq!(value_at(&disk, offset, STEP).await, value);
        }
    });
}

/// The name of an image below a disk could be queried, but not be used in a command.
#[test]
fn an_image_below_goes_on_with_another_file_by_its_own_name() {
    with_world(async |world| {
        let bottom = read_only(world.raw_file("bottom", 3));
        let mut base = read_only(world.image_file("base", bottom).await);
        base["file"]["node-name"] = json!("base-file");
        let disk = world.add(world.image_file("d", base.clone()).await).await;
        let load = Load::on(&disk);
        for (name, of) in [("bottom", "raw"), ("base", "qcow2"), ("bottom", "raw")] {
            a_while().await;
            let was = world.path(name);
            let copy = world.copy(name, &format!("{name}-copy"));
            if !is_free(&was) {
                let mut options = json!({ "driver": of, "node-name": name, "file": file(&copy) });
                options["file"]["node-name"] = json!(format!("{name}-file-2"));
                world.reopened(&options).await.unwrap();
            }
            assert!(!is_free(&copy) && is_free(&was), "{name}");
            assert_eq!(value_at(&disk, 8 * STEP, STEP).await, 3);
        }
        let names: Vec<_> =
            world.graph.layers("d").unwrap().iter().map(|layer| layer.files.clone()).collect();
        assert_eq!(
            names[1..],
            [[("file", "base-file-2".to_owned())], [("file", "bottom-file-2".to_owned())]]
        );
        // What is not its file, what is not the same, and a part that is no image.
        let copy = file(&world.copy("base-copy", "again"));
        let with = |name: &str, value: Value| {
            let mut options = json!({ "driver": "qcow2", "node-name": "base", "file": copy });
            options[name] = value;
            options
        };
        for (options, expected) in [
            (
                with("discard", json!("unmap")),
                "only the file of node \"base\" can change while it is below \"d\"",
            ),
            (with("backing", Value::Null), "option backing of node \"base\" cannot change"),
            (with("file", file(&world.path("d"))), "d"),
            (
                with("node-name", json!("base-file-2")),
                "option file.filename of node \"base-file-2\" cannot change",
            ),
        ] {
            let said = world.reopened(&options).await.expect_err(expected);
            assert!(said.contains(expected), "{said}");
            assert!(!is_free(&world.path("base-copy")), "{said}");
        }
        let job = world.graph.hold("d", User { kind: "job", name: "j".to_owned() }).unwrap();
        let said = world.reopened(&with("discard", json!("ignore"))).await.unwrap_err();
        assert!(said.contains("node \"base\" is in use by job \"j\""), "{said}");
        drop(job);
        for (offset, value) in load.end().await {
            assert_eq!(value_at(&disk, offset, STEP).await, value);
        }
        let change = world.graph.change().await;
        world.graph.remove(&change, "d").await.unwrap();
        for name in ["d", "base-copy", "again"] {
            world.check_clean(name).await;
        }
    });
}

/// A disk over a node opened the file that the node was named by, and whatever that names: a window of a raw file, another image below it and
/// the place of a file on another machine were forgotten, and another file of the node left the disk on the old one.
#[test]
fn a_disk_over_a_node_stands_on_what_the_node_stands_on() {
    with_world(async |world| {
        std::fs::write(world.path("wide"), [vec![1; SIZE as usize], vec![2; SIZE as usize]].concat())
            .unwrap();
        let window = json!({
            "driver": "raw", "node-name": "window", "read-only": true, "offset": SIZE, "size": SIZE,
            "file": { "driver": "file", "node-name": "wide", "filename": world.path("wide") },
        });
        world.add(window).await;
        let base = world.image_file("base", json!("window")).await;
        world.add(read_only(base.clone())).await;
        let disk = world.add(world.image_file("d", json!("base")).await).await;
        assert_eq!(
            value_at(&disk, 0, SIZE).await,
            2,
            "the header of base names nothing, and the window is not at 0"
        );
        let names: Vec<_> =
            world.graph.layers("d").unwrap().into_iter().filter_map(|layer| layer.name).collect();
        assert_eq!(names, ["d", "base", "window"]);
        // The node takes the disks over it along, and they have one moment.
        let load = Load::on(&disk);
        let moved = read_only(base.clone());
        world.on(&moved, file(&world.copy("base", "copy"))).await.unwrap();
        assert!(is_free(&world.path("base")) && !is_free(&world.path("copy")));
        // Refused for one, it is refused for all.
        let said = world.on(&moved, file(&world.path("d"))).await.unwrap_err();
        assert!(said.contains("d"), "{said}");
        assert!(!is_free(&world.path("copy")));
        for (offset, value) in load.end().await {
            assert_eq!(value_at(&disk, offset, STEP).await, value);
        }
        assert_eq!(value_at(&disk, 8 * STEP, STEP).await, 2);
        // Another one over it finds it where it is now.
        let other = world.add(world.image_file("other", json!("base")).await).await;
        assert_eq!(value_at(&other, 0, SIZE).await, 2);
        drop((disk, other));
        let change = world.graph.change().await;
        for (name, is_used) in [
            ("window", true),
            ("base", true),
            ("other", false),
            ("d", false),
            ("base", false),
            ("window", false),
        ] {
            assert_eq!(world.graph.remove(&change, name).await.is_err(), is_used, "{name}");
        }
        assert!(is_free(&world.path("copy")) && is_free(&world.path("wide")));
    });
}

#[test]
fn a_raw_disk_goes_on_with_another_file_of_its_size() {
    with_world(async |world| {
        let options = world.raw_file("d", 1);
        let disk = world.add(options.clone()).await;
        let load = Load::on(&disk);
        for other in [blkdebug(&world.path("d")), file(&world.path("d"))] {
            a_while().await;
            world.on(&options, other).await.unwrap();
        }
        let held = load.end().await;
        std::fs::write(world.path("shorter"), [1; 512]).unwrap();
        let said = world.on(&options, file(&world.path("shorter"))).await.unwrap_err();
        assert!(said.ends_with("shorter has 512 bytes, and the disk 1048576"), "{said}");
        let copy = world.copy("d", "copy");
        world.on(&options, file(&copy)).await.unwrap();
        assert!(is_free(&world.path("d")) && !is_free(&copy));
        write(&disk, 8 * STEP, 9).await;
        let old = std::fs::read(world.path("d")).unwrap();
        assert_eq!(old[8 * STEP as usize], 1, "the old file is written no more");
        for (offset, value) in held {
            assert_eq!(value_at(&disk, offset, STEP).await, value);
        }
    });
}

/// A name that stayed taken, or a node that could be removed under a disk that needs it.
#[test]
fn names_of_files_come_and_go_with_them() {
    with_world(async |world| {
        let mut options = world.image_file("d", Value::Null).await;
        options["file"]["node-name"] = json!("first");
        let disk = world.add(options.clone()).await;
        write(&disk, 0, 1).await;
        disk.flush().await.unwrap();
        let copy = world.copy("d", "copy");
        let named = |name: &str, mut file: Value| {
            file["node-name"] = json!(name);
            file
        };
        let node = |name: &str| world.graph.node(name).is_ok();
        let is_taken = async |name: &str| {
            let taken = json!({ "driver": "file", "node-name": name, "filename": copy });
            let change = world.graph.change().await;
            match world.graph.add(&change, taken.as_object().unwrap()).await {
                Ok(_) => {
                    world.graph.remove(&change, name).await.unwrap();
                    false
                }
                Err(error) => error.to_string().contains("name"),
            }
        };
        assert!(is_taken("first").await && !is_taken("second").await);
        // Nested, under another name.
        world.on(&options, named("second", file(&copy))).await.unwrap();
        assert!(!is_taken("first").await && is_taken("second").await);
        let files = || world.graph.layers("d").unwrap()[0].files.clone();
        assert_eq!(files(), [("file", "second".to_owned())]);
        // A node of its own, which the disk needs from then on.
        let change = world.graph.change().await;
        let third = named("third", file(&copy));
        world.graph.add(&change, third.as_object().unwrap()).await.unwrap();
        drop(change);
        world.on(&options, json!("third")).await.unwrap();
        assert!(!is_taken("second").await && node("third"));
        let change = world.graph.change().await;
        let said = world.graph.remove(&change, "third").await.unwrap_err().to_string();
        assert!(said.contains("in use"), "{said}");
        drop(change);
        // The same again is no change.
        let was = layer(&disk, 0);
        world.on(&options, json!("third")).await.unwrap();
        assert!(Arc::ptr_eq(&layer(&disk, 0), &was));
        // Storage over a node, and without it again.
        let over = json!({ "driver": "blkdebug", "node-name": "over", "image": "third" });
        world.on(&options, over).await.unwrap();
        assert!(is_taken("over").await && node("third"));
        world.on(&options, file(&copy)).await.unwrap();
        assert!(!is_taken("over").await);
        let change = world.graph.change().await;
        world.graph.remove(&change, "third").await.unwrap();
        drop(change);
        // Names in use, or nowhere, are refused.
        world.add(world.raw_file("other", 1)).await;
        for name in ["other", "nowhere"] {
            world.on(&options, json!(name)).await.unwrap_err();
            assert_eq!(name == "nowhere", world.on(&options, named(name, file(&copy))).await.is_ok());
        }
        assert_eq!(value_at(&disk, 0, STEP).await, 1);
    });
}

/// What is kept of an image goes along: bitmaps, those in memory too, and what its map says.
#[test]
fn bitmaps_in_memory_and_the_map_go_along_to_the_other_file() {
    with_world(async |world| {
        let options = world.image_file("d", Value::Null).await;
        let disk = world.add(options.clone()).await;
        let image = || layer(&disk, 0).downcast_ref::<Qcow2>().unwrap().clone();
        for (name, persistent) in [("kept", true), ("fleeting", false)] {
            let new = NewBitmap { granularity_bytes: None, recording: true, persistent };
            disk.change_bitmap(name, BitmapChange::Add(new)).await.unwrap();
        }
        write(&disk, 2 * STEP, 1).await;
        disk.flush().await.unwrap();
        let before = image();
        world.on(&options, file(&world.copy("d", "copy"))).await.unwrap();
        write(&disk, 5 * STEP, 1).await;
        for name in ["kept", "fleeting"] {
            for at in 0..8 {
                let found = image().bitmap_status(name, at * STEP, STEP).await.unwrap().unwrap();
                assert_eq!(found.dirty, [2, 5].contains(&at), "{name} at {at}");
            }
        }
        // A handle from before is that of a closed image: it writes nothing any more.
        assert!(before.flush().await.is_err() && before.bitmap_status("kept", 0, STEP).await.is_err());
        let old = std::fs::read(world.path("d")).unwrap();
        before.close().await.unwrap();
        let change = world.graph.change().await;
        world.graph.remove(&change, "d").await.unwrap();
        assert_eq!(std::fs::read(world.path("d")).unwrap(), old);
        world.check_clean("copy").await;
    });
}
