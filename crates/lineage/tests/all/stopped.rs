//! Each command stopped after each of its steps: by a kill, and by a power cut that also drops names that were not durable.

use std::collections::BTreeSet;
use std::path::Path;

use lineage::{Change, Plan, Policy, Step};

use crate::support::*;

/// A lineage with two checkpoints, and a command about to run on it.
struct Case {
    name: &'static str,
    plan: fn(&World, &Change) -> Plan,
    /// What the disk reads as before and after.
    contents: [u8; 2],
}

const CASES: [Case; 8] = [
    Case {
        name: "checkpoint",
        plan: |world, change| {
            change.plan(&[world.checkpoint_of("d.qcow2", new_checkpoint(Some("new")))]).unwrap()
        },
        contents: [3, 3],
    },
    Case {
        name: "rollback",
        plan: |world, change| {
            change.plan(&[world.rollback_of("d.qcow2", "one", new_checkpoint(None))]).unwrap()
        },
        contents: [3, 1],
    },
    Case {
        name: "fork",
        plan: |world, change| {
            change.plan(&[world.fork_of("d.qcow2", "one", &["x.qcow2", "y.qcow2"])]).unwrap()
        },
        contents: [3, 3],
    },
    Case {
        name: "all of it at one moment",
        plan: |world, change| {
            let actions = [
                world.rollback_of("d.qcow2", "one", new_checkpoint(None)),
                world.checkpoint_of("f.qcow2", new_checkpoint(Some("new"))),
                world.fork_of("d.qcow2", "one", &["x.qcow2", "y.qcow2"]),
            ];
            change.plan(&actions).unwrap()
        },
        contents: [3, 1],
    },
    Case {
        name: "delete a layer that is needed",
        plan: |world, change| change.delete(&[(world.disk("d.qcow2"), named("two"))]).unwrap().0,
        contents: [3, 3],
    },
    Case {
        name: "forget",
        plan: |world, change| {
            let policy = Policy { keep: Some("last:0".parse().unwrap()), ..Policy::default() };
            change.forget(Some(&world.disk("d.qcow2")), &policy).unwrap().0
        },
        contents: [3, 3],
    },
    Case {
        name: "merge",
        plan: |_, change| {
            let oldest = change.merges().unwrap().remove(0);
            let merging = change.begin_merge(&oldest).unwrap().expect("layers are deleted");
            make_merged(&merging.at(), merging.merged());
            merging.end(change).unwrap().expect("nothing has changed")
        },
        contents: [3, 3],
    },
    Case {
        name: "delete a layer that is not",
        plan: |world, change| change.delete(&[(world.disk("d.qcow2"), named("side"))]).unwrap().0,
        contents: [3, 3],
    },
];

/// The first checkpoint of a disk is made, too, in a world without layers.
fn world(is_first: bool) -> World {
    let world = World::new();
    if !is_first {
        world.checkpoint("d.qcow2", "one");
        world.write("d.qcow2", 9);
        world.checkpoint("d.qcow2", "side");
        world.rollback("d.qcow2", "one");
        for name in ["a", "b", "c"] {
            world.write("d.qcow2", 7);
            world.checkpoint("d.qcow2", name);
        }
        world.act(&[world.checkpoint_of("d.qcow2", new_checkpoint(None))]);
        world.write("d.qcow2", 2);
        world.checkpoint("d.qcow2", "two");
        world.delete("d.qcow2", &["a", "b", "c"]);
        world.fork("d.qcow2", "two", &["f.qcow2"]);
        // Left by the rollback.
        let change = world.begin();
        let (plan, _) = change.collect(true, usize::MAX).unwrap();
        run(change, plan);
    }
    world.write("d.qcow2", 3);
    world
}

