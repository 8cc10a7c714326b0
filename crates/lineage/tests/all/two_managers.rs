//! Two commands on one lineage.

use std::time::Duration;

use lineage::{Change, Error};

use crate::support::*;

#[test]
fn the_second_of_two_managers_is_refused_and_reports_the_first() {
    let world = World::new();
    let first = world.begin();
    let refused = Change::begin(&world.place(), Duration::ZERO).expect_err("it is locked");
    assert!(matches!(refused, Error::Busy { .. }));
    assert!(refused.to_string().contains("this process itself"), "{refused}");
    drop(first);
    assert!(Change::begin(&world.place(), Duration::ZERO).is_ok());
}

/// Commands of milliseconds that meet wait for each other.
#[test]
fn many_managers_at_once_take_all_their_checkpoints() {
    const EACH: usize = 5;
    let world = World::new();
    world.checkpoint("d.qcow2", "first");
    for name in ["a.qcow2", "b.qcow2", "c.qcow2"] {
        world.fork("d.qcow2", "first", &[name]);
    }
    std::thread::scope(|scope| {
        for name in ["a.qcow2", "b.qcow2", "c.qcow2"] {
            let world = &world;
            scope.spawn(move || {
                for number in 0..EACH {
                    let change = Change::begin(&world.place(), Duration::from_secs(60)).unwrap();
                    let new = new_checkpoint(Some(&format!("n{number}")));
                    let plan = change.plan(&[world.checkpoint_of(name, new)]).unwrap();
                    run(change, plan);
                }
            });
        }
    });
    let survey = world.begin().survey().unwrap();
    for name in ["a.qcow2", "b.qcow2", "c.qcow2"] {
        assert_eq!(survey.chain_of_disk(name).unwrap().len(), EACH + 1, "{name}");
        assert_eq!(world.read(name), 1);
    }
}

/// A process that reads a layer, an export of a fork that was removed for one, still needs it.
#[test]
fn a_layer_that_a_process_has_open_does_not_go() {
    let world = World::new();
    let one = world.checkpoint("d.qcow2", "one");
    let reader = cowhand::OpenOptions::new(world.place().layer(one)).read_only(true).open().wait().unwrap();
    std::fs::remove_file(world.path("d.qcow2")).unwrap();
    let change = world.begin();
    let wanted = [(world.disk("d.qcow2"), named("one"))];
    let refused = change.delete(&wanted);
    assert!(matches!(refused, Err(Error::Busy { .. })), "{refused:?}");
    reader.close().wait().unwrap();
    drop(reader);
    let (plan, _) = change.delete(&wanted).unwrap();
    run(change, plan);
    assert!(!world.place().layer(one).exists());
}
