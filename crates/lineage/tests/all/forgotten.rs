//! What a policy keeps, and what becomes of layers that nothing needs by themselves.

use std::collections::BTreeSet;
use std::time::Duration;

use lineage::{Action, Error, Forgotten, LayerId, Merge, Merging, NewCheckpoint, Policy};

use crate::support::*;

fn policy(keep: Option<&str>, depth_max: Option<usize>) -> Policy {
    Policy { keep: keep.map(|keep| keep.parse().unwrap()), depth_max, ..Policy::default() }
}

/// A checkpoint an hour, each with a write before it; every fourth has a name.
fn hours(world: &World, disk: &str, count: u8) -> Vec<LayerId> {
    let checkpoint = |hour: u8| {
        world.write(disk, hour + 1);
        let name = format!("h{hour}");
        let new = new_checkpoint((hour % 4 == 3).then_some(&*name));
        let new = NewCheckpoint { time: Duration::from_secs(u64::from(hour) * 3600), ..new };
        let id = new.id;
        world.act(&[Action::Checkpoint { disk: world.disk(disk), new }]);
        id
    };
    (0..count).map(checkpoint).collect()
}

fn forget(world: &World, policy: &Policy) -> (Forgotten, Vec<Merge>) {
    let change = world.begin();
    let (plan, forgotten) = change.forget(None, policy).unwrap();
    run(change, plan);
    let mut merges = Vec::new();
    while let Some(merging) = begin_merge(world).unwrap() {
        make_merged(&merging.at(), merging.merged());
        let change = world.begin();
        let plan = merging.end(&change).unwrap().expect("nothing has changed");
        change.apply(&plan).unwrap();
        merges.push(merging.merge().clone());
    }
    (forgotten, merges)
}

/// The oldest. The lineage is not locked afterwards.
fn begin_merge(world: &World) -> Result<Option<Merging>, Error> {
    let change = world.begin();
    let oldest = change.merges()?;
    oldest.first().map_or(Ok(None), |merge| change.begin_merge(merge))
}

fn layers(world: &World) -> BTreeSet<LayerId> {
    world.begin().survey().unwrap().layers.into_keys().collect()
}

/// What was listed is what is done, and all that stays reads as before.
#[test]
fn a_policy_keeps_the_newest_of_each_span_and_every_name() {
    let world = World::new();
    let ids = hours(&world, "d.qcow2", 12);
    world.write("d.qcow2", 100);
    let before: Vec<u8> = ids.iter().map(|id| read(&world.place().layer(*id))).collect();
    // The last two, and h3, h7, h11.
    let (listed, merged) = forget(&world, &policy(Some("hourly:2"), None));
    assert_eq!(listed.merges, merged);
    let at = |places: &[usize]| places.iter().map(|at| ids[*at]).collect::<Vec<_>>();
    let runs: Vec<_> = merged.iter().map(|merge| (merge.into, merge.going.clone())).collect();
    assert_eq!(runs, [(ids[3], at(&[2, 1, 0])), (ids[7], at(&[6, 5, 4])), (ids[10], at(&[9, 8]))]);
    assert_eq!(layers(&world), at(&[3, 7, 10, 11]).into_iter().collect());
    for place in [3, 7, 10, 11] {
        assert_eq!(read(&world.place().layer(ids[place])), before[place], "{place}");
        assert_eq!(mode(&world.place().layer(ids[place])), 0o444);
    }
    assert_eq!(world.read("d.qcow2"), 100);
    let survey = world.begin().survey().unwrap();
    let chain = survey.chain_of_disk("d.qcow2").unwrap();
    assert_eq!(chain, at(&[11, 10, 7, 3]));
    survey.check_sealed(&chain).unwrap();
    // Once more it finds nothing to do.
    let (again, merged) = forget(&world, &policy(Some("hourly:2"), None));
    assert_eq!((again.checkpoints, again.removal.going, merged), (vec![], vec![], vec![]));
}

