//! A layer is opened for writing while the disk above it is in use, and for reading again.

use std::os::fd::OwnedFd;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;

use block::{Block, Error};
use serde_json::{Value, json};
use storage::{FileLock, Hints, IoBytes, IoVec, LockError, Role};

use super::test_world::{Load, SIZE, STEP, World, a_while, polled, read_only, value_at, with_world};
use super::*;
use crate::Disk;

fn below(mut options: Value) -> Value {
    options.as_object_mut().unwrap().remove("node-name");
    options
}

/// A lock on the file as another process would take it.
fn lock(path: &Path, role: Role) -> Result<FileLock, LockError> {
    let file = std::fs::OpenOptions::new().read(true).write(true).open(path).unwrap();
    FileLock::acquire_role(&Arc::new(OwnedFd::from(file)), role)
}

/// Whether QEMU takes the image for one that it may open for reading.
fn qemu_reads(path: &Path) -> bool {
    let output = Command::new("qemu-img").arg("info").arg(path).output().expect("qemu-img is installed");
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() || errors.contains("lock"), "{errors}");
    output.status.success()
}

fn layer(disk: &Disk, at: usize) -> Arc<dyn Block> {
    block::layers(disk.root()).nth(at).unwrap()
}

async fn write_below(disk: &Disk, at: usize, offset: u64, value: u8) -> Result<(), Error> {
    let data = IoVec::from(IoBytes::copy_from(&vec![value; STEP as usize]));
    layer(disk, at).write(offset, data, Hints::NONE).await
}

impl World {
    async fn set_access(&self, at: usize, access: LayerAccess) -> Result<(), ReplaceError> {
        let change = self.graph.change().await;
        self.graph.set_layer_access(&change, "d", at, access).await.map(drop)
    }

    /// The disk `d` over `base`, an image over raw bytes of value 3.
    async fn chain(&self) -> Arc<Disk> {
        let bottom = below(self.raw_file("bottom", 3));
        let base = below(self.image_file("base", bottom).await);
        self.add(self.image_file("d", base).await).await
    }
}

#[test]
fn a_layer_below_a_disk_at_work_is_written_and_then_read_only_again() {
    with_world(async |world| {
        let disk = world.chain().await;
        let base = world.directory.path().join("base");
        let load = Load::on(&disk);
        a_while().await;
        assert!(qemu_reads(&base) && lock(&base, Role::Writer).is_err());
        assert!(write_below(&disk, 1, 8 * STEP, 7).await.is_err(), "it is open for reading");
        for value in [7, 8] {
            world.set_access(1, LayerAccess::Write).await.unwrap();
            world.set_access(1, LayerAccess::Write).await.unwrap();
            assert!(!qemu_reads(&base) && lock(&base, Role::Reader).is_err(), "others see a writer");
            assert_eq!(value_at(&disk, 8 * STEP, STEP).await, if value == 7 { 3 } else { 7 });
            write_below(&disk, 1, 8 * STEP, value).await.unwrap();
            a_while().await;
            assert_eq!(value_at(&disk, 8 * STEP, STEP).await, value, "the disk reads what was written below");
            world.set_access(1, LayerAccess::Read).await.unwrap();
            assert!(qemu_reads(&base) && lock(&base, Role::Writer).is_err());
            assert!(write_below(&disk, 1, 0, 9).await.is_err());
            assert_eq!(value_at(&disk, 8 * STEP, STEP).await, value);
        }
        // Raw bytes likewise, under two images.
        world.set_access(2, LayerAccess::Write).await.unwrap();
        write_below(&disk, 2, 9 * STEP, 5).await.unwrap();
        assert_eq!(value_at(&disk, 9 * STEP, STEP).await, 5);
        world.set_access(2, LayerAccess::Read).await.unwrap();
        for (offset, value) in load.end().await {
            assert_eq!(value_at(&disk, offset, STEP).await, value);
        }
        let file = storage::FileStorage::open(&base, &storage::FileOptions::default()).unwrap();
        let report = qcow2::check(&file, qcow2::Repair::None, &mut |_| ()).await.unwrap();
        assert!(report.is_clean(), "{report:?}");
    });
}

