//! Lineages that were copied or moved, and manifests that were lost.

use std::path::Path;
use std::process::Command;

use lineage::{Backing, Manifest, Place, Survey};

use crate::support::*;

fn built() -> World {
    let world = World::new();
    world.checkpoint("d.qcow2", "one");
    world.write("d.qcow2", 2);
    world.checkpoint("d.qcow2", "two");
    world.write("d.qcow2", 3);
    world.fork("d.qcow2", "one", &["f.qcow2"]);
    world
}

fn check(directory: &Path) {
    assert_eq!(["d.qcow2", "f.qcow2"].map(|name| read(&directory.join(name))), [3, 1]);
    let place = Place::of(directory).unwrap();
    let change = lineage::Change::begin(&place, std::time::Duration::ZERO).unwrap();
    let survey = change.survey().unwrap();
    let chain = survey.chain_of_disk("d.qcow2").unwrap();
    assert_eq!(chain.len(), 2);
    survey.check_sealed(&chain).unwrap();
    let disk = place.disk("d.qcow2").unwrap();
    let new = new_checkpoint(Some("three"));
    assert!(change.plan(&[lineage::Action::Checkpoint { disk, new }]).is_ok());
}

#[test]
fn a_copy_and_a_moved_lineage_open() {
    let world = built();
    let scratch = tempfile::tempdir().unwrap();
    let (copy, moved) = (scratch.path().join("copy"), scratch.path().join("moved"));
    let copied = Command::new("cp").arg("-a").arg(world.scratch.path()).arg(&copy).status().unwrap();
    assert!(copied.success());
    // Nothing of the copy leads to the original.
    std::fs::remove_dir_all(world.scratch.path()).unwrap();
    check(&copy);
    std::fs::rename(&copy, &moved).unwrap();
    check(&moved);
}

/// All names of an image's parents are bare: a chain of links would end at the 40th layer, in QEMU and here.
#[test]
fn names_of_parents_do_not_grow_with_the_chain() {
    let world = World::new();
    for layer in 0..50_u8 {
        world.write("d.qcow2", layer + 1);
        world.checkpoint("d.qcow2", &format!("n{layer}"));
    }
    assert_eq!(world.read("d.qcow2"), 50);
    let manifest = Manifest::read(&world.place()).unwrap().unwrap();
    let survey = Survey::take(&world.place(), &manifest).unwrap();
    for layer in survey.layers.values() {
        let image = std::fs::read(&layer.image.path).unwrap();
        let header = qcow2_name(&image);
        match layer.image.backing {
            Backing::Layer(id) => assert_eq!(header, Some(id.file_name())),
            _ => assert_eq!(header, None),
        }
    }
}

fn qcow2_name(image: &[u8]) -> Option<String> {
    let at = u64::from_be_bytes(image[8..16].try_into().unwrap()) as usize;
    let len = u32::from_be_bytes(image[16..20].try_into().unwrap()) as usize;
    (at > 0).then(|| String::from_utf8(image[at..at + len].to_vec()).unwrap())
}

#[test]
fn a_lost_manifest_is_rebuilt_from_the_images() {
    let world = built();
    let before = Manifest::read(&world.place()).unwrap().unwrap();
    std::fs::remove_file(world.place().manifest()).unwrap();
    let change = world.begin();
    let after = &change.recovered().manifest;
    assert_eq!(change.recovered().adopted.len(), 2);
    for entry in before.entries() {
        let rebuilt = after.entry(entry.id).unwrap();
        assert_eq!((rebuilt.parent, rebuilt.seal), (entry.parent, entry.seal));
        // Names are in the manifest alone.
        assert_eq!(rebuilt.name, None);
        assert!(change.survey().unwrap().find(&world.disk("d.qcow2"), &named(&entry.id.to_string())).is_ok());
    }
    drop(change);
    check(world.scratch.path());
}