#[test]
fn what_a_fork_or_a_name_needs_stays() {
    let world = World::new();
    let ids = hours(&world, "d.qcow2", 6);
    world.fork("d.qcow2", &ids[1].to_string(), &["f.qcow2"]);
    world.fork("d.qcow2", &ids[5].to_string(), &["g.qcow2"]);
    let (forgotten, merged) = forget(&world, &policy(Some("last:0"), None));
    // 0 goes into 1, which a fork is backed by; 2 into 3, which has a name; 4 into 5, which the disk and a fork are backed by.
    let runs: Vec<_> = merged.iter().map(|merge| (merge.into, merge.going.clone())).collect();
    assert_eq!(runs, [(ids[1], vec![ids[0]]), (ids[3], vec![ids[2]]), (ids[5], vec![ids[4]])]);
    let staying: BTreeSet<LayerId> = forgotten.removal.staying.iter().map(|(id, _)| *id).collect();
    assert!(staying.contains(&ids[1]) && staying.contains(&ids[5]));
    assert_eq!((world.read("f.qcow2"), world.read("g.qcow2"), world.read("d.qcow2")), (2, 6, 6));
    // What a rollback left goes as a whole, when the policy does not keep it.
    world.write("d.qcow2", 50);
    let left = world.rollback("d.qcow2", "h3");
    let (forgotten, _) = forget(&world, &policy(Some("last:0"), None));
    assert_eq!(forgotten.removal.going, [left]);
    assert_eq!(world.read("d.qcow2"), 4);
}

/// A sandbox takes many in one second; their ids are random.
#[test]
fn of_checkpoints_of_one_second_the_newest_stays() {
    let world = World::new();
    let checkpoint = |nanos: u32| {
        world.write("d.qcow2", 1);
        let new = NewCheckpoint { time: Duration::new(7200, nanos), ..new_checkpoint(None) };
        let id = new.id;
        world.act(&[Action::Checkpoint { disk: world.disk("d.qcow2"), new }]);
        id
    };
    let ids: Vec<LayerId> = (0..8).map(checkpoint).collect();
    let (forgotten, _) = forget(&world, &policy(Some("last:1"), None));
    assert_eq!(forgotten.checkpoints.iter().collect::<BTreeSet<_>>(), ids[..7].iter().collect());
    assert_eq!(layers(&world), BTreeSet::from([ids[7]]));
}

#[test]
fn a_depth_is_reached_from_the_oldest_on_and_names_are_in_its_way() {
    let world = World::new();
    let ids = hours(&world, "d.qcow2", 10);
    let (forgotten, merged) = forget(&world, &policy(None, Some(6)));
    assert_eq!(
        forgotten.checkpoints.iter().copied().collect::<BTreeSet<_>>(),
        BTreeSet::from([ids[0], ids[1], ids[2], ids[4]])
    );
    assert_eq!(merged.len(), 2);
    assert_eq!(world.begin().survey().unwrap().chain_of_disk("d.qcow2").unwrap().len(), 6);
    let (forgotten, _) = forget(&world, &policy(Some("last:9"), Some(1)));
    // h3, h7 and the one that the disk is backed by.
    assert_eq!(forgotten.too_deep, [("d.qcow2".to_owned(), 3)]);
    assert_eq!(world.begin().survey().unwrap().chain_of_disk("d.qcow2").unwrap(), [ids[9], ids[7], ids[3]]);
    assert_eq!(world.read("d.qcow2"), 10);
}