/// What must hold of a lineage, whatever happened to a command on it; gives what the disk reads as.
fn check(world: &World, context: &str) -> u8 {
    let change = world.begin();
    let survey = change.survey().unwrap();
    for disk in &survey.disks {
        let (chain, outside) = survey.chain(&disk.image.path, &disk.image.backing).unwrap();
        survey.check_sealed(&chain).unwrap_or_else(|error| panic!("{context}: {error}"));
        assert_eq!(outside, None, "{context}");
    }
    for (id, layer) in &survey.layers {
        let entry = layer.entry.as_ref().unwrap_or_else(|| panic!("{context}: {id} has no entry"));
        assert!(entry.seal.is_some() && entry.parent == layer.image.backing.layer(), "{context}: {entry:?}");
        assert_eq!(mode(&layer.image.path), 0o444, "{context}");
        let name = layer.image.path.file_name().unwrap().to_str().unwrap().to_owned();
        assert!(
            survey.disks.iter().all(|disk| !disk.image.is_same_file(layer.image.metadata())),
            "{context}: {name} is a disk"
        );
    }
    let left: BTreeSet<String> = std::fs::read_dir(world.place().layers())
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .filter(|name| lineage::LayerId::of_file_name(name).is_none())
        .collect();
    let expected = ["layers", "lineage.json", "lock", "merge.lock"].map(str::to_owned);
    assert!(left.is_subset(&expected.into()), "{context}: {left:?}");
    for name in ["x.qcow2", "y.qcow2"] {
        if world.path(name).exists() {
            assert_eq!(world.read(name), 1, "{context}: {name}");
        }
    }
    if world.path("f.qcow2").exists() {
        assert_eq!(world.read("f.qcow2"), 2, "{context}: f.qcow2");
    }
    drop(change);
    let found = world.read("d.qcow2");
    // The lineage takes every command as if nothing had happened.
    world.write("d.qcow2", 200);
    world.checkpoint("d.qcow2", "afterwards");
    assert_eq!(world.read("d.qcow2"), 200, "{context}");
    found
}

fn cases() -> impl Iterator<Item = (&'static Case, bool)> {
    CASES.iter().map(|case| (case, false)).chain([(&CASES[0], true)])
}

#[test]
fn a_killed_command_leaves_each_disk_as_before_or_as_after() {
    for (case, is_first) in cases() {
        let mut met = BTreeSet::new();
        for stop in 0.. {
            let world = world(is_first);
            let change = world.begin();
            let plan = (case.plan)(&world, &change);
            if stop > plan.steps.len() {
                break;
            }
            plan.steps.iter().take(stop).for_each(step);
            drop(change);
            let context = format!("{} stopped after {:?}", case.name, plan.steps.get(stop.wrapping_sub(1)));
            let found = check(&world, &context);
            assert!(case.contents.contains(&found), "{context}: {found}");
            met.insert(found);
        }
        assert_eq!(met, case.contents.into(), "{}: both sides were met", case.name);
    }
}

/// Which step makes the names durable that a step changes.
fn is_durable_by(step: &Step, later: &Step) -> bool {
    let directory = match step {
        Step::Link { to, .. }
        | Step::Rename { to, .. }
        | Step::Replace { to, .. }
        | Step::ReplaceLayer { to, .. } => to.parent(),
        Step::Remove { path } => path.parent(),
        _ => return true,
    };
    matches!(later, Step::SyncDirectory { path } if Some(&**path) == directory)
}

/// Steps whose effect a power cut after `stop` steps may drop: changes of names that no later step made durable, each by itself.
fn droppable(steps: &[Step]) -> Vec<usize> {
    let is_open = |at: &usize| {
        let changes_names = matches!(
            steps[*at],
            Step::Link { .. }
                | Step::Rename { .. }
                | Step::Replace { .. }
                | Step::ReplaceLayer { .. }
                | Step::Remove { .. }
        );
        changes_names && !steps[at + 1..].iter().any(|later| is_durable_by(&steps[*at], later))
    };
    (0..steps.len()).filter(is_open).collect()
}

/// Runs `steps` but for the dropped ones. `false` if one of them cannot be without a dropped one: no disk shows that.
fn run_without(steps: &[Step], dropped: &[usize]) -> bool {
    for (at, one) in steps.iter().enumerate().filter(|(at, _)| !dropped.contains(at)) {
        match one {
            Step::MakeOverlay { .. } => step(one),
            one => {
                if let Err(error) = one.run() {
                    assert!(!dropped.is_empty(), "step {at}: {error}");
                    return false;
                }
            }
        }
    }
    true
}

