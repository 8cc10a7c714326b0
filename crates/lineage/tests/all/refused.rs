//! What is refused before anything is made: chains that would not open, layers that have changed, disks that cannot be sealed.

use std::fs::{File, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::time::{Duration, SystemTime};

use cowhand::{Format, NewImage, create};
use lineage::{Action, AsSealed, Change, Error, LayerId, Plan, check_sealable};
use serde_json::{Value, json};

use crate::support::*;

/// Has the manifest say that there are so many layers between `upper` and `lower`, which no file is of.
fn lengthen(world: &World, (upper, lower): (LayerId, LayerId), layers: usize) {
    let path = world.place().manifest();
    let mut text: Value = serde_json::from_slice(&std::fs::read(&path).unwrap()).unwrap();
    let entries = text["layers"].as_array_mut().unwrap();
    entries.retain(|entry| [upper, lower].iter().any(|id| entry["id"] == id.to_string().as_str()));
    let mut parent = lower.to_string();
    let seal = json!({ "bytes": 1, "modified-sec": 1, "modified-nsec": 0 });
    for _ in 0..layers {
        let id = LayerId::new().unwrap().to_string();
        entries.push(json!({ "id": id, "parent": parent, "disk": "d.qcow2", "time-sec": 1, "seal": seal }));
        parent = id;
    }
    let upper = entries.iter_mut().find(|entry| entry["id"] == upper.to_string().as_str());
    upper.unwrap()["parent"] = json!(parent);
    std::fs::write(path, text.to_string()).unwrap();
}

fn planned(world: &World, action: Action) -> Result<Plan, Error> {
    Change::begin(&world.place(), Duration::ZERO).unwrap().plan(&[action])
}

/// What a rollback left at the limit could be neither forked nor rolled back to, and over a base with backing files a checkpoint left a disk that did not
/// open.
#[test]
fn every_chain_that_a_command_leaves_opens_and_can_be_rolled_back_to() {
    let world = World::new();
    for (name, below) in
        [("base.qcow2", None), ("over.qcow2", Some("base.qcow2")), ("d.qcow2", Some("over.qcow2"))]
    {
        let _ = std::fs::remove_file(world.path(name));
        let image = match below {
            None => NewImage::qcow2(DISK_BYTES),
            Some(below) => NewImage::overlay(DISK_BYTES, below, Format::Qcow2),
        };
        create(world.path(name), image).wait().unwrap();
    }
    let lower = world.checkpoint("d.qcow2", "lower");
    let upper = world.checkpoint("d.qcow2", "upper");
    // Two images outside, the two layers, and those between.
    let at = |below: usize, action: Action| {
        lengthen(&world, (upper, lower), below - 4);
        planned(&world, action)
    };
    let checkpoint = || world.checkpoint_of("d.qcow2", new_checkpoint(None));
    let rollback = || world.rollback_of("d.qcow2", "upper", new_checkpoint(None));
    at(997, checkpoint()).unwrap();
    let refused = at(998, checkpoint());
    assert!(matches!(refused, Err(Error::TooLong { found: 998, max: 1000, .. })), "{refused:?}");
    at(998, rollback()).unwrap();
    let refused = at(999, rollback()).unwrap_err();
    assert!(refused.to_string().contains("cowhand forget"), "{refused}");
}

fn set_times(path: &Path, time: SystemTime) {
    std::fs::set_permissions(path, Permissions::from_mode(0o644)).unwrap();
    File::options().write(true).open(path).unwrap().set_modified(time).unwrap();
    std::fs::set_permissions(path, Permissions::from_mode(0o444)).unwrap();
}

/// A checkpoint and a server went on over a layer that had changed.
#[test]
fn a_layer_that_has_changed_is_found_however_deep_it_lies() {
    let world = World::new();
    let first = world.checkpoint("d.qcow2", "first");
    world.checkpoint("d.qcow2", "second");
    world.fork("d.qcow2", "second", &["f.qcow2"]);
    let layer = world.place().layer(first);
    let (disk, fork) = (world.disk("d.qcow2"), world.disk("f.qcow2"));
    let looked = |disk| AsSealed::of(&world.place()).unwrap().check(disk, Duration::ZERO);
    looked(&disk).unwrap();
    let sealed = layer.metadata().unwrap().modified().unwrap();
    set_times(&layer, sealed + Duration::from_secs(1));
    for found in [
        looked(&disk),
        looked(&fork),
        Change::begin(&world.place(), Duration::ZERO).unwrap().check_layers(&disk),
    ] {
        assert!(matches!(&found, Err(Error::Changed { path, .. }) if *path == layer), "{found:?}");
    }
    // As a copy keeps it.
    set_times(&layer, sealed);
    let mut all = AsSealed::of(&world.place()).unwrap();
    all.check(&disk, Duration::ZERO).unwrap();
    all.check(&fork, Duration::ZERO).unwrap();
    // A merge that puts another file there writes its seal before it gives the lock back.
    set_times(&layer, sealed + Duration::from_secs(1));
    let _held = Change::begin(&world.place(), Duration::ZERO).unwrap();
    let found = looked(&disk);
    assert!(matches!(found, Err(Error::Busy { .. })), "{found:?}");
}

/// The directory of the layers was made for a user who could not seal one, and was that user's.
#[test]
fn for_a_disk_that_cannot_be_sealed_nothing_is_made() {
    let world = World::new();
    check_sealable(&world.disk("d.qcow2")).unwrap();
    std::fs::hard_link(world.path("d.qcow2"), world.path("other.qcow2")).unwrap();
    let refused = check_sealable(&world.disk("d.qcow2")).unwrap_err();
    assert!(refused.to_string().contains("2 names"), "{refused}");
    assert!(!world.place().layers().exists());
}