#[test]
fn a_layer_that_somebody_else_reads_stays_as_it_is() {
    with_world(async |world| {
        let disk = world.chain().await;
        let base = world.directory.path().join("base");
        let was = layer(&disk, 1);
        let reader = lock(&base, Role::Reader).unwrap();
        let refused = world.set_access(1, LayerAccess::Write).await.unwrap_err().to_string();
        assert!(
            refused.contains("base: the file is in use by") && refused.contains("does not let others write"),
            "{refused}"
        );
        assert!(Arc::ptr_eq(&layer(&disk, 1), &was));
        drop(reader);
        // The lock is that of a reader again.
        drop(lock(&base, Role::Reader).unwrap());
        assert!(qemu_reads(&base));
        // Another disk of this process that has the file open keeps the writer out, too.
        let other = json!({ "driver": "qcow2", "node-name": "o", "read-only": true, "backing": null,
            "file": { "driver": "file", "filename": base } });
        world.add(other).await;
        // A process that another test starts has the descriptors of this one until it becomes a program of its own, and is named instead.
        let mut refused = String::new();
        for _ in 0..1000 {
            refused = world.set_access(1, LayerAccess::Write).await.unwrap_err().to_string();
            if refused.contains("in use by this process itself") {
                break;
            }
            std::thread::sleep(std::time::Duration::from_millis(1));
        }
        assert!(refused.contains("in use by this process itself"), "{refused}");
        assert_eq!(value_at(&disk, 0, SIZE).await, 3);
    });
}

async fn remove(world: &World, name: &str) {
    drop(world.graph.remove(&world.graph.change().await, name).await.unwrap());
}

/// How often this process has a file open.
fn opens(path: &Path) -> usize {
    let all = std::fs::read_dir("/proc/self/fd").unwrap().flatten();
    all.filter(|entry| std::fs::read_link(entry.path()).is_ok_and(|file| file == path)).count()
}

/// Each fork of an image had it and all below it open once more.
#[test]
fn layers_that_two_disks_read_are_open_once_and_written_by_neither() {
    with_world(async |world| {
        let bottom = below(world.raw_file("bottom", 3));
        let base = below(world.image_file("base", bottom).await);
        let [d, e] = [world.image_file("d", base.clone()).await, world.image_file("e", base).await];
        let (one, _) = (world.add(d).await, world.add(e.clone()).await);
        let files = ["base", "bottom"].map(|name| world.directory.path().canonicalize().unwrap().join(name));
        assert_eq!(files.each_ref().map(|path| opens(path)), [1, 1]);
        let base = world.directory.path().join("base");
        for layer in [1, 2] {
            let refused = world.set_access(layer, LayerAccess::Write).await.unwrap_err().to_string();
            assert!(refused.contains("which does not let others write"), "{refused}");
        }
        drop(lock(&base, Role::Reader).unwrap());
        remove(world, "e").await;
        world.set_access(1, LayerAccess::Write).await.unwrap();
        write_below(&one, 1, 0, 7).await.unwrap();
        assert!(lock(&base, Role::Reader).is_err(), "others see a writer");
        let late = world.graph.add(&world.graph.change().await, e.as_object().unwrap()).await;
        let late = format!("{:?}", late.unwrap_err());
        assert!(late.contains("Busy"), "{late}");
        world.set_access(1, LayerAccess::Read).await.unwrap();
        let other = world.add(e).await;
        assert_eq!((value_at(&one, 0, STEP).await, value_at(&other, 0, STEP).await), (7, 7));
        remove(world, "d").await;
        assert_eq!(value_at(&other, 0, STEP).await, 7);
        assert!(lock(&base, Role::Writer).is_err(), "it is still read");
        remove(world, "e").await;
        drop((one, other));
        assert_eq!(files.each_ref().map(|path| opens(path)), [0, 0]);
        drop(lock(&base, Role::Writer).unwrap());
    });
}