fn after_power_cuts(case: &Case, is_first: bool, change_plan: fn(&mut Plan)) -> Result<usize, String> {
    let mut states = 0;
    for stop in 0.. {
        let plan_of = |world: &World, change: &Change| {
            let mut plan = (case.plan)(world, change);
            change_plan(&mut plan);
            plan
        };
        let one = world(is_first);
        let change = one.begin();
        let plan = plan_of(&one, &change);
        if stop > plan.steps.len() {
            return Ok(states);
        }
        let open = droppable(&plan.steps[..stop]);
        drop(change);
        for mask in 0..1_usize << open.len() {
            let dropped: Vec<usize> =
                (0..open.len()).filter(|bit| mask & 1 << bit != 0).map(|bit| open[bit]).collect();
            let world = world(is_first);
            let change = world.begin();
            let plan = plan_of(&world, &change);
            let is_possible = run_without(&plan.steps[..stop], &dropped);
            drop(change);
            if !is_possible {
                continue;
            }
            states += 1;
            let context = format!("{} cut after {stop} steps, without {dropped:?}", case.name);
            let found = std::panic::catch_unwind(|| check(&world, &context)).map_err(|_| context.clone())?;
            if !case.contents.contains(&found) {
                return Err(format!("{context}: {found}"));
            }
        }
    }
    Ok(states)
}

#[test]
fn a_power_cut_leaves_each_disk_as_before_or_as_after() {
    for (case, is_first) in cases() {
        let states = after_power_cuts(case, is_first, |_| {}).unwrap();
        assert!(states >= 2, "{}: {states} states", case.name);
    }
}

/// Without the barrier between a layer's name and the end of its old one, a power cut loses the disk: the test above finds that.
#[test]
fn the_barrier_behind_a_layers_name_is_missed() {
    let without = |plan: &mut Plan| {
        let layers = |path: &Path| path.ends_with("layers");
        plan.steps.retain(|step| !matches!(step, Step::SyncDirectory { path } if layers(path)));
    };
    let quiet = std::panic::take_hook();
    std::panic::set_hook(Box::new(|_| {}));
    let found = after_power_cuts(&CASES[0], false, without);
    std::panic::set_hook(quiet);
    assert!(found.is_err(), "{found:?}");
}

/// Without the barrier between the name of the merged layer and the end of those that it replaces, a power cut loses what they had.
#[test]
fn the_barrier_behind_a_merged_layers_name_is_missed() {
    let without = |plan: &mut Plan| {
        plan.steps.retain(|step| !matches!(step, Step::SyncDirectory { .. }));
    };
    let quiet = std::panic::take_hook();
    std::panic::set_hook(Box::new(|_| {}));
    let merge = CASES.iter().find(|case| case.name == "merge").unwrap();
    let found = after_power_cuts(merge, false, without);
    std::panic::set_hook(quiet);
    assert!(found.is_err(), "{found:?}");
}

/// A disk that is full, or a switch that fails: what was done is undone at once, and the lock is free.
#[test]
fn a_step_that_fails_leaves_everything_as_it_was() {
    use lineage::{Error, Host, NewOverlay, Switched};

    struct Failing(usize, std::cell::Cell<usize>);

    impl Failing {
        fn next(&self) -> Result<(), Error> {
            let at = self.1.replace(self.1.get() + 1);
            match at == self.0 {
                true => Err(Error::Invalid("no space left".into())),
                false => Ok(()),
            }
        }
    }

    impl Host for Failing {
        type Error = Error;

        async fn make_overlay(&self, at: &Path, overlay: &NewOverlay) -> Result<(), Error> {
            self.next()?;
            make_overlay(at, overlay);
            Ok(())
        }

        async fn switch(&self, _disks: &[Switched]) -> Result<(), Error> {
            self.next()
        }

        async fn close_sealed(&self, _disks: &[Switched]) {}

        async fn file_step(&self, step: &Step) -> Result<(), Error> {
            self.next()?;
            step.run()
        }
    }

    for (case, is_first) in cases() {
        for fails in 0.. {
            let world = world(is_first);
            let before = std::fs::metadata(world.path("d.qcow2")).unwrap();
            let change = world.begin();
            let plan = (case.plan)(&world, &change);
            if fails >= plan.steps.len() {
                break;
            }
            let is_settled = fails >= plan.settled;
            let result = futures_executor::block_on(change.run(plan, &Failing(fails, 0.into())));
            let context = format!("{}: step {fails} failed", case.name);
            assert_eq!(matches!(result, Err(Error::Unfinished { .. })), is_settled, "{context}: {result:?}");
            if !is_settled {
                use std::os::unix::fs::MetadataExt;
                assert_eq!(world.path("d.qcow2").metadata().unwrap().ino(), before.ino(), "{context}");
                assert!(!world.path("x.qcow2").exists(), "{context}");
            }
            let found = check(&world, &context);
            assert_eq!(found, case.contents[usize::from(is_settled)], "{context}");
        }
    }
}
