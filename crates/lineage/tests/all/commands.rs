//! What each command leaves.

use lineage::{Backing, Change, Error, Manifest, Survey};

use crate::support::*;

fn survey(world: &World) -> Survey {
    Survey::take(&world.place(), &Manifest::read(&world.place()).unwrap().unwrap()).unwrap()
}

#[test]
fn the_path_of_a_disk_names_its_active_layer_and_layers_are_not_written() {
    let world = World::new();
    let [one, two] = ["one", "two"].map(|name| {
        let id = world.checkpoint("d.qcow2", name);
        world.write("d.qcow2", if name == "one" { 2 } else { 3 });
        id
    });
    assert_eq!(world.read("d.qcow2"), 3);
    let survey = survey(&world);
    assert_eq!(survey.chain_of_disk("d.qcow2").unwrap(), [two, one]);
    for (id, content) in [(one, 1), (two, 2)] {
        let layer = world.place().layer(id);
        assert_eq!((mode(&layer), read(&layer)), (0o444, content));
        assert_eq!(survey.layers[&id].changed, None);
    }
    assert_eq!(survey.layers[&two].image.backing, Backing::Layer(one));
    assert_eq!(survey.users(one), [two.file_name()]);
    assert_eq!(survey.users(two), ["d.qcow2"]);
}

/// Each fork read the header of every image beside it: the 2,000th took ten times as long as the first.
#[test]
fn a_fork_and_a_rollback_look_at_no_image_that_they_do_not_need() {
    let world = World::new();
    world.checkpoint("d.qcow2", "one");
    world.fork("d.qcow2", "one", &["f.qcow2"]);
    world.write("f.qcow2", 2);
    let other = world.checkpoint("f.qcow2", "other");
    // A survey ends at this image, and so does every command that looks at all.
    std::fs::write(world.path("wrong.qcow2"), b"QFI\xfb and no header").unwrap();
    let layer = world.place().layer(other);
    std::fs::set_permissions(&layer, std::os::unix::fs::PermissionsExt::from_mode(0o644)).unwrap();
    std::fs::write(&layer, b"QFI\xfb and no header").unwrap();
    assert!(world.begin().survey().is_err() && world.begin().collect(true, usize::MAX).is_err());
    world.fork("d.qcow2", "one", &["g.qcow2"]);
    world.rollback("d.qcow2", "one");
    assert_eq!((world.read("d.qcow2"), world.read("g.qcow2")), (1, 1));
    // What they need they look at.
    let fork = world.fork_of("f.qcow2", "other", &["h.qcow2"]);
    assert!(world.begin().plan(&[fork]).is_err());
    let taken = world.fork_of("d.qcow2", "one", &["g.qcow2"]);
    assert!(world.begin().plan(&[taken]).is_err());
}

#[test]
fn a_disk_that_only_its_owner_reads_has_such_layers() {
    let world = World::new();
    std::fs::set_permissions(world.path("d.qcow2"), std::os::unix::fs::PermissionsExt::from_mode(0o600))
        .unwrap();
    let id = world.checkpoint("d.qcow2", "one");
    assert_eq!(mode(&world.place().layer(id)), 0o400);
    assert_eq!(mode(&world.path("d.qcow2")), 0o600);
    world.fork("d.qcow2", "one", &["f.qcow2"]);
    assert_eq!(mode(&world.path("f.qcow2")), 0o600);
}

#[test]
fn a_rollback_keeps_what_it_leaves_and_a_fork_of_a_fork_has_its_own_checkpoints() {
    let world = World::new();
    world.checkpoint("d.qcow2", "one");
    world.write("d.qcow2", 2);
    let left = world.rollback("d.qcow2", "one");
    assert_eq!((world.read("d.qcow2"), read(&world.place().layer(left))), (1, 2));
    // By its id the user comes back.
    world.rollback("d.qcow2", &left.to_string());
    assert_eq!(world.read("d.qcow2"), 2);
    world.fork("d.qcow2", "one", &["f.qcow2", "g.qcow2"]);
    assert_eq!((world.read("f.qcow2"), world.read("g.qcow2")), (1, 1));
    world.write("f.qcow2", 7);
    world.checkpoint("f.qcow2", "two");
    world.fork("f.qcow2", "two", &["h.qcow2"]);
    assert_eq!((world.read("h.qcow2"), world.read("g.qcow2"), world.read("d.qcow2")), (7, 1, 2));
    // A fork knows the checkpoints below it; its name is taken for both.
    world.fork("h.qcow2", "one", &["i.qcow2"]);
    assert_eq!(world.read("i.qcow2"), 1);
    let change = world.begin();
    let checkpoint = |disk| change.plan(&[world.checkpoint_of(disk, new_checkpoint(Some("two")))]);
    let taken = checkpoint("h.qcow2");
    assert!(matches!(taken, Err(Error::NameTaken { .. })), "{taken:?}");
    assert!(checkpoint("d.qcow2").is_ok());
}