/// A process that reads a layer keeps its chain: the merged one has its place, and the files go when they are closed.
#[test]
fn layers_that_a_process_has_open_stay_until_it_has_not() {
    let world = World::new();
    let ids = hours(&world, "d.qcow2", 3);
    world.delete("d.qcow2", &[&ids[0].to_string(), &ids[1].to_string()]);
    let reader =
        cowhand::OpenOptions::new(world.place().layer(ids[1])).read_only(true).open().wait().unwrap();
    assert_eq!(forget(&world, &Policy::default()).1.len(), 1);
    assert_eq!(layers(&world), ids.iter().copied().collect());
    assert_eq!(world.begin().survey().unwrap().chain_of_disk("d.qcow2").unwrap(), [ids[2]]);
    let mut read = [0; 512];
    reader.read_at(0, &mut read).unwrap();
    assert_eq!(read, [2; 512]);
    reader.close().wait().unwrap();
    drop(reader);
    let (forgotten, _) = forget(&world, &Policy::default());
    assert_eq!(forgotten.removal.going, [ids[1], ids[0]]);
    assert_eq!(layers(&world), BTreeSet::from([ids[2]]));
    assert_eq!(world.read("d.qcow2"), 3);
}

/// A copy takes minutes: checkpoints are taken and forks made meanwhile. What they come to need stays.
#[test]
fn other_commands_go_on_while_layers_are_copied() {
    for fork_of in [None, Some(0), Some(2)] {
        let world = World::new();
        let ids = hours(&world, "d.qcow2", 3);
        world.delete("d.qcow2", &[&ids[0].to_string(), &ids[1].to_string()]);
        let merging = begin_merge(&world).unwrap().expect("two layers are deleted");
        make_merged(&merging.at(), merging.merged());
        let second = begin_merge(&world);
        assert!(matches!(second, Err(Error::Busy { .. })), "{second:?}");
        world.write("d.qcow2", 100);
        let new = world.checkpoint("d.qcow2", "meanwhile");
        if let Some(at) = fork_of {
            world.fork("d.qcow2", &ids[at].to_string(), &["f.qcow2"]);
        }
        assert!(merging.at().exists(), "commands of others leave it");
        let change = world.begin();
        let plan = merging.end(&change).unwrap();
        assert_eq!(plan.is_some(), fork_of != Some(0), "{fork_of:?}");
        if let Some(plan) = plan {
            change.apply(&plan).unwrap();
        }
        drop(change);
        let at = merging.at();
        merging.abandon();
        assert!(!at.exists());
        forget(&world, &Policy::default());
        let left: &[LayerId] = if fork_of == Some(0) { &[new, ids[2], ids[0]] } else { &[new, ids[2]] };
        assert_eq!(world.begin().survey().unwrap().chain_of_disk("d.qcow2").unwrap(), left, "{fork_of:?}");
        assert_eq!(layers(&world), left.iter().copied().collect(), "{fork_of:?}");
        assert_eq!(world.read("d.qcow2"), 100);
        if let Some(at) = fork_of {
            assert_eq!(usize::from(world.read("f.qcow2")), at + 1);
        }
    }
}

/// After the loss of the manifest no name is known: a policy does not take any of them for one without.
#[test]
fn layers_whose_names_were_lost_are_kept() {
    let world = World::new();
    let ids = hours(&world, "d.qcow2", 4);
    std::fs::remove_file(world.place().manifest()).unwrap();
    let (forgotten, merged) = forget(&world, &policy(Some("last:0"), Some(1)));
    assert_eq!((forgotten.checkpoints, merged), (vec![], vec![]));
    assert_eq!(layers(&world).len(), ids.len());
}

/// A layer that was written after it was sealed is found before it is copied.
#[test]
fn a_layer_that_has_changed_is_not_merged() {
    let world = World::new();
    let ids = hours(&world, "d.qcow2", 3);
    world.delete("d.qcow2", &[&ids[1].to_string()]);
    let layer = world.place().layer(ids[1]);
    let file = std::fs::File::options().append(true).open(&layer).unwrap();
    file.set_len(layer.metadata().unwrap().len() + 512).unwrap();
    let refused = begin_merge(&world);
    assert!(matches!(refused, Err(Error::Changed { .. })), "{refused:?}");
}
