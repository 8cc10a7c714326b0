//! Images that lie or are named otherwise than commands make them: what reads before a command reads after it, or the command is refused.

use std::os::unix::fs::symlink;

use lineage::{Change, Error, LayerId};

use crate::support::*;

fn overlay(world: &World, name: &str, backing: &str) {
    let image = cowhand::NewImage::overlay(DISK_BYTES, backing, cowhand::Format::Qcow2);
    cowhand::create(world.path(name), image).wait().unwrap();
}

/// Tries to take a checkpoint.
fn refused(world: &World, disk: &str) -> String {
    let change = world.begin();
    let plan = change.plan(&[world.checkpoint_of(disk, new_checkpoint(Some("refused")))]);
    plan.expect_err("it is refused").to_string()
}

fn begin(world: &World) -> Result<Change, Error> {
    Change::begin(&world.place(), std::time::Duration::ZERO)
}

/// Only the base had a link in the directory of the layers: what that is backed by was looked for there, and the disk opened no more.
#[test]
fn a_base_that_is_an_overlay_itself_is_found_after_a_checkpoint() {
    let world = World::new();
    overlay(&world, "base.qcow2", "d.qcow2");
    overlay(&world, "disk.qcow2", "base.qcow2");
    world.checkpoint("disk.qcow2", "one");
    assert_eq!(world.read("disk.qcow2"), 1);
    world.checkpoint("disk.qcow2", "two");
    assert_eq!(world.read("disk.qcow2"), 1);
    // Where it is not called as one beside it nothing leads to it.
    std::fs::create_dir(world.path("sub")).unwrap();
    std::fs::rename(world.path("d.qcow2"), world.path("sub/d.qcow2")).unwrap();
    for (name, backing) in [("far.qcow2", "sub/d.qcow2"), ("over.qcow2", "far.qcow2")] {
        overlay(&world, name, backing);
    }
    let refused = refused(&world, "over.qcow2");
    assert!(refused.contains("absolute name"), "{refused}");
}

#[test]
fn a_base_that_names_files_in_its_own_way_needs_an_absolute_name() {
    let world = World::new();
    std::fs::write(world.path("base.vmdk"), "# Disk DescriptorFile\nversion=1\n").unwrap();
    let mut image = cowhand::NewImage::overlay(DISK_BYTES, "base.vmdk", cowhand::Format::Qcow2);
    image.options.backing_format = Some("vmdk".to_owned());
    cowhand::create(world.path("disk.qcow2"), image).wait().unwrap();
    let refused = refused(&world, "disk.qcow2");
    assert!(refused.contains("absolute name"), "{refused}");
}

/// The next command took the link to such a base for what a killed one had left.
#[test]
fn a_base_is_not_called_as_a_file_of_the_lineage() {
    for base in [
        "new-0123456789abcdef.qcow2",
        "merged-0123456789abcdef.qcow2",
        "0123456789abcdef.qcow2",
        "lineage.json.new",
        "lineage.json",
        "lock",
        "merge.lock",
    ] {
        let world = World::new();
        std::fs::rename(world.path("d.qcow2"), world.path(base)).unwrap();
        overlay(&world, "disk.qcow2", base);
        let refused = refused(&world, "disk.qcow2");
        assert!(refused.contains("rename the base"), "{refused}");
        assert_eq!(world.read("disk.qcow2"), 1, "{base}");
        // An older program may have made the link.
        let link = world.place().layers().join(base);
        if !link.exists() {
            symlink(std::path::Path::new("..").join(base), &link).unwrap();
            drop(begin(&world));
            assert!(link.symlink_metadata().is_ok(), "{base}");
        }
    }
}