#[test]
fn a_layer_goes_when_nothing_is_backed_by_it_and_not_before() {
    let world = World::new();
    let one = world.checkpoint("d.qcow2", "one");
    world.write("d.qcow2", 2);
    let two = world.checkpoint("d.qcow2", "two");
    world.fork("d.qcow2", "one", &["f.qcow2"]);
    let delete = |disk: &str, name: &str| {
        let change = world.begin();
        let (plan, outcome) = change.delete(&[(world.disk(disk), named(name))]).unwrap();
        run(change, plan);
        outcome
    };
    let outcome = delete("d.qcow2", "one");
    assert_eq!(
        (outcome.going.len(), outcome.staying),
        (0, vec![(one, vec!["f.qcow2".into(), two.file_name()])])
    );
    assert!(world.place().layer(one).exists());
    // Its name is free.
    world.write("d.qcow2", 3);
    let again = world.checkpoint("d.qcow2", "one");
    let left = world.rollback("d.qcow2", "two");
    assert_eq!(delete("d.qcow2", "one").staying, [(again, vec![left.file_name()])]);
    assert_eq!(world.read("d.qcow2"), 2);
    let collect = |unnamed: bool| {
        let change = world.begin();
        let (plan, outcome) = change.collect(unnamed, usize::MAX).unwrap();
        run(change, plan);
        outcome.going
    };
    // What the rollback left has no name.
    assert_eq!(collect(false), []);
    assert_eq!(collect(true), [left, again]);
    // The fork is the last that needs the first layer, but for the disk.
    std::fs::remove_file(world.path("f.qcow2")).unwrap();
    assert_eq!(collect(true), []);
    std::fs::remove_file(world.path("d.qcow2")).unwrap();
    assert_eq!(collect(false), []);
    assert_eq!(delete("d.qcow2", "two").going, [two, one]);
    assert_eq!(survey(&world).layers.len(), 0);
}

#[test]
fn images_that_a_lineage_cannot_have_are_refused_by_name() {
    let world = World::new();
    std::fs::write(world.path("raw"), vec![0; 4096]).unwrap();
    let refused = |name: &str| {
        let change = world.begin();
        let planned = change.plan(&[world.checkpoint_of(name, new_checkpoint(None))]);
        planned.expect_err("it is refused").to_string()
    };
    assert!(refused("raw").contains("convert -O qcow2"));
    let make = |name: &str, change: &dyn Fn(&mut cowhand::NewImage)| {
        let mut image = cowhand::NewImage::qcow2(DISK_BYTES);
        change(&mut image);
        cowhand::create(world.path(name), image).wait().unwrap();
    };
    make("data", &|image| image.options.data_file = Some("data.raw".into()));
    assert!(refused("data").contains("in another file"));
    make("below", &|image| {
        (image.options.backing_file, image.options.backing_format) =
            (Some("sub/base".into()), Some("raw".into()));
    });
    assert!(refused("below").contains("rebase -u"));
    let mut header = std::fs::read(world.path("d.qcow2")).unwrap();
    header[63] = 1;
    header[71] = 0;
    std::fs::write(world.path("snapshots"), &header).unwrap();
    assert!(!refused("snapshots").is_empty());
}

/// The base of a disk is beside it, and is named from the directory of the disk.
#[test]
fn a_base_beside_the_disk_is_found_from_its_layer() {
    let world = World::new();
    let top = cowhand::NewImage::overlay(DISK_BYTES, "d.qcow2", cowhand::Format::Qcow2);
    cowhand::create(world.path("top.qcow2"), top).wait().unwrap();
    assert_eq!(world.read("top.qcow2"), 1);
    let id = world.checkpoint("top.qcow2", "one");
    assert_eq!((world.read("top.qcow2"), read(&world.place().layer(id))), (1, 1));
    assert_eq!(survey(&world).chain_of_disk("top.qcow2").unwrap(), [id]);
}

