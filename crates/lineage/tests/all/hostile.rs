//! Files that others put into a lineage.

use lineage::{Change, Error, MANIFEST_VERSION};
use proptest::prelude::*;

use crate::support::*;

fn begin(world: &World) -> Result<Change, Error> {
    Change::begin(&world.place(), std::time::Duration::ZERO)
}

/// Whatever it says of layers is not known here, and a removal by it would take what is needed.
#[test]
fn a_newer_manifest_stops_every_command() {
    let world = World::new();
    let id = world.checkpoint("d.qcow2", "one");
    let text = format!(r#"{{"cowhand-lineage":{},"layers":"in another form"}}"#, MANIFEST_VERSION + 1);
    for (text, why) in [(text.as_str(), "newer"), ("{", "no manifest")] {
        std::fs::write(world.place().manifest(), text).unwrap();
        let refused = begin(&world).expect_err("it is refused");
        assert!(refused.to_string().contains(why), "{refused}");
        assert_eq!(std::fs::read_to_string(world.place().manifest()).unwrap(), text);
        assert!(world.place().layer(id).exists() && world.read("d.qcow2") == 1);
    }
}

#[test]
fn layers_that_go_round_in_a_circle_or_are_missing_are_errors() {
    let world = World::new();
    let one = world.checkpoint("d.qcow2", "one");
    world.write("d.qcow2", 2);
    let two = world.checkpoint("d.qcow2", "two");
    let overlay = cowhand::NewImage::overlay(DISK_BYTES, two.file_name(), cowhand::Format::Qcow2);
    std::fs::remove_file(world.place().layer(one)).unwrap();
    let change = begin(&world).unwrap();
    let found = change.survey().unwrap().chain_of_disk("d.qcow2");
    assert!(matches!(found, Err(Error::Missing { id, .. }) if id == one), "{found:?}");
    drop(change);
    cowhand::create(world.place().layer(one), overlay).wait().unwrap();
    let change = begin(&world).unwrap();
    let found = change.survey().unwrap().chain_of_disk("d.qcow2");
    assert!(matches!(found, Err(Error::Corrupt { .. })), "{found:?}");
}

#[test]
fn what_is_no_layer_stays_and_is_not_followed() {
    let world = World::new();
    world.checkpoint("d.qcow2", "one");
    let layers = world.place().layers();
    let id = "00000000000000aa.qcow2";
    for name in ["notes.txt", "new-disk.qcow2", id] {
        std::fs::write(layers.join(name), "mine").unwrap();
    }
    std::os::unix::fs::symlink("/etc/passwd", layers.join("00000000000000bb.qcow2")).unwrap();
    rustix_fifo(&layers.join("00000000000000cc.qcow2"));
    let change = begin(&world).unwrap();
    assert_eq!(change.recovered().removed, [""; 0].map(std::path::PathBuf::from));
    assert_eq!(change.survey().unwrap().layers.len(), 1);
    let (plan, _) = change.collect(true, usize::MAX).unwrap();
    run(change, plan);
    for name in ["notes.txt", "new-disk.qcow2", id, "00000000000000bb.qcow2", "00000000000000cc.qcow2"] {
        assert!(layers.join(name).symlink_metadata().is_ok(), "{name}");
    }
}

fn rustix_fifo(path: &std::path::Path) {
    assert!(std::process::Command::new("mkfifo").arg(path).status().unwrap().success());
}

/// A layer is needed by what is over it, however that names it.
#[test]
fn a_layer_that_an_image_names_in_json_is_needed() {
    let world = World::new();
    let one = world.checkpoint("d.qcow2", "one");
    let name = format!(r#"json:{{"driver":"qcow2","file":{{"filename":"layers/{}"}}}}"#, one.file_name());
    cowhand::create(
        world.path("other"),
        cowhand::NewImage::overlay(DISK_BYTES, name, cowhand::Format::Qcow2),
    )
    .wait()
    .unwrap();
    std::fs::remove_file(world.path("d.qcow2")).unwrap();
    let change = begin(&world).unwrap();
    let (_, outcome) = change.delete(&[(world.disk("d.qcow2"), named("one"))]).unwrap();
    assert_eq!(outcome.staying, [(one, vec!["other".to_owned()])]);
}

/// A directory of this name that another program made.
#[test]
fn a_directory_of_another_is_not_taken_for_layers() {
    let world = World::new();
    std::fs::create_dir_all(world.place().link()).unwrap();
    let refused = Change::begin_first(&world.place(), std::time::Duration::ZERO).expect_err("it is refused");
    assert!(refused.to_string().contains("another"), "{refused}");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// The header of a layer has any bytes: an error or a refusal, and no file is lost.
    #[test]
    fn a_layer_with_any_header_does_no_harm(at in 0_usize..600, bytes in prop::collection::vec(any::<u8>(), 1..16)) {
        let world = World::new();
        world.checkpoint("d.qcow2", "one");
        world.write("d.qcow2", 2);
        let two = world.checkpoint("d.qcow2", "two");
        let layer = world.place().layer(two);
        let mut image = std::fs::read(&layer).unwrap();
        image[at..at + bytes.len()].copy_from_slice(&bytes);
        std::fs::write(&layer, image).unwrap();
        std::fs::remove_file(world.place().manifest()).unwrap();
        let change = begin(&world).unwrap();
        if let Ok(survey) = change.survey() {
            let _ = survey.chain_of_disk("d.qcow2");
            let _ = change.collect(true, usize::MAX);
        }
        assert!(layer.exists());
    }
}