#[test]
fn an_image_that_takes_no_writes_stays_open_for_reading_under_a_lock_for_reading() {
    with_world(async |world| {
        let path = world.directory.path().join("base");
        let base = below(world.image_file("base", below(world.raw_file("bottom", 3))).await);
        // Marked corrupt: incompatible feature bit 1.
        let mut bytes = std::fs::read(&path).unwrap();
        bytes[79] |= 2;
        std::fs::write(&path, bytes).unwrap();
        let disk = world.add(world.image_file("d", base).await).await;
        let refused = world.set_access(1, LayerAccess::Write).await.unwrap_err().to_string();
        assert!(refused.contains("marked corrupt"), "{refused}");
        // Its refcounts may be wrong: bit 0.
        let mut bytes = std::fs::read(&path).unwrap();
        bytes[79] = 1;
        std::fs::write(&path, bytes).unwrap();
        let refused = world.set_access(1, LayerAccess::Write).await.unwrap_err().to_string();
        assert!(refused.contains("take it out of use and run `cowhand check -r all`"), "{refused}");
        drop(lock(&path, Role::Reader).unwrap());
        assert_eq!(value_at(&disk, 0, SIZE).await, 3);
    });
}

#[test]
fn a_disk_that_was_opened_for_reading_takes_writes_after_its_root_was_opened_for_writing() {
    with_world(async |world| {
        let disk = world.add(read_only(world.image_file("d", Value::Null).await)).await;
        let mut options = disk.runtime_options();
        options.read_only = false;
        assert!(disk.set_runtime_options(options).await.is_err());
        world.set_access(0, LayerAccess::Write).await.unwrap();
        assert!(disk.read_only(), "the option says so as before");
        disk.set_runtime_options(options).await.unwrap();
        let bytes = IoVec::from(IoBytes::copy_from(&vec![6; STEP as usize]));
        disk.write(0, bytes, false, Hints::NONE).await.unwrap();
        let refused = world.set_access(0, LayerAccess::Read).await.unwrap_err().to_string();
        assert!(refused.ends_with("is open for reading, and the disk is written"), "{refused}");
        options.read_only = true;
        disk.set_runtime_options(options).await.unwrap();
        world.set_access(0, LayerAccess::Read).await.unwrap();
        assert_eq!(value_at(&disk, 0, STEP).await, 6);
        assert!(qemu_reads(&world.directory.path().join("d")));
        let refused = world.set_access(3, LayerAccess::Read).await.unwrap_err().to_string();
        assert_eq!(refused, "node \"d\" has 1 layers, and none 3 down");
    });
}

/// Dropped anywhere on the way up, the layer is as it was and its lock that of a reader; no write of the disk is lost.
#[test]
fn a_change_that_is_dropped_anywhere_leaves_lock_and_layer_as_they_were() {
    with_world(async |world| {
        let disk = world.chain().await;
        let base = world.directory.path().join("base");
        let load = Load::on(&disk);
        let was = layer(&disk, 1);
        let mut dropped = 0;
        for times in 0.. {
            let change = world.graph.change().await;
            let changing = world.graph.set_layer_access(&change, "d", 1, LayerAccess::Write);
            match polled(changing, times).await {
                Some(changed) => {
                    changed.unwrap();
                    break;
                }
                None => dropped += 1,
            }
            assert!(Arc::ptr_eq(&layer(&disk, 1), &was), "dropped after {times} polls");
            drop(lock(&base, Role::Reader).unwrap());
        }
        assert!(dropped > 3, "it was dropped at {dropped} places");
        assert!(!Arc::ptr_eq(&layer(&disk, 1), &was) && lock(&base, Role::Reader).is_err());
        write_below(&disk, 1, 8 * STEP, 7).await.unwrap();
        world.set_access(1, LayerAccess::Read).await.unwrap();
        assert_eq!(value_at(&disk, 8 * STEP, STEP).await, 7);
        for (offset, value) in load.end().await {
            assert_eq!(value_at(&disk, offset, STEP).await, value);
        }
    });
}