/// The name was right beside the disk, and led nowhere from the directory of the layers.
#[test]
fn a_layer_is_named_as_commands_name_it_or_the_checkpoint_is_refused() {
    let world = World::new();
    let one = world.checkpoint("d.qcow2", "one");
    std::fs::create_dir(world.path("sub")).unwrap();
    symlink(world.place().layer(one), world.path("alias.qcow2")).unwrap();
    let above = format!("../{}", world.place().directory().file_name().unwrap().display());
    let file = one.file_name();
    for name in [format!("{above}/layers/{file}"), format!("sub/../layers/{file}"), "alias.qcow2".to_owned()]
    {
        overlay(&world, "disk.qcow2", &name);
        assert_eq!(world.read("disk.qcow2"), 1);
        let refused = refused(&world, "disk.qcow2");
        assert!(refused.contains(&format!("rebase -u -b layers/{file}")), "{name}: {refused}");
        std::fs::remove_file(world.path("disk.qcow2")).unwrap();
    }
    let absolute = world.place().layer(one).display().to_string();
    for name in [format!("layers/{file}"), format!("./layers/{file}"), absolute] {
        overlay(&world, "disk.qcow2", &name);
        world.act(&[world.checkpoint_of("disk.qcow2", new_checkpoint(None))]);
        assert_eq!(world.read("disk.qcow2"), 1, "{name}");
        std::fs::remove_file(world.path("disk.qcow2")).unwrap();
    }
}

/// What a layer or a disk needs was removed where a link led to it.
#[test]
fn what_lies_elsewhere_and_is_linked_is_needed_all_the_same() {
    let world = World::new();
    let elsewhere = tempfile::tempdir().unwrap();
    let one = world.checkpoint("d.qcow2", "one");
    world.write("d.qcow2", 2);
    let two = world.checkpoint("d.qcow2", "two");
    world.fork("d.qcow2", "two", &["f.qcow2"]);
    std::fs::remove_file(world.path("d.qcow2")).unwrap();
    let away = |path: std::path::PathBuf| {
        let moved = elsewhere.path().join(path.file_name().unwrap());
        std::fs::copy(&path, &moved).unwrap();
        std::fs::remove_file(&path).unwrap();
        symlink(&moved, &path).unwrap();
        moved
    };
    let fork = away(world.path("f.qcow2"));
    away(world.place().layer(two));
    let staying = |world: &World| {
        let change = world.begin();
        let ids = ["one", "two"].map(|name| (world.disk("d.qcow2"), named(name)));
        let (_, outcome) = change.delete(&ids).unwrap();
        let mut staying: Vec<LayerId> = outcome.staying.iter().map(|(id, _)| *id).collect();
        staying.sort_unstable();
        staying
    };
    let mut both = vec![one, two];
    both.sort_unstable();
    assert_eq!(staying(&world), both);
    assert_eq!(world.read("f.qcow2"), 2);
    // Where it is not there now, what it needs is unknown.
    std::fs::rename(&fork, fork.with_extension("away")).unwrap();
    let refused = world.begin().collect(true, usize::MAX).expect_err("it is refused").to_string();
    assert!(refused.contains("f.qcow2") && refused.contains("leads to no file"), "{refused}");
}

/// Its link stayed behind, led to no file, and nothing could be removed any more.
#[test]
fn a_base_that_has_gone_with_its_disk_is_in_the_way_of_no_removal() {
    let world = World::new();
    overlay(&world, "over.qcow2", "d.qcow2");
    world.checkpoint("over.qcow2", "one");
    overlay(&world, "f.qcow2", "d.qcow2");
    overlay(&world, "other.qcow2", "./f.qcow2");
    world.checkpoint("other.qcow2", "two");
    std::fs::remove_file(world.path("other.qcow2")).unwrap();
    std::fs::remove_file(world.path("f.qcow2")).unwrap();
    assert!(world.place().layers().join("f.qcow2").symlink_metadata().is_ok());
    let (_, outcome) = world.begin().delete(&[(world.disk("other.qcow2"), named("two"))]).unwrap();
    assert_eq!(outcome.going.len(), 1);
    world.begin().collect(true, usize::MAX).unwrap();
}

#[test]
fn a_base_beside_the_disk_may_be_named_from_its_directory() {
    let world = World::new();
    overlay(&world, "over.qcow2", "./d.qcow2");
    world.checkpoint("over.qcow2", "one");
    assert_eq!(world.read("over.qcow2"), 1);
}