/// Each disk is one thing afterwards, and names of checkpoints mean what was there before.
#[test]
fn what_is_done_at_one_moment_concerns_each_disk_once() {
    let world = World::new();
    world.checkpoint("d.qcow2", "one");
    world.fork("d.qcow2", "one", &["f.qcow2"]);
    let change = world.begin();
    let new = || new_checkpoint(Some("two"));
    let (checkpoint, fork) =
        (world.checkpoint_of("d.qcow2", new()), |new| world.fork_of("d.qcow2", "one", new));
    for twice in [
        [checkpoint.clone(), world.rollback_of("d.qcow2", "one", new_checkpoint(None))],
        [fork(&["x.qcow2"]), fork(&["y.qcow2", "x.qcow2"])],
    ] {
        assert!(change.plan(&twice).unwrap_err().to_string().contains("twice"));
    }
    let unknown = change.plan(&[checkpoint.clone(), world.fork_of("d.qcow2", "two", &["x.qcow2"])]);
    assert!(matches!(unknown, Err(Error::NoCheckpoint { .. })), "{unknown:?}");
    drop(change);
    world.act(&[checkpoint, world.checkpoint_of("f.qcow2", new()), fork(&["x.qcow2", "y.qcow2"])]);
    assert_eq!(["d.qcow2", "f.qcow2", "x.qcow2", "y.qcow2"].map(|name| world.read(name)), [1; 4]);
    assert_eq!(survey(&world).layers.len(), 3);
}

/// A guest wrote into a layer through an old path, and every fork of it changed.
#[test]
fn a_sealed_layer_that_has_changed_is_an_error() {
    let world = World::new();
    let id = world.checkpoint("d.qcow2", "one");
    let layer = world.place().layer(id);
    let file = std::fs::File::options().append(true).open(&layer).unwrap();
    file.set_len(layer.metadata().unwrap().len() + 512).unwrap();
    let change = world.begin();
    let new = || new_checkpoint(None);
    let found = [
        world.checkpoint_of("d.qcow2", new()),
        world.rollback_of("d.qcow2", "one", new()),
        world.fork_of("d.qcow2", "one", &["f.qcow2"]),
    ]
    .map(|action| change.plan(&[action]));
    for refused in found {
        assert!(matches!(refused, Err(Error::Changed { .. })), "{refused:?}");
    }
}

#[test]
fn a_chain_of_a_thousand_images_takes_no_more_layers() {
    let world = World::new();
    let mut ids = Vec::new();
    // What checkpoints would make, without the time that they take.
    let mut manifest = world.begin().recovered().manifest.clone();
    for _ in 0..998 {
        let id = new_checkpoint(None).id;
        let parent = ids.last().copied();
        let json = serde_json_entry(&id.to_string(), parent.map(|id: lineage::LayerId| id.to_string()));
        manifest.put(json);
        ids.push(id);
    }
    let last = *ids.last().unwrap();
    let overlay =
        cowhand::NewImage::overlay(DISK_BYTES, lineage::Place::name_in_images(last), cowhand::Format::Qcow2);
    cowhand::create(world.path("deep.qcow2"), overlay).wait().unwrap();
    // The layer itself is looked at, those below are not.
    let below = ids.iter().rev().nth(1).unwrap();
    let overlay = cowhand::NewImage::overlay(DISK_BYTES, below.file_name(), cowhand::Format::Qcow2);
    cowhand::create(world.place().layer(last), overlay).wait().unwrap();
    let text = serde_json::json!({ "cowhand-lineage": 1, "layers": manifest.entries().collect::<Vec<_>>() });
    std::fs::write(world.place().manifest(), text.to_string()).unwrap();
    let change = Change::begin(&world.place(), std::time::Duration::ZERO).unwrap();
    let found = change.plan(&[world.checkpoint_of("deep.qcow2", new_checkpoint(None))]);
    assert!(matches!(found, Err(Error::TooLong { found: 998, max: 1000, .. })), "{found:?}");
}

fn serde_json_entry(id: &str, parent: Option<String>) -> lineage::Entry {
    let seal = serde_json::json!({ "bytes": 1, "modified-sec": 1, "modified-nsec": 0 });
    let entry =
        serde_json::json!({ "id": id, "parent": parent, "disk": "deep.qcow2", "time-sec": 1, "seal": seal });
    serde_json::from_value(entry).unwrap()
}