#[test]
fn a_copy_without_the_link_is_told_how_to_make_it() {
    let world = World::new();
    world.checkpoint("d.qcow2", "one");
    std::fs::remove_file(world.place().link()).unwrap();
    let refused = begin(&world).unwrap_err().to_string();
    assert!(refused.contains("ln -s . ") && refused.contains("layers/layers"), "{refused}");
    std::os::unix::fs::symlink(".", world.place().link()).unwrap();
    begin(&world).unwrap();
}

#[test]
fn an_image_of_another_name_among_the_layers_is_looked_at() {
    let world = World::new();
    world.checkpoint("d.qcow2", "one");
    world.write("d.qcow2", 2);
    let two = world.checkpoint("d.qcow2", "two");
    overlay(&world, "layers/mine.qcow2", &two.file_name());
    world.rollback("d.qcow2", "one");
    let (_, outcome) = world.begin().delete(&[(world.disk("d.qcow2"), named("two"))]).unwrap();
    let [(id, users)] = &outcome.staying[..] else { panic!("{:?}", outcome.staying) };
    assert!(*id == two && users.contains(&"layers/mine.qcow2".to_owned()), "{users:?}");
}

/// Its bytes were those of the sealed layer, and a name beside the disks made the next command remove the layer's.
#[test]
fn a_file_of_two_names_is_refused_and_a_layer_that_has_one_beside_the_disks_stays() {
    let world = World::new();
    std::fs::hard_link(world.path("d.qcow2"), world.path("second.qcow2")).unwrap();
    let refused = refused(&world, "d.qcow2");
    assert!(refused.contains("2 names"), "{refused}");
    std::fs::remove_file(world.path("second.qcow2")).unwrap();
    let one = world.checkpoint("d.qcow2", "one");
    std::fs::hard_link(world.place().layer(one), world.path("second.qcow2")).unwrap();
    std::fs::remove_file(world.place().manifest()).unwrap();
    let change = begin(&world).unwrap();
    assert_eq!((change.recovered().removed.len(), change.recovered().adopted.len()), (0, 1));
    drop(change);
    assert_eq!(world.read("d.qcow2"), 1);
}

/// It kept them in `forget` alone.
#[test]
fn what_may_have_had_a_name_is_not_collected_for_having_none() {
    let world = World::new();
    world.checkpoint("d.qcow2", "one");
    world.write("d.qcow2", 2);
    world.checkpoint("d.qcow2", "two");
    world.rollback("d.qcow2", "one");
    let (_, outcome) = world.begin().collect(true, usize::MAX).unwrap();
    let [unnamed] = outcome.going[..] else { panic!("{:?}", outcome.going) };
    std::fs::remove_file(world.place().manifest()).unwrap();
    let (_, outcome) = world.begin().collect(true, usize::MAX).unwrap();
    assert!(outcome.going.is_empty(), "{:?}", outcome.going);
    let wanted = [(world.disk("d.qcow2"), named(&unnamed.to_string()))];
    let (_, outcome) = world.begin().delete(&wanted).unwrap();
    assert_eq!(outcome.going, [unnamed]);
}

/// A half download beside them was in the way of every disk.
#[test]
fn an_image_that_cannot_be_read_is_in_the_way_of_removal_alone() {
    let world = World::new();
    let one = world.checkpoint("d.qcow2", "one");
    std::fs::write(world.path("half.part"), b"QFI\xfb and no header").unwrap();
    let survey = lineage::Survey::look(&world.place()).unwrap();
    assert_eq!(survey.chain_of_disk("d.qcow2").unwrap(), [one]);
    assert_eq!(
        survey.unread.iter().map(|unread| unread.path.clone()).collect::<Vec<_>>(),
        [world.path("half.part")]
    );
    world.checkpoint("d.qcow2", "two");
    let refused = world.begin().collect(true, usize::MAX).expect_err("it is refused").to_string();
    assert!(refused.contains("half.part"), "{refused}");
}

#[test]
fn layers_do_not_lie_behind_a_link() {
    let world = World::new();
    std::fs::create_dir(world.path("other")).unwrap();
    symlink("other", world.place().layers()).unwrap();
    let refused = Change::begin_first(&world.place(), std::time::Duration::ZERO).expect_err("it is refused");
    assert!(refused.to_string().contains("no directory"), "{refused}");
}
